"""Figures from paired slices: ratios of costs, their intervals, and costs net of the floor.

Everything is computed on costs (seconds, or seconds per operation), where lower is better. A speed
ratio is the other's cost over the baseline's: above 1 the baseline is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING

# Loaded with the first interval: it takes a third of a command's start.
if TYPE_CHECKING:
    import numpy as np

# Below this many pairs a 95 % interval of a median says nothing.
INTERVAL_MIN_PAIRS = 5
RESAMPLES = 4999
# Net costs below this share of the floor's own are counted as that: noise hides what is smaller.
NET_RESOLUTION = 0.01


@dataclass(frozen=True)
class Interval:
    """A median, or a geometric mean, with its bootstrap interval.

    The interval is absent when there are too few values.
    """

    median: float
    low: float | None = None
    high: float | None = None

    @property
    def inverse(self) -> Interval:
        """Of a ratio, that of the other over the one."""
        if self.low is None or self.high is None:
            return Interval(1 / self.median)
        return Interval(1 / self.median, 1 / self.high, 1 / self.low)


def bootstrap_interval(
    values: Sequence[float] | np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], seed: int
) -> tuple[float, float] | None:
    """The bootstrap 95 % interval (percentile method) of what `statistic` makes of each row of
    resamples; None where there are too few values."""
    if len(values) < INTERVAL_MIN_PAIRS:
        return None
    import numpy as np

    sample = np.asarray(values, dtype=float)
    picks = np.random.default_rng(seed).integers(0, len(sample), (RESAMPLES, len(sample)))
    low, high = np.percentile(statistic(sample[picks]), [2.5, 97.5])
    return float(low), float(high)


def median_interval(values: Sequence[float], seed: int) -> Interval:
    """The median and its bootstrap 95 % interval."""
    if not len(values):
        raise ValueError("no values")

    def medians(rows: np.ndarray) -> np.ndarray:
        import numpy as np

        return np.median(rows, axis=1)

    return Interval(float(median(values)), *(bootstrap_interval(values, medians, seed) or ()))


def exact_median_interval(values: Sequence[float], confidence: float) -> Interval:
    """The median and its interval from the sign test: valid for values of any distribution.

    The interval is absent when there are too few values for this confidence.
    """
    ordered = sorted(values)
    count, middle = len(ordered), float(median(ordered))
    # The median lies below the k-th smallest value where fewer than k values lie below the median:
    # of `count` fair coins fewer than k show heads.
    share, k = 0.0, 0
    while k < count and (share := share + math.comb(count, k) / 2**count) <= (1 - confidence) / 2:
        k += 1
    if k == 0:
        return Interval(middle)
    return Interval(middle, float(ordered[k - 1]), float(ordered[count - k]))


def speed_ratio(baseline: Sequence[float], other: Sequence[float], seed: int) -> Interval:
    """How many times faster the baseline is, over the rounds both have."""
    return median_interval([b / a for a, b in zip(baseline, other)], seed)


def net_speed_ratio(
    baseline: Sequence[float], other: Sequence[float], floor: Sequence[float], seed: int
) -> Interval | None:
    """The speed ratio after the floor's cost is taken from both sides.

    A side's net cost is the median over the rounds of its cost less the floor's, and at least
    NET_RESOLUTION of the floor's. None when the other side is not above that: there is nothing to
    compare.
    """
    rounds = list(zip(baseline, other, floor))
    if not rounds:
        return None
    import numpy as np

    ours, theirs, floors = (np.asarray(side, dtype=float) for side in zip(*rounds))
    least = NET_RESOLUTION * float(np.median(floors))

    def ratios(rows: np.ndarray) -> np.ndarray:
        ours_net, theirs_net = np.maximum(np.median(rows, axis=1), least).T
        return theirs_net / ours_net

    net = np.column_stack([ours - floors, theirs - floors])
    if float(np.median(net[:, 1])) <= least:
        return None
    return Interval(float(ratios(net[None])[0]), *(bootstrap_interval(net, ratios, seed) or ()))


def variation(values: Sequence[float]) -> float:
    """The coefficient of variation (sample standard deviation over mean); 0 for one value."""
    if len(values) < 2 or (mean := fmean(values)) == 0:
        return 0.0
    return stdev(values) / mean
