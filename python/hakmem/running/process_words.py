"""What the kernel says of a process, in files of /proc: read here, and no more than so much of it.

The user of the process chooses how much there is: its command line may be said to lie in terabytes
of zeros, and each of 65,530 mappings may have a path of 4 KB.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# Of what is a few lines: status, stat, comm.
LITTLE_MOST = 64 << 10
# The words that a process was started with. A path has 4 KB; the kernel takes 6 MB of arguments and
# environment together.
COMMAND_MOST, ENVIRONMENT_MOST = 64 << 10, 6 << 20
# Of 65,530 mappings, as many as the kernel allows by default, with paths of 200 characters. All of
# a process that somebody asks for: a million of them, if few have a file.
MAPS_MOST, ALL_MAPS_MOST = 16 << 20, 96 << 20
# With the twenty lines that it has for each of them; they are not kept.
SMAPS_MOST = 1 << 30


def begin_of(pid: int, name: str, most: int = LITTLE_MOST) -> bytes:
    """The first bytes of /proc/PID/NAME; OSError where there is none, or it may not be read."""
    with path_of(pid, name).open("rb") as file:
        return file.read(most)


def text_of(pid: int, name: str, most: int = LITTLE_MOST) -> str:
    return begin_of(pid, name, most).decode(errors="replace")


def lines_of(pid: int, name: str, most: int = LITTLE_MOST) -> Iterator[str]:
    """The first whole lines, one at a time."""
    with path_of(pid, name).open("rb") as file:
        for line in file:
            most -= len(line)
            if most < 0:
                return
            yield line.decode(errors="replace").removesuffix("\n")


def path_of(pid: int, name: str) -> Path:
    return Path(f"/proc/{pid}/{name}")
