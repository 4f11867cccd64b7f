"""What `hakmem scale` runs: loads whose work stays the same while one thing grows.

Every point of an axis does about the same number of operations, and on the axis of threads each
thread keeps the same number of blocks, few enough for the cache of its core: what an operation
costs more at a larger point comes from what has grown.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hakmem.errors import UserError

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Axis:
    """One thing that grows. `unit` is 1024 where its values are bytes, else 1000."""

    name: str
    title: str
    values: tuple[int, ...]
    unit: int = 1000

    def text(self, value: int) -> str:
        if self.unit == 1000:
            return f"{value:,}"
        return f"{value // GIB} GiB" if value >= GIB else f"{value // MIB} MiB"

    def parse(self, text: str) -> int:
        """A bound such as 64, 100k or 4G."""
        found = re.fullmatch(r"(\d+)([kMG]?)", text)
        if found is None:
            raise UserError(f"--most: '{text}' is no number such as 64, 100k or 4G", 2)
        return int(found[1]) * self.unit ** " kMG".index(found[2] or " ")


@dataclass(frozen=True)
class Load:
    """One bench program on an axis: its arguments, and the bytes it needs, at a value."""

    name: str
    axis: Axis
    title: str
    program: str
    arguments: Callable[[int], tuple[int, ...]]
    needed_bytes: Callable[[int], int]
    pinned: bool


@dataclass(frozen=True)
class Point:
    load: Load
    value: int

    @property
    def name(self) -> str:
        return f"{self.load.name}-{self.value}"

    @property
    def text(self) -> str:
        return self.load.axis.text(self.value)

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(map(str, self.load.arguments(self.value)))

    @property
    def needed_bytes(self) -> int:
        return self.load.needed_bytes(self.value)


THREADS = Axis("threads", "threads", (1, 2, 4, 8, 16, 64, 256))
HEAP = Axis("heap", "live heap", (MIB, 8 * MIB, 64 * MIB, 512 * MIB, 4 * GIB, 8 * GIB), 1024)
BLOCKS = Axis("blocks", "live blocks", (10, 1000, 100_000, 10**6, 10**7, 10**8))
AXES = {axis.name: axis for axis in (THREADS, HEAP, BLOCKS)}

# Blocks that each thread keeps. Shared out from one number for all they would make more threads
# look cheaper, as each one's blocks fit its cache better.
OWN_SLOTS = 250
THREAD_STEPS = 5_120_000
# A worker of larson hands over after so many: as many workers in all at every number of threads.
LARSON_ROUND = 10_000
CROSS_STEPS = 2_000_000
CROSS_SLOTS = 2000
PRODCONS_BLOCKS = 4_000_000
BLOCK_BYTES = 64
SMALL_MIN_BYTES, SMALL_MAX_BYTES = 16, 1039
# Random mixed: the mean block, and half of the slots are full once each was picked a few times.
MIXED_MEAN_BYTES = (SMALL_MIN_BYTES + SMALL_MAX_BYTES) / 2
MIXED_STEPS = 5_000_000
MIXED_FILLED_AFTER = 2
BULK_STEPS = 5_000_000
BULK_MIN_BYTES, BULK_MAX_BYTES = 16, 64
SHUFFLED = 2
# What to have free for a live byte: headers, rounding to classes and blocks that do not fit.
OVERHEAD = 1.4
# An allocator's own parts, the stack and the own blocks of a thread.
THREAD_BYTES = 4 * MIB


def slots_for(live_bytes: int) -> int:
    return round(2 * live_bytes / MIXED_MEAN_BYTES)


def mixed_arguments(live_bytes: int) -> tuple[int, ...]:
    slots = slots_for(live_bytes)
    return max(MIXED_STEPS, MIXED_FILLED_AFTER * slots), slots


def bulk_arguments(blocks: int) -> tuple[int, ...]:
    rounds = max(1, BULK_STEPS // blocks)
    return blocks, SHUFFLED, BULK_MIN_BYTES, BULK_MAX_BYTES, rounds


def of_threads(live_bytes: float = 0) -> Callable[[int], int]:
    """What is needed for threads that share so many live bytes."""
    return lambda threads: round(OVERHEAD * live_bytes) + threads * THREAD_BYTES


LOADS = (
    Load(
        "larson",
        THREADS,
        "server churn, arrays handed to new threads, 8 to 1,000 B",
        "bench_larson",
        lambda n: (n, THREAD_STEPS // n, OWN_SLOTS, 8, 1000, LARSON_ROUND),
        of_threads(),
        pinned=False,
    ),
    Load(
        "cross",
        THREADS,
        "threads replace each other's blocks, 8 to 16,000 B",
        "bench_cross",
        lambda n: (n, CROSS_STEPS // n, CROSS_SLOTS),
        of_threads(CROSS_SLOTS * 8004),
        pinned=False,
    ),
    Load(
        "prodcons",
        THREADS,
        f"so many producers and as many consumers, {BLOCK_BYTES} B",
        "bench_prodcons",
        lambda n: (n, n, BLOCK_BYTES, PRODCONS_BLOCKS // n),
        lambda n: of_threads(PRODCONS_BLOCKS * BLOCK_BYTES)(2 * n),
        pinned=False,
    ),
    Load(
        "local",
        THREADS,
        f"threads replace blocks of their own, {SMALL_MIN_BYTES} to {SMALL_MAX_BYTES:,} B",
        "bench_mid_large_mt",
        lambda n: (n, THREAD_STEPS // n, SMALL_MIN_BYTES, SMALL_MAX_BYTES, OWN_SLOTS),
        of_threads(),
        pinned=False,
    ),
    Load(
        "mixed",
        HEAP,
        f"random malloc and free, {SMALL_MIN_BYTES} to {SMALL_MAX_BYTES:,} B",
        "bench_random_mixed",
        mixed_arguments,
        lambda live: round(OVERHEAD * live) + 8 * slots_for(live),
        pinned=True,
    ),
    Load(
        "bulk",
        BLOCKS,
        f"allocated, then freed shuffled, {BULK_MIN_BYTES} to {BULK_MAX_BYTES} B",
        "bench_bulk",
        bulk_arguments,
        lambda count: round(OVERHEAD * count * (BULK_MIN_BYTES + BULK_MAX_BYTES) / 2) + 12 * count,
        pinned=True,
    ),
)


def points_of(axes: Sequence[Axis], most: int | None = None) -> list[Point]:
    """The points of all loads on these axes, each load's in growing order."""
    found = [
        Point(load, value)
        for load in LOADS
        if load.axis in axes
        for value in load.axis.values
        if most is None or value <= most
    ]
    if not found:
        lowest = ", ".join(f"{axis.name} begins at {axis.text(axis.values[0])}" for axis in axes)
        raise UserError(f"--most: no point is so small ({lowest})", 2)
    return found
