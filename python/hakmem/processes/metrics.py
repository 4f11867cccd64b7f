"""The figures of all processes with a page, as metrics for Prometheus.

Names follow the conventions of OpenMetrics: base units at the end, counters end in _total.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest

from hakmem.processes.live_figures import WRAP, Look, look_at_all, resident_peak

PROCESS_LABELS = ("pid", "comm")
Values = Iterable[tuple[tuple[str, ...], float]]


@dataclass(frozen=True)
class Kind:
    """One metric: `read` gives its values for a process, each with the values of `labels`."""

    name: str
    text: str
    read: Callable[[Look], Values]
    labels: tuple[str, ...] = ()
    counter: bool = False

    @property
    def exported(self) -> str:
        """The name of its samples."""
        return f"{self.name}_total" if self.counter else self.name

    def family(self) -> Metric:
        kind = CounterMetricFamily if self.counter else GaugeMetricFamily
        return kind(self.name, self.text, labels=[*PROCESS_LABELS, *self.labels])


def one(*path: str) -> Callable[[Look], Values]:
    """The figure at a path; none where a part of it is null."""

    def read(look: Look) -> Values:
        value = look.figures
        for name in path:
            value = value[name]
            if value is None:
                return
        yield (), value

    return read


def told(path: str, name: str) -> Callable[[Look], Values]:
    """A figure that the kernel may not have told the process: 0 is none."""

    def read(look: Look) -> Values:
        if value := (look.figures[path] or {}).get(name):
            yield (), value

    return read


def peak(look: Look) -> Values:
    if value := resident_peak(look):
        yield (), value


def fields(path: str, names: Iterable[str]) -> Callable[[Look], Values]:
    """Fields of one object, by name."""

    def read(look: Look) -> Values:
        for name in names:
            yield (name,), look.figures[path][name]

    return read


def renamed(path: str, names: Mapping[str, str]) -> Callable[[Look], Values]:
    def read(look: Look) -> Values:
        for label, name in names.items():
            yield (label,), look.figures[path][name]

    return read


def live(look: Look) -> Values:
    figures = look.figures
    yield ("slabs",), figures["slabs"]["live"]
    yield ("extents",), figures["spans"]["extents"]
    yield ("huge",), figures["huge"]["live"]
    yield ("sampled",), figures["sampled"]["live"]


def by_class(name: str) -> Callable[[Look], Values]:
    def read(look: Look) -> Values:
        for row in look.figures["classes"]:
            if row[name] is not None and (row["slab_bytes"] or row[name]):
                yield class_labels(row), row[name]

    return read


def class_labels(row: Mapping) -> tuple[str, str]:
    return str(row["size"]), str(row["aligned"]).lower()


def class_states(look: Look) -> Values:
    for row in look.figures["classes"]:
        for state in STATES if row["slab_bytes"] else ():
            yield (*class_labels(row), state), row[state]


def entered(look: Look) -> Values:
    budget = look.figures["budget"]
    for level, count in enumerate(budget["entered"] if budget else ()):
        yield (str(level),), count


STATES = ("live", "cached", "depots", "free", "never_allocated", "rest")
SPAN_STATES = (
    "slabs", "extents", "extents_cached", "free_dirty", "free_clean", "claimed", "guards",
)  # fmt: skip
CLASS = ("block_bytes", "aligned")
CALLS = {"mmap": "mmap_total", "munmap": "munmap", "mprotect": "mprotect", "mremap": "mremap",
         "madvise": "madvise"}  # fmt: skip

SLOW_PATHS = "hakmem_slow_paths"
KINDS = (
    Kind("hakmem_resident_bytes", "Resident memory of the process.", lambda k: [((), k.rss)]),
    Kind("hakmem_resident_peak_bytes", "Resident memory of the process at its peak.", peak),
    Kind("hakmem_resident_in_page_bytes", "Resident memory when the page was written.",
         told("process", "resident")),
    Kind("hakmem_used_bytes", "What HAKMEM_LIMIT counts: memory of the system, in use or kept.",
         one("process", "used")),
    Kind("hakmem_used_peak_bytes", "The same at its peak, since the start or the fork.",
         one("process", "used_peak")),
    Kind("hakmem_accessible_bytes", "Memory that hakmem has made accessible.",
         one("total", "accessible")),
    Kind("hakmem_live_bytes", "Blocks the program has, rounded up to their sizes.", live,
         ("owner",)),
    Kind("hakmem_span_bytes", "Spans of the regions by state.", fields("spans", SPAN_STATES),
         ("state",)),
    Kind("hakmem_slab_bytes", "Slabs by what their blocks are.", fields("slabs", STATES),
         ("state",)),
    Kind("hakmem_class_bytes", "Slabs of each size class by what their blocks are.", class_states,
         (*CLASS, "state")),
    Kind("hakmem_requested_bytes", "What was asked for of the live blocks in slabs, estimated.",
         one("estimate", "requested")),
    Kind("hakmem_rounding_bytes", "Rounding up to the size class of these, estimated.",
         one("estimate", "rounding")),
    Kind("hakmem_extent_tail_bytes", "Unused ends of large blocks.", one("extents", "tail")),
    Kind("hakmem_huge_kept_bytes", "Freed mappings of huge blocks that are kept.",
         one("huge", "kept")),
    Kind("hakmem_own_bytes", "Memory of the allocator itself.",
         fields("own", ("metadata", "tables", "other")), ("kind",)),
    Kind("hakmem_caches", "Thread caches: used, and left by ended threads.",
         fields("caches", ("used", "unused")), ("state",)),
    Kind("hakmem_regions", "Reservations of address space.", one("regions_total", "count")),
    Kind("hakmem_page_age_seconds", "Age of the statistics page; it grows while the process rests.",
         lambda k: [((), k.age_s)]),
    Kind("hakmem_spans_taken", "Spans and large blocks handed out.", one("counters", "alloc"),
         counter=True),
    Kind("hakmem_spans_returned", "Spans and large blocks that came back.",
         one("counters", "free"), counter=True),
    Kind(SLOW_PATHS, "Refills and overflows of thread caches.",
         one("counters", "slow_paths"), counter=True),
    Kind("hakmem_system_calls", "System calls by name.", renamed("counters", CALLS), ("call",),
         True),
    Kind("hakmem_madvise_failures", "Calls of madvise that failed, by error.",
         renamed("counters", {"ENOMEM": "madvise_enomem", "other": "madvise_other"}), ("error",),
         True),
    Kind("hakmem_purges", "Ranges purged.", one("purge", "count"),
         counter=True),
    Kind("hakmem_purged_bytes", "Bytes purged.", one("purge", "bytes"),
         counter=True),
    Kind("hakmem_foreign_pointers", "Calls with pointers that are not hakmem's.",
         renamed("guard", {"free": "frees", "realloc": "reallocs",
                           "malloc_usable_size": "usable_sizes"}), ("call",), True),
    *(Kind(f"hakmem_cache_{name}", f"{text}; only with HAKMEM_TINY_FRONT_METRICS=1.",
           by_class(name), CLASS, True)
      for name, text in (("hits", "Calls that the thread caches served"),
                         ("misses", "Calls of malloc that they did not"),
                         ("refills", "Magazines filled from the slabs"),
                         ("flushes", "Magazines emptied to the slabs"))),
    Kind("hakmem_budget_target_bytes", "HAKMEM_RSS_TARGET, or of the cgroup's limit; 0: none.",
         one("budget", "target")),
    Kind("hakmem_budget_limit_bytes", "HAKMEM_LIMIT; 0: none.", one("budget", "limit")),
    Kind("hakmem_budget_level", "How far the steps against memory above the target went.",
         one("budget", "level")),
    Kind("hakmem_budget_entered", "Times each step was entered.", entered, ("level",), True),
    Kind("hakmem_budget_refused", "Requests refused by the limit.", one("budget", "refused"),
         counter=True),
)  # fmt: skip


class Collector:
    """Reads all processes anew at each scrape."""

    def __init__(self, pid: int | None = None) -> None:
        self.pid = pid
        # Of the counter that wraps: last value, and what was counted before that.
        self.slow: dict[int, tuple[int, int]] = {}
        # The server answers scrapes in threads of their own.
        self.lock = Lock()

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        looks = look_at_all(self.pid)
        yield GaugeMetricFamily(
            "hakmem_processes", "Processes with a statistics page.", value=len(looks)
        )
        with self.lock:
            bases = {pid: self.unwrapped(pid, look) for pid, look in looks.items()}
            self.slow = {pid: state for pid, state in self.slow.items() if pid in looks}
        for kind in KINDS:
            family = kind.family()
            for pid, look in looks.items():
                who = [str(pid), look.snapshot.name]
                more = bases[pid] if kind.name == SLOW_PATHS else 0
                for labels, value in kind.read(look):
                    family.add_metric([*who, *labels], value + more)
            if family.samples:
                yield family

    def unwrapped(self, pid: int, look: Look) -> int:
        """What to add to the counter of slow paths so that it never falls."""
        value = look.figures["counters"]["slow_paths"]
        last, more = self.slow.get(pid, (value, 0))
        # A fall by less than half a turn is another process of the same number.
        if value < last:
            more = more + WRAP if last - value > WRAP // 2 else 0
        self.slow[pid] = (value, more)
        return more


def registry(pid: int | None = None) -> CollectorRegistry:
    found = CollectorRegistry(auto_describe=False)
    found.register(Collector(pid))
    return found


def text(pid: int | None = None) -> str:
    """OpenMetrics text of one look."""
    return generate_latest(registry(pid)).decode()
