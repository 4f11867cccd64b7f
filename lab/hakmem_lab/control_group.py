"""A control group with a limit of memory, of version 2 or 1, in which single programs are run."""

import os
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hakmem.errors import UserError

ROOT = Path("/sys/fs/cgroup")
# How long the kernel may take until an ended program has left the group.
LEAVE_S = 2.0


@dataclass(frozen=True)
class ControlGroup:
    """A folder of the kernel's; a program enters by writing its number into a file there."""

    folder: Path

    def command(self, command: Sequence[str]) -> tuple[str, ...]:
        """The command, run by a shell that enters the group first and then becomes it."""
        enter = shlex.quote(str(self.folder / "cgroup.procs"))
        return ("/bin/sh", "-c", f'echo $$ > {enter} && exec "$@"', "sh", *command)

    def kills(self) -> int:
        """How many programs the kernel has killed in it for want of memory."""
        for name in ("memory.events", "memory.oom_control"):
            for line in read(self.folder / name).splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        return 0


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@contextmanager
def open_group(limit_mb: int) -> Iterator[ControlGroup | None]:
    """A group with this limit and no swap beyond it, gone at the end; None for a limit of 0.

    A UserError says why there can be none.
    """
    if limit_mb == 0:
        yield None
        return
    folder = make_folder()
    try:
        limit(folder, limit_mb << 20)
        yield ControlGroup(folder)
    finally:
        remove(folder)


def make_folder() -> Path:
    is_second = (ROOT / "cgroup.controllers").exists()
    parent = ROOT if is_second else ROOT / "memory"
    if not parent.is_dir():
        raise UserError("no control groups for memory are mounted here")
    if is_second and "memory" not in read(ROOT / "cgroup.subtree_control").split():
        try:
            (ROOT / "cgroup.subtree_control").write_text("+memory")
        except OSError as error:
            raise UserError(f"groups may not have limits of memory: {error.strerror}") from error
    folder = parent / f"hakmem-memory-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        raise UserError(f"cannot make a control group: {error.strerror}") from error
    return folder


def limit(folder: Path, limit_bytes: int) -> None:
    is_second = (folder / "memory.max").exists()
    name = "memory.max" if is_second else "memory.limit_in_bytes"
    try:
        (folder / name).write_text(str(limit_bytes))
    except OSError as error:
        raise UserError(f"cannot set {name}: {error.strerror}") from error
    # Not everywhere there is swap to be forbidden.
    swap, none = ("memory.swap.max", 0) if is_second else ("memory.memsw.limit_in_bytes",
                                                           limit_bytes)  # fmt: skip
    with suppress(OSError):
        (folder / swap).write_text(str(none))


def remove(folder: Path) -> None:
    deadline = time.monotonic() + LEAVE_S
    while True:
        try:
            folder.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                return
            time.sleep(0.02)
