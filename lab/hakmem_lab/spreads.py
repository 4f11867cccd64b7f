"""Spreads, trends and means over many loads, beside the intervals of hakmem.measuring.statistics.

scipy is imported where it is used: it is slow to load, and help and completion need none of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hakmem.measuring.statistics import INTERVAL_MIN_PAIRS, RESAMPLES, Interval


def costs_chosen_elsewhere(others: Sequence[Sequence[float]]) -> list[float]:
    """Each round's cost of the row whose median over all rounds but that one is the lowest.

    The row with the lowest median of all rounds is partly the luckiest in them. A round that is
    left out of the choice does not favour the row chosen. Empty without a second round.
    """
    rows = [costs for costs in others if len(costs) > 1]
    found = []
    for i in range(max(map(len, rows), default=0)):
        there = [costs for costs in rows if i < len(costs)]
        found.append(min(there, key=lambda costs: np.median(np.delete(costs, i)))[i])
    return found


def variation_interval(values: Sequence[float], seed: int) -> tuple[float, float] | None:
    """The bootstrap 95 % interval of the variation; None where there are too few values."""
    from scipy import stats

    sample = np.asarray(values, dtype=float)
    if sample.size < INTERVAL_MIN_PAIRS:
        return None
    if np.ptp(sample) == 0:
        return 0.0, 0.0
    found = stats.bootstrap(
        (sample,),
        lambda x, axis: np.std(x, axis=axis, ddof=1) / np.mean(x, axis=axis),
        n_resamples=RESAMPLES,
        confidence_level=0.95,
        method="percentile",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


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
    from scipy import stats

    series = np.asarray(values, dtype=float)
    steps = np.arange(series.size)
    line = stats.theilslopes(series, steps, alpha=0.95)
    start, length = float(line.intercept), series.size - 1
    if start <= 0:
        raise ValueError("the trend does not start above zero")
    return Trend(
        float(line.slope) * length / start,
        float(line.low_slope) * length / start,
        float(line.high_slope) * length / start,
    )


def geometric_mean_interval(ratios: Sequence[float], seed: int) -> Interval:
    """The geometric mean of positive ratios and its bootstrap 95 % interval."""
    from scipy import stats

    logs = np.log(np.asarray(ratios, dtype=float))
    if logs.size == 0:
        raise ValueError("no values")
    middle = float(np.exp(logs.mean()))
    if logs.size < INTERVAL_MIN_PAIRS:
        return Interval(middle)
    if np.ptp(logs) == 0:
        return Interval(middle, middle, middle)
    found = stats.bootstrap(
        (logs,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=0.95,
        method="percentile",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(middle, float(np.exp(found.low)), float(np.exp(found.high)))
