"""The process that reads the files of another: with that one's user, and a bound on memory and
time.

Its parent (symbol_reader.py) sends a request in a line of JSON and gets an answer in one. A file
makes room for its own reading, by the bytes it really has on disk: who wants memory of us must
have it first.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from hakmem.profiles.foreign_files import file_system, open_in, place_in
from hakmem.profiles.frames import Frame
from hakmem.profiles.symbol_files import Module, PerfMap, at_offset, demangler

# Beside what the worker has when it begins. An index of symbols takes less than twice its file.
DATA_BYTES, DATA_PER_BYTE, DATA_MOST = 256 << 20, 4, 8 << 30
# A program that answers for a file system says how much is on disk there: so much is believed, of
# all such files together.
FUSE, TOLD_MOST = 0x65735546, 256 << 20
CPU_S, CPU_BYTES_PER_S, CPU_MOST_S = 20, 4 << 20, 3600
REQUEST_MOST = 1 << 20


class Room:
    """The limits of this process, which grow with the files that it has opened."""

    def __init__(self) -> None:
        pages = Path("/proc/self/statm").read_text().split()
        self.begun, self.begun_data = (int(pages[i]) * os.sysconf("SC_PAGE_SIZE") for i in (0, 5))
        self.disk = self.mapped = 0
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self.set(resource.RLIMIT_DATA, self.begun_data + DATA_BYTES, self.begun_data + DATA_MOST)
        self.set(resource.RLIMIT_CPU, CPU_S, CPU_MOST_S)
        self.allow(0, 0)

    def set(self, which: int, soft: int, hard: int | None = None) -> None:
        most = resource.getrlimit(which)[1]
        if most != resource.RLIM_INFINITY:
            hard = min(most, hard or most)
        hard = most if hard is None else hard
        soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
        resource.setrlimit(which, (soft, hard))

    def allow(self, disk: int, mapped: int) -> None:
        self.disk += disk
        self.mapped += mapped
        data = min(DATA_BYTES + DATA_PER_BYTE * self.disk, DATA_MOST)
        self.set(resource.RLIMIT_DATA, self.begun_data + data)
        # Addresses of mapped files are no memory.
        self.set(resource.RLIMIT_AS, self.begun + data + self.mapped)

    def begin(self) -> None:
        """A request: what was used by those before does not count."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        spent = round(used.ru_utime + used.ru_stime)
        self.set(resource.RLIMIT_CPU, spent + CPU_S + self.disk // CPU_BYTES_PER_S)


class Files:
    """Files below the roots: of the process, and ours for debug information."""

    def __init__(self, root: int, room: Room) -> None:
        self.root, self.own, self.room = root, os.open("/", os.O_PATH | os.O_DIRECTORY), room
        self.told = TOLD_MOST

    def keep(self, descriptor: int) -> Path:
        found = os.fstat(descriptor)
        disk = found.st_blocks * 512
        if file_system(descriptor) == FUSE:
            disk = min(disk, self.told)
            self.told -= disk
        self.room.allow(disk, found.st_size)
        return Path(f"/proc/self/fd/{descriptor}")

    def find(self, path: str) -> Path | None:
        with suppress(OSError, ValueError):
            return self.keep(open_in(self.root, path))
        return None

    def find_debug(self, path: str) -> Path | None:
        if (found := self.find(path)) is not None:
            return found
        with suppress(OSError, ValueError):
            return self.keep(open_in(self.own, path))
        return None

    def has_folder_of(self, path: str) -> bool:
        """A name of another place would be another file."""
        with suppress(OSError, ValueError):
            place = place_in(self.root, os.path.dirname(path))  # noqa: PTH120
            os.close(place)
            return True
        return False


class Worker:
    def __init__(self, root: int, owners: list[int]) -> None:
        self.room = Room()
        self.files, self.owners = Files(root, self.room), owners
        self.modules: dict[str, Module] = {}
        self.perf: PerfMap | None = None

    def answer(self, request: dict, descriptor: int | None) -> dict:
        self.room.begin()
        if "perf" in request:
            return self.compiled(request)
        path = request["path"]
        if path not in self.modules:
            file = self.files.find(path) if descriptor is None else self.files.keep(descriptor)
            if file is None and request["has_more"]:
                return {"wants": True}
            if file is None and not self.files.has_folder_of(path):
                with suppress(OSError, ValueError):
                    file = self.files.keep(open_in(self.files.own, path))
            self.modules[path] = Module(path, file, self.files.find_debug)
        module = self.modules[path]
        frames = [self.frames(module, offset) for offset in request["offsets"]]
        return {
            "frames": frames,
            "is_there": module.file is not None,
            "is_elf": module.is_elf,
            "has_names": module.has_names,
            "build_id": module.build_id[:128],
            "changed_ms": module.changed_ms,
        }

    def frames(self, module: Module, offset: int) -> list[list]:
        return [listed(one) for one in module.frames(offset)] if module.is_elf else []

    def compiled(self, request: dict) -> dict:
        if request["anew"] or self.perf is None:
            # The old one makes way before the new one is read.
            self.perf = None
            self.perf = PerfMap(self.perf_file(request["perf"]), request["started_ms"])
        found = [self.perf.name(address) for address in request["addresses"]]
        return {"frames": [one and listed(one) for one in found]}

    def perf_file(self, numbers: list[int]) -> Path | None:
        """In the process's own root by the number that it has there; else in ours by ours. Of
        another user, it could say anything of this one's code."""
        for root, number in zip((self.files.root, self.files.own), numbers):
            with suppress(OSError):
                descriptor = open_in(root, f"/tmp/perf-{number}.map", follow=False)
                if os.fstat(descriptor).st_uid in self.owners:
                    return self.files.keep(descriptor)
                os.close(descriptor)
        return None


def listed(frame: Frame) -> list:
    return [frame.function, frame.file, frame.line, frame.part]


def lost(worker: Worker, request: dict, error: BaseException) -> dict:
    """Of a file that cannot be understood all addresses are told by offset."""
    why = "it needs too much memory" if isinstance(error, MemoryError) else "it is damaged"
    if "perf" in request:
        worker.perf = PerfMap(None, 0)
        return {"frames": [None] * len(request["addresses"]), "problem": why}
    path = request["path"]
    worker.modules[path] = Module(path, None)
    return {
        "frames": [[[at_offset(path, offset), "", 0, ""]] for offset in request["offsets"]],
        "is_there": True, "is_elf": True, "has_names": False, "build_id": "", "changed_ms": 0,
        "problem": why,
    }  # fmt: skip


def take_user(user: list | None) -> None:
    if user is not None:
        number, group, groups = user
        os.setgroups(groups)
        os.setresgid(group, group, group)
        os.setresuid(number, number, number)


def load_all() -> None:
    """What is needed later may lie where the other user cannot read."""
    import elftools.elf.elffile
    import symbolic.debuginfo
    import symbolic.exceptions

    assert elftools.elf.elffile and symbolic.debuginfo and symbolic.exceptions
    demangler()("_Z1fv")


def main() -> None:
    number, root, user, owners = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load_all()
    take_user(user)
    worker = Worker(root, owners)
    with socket.socket(fileno=number) as parent:
        while (found := receive(parent)) is not None:
            request, descriptor = found
            try:
                answer = worker.answer(request, descriptor)
            except (Exception, MemoryError) as error:
                answer = lost(worker, request, error)
            parent.sendall(json.dumps(answer | {"number": request["number"]}).encode() + b"\n")


def receive(parent: socket.socket) -> tuple[dict, int | None] | None:
    data, descriptors = b"", []
    while not data.endswith(b"\n") and len(data) < REQUEST_MOST:
        piece, more, _, _ = socket.recv_fds(parent, 1 << 16, 1)
        if not piece:
            return None
        data += piece
        descriptors += more
    return json.loads(data), next(iter(descriptors), None)
