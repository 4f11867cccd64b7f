"""System calls of every suite load once it is warm: those of the second half of a long run.

hakmem's own counters tell which calls the allocator makes, read from its statistics page while the
program runs. What a long run makes beyond a short one is shown beside them, and with strace, where
it may be used, all calls: those of the program, its threads, and of waiting for locks too.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hakmem.allocators.peers import Allocator, bench_program
from hakmem.errors import UserError
from hakmem.measuring.rotation import THROUGHPUT
from hakmem.processes import stats_page
from hakmem.running.syscalls import parse_summary

from hakmem_lab.suite import Row
from hakmem_lab.suite_plan import round_work

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
    """One run: its operations, its time, the allocator's own calls, and all where strace ran.

    `late` are its own calls in the second half, where there is a statistics page.
    """

    operations: float
    seconds: float
    own: int
    total: int | None
    late: int | None = None


@dataclass(frozen=True)
class Steady:
    """A row's two runs, or why there are none."""

    row: Row
    short: Counted | None = None
    long: Counted | None = None
    problem: str = ""

    def per_operation(self, name: str) -> float | None:
        """Calls of an operation more; fewer calls in the long run are noise of the start."""
        if self.short is None or self.long is None:
            return None
        before, after = getattr(self.short, name), getattr(self.long, name)
        operations = self.long.operations - self.short.operations
        if before is None or after is None or operations <= 0:
            return None
        return max(0, after - before) / operations

    @property
    def late_per_operation(self) -> float | None:
        if self.long is None or self.long.late is None or self.long.operations <= 0:
            return None
        return self.long.late / (self.long.operations * (LATE[1] - LATE[0]))

    @property
    def verdict(self) -> str:
        """On the allocator's own calls; a single call more says nothing about a short run."""
        rate, more = self.late_per_operation, self.per_operation("own")
        if more is None or self.short is None or self.long is None:
            return f"no figure: {self.problem}"
        operations = self.long.operations * (LATE[1] - LATE[0])
        if rate is None:
            rate, operations = more, self.long.operations - self.short.operations
        if rate < BAR:
            return "met"
        return "MISSED" if rate > 2 / operations else "undecided: too short"


@dataclass(frozen=True)
class Calls:
    """hakmem's own calls of a row once it is warm, or why they are not known."""

    row: str
    title: str
    operations: int = 0
    calls: int | None = None
    note: str = ""

    @property
    def rate(self) -> float | None:
        return None if self.calls is None else self.calls / self.operations


def calls_of(one: Steady) -> Calls:
    if one.short is None or one.long is None:
        return Calls(one.row.name, one.row.title, note=one.problem)
    operations = one.long.operations * (LATE[1] - LATE[0])
    calls = one.long.late
    if calls is None:
        operations = one.long.operations - one.short.operations
        calls = max(0, one.long.own - one.short.own)
    return Calls(one.row.name, one.row.title, round(operations), calls)


def count_row(row: Row, hakmem: Allocator, seconds: float, with_strace: bool) -> Steady:
    """The row's own work first, then so much more that it takes the time."""
    try:
        short = count(row, row.work, hakmem, GRACE_S, with_strace)
        times = max(LEAST_TIMES, seconds / max(short.seconds, 1e-3))
        limit_s = GRACE_S + SLACK * seconds
        long = count(row, round_work(row.work * times), hakmem, limit_s, with_strace)
    except UserError as error:
        return Steady(row, problem=error.message)
    return Steady(row, short, long)


def count(row: Row, work: int, hakmem: Allocator, limit_s: float, with_strace: bool) -> Counted:
    command = (str(bench_program(row.program)), *row.filled(work))
    settings = {**hakmem.settings, "HAKMEM_SS_OS_STATS": "1", "HAKMEM_STATS_PAGE": "1",
                "LD_PRELOAD": str(hakmem.library)}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder) / "summary"
        out, err, looks = run(traced(command, settings, summary if with_strace else None),
                              settings if not with_strace else {}, limit_s)  # fmt: skip
        total = parse_summary(summary.read_text()) if with_strace and summary.exists() else None
    rate, seconds, line = THROUGHPUT.search(out), TIME.search(out), OWN_LINE.search(err)
    if rate is None or seconds is None:
        raise UserError("its output has no throughput and time")
    if line is None:
        raise UserError("hakmem printed no counters: it did not serve the program")
    timed_s = float(seconds[1])
    own = own_calls(dict(word.split("=", 1) for word in line[1].split() if "=" in word))
    return Counted(float(rate[1]) * timed_s, timed_s, own, total, late_calls(looks, timed_s))


def own_calls(counters: Mapping[str, str | int]) -> int:
    return sum(int(counters[name]) for name in OWN_COUNTERS)


def late_calls(looks: Sequence[tuple[float, int]], timed_s: float) -> int | None:
    """Of looks (seconds since the start, calls so far), what came in the late part."""
    before = [calls for at, calls in looks if at <= LATE[0] * timed_s]
    within = [calls for at, calls in looks if LATE[0] * timed_s < at <= LATE[1] * timed_s]
    return within[-1] - before[-1] if before and within else None


def traced(
    command: Sequence[str], settings: Mapping[str, str], summary: Path | None
) -> tuple[str, ...]:
    """The command under strace, which gives the settings to the program alone."""
    if summary is None:
        return tuple(command)
    given = [part for name, value in settings.items() for part in ("-E", f"{name}={value}")]
    return ("strace", "-f", "-c", "-o", str(summary), *given, *command)


def run(
    command: Sequence[str], settings: Mapping[str, str], limit_s: float
) -> tuple[str, str, list[tuple[float, int]]]:
    """Output, messages, and the allocator's calls so far at each look at its page."""
    begun = time.monotonic()
    looks: list[tuple[float, int]] = []
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **settings},
        start_new_session=True,
    )
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                out, err = process.communicate(timeout=LOOK_S)
                break
            elapsed_s = time.monotonic() - begun
            if elapsed_s > limit_s:
                raise UserError(f"took longer than {limit_s:.0f} s")
            if (calls := look(process.pid)) is not None:
                looks.append((elapsed_s, calls))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode != 0:
        words = [line for line in err.strip().splitlines() if not OWN_LINE.match(line)]
        raise UserError(f"status {process.returncode}: {words[-1] if words else 'no message'}")
    return out, err, looks


def look(pid: int) -> int | None:
    """At the page of the program, which is strace's child where that runs."""
    for number in (pid, *stats_page.children_with_pages(pid)):
        with suppress(UserError, OSError):
            return own_calls(stats_page.read(number).figures["counters"])
    return None


def strace_problem() -> str:
    """Why system calls cannot be counted here, or an empty string."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-c", "/bin/true"],
                           capture_output=True, text=True, check=False)  # fmt: skip
    return "" if tried.returncode == 0 else tried.stderr.strip().splitlines()[-1]
