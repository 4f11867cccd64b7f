"""Runs one program under one allocator and reports what it cost.

Programs are started through the small launcher of bench/launch.c, never straight from here: Linux
carries the peak resident size of a forked process over exec, so a small program started from
Python would seem as large as Python.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hakmem import files
from hakmem.allocators.peers import bench_program
from hakmem.errors import NOT_FOUND, NOT_STARTED, REFUSED, UserError
from hakmem.plain_text import LAST_LINES, last_lines, with_last_words

# ld.so goes on without a library it cannot preload: the program would then run on glibc's malloc.
NOT_PRELOADED = re.compile(
    r"object '(?P<path>[^']*)' from LD_PRELOAD cannot be preloaded \((?P<why>[^)]*)\)"
)
# Enough for any result line; a chatty program does not fill memory.
OUTPUT_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """What one run of one program cost and said."""

    exit_status: int
    signal_number: int
    wall_s: float
    cpu_s: float
    peak_rss_kb: int
    minor_faults: int
    major_faults: int
    stdout: str
    stderr: str
    start_error: str = ""
    # Resident size of all its processes, where it was looked at while it ran.
    end_rss_kb: int | None = None
    idle_rss_kb: int | None = None
    # Why it was ended before its own end.
    too_late: str = ""
    # Why it does not count, whatever its end was.
    failure: str = ""

    @property
    def start_status(self) -> int:
        """Of a command whose program could not be started: interpreters of scripts are looked at
        before, so that what is missing is the program."""
        is_missing = self.start_error.endswith(f": {os.strerror(errno.ENOENT)}")
        return NOT_FOUND if is_missing else NOT_STARTED

    @property
    def preload_problem(self) -> str:
        found = NOT_PRELOADED.search(self.stderr)
        return f"not loaded: {found['why']}" if found else ""

    @property
    def problem(self) -> str:
        """Why this run does not count, or an empty string."""
        killed = f"killed by {signal_name(self.signal_number)}" if self.signal_number else ""
        ended = killed or (f"exit status {self.exit_status}" if self.exit_status else "")
        return self.start_error or self.too_late or self.preload_problem or self.failure or ended

    def last_words(self, lines: int = LAST_LINES) -> str:
        return last_lines(self.stderr, lines)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def launcher_path() -> Path:
    given = os.environ.get("HAKLAB_LAUNCH")
    return Path(given) if given else bench_program("launch")


def end_of(stream: BinaryIO) -> str:
    """The end of what a program wrote: results and error messages come last."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - OUTPUT_LIMIT_BYTES))
    return stream.read().decode(errors="replace")


@contextmanager
def input_of(path: Path | None) -> Iterator[BinaryIO | None]:
    """A program's input from its start; None is our own."""
    if path is None:
        yield None
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", 2) from error
    with file:
        yield file


@dataclass(frozen=True)
class Start:
    """A command line, and how it is run: with `preload` and `settings` in its environment alone.

    With `idle_s` its memory is looked at meanwhile: see bench/launch.c. Above a `limit_s` that is
    not 0 it is ended, and did not work.
    """

    command: Sequence[str]
    preload: Path | None = None
    cpus: str | None = None
    settings: Mapping[str, str] | None = None
    idle_s: float = 0.0
    limit_s: float = 0.0


def launcher_arguments(report: int, start: Start) -> list[str]:
    """The command line that starts a program and writes its cost to the descriptor `report`."""
    arguments = [str(launcher_path()), "--fd", str(report)]
    if start.cpus:
        arguments += ["--cpu", start.cpus]
    if start.preload is not None:
        arguments += ["--preload", str(start.preload)]
    if start.idle_s:
        arguments += ["--idle", str(max(1, round(start.idle_s * 1000)))]
    for name, value in (start.settings or {}).items():
        arguments += ["--env", f"{name}={value}"]
    return [*arguments, "--", *start.command]


@contextmanager
def own_session(
    command: Sequence[str], number: int = signal.SIGKILL, **how: object
) -> Iterator[subprocess.Popen]:
    """A process in a session of its own, which Ctrl-C does not reach; what still runs at the end
    of the block is ended by a signal."""
    process = subprocess.Popen(command, start_new_session=True, **how)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, number)
            reap(process)


def reap(process: subprocess.Popen) -> None:
    """Waits for a process that has been told to end. Not by its wait(): what a signal raises in the
    middle of one can leave its lock taken for good."""
    if process.returncode is None:
        with suppress(ChildProcessError):
            process.returncode = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])


def run_once(command: Sequence[str], *how, **named) -> Outcome:
    """The program of a Start with these fields, with empty input."""
    return run(Start(command, *how, **named))


def run(start: Start, stdin: Path | None = None) -> Outcome:
    """Runs a program to its end; its input is the file `stdin`, read from its start, or empty."""
    command, limit_s = start.command, start.limit_s
    report_read, report_write = os.pipe()
    arguments = launcher_arguments(report_write, start)
    with (
        os.fdopen(report_read, encoding="ascii") as report,
        files.scratch_file() as out,
        files.scratch_file() as err,
        input_of(stdin or Path(os.devnull)) as given,
    ):
        try:
            launcher = subprocess.Popen(
                arguments,
                stdin=given,
                stdout=out,
                stderr=err,
                pass_fds=[report_write],
            )
            in_time = wait_or_end(launcher, limit_s)
        finally:
            os.close(report_write)
        text = report.read()
        stdout, stderr = end_of(out), end_of(err)
    too_late = "" if in_time else f"did not end within {limit_s:g} s"
    if not text and too_late:
        # The launcher itself was ended, before it had started anything.
        return Outcome(0, 0, 0.0, 0.0, 0, 0, 0, stdout, stderr, too_late=too_late)
    if not text:
        raise UserError(no_report(launcher, command, stderr), REFUSED)
    cost = json.loads(text)
    return Outcome(
        exit_status=max(cost["exit"], 0),
        signal_number=cost["signal"],
        wall_s=cost["wall_ns"] / 1e9,
        stdout=stdout,
        stderr=stderr,
        start_error=_start_error(cost, command, start.cpus),
        too_late=too_late,
        **costs_of(cost),
    )


def no_report(launcher: subprocess.Popen, command: Sequence[str], said: str) -> str:
    """What became of a run whose launcher has not told what it cost."""
    status = launcher.returncode
    how = f"was killed by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
    told = (
        f"{launcher_path()}, which starts each run, {how} and did not tell what the run of "
        f"'{command[0]}' cost: this run is lost"
    )
    advice = "HAKLAB_LAUNCH names it" if os.environ.get("HAKLAB_LAUNCH") else "try again"
    return with_last_words(f"{told} ({advice})", said)


def costs_of(report: Mapping[str, int]) -> dict:
    """What the launcher reports, by the names of an Outcome."""
    seen = {name: report.get(name, -1) for name in ("end_rss_kb", "idle_rss_kb")}
    return {
        "cpu_s": (report["user_us"] + report["system_us"]) / 1e6,
        **{name: report[name] for name in ("peak_rss_kb", "minor_faults", "major_faults")},
        **{name: kb if kb >= 0 else None for name, kb in seen.items()},
    }


def wait_or_end(launcher: subprocess.Popen, limit_s: float) -> bool:
    """Waits for the launcher; where it is interrupted or too late, it ends the program first.

    False when the time was over.
    """
    try:
        launcher.wait(limit_s or None)
    except BaseException as error:
        launcher.terminate()
        reap(launcher)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return False
    return True


def _start_error(cost: Mapping[str, int], command: Sequence[str], cpus: str | None) -> str:
    if cost["cpu_errno"]:
        return f"cannot pin to CPU {cpus}: {os.strerror(cost['cpu_errno'])}"
    if cost["exec_errno"]:
        return f"cannot start '{command[0]}': {os.strerror(cost['exec_errno'])}"
    return ""


# Of a run under strace.
TIME_LIMIT_S = 30


@dataclass(frozen=True)
class SystemCalls:
    """A count, or why there is none."""

    total: int | None
    note: str = ""

    def __str__(self) -> str:
        return "n/a" if self.total is None else f"{self.total:,}"


def parse_summary(text: str) -> int | None:
    """Sums the calls column of `strace -c`; the errors column may be empty."""
    total = None
    for line in text.splitlines():
        words = line.split()
        is_row = len(words) in (5, 6) and words[0].replace(".", "").isdigit()
        if is_row and words[-1] != "total" and words[3].isdigit():
            total = (total or 0) + int(words[3])
    return total


def count_system_calls(
    command: Sequence[str],
    preload: Path | None,
    settings: Mapping[str, str] | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    stdin: Path | None = None,
) -> SystemCalls:
    strace = shutil.which("strace")
    if strace is None:
        return SystemCalls(None, "strace is not installed")
    environment = dict(settings or {})
    if preload is not None:
        environment["LD_PRELOAD"] = str(preload)
    with files.scratch_folder() as folder, input_of(stdin or Path(os.devnull)) as given:
        out = Path(folder) / "summary"
        arguments = [strace, "-f", "-c", "-o", str(out)]
        for name, value in environment.items():
            arguments += ["-E", f"{name}={value}"]
        streams = {"stdin": given, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        with own_session([*arguments, *command], **streams) as process:
            try:
                _, errors = process.communicate(timeout=time_limit_s)
            except subprocess.TimeoutExpired:
                return SystemCalls(None, f"took longer than {time_limit_s:g} s under strace")
        total = parse_summary(out.read_text()) if out.exists() else None
    if total is None:
        words = errors.decode(errors="replace").strip().splitlines()
        return SystemCalls(None, f"strace counted nothing: {words[0] if words else 'no message'}")
    return SystemCalls(total)
