"""Ctrl-C, SIGTERM and SIGHUP in a command: the first one counts, the rest must not hurt."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def be_raised() -> None:
    """From here on they are raised as KeyboardInterrupt: what runs can clean up.

    Until then they may end the process at once (hakmem/__main__.py)."""
    for number in NUMBERS:
        # Whoever started us in the background may have had it ignored: so it stays.
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


@contextmanager
def put_back() -> Iterator[None]:
    """What is raised within is as it was before, behind it."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held() -> Iterator[None]:
    """What belongs together is done whole: a signal that arrives within is raised behind it.

    By handlers and not by a mask: another thread would take what this one has masked."""
    caught: list[int] = []
    with put_back():
        for number in NUMBERS:
            if callable(signal.getsignal(number)):
                signal.signal(number, lambda number, _frame: caught.append(number))
        yield
    if caught:
        signal.raise_signal(caught[0])


def ignore() -> None:
    """From here on the command comes to its end, with all files written, whatever arrives."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def call(stop: Callable[[], object]) -> None:
    """From here on they call that; what is ignored (nohup) stays so."""
    for number in NUMBERS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: stop())


@contextmanager
def only_once() -> Iterator[None]:
    """The first signal raises KeyboardInterrupt; further ones cannot break the cleaning up."""

    def stop() -> None:
        ignore()
        raise KeyboardInterrupt

    with put_back():
        call(stop)
        yield
