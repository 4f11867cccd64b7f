"""Names for the addresses of another process: from its files' symbols and debug information, and
from the perf map of a program that makes code as it runs. Nothing is asked of the process itself.

An address without a name is told by its file and the offset in it, which two runs have in common.
"""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hakmem.elf_files import elf_file
from hakmem.plain_text import printable, some
from hakmem.profiles.heap_profile import HeapProfile, Mapped
from hakmem.running.threads import seen_by

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

DEBUG_FOLDER = "usr/lib/debug/.build-id"
SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
     ("size", "<u8")]
)  # fmt: skip
FUNCTION, INDIRECT_FUNCTION = 2, 10
GLOBAL = 1
DELETED = " (deleted)"
ANONYMOUS, NOWHERE = "[anonymous code]", "[unknown]"
PERF_LINE = re.compile(r"^(?:0x)?([0-9a-f]+) (?:0x)?([0-9a-f]+) (.+)$", re.IGNORECASE)
PATHS_NAMED = 4
CLOCK_STEP_MS = 10  # of the kernel's coarse clock, at most
PERF_BYTES_MOST = 256 << 20
# Python's: py::function:/the/file.py
PYTHON_FRAME = re.compile(r"^py::(?P<function>.*?):(?P<file>[^:]*)$")
# What runs it, as a program or a library.
CPYTHON = re.compile(r"/(python3(\.\d+)?|libpython3[^/]*\.so[^/]*)$")
PARTS = re.compile(
    r"( \((\.[\w.]+)\)| \[clone [^]]*\]|"
    r"\.(cold|part|constprop|isra|lto_priv|localalias|llvm)(\.\d+)*)+$"
)
ALLOCATING = re.compile(
    r"^(malloc|calloc|realloc|reallocarray|aligned_alloc|memalign|posix_memalign|p?valloc|"
    r"operator new(\[\])?(\(.*)?|hak_\w+|hakmem_\w+)(\.\w+)*$"
)
# Of hakmem too, where it is linked into the program; frames of it are no more than so many.
ALLOCATING_INSIDE = re.compile(
    r"^(alloc_drawn|alloc_class|alloc_slow|malloc_long|malloc_slowly|move_block|grow_mapped|"
    r"obtain|resize_(slowly|extent|huge|outside_regions))(\.\w+)*$"
)
ALLOCATING_MOST = 16


PYTHON, INTERPRETER = "Python", "CPython"


@dataclass(frozen=True)
class Frame:
    """One function of a stack; without a line where none is known."""

    function: str
    file: str = ""
    line: int = 0
    # PYTHON, INTERPRETER, or nothing that matters.
    part: str = ""

    @property
    def where(self) -> str:
        """The file's name and the line."""
        if not self.file:
            return ""
        name = self.file.rpartition("/")[2]
        return f"{name}:{self.line}" if self.line else name

    def __str__(self) -> str:
        return f"{self.function} ({self.where})" if self.file else self.function


@dataclass(frozen=True)
class Place:
    """An address: the functions that are inlined there, the innermost first, and its mapping."""

    address: int
    frames: tuple[Frame, ...]
    mapping: Mapped | None = None

    @property
    def allocates(self) -> bool:
        """It is hakmem's own, or of a function whose work is to allocate."""
        if self.mapping and is_hakmem(self.mapping.path):
            return True
        return ALLOCATING.match(self.frames[-1].function) is not None

    @property
    def allocates_inside(self) -> bool:
        return ALLOCATING_INSIDE.match(self.frames[-1].function) is not None


def is_hakmem(path: str) -> bool:
    return path.rpartition("/")[2].startswith("libhakmem")


class Symboliser:
    """Names the addresses of one profile. `pid` is that of a process that still runs, as we know
    it: its files are looked for as it sees them."""

    def __init__(self, profile: HeapProfile, pid: int | None = None) -> None:
        self.pid = None if pid is None else seen_by(pid)
        self.root = Path("/") if pid is None else Path(f"/proc/{self.pid}/root")
        self.modules: dict[str, Module] = {}
        self.take(profile)

    def take(self, profile: HeapProfile) -> None:
        self.profile, self.places = profile, {}
        self.maps = sorted(profile.maps, key=lambda one: one.start)
        self.starts = [one.start for one in self.maps]

    def renew(self, profile: HeapProfile) -> None:
        """A later profile of the same process: what is mapped may have changed."""
        if profile.maps != self.profile.maps:
            self.take(profile)
        self.places = {a: p for a, p in self.places.items() if p.frames[0].function != ANONYMOUS}
        self.profile = profile
        self.__dict__.pop("perf_map", None)

    def stack(self, pcs: Sequence[int]) -> tuple[Place, ...]:
        """The innermost first, without the allocator's own frames."""
        places = [self.place(pc) for pc in pcs]
        own = [i for i, place in enumerate(places[:ALLOCATING_MOST]) if place.allocates]
        first = own[-1] + 1 if own else 0
        while first and first < len(places) and places[first].allocates_inside:
            first += 1
        return tuple(places[max(0, min(first, len(places) - 1)) :])

    def place(self, pc: int) -> Place:
        """Of a return address: the call is before it."""
        address = max(0, pc - 1)
        if address not in self.places:
            self.places[address] = self.look_up(address)
        return self.places[address]

    def look_up(self, address: int) -> Place:
        mapping = self.mapping(address)
        if mapping is not None and mapping.path.startswith("/"):
            module = self.module(mapping)
            if module.is_elf:
                frames = tuple(module.frames(address - mapping.start + mapping.offset))
                if CPYTHON.search(mapping.path):
                    frames = tuple(replace(frame, part=INTERPRETER) for frame in frames)
                return Place(address, frames, mapping)
        if found := self.perf_map.name(address):
            return Place(address, (found,), mapping)
        if mapping is None:
            return Place(address, (Frame(NOWHERE),))
        if mapping.path.startswith(("[v", "/")):
            offset = address - mapping.start + mapping.offset
            return Place(address, (Frame(at_offset(mapping.path, offset)),), mapping)
        return Place(address, (Frame(ANONYMOUS),), mapping)

    def mapping(self, address: int) -> Mapped | None:
        index = bisect.bisect_right(self.starts, address) - 1
        if index >= 0 and address < self.maps[index].end:
            return self.maps[index]
        return None

    def module(self, mapping: Mapped) -> Module:
        if mapping.path not in self.modules:
            self.modules[mapping.path] = Module(mapping.path, self.file_of(mapping), self.root)
        return self.modules[mapping.path]

    def file_of(self, mapping: Mapped) -> Path | None:
        """Where the file can be read: a deleted one only from the process that has it mapped."""
        candidates = []
        if self.pid is not None:
            name = f"{mapping.start:x}-{mapping.end:x}"
            candidates = [self.root / mapping.path[1:], Path(f"/proc/{self.pid}/map_files/{name}")]
        # A name of another place would be another file.
        if self.pid is None or not candidates[0].parent.is_dir():
            candidates.append(Path(mapping.path))
        return next((path for path in candidates if is_readable(path)), None)

    @cached_property
    def perf_map(self) -> PerfMap:
        return PerfMap(self.root / f"tmp/perf-{self.profile.pid}.map", self.profile.started_ms)

    @property
    def remarks(self) -> list[str]:
        """What the reader should know of the names."""
        shown = sorted(
            (m for m in self.modules.values() if m.is_asked and not is_hakmem(m.path)),
            key=lambda m: m.path,
        )
        nameless = [m for m in shown if not m.has_names]
        lists = (
            ("cannot be read, told by offset", [m for m in nameless if m.file is None]),
            ("without symbols, told by offset", [m for m in nameless if m.file is not None]),
            ("changed since the program started, names in it may be wrong",
             [m for m in shown if m.changed_after(self.profile.started_ms)]),
        )  # fmt: skip
        return [
            f"{told}: {some([m.path for m in found], PATHS_NAMED)}"
            for told, found in lists
            if found
        ]


def is_readable(path: Path) -> bool:
    with suppress(OSError):
        return path.is_file() and os.access(path, os.R_OK)
    return False


def at_offset(path: str, offset: int) -> str:
    name = path.removesuffix(DELETED)
    return f"{name.rpartition('/')[2]}+0x{offset:x}"


@dataclass
class Module:
    """One file of the process."""

    path: str
    file: Path | None
    root: Path = Path("/")
    is_asked: bool = False
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
        self.is_asked = True
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
        for index, one in enumerate(found):
            if index == len(found) - 1:
                name = covering or (one.symbol if one.line else "")
            else:
                name = one.symbol
            if name:
                yield Frame(demangled(name), printable(one.full_path or ""), one.line)

    @cached_property
    def symbols(self):
        """symbolic's index of the best file there is: debug information, or else symbols."""
        # Slow to import, and only this needs it.
        from symbolic.debuginfo import Archive
        from symbolic.exceptions import SymbolicError

        best = None
        for path in self.candidates():
            with suppress(SymbolicError, OSError, ValueError):
                found = next(Archive.open(str(path)).iter_objects())
                if best is None or ranking(found) > ranking(best):
                    best = found
        with suppress(SymbolicError):
            return best and best.make_symcache()
        return None

    def candidates(self) -> list[Path]:
        """The file, and what separate debug information there is of it."""
        if self.file is None:
            return []
        found = [self.file]
        if len(self.build_id) > 2:
            name = Path(DEBUG_FOLDER, self.build_id[:2], f"{self.build_id[2:]}.debug")
            places = dict.fromkeys((self.root / name, Path("/") / name))
            found += [path for path in places if is_readable(path)]
        return found

    @cached_property
    def functions(self) -> Functions:
        return Functions(self.candidates())

    def changed_after(self, when_ms: int) -> bool:
        with suppress(OSError):
            # The start is told by a clock that may be a step behind the file's.
            return (
                self.file is not None
                and self.file.stat().st_mtime_ns // 1_000_000 > when_ms + CLOCK_STEP_MS
            )
        return False


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
        return names[start : names.find(b"\0", start)].decode(errors="replace").partition("@")[0]


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


@lru_cache(maxsize=1 << 16)
def demangled(symbol: str) -> str:
    """As it stands in the sources of C++, Rust or Swift; C's names stay. What a compiler splits or
    copies has the name of the function it was."""
    return PARTS.sub("", printable(demangler()(symbol) or symbol))


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

    def __init__(self, path: Path, started_ms: int) -> None:
        self.entries: dict[int, tuple[int, str]] = {}
        with suppress(OSError):
            if path.is_file() and path.stat().st_mtime * 1000 + 1000 >= started_ms:
                with path.open(errors="replace") as file:
                    text = file.read(PERF_BYTES_MOST)
                for line in text.splitlines():
                    if entry := PERF_LINE.match(line):
                        # The last line counts: code is moved, and its place used again.
                        self.entries[int(entry[1], 16)] = (int(entry[2], 16), entry[3])
        self.starts = sorted(self.entries)

    def name(self, address: int) -> Frame | None:
        index = bisect.bisect_right(self.starts, address) - 1
        size, name = self.entries[self.starts[index]] if index >= 0 else (0, "")
        if index < 0 or address >= self.starts[index] + size:
            return None
        name = printable(name)
        if python := PYTHON_FRAME.match(name):
            return Frame(python["function"], python["file"], part=PYTHON)
        return Frame(name)
