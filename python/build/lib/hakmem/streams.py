"""Our own output where it cannot be written: a full disk, a terminal or a reader that has gone.

A command goes on, so that its files are written and the program that it runs keeps its exit status;
at its end one line tells of what was lost. Nobody is told of a pipe whose reader has gone: that is
how `| head` works.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

LOST = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE)


class Lasting(io.RawIOBase):
    """A descriptor whose first failure is kept, and that takes everything from then on."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor
        self.failure: OSError | None = None
        # Whether what is lost shows in the exit status.
        self.counts = descriptor == 1

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.descriptor

    def isatty(self) -> bool:
        return os.isatty(self.descriptor)

    def write(self, data) -> int:
        if self.failure is None:
            try:
                return os.write(self.descriptor, data)
            except OSError as error:
                if error.errno not in LOST:
                    raise
                self.failure = error
        return len(data)


def open_standard() -> None:
    """Makes all three there: whoever started us may have closed them, and the next file that is
    opened would be the output. What stands for them cannot be written, as before: what is lost is
    told, and a program that is started finds it so."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, which is this one.
            os.open(os.devnull, os.O_RDONLY)


def lasting(stream: TextIO | None, number: int) -> tuple[TextIO, Lasting | None]:
    """The stream again where it is not the process's own, as under a test."""
    with suppress(OSError, ValueError, AttributeError):
        if stream is None or stream.fileno() == number:
            if stream is not None:
                stream.flush()
            raw = Lasting(number)
            text = io.TextIOWrapper(
                io.BufferedWriter(raw),
                encoding=stream.encoding if stream is not None else "utf-8",
                # A file's name need not be text, and a terminal need not know our signs.
                errors="backslashreplace",
                line_buffering=number == 2 or raw.isatty(),
                write_through=number == 2,
            )
            return text, raw
    return stream, None


@contextmanager
def lasting_output() -> Iterator[None]:
    """What was asked for and is lost shows in the exit status at the end, unless that is not 0
    anyway."""
    open_standard()
    before = sys.stdout, sys.stderr
    sys.stdout, out = lasting(sys.stdout, 1)
    sys.stderr, err = lasting(sys.stderr, 2)
    status: object = 0
    try:
        try:
            yield
        except SystemExit as end:
            status = end.code
        sys.stdout.flush()
        if out is not None and out.failure is not None and out.failure.errno != errno.EPIPE:
            why = "it is closed" if out.failure.errno == errno.EBADF else out.failure.strerror
            print(f"Error: cannot write the output: {why}", file=sys.stderr, flush=True)
        if any(raw is not None and raw.counts and raw.failure for raw in (out, err)):
            status = status or 1
    finally:
        if out is not None:
            # What a wrapper holds would be written once more when it is forgotten.
            with suppress(OSError):
                sys.stdout.detach()
        sys.stdout, sys.stderr = before
    raise SystemExit(status)


def is_lost(stream: TextIO) -> bool:
    """Whether what was written to one of the wrapped streams has not arrived."""
    with suppress(OSError, ValueError):
        stream.flush()
    raw = raw_of(stream)
    return raw is not None and raw.failure is not None


def raw_of(stream: TextIO) -> Lasting | None:
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, Lasting) else None


def report_stream() -> TextIO:
    """stderr for what was asked for, where stdout is the program's: what is lost of it counts."""
    if (raw := raw_of(sys.stderr)) is not None:
        raw.counts = True
    return sys.stderr
