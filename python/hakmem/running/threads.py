"""Which thread of a process to ask /proc: of one that has ended nothing is there, and the folder of
a process's number is that of its first thread. And which processes it has started."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from hakmem.running.process_words import COMMAND_MOST, begin_of, text_of

PAGE_KB = os.sysconf("SC_PAGESIZE") >> 10


def state_of(thread: int) -> str:
    """The letter in /proc; X where it is gone."""
    try:
        stat = text_of(thread, "stat")
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


def take_name(name: str = WAITING) -> str:
    """The name of this process before. By that of waiting, whoever is given this process's number
    can find the program's."""
    before = Path("/proc/self/comm").read_text(errors="replace").rstrip("\n")
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(errors="replace"), 0, 0, 0)
    return before


# Commands that start a program in their place, or wait for it.
STARTERS = ("run", "explain", "profile", "record")
STARTED_WITHIN_S, EXEC_WITHIN_S, LOOK_EACH_S = 30.0, 0.2, 0.02


def is_starting(pid: int) -> bool:
    """Whether a process is this command, and has not started its program yet."""
    try:
        words = begin_of(pid, "cmdline", COMMAND_MOST).split(b"\0")[:-1]
        is_python = Path(program_of(pid)).name.startswith("python")
        named = text_of(pid, "comm").rstrip("\n")
    except OSError:
        return False
    begun = [Path(os.fsdecode(word)).name for word in words[1:4]]
    at = 1 if begun[:1] == ["hakmem"] else 2 if begun[:2] == ["-m", "hakmem"] else 0
    has_one = at > 0 and begun[at : at + 1] != [] and begun[at] in STARTERS
    return is_python and has_one and named != WAITING


def await_start(pid: int) -> None:
    """`hakmem run -- X & hakmem profile $!`: both have just begun."""
    begun = time.monotonic()
    while is_starting(pid) or is_between(pid):
        patience_s = STARTED_WITHIN_S if is_starting(pid) else EXEC_WITHIN_S
        if time.monotonic() > begun + patience_s:
            return
        time.sleep(LOOK_EACH_S)


def is_between(pid: int) -> bool:
    """In the middle of an exec a process has no command line; threads of the kernel never have."""
    try:
        return not has_ended(pid) and not begin_of(pid, "cmdline", 1)
    except OSError:
        return False


def waited_for(pid: int) -> int:
    """The program that this process of ours has started and waits for; 0 of any other process."""
    try:
        if text_of(pid, "comm").rstrip("\n") != WAITING:
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


def resident_kb(pids: Iterable[int]) -> int:
    """The sum of what each has in memory: a page that two of them share is in it twice."""
    total = 0
    for pid in pids:
        with suppress(OSError, IndexError):
            total += int(text_of(seen_by(pid), "statm").split()[1]) * PAGE_KB
    return total
