"""What a heap profile says of each place in the program: stacks with names, merged and compared."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hakmem.profiles.allocator_frames import is_entry, is_wrapper
from hakmem.profiles.frames import INTERPRETER, PYTHON, Frame
from hakmem.profiles.heap_profile import Amount, Figures, HeapProfile
from hakmem.profiles.symbols import Place, Symboliser

# Of the normal distribution, for 95 %.
NORMAL_95 = 1.96
NONE_MET_95 = 3.0
# Of C++ and Rust; a method in Rust is of the library if the type it is for is.
LIBRARY = re.compile(
    r"^(<(&|\*|\[|\(|mut |const |dyn )*)?"
    r"((std|__gnu_cxx|alloc|core|hashbrown)::|__rust|__rdl_|__rg_|"
    r"([iu](8|16|32|64|128|size)|f32|f64|bool|char|str|\)) as )"
)
# Where debug information has lines alone, an inlined function's name lacks what it is of: then its
# file tells. Rust's is as its release has it, as an installed one does, or Debian's.
LIBRARY_FILE = re.compile(
    r"(^/rustc/[0-9a-f]+|/lib/rustlib/src/rust|^/usr/src/rustc-[^/]+)/library/|^/rust/deps/|"
    r"/include/c\+\+/"
)
# What every program and thread begins with.
BEGINNINGS = ("__libc_start_", "_start", "start_thread", "clone3", "__clone")
Frames = tuple[Frame, ...]
MEASURES: dict[str, Callable[[Figures], int]] = {
    "live": lambda f: f.live.bytes,
    "peak": lambda f: f.peak_bytes,
    "total": lambda f: f.total.bytes,
    "pinned": lambda f: f.pinned,
}
ORDERS = tuple(MEASURES)


@dataclass(frozen=True)
class Site:
    """All blocks of one stack; frames are the innermost first."""

    frames: Frames
    figures: Figures


@dataclass(frozen=True)
class Named:
    """A profile with its sites, and the places of each of its stacks."""

    profile: HeapProfile
    sites: tuple[Site, ...]
    places: tuple[tuple[Place, ...], ...]
    build_ids: Mapping[str, str]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """Live bytes and objects of one stack in two profiles."""

    frames: Frames
    before: Amount
    after: Amount

    @property
    def bytes(self) -> int:
        return self.after.bytes - self.before.bytes

    @property
    def count(self) -> int:
        return self.after.count - self.before.count

    @property
    def error(self) -> float:
        """Half of the 95 % interval. What both profiles have sampled is in it twice: it is never
        too narrow."""
        return NORMAL_95 * math.sqrt(self.before.bytes_variance + self.after.bytes_variance)


def named(
    profile: HeapProfile, symboliser: Symboliser, skip: re.Pattern[str] | None = None
) -> Named:
    """Without the functions that are to be skipped, unless a stack has no others."""
    merged: dict[Frames, Figures] = {}
    places = []
    symboliser.prepare({pc for stack in profile.stacks for pc in stack.pcs})
    for stack in profile.stacks:
        found = symboliser.stack(stack.pcs) if stack.pcs else (UNKNOWN_PLACE,)
        places.append(found)
        frames = tuple(frame for place in found for frame in place.frames)
        if skip is not None:
            frames = tuple(f for f in frames if not skip.search(bare(f.function))) or frames
        there = merged.get(frames)
        merged[frames] = stack.figures if there is None else there + stack.figures
    return Named(
        profile,
        tuple(Site(frames, figures) for frames, figures in merged.items()),
        tuple(places),
        {path: module.build_id for path, module in symboliser.modules.items()},
        (
            *sampling_remarks(profile),
            *symboliser.remarks,
            *line_remarks(symboliser, places),
            *python_remarks(merged),
        ),
    )


def python_remarks(stacks: Iterable[Frames]) -> Iterable[str]:
    parts = {frame.part for frames in stacks for frame in frames}
    if INTERPRETER in parts and PYTHON not in parts:
        yield "python3 -X perf, from Python 3.12 on, tells the functions of Python too"


# What every program has, from libc; an interpreter's program often has no more.
STARTS = ("_start", "main")


def line_remarks(symboliser: Symboliser, places: Iterable[Sequence[Place]]) -> Iterable[str]:
    """Of the program's own code, which whoever asks can build anew. A language's library may have
    lines where the program has none."""
    program = symboliser.profile.program
    module = symboliser.modules.get(program)
    own = [
        frame
        for place in {place for stack in places for place in stack}
        if place.mapping and place.mapping.path == program
        for frame in place.frames
        if not is_library(frame) and frame.function not in STARTS
    ]
    if module and module.has_names and own and not any(frame.line for frame in own):
        yield f"without debug information, told by function: {program}"


UNKNOWN_PLACE = Place(0, (Frame("[no stack]"),))


def sampling_remarks(profile: HeapProfile) -> Iterable[str]:
    samples = profile.samples
    if profile.lacks:
        yield profile.lacks
    if samples["dropped"]:
        yield (
            f"{samples['dropped']:,} samples of {samples['taken']:,} were dropped for lack of "
            "room: the estimates are too low by that part"
        )
    if samples["stacks_dropped"] and not any(stack.pcs for stack in profile.stacks):
        yield (
            f"{samples['stacks_dropped']:,} samples have no stack: the program has no table to "
            "walk it by (a static one has with -Wl,--eh-frame-hdr)"
        )
    elif samples["stacks_dropped"]:
        yield f"{samples['stacks_dropped']:,} stacks were dropped for lack of room"
    if samples["labels_evicted"]:
        yield (
            f"{samples['labels_evicted']:,} stacks of labels or heaps without a live sample were "
            "added to those without, for lack of room"
        )


def own_frame(frames: Frames) -> Frame:
    """The innermost function that is neither of a language's own library nor of an allocator."""
    return next(iter(own_frames(frames)), frames[0])


def own_frames(frames: Frames) -> list[Frame]:
    """Where Python's functions are known, what runs them is of a library too. A wrapper of malloc
    that nothing but the program's start calls is what there is."""
    told = any(frame.part == PYTHON for frame in frames)
    first = next((i for i, f in enumerate(frames) if is_entry(bare(f.function), f.file)), -1)
    own = [
        f
        for f in frames[first + 1 :]
        if not is_library(f)
        and not (told and f.part == INTERPRETER)
        and not is_entry(bare(f.function), f.file)
    ]
    while len(own) > 1 and is_wrapper(bare(own[0].function)) and not is_start(own[1]):
        del own[0]
    return own


def is_start(frame: Frame) -> bool:
    return frame.function.startswith(BEGINNINGS)


def is_library(frame: Frame) -> bool:
    return bool(LIBRARY.match(bare(frame.function)) or LIBRARY_FILE.search(frame.file))


def bare(function: str) -> str:
    """Without the parameters, and the type before it, that names of C++ have."""
    if not function.endswith((")", ") const")):
        return function
    begin = matching(function, function.rindex(")"))
    name = function[:begin]
    if begin <= 0 or name.endswith("operator"):
        return function
    depth, operator = 0, name.rfind("operator")
    for index in range((len(name) if operator < 0 else operator) - 1, -1, -1):
        depth += {">": 1, ")": 1, "<": -1, "(": -1}.get(name[index], 0)
        if depth == 0 and name[index] == " ":
            return name[index + 1 :]
    return name


def matching(text: str, end: int) -> int:
    """Where the bracket begins that is closed at `end`; -1 for nowhere."""
    depth = 0
    for index in range(end, -1, -1):
        depth += {")": 1, "(": -1}.get(text[index], 0)
        if depth == 0:
            return index
    return -1


def largest(sites: Iterable[Site], measure: Callable[[Figures], int], most: int) -> list[Site]:
    """Those with something of the measure, in falling order."""
    having = [site for site in sites if measure(site.figures) > 0]
    return sorted(having, key=lambda s: (-measure(s.figures), str(s.frames[0])))[:most]


def sampled(amount: Amount, rate: int) -> float:
    """Bytes of the blocks that were seen. Each stands for 1 / (1 - exp(-size / rate)) of its kind;
    the size is taken as the mean of the stack's."""
    if not amount.count or not rate:
        return float(amount.bytes)
    return amount.bytes * -math.expm1(-amount.bytes / amount.count / rate)


def mean_distance(profile: HeapProfile) -> float:
    """Bytes allocated for each sample taken: more than the rate where the library took fewer."""
    taken = profile.samples["taken"]
    return max(profile.rate, profile.total.bytes / taken) if taken else profile.rate


def interval_of_live(profile: HeapProfile) -> tuple[int, int]:
    low, high = interval(profile.live, profile.rate)
    # Had so much more been live since samples are that far apart, one would have met it.
    return low, max(high, round(NONE_MET_95 * mean_distance(profile)))


def interval(amount: Amount, rate: int) -> tuple[int, int]:
    """95 %, of bytes: what was seen is there, however wide the interval."""
    half = NORMAL_95 * math.sqrt(amount.bytes_variance)
    low = max(amount.bytes - half, min(sampled(amount, rate), amount.bytes))
    return round(low), round(amount.bytes + half)


def compare(before: Named, after: Named) -> list[Change]:
    """By stack, the most grown first. Two builds have their lines in other places: there a stack
    is its functions."""
    have_same = have_same_files(before, after)
    sums: dict[Frames, list[Amount]] = {}
    shown: dict[Frames, Frames] = {}
    for index, profile in enumerate((before, after)):
        for site in profile.sites:
            key = site.frames if have_same else functions_alone(site.frames)
            sums.setdefault(key, [Amount(), Amount()])[index] += site.figures.live
            shown[key] = site.frames if key is site.frames else without_lines(site.frames)
    changed = [Change(shown[key], *pair) for key, pair in sums.items() if pair[0] != pair[1]]
    return sorted(changed, key=lambda c: (-c.bytes, str(c.frames[0])))


def have_same_files(before: Named, after: Named) -> bool:
    a, b = before.build_ids, after.build_ids
    ids = {path: one for path, one in a.items() if one and path in b}
    same_program = a.get(before.profile.program) == b.get(after.profile.program)
    return bool(ids) and same_program and all(b[path] == one for path, one in ids.items())


def functions_alone(frames: Frames) -> Frames:
    """Nor files: a build may lie in another folder."""
    return tuple(Frame(frame.function) for frame in frames)


def without_lines(frames: Frames) -> Frames:
    return tuple(replace(frame, line=0) for frame in frames)


def together(changes: Sequence[Change]) -> Change:
    total = Change((), Amount(), Amount())
    for one in changes:
        total = Change((), total.before + one.before, total.after + one.after)
    return total


def cells(profile: HeapProfile) -> dict[str, Callable[[Site], str]]:
    """What tables say of a site, by the heads of their columns."""
    return {
        "live": lambda s: size(s.figures.live.bytes),
        "95 % interval": lambda s: between(*interval(s.figures.live, profile.rate)),
        "objects": lambda s: f"{s.figures.live.count:,}",
        "pinned": lambda s: size(s.figures.pinned),
        "mean age": lambda s: duration(s.figures.age_ms),
        "oldest": lambda s: duration(s.figures.oldest_ms),
        "peak": lambda s: size(s.figures.peak_bytes),
        "objects at the peak": lambda s: f"{s.figures.peak_count:,}",
        "total": lambda s: size(s.figures.total.bytes),
        "objects in all": lambda s: f"{s.figures.total.count:,}",
        "half freed within": lambda s: usual_lifetime(s.figures, profile.bounds_ms),
    }


def between(low: float, high: float) -> str:
    return f"{size(low)} … {size(high)}"


def usual_lifetime(figures: Figures, bounds_ms: Sequence[int]) -> str:
    """Of the freed blocks, the time that at least half of them were freed within."""
    freed, reached = sum(figures.freed), 0
    if not freed:
        return ""
    for count, bound in zip(figures.freed, bounds_ms):
        reached += count
        if 2 * reached >= freed:
            return f"< {duration(bound)}"
    return f"> {duration(bounds_ms[-1])}" if bounds_ms else ""


def duration(milliseconds: int) -> str:
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if milliseconds >= 2 * size:
            return f"{milliseconds / size:.1f} {unit}"
    return f"{milliseconds / 1000:.1f} s" if milliseconds < 10_000 else f"{milliseconds // 1000} s"


def size(count: float) -> str:
    """Bytes as people read them."""
    sign, count = ("-" if count < 0 else ""), abs(count)
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if count >= factor:
            return f"{sign}{count / factor:,.1f} {unit}"
    return f"{sign}{count:.0f} B"
