"""Starts a program with our own terminal, files and signals, and sees whether hakmem served it.

hakmem's counter is read from the program's memory, so that nothing is printed and the program's
files stay what they are. Most programs have allocated within a millisecond. For one that ends
before a look, ptrace holds it at its end for one; that stops with the first counter seen, or
after a second. From then on only the name of the program's file is read, four times a second: a
start script may become another program.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import BinaryIO

from hakmem.elf_files import elf_file
from hakmem.plain_text import printable
from hakmem.running import interruption, programs
from hakmem.running.handover import handing_over
from hakmem.running.launching import Outcome, Start, run
from hakmem.running.process_words import MAPS_MOST, lines_of
from hakmem.running.threads import program_of, seen_by

# From <linux/ptrace.h>.
PTRACE_CONT, PTRACE_DETACH = 7, 17
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_LISTEN = 0x4206, 0x4207, 0x4208
PTRACE_O_TRACEEXIT = 0x40
PTRACE_EVENT_EXIT, PTRACE_EVENT_STOP = 6, 128
WAIT_ALL = 0x40000000

TRACED_S = 1.0
LOOK_EACH_S, LOOK_EACH_MOST_S = 0.001, 0.25
PAGE_BYTES = os.sysconf("SC_PAGESIZE")
# The structure of counters begins with the spans and runs handed out.
COUNTER = "hak_os_stats"


@dataclass(frozen=True)
class Ended:
    """How a program ended, and hakmem's counter in it: None when it could not be read."""

    wait_status: int
    served: int | None
    why_unknown: str = ""
    # The file it ran at the last look: a start script may have become another program.
    program: str = ""
    pid: int = 0

    @property
    def exit_status(self) -> int:
        """As shells report it."""
        if os.WIFSIGNALED(self.wait_status):
            return 128 + os.WTERMSIG(self.wait_status)
        return os.WEXITSTATUS(self.wait_status)


class Counter:
    """Reads the counter of one library in other processes."""

    def __init__(self, library: Path) -> None:
        self.library = library.resolve()
        self.offset = counter_offset(self.library)

    def read(self, pid: int) -> int | None:
        """None for a process without the library, or that cannot be read (any more)."""
        try:
            pid = seen_by(pid)
            own = [
                line.split(maxsplit=5)
                for line in lines_of(pid, "maps", MAPS_MOST)
                if line.endswith(f" {self.library}")
            ]
            ranges = [[int(end, 16) for end in fields[0].split("-")] for fields in own]
            address = ranges[0][0] + self.offset
            # The loader maps the whole file to begin with, and its data over that.
            if not any(
                low <= address < high and fields[1].startswith("rw")
                for (low, high), fields in zip(ranges, own)
            ):
                return None
            with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
                memory.seek(address)
                return struct.unpack("<Q", memory.read(8))[0]
        except (OSError, IndexError, struct.error):
            return None


def counter_offset(library: Path) -> int | None:
    """Where the counter lies from the start of a library, or a program that holds hakmem; None in a
    stripped one."""
    try:
        with elf_file(library) as elf:
            table = elf.get_section_by_name(".symtab")
            found = table.get_symbol_by_name(COUNTER) if table else None
            # A program of a fixed address has that in its symbols, a library or PIE has 0.
            lowest = min((s["p_vaddr"] for s in elf.iter_segments("PT_LOAD")), default=0)
            return found[0]["st_value"] - lowest // PAGE_BYTES * PAGE_BYTES if found else None
    except OSError:
        return None


class Tracer:
    """Holds a process at its end. Everything is asked for by the thread that began it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self.libc.ptrace.restype = ctypes.c_long
        self.active = self._ask(PTRACE_SEIZE, PTRACE_O_TRACEEXIT)
        self.leaving = False

    def _ask(self, request: int, data: int = 0) -> bool:
        return self.libc.ptrace(request, self.pid, None, data) == 0

    @property
    def stopping(self) -> bool:
        """A stop has been asked for and is on its way."""
        return self.active and self.leaving

    def leave(self) -> None:
        """The process is let go at its next stop, which is now."""
        if not self.leaving:
            self.leaving = True
            self.active = self._ask(PTRACE_INTERRUPT)

    def go_on(self, status: int) -> None:
        """Lets a stopped process run on as if nobody had looked."""
        event, number = status >> 16, os.WSTOPSIG(status)
        if self.leaving:
            # An event carries no signal to hand on; a stop of the group outlives the tracing.
            self._ask(PTRACE_DETACH, 0 if event else number)
            self.active = False
        elif event == PTRACE_EVENT_STOP and number != signal.SIGTRAP:
            self._ask(PTRACE_LISTEN)
        else:
            self._ask(PTRACE_CONT, 0 if event else number)


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    quiet: bool = False,
    stdin: Path | None = None,
    begin: Callable[[], None] = lambda: None,
) -> tuple[int, int]:
    """The new process, and a descriptor: once it is closed the process becomes the program.

    A quiet one has a session of its own, and nothing to write to, or to read from but `stdin`.
    It does `begin` first.
    """
    words = programs.arguments_of(command)
    held, release = os.pipe()
    pid = os.fork()
    if pid:
        os.close(held)
        return pid, release
    try:
        begin()
        os.close(release)
        if quiet:
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                os.dup2(nothing, descriptor)
        if stdin is not None:
            os.dup2(os.open(stdin, os.O_RDONLY), 0)
        # Python ignores these; a program expects to find them as they were.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.read(held, 1)
        os.close(held)
        os.execvpe(words[0], words, dict(environment))
    except OSError as error:
        name = printable(command[0])
        print(f"hakmem: cannot start '{name}': {error.strerror}", file=sys.stderr)
    finally:
        os._exit(126)


def run_watched(
    command: Sequence[str],
    environment: Mapping[str, str],
    library: Path,
    look: bool = True,
    stdin: Path | None = None,
) -> Ended:
    """Runs a program to its end, as `env` would, and looks at hakmem's counter meanwhile.

    Without a look nothing is traced: a traced setuid program would run without its rights.
    """
    with handing_over() as signals:
        pid, release = start(command, environment, stdin=stdin, begin=signals.begin)
        signals.belong_to(pid)
        if look:
            return let_go(pid, release, library)
        os.close(release)
        return Ended(os.waitpid(pid, 0)[1], None, "not looked", pid=pid)


def run_for_proof(
    command: Sequence[str],
    environment: Mapping[str, str],
    library: Path,
    stdin: Path | None = None,
    limit_s: float = 0.0,
) -> Ended:
    """The same for a run that is only to show whether hakmem serves; an interrupt ends it, and
    `limit_s` above 0."""
    pid, timer = 0, None
    try:
        with interruption.held():
            pid, release = start(command, environment, quiet=True, stdin=stdin)
        timer = Timer(limit_s, end_session, (pid,))
        if limit_s:
            timer.start()
        return let_go(pid, release, library)
    except BaseException:
        if not pid:
            raise
        end_session(pid)
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, WAIT_ALL)
        raise
    finally:
        if timer:
            timer.cancel()


def end_session(pid: int) -> None:
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def let_go(pid: int, release: int, library: Path) -> Ended:
    """Lets a started process become its program, and watches that to its end."""
    counter = Counter(library)
    if counter.offset is None:
        os.close(release)
        why = f"{library.name} has no symbols left"
        return Ended(os.waitpid(pid, 0)[1], None, why, pid=pid)
    with os.fdopen(os.pidfd_open(pid), "rb", buffering=0) as until_end:
        tracer = Tracer(pid)
        os.close(release)
        return watch(pid, counter, tracer, until_end)


@dataclass
class Sight:
    """What the looks have shown: the counter, and the program it was seen in."""

    pid: int
    counter: Counter
    program: str = ""
    served: int | None = None
    # As where its file may be run and not read.
    is_barred: bool = False

    def look(self) -> bool:
        """Looks where there is something new to see; True when it is another program by now."""
        try:
            now = program_of(self.pid)
        except PermissionError:
            self.is_barred = True
            return False
        is_new = bool(now) and now != self.program
        if is_new:
            self.program, self.served, self.is_barred = now, None, False
        if not self.served:
            found = self.counter.read(self.pid)
            self.served = self.served if found is None else found
        return is_new


def watch(pid: int, counter: Counter, tracer: Tracer, until_end: BinaryIO) -> Ended:
    """Waits for the end; looks until the counter is not zero, and again in what it execs."""
    sight, held = Sight(pid, counter), tracer.active
    pause, traced_until = LOOK_EACH_S, time.monotonic() + TRACED_S
    while True:
        if tracer.active and (sight.served or time.monotonic() > traced_until):
            tracer.leave()
        found, status = os.waitpid(pid, WAIT_ALL | (0 if tracer.stopping else os.WNOHANG))
        if found and os.WIFSTOPPED(status):
            if status >> 16 == PTRACE_EVENT_EXIT:
                sight.look()
            tracer.go_on(status)
        elif found:
            unknown = "" if held or sight.served is not None else "it ended too soon"
            if sight.is_barred and sight.served is None:
                unknown = "its memory may not be read"
            return Ended(status, sight.served, unknown, sight.program, pid)
        else:
            if sight.look():
                pause = LOOK_EACH_S
            select.select([until_end], [], [], pause)
            pause = min(pause * 2, LOOK_EACH_S if tracer.active else LOOK_EACH_MOST_S)


@dataclass(frozen=True)
class Runner:
    """Runs a program to its end; its input is a file, read anew by each run, or empty."""

    stdin: Path | None = None

    def run(self, start: Start) -> Outcome:
        return run(start, self.stdin)

    def run_counted(self, start: Start) -> tuple[Outcome, tuple[int, int] | None]:
        """A run under hakmem, and its counter in memory with the processes that were read, where
        the program lives long enough to be looked at."""
        return self.run(start), None

    def spans_seen(self, start: Start) -> int | None:
        """hakmem's counter, read from the program's memory in a run of its own."""
        environment = {**os.environ, **(start.settings or {}), "LD_PRELOAD": str(start.preload)}
        command, library = start.command, start.preload
        return run_for_proof(command, environment, library, self.stdin, start.limit_s).served


BY_ITSELF = Runner()
