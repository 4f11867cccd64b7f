"""What `hakmem scale` runs: loads whose work stays the same while one thing grows.

Every point of an axis does about the same number of operations, and on the axis of threads each
thread keeps the same number of blocks, few enough for the cache of its core: what an operation
costs more at a larger point comes from what has grown.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hakmem_lab.suite import WORK, Row

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Axis:
    """One thing that grows."""

    name: str
    title: str
    values: tuple[int, ...]
    is_bytes: bool = False

    def text(self, value: int) -> str:
        if not self.is_bytes:
            return f"{value:,}"
        return f"{value // GIB} GiB" if value >= GIB else f"{value // MIB} MiB"


@dataclass(frozen=True)
class Load:
    """One bench program on an axis: its arguments, its work and the bytes it needs, at a value."""

    name: str
    axis: Axis
    title: str
    program: str
    arguments: Callable[[int], tuple[int | str, ...]]
    work: Callable[[int], int]
    needed_bytes: Callable[[int], float]


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
    def needed_bytes(self) -> float:
        return self.load.needed_bytes(self.value)

    @property
    def row(self) -> Row:
        """As a row of a suite, with its work as it is."""
        title = f"{self.load.name}, {self.load.axis.title} {self.text}"
        arguments, work = self.load.arguments(self.value), self.load.work(self.value)
        cpu = "any" if self.load.axis is THREADS else "one"
        return Row(self.name, self.load.program, title, self.load.axis.name, arguments, work,
                   cpu=cpu)  # fmt: skip


THREADS = Axis("threads", "threads", (1, 2, 4, 8, 16, 64, 256))
HEAP = Axis("heap", "live heap", (MIB, 8 * MIB, 64 * MIB, 512 * MIB, 4 * GIB, 8 * GIB), True)
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


SMALL_TITLE = f"{SMALL_MIN_BYTES} to {SMALL_MAX_BYTES:,} B"
LOADS = (
    Load("larson", THREADS, "server churn, arrays handed to new threads, 8 to 1,000 B",
         "bench_larson", lambda n: (n, WORK, OWN_SLOTS, 8, 1000, LARSON_ROUND),
         lambda n: THREAD_STEPS // n, lambda n: n * THREAD_BYTES),
    Load("cross", THREADS, "threads replace each other's blocks, 8 to 16,000 B",
         "bench_cross", lambda n: (n, WORK, CROSS_SLOTS), lambda n: CROSS_STEPS // n,
         lambda n: n * THREAD_BYTES + OVERHEAD * CROSS_SLOTS * 8004),
    Load("prodcons", THREADS, f"so many producers and as many consumers, {BLOCK_BYTES} B",
         "bench_prodcons", lambda n: (n, n, BLOCK_BYTES, WORK), lambda n: PRODCONS_BLOCKS // n,
         lambda n: 2 * n * THREAD_BYTES + OVERHEAD * PRODCONS_BLOCKS * BLOCK_BYTES),
    Load("local", THREADS, f"threads replace blocks of their own, {SMALL_TITLE}",
         "bench_mid_large_mt", lambda n: (n, WORK, SMALL_MIN_BYTES, SMALL_MAX_BYTES, OWN_SLOTS),
         lambda n: THREAD_STEPS // n, lambda n: n * THREAD_BYTES),
    Load("mixed", HEAP, f"random malloc and free, {SMALL_TITLE}",
         "bench_random_mixed", lambda live: (WORK, slots_for(live)),
         lambda live: max(MIXED_STEPS, MIXED_FILLED_AFTER * slots_for(live)),
         lambda live: OVERHEAD * live + 8 * slots_for(live)),
    Load("bulk", BLOCKS, f"allocated, then freed shuffled, {BULK_MIN_BYTES} to {BULK_MAX_BYTES} B",
         "bench_bulk", lambda count: (count, SHUFFLED, BULK_MIN_BYTES, BULK_MAX_BYTES, WORK),
         lambda count: max(1, BULK_STEPS // count),
         lambda count: count * (OVERHEAD * (BULK_MIN_BYTES + BULK_MAX_BYTES) / 2 + 12)),
)  # fmt: skip


def points_of(axes: Sequence[Axis]) -> list[Point]:
    """The points of all loads on these axes, each load's in growing order."""
    return [Point(load, value) for load in LOADS if load.axis in axes for value in load.axis.values]
