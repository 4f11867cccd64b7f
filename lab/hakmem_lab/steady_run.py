"""System calls of every suite load once it is warm: those of the second half of a long run.

hakmem's own counters tell which calls the allocator makes, read from its statistics page while the
program runs; without the page, what a long run makes beyond a short one.
"""

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hakmem.allocators.peers import Allocator, bench_program
from hakmem.errors import UserError
from hakmem.measuring.rotation import THROUGHPUT
from hakmem.processes import stats_page
from hakmem.running.launching import own_session

from hakmem_lab.suite import Row
from hakmem_lab.suite_session import round_work

BAR = 1e-8
OWN_COUNTERS = ("madvise", "mmap_total")
OWN_LINE = re.compile(r"\[SS_OS_STATS\] (.*)")
TIME = re.compile(r"time=([0-9.]+)s")
# Of the timed part, where a program is warm and has not begun to free everything.
LATE = (0.5, 0.98)
LOOK_S = 0.1
# A long run has at least so many times the work of the short one.
LEAST_TIMES = 2.0
# Beyond the time wanted: the machine may be slower by then.
SLACK = 10
GRACE_S = 120.0


@dataclass(frozen=True)
class Counted:
    """One run: its operations, its time, and the allocator's own calls.

    `late` are its own calls in the second half, where there is a statistics page.
    """

    operations: float
    seconds: float
    own: int
    late: int | None = None


@dataclass(frozen=True)
class Calls:
    """hakmem's own calls of a row once it is warm, or why they are not known."""

    row: str
    title: str
    operations: int = 0
    calls: int | None = None
    seconds: float = 0.0
    note: str = ""

    @property
    def rate(self) -> float | None:
        return None if self.calls is None else self.calls / self.operations

    @property
    def verdict(self) -> str:
        """A single call more says nothing about a short run."""
        if self.rate is None:
            return f"no figure: {self.note}"
        if self.rate < BAR:
            return "met"
        return "MISSED" if self.rate > 2 / self.operations else "undecided: too short"


def count_row(row: Row, hakmem: Allocator, seconds: float) -> Calls:
    """The row's own work first, then so much more that it takes the time."""
    try:
        short = count(row, row.work, hakmem, GRACE_S)
        times = max(LEAST_TIMES, seconds / max(short.seconds, 1e-3))
        limit_s = GRACE_S + SLACK * seconds
        long = count(row, round_work(row.work * times), hakmem, limit_s)
    except UserError as error:
        return Calls(row.name, row.title, note=error.message)
    return calls_of(row, short, long)


def calls_of(row: Row, short: Counted, long: Counted) -> Calls:
    """Those of the second half where they were seen, else what the long run makes beyond the short
    one; fewer calls in the long run are noise of the start."""
    operations, calls = long.operations * (LATE[1] - LATE[0]), long.late
    if calls is None:
        operations, calls = long.operations - short.operations, max(0, long.own - short.own)
    if operations < 1:
        return Calls(row.name, row.title, note="the long run did no more than the short one")
    return Calls(row.name, row.title, round(operations), calls, long.seconds)


def count(row: Row, work: int, hakmem: Allocator, limit_s: float) -> Counted:
    command = (str(bench_program(row.program)), *row.filled(work))
    settings = {**hakmem.settings, "HAKMEM_SS_OS_STATS": "1", "HAKMEM_STATS_PAGE": "1",
                "LD_PRELOAD": str(hakmem.library)}  # fmt: skip
    out, err, looks = run(command, settings, limit_s)
    rate, seconds, line = THROUGHPUT.search(out), TIME.search(out), OWN_LINE.search(err)
    if rate is None or seconds is None:
        raise UserError("its output has no throughput and time")
    if line is None:
        raise UserError("hakmem printed no counters: it did not serve the program")
    timed_s = float(seconds[1])
    own = own_calls(dict(word.split("=", 1) for word in line[1].split() if "=" in word))
    return Counted(float(rate[1]) * timed_s, timed_s, own, late_calls(looks, timed_s))


def own_calls(counters: Mapping[str, str | int]) -> int:
    return sum(int(counters[name]) for name in OWN_COUNTERS)


def late_calls(looks: Sequence[tuple[float, int]], timed_s: float) -> int | None:
    """Of looks (seconds since the start, calls so far), what came in the late part."""
    before = [calls for at, calls in looks if at <= LATE[0] * timed_s]
    within = [calls for at, calls in looks if LATE[0] * timed_s < at <= LATE[1] * timed_s]
    return within[-1] - before[-1] if before and within else None


def run(
    command: Sequence[str], settings: Mapping[str, str], limit_s: float
) -> tuple[str, str, list[tuple[float, int]]]:
    """Output, messages, and the allocator's calls so far at each look at its page."""
    begun = time.monotonic()
    looks: list[tuple[float, int]] = []
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with own_session(command, env={**os.environ, **settings}, text=True, **streams) as process:
        while True:
            with suppress(subprocess.TimeoutExpired):
                out, err = process.communicate(timeout=LOOK_S)
                break
            elapsed_s = time.monotonic() - begun
            if elapsed_s > limit_s:
                raise UserError(f"took longer than {limit_s:.0f} s")
            if (calls := look(process.pid)) is not None:
                looks.append((elapsed_s, calls))
    if process.returncode != 0:
        words = [line for line in err.strip().splitlines() if not OWN_LINE.match(line)]
        raise UserError(f"status {process.returncode}: {words[-1] if words else 'no message'}")
    return out, err, looks


def look(pid: int) -> int | None:
    """At the page of the program."""
    with suppress(UserError, OSError):
        return own_calls(stats_page.read(pid).figures["counters"])
    return None
