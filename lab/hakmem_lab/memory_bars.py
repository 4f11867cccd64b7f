"""What the loads of `hakmem memory` must show, and the verdict on each.

A bar on memory is met where hakmem's median meets it, missed where no round did; between the two
it is undecided. Where hakmem is set against others, the best median of the peers counts. A bar on
speed is about the median ratio within rounds: missed where its whole 95 % interval is below it.
"""

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from hakmem.errors import UserError
from hakmem.inputs import read_text
from hakmem.measuring.statistics import speed_ratio
from hakmem.output import tables
from hakmem.plain_text import printable

from hakmem_lab.memory_loads import BALANCED, FAST, IDLE_BYTES, LEAN, TARGET, TARGET_MB, Figure
from hakmem_lab.memory_run import HAKMEM, Measured, Series

MET, MISSED, UNDECIDED, SHOWN = "met", "MISSED", "undecided", "shown"
NO_FIGURE, SKIPPED = "no figure", "skipped"
GLIBC = "glibc"
# Peak RSS of every load of the suite: at most the lowest of these.
PEAK_PEERS = ("mimalloc3", "jemalloc5", "mimalloc", "jemalloc")
PEAK_COLUMNS = ("row", "mode", "allocator", "peak_rss_kb")
TARGET_SLACK = 1.05
# Of the bootstrap: the same figures give the same interval.
SEED = 1


@dataclass(frozen=True)
class Line:
    """A line of the final table; the texts are ready to be shown."""

    measure: str
    bar: str
    ours: str
    best: str
    verdict: str
    note: str = ""


@dataclass(frozen=True)
class Bar:
    """Which figure of a load is judged, and how.

    `met` has hakmem's figure of a round and the medians of the others.
    """

    load: str
    figure: str
    text: str
    met: Callable[[float, Mapping[str, float]], bool | None] | None = None
    # Above 0: at least so many times what the variant `beside` has, in pairs.
    least: float = 0.0
    # Whose figure stands under hakmem: a variant's where the load has variants.
    ours: str = HAKMEM
    # The other variant or allocator shown beside it; the best peer without one.
    beside: str = ""


def most(limit: float) -> Callable[[float, Mapping[str, float]], bool]:
    return lambda ours, _others: ours <= limit


def lowest(limit: float = float("inf")) -> Callable[[float, Mapping[str, float]], bool | None]:
    """At most the lowest of the others, and at most the limit."""

    def met(ours: float, others: Mapping[str, float]) -> bool | None:
        if not others:
            return None if ours <= limit else False
        return ours <= min(limit, *others.values())

    return met


def above(name: str, more: float) -> Callable[[float, Mapping[str, float]], bool | None]:
    """At most so much more than the one of that name."""
    return lambda ours, others: ours <= others[name] + more if name in others else None


NO_TARGET, WITH_TARGET = (variant.name for variant in TARGET)
SMALL_LOADS = ("small-true", "small-echo", "small-ls", "small-sqlite", "small-perl")
BARS = (
    Bar("random-400", "peak", "≤ 4 MB", most(4)),
    Bar("lean-random-400", "peak", "lean ≤ 3 MB", most(3), ours=LEAN.name,
        beside=BALANCED.name),
    Bar("lean-random-400", "speed", "lean ≥ 0.97 times balanced", least=0.97,
        ours=LEAN.name, beside=BALANCED.name),
    Bar("lean-spike", "speed", "lean ≥ 0.97 times balanced", least=0.97,
        ours=LEAN.name, beside=BALANCED.name),
    Bar("lean-phases", "speed", "lean ≥ 0.97 times balanced", least=0.97,
        ours=LEAN.name, beside=BALANCED.name),
    Bar("lean-phases", "end", "shown", ours=LEAN.name, beside=BALANCED.name),
    Bar("spike", "after-2s", "≤ 5 % of the spike", most(5)),
    Bar("spike", "reached", "≤ 2,000 ms", most(2000)),
    Bar("sleepers", "end", "≤ 40 MB", most(40)),
    Bar("sleepers-busy", "end", "≤ 40 MB", most(40)),
    Bar("speed-random-400", "speed", "speed ≥ balanced", least=1,
        ours=FAST.name, beside=BALANCED.name),
    Bar("speed-server", "speed", "speed ≥ balanced", least=1,
        ours=FAST.name, beside=BALANCED.name),
    Bar("first", "p50", "shown", ours=FAST.name, beside=BALANCED.name),
    Bar("first", "p99", "shown", ours=FAST.name, beside=BALANCED.name),
    Bar("first", "max", "shown", ours=FAST.name, beside=BALANCED.name),
    Bar("first", "class-p99", "shown", ours=FAST.name, beside=BALANCED.name),
    *(Bar(name, "peak", "≤ glibc + 1 MB", above(GLIBC, 1), beside=GLIBC) for name in SMALL_LOADS),
    Bar("phases", "end", "lowest of all", lowest()),
    Bar("phases", "mean", "lowest of all", lowest()),
    Bar("idle-threads", "thread", "≤ lowest peer and ≤ 32 KiB", lowest(IDLE_BYTES)),
    Bar("server", "end", "≤ lowest peer", lowest()),
    Bar("sessions", "end", "≤ lowest peer", lowest()),
    Bar("target", "highest", f"≤ {TARGET_SLACK * TARGET_MB:.0f} MB",
        most(TARGET_SLACK * TARGET_MB), ours=WITH_TARGET, beside=NO_TARGET),
    Bar("target", "speed", "≥ 0.9 times without", least=0.9,
        ours=WITH_TARGET, beside=NO_TARGET),
    Bar("thp-phases", "grown", "no more than 1 MB", most(1), ours="THP auto", beside="THP off"),
    Bar("cgroup", "alive", "no kill", lambda ours, _: ours >= 1),
    Bar("cgroup-64k", "alive", "no kill", lambda ours, _: ours >= 1),
)  # fmt: skip


def judged(measured: Sequence[Measured]) -> list[Line]:
    """A line a bar, for the loads that were run."""
    found = {one.load.name: one for one in measured}
    return [judge(bar, found[bar.load]) for bar in BARS if bar.load in found]


def judge(bar: Bar, one: Measured) -> Line:
    figure = next(f for f in one.load.figures if f.name == bar.figure)
    measure = f"{one.load.title}: {figure.title}"
    if one.skipped:
        return Line(measure, bar.text, "", "", SKIPPED, one.skipped)
    ours = one.series.get(bar.ours)
    others = {
        name: middle
        for name, series in one.series.items()
        if name != bar.ours and (middle := series.middle(figure.name)) is not None
    }
    beside = beside_of(bar, figure, others, one)
    if ours is None or ours.problem or not ours.rounds:
        why = ours.problem if ours else "does not take part"
        return Line(measure, bar.text, "", beside, NO_FIGURE, why or "no round")
    middle = ours.middle(figure.name)
    if middle is None:
        word = UNDECIDED if ours.values(figure.name) else MISSED
        return Line(measure, bar.text, "not reached in every round", beside, word)
    return Line(measure, bar.text, text(middle, figure), beside, *verdict(bar, one, others))


def verdict(bar: Bar, one: Measured, others: Mapping[str, float]) -> tuple[str, str]:
    """The verdict, and a note on it."""
    ours = one.series[bar.ours]
    if bar.least:
        return paired(bar, ours, one.series.get(bar.beside))
    if bar.met is None:
        return SHOWN, ""
    values = ours.values(bar.figure)
    decided = [bar.met(value, others) for value in (median(values), *values)]
    if None in decided:
        return UNDECIDED, "nothing to set it against"
    if decided[0]:
        return MET, ""
    return (UNDECIDED if any(decided) else MISSED), ""


def paired(bar: Bar, ours: Series, other: Series | None) -> tuple[str, str]:
    pairs = [
        (own[bar.figure], theirs[bar.figure])
        for own, theirs in zip(ours.rounds, other.rounds if other else (), strict=False)
        if bar.figure in own and bar.figure in theirs
    ]
    if not pairs:
        return UNDECIDED, "nothing to set it against"
    # Costs are the reciprocals of rates, so that the ratio is ours over theirs.
    ratio = speed_ratio([1 / own for own, _ in pairs], [1 / their for _, their in pairs], SEED)
    note = f"{tables.interval(ratio)} times"
    if ratio.median >= bar.least:
        return MET, note
    is_missed = ratio.high is not None and ratio.high < bar.least
    return (MISSED if is_missed else UNDECIDED), note


def beside_of(bar: Bar, figure: Figure, others: Mapping[str, float], one: Measured) -> str:
    """The best of the others, or the one that the bar names."""
    names = [bar.beside] if bar.beside else list(others)
    known = {name: others[name] for name in names if name in others}
    if not known:
        rest = [name for name in one.series if name != bar.ours]
        return "none reached it" if rest and not bar.beside else ""
    pick = max if figure.higher_is_better else min
    name = pick(known, key=known.__getitem__)
    return f"{text(known[name], figure)} ({name})"


def text(value: float, figure: Figure) -> str:
    """A figure with its unit; a rate in millions."""
    if not figure.unit:
        return "yes" if value >= 1 else "no"
    if figure.unit == "ops/s" and value >= 1e6:
        return f"{value / 1e6:.2f} M ops/s"
    shown = f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"
    return f"{shown} {figure.unit}"


def peaks(path: Path) -> list[Line]:
    """Of a suite's CSV: hakmem's peak over the lower of mimalloc 3 and jemalloc, worst first."""
    worst: list[tuple[float, Line]] = []
    for (row, mode), found in peaks_of(path).items():
        peers = {name: found[name] for name in PEAK_PEERS if name in found}
        if HAKMEM not in found or not peers:
            continue
        best = min(peers, key=peers.__getitem__)
        ratio = found[HAKMEM] / peers[best]
        line = Line(
            f"{row} ({mode}): peak RSS",
            "≤ lowest of mimalloc 3, jemalloc",
            f"{found[HAKMEM] / 1024:.1f} MB",
            f"{peers[best] / 1024:.1f} MB ({best})",
            MET if ratio <= 1 else MISSED,
            f"{ratio:.2f} times",
        )
        worst.append((ratio, line))
    if not worst:
        raise UserError(f"{path} has no row with hakmem and one of {', '.join(PEAK_PEERS)}", 2)
    return [line for _, line in sorted(worst, key=lambda pair: -pair[0])]


def peaks_of(path: Path) -> dict[tuple[str, str], dict[str, int]]:
    """Peak RSS in KiB, of each row and mode, by allocator."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    try:
        table = csv.DictReader(read_text(path).splitlines())
        lacking = [name for name in PEAK_COLUMNS if name not in (table.fieldnames or ())]
        if lacking:
            raise ValueError(f"it has no column {', '.join(lacking)}")
        for entry in table:
            if peak := entry["peak_rss_kb"]:
                row = found.setdefault((entry["row"], entry["mode"]), {})
                row[entry["allocator"]] = peak_of(peak, table.line_num)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", 2) from error
    except (ValueError, csv.Error) as error:
        raise UserError(f"{path} is no CSV of hakmem bench: {error}", 2) from error
    return found


def peak_of(text: str, line: int) -> int:
    if re.fullmatch("[0-9]{1,18}", text) and int(text) > 0:
        return int(text)
    raise ValueError(f"line {line}: peak_rss_kb: '{printable(text)[:40]}' is no peak")
