"""What the kernel tells about another process's memory: its mappings, and which pages are there.

Everything is read from /proc: the process is not stopped and not signalled.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hakmem.errors import UserError
from hakmem.running.process_words import SMAPS_MOST, lines_of, text_of
from hakmem.running.threads import seen_by

PAGE = os.sysconf("SC_PAGE_SIZE")
PRESENT, SWAPPED = np.uint64(1 << 63), np.uint64(1 << 62)
# One read of pagemap: entries of 8 bytes for 1 GiB of addresses.
READ_ENTRIES = 1 << 18
# Of a name, which tells what kind a mapping is: 65,530 paths of 4 KB would be 256 MB.
NAME_MOST = 256

# ioctl PAGEMAP_SCAN of <linux/fs.h>, Linux 6.7 and newer: _IOWR('f', 16, struct pm_scan_arg).
SCAN_REQUEST = 3 << 30 | 96 << 16 | ord("f") << 8 | 16
SCAN_PRESENT, SCAN_SWAPPED, SCAN_PFN_ZERO, SCAN_HUGE = 1 << 3, 1 << 4, 1 << 5, 1 << 6
SCAN_RANGES = 4096
# Mappings of which less than that part is there are not looked at from end to end.
SPARSE_PART, WINDOW = 16, 32 << 20

# A line of maps.
MAPPING = re.compile(
    r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) (?P<rights>\S{4}) (?P<offset>[0-9a-f]+) "
    r"\S+ \d+ *(?P<path>.*)$"
)
FIELD = re.compile(r"^(?P<name>\w+): +(?P<kb>\d+) kB$")


@dataclass(frozen=True)
class Mapped:
    """One line of maps with its figures, in bytes."""

    start: int
    end: int
    rights: str
    name: str
    rss: int
    swap: int
    huge: int
    locked: int


@dataclass(frozen=True)
class Present:
    """The pages of a range of addresses: which count as resident, which of these are parts of huge
    pages, and which are swapped out."""

    start: int
    resident: np.ndarray
    huge: np.ndarray
    swapped: np.ndarray


@contextmanager
def plain_errors(pid: int) -> Iterator[None]:
    """What /proc says when it refuses, as one line."""
    try:
        yield
    except (FileNotFoundError, ProcessLookupError) as error:
        raise UserError(f"there is no process {pid} (any more)") from error
    except PermissionError as error:
        raise UserError(f"process {pid}: not permitted; {how_permitted()}") from error


def how_permitted() -> str:
    if os.geteuid() != 0:
        return "it belongs to another user or is protected: be that user, or root"
    return (
        "this is root already: a container without CAP_SYS_PTRACE, a security module or "
        "kernel.yama.ptrace_scope refuses"
    )


def mappings(pid: int) -> list[Mapped]:
    with plain_errors(pid):
        return parse_smaps(lines_of(seen_by(pid), "smaps", SMAPS_MOST))


def parse_smaps(lines: Iterable[str]) -> list[Mapped]:
    found: list[Mapped] = []
    figures: dict[str, int] = {}
    head = None
    for line in lines:
        if begins := MAPPING.match(line):
            if head:
                found.append(mapped_as(head, figures))
            head, figures = begins, {}
        elif field := FIELD.match(line):
            figures[field["name"]] = int(field["kb"]) * 1024
    return [*found, mapped_as(head, figures)] if head else found


def mapped_as(head: re.Match[str], figures: Mapping[str, int]) -> Mapped:
    return Mapped(
        int(head["start"], 16), int(head["end"], 16), head["rights"], head["path"][:NAME_MOST],
        *(figures.get(name, 0) for name in ("Rss", "Swap", "AnonHugePages", "Locked")),
    )  # fmt: skip


def rollup(pid: int) -> Mapping[str, int]:
    """smaps_rollup: the kernel's own sums, in bytes."""
    with plain_errors(pid):
        found = [FIELD.match(line) for line in lines_of(seen_by(pid), "smaps_rollup")]
    return {f["name"]: int(f["kb"]) * 1024 for f in found if f}


def resident_bytes(pid: int) -> int:
    """The quick figure of statm."""
    with plain_errors(pid):
        return int(text_of(seen_by(pid), "statm").split()[1]) * PAGE


def stack_pointers(pid: int) -> tuple[list[int], int]:
    """Of the threads that wait in the kernel now; how many more, beside the first."""
    found, unknown = [], 0
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                # "running", or: call, arguments, stack pointer, program counter.
                found.append(int(text_of(pid, f"task/{task.name}/syscall").split()[-2], 16))
            except (OSError, ValueError, IndexError):
                # The first one's stack has a name.
                unknown += task.name != str(pid)
    return found, unknown


class Pagemap:
    """Which pages of another process are there."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        with plain_errors(pid):
            self.descriptor = os.open(f"/proc/{seen_by(pid)}/pagemap", os.O_RDONLY)
        self.can_scan = True

    def close(self) -> None:
        os.close(self.descriptor)

    def windows(self, one: Mapped) -> Iterator[tuple[int, int]]:
        """Ranges to look at that hold all pages of a mapping: terabytes may hold a few."""
        found = [(one.start, one.end)]
        if (one.rss + one.swap) * SPARSE_PART < one.end - one.start:
            scanned = self._scan(one.start, one.end, SCAN_PRESENT | SCAN_SWAPPED)
            found = scanned if self.can_scan else found
        reached = one.start
        for low, high in found:
            for start in range(max(low, reached), high, WINDOW):
                reached = min(start + WINDOW, one.end)
                yield start, reached

    def look(self, start: int, end: int) -> Present:
        """The pages from start to end, which are multiples of the page size."""
        count = (end - start) // PAGE
        entries = np.zeros(count, dtype=np.uint64)
        for first in range(0, count, READ_ENTRIES):
            wanted = min(READ_ENTRIES, count - first)
            with plain_errors(self.pid):
                data = os.pread(self.descriptor, wanted * 8, (start // PAGE + first) * 8)
            got = np.frombuffer(data[: len(data) // 8 * 8], dtype=np.uint64)
            entries[first : first + len(got)] = got
        resident, huge = (entries & PRESENT) != 0, np.zeros(count, dtype=bool)
        # The kernel's one page of zeros is mapped where memory was read before it was written to;
        # it is nobody's, and smaps does not count it.
        for low, high in self._scan(start, end, SCAN_PFN_ZERO):
            resident[(low - start) // PAGE : (high - start) // PAGE] = False
        for low, high in self._scan(start, end, SCAN_HUGE):
            huge[(low - start) // PAGE : (high - start) // PAGE] = True
        return Present(start, resident, huge & resident, (entries & SWAPPED) != 0)

    def _scan(self, start: int, end: int, kind: int) -> list[tuple[int, int]]:
        """The ranges of that kind; none on kernels that cannot tell."""
        found: list[tuple[int, int]] = []
        vector = (ctypes.c_uint64 * (3 * SCAN_RANGES))()
        while self.can_scan and start < end:
            # Size, flags, from, to, how far it went, where the ranges go, how many, most pages;
            # then what is matched: inverted, all of, any of; and what is told.
            into = ctypes.addressof(vector)
            argument = bytearray(
                struct.pack("<12Q", 96, 0, start, end, 0, into, SCAN_RANGES, 0, 0, 0, kind, kind)
            )
            try:
                count = fcntl.ioctl(self.descriptor, SCAN_REQUEST, argument)
            except OSError:
                self.can_scan = False
                break
            found += [(vector[3 * i], vector[3 * i + 1]) for i in range(count)]
            walked = struct.unpack("<12Q", argument)[4]
            if walked <= start:
                break
            start = walked
        return found
