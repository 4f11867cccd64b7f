"""A program that takes this process: its number, its parent, its terminal and its signals are those
of the command that was typed, and nothing of Python stays in it.

Whether hakmem serves it is seen by an observer, a process of its own session whose parent is not
the program: a program may wait for any child of its own. It is gone some seconds after the answer.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NoReturn

from hakmem.errors import NOT_STARTED
from hakmem.plain_text import printable
from hakmem.running import programs
from hakmem.running.witness import (
    LOOK_EACH_MOST_S,
    LOOK_EACH_S,
    PTRACE_EVENT_EXIT,
    TRACED_S,
    WAIT_ALL,
    Counter,
    Ended,
    Sight,
    Tracer,
)

PR_SET_PTRACER = 0x59616D61
# From the last program on that was seen: a start script may become another one.
FOLLOWED_S = 10.0
Report = Callable[[Ended], None]


def become(
    command: Sequence[str],
    environment: Mapping[str, str],
    library: Path | None,
    report: Report,
    stdin: Path | None = None,
) -> NoReturn:
    """The process is the program from here on. Without a library nobody looks, and nothing is
    traced: a traced setuid program would run without its rights."""
    words = programs.arguments_of(command)
    failed = observed(library, report) if library is not None else -1
    try:
        if stdin is not None:
            os.dup2(os.open(stdin, os.O_RDONLY), 0)
        # Python ignores these; a program expects to find them as they were.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.execvpe(words[0], words, dict(environment))
    except OSError as error:
        if failed >= 0:
            os.write(failed, b".")
        told = f"hakmem: cannot start '{printable(command[0])}': {error.strerror}"
        print(told, file=sys.stderr, flush=True)
    os._exit(NOT_STARTED)


def observed(library: Path, report: Report) -> int:
    """Starts the observer. A descriptor to tell it by that there will be no program; it is closed
    where there is one."""
    pid = os.getpid()
    (told, tell), (permitted, permit), (failed, fail) = os.pipe(), os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.fork() == 0:
                for descriptor in (told, permit, fail):
                    os.close(descriptor)
                begin_observing()
                observe(pid, library, report, tell, permitted, failed)
        finally:
            os._exit(0)
    for descriptor in (tell, permitted, failed):
        os.close(descriptor)
    os.waitpid(child, 0)
    # Where it may trace and read its children alone (kernel.yama.ptrace_scope).
    with suppress(ValueError):
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(int(os.read(told, 20))), 0, 0, 0)
    os.close(permit)
    # Until it traces: a program may end within a millisecond.
    os.read(told, 1)
    os.close(told)
    return fail


def begin_observing() -> None:
    """What it keeps of the terminal is a place for one line."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)


def observe(
    pid: int, library: Path, report: Report, tell: int, permitted: int, failed: int
) -> None:
    os.write(tell, b"%-20d" % os.getpid())
    os.read(permitted, 1)
    counter = Counter(library)
    with os.fdopen(os.pidfd_open(pid), "rb", buffering=0) as until_end:
        tracer = Tracer(pid) if counter.offset is not None else None
        os.close(tell)
        # Closed by the exec; a byte where that failed.
        if os.read(failed, 1):
            return
        if tracer is None:
            report(Ended(0, None, f"{library.name} has no symbols left", pid=pid))
        else:
            watch(pid, counter, tracer, until_end, report)


def watch(pid: int, counter: Counter, tracer: Tracer, until_end: BinaryIO, report: Report) -> None:
    """Until the answer is there and stays so: served, not loaded, or the end of the program."""
    sight, held = Sight(pid, counter), tracer.active
    pause, traced_until = LOOK_EACH_S, time.monotonic() + TRACED_S
    followed_until = time.monotonic() + FOLLOWED_S
    while True:
        now = time.monotonic()
        if tracer.active and (sight.served or now > traced_until):
            tracer.leave()
        if tracer.active:
            if is_over(pid, tracer, sight, held, report):
                return
        elif select.select([until_end], [], [], 0)[0]:
            return report(outcome(sight, held))
        if now > followed_until and not tracer.active and sight.served != 0:
            return report(outcome(sight, held))
        if sight.look():
            pause, followed_until = LOOK_EACH_S, time.monotonic() + FOLLOWED_S
        select.select([until_end], [], [], pause)
        pause = min(pause * 2, LOOK_EACH_S if tracer.active else LOOK_EACH_MOST_S)


def is_over(pid: int, tracer: Tracer, sight: Sight, held: bool, report: Report) -> bool:
    """Lets a traced process go on where it has stopped. At its end the answer is given before its
    parent knows of that end: the line comes before a shell's next prompt."""
    found, status = os.waitpid(pid, WAIT_ALL | (0 if tracer.stopping else os.WNOHANG))
    if not found:
        return False
    is_end = os.WIFSTOPPED(status) and status >> 16 == PTRACE_EVENT_EXIT
    if is_end:
        sight.look()
    if is_end or not os.WIFSTOPPED(status):
        report(outcome(sight, held))
    if os.WIFSTOPPED(status):
        tracer.go_on(status)
    return is_end or not os.WIFSTOPPED(status)


def outcome(sight: Sight, held: bool) -> Ended:
    unknown = "" if held or sight.served is not None else "it ended too soon"
    if sight.is_barred and sight.served is None:
        unknown = "its memory may not be read"
    return Ended(0, sight.served, unknown, sight.program, sight.pid)
