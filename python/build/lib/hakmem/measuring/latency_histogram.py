"""Histograms as the bench programs print them: merged, and read as percentiles."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

BUCKET = "bucket"
# With fewer calls beyond a percentile than this, it is the luck of a few calls.
CALLS_BEYOND_MIN = 10


@dataclass
class Histogram:
    """How many values lie in each bucket; a bucket is its lowest and highest value."""

    counts: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, low: int, high: int, count: int) -> None:
        self.counts[low, high] = self.counts.get((low, high), 0) + count

    def merge(self, other: Histogram) -> None:
        for (low, high), count in other.counts.items():
            self.add(low, high, count)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def largest(self) -> int:
        return max(high for _, high in self.counts)

    def lists(self) -> tuple[list[float], list[int]]:
        """The middle of each bucket, and the number of values up to its end."""
        ordered = sorted(self.counts)
        middles = [(low + high) / 2 for low, high in ordered]
        return middles, list(accumulate(self.counts[bucket] for bucket in ordered))

    def percentiles(self, shares: Iterable[float]) -> list[float]:
        """The value of rank ceil(share * total), to within its bucket's width."""
        middles, up_to = self.lists()
        # A share such as 0.9 of 10 must be rank 9, whatever binary fractions make of it.
        ranks = (max(1, math.ceil(round(share * up_to[-1], 6))) for share in shares)
        return [middles[bisect_left(up_to, rank)] for rank in ranks]

    def supported(self, share: float) -> bool:
        """Whether enough values lie beyond this percentile for it to mean anything."""
        return round(self.total * (1 - share), 6) >= CALLS_BEYOND_MIN


def parse(text: str) -> tuple[dict[str, str], dict[str, Histogram]]:
    """The `name=value` lines and the histograms by label in a program's output."""
    values: dict[str, str] = {}
    found: dict[str, Histogram] = {}
    # A name in the output may hold other characters that begin a line for splitlines.
    for line in text.split("\n"):
        parts = line.split(",")
        if parts[0] == BUCKET and len(parts) == 5:
            low, high, count = map(int, parts[2:])
            found.setdefault(parts[1], Histogram()).add(low, high, count)
            continue
        name, separator, value = line.partition("=")
        if separator and name.isidentifier():
            values[name] = value
    return values, found
