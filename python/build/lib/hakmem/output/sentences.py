"""A comparison in sentences that need no table, and what must be said about its tables."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from hakmem.measuring.measures import CPU, NOISY, NOISY_FROM, WALL, Cell, Measure, verdict
from hakmem.measuring.statistics import Interval

Figures = Sequence[tuple[Measure, Sequence[Cell]]]
# What most programs run on today, and then what this is about.
USUAL = ("glibc", "hakmem")
# Of the facts: the load of a minute, and how many CPUs there are; above that part of them others
# run.
LOAD_AND_CPUS = (("load", r"^[\d.]+"), ("CPU", r"(\d+) usable"))
BUSY_PART = 0.5
TIMES = ("Throughput", "Figure", WALL.title, CPU.title)


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
        noisy = [c.name for c in cells if c.verdict == NOISY]
        if ratios:
            found.append(sentence(measure, baseline, ratios, noisy=noisy))
    if not found and left:
        found.append(f"Only {baseline} has figures: there is nothing to compare it with.")
    elif not found and figures:
        found.append("No allocator served the program: there is nothing to compare.")
    if out:
        told = f"{' and '.join(out)} did not serve the program"
        found.insert(0, f"{told}: the figures of such a row are another malloc's.")
    return found


def sentence(
    measure: Measure,
    baseline: str,
    ratios: Mapping[str, Interval],
    judged: bool = True,
    noisy: Collection[str] = (),
) -> str:
    """`ratios` are costs of the others over the baseline's; those of `noisy` decide nothing."""
    usual = next((name for name in USUAL if name in ratios), next(iter(ratios)))
    best = min(ratios, key=lambda name: ratios[name].median)
    (told, x, more), (told_best, y, more_of_best) = (
        shown(measure, ratios[n], judged, n in noisy) for n in (usual, best)
    )
    first = f"{baseline} {told.format(x=x, b=usual)}{more}"
    if best == usual:
        return f"{first}."
    # The same words with another number, or others.
    beside = y if told == told_best else f"it {told_best.format(x=y, b=best)}"
    return f"{first}; beside {best}, the best other, {beside}{more_of_best}."


def shown(measure: Measure, ratio: Interval, judged: bool, is_noisy: bool) -> tuple[str, str, str]:
    """In which words, how many times, and behind that the interval and the verdict. A speed below
    the other's is told as the time that it took."""
    found, told = ratio if measure.as_speed else ratio.inverse, measure.told
    if measure.as_speed and measure.slower and round(found.median, 2) < 1:
        found, told = found.inverse, measure.slower
    more = f": {NOISY if is_noisy else said(measure, ratio)}" if judged else ""
    if None not in (found.low, found.high):
        more = f" [{number(found.low)}, {number(found.high)}]{more}"
    return told, number(found.median), more


def of_noise(facts: Mapping[str, str], figures: Figures) -> list[str]:
    """What must be said before any figure of a machine that was busy, or of runs that differ."""
    found = []
    load, cpus = (re.search(p, facts.get(n, "")) for n, p in LOAD_AND_CPUS)
    if load and cpus and float(load[0]) > BUSY_PART * int(cpus[1]):
        found.append(
            f"Warning: the machine was busy (load {load[0]}, {cpus[1]} CPUs): other programs take "
            "part in these figures. Measure again when it is quiet."
        )
    for measure, cells in figures:
        noisy = [c for c in cells if c.is_own and c.variation > NOISY_FROM and len(c.values) > 1]
        if noisy and measure.title in TIMES:
            told = ", ".join(f"{c.name} {100 * c.variation:.0f} %" for c in noisy)
            found.append(
                f"Warning: {measure.title.lower()} varies from run to run (CV of {told}): small "
                "differences mean nothing; a quiet machine, --cpu and more --rounds help."
            )
            break
    return found


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
