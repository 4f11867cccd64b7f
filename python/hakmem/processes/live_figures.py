"""Processes under hakmem as they are now: figures of their pages, and rates between two looks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hakmem.errors import UserError
from hakmem.plain_text import printable
from hakmem.processes import stats_page
from hakmem.processes.process_memory import resident_bytes
from hakmem.processes.stats_page import Snapshot

# A page older than this when it was read was at rest: the process refreshes each 250 ms.
AT_REST_S = 1.0
# counters.slow_paths is a sum of counters of 32 bits.
WRAP = 1 << 32
NO_BUDGET = "none"
# Of the pages of all processes together: those of a thousand servers have less.
JSON_MOST = 32 << 20


@dataclass(frozen=True)
class Look:
    """One reading of a process."""

    snapshot: Snapshot
    rss: int
    read_s: float

    @property
    def figures(self) -> dict:
        return self.snapshot.figures

    @property
    def age_s(self) -> float:
        """Of the page, when it was read."""
        return max(0.0, self.read_s - self.snapshot.taken_ms / 1000)


@dataclass(frozen=True)
class Rates:
    """Of a second, between two looks; of a hit rate, the share."""

    seconds: float
    taken: float
    returned: float
    slow_paths: float
    purges: float
    hit_rate: float | None


@dataclass(frozen=True)
class Row:
    """What is shown of a process; rates are None after one look, and `used` and the peaks where an
    older library, or the kernel, does not tell them."""

    pid: int
    name: str
    rss: int
    rss_peak: int | None
    used: int | None
    used_peak: int | None
    live: int
    cached: int
    depots: int
    kept: int
    slab_free: int
    dirty: int
    own: int
    purges: int
    budget: str
    age_s: float
    front_metrics: bool
    rates: Rates | None


@dataclass(frozen=True)
class ClassRow:
    """What is shown of a size class; hits and misses are None while they are not counted."""

    block_size: int
    aligned: bool
    slab_bytes: int
    live: int
    cached: int
    depots: int
    free: int
    hits: float | None
    misses: float | None
    hit_rate: float | None


@dataclass(frozen=True)
class HeapRow:
    """What is shown of a heap; requests and refused ones of a second, None after one look."""

    pid: int
    program: str
    id: int
    name: str
    parent: int
    live: int
    peak: int
    blocks: int
    held: int
    limit: int
    total: int
    refused: int
    requests: int
    request_rate: float | None
    refused_rate: float | None

    @property
    def used(self) -> float | None:
        """Of the limit; None where there is none."""
        return self.total / self.limit if self.limit else None


def look(pid: int, until_s: float | None = None) -> Look:
    snapshot = stats_page.read(pid, until_s, with_map=False)
    return Look(snapshot, resident_bytes(pid), time.monotonic())


@dataclass(frozen=True)
class Unseen:
    """The numbers of processes of which there are no figures: pages that cannot be read, pages
    that have not been written yet, and processes that this user may not look at."""

    unreadable: list[int] = field(default_factory=list)
    empty: list[int] = field(default_factory=list)
    barred: list[int] = field(default_factory=list)


def look_around(pid: int | None = None) -> tuple[dict[int, Look], Unseen]:
    """One process, which must have a page; or all that have one, and those that stay unseen. These
    are waited for together as long as for one."""
    if pid is not None:
        return {pid: look(pid)}, Unseen()
    found, unseen = {}, Unseen()
    end, left = time.monotonic() + stats_page.PATIENCE_S, JSON_MOST
    for each in stats_page.processes(unseen.barred):
        try:
            if left < 0:
                unseen.unreadable.append(each)
                continue
            found[each] = look(each, end)
            left -= found[each].snapshot.json_bytes
        except stats_page.UnreadablePage:
            unseen.unreadable.append(each)
        except stats_page.EmptyPage:
            unseen.empty.append(each)
        except (UserError, OSError):
            continue
    return found, unseen


def row(now: Look, before: Look | None) -> Row:
    figures, slabs = now.figures, now.figures["slabs"]
    process = figures["process"] or {}
    return Row(
        pid=now.snapshot.pid,
        name=now.snapshot.name,
        rss=now.rss,
        rss_peak=resident_peak(now),
        used=process.get("used"),
        used_peak=process.get("used_peak"),
        live=figures["total"]["live"],
        cached=slabs["cached"],
        depots=slabs["depots"],
        kept=figures["spans"]["extents_cached"] + figures["huge"]["kept"],
        slab_free=slabs["free"],
        dirty=figures["spans"]["free_dirty"],
        own=figures["own"]["total"],
        purges=figures["purge"]["count"],
        budget=budget_state(figures["budget"]),
        age_s=now.age_s,
        front_metrics=figures["settings"]["front_metrics"],
        rates=None if before is None else rates(now, before),
    )


def resident_peak(now: Look) -> int | None:
    """The page may be older than this look, so what is resident now can be more."""
    told = (now.figures["process"] or {}).get("resident_peak")
    return max(told, now.rss) if told else None


def elapsed(now: Look, before: Look) -> float:
    """Between the two states of the page; what it was at rest is not counted."""
    end, begin = now.snapshot.taken_ms / 1000, before.snapshot.taken_ms / 1000
    return end - (before.read_s if before.age_s > AT_REST_S else begin)


def rates(now: Look, before: Look) -> Rates:
    """All 0 where the page has not been written again: nothing was refilled or flushed."""
    seconds = elapsed(now, before)
    if now.snapshot.taken_ms == before.snapshot.taken_ms or seconds <= 0:
        return Rates(0.0, 0.0, 0.0, 0.0, 0.0, None)
    new, old = now.figures["counters"], before.figures["counters"]
    hits = [hit_figures(n, o) for n, o in pairs(now, before)]
    return Rates(
        seconds=seconds,
        taken=(new["alloc"] - old["alloc"]) / seconds,
        returned=(new["free"] - old["free"]) / seconds,
        slow_paths=(new["slow_paths"] - old["slow_paths"]) % WRAP / seconds,
        purges=(now.figures["purge"]["count"] - before.figures["purge"]["count"]) / seconds,
        hit_rate=hit_share(
            sum(h for h, _ in hits if h is not None), sum(m for _, m in hits if m is not None)
        ),
    )


def pairs(now: Look, before: Look) -> list[tuple[Mapping, Mapping]]:
    """The rows of the size classes, each with its earlier state."""
    earlier = {r["class"]: r for r in before.figures["classes"]}
    return [(r, earlier.get(r["class"], r)) for r in now.figures["classes"]]


def hit_figures(now: Mapping, before: Mapping) -> tuple[int | None, int | None]:
    if now["hits"] is None or before["hits"] is None:
        return None, None
    return now["hits"] - before["hits"], now["misses"] - before["misses"]


def hit_share(hits: int, misses: int) -> float | None:
    return hits / (hits + misses) if hits + misses else None


def class_rows(now: Look, before: Look | None) -> list[ClassRow]:
    """Those with slabs; rates and shares between the two looks, or else no rate."""
    seconds = elapsed(now, before) if before is not None else 0.0
    found = []
    for new, old in pairs(now, before or now):
        hits, misses = hit_figures(new, old)
        known = hits is not None and misses is not None and seconds > 0
        if new["slab_bytes"]:
            row = ClassRow(new["size"], *(new[name] for name in CLASS_FIGURES), None, None, None)
            rates = {"hits": hits / seconds, "misses": misses / seconds} if known else {}
            share = hit_share(hits, misses) if known else None
            found.append(replace(row, **rates, hit_rate=share))
    return found


def heap_rows(now: Look, before: Look | None) -> list[HeapRow]:
    """The heaps on the page, largest first; rates between the two looks."""
    seconds = elapsed(now, before) if before is not None else 0.0
    earlier = {} if before is None else {row["id"]: row for row in before.figures["heaps"] or []}

    def rate(row: Mapping, name: str) -> float | None:
        """None of a heap that is new on the page: it may be older."""
        old = earlier.get(row["id"])
        if old is None:
            return None
        return (row[name] - old[name]) / seconds if seconds > 0 else 0.0

    found = [
        HeapRow(
            pid=now.snapshot.pid,
            program=now.snapshot.name,
            name=printable(row["name"]),
            request_rate=rate(row, "requests"),
            refused_rate=rate(row, "refused"),
            **{name: row[name] for name in HEAP_FIGURES},
        )
        for row in now.figures["heaps"] or []
    ]
    return sorted(found, key=lambda row: (-row.total, row.id))


def heap_count(look: Look) -> int:
    """Of all, on the page or not; 0 where an older library does not tell."""
    return (look.figures["heaps_total"] or {}).get("count") or 0


CLASS_FIGURES = ("aligned", "slab_bytes", "live", "cached", "depots", "free")
HEAP_FIGURES = (
    "id", "parent", "live", "peak", "blocks", "held", "limit", "total", "refused", "requests",
)  # fmt: skip


def budget_state(budget: Mapping | None) -> str:
    """Target, hard limit and how far the steps went, in one cell."""
    if budget is None or not (budget["target"] or budget["limit"]):
        return NO_BUDGET
    named = [f"{name} {budget[name] >> 20} MB" for name in ("target", "limit") if budget[name]]
    refused = f", {budget['refused']} refused" if budget["refused"] else ""
    return f"{', '.join(named)}: step {budget['level']}{refused}"
