"""Names from the files of another process: their symbols, debug information, and perf maps.

Whoever runs the process chose what is in these files, so this is done in a process of its own
(symbol_worker.py): it may take memory and time up to a bound, crash, or never answer.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hakmem.elf_files import elf_file
from hakmem.plain_text import printable
from hakmem.profiles.frames import PYTHON, Frame

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

DEBUG_FOLDER = "/usr/lib/debug/.build-id"
BUILD_ID = re.compile(r"[0-9a-f]{4,128}")
SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
     ("size", "<u8")]
)  # fmt: skip
FUNCTION, INDIRECT_FUNCTION = 2, 10
GLOBAL = 1
DELETED = " (deleted)"
PERF_LINE = re.compile(
    rb"^(?:0x)?([0-9a-f]{1,16}) (?:0x)?([0-9a-f]{1,16}) (.+)$", re.IGNORECASE | re.M
)
CLOCK_STEP_MS = 10  # of the kernel's coarse clock, at most
# Larger than those of programs that compiled for days; what is behind is not read.
PERF_BYTES_MOST, PERF_ENTRIES_MOST = 256 << 20, 4 << 20
# Python's: py::function:/the/file.py
PYTHON_FRAME = re.compile(r"^py::(?P<function>.*?):(?P<file>[^:]*)$")
PARTS = re.compile(
    r"( \((\.[\w.]+)\)| \[clone [^]]*\]|"
    r"\.(cold|part|constprop|isra|lto_priv|localalias|llvm)(\.\d+)*)+$"
)
# Names of templates have thousands of characters; a short symbol can stand for millions.
NAME_MOST, SYMBOL_MOST = 4096, 1 << 14
INLINED_MOST = 64


def shortened(name: str) -> str:
    return name if len(name) <= NAME_MOST else f"{name[: NAME_MOST - 1]}…"


def at_offset(path: str, offset: int) -> str:
    name = path.removesuffix(DELETED)
    return f"{name.rpartition('/')[2]}+0x{offset:x}"


def nowhere(_path: str) -> Path | None:
    return None


@dataclass
class Module:
    """One file of the process."""

    path: str
    file: Path | None
    # Where debug information is looked for.
    find: Callable[[str], Path | None] = nowhere
    is_elf: bool = False
    has_names: bool = False
    build_id: str = ""
    segments: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A file that cannot be read may well have been one.
        self.is_elf = self.file is None and not self.path.startswith("/memfd:")
        if self.file is None:
            return
        with suppress(OSError, ValueError), elf_file(self.file) as elf:
            self.segments = [
                (s["p_offset"], s["p_filesz"], s["p_vaddr"]) for s in elf.iter_segments("PT_LOAD")
            ]
            self.build_id = build_id_of(elf)
            self.is_elf = True

    def frames(self, offset: int) -> Iterator[Frame]:
        """What is at an offset of the file."""
        virtual = self.virtual(offset)
        found = [] if virtual is None else list(self.named(virtual))
        self.has_names |= bool(found)
        yield from found or [Frame(at_offset(self.path, offset if virtual is None else virtual))]

    def virtual(self, offset: int) -> int | None:
        """The address that the linker gave to an offset of the file."""
        for start, size, address in self.segments:
            if start <= offset < start + size:
                return offset - start + address
        return None

    def named(self, virtual: int) -> Iterator[Frame]:
        """The innermost first. The outermost is the function that has the address: its name is
        that of the symbol there, as symbolic takes one from another part of the function, or the
        one before, whose end it does not heed."""
        if self.symbols is None:
            return
        covering = self.functions.name(virtual)
        found = self.symbols.lookup(virtual - self.segments[0][2])
        for index, one in enumerate(found[-INLINED_MOST:], max(0, len(found) - INLINED_MOST)):
            if index == len(found) - 1:
                name = covering or (one.symbol if one.line else "")
            else:
                name = one.symbol
            if name:
                file = shortened(printable((one.full_path or "")[:NAME_MOST]))
                yield Frame(demangled(name), file, one.line)

    @cached_property
    def symbols(self):
        """symbolic's index of the best file there is: debug information, or else symbols."""
        # Slow to import, and only this needs it.
        from symbolic.debuginfo import Archive
        from symbolic.exceptions import SymbolicError

        best = None
        for path in self.candidates:
            with suppress(SymbolicError, OSError, ValueError):
                found = next(Archive.open(str(path)).iter_objects())
                if best is None or ranking(found) > ranking(best):
                    best = found
        with suppress(SymbolicError):
            return best and best.make_symcache()
        return None

    @cached_property
    def candidates(self) -> list[Path]:
        """The file, and what separate debug information there is of it."""
        if self.file is None:
            return []
        found = [self.file]
        if BUILD_ID.fullmatch(self.build_id):
            name = f"{DEBUG_FOLDER}/{self.build_id[:2]}/{self.build_id[2:]}.debug"
            found += [path for path in (self.find(name),) if path is not None]
        return found

    @cached_property
    def functions(self) -> Functions:
        return Functions(self.candidates)

    @property
    def changed_ms(self) -> int:
        with suppress(OSError):
            return 0 if self.file is None else self.file.stat().st_mtime_ns // 1_000_000
        return 0

    def changed_after(self, when_ms: int) -> bool:
        """The start is told by a clock that may be a step behind the file's."""
        return self.changed_ms > when_ms + CLOCK_STEP_MS


def ranking(found) -> tuple[bool, bool]:
    return "debug" in found.features, "symtab" in found.features


def build_id_of(elf: ELFFile) -> str:
    for segment in elf.iter_segments("PT_NOTE"):
        for note in segment.iter_notes():
            if note["n_type"] == "NT_GNU_BUILD_ID":
                return note["n_desc"]
    return ""


class Functions:
    """The functions of the symbol tables. Of several names for one place a global one is taken, as
    the sources have it."""

    def __init__(self, files: Sequence[Path]) -> None:
        tables = [table for path in files for table in symbol_tables(path)]
        self.names = [names for _, names in tables]
        symbols = np.concatenate([t for t, _ in tables]) if tables else np.zeros(0, SYMBOL)
        number = np.repeat(np.arange(len(tables)), [len(t) for t, _ in tables])
        kind, binding = symbols["info"] & 15, symbols["info"] >> 4
        wanted = ((kind == FUNCTION) | (kind == INDIRECT_FUNCTION)) & (symbols["size"] > 0)
        symbols, number, binding = symbols[wanted], number[wanted], binding[wanted]
        # The last of those with one address is the one that is found.
        order = np.lexsort((binding == GLOBAL, symbols["value"]))
        self.symbols, self.number = symbols[order], number[order]
        self.values = np.ascontiguousarray(self.symbols["value"])

    def name(self, address: int) -> str:
        """The symbol whose function has an address; empty where there is none."""
        index = int(np.searchsorted(self.values, np.uint64(address), side="right")) - 1
        if index < 0 or address >= int(self.values[index]) + int(self.symbols["size"][index]):
            return ""
        names, start = self.names[self.number[index]], int(self.symbols["name"][index])
        # The version is no part of the name.
        end = names.find(b"\0", start, start + SYMBOL_MOST)
        name = names[start : end if end >= 0 else start + SYMBOL_MOST].decode(errors="replace")
        return name.partition("@")[0]


def symbol_tables(path: Path) -> Iterator[tuple[np.ndarray, bytes]]:
    """Each with its names."""
    with suppress(OSError, ValueError), elf_file(path) as elf:
        for name in (".symtab", ".dynsym"):
            section = elf.get_section_by_name(name)
            if section is not None and section["sh_type"] != "SHT_NOBITS":
                data = section.data()
                symbols = np.frombuffer(
                    data[: len(data) // SYMBOL.itemsize * SYMBOL.itemsize], SYMBOL
                )
                yield symbols, elf.get_section(section["sh_link"]).data()


@lru_cache(maxsize=1 << 14)
def demangled(symbol: str) -> str:
    """As it stands in the sources of C++, Rust or Swift; C's names stay. What a compiler splits or
    copies has the name of the function it was."""
    found = demangler()(symbol) if len(symbol) < SYMBOL_MOST else symbol
    return shortened(PARTS.sub("", printable((found or symbol)[: NAME_MOST + 1])))


@cache
def demangler() -> Callable[[str], str]:
    try:
        from pydemumble import demangle
    except ImportError:
        return of_libstdcxx
    return demangle


def of_libstdcxx(symbol: str) -> str:
    """Python 3.9 has no pydemumble. libstdc++ knows the names of C++, and early ones of Rust."""
    try:
        from cxxfilt import InvalidName, demangle
    except (ImportError, OSError):
        return symbol
    try:
        return demangle(symbol)
    except InvalidName:
        return symbol


class PerfMap:
    """/tmp/perf-PID.map: what a program that compiles as it runs says of its code. An older file
    is of another process that had the number."""

    def __init__(self, path: Path | None, started_ms: int) -> None:
        self.text, self.starts = b"", np.zeros(0, np.uint64)
        with suppress(OSError):
            if path is not None and path.stat().st_mtime * 1000 + 1000 >= started_ms:
                with path.open("rb") as file:
                    self.text = file.read(PERF_BYTES_MOST)
                self.index()

    def index(self) -> None:
        starts, sizes, places = array("Q"), array("Q"), array("Q")
        for line in PERF_LINE.finditer(self.text):
            starts.append(int(line[1], 16))
            sizes.append(int(line[2], 16))
            places.append(line.start(3))
            if len(starts) == PERF_ENTRIES_MOST:
                break
        found = np.frombuffer(starts, np.uint64)
        # Of those with one start the last line counts: code is moved, and its place used again.
        order = np.argsort(found, kind="stable")
        self.starts = found[order]
        self.sizes = np.frombuffer(sizes, np.uint64)[order]
        self.places = np.frombuffer(places, np.uint64)[order]

    def name(self, address: int) -> Frame | None:
        index = int(np.searchsorted(self.starts, np.uint64(address), side="right")) - 1
        if index < 0 or address >= int(self.starts[index]) + int(self.sizes[index]):
            return None
        start = int(self.places[index])
        end = self.text.find(b"\n", start, start + NAME_MOST)
        line = self.text[start : end if end >= 0 else start + NAME_MOST]
        name = shortened(printable(line.decode(errors="replace")))
        if python := PYTHON_FRAME.match(name):
            return Frame(python["function"], python["file"], part=PYTHON)
        return Frame(name)
