"""Asks a worker (symbol_worker.py) for names from another process's files, and goes on where it is
lost: a file may be made to crash it, to use up its memory or time, or to keep it waiting."""

from __future__ import annotations

import json
import os
import pwd
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hakmem.profiles.foreign_files import open_mapped, open_root, users_of
from hakmem.running.process_words import text_of

# An answer to so many addresses.
BATCH, ANSWER_MOST = 128, 64 << 20
# A worker that has not run within two of these waits for something that does not come.
IDLE_S = 15.0
LOST_MOST = 4
SCRIPT = (
    "import sys; sys.path[:] = {path!r}; from hakmem.profiles.symbol_worker import main; main()"
)
NO_GROUP = 65534


class Lost(Exception):
    """The worker gave no answer."""


class Reader:
    """Names from the files of a process, or without one of whoever wrote the profile."""

    def __init__(self, pid: int | None, root: Path, owner: int | None = None) -> None:
        self.pid, self.root = pid, root
        self.user, self.owners = whose(pid, owner)
        self.parent: socket.socket | None = None
        self.lost = self.number = 0

    def start(self) -> None:
        root = open_root(self.pid, self.root)
        ours, theirs = socket.socketpair()
        try:
            given = json.dumps([theirs.fileno(), root, self.user, self.owners])
            script = SCRIPT.format(path=[each for each in sys.path if each])
            environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", script, given],
                env=environment | {"OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), root], cwd="/",
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(root)
            theirs.close()
        self.parent = ours
        self.end = weakref.finalize(self, stop, self.process, ours)

    def module(self, path: str, mapped: tuple[int, int], offsets: Sequence[int]) -> dict | None:
        """What is at these offsets of a file; None where its reader was lost."""
        has_more = self.pid is not None and os.geteuid() == 0
        request = {"path": path, "offsets": list(offsets), "has_more": has_more}
        answer = self.ask(request)
        if answer and answer.get("wants"):
            descriptor = open_mapped(self.pid, *mapped)
            answer = self.ask(request | {"has_more": False}, descriptor)
            if descriptor is not None:
                os.close(descriptor)
        return answer

    def compiled(
        self, numbers: Sequence[int], started_ms: int, addresses: Sequence[int], anew: bool
    ) -> dict | None:
        return self.ask({"perf": list(numbers), "started_ms": started_ms,
                         "addresses": list(addresses), "anew": anew})  # fmt: skip

    def ask(self, request: dict, descriptor: int | None = None) -> dict | None:
        if self.lost > LOST_MOST:
            return None
        try:
            if self.parent is None:
                self.start()
            self.number += 1
            data = json.dumps(request | {"number": self.number}).encode() + b"\n"
            descriptors = [] if descriptor is None else [descriptor]
            sent = socket.send_fds(self.parent, [data], descriptors)
            self.parent.sendall(data[sent:])
            return self.answer()
        except (OSError, Lost, ValueError):
            self.lost += 1
            if self.parent is not None:
                self.end()
            self.parent = None
            return None

    def answer(self) -> dict:
        data, spent = bytearray(), None
        while not data.endswith(b"\n"):
            if not select.select([self.parent], [], [], IDLE_S)[0]:
                before, spent = spent, cpu_time(self.process.pid)
                if spent == before:
                    raise Lost
                continue
            piece = self.parent.recv(1 << 16)
            data += piece
            if not piece or len(data) > ANSWER_MOST:
                raise Lost
        found = json.loads(data)
        if not isinstance(found, dict) or found.get("number") != self.number:
            raise Lost
        return found


def cpu_time(pid: int) -> tuple[str, ...]:
    """In ticks, of user and system."""
    try:
        text = text_of(pid, "stat")
    except OSError:
        return ()
    return tuple(text.rpartition(")")[2].split()[11:13])


def stop(process: subprocess.Popen, parent: socket.socket) -> None:
    parent.close()
    process.send_signal(signal.SIGKILL)
    # What waits for a file system that does not answer ends when that does.
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)


def whose(pid: int | None, owner: int | None) -> tuple[list | None, list[int]]:
    """The user that the worker takes, and the users whose perf maps are believed: root, whoever
    asks, and the one of the process. Of a profile without a process, whoever wrote it stands for
    that."""
    trusted = [0, os.geteuid()]
    if pid is not None:
        number, group, groups = users_of(pid)
        trusted.append(number)
    elif owner is not None:
        number, group, groups = owner, NO_GROUP, []
        with suppress(KeyError):
            group = pwd.getpwuid(owner).pw_gid
        trusted.append(owner)
    else:
        return None, trusted
    takes = os.geteuid() == 0 and number != 0
    return ([number, group, groups] if takes else None), trusted
