"""Measures the points of `hakmem scale`, and the figures made of their rounds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import psutil
from hakmem.allocators.peers import Allocator, bench_program
from hakmem.measuring.rotation import Contender, Rotation, contenders
from hakmem.measuring.summary import Row, summarise

from hakmem_lab.scale_points import GIB, Point

NS_PER_S = 1e9


@dataclass(frozen=True)
class Figures:
    """One allocator at one point: medians over the rounds, and the range of its times."""

    allocator: str
    problem: str = ""
    rounds: int = 0
    ns: float = 0.0
    ns_min: float = 0.0
    ns_max: float = 0.0
    peak_rss_kb: int = 0
    minor_faults: int = 0
    major_faults: int = 0


@dataclass(frozen=True)
class Measured:
    """A point with the figures of all allocators."""

    point: Point
    command: tuple[str, ...]
    figures: tuple[Figures, ...]

    def of(self, allocator: str) -> Figures | None:
        """The figures of an allocator that has some."""
        found = (f for f in self.figures if f.allocator == allocator and f.rounds)
        return next(found, None)


@dataclass(frozen=True)
class Step:
    """Where an allocator's cost rises most from one point of a load to the next."""

    load: str
    allocator: str
    ratio: float
    before: Point
    after: Point


def lacking_memory(point: Point) -> str:
    """Why a point is not run, or an empty string."""
    free_bytes = psutil.virtual_memory().available
    if point.needed_bytes <= free_bytes:
        return ""
    return (
        f"it needs about {point.needed_bytes / GIB:.1f} GiB, and {free_bytes / GIB:.1f} GiB "
        "are available"
    )


def command_of(point: Point) -> tuple[str, ...]:
    return (str(bench_program(point.load.program)), *point.arguments)


def contenders_of(point: Point, allocators: Sequence[Allocator], limit_s: float) -> list[Contender]:
    rows = contenders(allocators, command_of(point))
    return [replace(row, limit_s=limit_s) for row in rows]


def figures_of(
    point: Point, rotation: Rotation, baseline: str, allocators: Sequence[Allocator]
) -> Measured:
    rows = summarise(rotation, baseline, allocators)
    return Measured(
        point,
        (point.load.program, *point.arguments),
        tuple(figures(rotation, row) for row in rows),
    )


def figures(rotation: Rotation, row: Row) -> Figures:
    if row.problem:
        return Figures(row.name, row.problem)
    values = rotation.series[row.name].values[: rotation.rounds_done]
    return Figures(
        row.name,
        rounds=row.slices,
        ns=NS_PER_S / row.median,
        ns_min=NS_PER_S / max(values),
        ns_max=NS_PER_S / min(values),
        peak_rss_kb=row.peak_rss_kb,
        minor_faults=row.minor_faults,
        major_faults=row.major_faults,
    )


def largest_step(measured: Sequence[Measured], load: str, allocator: str) -> Step | None:
    """None where an allocator has figures at fewer than two neighbouring points."""
    line = [one for one in measured if one.point.load.name == load]
    steps = [
        Step(load, allocator, second.ns / first.ns, one.point, other.point)
        for one, other in pairwise(line)
        if (first := one.of(allocator)) and (second := other.of(allocator))
    ]
    return max(steps, key=lambda step: step.ratio, default=None)


def largest_steps(measured: Sequence[Measured], names: Sequence[str]) -> list[Step]:
    loads = dict.fromkeys(one.point.load.name for one in measured)
    found = [largest_step(measured, load, name) for load in loads for name in names]
    return [step for step in found if step is not None]
