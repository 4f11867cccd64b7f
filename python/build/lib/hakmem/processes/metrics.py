"""The figures of all processes with a page, as metrics for Prometheus.

Names follow the conventions of OpenMetrics: base units at the end, counters end in _total.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from threading import Lock

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.exposition import generate_latest

from hakmem.errors import UserError
from hakmem.plain_text import printable
from hakmem.processes.figures_table import FAMILIES, FIGURES
from hakmem.processes.live_figures import WRAP, Look, look_around, resident_peak
from hakmem.processes.web import Answer, Refused, Request

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

    def family(self) -> Metric:
        kind = CounterMetricFamily if self.counter else GaugeMetricFamily
        return kind(self.name, self.text, labels=[*PROCESS_LABELS, *self.labels])


def one(*path: str) -> Callable[[Look], Values]:
    """The figure at a path; none where a part of it is null."""

    def read(look: Look) -> Values:
        value = look.figures
        for name in path:
            value = value.get(name)
            if value is None:
                return
        yield (), value

    return read


def labelled(places: Iterable[tuple[str, str, str]]) -> Callable[[Look], Values]:
    """Figures by (label's value, object, member); none that is null."""

    def read(look: Look) -> Values:
        for label, path, name in places:
            if (value := (look.figures[path] or {}).get(name)) is not None:
                yield (label,), value

    return read


def of_table() -> Iterator[Kind]:
    """The metrics that figures_table.py names: a figure each, or figures told apart by a label."""
    families: dict[str, tuple[str, list[tuple[str, str, str]]]] = {}
    for path, name, metrics, text in FIGURES:
        for metric in metrics.split():
            family, _, label = metric.removesuffix("}").partition("{")
            counter, base = family.endswith("_total"), family.removesuffix("_total")
            if label:
                key, _, value = label.partition("=")
                families.setdefault(family, (key, []))[1].append((value, path, name))
            else:
                yield Kind(base, sentence(text), one(path, name), counter=counter)
    for family, (key, places) in families.items():
        counter, base = family.endswith("_total"), family.removesuffix("_total")
        yield Kind(base, sentence(FAMILIES[family]), labelled(places), (key,), counter)


def sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def unless_0(figure: Callable[[Look], int | None]) -> Callable[[Look], Values]:
    """A figure that the kernel may not have told the process: 0 is none."""
    return lambda look: [((), value)] if (value := figure(look)) else []


def counted(names: Mapping[str, str]) -> Callable[[Look], Values]:
    """Of the counters, by the names they have as labels."""
    return labelled([(label, "counters", name) for label, name in names.items()])


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


def of_heaps(name: str) -> Callable[[Look], Values]:
    """By name and id: names need not differ, and ids say little."""

    def read(look: Look) -> Values:
        for row in look.figures["heaps"] or []:
            yield (printable(row["name"]), str(row["id"])), row[name]

    return read


HEAP_KINDS = (
    ("live_bytes", "live", "Blocks that the program has in a heap."),
    ("peak_bytes", "peak", "The most that these have been."),
    ("blocks", "blocks", "Blocks that the program has in a heap."),
    ("held_bytes", "held", "Memory taken for the blocks of a heap."),
    ("total_bytes", "total", "Live bytes of a heap and those below it."),
    ("limit_bytes", "limit", "Limit of a heap; 0: none."),
    ("refused", "refused", "Requests that the limit of a heap refused."),
    ("requests", "requests", "Requests that a heap served."),
)
COUNTED = ("refused", "requests")
STATES = ("live", "cached", "depots", "free", "never_allocated", "rest")
CLASS = ("block_bytes", "aligned")
CALLS = {"mmap": "mmap_total", "munmap": "munmap", "mprotect": "mprotect", "mremap": "mremap",
         "madvise": "madvise"}  # fmt: skip

SLOW_PATHS = "hakmem_slow_paths"
KINDS = (
    *of_table(),
    Kind("hakmem_resident_bytes", "Resident memory of the process.", lambda k: [((), k.rss)]),
    Kind("hakmem_resident_peak_bytes", "Resident memory of the process at its peak.",
         unless_0(resident_peak)),
    Kind("hakmem_resident_in_page_bytes", "Resident memory when the page was written.",
         unless_0(lambda k: (k.figures["process"] or {}).get("resident"))),
    Kind("hakmem_class_bytes", "Slabs of each size class by what their blocks are.", class_states,
         (*CLASS, "state")),
    Kind("hakmem_requested_bytes", "What was asked for of the live blocks in slabs, estimated.",
         one("estimate", "requested")),
    Kind("hakmem_rounding_bytes", "Rounding up to the size class of these, estimated.",
         one("estimate", "rounding")),
    Kind("hakmem_page_age_seconds", "Age of the statistics page; it grows while the process rests.",
         lambda k: [((), k.age_s)]),
    Kind("hakmem_spans_taken", "Spans and large blocks handed out.", one("counters", "alloc"),
         counter=True),
    Kind("hakmem_spans_returned", "Spans and large blocks that came back.",
         one("counters", "free"), counter=True),
    Kind("hakmem_system_calls", "System calls by name.", counted(CALLS), ("call",),
         True),
    Kind("hakmem_madvise_failures", "Calls of madvise that failed, by error.",
         counted({"ENOMEM": "madvise_enomem", "other": "madvise_other"}), ("error",),
         True),
    *(Kind(f"hakmem_cache_{name}", f"{text}; only with HAKMEM_TINY_FRONT_METRICS=1.",
           by_class(name), CLASS, True)
      for name, text in (("hits", "Calls that the thread caches served"),
                         ("misses", "Calls of malloc that they did not"),
                         ("refills", "Magazines filled from the slabs"),
                         ("flushes", "Magazines emptied to the slabs"))),
    *(Kind(f"hakmem_heap_{name}", text, of_heaps(member), ("heap", "id"), member in COUNTED)
      for name, member, text in HEAP_KINDS),
    Kind("hakmem_heaps_left_out", "Heaps without metrics: those above are of the largest.",
         one("heaps_left_out")),
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
        looks, _ = look_around(self.pid)
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


def site(pid: int | None = None) -> Callable[[Request], Answer]:
    """One look for each request, whatever path it names."""
    found = registry(pid)

    def answer(request: Request) -> Answer:
        encode, kind = choose_encoder(request.accept)
        try:
            return Answer(encode(found), kind)
        except UserError as error:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, error.format_message()) from error

    return answer


def text(pid: int | None = None) -> str:
    """OpenMetrics text of one look."""
    return generate_latest(registry(pid)).decode()
