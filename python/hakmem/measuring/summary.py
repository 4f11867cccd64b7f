"""One row of figures for each contender of a rotation, for tables and for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hakmem.allocators.peers import Allocator
from hakmem.measuring.rotation import Rotation
from hakmem.measuring.statistics import Interval, net_speed_ratio, speed_ratio, variation


@dataclass(frozen=True)
class Row:
    """Figures of one contender; `ratio` and `net` say how many times faster the baseline is."""

    name: str
    problem: str = ""
    slices: int = 0
    median: float = 0.0
    best: float = 0.0
    variation: float = 0.0
    ratio: Interval | None = None
    net: Interval | None = None
    peak_rss_kb: int = 0
    minor_faults: int = 0
    major_faults: int = 0


def summarise(
    rotation: Rotation,
    baseline: str,
    allocators: Sequence[Allocator] = (),
    floor: str = "floor",
) -> list[Row]:
    """Rows of the allocators asked for, in their order, then of other contenders.

    One that could not be loaded keeps its row, with the reason.
    """
    unusable = {a.name: Row(a.name, a.problem) for a in allocators if not a.usable}
    names = dict.fromkeys([*(a.name for a in allocators), *rotation.series])
    return [unusable.get(name) or _row(rotation, name, baseline, floor) for name in names]


def _row(rotation: Rotation, name: str, baseline: str, floor: str) -> Row:
    series = rotation.series[name]
    values = series.values[: rotation.rounds_done]
    if series.problem or not values:
        return Row(name, series.problem or "no whole round")
    outcomes = series.outcomes[: rotation.rounds_done]
    ratio = net = None
    if name != baseline and _complete(rotation, baseline):
        ours, theirs = rotation.costs(baseline), rotation.costs(name)
        ratio = speed_ratio(ours, theirs, rotation.seed)
        if name != floor and _complete(rotation, floor):
            net = net_speed_ratio(ours, theirs, rotation.costs(floor), rotation.seed)
    return Row(
        name,
        slices=len(values),
        median=median(values),
        best=max(values) if rotation.metric.higher_is_better else min(values),
        variation=variation(values),
        ratio=ratio,
        net=net,
        peak_rss_kb=round(median(o.peak_rss_kb for o in outcomes)),
        minor_faults=round(median(o.minor_faults for o in outcomes)),
        major_faults=round(median(o.major_faults for o in outcomes)),
    )


def _complete(rotation: Rotation, name: str) -> bool:
    series = rotation.series.get(name)
    return series is not None and not series.problem and bool(series.values)
