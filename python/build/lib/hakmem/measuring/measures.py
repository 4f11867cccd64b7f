"""The figures of a comparison: one Measure a kind of figure, one Cell an allocator in it.

A verdict is about paired costs: it names a difference only where the 95 % interval of the median
ratio to the baseline lies on one side of 1. What ran under another malloc is compared with nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from hakmem.measuring.rotation import Metric, Rotation
from hakmem.measuring.statistics import (
    Interval,
    exact_median_interval,
    median_interval,
    net_speed_ratio,
    speed_ratio,
    variation,
)
from hakmem.running.launching import Outcome

BASELINE = "baseline"
NO_DIFFERENCE = "no difference seen"
TOO_FEW = "too few rounds to say"
UNKNOWN = "not comparable"
NOT_SERVED = "not served: another malloc's figure"
NOISY = "too noisy to say"
# Above this variation from run to run a difference must be seen in nearly every round, and be
# larger than what the variation lets a median be off by.
NOISY_FROM, NOISY_CONFIDENCE, NOISY_WIDTHS = 0.10, 0.99, 2.0


@dataclass(frozen=True)
class Measure:
    """One kind of figure, read from each run; `better` and `worse` are its verdicts."""

    title: str
    unit: str
    read: Callable[[Outcome], float | None]
    better: str
    worse: str
    higher_is_better: bool = False
    # Of one allocator beside another, {x} how many times; `as_speed`: more of it is better.
    told: str = ""
    as_speed: bool = False
    # Of a speed below the other's: its cost, {x} times the other's.
    slower: str = ""
    # Why there may be no figure.
    absent: str = ""

    @property
    def direction(self) -> str:
        return "higher is better" if self.higher_is_better else "lower is better"

    def costs(self, values: Sequence[float]) -> list[float]:
        return [1.0 / value for value in values] if self.higher_is_better else list(values)


@dataclass(frozen=True)
class Cell:
    """One allocator's figure; `to_best` is its median cost over the best median cost."""

    name: str
    values: tuple[float, ...]
    middle: Interval
    variation: float
    to_best: float | None
    to_baseline: Interval | None
    verdict: str

    @property
    def is_own(self) -> bool:
        """Whether the figure is that of the allocator it is named after."""
        return self.verdict != NOT_SERVED


SPEED = "ran your program {x} times as fast as {b}"
SLOWER = "took {x} times {b}'s time for your program"
WALL = Measure("Wall time", "s", lambda o: o.wall_s, "faster", "slower", False, SPEED, True, SLOWER)
CPU = Measure("CPU time", "s", lambda o: o.cpu_s, "less", "more", told="used {x} of {b}'s CPU time")
PEAK_RSS = Measure(
    "Peak RSS",
    "MB",
    lambda o: o.peak_rss_kb / 1024,
    "less",
    "more",
    told="used {x} of {b}'s memory at the peak",
)
FAULTS = Measure(
    "Page faults",
    "",
    lambda o: float(o.minor_faults + o.major_faults),
    "fewer",
    "more",
    told="took {x} of {b}'s page faults",
)
# The resident size of all processes of the program, looked at while it ran.
IDLE_RSS = Measure(
    "RSS after idle",
    "MB",
    lambda o: megabytes(o.idle_rss_kb),
    "less",
    "more",
    told="kept {x} of {b}'s memory after a rest",
    absent="the program did not rest for so long in every run (--idle)",
)
END_RSS = Measure(
    "RSS at end",
    "MB",
    lambda o: megabytes(o.end_rss_kb),
    "less",
    "more",
    told="held {x} of {b}'s memory at the end",
    absent="some runs ended before memory was looked at, which is every 50 ms",
)


def megabytes(kb: int | None) -> float | None:
    return None if kb is None else kb / 1024


def measures_for(metric: Metric) -> list[Measure]:
    """The program's own figure first, where it prints one; then what any run costs."""
    always = [WALL, CPU, PEAK_RSS, IDLE_RSS, END_RSS, FAULTS]
    if metric.pattern is None:
        return always
    high = metric.higher_is_better
    always[0] = replace(WALL, told="took {x} of {b}'s time from start to end", as_speed=False)
    if metric.unit:
        own = Measure("Throughput", metric.unit, metric.read, "faster", "slower", high, SPEED, high)
        own = replace(own, slower=SLOWER)
    else:
        told = "made the program's own figure {x} times that with {b}"
        own = Measure("Figure", "", metric.read, "better", "worse", high, told, high)
    return [own, *always]


def evaluate(
    rotation: Rotation, measure: Measure, baseline: str, not_served: Collection[str] = ()
) -> list[Cell]:
    """A cell for each contender with at least one whole round, in their order; those of
    `not_served` have neither a cost nor a rank."""
    values = {name: _values(rotation, measure, name) for name in rotation.series}
    # Pairs need a figure of every round.
    whole = rotation.rounds_done
    values = {name: found for name, found in values.items() if found and len(found) == whole}
    costs = {
        name: measure.costs(found)
        for name, found in values.items()
        if min(found) > 0 and name not in not_served
    }
    best = min(costs, key=lambda name: median(costs[name]), default=None)
    return [
        Cell(
            name,
            tuple(found),
            median_interval(found, rotation.seed),
            variation(found),
            median(costs[name]) / median(costs[best]) if name in costs and best else None,
            *(
                (None, NOT_SERVED)
                if name in not_served
                else _against(measure, costs, baseline, name, rotation.seed)
            ),
        )
        for name, found in values.items()
    ]


def _values(rotation: Rotation, measure: Measure, name: str) -> list[float]:
    series = rotation.series[name]
    if series.problem:
        return []
    read = [measure.read(outcome) for outcome in series.outcomes[: rotation.rounds_done]]
    return [value for value in read if value is not None]


def _against(
    measure: Measure, costs: Mapping[str, list[float]], baseline: str, name: str, seed: int
) -> tuple[Interval | None, str]:
    if name == baseline:
        return None, BASELINE
    if name not in costs or baseline not in costs:
        return None, UNKNOWN
    ratio = speed_ratio(costs[baseline], costs[name], seed)
    said = verdict(measure, ratio)
    decides = said in (measure.better, measure.worse)
    return ratio, NOISY if decides and is_noise(costs[baseline], costs[name]) else said


def is_noise(baseline: Sequence[float], other: Sequence[float]) -> bool:
    """Whether a difference between the two may be one of the machine's moments. Where figures vary
    much, the bootstrap of a few rounds finds intervals that are too narrow."""
    spread = max(variation(baseline), variation(other))
    if spread <= NOISY_FROM:
        return False
    ratios = [b / a for a, b in zip(baseline, other)]
    found = exact_median_interval(ratios, NOISY_CONFIDENCE)
    if found.low is None or found.high is None or found.low <= 1 <= found.high:
        return True
    return abs(math.log(found.median)) < NOISY_WIDTHS * spread / math.sqrt(len(ratios))


def verdict(measure: Measure, ratio: Interval) -> str:
    """What the interval of a cost ratio to the baseline allows to say."""
    return by_interval(ratio, measure.better, measure.worse, TOO_FEW)


def by_interval(
    ratio: Interval, below: str, above: str, few: str, same: str = NO_DIFFERENCE
) -> str:
    """Where the whole interval of a ratio lies."""
    if ratio.low is None or ratio.high is None:
        return few
    if ratio.high < 1:
        return below
    return above if ratio.low > 1 else same


def speed_and_net(
    rotation: Rotation, baseline: str, theirs: Sequence[float], floor: str
) -> tuple[Interval, Interval | None]:
    """The baseline's speed over another's, and the same net of the floor where that ran."""
    ours, net = rotation.costs(baseline), None
    if rotation.has_figures(floor):
        net = net_speed_ratio(ours, theirs, rotation.costs(floor), rotation.seed)
    return speed_ratio(ours, theirs, rotation.seed), net


def ranked(measure: Measure, cells: Sequence[Cell]) -> list[Cell]:
    """The best first; behind all others those whose figures are another malloc's."""
    sign = -1 if measure.higher_is_better else 1
    return sorted(cells, key=lambda cell: (not cell.is_own, sign * cell.middle.median))


@dataclass(frozen=True)
class Scale:
    """The unit that a measure is shown in."""

    unit: str
    factor: float

    def text(self, value: float) -> str:
        shown = value * self.factor
        if shown >= 1e15 or 0 < shown < 0.01:
            return f"{shown:.4g}"
        if shown >= 1000 or (not self.unit and shown == int(shown)):
            return f"{shown:,.0f}"
        return f"{shown:.2f}" if shown < 10 else f"{shown:.1f}"


def scale_of(measure: Measure, cells: Sequence[Cell]) -> Scale:
    largest = max((cell.middle.median for cell in cells), default=1.0)
    if measure.unit == "s" and largest < 1:
        return Scale("ms", 1000)
    if measure.unit == "ops/s" and largest >= 1e6:
        return Scale("M ops/s", 1e-6)
    return Scale(measure.unit, 1)
