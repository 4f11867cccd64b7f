"""Latency of single calls under several allocators: slices in rotation, their histograms merged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hakmem.allocators.peers import bench_program
from hakmem.errors import UserError
from hakmem.measuring import latency_histogram
from hakmem.measuring.latency_histogram import Histogram
from hakmem.measuring.rotation import Rotation

OPERATIONS = ("malloc", "free")
SHARES = (0.5, 0.9, 0.99, 0.999, 0.9999)
FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
SIZE = re.compile(r"([0-9]{1,20})(?:([kmg])(?:ib)?)?")
SIZE_MAX_BYTES = 1 << 30
SIZES_MAX = 12
# Of the working set for each size; about half are full.
SLOTS = 100


def share_name(share: float) -> str:
    return f"p{100 * share:g}"


@dataclass(frozen=True)
class Group:
    """One line of figures: an allocator, an operation, a size."""

    allocator: str
    operation: str
    size_bytes: int


@dataclass
class Latencies:
    """All that the whole rounds gave; histograms are in ticks of the time-stamp counter."""

    ticks_per_second: float
    step_ticks: int
    overhead_ticks: int
    merged: dict[Group, Histogram] = field(default_factory=dict)
    rounds: dict[Group, list[Histogram]] = field(default_factory=dict)
    switches: dict[str, int] = field(default_factory=dict)

    def nanoseconds(self, ticks: float) -> float:
        return ticks * 1e9 / self.ticks_per_second

    @property
    def step_ns(self) -> float:
        return self.nanoseconds(self.step_ticks)

    def percentiles_ns(
        self, histogram: Histogram, shares: Sequence[float] = SHARES
    ) -> dict[str, float | None]:
        """None where too few calls lie beyond the percentile."""
        found = histogram.percentiles(shares)
        return {
            share_name(share): self.nanoseconds(ticks) if histogram.supported(share) else None
            for share, ticks in zip(shares, found)
        }

    def largest_ns(self, histogram: Histogram) -> float:
        return self.nanoseconds(histogram.largest)

    def groups(self) -> list[Group]:
        """By size, operation and the allocators' order: what is compared lies together."""
        order = {name: place for place, name in enumerate(self.switches)}
        return sorted(
            self.merged,
            key=lambda g: (g.size_bytes, OPERATIONS.index(g.operation), order[g.allocator]),
        )


def latency_command(steps: int, seed: int, sizes: Sequence[int]) -> list[str]:
    numbers = (steps, SLOTS * len(sizes), 1, seed, *sizes)
    return [str(bench_program("bench_latency")), *map(str, numbers)]


def parse_sizes(text: str) -> list[int]:
    """Sizes such as 64,4k,1M."""
    found = [parse_size(part.strip()) for part in text.split(",")]
    if twice := [size for size in found if found.count(size) > 1]:
        raise UserError(f"--sizes: {twice[0]} bytes are given twice", 2)
    if len(found) > SIZES_MAX:
        raise UserError(f"--sizes: {len(found)} sizes, and {SIZES_MAX} are the most", 2)
    return found


def parse_size(text: str) -> int:
    matched = SIZE.fullmatch(text.lower())
    size = int(matched[1]) * FACTORS[matched[2] or ""] if matched else 0
    if not 0 < size <= SIZE_MAX_BYTES:
        raise UserError(f"--sizes: '{text}' is no size from 1 to 1G (such as 64, 4k or 1M)", 2)
    return size


def collect(rotation: Rotation) -> Latencies:
    """Merges the whole rounds of every contender that is still in the rotation."""
    found: Latencies | None = None
    for name, series in rotation.series.items():
        if series.problem:
            continue
        for outcome in series.outcomes[: rotation.rounds_done]:
            values, histograms = latency_histogram.parse(outcome.stdout)
            found = found or heading(values)
            add_slice(found, name, values, histograms)
    if found is None:
        raise UserError("no whole round was measured")
    return found


def heading(values: Mapping[str, str]) -> Latencies:
    try:
        return Latencies(
            float(values["ticks_per_second"]),
            int(values["step_ticks"]),
            int(values["overhead_ticks"]),
        )
    except (KeyError, ValueError) as error:
        raise UserError(f"bench_latency's output is not as expected: {error}") from error


def add_slice(
    found: Latencies, name: str, values: Mapping[str, str], histograms: Mapping[str, Histogram]
) -> None:
    found.switches[name] = found.switches.get(name, 0) + int(values["involuntary_switches"])
    for label, histogram in histograms.items():
        operation, _, size = label.partition(":")
        group = Group(name, operation, int(size))
        found.merged.setdefault(group, Histogram()).merge(histogram)
        found.rounds.setdefault(group, []).append(histogram)
