"""Asks a running process for its heap profile, through the file in its memory that the library
answers in.

Whoever wakes the library's thread at the sequence number makes it write an answer: the number is
odd meanwhile, and then the next even one. The file is read and never written to, by any number of
readers. Any user can make such a file: what is read is bounded, and checked before it is used.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import select
import struct
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from hakmem.errors import UserError
from hakmem.plain_text import printable
from hakmem.processes.process_memory import plain_errors
from hakmem.processes.stats_page import (
    name_of,
    open_memory,
    page_file,
    require_running,
    why_absent,
)
from hakmem.profiles.heap_profile import BYTES_MOST, HeapProfile, parse
from hakmem.running.threads import is_stopped

NAME = "memfd:hakmem-profile"
MAGIC = b"hakmemP1"
# Magic, process, sequence, error, nothing, bytes of the answer.
HEADER = struct.Struct("<8sIIIIQ")
SEQUENCE_OFFSET, ANSWER_OFFSET = 12, 4096
# A wake is lost while the thread writes an answer: it is repeated.
PATIENCE_S, WAKE_EACH_S, PAUSE_S, ENDING_S = 30.0, 0.05, 0.002, 0.2
# A debugger may stop a process for a moment.
HALTED_S = 0.3
FUTEX_WAKE = 1
FUTEX_CALLS = {"x86_64": 202, "aarch64": 98}
OPTION = "HAKMEM_HEAP_PROFILE=1"


class NotProfiled(UserError):
    """The process runs without the profile."""


def ask(pid: int, patience_s: float = PATIENCE_S) -> HeapProfile:
    """The profile of a process as it is now; fails with one line that says why there is none."""
    until_end = end_of(pid)
    try:
        name, text = answer_of(pid, until_end, time.monotonic() + patience_s)
    finally:
        os.close(until_end)
    try:
        return parse(text)
    except ValueError as error:
        said = printable(str(error))
        raise UserError(f"process {pid} ({name}): its answer cannot be read: {said}") from error


def require_page(pid: int) -> None:
    """Fails where `ask` would for lack of a page."""
    until_end = end_of(pid)
    try:
        find_page(pid, until_end)
    finally:
        os.close(until_end)


def find_page(pid: int, until_end: int) -> tuple[str, Path]:
    """Its name, and its page."""
    with plain_errors(pid):
        name = name_of(pid)
        require_running(pid)
        path = page_file(pid, NAME, HEADER, 1)
    if path is None:
        require_running_on(pid, until_end)
        why = why_absent(pid, OPTION, "keeps no heap profile")
        raise NotProfiled(f"process {pid} ({name}) {why}")
    return name, path


def answer_of(pid: int, until_end: int, end: float) -> tuple[str, bytes]:
    """Its name, and the document."""
    name, path = find_page(pid, until_end)
    try:
        descriptor = open_page(pid, name, path)
    except UserError:
        require_running_on(pid, until_end)
        raise
    try:
        return name, Exchange(pid, name, descriptor, until_end).ask(end)
    finally:
        os.close(descriptor)


def end_of(pid: int) -> int:
    """A descriptor that can be read from once the process has ended."""
    try:
        with plain_errors(pid):
            return os.pidfd_open(pid)
    except (OSError, OverflowError) as error:
        # 0, or more than the kernel counts.
        raise UserError(f"there is no process {pid}") from error


def require_running_on(pid: int, until_end: int) -> None:
    """The files of a process that ends are gone before it: on a busy machine long before."""
    within_s = ENDING_S
    with suppress(OSError):
        within_s = ENDING_S if any(Path(f"/proc/{pid}/fd").iterdir()) else PATIENCE_S
    if has_ended(until_end, within_s):
        raise UserError(f"there is no process {pid} (any more)") from None


def has_ended(until_end: int, within_s: float = 0) -> bool:
    return bool(select.select([until_end], [], [], within_s)[0])


def open_page(pid: int, name: str, path: Path) -> int:
    try:
        with plain_errors(pid):
            return open_memory(path)
    except OSError as error:
        raise UserError(f"process {pid} ({name}): its profile cannot be opened") from error


class Overtaken(Exception):
    """What was read is of two answers."""


class Exchange:
    """One request and its answer."""

    def __init__(self, pid: int, name: str, descriptor: int, until_end: int) -> None:
        self.pid, self.name, self.descriptor, self.until_end = pid, name, descriptor, until_end

    def failed(self, why: str) -> UserError:
        return UserError(f"process {self.pid} ({self.name}): {why}")

    def header(self) -> tuple[int, int, int]:
        """Sequence, error, and bytes of the answer."""
        data = os.pread(self.descriptor, HEADER.size, 0)
        if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
            raise self.failed("its profile is of another version than this command reads")
        _, _, sequence, error, _, size = HEADER.unpack(data)
        return sequence, error, size

    def ask(self, end: float) -> bytes:
        with mmap.mmap(self.descriptor, mmap.PAGESIZE, access=mmap.ACCESS_READ) as page:
            first = np.frombuffer(page, np.uint8, count=mmap.PAGESIZE)
            try:
                return self.wait(first.ctypes.data + SEQUENCE_OFFSET, end)
            finally:
                # The mapping cannot be closed while it is looked at.
                del first

    def wait(self, word: int, end: float) -> bytes:
        begun, woken_at, halted_at = self.header()[0], 0.0, 0.0
        while True:
            sequence, error, size = self.header()
            if sequence != begun and sequence % 2 == 0:
                with suppress(Overtaken):
                    return self.answer(sequence, error, size)
            if has_ended(self.until_end):
                raise UserError(f"there is no process {self.pid} (any more)")
            halted_at = (halted_at or time.monotonic()) if is_stopped(self.pid) else 0.0
            if halted_at and time.monotonic() > halted_at + HALTED_S:
                raise self.failed("it is stopped, and cannot answer (kill -CONT lets it go on)")
            if time.monotonic() > end:
                raise self.failed("it has not answered")
            if time.monotonic() > woken_at + WAKE_EACH_S and sequence == begun:
                wake(word)
                woken_at = time.monotonic()
            time.sleep(PAUSE_S)

    def answer(self, sequence: int, error: int, size: int) -> bytes:
        """The document; Overtaken where the next answer was begun meanwhile."""
        problem, text = "", b""
        if error:
            problem = f"it could not write its profile: {os.strerror(error)}"
        elif size > BYTES_MOST or ANSWER_OFFSET + size > os.fstat(self.descriptor).st_size:
            problem = "its answer says more than there is"
        else:
            text = os.pread(self.descriptor, size, ANSWER_OFFSET)
        if self.header()[0] != sequence:
            raise Overtaken
        if problem or len(text) < size:
            raise self.failed(problem or "its answer is cut short")
        return text


def wake(address: int) -> None:
    """Whoever waits at the word, in this or another process: not a private futex."""
    call = FUTEX_CALLS.get(platform.machine())
    if call is None:
        raise UserError(f"running processes cannot be asked on {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    if (
        libc.syscall(ctypes.c_long(call), ctypes.c_void_p(address), FUTEX_WAKE, 1, None, None, 0)
        < 0
    ):
        raise UserError(f"the profile cannot be asked for: {os.strerror(ctypes.get_errno())}")
