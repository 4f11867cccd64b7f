"""Spreads, trends and means over many loads, beside the intervals of measuring.statistics."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from hakmem.measuring.statistics import Interval, bootstrap_interval


def costs_chosen_elsewhere(others: Sequence[Sequence[float]]) -> list[float]:
    """Each round's cost of the row whose median over all rounds but that one is the lowest.

    The row with the lowest median of all rounds is partly the luckiest in them. A round that is
    left out of the choice does not favour the row chosen. Empty without a second round.
    """
    rows = [costs for costs in others if len(costs) > 1]
    found = []
    for i in range(max(map(len, rows), default=0)):
        there = [costs for costs in rows if i < len(costs)]
        found.append(min(there, key=lambda costs: median([*costs[:i], *costs[i + 1 :]]))[i])
    return found


def variation_interval(values: Sequence[float], seed: int) -> tuple[float, float] | None:
    """The bootstrap 95 % interval of the variation; None where there are too few values."""
    return bootstrap_interval(
        values, lambda rows: rows.std(axis=1, ddof=1) / rows.mean(axis=1), seed
    )


@dataclass(frozen=True)
class Trend:
    """A straight line through a series that few far values do not move (Theil and Sen).

    `change` is what the line rises from the first to the last value, as a share of its start; the
    interval holds it with 95 % confidence.
    """

    change: float
    low: float
    high: float


def trend(values: Sequence[float]) -> Trend:
    """The trend of at least two positive values, evenly spaced."""
    # Slow to import, and only this needs it.
    from scipy import stats

    line = stats.theilslopes(values, alpha=0.95)
    start, length = float(line.intercept), len(values) - 1
    if start <= 0:
        raise ValueError("the trend does not start above zero")
    return Trend(
        float(line.slope) * length / start,
        float(line.low_slope) * length / start,
        float(line.high_slope) * length / start,
    )


def geometric_mean_interval(ratios: Sequence[float], seed: int) -> Interval:
    """The geometric mean of positive ratios and its bootstrap 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    found = bootstrap_interval(logs, lambda rows: rows.mean(axis=1), seed)
    return Interval(geometric_mean(ratios), *map(math.exp, found or ()))
