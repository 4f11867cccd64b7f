"""Names for the addresses of another process: from its files' symbols and debug information, and
from the perf map of a program that makes code as it runs. Nothing is asked of the process itself.

An address without a name is told by its file and the offset in it, which two runs have in common.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from hakmem.plain_text import printable, some
from hakmem.processes.stats_page import inner_number
from hakmem.profiles.frames import INTERPRETER, PYTHON, Frame
from hakmem.profiles.heap_profile import HeapProfile, Mapped
from hakmem.profiles.symbol_files import CLOCK_STEP_MS, NAME_MOST, at_offset
from hakmem.profiles.symbol_reader import BATCH, Reader
from hakmem.running.threads import seen_by

ANONYMOUS, NOWHERE = "[anonymous code]", "[unknown]"
PATHS_NAMED = 4
# Characters of all names of a profile; behind them addresses are told by offset.
NAMES_MOST = 64 << 20
MODULES_MOST = 4096
# What runs it, as a program or a library.
CPYTHON = re.compile(r"/(python3(\.\d+)?|libpython3[^/]*\.so[^/]*)$")
ALLOCATING = re.compile(
    r"^(malloc|calloc|realloc|reallocarray|aligned_alloc|memalign|posix_memalign|p?valloc|"
    r"operator new(\[\])?(\(.*)?|hak_\w+|hakmem_\w+)(\.\w+)*$"
)
# Of hakmem too, where it is linked into the program: static functions between its own (compare
# src/report/pprof.c). Names of the program's can be the same, in other files; frames of it are no
# more than so many.
ALLOCATING_INSIDE = re.compile(
    r"^(aligned_otherwise|alloc|alloc_in_default|alloc_in_main|alloc_slow|alloc_slowly|attempt|calloc_large|"
    r"grow_mapped|malloc_long|malloc_near|malloc_slowly|move_(block|in_cache)|new_form(_nothrow)?|new_place|"
    r"note_(alloc|due)|obtain|resize(_by_pages|_empty|_in_place|_in_slab|_large|_large_of_heap|"
    r"_mapping|_of_heap|_outside_regions)?|serve|take_(class|class_from|counted_large|drawn|large|"
    r"quick))(\.\w+)*$"
)
SOURCES = re.compile(r"(^|/)(entry|harden|profile|guard|heap|je)/\w+\.[ch]$")
ALLOCATING_MOST = 16


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
        frame = self.frames[-1]
        is_ours = not frame.file or SOURCES.search(frame.file)
        return bool(is_ours and ALLOCATING_INSIDE.match(frame.function))


def is_hakmem(path: str) -> bool:
    return path.rpartition("/")[2].startswith("libhakmem")


@dataclass
class Module:
    """One file of the process, and the names at its offsets that were asked for."""

    path: str
    is_there: bool = True
    is_elf: bool = True
    has_names: bool = False
    build_id: str = ""
    changed_ms: int = 0
    problem: str = ""
    frames: dict[int, tuple[Frame, ...]] = field(default_factory=dict)

    def take(self, answer: dict, offsets: Sequence[int], names: Names) -> None:
        """What a worker says, which may be anything once a file has broken it."""
        self.is_there, self.is_elf = bool(answer.get("is_there")), bool(answer.get("is_elf"))
        self.has_names |= bool(answer.get("has_names"))
        self.build_id = names.text(answer.get("build_id", ""))
        self.problem = self.problem or names.text(answer.get("problem", ""))
        changed = answer.get("changed_ms")
        self.changed_ms = changed if isinstance(changed, int) else 0
        for offset, found in zip(offsets, listed(answer)):
            found = found if isinstance(found, list) else []
            frames = [one for one in found if isinstance(one, list)]
            self.frames[offset] = tuple(names.frame(one) for one in frames)

    def at(self, offset: int) -> tuple[Frame, ...]:
        return self.frames.get(offset) or (Frame(at_offset(self.path, offset)),)

    def changed_after(self, when_ms: int) -> bool:
        """The start is told by a clock that may be a step behind the file's."""
        return self.changed_ms > when_ms + CLOCK_STEP_MS


class Names:
    """Each name once, and not more of them than there is room for."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.room = NAMES_MOST

    def text(self, found: object) -> str:
        if not isinstance(found, str):
            return ""
        name = printable(found[:NAME_MOST])
        if name not in self.known:
            self.room -= len(name)
            if self.room < 0:
                return name[:64]
            self.known[name] = name
        return self.known[name]

    def frame(self, found: list) -> Frame:
        function, file, line, part = (*found, "", "", 0, "")[:4]
        number = line if isinstance(line, int) and 0 <= line < 1 << 32 else 0
        known = part if part == PYTHON else ""
        return Frame(self.text(function), self.text(file), number, known)


def listed(answer: dict) -> list:
    found = answer.get("frames")
    return found if isinstance(found, list) else []


class Symboliser:
    """Names the addresses of one profile. `pid` is that of a process that still runs, as we know
    it: its files are looked for as it sees them."""

    def __init__(self, profile: HeapProfile, pid: int | None = None) -> None:
        self.pid = None if pid is None else seen_by(pid)
        self.root = Path("/")
        self.modules: dict[str, Module] = {}
        self.names = Names()
        self.reader: Reader | None = None
        self.take(profile)

    def take(self, profile: HeapProfile) -> None:
        self.profile, self.places = profile, {}
        self.compiled: dict[int, Frame | None] = {}
        self.is_new = True
        self.maps = sorted(profile.maps, key=lambda one: one.start)
        self.starts = [one.start for one in self.maps]

    def renew(self, profile: HeapProfile) -> None:
        """A later profile of the same process: what is mapped may have changed."""
        if profile.maps != self.profile.maps:
            self.take(profile)
        self.places = {a: p for a, p in self.places.items() if p.frames[0].function != ANONYMOUS}
        self.profile = profile
        self.compiled, self.is_new = {}, True

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
            self.prepare([pc])
            self.places[address] = self.look_up(address)
        return self.places[address]

    def prepare(self, pcs: Iterable[int]) -> None:
        """Asks for the names of many addresses at once."""
        wanted = sorted({max(0, pc - 1) for pc in pcs} - self.places.keys())
        by_path: dict[str, list[tuple[int, Mapped]]] = {}
        compiled = []
        for address in wanted:
            mapping = self.mapping(address)
            if mapping is not None and mapping.path.startswith("/"):
                by_path.setdefault(mapping.path, []).append((address, mapping))
            else:
                compiled.append(address)
        for path, found in by_path.items():
            self.ask(path, found)
            if not self.modules[path].is_elf:
                compiled += [address for address, _ in found]
        self.ask_compiled([each for each in compiled if each not in self.compiled])

    def ask(self, path: str, wanted: Sequence[tuple[int, Mapped]]) -> None:
        module = self.modules.setdefault(path, Module(path))
        if len(self.modules) > MODULES_MOST:
            module.problem = "too many files"
        offsets = sorted({offset_in(a, m) for a, m in wanted} - module.frames.keys())
        mapped = wanted[0][1]
        while offsets and not module.problem:
            batch, offsets = offsets[:BATCH], offsets[BATCH:]
            answer = self.files.module(path, (mapped.start, mapped.end), batch)
            if answer is None:
                module.problem = "it was too much to read"
            else:
                module.take(answer, batch, self.names)

    def ask_compiled(self, addresses: Sequence[int]) -> None:
        for start in range(0, len(addresses), BATCH):
            batch = addresses[start : start + BATCH]
            answer = self.files.compiled(self.numbers, self.profile.started_ms, batch, self.is_new)
            self.is_new = False
            if answer is None:
                self.compiled |= dict.fromkeys(addresses[start:])
                return
            for address, found in zip(batch, listed(answer)):
                is_named = isinstance(found, list)
                self.compiled[address] = self.names.frame(found) if is_named else None

    @property
    def files(self) -> Reader:
        if self.reader is None:
            self.reader = Reader(self.pid, self.root, self.profile.owner)
        return self.reader

    @property
    def numbers(self) -> tuple[int, int]:
        """Of the process, as itself and as we know it."""
        if self.pid is None:
            return self.profile.pid, self.profile.pid
        with suppress(OSError):
            return inner_number(self.pid), self.pid
        return self.pid, self.pid

    def look_up(self, address: int) -> Place:
        mapping = self.mapping(address)
        if mapping is not None and mapping.path.startswith("/"):
            module = self.modules[mapping.path]
            if module.is_elf:
                frames = module.at(offset_in(address, mapping))
                if CPYTHON.search(mapping.path):
                    frames = tuple(replace(frame, part=INTERPRETER) for frame in frames)
                return Place(address, frames, mapping)
        if found := self.compiled.get(address):
            return Place(address, (found,), mapping)
        if mapping is None:
            return Place(address, (Frame(NOWHERE),))
        if mapping.path.startswith(("[v", "/")):
            offset = offset_in(address, mapping)
            return Place(address, (Frame(at_offset(mapping.path, offset)),), mapping)
        return Place(address, (Frame(ANONYMOUS),), mapping)

    def mapping(self, address: int) -> Mapped | None:
        index = bisect.bisect_right(self.starts, address) - 1
        if index >= 0 and address < self.maps[index].end:
            return self.maps[index]
        return None

    @property
    def remarks(self) -> list[str]:
        """What the reader should know of the names."""
        shown = sorted(
            (m for m in self.modules.values() if not is_hakmem(m.path)),
            key=lambda m: m.path,
        )
        nameless = [m for m in shown if not m.has_names]
        lists = (
            ("cannot be read, told by offset", [m for m in nameless if not m.is_there]),
            ("damaged or too large to read, told by offset", [m for m in shown if m.problem]),
            ("without symbols, told by offset",
             [m for m in nameless if m.is_there and not m.problem]),
            ("changed since the program started, names in it may be wrong",
             [m for m in shown if m.changed_after(self.profile.started_ms)]),
        )  # fmt: skip
        return [
            f"{told}: {some([m.path for m in found], PATHS_NAMED)}"
            for told, found in lists
            if found
        ]


def offset_in(address: int, mapping: Mapped) -> int:
    """Of the file."""
    return address - mapping.start + mapping.offset
