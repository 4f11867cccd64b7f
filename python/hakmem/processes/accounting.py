"""Every resident byte of a process under hakmem, attributed to what it holds.

The span map of the statistics page says what each span is, the kernel which pages are there. How
the pages of a size class's slabs divide into live blocks, free ones and so on is estimated from
the page's sums: no allocator knows which of its blocks a program has touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from hakmem.documents import now
from hakmem.processes import process_memory, stats_page
from hakmem.processes.process_memory import PAGE, Mapped, Pagemap
from hakmem.processes.stats_page import SPAN, Snapshot

# Span map: below CLASSES the code of a slab's size class.
CLASSES, EXTENT, EXTENT_BODY, EXTENT_CACHED, HEAP = 0x80, 0x80, 0x81, 0x82, 0x83
CLAIMED, GUARD, DIRTY, CLEAN = 0xFC, 0xFD, 0xFE, 0xFF

LIVE, ROUNDING, KEPT, PARTLY, FREE, OWN, OTHER = GROUPS = (
    "live",
    "rounding and tails",
    "kept for reuse",
    "partly used slabs",
    "free spans",
    "hakmem's own",
    "not malloc's",
)


@dataclass(frozen=True)
class Part:
    """One line of the account."""

    key: str
    group: str
    title: str
    bytes: int
    estimated: bool = False


@dataclass(frozen=True)
class ClassPart:
    """What is resident of the slabs of one size class; all but `resident` are estimated."""

    code: int
    block_size: int
    aligned: bool
    resident: int
    live: int
    cached: int
    depots: int
    free: int
    never_allocated: int
    rest: int
    # Of the live bytes; None where no request of the class was seen.
    requested: int | None
    rounding: int | None


@dataclass(frozen=True)
class Account:
    pid: int
    name: str
    when: str
    age_s: float
    rss: int
    parts: Sequence[Part]
    classes: Sequence[ClassPart]
    swapped: Mapping[str, int]
    huge_pages: int
    unseen_stacks: int
    can_see_zero_pages: bool
    unlisted_huge_blocks: int
    unmapped_spans: int
    figures: Mapping = field(repr=False)

    @property
    def explained(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def difference(self) -> int:
        return self.explained - self.rss

    def by_group(self) -> dict[str, int]:
        sums = dict.fromkeys(GROUPS, 0)
        for part in self.parts:
            sums[part.group] += part.bytes
        return sums


@dataclass(frozen=True)
class Range:
    """Addresses that are hakmem's, and what they are; a map where each span has its own answer."""

    start: int
    end: int
    kind: str
    first_span: int = 0
    spans: np.ndarray | None = None


@dataclass
class Tally:
    """Resident and swapped bytes by kind; of spans by what the map says."""

    kinds: dict[str, int] = field(default_factory=dict)
    codes: np.ndarray = field(default_factory=lambda: np.zeros(256, dtype=np.int64))
    swapped: dict[str, int] = field(default_factory=lambda: {"malloc's": 0, "other memory": 0})

    def add(self, kind: str, count: int) -> None:
        self.kinds[kind] = self.kinds.get(kind, 0) + count


def explain_process(pid: int) -> Account:
    """Looks at a process as it is now. Right to the page when it is at rest."""
    snapshot = stats_page.read(pid)
    mapped = process_memory.mappings(pid)
    with closing(Pagemap(pid)) as pages:
        unseen, kinds = kinds_of(pid, mapped)
        tally = tally_pages(mapped, kinds, ranges_of(snapshot), pages)
        rss = process_memory.rollup(pid)["Rss"]
        can_see = pages.can_scan
    figures = snapshot.figures
    classes = split_classes(figures["classes"], tally.codes)
    regions = figures["regions"]
    return Account(
        pid,
        snapshot.name,
        now(),
        snapshot.age_s,
        rss,
        parts_of(figures, classes, tally),
        classes,
        tally.swapped,
        sum(m.huge for m in mapped),
        unseen,
        can_see,
        figures["huge_blocks_left_out"],
        sum((r["limit"] >> 16) - r["first_span"] - r["spans"] for r in regions),
        figures,
    )


def ranges_of(snapshot: Snapshot) -> list[Range]:
    """All that is hakmem's, in the order of addresses."""
    found = []
    figures = snapshot.figures
    for region in figures["regions"]:
        base, first, count = region["base"], region["first_span"], region["spans"]
        at = region["map_offset"] - snapshot.map_offset
        codes = snapshot.spans[at : at + count]
        # Every span of a live extent has the code of its first.
        spans = np.where(codes == EXTENT_BODY, np.uint8(EXTENT), codes)
        middle, end = base + first * SPAN, base + region["limit"]
        found.append(Range(base, middle, "tables"))
        found.append(Range(middle, end, "spans", first, spans))
    for block in figures["huge_blocks"]:
        kind = "huge_kept" if block["kept"] else "huge"
        found.append(Range(block["address"], block["address"] + block["bytes"], kind))
    for own in figures["own_memory"]:
        kind = "metadata" if own["kind"] == "metadata" else "own_other"
        found.append(Range(own["address"], own["address"] + own["bytes"], kind))
    if slots := figures["sampled_slots"]:
        found.append(Range(slots["address"], slots["address"] + slots["bytes"], "sampled"))
    # Blocks of any size are mapped by the page.
    return sorted(
        (Range(r.start // PAGE * PAGE, -(-r.end // PAGE) * PAGE, r.kind, r.first_span, r.spans)
         for r in found if r.end > r.start),
        key=lambda r: r.start,
    )  # fmt: skip


def tally_pages(
    mapped: Iterable[Mapped], kinds: Mapping[int, str], ranges: Sequence[Range], pages: Pagemap
) -> Tally:
    """Walks the page tables of every mapping that holds anything."""
    tally = Tally()
    for one in mapped:
        if not one.rss and not one.swap:
            continue
        for start, end in pages.windows(one):
            seen = pages.look(start, end)
            left = np.ones(len(seen.resident), dtype=bool)
            # Where the kernel cannot tell, and in locked memory, all may be as the page says.
            as_said = seen.huge if pages.can_scan and not one.locked else seen.resident
            for part in ranges:
                low, high = max(part.start, start), min(part.end, end)
                if low >= high:
                    continue
                here = slice((low - start) // PAGE, (high - start) // PAGE)
                count_range(tally, part, low, seen.resident[here], as_said[here])
                tally.swapped["malloc's"] += PAGE * int(seen.swapped[here].sum())
                left[here] = False
            tally.add(kinds[one.start], PAGE * int((seen.resident & left).sum()))
            tally.swapped["other memory"] += PAGE * int((seen.swapped & left).sum())
    return tally


def count_range(
    tally: Tally, part: Range, low: int, resident: np.ndarray, as_said: np.ndarray
) -> None:
    if part.spans is None:
        tally.add(part.kind, PAGE * int(resident.sum()))
        return
    pages = np.flatnonzero(resident)
    spans = (low - part.start + pages * PAGE) // SPAN
    known = spans < len(part.spans)
    tally.add("unmapped_spans", PAGE * int((~known).sum()))
    pages, codes = pages[known], part.spans[spans[known]]
    # A clean span has no pages but parts of huge ones: this one has been taken since.
    taken = (codes == CLEAN) & ~as_said[pages]
    tally.add("taken_since", PAGE * int(taken.sum()))
    tally.codes += PAGE * np.bincount(codes[~taken], minlength=256)


def split_classes(rows: Sequence[Mapping], resident: np.ndarray) -> list[ClassPart]:
    """The resident bytes of each class, divided as its slabs are.

    What is not resident is taken from the never allocated blocks first, as they were never
    written to; then from all others alike.
    """
    found = []
    for row in rows:
        here, total = int(resident[row["class"]]), row["slab_bytes"]
        if not here:
            continue
        never = max(0, here - (total - row["never_allocated"]))
        shares = dict(zip(SHARES, divide(here - never, [row[name] for name in SHARES])))
        parts = [row["estimated_requested"], row["estimated_rounding"]]
        is_known = None not in parts and row["live"]
        asked = divide(shares["live"], parts) if is_known else (None, None)
        own = (row["class"], row["size"], row["aligned"], here)
        found.append(
            ClassPart(*own, **shares, never_allocated=never, requested=asked[0], rounding=asked[1])
        )
    return found


SHARES = ("live", "cached", "depots", "free", "rest")


def divide(total: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers in proportion to the weights; their sum is exactly the total."""
    whole = sum(weights)
    if not whole:
        return [total] + [0] * (len(weights) - 1)
    edges = [0]
    for weight in weights:
        edges.append(edges[-1] + weight)
    marks = [edge * total // whole for edge in edges]
    return [high - low for low, high in zip(marks, marks[1:])]


def parts_of(figures: Mapping, classes: Sequence[ClassPart], tally: Tally) -> list[Part]:
    codes, kinds = tally.codes, dict(tally.kinds)

    def take(kind: str) -> int:
        return kinds.pop(kind, 0)

    known = [c for c in classes if c.requested is not None]
    unknown = sum(c.live for c in classes if c.requested is None)
    extents, tails = divide_extents(figures, int(codes[EXTENT]))
    # A slab whose class has no row, or a code that this version does not know.
    strange = int(codes.sum()) - sum(c.resident for c in classes) - int(codes[EXTENT])
    strange -= sum(int(codes[c]) for c in (EXTENT_CACHED, HEAP, DIRTY, CLEAN, CLAIMED, GUARD))
    in_heaps, free_in_heaps = divide_heaps(figures, int(codes[HEAP]))
    parts = [
        Part("requested", LIVE, "blocks: what the program asked for",
             sum(c.requested for c in known), True),
        Part("live_unknown", LIVE, "blocks whose requests were not seen", unknown, True),
        Part("extents", LIVE, "large blocks (extents)", extents,
             tails is not None and tails > 0),
        Part("huge", LIVE, "huge blocks", take("huge")),
        Part("heaps", LIVE, "blocks of heaps", in_heaps, True),
        Part("sampled", LIVE, "sampled guards' blocks", take("sampled")),
        Part("taken_since", LIVE, "spans taken since the page was written", take("taken_since"),
             True),
        Part("rounding", ROUNDING, "rounding up to the size class",
             sum(c.rounding for c in known), True),
        Part("extent_tails", ROUNDING, "large blocks: rest of the last span", tails or 0, True),
        Part("cached", KEPT, "thread caches", sum(c.cached for c in classes), True),
        Part("depots", KEPT, "depots", sum(c.depots for c in classes), True),
        Part("extents_cached", KEPT, "large blocks, freed lately",
             int(codes[EXTENT_CACHED])),
        Part("huge_kept", KEPT, "freed huge blocks, kept", take("huge_kept")),
        Part("slab_free", PARTLY, "free blocks", sum(c.free for c in classes), True),
        Part("never_allocated", PARTLY, "never allocated blocks",
             sum(c.never_allocated for c in classes), True),
        Part("slab_rest", PARTLY, "colour and tail of slabs", sum(c.rest for c in classes), True),
        Part("heaps_free", PARTLY, "rest of what heaps have", free_in_heaps, True),
        Part("dirty", FREE, "dirty: freed, not purged yet", int(codes[DIRTY])),
        Part("clean", FREE, "clean, and filled by huge pages", int(codes[CLEAN])),
        Part("claimed", FREE, "being purged now", int(codes[CLAIMED])),
        Part("tables", OWN, "tables of the regions", take("tables")),
        Part("metadata", OWN, "metadata: arenas, thread caches, magazines", take("metadata")),
        Part("page", OWN, "statistics page", take("page")),
        Part("own_other", OWN, "other", take("own_other") + int(codes[GUARD]) + strange),
        Part("unmapped_spans", OWN, "spans beyond the page's map", take("unmapped_spans")),
    ]  # fmt: skip
    parts += [Part(kind, OTHER, OTHERS[kind], take(kind)) for kind in OTHERS]
    assert not kinds, kinds
    return parts


def divide_extents(figures: Mapping, resident: int) -> tuple[int, int | None]:
    """Live extents and their tails; None where the page does not know.

    A tail is what the program did not ask for, at the end: that is missing first.
    """
    tail = figures["extents"]["tail"]
    if tail is None:
        return resident, None
    asked = figures["extents"]["requested"]
    tails = min(tail, max(0, resident - asked))
    return resident - tails, tails


def divide_heaps(figures: Mapping, resident: int) -> tuple[int, int]:
    """What is resident of the spans of heaps: their blocks, and the rest, which is missing first.
    Huge blocks are counted with the others. An older library has no heaps."""
    heaps, huge = figures["heaps_total"] or {}, figures["huge"]["heaps"] or 0
    live = min(resident, max(0, (heaps.get("live") or 0) - huge))
    return live, resident - live


OTHERS = {
    "stacks": "stacks",
    "program": "program and libraries",
    "files": "other files",
    "shared": "shared memory",
    "brk": "brk heap",
    "kernel": "the kernel's pages (vdso)",
    "anonymous": "other mappings",
}


def kinds_of(pid: int, mapped: Sequence[Mapped]) -> tuple[int, dict[int, str]]:
    """What a mapping is where it is not hakmem's, by its start; and how many stacks are unknown.

    The stack of a thread is told by the stack pointer, which the kernel shows while it waits.
    """
    pointers, unseen = process_memory.stack_pointers(pid)
    code = {m.name for m in mapped if "x" in m.rights and m.name.startswith("/")}
    kinds: dict[int, str] = {}
    before: Mapped | None = None
    for one in mapped:
        kind = kind_of(one, code)
        if kind == "anonymous":
            if any(one.start <= pointer < one.end for pointer in pointers):
                kind = "stacks"
            # The zeroed data of a library follows its file without a name.
            elif before and before.end == one.start and kinds[before.start] == "program":
                kind = "program"
        kinds[one.start] = kind
        before = one
    return unseen, kinds


def kind_of(one: Mapped, code: set[str]) -> str:
    name = one.name
    if name in (f"/{stats_page.NAME}", f"/{stats_page.NAME} (deleted)"):
        return "page"
    if name.startswith("[stack"):
        return "stacks"
    if name == "[heap]":
        return "brk"
    if name in ("[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]", "[uprobes]"):
        return "kernel"
    if name.startswith(("/memfd:", "/dev/shm/", "/SYSV", "/dev/zero", "[anon_shmem:")):
        return "shared"
    if name.startswith("/"):
        return "program" if name in code else "files"
    return "anonymous"
