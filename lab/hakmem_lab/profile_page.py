"""Asks a running process for its heap profile, through the file in its memory that the library
answers in.

The request is a number that this side counts up and wakes a thread of the library with; the answer
is there when the library has written the same number. Any user can make such a file: what is
read is bounded, and checked before it is used.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import select
import struct
import time
from contextlib import suppress
from pathlib import Path

from hakmem_lab.errors import LabError
from hakmem_lab.heap_profile import BYTES_MOST, HeapProfile, parse
from hakmem_lab.plain_text import printable
from hakmem_lab.process_memory import plain_errors
from hakmem_lab.stats_page import inner_number, name_of, open_memory, page_file

NAME = "memfd:hakmem-profile"
MAGIC = b"hakmemP1"
# Magic, process, request, answered, error, bytes of the answer.
HEADER = struct.Struct("<8sIIIIQ")
REQUEST_OFFSET, ANSWER_OFFSET = 12, 4096
PATIENCE_S, PAUSE_S = 30.0, 0.002
FUTEX_WAKE = 1
FUTEX_CALLS = {"x86_64": 202, "aarch64": 98}
OPTION = "HAKMEM_HEAP_PROFILE=1"


class NotProfiled(LabError):
    """The process runs without the profile."""


def has_page(pid: int) -> bool:
    with suppress(OSError, LabError):
        return page_file(pid, NAME, is_own) is not None
    return False


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
        raise LabError(f"process {pid} ({name}): its answer cannot be read: {said}") from error


def answer_of(pid: int, until_end: int, end: float) -> tuple[str, bytes]:
    """Its name, and the document."""
    with plain_errors(pid):
        name = name_of(pid)
        path = page_file(pid, NAME, is_own)
    if path is None and has_ended(until_end):
        raise LabError(f"there is no process {pid} (any more)")
    if path is None:
        raise NotProfiled(f"process {pid} ({name}) keeps no heap profile: start it with {OPTION}")
    descriptor = open_page(pid, name, path)
    try:
        return name, Exchange(pid, name, descriptor, until_end).ask(end)
    finally:
        os.close(descriptor)


def end_of(pid: int) -> int:
    """A descriptor that can be read from once the process has ended."""
    with plain_errors(pid):
        return os.pidfd_open(pid)


def has_ended(until_end: int) -> bool:
    return bool(select.select([until_end], [], [], 0)[0])


def is_own(pid: int, path: Path) -> bool:
    """Not the one of its parent, whose descriptor a child of a fork has too."""
    descriptor = open_memory(path)
    try:
        data = os.pread(descriptor, HEADER.size, 0)
    finally:
        os.close(descriptor)
    return len(data) == HEADER.size and HEADER.unpack(data)[1] == inner_number(pid)


def open_page(pid: int, name: str, path: Path) -> int:
    try:
        with plain_errors(pid):
            return open_memory(path, os.O_RDWR)
    except OSError as error:
        raise LabError(f"process {pid} ({name}): its profile cannot be opened") from error


class Exchange:
    """One request and its answer."""

    def __init__(self, pid: int, name: str, descriptor: int, until_end: int) -> None:
        self.pid, self.name, self.descriptor, self.until_end = pid, name, descriptor, until_end
        data = os.pread(descriptor, HEADER.size, 0)
        if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
            raise self.failed("its profile is of another version than this command reads")

    def failed(self, why: str) -> LabError:
        return LabError(f"process {self.pid} ({self.name}): {why}")

    def ask(self, end: float) -> bytes:
        self.lock(end)
        number = self.request()
        while True:
            _, _, _, answered, error, size = HEADER.unpack(
                os.pread(self.descriptor, HEADER.size, 0)
            )
            if answered == number:
                return self.answer(error, size)
            if has_ended(self.until_end):
                raise LabError(f"there is no process {self.pid} (any more)")
            if time.monotonic() > end:
                raise self.failed("it has not answered: is it stopped?")
            time.sleep(PAUSE_S)

    def lock(self, end: float) -> None:
        """One reader at a time; the lock goes with the descriptor."""
        while True:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    raise self.failed("another reader has not finished with it") from None
                time.sleep(PAUSE_S)

    def request(self) -> int:
        page = mmap.mmap(self.descriptor, mmap.PAGESIZE)
        word = ctypes.c_uint32.from_buffer(page, REQUEST_OFFSET)
        try:
            word.value += 1
            wake(ctypes.addressof(word))
            return word.value
        finally:
            del word
            page.close()

    def answer(self, error: int, size: int) -> bytes:
        if error:
            raise self.failed(f"it could not write its profile: {os.strerror(error)}")
        if size > BYTES_MOST or ANSWER_OFFSET + size > os.fstat(self.descriptor).st_size:
            raise self.failed("its answer says more than there is")
        found = bytearray()
        while len(found) < size:
            more = os.pread(self.descriptor, size - len(found), ANSWER_OFFSET + len(found))
            if not more:
                raise self.failed("its answer is cut short")
            found += more
        return bytes(found)


def wake(address: int) -> None:
    """Whoever waits at the word, in this or another process: not a private futex."""
    call = FUTEX_CALLS.get(platform.machine())
    if call is None:
        raise LabError(f"running processes cannot be asked on {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    if libc.syscall(ctypes.c_long(call), ctypes.c_void_p(address), ctypes.c_int(FUTEX_WAKE),
                    ctypes.c_int(0x7FFFFFFF), None, None, 0) < 0:  # fmt: skip
        number = ctypes.get_errno()
        raise LabError(f"futex: {errno.errorcode.get(number, number)}")
