"""Figures from paired slices: ratios of costs, their intervals, and costs net of the floor.

Everything is computed on costs (seconds, or seconds per operation), where lower is better. A speed
ratio is the other's cost over the baseline's: above 1 the baseline is faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

# Below this many pairs a 95 % interval of a median says nothing.
INTERVAL_MIN_PAIRS = 5
RESAMPLES = 4999
# A net figure needs the floor clearly below both sides in most rounds.
NET_MIN_SHARE = 2 / 3


@dataclass(frozen=True)
class Interval:
    """A median with its bootstrap interval, which is absent when there are too few pairs."""

    median: float
    low: float | None = None
    high: float | None = None


def median_interval(values: Sequence[float], seed: int) -> Interval:
    """The median and its bootstrap 95 % interval (percentile method)."""
    sample = np.asarray(values, dtype=float)
    if sample.size == 0:
        raise ValueError("no values")
    middle = float(np.median(sample))
    if sample.size < INTERVAL_MIN_PAIRS:
        return Interval(middle)
    found = stats.bootstrap(
        (sample,),
        np.median,
        n_resamples=RESAMPLES,
        confidence_level=0.95,
        method="percentile",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(middle, float(found.low), float(found.high))


def speed_ratio(baseline: Sequence[float], other: Sequence[float], seed: int) -> Interval:
    """How many times faster the baseline is, over the rounds both have."""
    return median_interval([b / a for a, b in zip(baseline, other, strict=False)], seed)


def net_speed_ratio(
    baseline: Sequence[float], other: Sequence[float], floor: Sequence[float], seed: int
) -> Interval | None:
    """The speed ratio after the floor's cost is taken from both sides, round by round.

    None when noise puts a side at or below the floor in more than a third of the rounds.
    """
    rounds = list(zip(baseline, other, floor, strict=False))
    ratios = [(b - f) / (a - f) for a, b, f in rounds if a > f and b > f]
    if not ratios or len(ratios) < NET_MIN_SHARE * len(rounds):
        return None
    return median_interval(ratios, seed)


def variation(values: Sequence[float]) -> float:
    """The coefficient of variation (sample standard deviation over mean); 0 for one value."""
    sample = np.asarray(values, dtype=float)
    if sample.size < 2 or sample.mean() == 0:
        return 0.0
    return float(sample.std(ddof=1) / sample.mean())
