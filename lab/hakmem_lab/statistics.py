"""Figures from paired slices: ratios of costs, their intervals, and costs net of the floor.

Everything is computed on costs (seconds, or seconds per operation), where lower is better. A speed
ratio is the other's cost over the baseline's: above 1 the baseline is faster.

scipy is imported where it is used: it is slow to load, and help and completion need none of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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


def median_interval(values: Sequence[float], seed: int) -> Interval:
    """The median and its bootstrap 95 % interval (percentile method)."""
    from scipy import stats

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


def exact_median_interval(values: Sequence[float], confidence: float) -> Interval:
    """The median and its interval from the sign test: valid for values of any distribution.

    The interval is absent when there are too few values for this confidence.
    """
    from scipy import stats

    test = stats.quantile_test(np.asarray(values, dtype=float), p=0.5)
    found = test.confidence_interval(confidence_level=confidence)
    middle = float(np.median(values))
    if not np.isfinite([found.low, found.high]).all():
        return Interval(middle)
    return Interval(middle, float(found.low), float(found.high))


def speed_ratio(baseline: Sequence[float], other: Sequence[float], seed: int) -> Interval:
    """How many times faster the baseline is, over the rounds both have."""
    return median_interval([b / a for a, b in zip(baseline, other, strict=False)], seed)


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


def net_speed_ratio(
    baseline: Sequence[float], other: Sequence[float], floor: Sequence[float], seed: int
) -> Interval | None:
    """The speed ratio after the floor's cost is taken from both sides.

    A side's net cost is the median over the rounds of its cost less the floor's, and at least
    NET_RESOLUTION of the floor's. None when the other side is not above that: there is nothing to
    compare.
    """
    rounds = list(zip(baseline, other, floor, strict=False))
    if not rounds:
        return None
    ours, theirs, floors = (np.asarray(side, dtype=float) for side in zip(*rounds, strict=True))
    least = NET_RESOLUTION * float(np.median(floors))

    def ratio(ours_net: np.ndarray, theirs_net: np.ndarray) -> float:
        return max(float(np.median(theirs_net)), least) / max(float(np.median(ours_net)), least)

    if float(np.median(theirs - floors)) <= least:
        return None
    middle = ratio(ours - floors, theirs - floors)
    if len(rounds) < INTERVAL_MIN_PAIRS:
        return Interval(middle)
    generator = np.random.default_rng(seed)
    picks = generator.integers(0, len(rounds), (RESAMPLES, len(rounds)))
    ratios = [ratio((ours - floors)[pick], (theirs - floors)[pick]) for pick in picks]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Interval(middle, float(low), float(high))


def variation(values: Sequence[float]) -> float:
    """The coefficient of variation (sample standard deviation over mean); 0 for one value."""
    sample = np.asarray(values, dtype=float)
    if sample.size < 2 or sample.mean() == 0:
        return 0.0
    return float(sample.std(ddof=1) / sample.mean())


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
