"""The statistics page of another process: a file in its memory, read as it is being written.

Layout: docs/figures.md. The library writes it under a sequence number that is odd meanwhile;
whoever reads takes a copy and keeps it if the number was even and has not moved. The process is
not stopped, not traced and not signalled, and does not notice.
"""

import json
import os
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from hakmem_lab.errors import LabError
from hakmem_lab.process_memory import plain_errors

NAME = "memfd:hakmem-stats"
MAGIC = b"hakmemS1"
VERSION = 1
HEADER = struct.Struct("<8sIIQQQQQII")
SPAN = 1 << 16
# What the commands read of the figures.
NEEDED = ("settings", "total", "spans", "slabs", "runs", "huge", "sampled", "own", "heaps",
          "regions_total", "estimate", "counters", "purge", "budget", "guard", "classes", "regions",
          "huge_blocks", "huge_blocks_left_out", "own_memory", "sampled_slots")  # fmt: skip
PATIENCE_S, PAUSE_S = 2.0, 0.0005


@dataclass(frozen=True)
class Header:
    version: int
    sequence: int
    taken_ms: int
    json_offset: int
    json_bytes: int
    map_offset: int
    map_entries: int
    pid: int

    @property
    def being_written(self) -> bool:
        """Or it has never been."""
        return self.sequence % 2 == 1 or self.sequence == 0


@dataclass(frozen=True)
class Snapshot:
    """One whole state of a page: the figures, and a byte for each span."""

    pid: int
    name: str
    taken_ms: int
    figures: dict
    spans: np.ndarray
    map_offset: int

    @property
    def age_s(self) -> float:
        """The process refreshes its page while it allocates or frees; at rest it grows old."""
        return max(0.0, time.monotonic() - self.taken_ms / 1000)


def read(pid: int) -> Snapshot:
    """The page of a process as it is now; fails with one line that says why there is none."""
    with plain_errors(pid):
        name = name_of(pid)
    descriptor = open_page(pid)
    try:
        return copy_page(pid, name, descriptor)
    finally:
        os.close(descriptor)


def processes() -> Iterator[int]:
    """Those with a page, by number."""
    for pid in sorted(int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal()):
        with suppress(OSError, LabError):
            if pid != os.getpid() and page_file(pid) is not None:
                yield pid


def children_with_pages(pid: int) -> dict[int, str]:
    """Processes that this one has started, and theirs; with their names."""
    found = {}
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(OSError):
                if page_file(child.pid) is not None:
                    found[child.pid] = name_of(child.pid)
    return found


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")


def page_file(pid: int) -> Path | None:
    """Its descriptor in the process; or where that is closed, the mapping."""
    with os.scandir(f"/proc/{pid}/fd") as entries:
        # By number, from the highest: that is where the library puts it.
        for entry in sorted(entries, key=lambda e: -int(e.name)):
            with suppress(OSError):
                if is_page(Path(entry.path).readlink()) and is_own(pid, Path(entry.path)):
                    return Path(entry.path)
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and is_page(Path(fields[5])):
            path = Path(f"/proc/{pid}/map_files/{fields[0]}")
            if is_own(pid, path):
                return path
    return None


def is_page(target: Path) -> bool:
    return str(target) in (f"/{NAME}", f"/{NAME} (deleted)")


def is_own(pid: int, path: Path) -> bool:
    """Not the one of its parent, whose descriptor a child of a fork has too."""
    with path.open("rb") as file:
        data = file.read(HEADER.size)
    return len(data) == HEADER.size and HEADER.unpack(data)[-2] == inner_number(pid)


def inner_number(pid: int) -> int:
    """Its number as the process itself knows it: in a container it is another than here."""
    for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid


def open_page(pid: int) -> int:
    with plain_errors(pid):
        path = page_file(pid)
        if path is None:
            raise LabError(
                f"process {pid} ({name_of(pid)}) has no page: start it with HAKMEM_STATS_PAGE=1"
            )
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def copy_page(pid: int, name: str, descriptor: int) -> Snapshot:
    """Tries until nobody wrote meanwhile."""
    end = time.monotonic() + PATIENCE_S
    while True:
        before = header(pid, descriptor)
        if not before.being_written:
            text = os.pread(descriptor, before.json_bytes, before.json_offset)
            spans = os.pread(descriptor, before.map_entries, before.map_offset)
            if header(pid, descriptor).sequence == before.sequence:
                return whole(pid, name, before, text, spans)
        if time.monotonic() > end:
            raise LabError(f"process {pid} ({name}): its page was not whole for {PATIENCE_S:g} s")
        time.sleep(PAUSE_S)


def header(pid: int, descriptor: int) -> Header:
    data = os.pread(descriptor, HEADER.size, 0)
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise LabError(f"process {pid}: this is no page of hakmem")
    found = Header(*HEADER.unpack(data)[1:-1])
    if found.version != VERSION:
        raise LabError(
            f"process {pid}: its page is of version {found.version}, this command reads {VERSION}"
        )
    return found


def whole(pid: int, name: str, head: Header, text: bytes, spans: bytes) -> Snapshot:
    if len(text) != head.json_bytes or len(spans) != head.map_entries:
        raise LabError(f"process {pid} ({name}): its page is cut short")
    if not text:
        raise LabError(f"process {pid} ({name}): its page is empty yet: try again")
    try:
        figures = json.loads(text)
    except ValueError as error:
        raise LabError(f"process {pid} ({name}): its page cannot be read: {error}") from error
    if lacking := [key for key in NEEDED if key not in figures]:
        raise LabError(f"process {pid} ({name}): its page has no {', '.join(lacking)}")
    return Snapshot(
        pid, name, head.taken_ms, figures, np.frombuffer(spans, dtype=np.uint8), head.map_offset
    )
