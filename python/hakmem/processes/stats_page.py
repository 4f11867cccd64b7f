"""The statistics page of another process: a file in its memory, read as it is being written.

Layout: docs/figures.md. The library writes it under a sequence number that is odd meanwhile;
whoever reads takes a copy and keeps it if the number was even and has not moved. The process is
not stopped, not traced and not signalled, and does not notice. Any user can make such a file, and
have anything in it: what is read is bounded and checked before it is used.
"""

from __future__ import annotations

import os
import re
import shlex
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np

from hakmem.errors import UserError
from hakmem.plain_text import printable
from hakmem.processes import page_shape
from hakmem.processes.process_memory import plain_errors
from hakmem.running.process_words import (
    ALL_MAPS_MOST,
    COMMAND_MOST,
    ENVIRONMENT_MOST,
    MAPS_MOST,
    begin_of,
    lines_of,
    text_of,
)
from hakmem.running.threads import descendants, is_zombie, seen_by

NAME = "memfd:hakmem-stats"
SETTING = "HAKMEM_STATS_PAGE=1"
MAGIC = b"hakmemS1"
VERSION = 1
HEADER = struct.Struct("<8sIIQQQQQII")
SPAN = 1 << 16
# The library's own bounds: its file is of 64 MiB, and its JSON of 512 KiB.
JSON_MOST, MAP_MOST = 512 << 10, 64 << 20
PATIENCE_S, PAUSE_S = 2.0, 0.0005
# Descriptors that are looked at; and those of a page's name, which may be of parents, or no pages.
OPEN_MOST, STRANGE_MOST = 1 << 17, 64
# What the kernel keeps of a process's name.
NAME_MOST = 15
# Of a command line that is told.
LINE_MOST = 300
# Its library's file, or memory that it has named.
OF_HAKMEM = re.compile(r"/libhakmem[^/\n]*\.so|\[anon:hakmem")
MOUNT = re.compile(r"^mnt_id:\s*(\d+)$", re.MULTILINE)


class UnreadablePage(UserError):
    """A process has a page that is not as the library writes them."""


class EmptyPage(UserError):
    """The process has made its page and not written it yet."""


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
    json_bytes: int = 0

    @property
    def age_s(self) -> float:
        """The process refreshes its page while it allocates or frees; at rest it grows old."""
        return max(0.0, time.monotonic() - self.taken_ms / 1000)


def read(pid: int, until_s: float | None = None, with_map: bool = True) -> Snapshot:
    """The page of a process as it is now; fails with one line that says why there is none. Waits
    for a page that is being written, until that moment at most. The map, a byte for each span of
    all addresses, only for who asks."""
    end = time.monotonic() + PATIENCE_S if until_s is None else until_s
    descriptor = open_page(pid)
    try:
        # The name is known once the page is there: a child has its parent's until it execs.
        with plain_errors(pid):
            name = name_of(pid)
        return copy_page(pid, name, descriptor, end, with_map)
    finally:
        os.close(descriptor)


def processes(barred: list[int] | None = None) -> Iterator[int]:
    """Those with a page, by number; those that may not be looked at go to `barred`."""
    for pid in sorted(int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal()):
        try:
            if pid != os.getpid() and page_file(pid) is not None:
                yield pid
        except PermissionError:
            if barred is not None:
                barred.append(pid)
        except (OSError, UserError):
            continue


def children_with_pages(pid: int) -> dict[int, str]:
    """Processes that this one has started, and theirs; with their names."""
    found = {}
    for child in sorted(descendants(pid)):
        with suppress(OSError):
            if page_file(child) is not None:
                found[child] = name_of(child)
    return found


def name_of(pid: int) -> str:
    """As it can be shown: a process chooses its name itself."""
    return printable(text_of(pid, "comm").removesuffix("\n"))


def title_of(pid: int) -> str:
    """The name whole, where the process was started by one that the kernel has cut short; empty of
    a process that has ended."""
    with suppress(OSError):
        name = text_of(pid, "comm").removesuffix("\n")
        words = begin_of(pid, "cmdline", COMMAND_MOST).split(b"\0")
        started_as = Path(os.fsdecode(words[0])).name
        is_cut = len(name.encode()) == NAME_MOST and started_as.startswith(name)
        return printable(started_as if is_cut else name).replace("/", "_")
    return ""


def page_file(
    pid: int, name: str = NAME, header: struct.Struct = HEADER, place: int = -2
) -> Path | None:
    """Its descriptor in the process; or where that is closed, the mapping. The library has files
    of other names too, with headers of their own."""
    seen = seen_by(pid)
    files = chain(open_files(seen, name), mapped_files(seen, name))
    for path in islice(files, STRANGE_MOST):
        try:
            if is_own(pid, path, header, place):
                return path
        except OSError as error:
            # Only root may open what is mapped and not open any more.
            if path.parent.name == "map_files" and isinstance(error, PermissionError):
                raise
    return None


def open_files(thread: int, name: str) -> Iterator[Path]:
    """By number, from the highest: that is where the library puts it."""
    with os.scandir(f"/proc/{thread}/fd") as entries:
        numbers = sorted((int(entry.name) for entry in entries), reverse=True)
    for number in numbers[:OPEN_MOST]:
        path = Path(f"/proc/{thread}/fd/{number}")
        with suppress(OSError):
            if is_page(str(path.readlink()), name):
                yield path


def mapped_files(thread: int, name: str) -> Iterator[Path]:
    for line in lines_of(thread, "maps", MAPS_MOST):
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and is_page(fields[5], name):
            yield Path(f"/proc/{thread}/map_files/{fields[0]}")


def is_page(target: str, name: str = NAME) -> bool:
    return target in (f"/{name}", f"/{name} (deleted)")


def is_own(pid: int, path: Path, header: struct.Struct, place: int) -> bool:
    """Not the one of its parent, whose descriptor a child of a fork has too: the process's number
    is at that place of the header."""
    descriptor = open_memory(path)
    try:
        data = os.pread(descriptor, header.size, 0)
    finally:
        os.close(descriptor)
    return len(data) == header.size and header.unpack(data)[place] == inner_number(pid)


def open_memory(path: Path) -> int:
    """A file of the kernel's memory. A link may read like one and be a pipe, or of a file system
    that its user answers for, where opening waits: so its place is looked at first."""
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    own = os.memfd_create("mount", os.MFD_CLOEXEC)
    try:
        if mount_of(place) != mount_of(own):
            raise OSError(f"{path} is no memory")
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(own)
        os.close(place)


def mount_of(descriptor: int) -> str | None:
    """What a descriptor is mounted from; None on kernels that do not tell."""
    found = MOUNT.search(Path(f"/proc/self/fdinfo/{descriptor}").read_text())
    return found and found[1]


def inner_number(pid: int) -> int:
    """Its number as the process itself knows it: in a container it is another than here."""
    for line in lines_of(pid, "status"):
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid


def require_running(pid: int) -> None:
    """Of a process that has ended, and that its parent has not waited for, there is nothing left
    to read; the kernel says that as if it were not permitted."""
    if is_zombie(pid):
        told = "has ended, and nothing of it is left (its parent has not waited for it)"
        raise UserError(f"process {pid} ({name_of(pid)}) {told}")


def why_absent(pid: int, setting: str, lacks: str) -> str:
    """What a process lacks, and what to do about that: it may have the setting already."""
    begun_with = b""
    with suppress(OSError):
        begun_with = begin_of(seen_by(pid), "environ", ENVIRONMENT_MOST)
    maps = lines_of(seen_by(pid), "maps", ALL_MAPS_MOST)
    has_hakmem = any(OF_HAKMEM.search(line) for line in maps)
    if b"\0%b\0" % os.fsencode(setting) not in b"\0%b\0" % begun_with:
        now = f"; without a restart, hakmem profile {pid} shows what allocates in it"
        again = f"{setting} hakmem run -- {command_line_of(pid)}"
        absent = "" if has_hakmem else " (there is no hakmem in it)"
        return f"{lacks}{absent}: start it with {setting}: {again}{now if has_hakmem else ''}"
    if has_hakmem:
        return f"{lacks} yet: it has {setting}, and has not allocated"
    return f"{lacks}: it has {setting}, and hakmem was not loaded into it"


def command_line_of(pid: int) -> str:
    """As a shell takes it, as far as that is a line."""
    given = b""
    with suppress(OSError):
        given = begin_of(seen_by(pid), "cmdline", LINE_MOST)
    words = given.split(b"\0")[:-1] if len(given) < LINE_MOST else ()
    line = printable(shlex.join(os.fsdecode(word) for word in words))
    return line if 0 < len(line) < LINE_MOST else "PROGRAM ARGUMENT…"


def open_page(pid: int) -> int:
    with plain_errors(pid):
        require_running(pid)
        path = page_file(pid)
        if path is None:
            why = why_absent(pid, SETTING, "has no page")
            raise UserError(f"process {pid} ({name_of(pid)}) {why}")
        try:
            return open_memory(path)
        except PermissionError:
            raise
        except OSError as error:
            raise UnreadablePage(f"process {pid}: its page cannot be opened") from error


def copy_page(pid: int, name: str, descriptor: int, end: float, with_map: bool = True) -> Snapshot:
    """Tries until nobody wrote meanwhile."""
    while True:
        before = header(pid, descriptor)
        if not before.being_written:
            text = extent(pid, descriptor, before.json_offset, before.json_bytes, JSON_MOST)
            count = before.map_entries if with_map else 0
            spans = extent(pid, descriptor, before.map_offset, count, MAP_MOST)
            if header(pid, descriptor).sequence == before.sequence:
                return whole(pid, name, before, text, spans, with_map)
        if time.monotonic() > end:
            raise UnreadablePage(
                f"process {pid} ({name}): its page was not whole for {PATIENCE_S:g} s"
            )
        time.sleep(PAUSE_S)


def extent(pid: int, descriptor: int, offset: int, count: int, most: int) -> bytes:
    """A part of the file, which must have it."""
    if count > most or offset + count > os.fstat(descriptor).st_size:
        raise UnreadablePage(f"process {pid}: its page says more than there is")
    return os.pread(descriptor, count, offset)


def header(pid: int, descriptor: int) -> Header:
    data = os.pread(descriptor, HEADER.size, 0)
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise UnreadablePage(f"process {pid}: this is no page of hakmem")
    found = Header(*HEADER.unpack(data)[1:-1])
    if found.version != VERSION:
        raise UnreadablePage(
            f"process {pid}: its page is of version {found.version}, this command reads {VERSION}"
        )
    return found


def whole(pid: int, name: str, head: Header, text: bytes, spans: bytes, with_map: bool) -> Snapshot:
    is_cut = with_map and len(spans) != head.map_entries
    if len(text) != head.json_bytes or is_cut:
        raise UnreadablePage(f"process {pid} ({name}): its page is cut short")
    if not text:
        raise EmptyPage(f"process {pid} ({name}): its page is empty yet: try again")
    try:
        figures = page_shape.parse(text)
    except ValueError as error:
        said = printable(str(error))
        raise UnreadablePage(f"process {pid} ({name}): its page cannot be read: {said}") from error
    return Snapshot(
        pid, name, head.taken_ms, figures, np.frombuffer(spans, dtype=np.uint8), head.map_offset,
        len(text),
    )  # fmt: skip
