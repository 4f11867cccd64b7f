"""System calls of every suite load once it is warm: what a long run makes beyond a short one.

hakmem's own counters tell which calls the allocator makes; strace, where it may be used, tells
all there are: those of the program, of its threads' start and end, and of waiting for locks too.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hakmem_lab.errors import LabError
from hakmem_lab.peers import Allocator, bench_program
from hakmem_lab.rotation import THROUGHPUT
from hakmem_lab.suite import Row
from hakmem_lab.suite_plan import round_work
from hakmem_lab.syscalls import parse_summary

BAR = 1e-8
OWN_COUNTERS = ("madvise", "mmap_total")
OWN_LINE = re.compile(r"\[SS_OS_STATS\] (.*)")
TIME = re.compile(r"time=([0-9.]+)s")
# A long run has at least so many times the work of the short one.
LEAST_TIMES = 2.0
# Beyond the time wanted: the machine may be slower by then.
SLACK = 10
GRACE_S = 120.0


@dataclass(frozen=True)
class Counted:
    """One run: its operations, its time, the allocator's own calls, and all where strace ran."""

    operations: float
    seconds: float
    own: int
    total: int | None


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
    def verdict(self) -> str:
        """On the allocator's own calls; a single call more says nothing about a short run."""
        rate = self.per_operation("own")
        if rate is None or self.short is None or self.long is None:
            return f"no figure: {self.problem}"
        if rate < BAR:
            return "met"
        resolution = 1 / (self.long.operations - self.short.operations)
        return "MISSED" if rate > BAR and rate > 2 * resolution else "undecided: too short"


def count_row(row: Row, hakmem: Allocator, seconds: float, with_strace: bool) -> Steady:
    """The row's own work first, then so much more that it takes the time."""
    try:
        short = count(row, row.work, hakmem, GRACE_S, with_strace)
        times = max(LEAST_TIMES, seconds / max(short.seconds, 1e-3))
        limit_s = GRACE_S + SLACK * seconds
        long = count(row, round_work(row.work * times), hakmem, limit_s, with_strace)
    except LabError as error:
        return Steady(row, problem=error.message)
    return Steady(row, short, long)


def count(row: Row, work: int, hakmem: Allocator, limit_s: float, with_strace: bool) -> Counted:
    command = (str(bench_program(row.program)), *row.filled(work))
    settings = {**hakmem.settings, "HAKMEM_SS_OS_STATS": "1", "LD_PRELOAD": str(hakmem.library)}
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder) / "summary"
        out, err = run(traced(command, settings, summary if with_strace else None), settings
                       if not with_strace else {}, limit_s)  # fmt: skip
        total = parse_summary(summary.read_text()) if with_strace and summary.exists() else None
    rate, time, line = THROUGHPUT.search(out), TIME.search(out), OWN_LINE.search(err)
    if rate is None or time is None:
        raise LabError("its output has no throughput and time")
    if line is None:
        raise LabError("hakmem printed no counters: it did not serve the program")
    counters = dict(word.split("=", 1) for word in line[1].split() if "=" in word)
    own = sum(int(counters[name]) for name in OWN_COUNTERS)
    return Counted(float(rate[1]) * float(time[1]), float(time[1]), own, total)


def traced(
    command: Sequence[str], settings: Mapping[str, str], summary: Path | None
) -> tuple[str, ...]:
    """The command under strace, which gives the settings to the program alone."""
    if summary is None:
        return tuple(command)
    given = [part for name, value in settings.items() for part in ("-E", f"{name}={value}")]
    return ("strace", "-f", "-c", "-o", str(summary), *given, *command)


def run(command: Sequence[str], settings: Mapping[str, str], limit_s: float) -> tuple[str, str]:
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
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"took longer than {limit_s:.0f} s") from error
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode != 0:
        words = [line for line in err.strip().splitlines() if not OWN_LINE.match(line)]
        raise LabError(f"status {process.returncode}: {words[-1] if words else 'no message'}")
    return out, err


def strace_problem() -> str:
    """Why system calls cannot be counted here, or an empty string."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-c", "/bin/true"],
                           capture_output=True, text=True, check=False)  # fmt: skip
    return "" if tried.returncode == 0 else tried.stderr.strip().splitlines()[-1]
