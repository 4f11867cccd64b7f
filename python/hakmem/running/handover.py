"""Signals of a program that is run in this one's place: from before its start they are its own.

A signal is lost to nobody. Until the program's process is known it is kept, and then handed on; in
the process itself it waits until that has no handlers of Python left, which would end with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO

from hakmem.errors import NOT_STARTED, UserError
from hakmem.running import programs
from hakmem.running.threads import take_name

# A terminal sends these to the program too: then our part is to wait.
OF_TERMINALS = (signal.SIGINT, signal.SIGQUIT)
FORWARDED = (*OF_TERMINALS, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def is_in_foreground() -> bool:
    """Whether a terminal sends its signals to our process group, and so to the program."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


class Handover:
    """Keeps signals until `belong_to` names the process, and hands them on from then."""

    def __init__(self) -> None:
        self.pid = 0
        self.kept: list[int] = []
        self.name = ""
        # What whoever started us had ignored (nohup) stays ignored.
        wanted = [n for n in FORWARDED if signal.getsignal(n) != signal.SIG_IGN]
        # Behind a mask for the process to be, which inherits it; the handlers are for this one,
        # where another thread would take what one has masked.
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
        self.before = {n: signal.signal(n, self.handle) for n in wanted}

    def handle(self, number: int, _frame: object) -> None:
        if not self.pid:
            self.kept.append(number)
        elif number not in OF_TERMINALS or not is_in_foreground():
            self.send(number)

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def unmask(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def begin(self) -> None:
        """In the new process, before it becomes the program: a signal finds it as a program."""
        for number in self.before:
            signal.signal(number, signal.SIG_DFL)
        self.unmask()

    def belong_to(self, pid: int) -> None:
        """What is kept is sent even if a terminal may have sent it too: that was before the
        process was there, or it found one that has not set up anything yet."""
        self.unmask()
        self.pid = pid
        self.name = take_name()
        for number in self.kept:
            self.send(number)

    def end(self) -> None:
        """All as before; what nobody was started for is for this process."""
        self.unmask()
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self.name:
            take_name(self.name)
        if self.kept and not self.pid:
            signal.raise_signal(self.kept[0])

    def popen(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        stdin: BinaryIO | None = None,
    ) -> subprocess.Popen:
        """Starts the program that the signals are for."""
        try:
            process = subprocess.Popen(
                programs.arguments_of(command),
                env=environment,
                stdin=stdin,
                preexec_fn=self.begin,
            )
        except OSError as error:
            why = f"cannot start '{command[0]}': {error.strerror}"
            raise UserError(why, NOT_STARTED) from error
        self.belong_to(process.pid)
        return process


@contextmanager
def handing_over() -> Iterator[Handover]:
    """Around the start of a program and all of its run."""
    handover = Handover()
    try:
        yield handover
    finally:
        handover.end()
