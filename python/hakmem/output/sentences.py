"""A comparison in sentences that need no table, and what must be said about its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hakmem.measuring.measures import Cell, Measure, verdict
from hakmem.measuring.statistics import Interval

Figures = Sequence[tuple[Measure, Sequence[Cell]]]
# What most programs run on today, and then what this is about.
USUAL = ("glibc", "hakmem")


def of_comparison(figures: Figures, baseline: str, not_served: Sequence[str] = ()) -> list[str]:
    """One for each measure: the baseline beside the usual allocator, and beside the best other.
    Before them, who takes no part."""
    out = [
        name for name in not_served if any(c.name == name for _, cells in figures for c in cells)
    ]
    left = {c.name for _, cells in figures for c in cells if c.is_own}
    found = []
    for measure, cells in figures:
        ratios = {c.name: c.to_baseline for c in cells if c.to_baseline is not None}
        if ratios:
            found.append(sentence(measure, baseline, ratios))
    if not found and left:
        found.append(f"Only {baseline} has figures: there is nothing to compare it with.")
    elif not found and figures:
        found.append("No allocator served the program: there is nothing to compare.")
    if out:
        told = f"{' and '.join(out)} did not serve the program"
        found.insert(0, f"{told}: the figures of such a row are another malloc's.")
    return found


def sentence(
    measure: Measure, baseline: str, ratios: Mapping[str, Interval], judged: bool = True
) -> str:
    """`ratios` are costs of the others over the baseline's."""
    usual = next((name for name in USUAL if name in ratios), next(iter(ratios)))
    best = min(ratios, key=lambda name: ratios[name].median)
    (x, more), (y, more_of_best) = (shown(measure, ratios[n], judged) for n in (usual, best))
    first = f"{baseline} {measure.told.format(x=x, b=usual)}{more}"
    if best == usual:
        return f"{first}."
    return f"{first}; beside {best}, the best other, {y}{more_of_best}."


def shown(measure: Measure, ratio: Interval, judged: bool) -> tuple[str, str]:
    """How many times, and behind that the interval and the verdict."""
    found = ratio if measure.as_speed else ratio.inverse
    more = f": {said(measure, ratio)}" if judged else ""
    if None not in (found.low, found.high):
        more = f" [{number(found.low)}, {number(found.high)}]{more}"
    return number(found.median), more


def number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.1f}"


def said(measure: Measure, ratio: Interval) -> str:
    """The verdict on the baseline, where a table has the one on the row."""
    if ratio.low is None or ratio.high is None:
        return "too few rounds to be sure"
    return verdict(measure, ratio.inverse)


def of_nothing(problems: Mapping[str, str]) -> str:
    """Why no allocator has figures; those that failed alike are told together."""
    by_problem: dict[str, list[str]] = {}
    for name, problem in problems.items():
        by_problem.setdefault(problem, []).append(name)
    told = [f"{', '.join(names)}: {problem}" for problem, names in by_problem.items()]
    return f"no allocator has figures: {'; '.join(told) or 'there is no whole round'}"


def of_absent(measures: Sequence[Measure], figures: Figures) -> list[str]:
    """Which measures have no figure of any allocator, and why."""
    there = {measure.title for measure, _ in figures}
    return [
        f"{measure.title} is left out: {measure.absent}"
        for measure in measures
        if measure.title not in there and measure.absent
    ]
