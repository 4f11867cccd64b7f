"""Which thread of a process to ask /proc: of one that has ended nothing is there, and the folder of
a process's number is that of its first thread. And which processes it has started."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def state_of(thread: int) -> str:
    """The letter in /proc; X where it is gone."""
    try:
        stat = Path(f"/proc/{thread}/stat").read_text(errors="replace")
    except OSError:
        return "X"
    return stat.rpartition(")")[2].split()[0]


def has_ended(thread: int) -> bool:
    """Ended, and waited for by nobody yet; of a process's number, its first thread has."""
    return state_of(thread) in "ZX"


def seen_by(pid: int) -> int:
    """The thread whose folder in /proc tells of the process's memory and files: the first one, or
    where that has ended, so that its folder is empty, another that has not."""
    if has_ended(pid):
        with suppress(OSError):
            threads = sorted(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())
            return next((each for each in threads if not has_ended(each)), pid)
    return pid


def is_stopped(pid: int) -> bool:
    return state_of(seen_by(pid)) in "Tt"


# The name of a process of this command that has started a program and waits for its end.
WAITING = "hakmem-waits"
PR_SET_NAME = 15


def begin_waiting() -> None:
    """From here on whoever is given this process's number can find the program's."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, WAITING.encode(), 0, 0, 0)


def waited_for(pid: int) -> int:
    """The program that this process of ours has started and waits for; 0 of any other process."""
    try:
        if Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n") != WAITING:
            return 0
    except OSError:
        return 0
    return min(children_of(pid), default=0)


def program_of(pid: int) -> str:
    """The file a process runs now: it changes when a start script becomes the real program."""
    try:
        return str(Path(f"/proc/{seen_by(pid)}/exe").readlink())
    except PermissionError:
        raise
    except OSError:
        return ""


def is_zombie(pid: int) -> bool:
    """All its threads have ended, and its parent has not asked how."""
    return Path(f"/proc/{pid}").exists() and has_ended(seen_by(pid))


def processes() -> Iterator[tuple[int, int]]:
    """Every process with its parent."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2]
        except OSError:
            continue
        yield int(entry.name), int(fields.split()[1])


def children_of(pid: int) -> set[int]:
    return {one for one, parent in processes() if parent == pid}


def descendants(pid: int) -> set[int]:
    table = list(processes())
    found = {pid}
    while more := {one for one, parent in table if parent in found} - found:
        found |= more
    return found - {pid}
