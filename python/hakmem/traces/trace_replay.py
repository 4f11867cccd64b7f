"""Replays a trace under one allocator after the other, and reads what bench_replay prints."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hakmem.allocators.peers import Allocator, bench_program
from hakmem.measuring.rotation import Contender, contenders
from hakmem.running.launching import Outcome

TIME = re.compile(r"\btime=([0-9.]+)s")
FAULTS = re.compile(r"\bfaults=(\d+)")
HEAP_PEAK = re.compile(r"\bheap_peak_kb=(\d+)")
# Long enough that starting the threads does not matter, and short enough for a slice.
SLICE_S = 0.1
PASSES_MAX = 10_000


@dataclass(frozen=True)
class ReplayContender(Contender):
    """Memory and page faults are those of the replay, without its lists of operations."""

    def run(self, cpus: str | None = None) -> Outcome:
        return heap_only(super().run(cpus))


def heap_only(outcome: Outcome) -> Outcome:
    peak, faults = HEAP_PEAK.search(outcome.stdout), FAULTS.search(outcome.stdout)
    if outcome.problem or faults is None:
        return outcome
    if peak is None:
        return replace(outcome, start_error="the kernel does not tell its peak memory")
    return replace(outcome, peak_rss_kb=int(peak[1]), minor_faults=int(faults[1]), major_faults=0)


def replay_command(trace: Path, passes: int) -> list[str]:
    return [str(bench_program("bench_replay")), str(trace), str(passes)]


def replay_contenders(
    allocators: Sequence[Allocator], command: Sequence[str]
) -> list[ReplayContender]:
    return [
        ReplayContender(row.name, row.command, row.preload, row.settings)
        for row in contenders(allocators, command)
    ]


def enough_passes(outcome: Outcome) -> int:
    """How often the trace must be replayed for one slice, from a trial of one pass."""
    found = TIME.search(outcome.stdout)
    seconds = max(float(found[1]), 0.0005) if found else SLICE_S
    return min(PASSES_MAX, max(1, math.ceil(SLICE_S / seconds)))
