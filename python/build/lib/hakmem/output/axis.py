"""From where to where the axis of compared dots goes, so that their differences are seen.

Dots need no 0: an axis from 0 would show figures that are alike as one column. So that a narrow
axis misleads nobody, the plot has a second scale, of ratios, and an axis is never narrower than
NARROWEST.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

# Figures further apart than this are shown by their ratios: one that is far worse would press all
# others together.
LINEAR_MOST = 2.0
# Of the largest figure: less matters to nobody who chooses an allocator, and must not look as if.
NARROWEST = 0.02
MARGIN = 0.06
# Tukey's bound of what is "far out", in distances of the quartiles; how many runs have quartiles.
FAR_OUT, RUNS_LEAST = 3.0, 5
STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    by_ratio: bool = False

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def marks(self, most: int) -> list[float]:
        """At most so many numbers that people count in."""
        if not self.by_ratio:
            from matplotlib.ticker import MaxNLocator

            found = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
            return [float(mark) for mark in found if self.holds(mark)]
        for steps in (STEPS, (1.0, 2.0, 5.0), (1.0,)):
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            marks = [step * 10.0**power for power in powers for step in steps]
            marks = [mark for mark in marks if self.holds(mark)]
            if len(marks) <= most:
                break
        return marks[:: -(-len(marks) // most)] if marks else []


def axis_of(runs: Sequence[Sequence[float]], middles: Sequence[float]) -> Axis:
    """Around `middles`, the medians and the ends of their intervals, and all runs but those that
    are far out: one slow run does not press the others together."""
    shown = [*middles, *(value for values in runs for value in not_far_out(values))]
    low, high = min(shown), max(shown)
    if low <= 0:
        return Axis(min(low * (1 + MARGIN), 0.0), max(high, 0.0) * (1 + MARGIN) or 1.0)
    if high > LINEAR_MOST * low:
        margin = (high / low) ** MARGIN
        return Axis(low / margin, high * margin, by_ratio=True)
    missing = max(0.0, NARROWEST * high - (high - low)) / 2
    margin = missing + MARGIN * max(high - low, NARROWEST * high)
    return Axis(low - margin, high + margin)


def not_far_out(values: Sequence[float]) -> list[float]:
    if len(values) < RUNS_LEAST:
        return list(values)
    lower, _, upper = quantiles(values, n=4, method="inclusive")
    reach = FAR_OUT * (upper - lower)
    return [value for value in values if lower - reach <= value <= upper + reach]
