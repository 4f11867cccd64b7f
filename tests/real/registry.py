"""The table of programs: what each needs, how its version is asked, and the workload that runs it.

A workload gets a session (see measured.py) and is run once under glibc's malloc and once under each library. What it
records must be equal; what it cannot compare it checks itself and raises WorkloadFailed.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
VERSION_NUMBER = re.compile(r"\d+(?:\.\d+)+")
# Many times what a run takes on an idle machine.
DEFAULT_LIMIT_S = 600
LONG_LIMIT_S = 1800


@dataclass(frozen=True)
class Program:
    """`needs` maps a program, or the absolute path of a file, to its Debian package; `fetched` are files that no
    package has and scripts/setup.sh fetches."""

    name: str
    does: str
    version: tuple[str, ...]
    needs: Mapping[str, str]
    workload: Callable
    limit_s: int
    fetched: tuple[Path, ...] = ()

    def problem(self) -> str:
        """The first thing that is missing, in one line, or an empty string."""
        for needed, package in self.needs.items():
            if not find(needed):
                return f"{needed} is not installed (Debian package {package})"
        for path in self.fetched:
            if not path.exists():
                return f"{path} is missing: `scripts/setup.sh real` fetches it"
        return ""

    def version_text(self) -> str:
        """The first version number the program prints about itself, or "?"."""
        asked = subprocess.run(
            [find(self.version[0]), *self.version[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
        found = VERSION_NUMBER.search(asked.stdout)
        return found[0] if found else "?"


PROGRAMS: dict[str, Program] = {}


def find(needed: str) -> str | None:
    """A path as it is, a program's name in the path that sessions get."""
    if needed.startswith("/"):
        return needed if Path(needed).exists() else None
    return shutil.which(needed, path=SYSTEM_PATH)


def program(
    name: str,
    *,
    does: str,
    version: tuple[str, ...],
    needs: Mapping[str, str],
    limit_s: int = DEFAULT_LIMIT_S,
    fetched: tuple[Path, ...] = (),
) -> Callable[[Callable], Callable]:
    """Enters the decorated workload into the table; `limit_s` is for one run under one allocator."""

    def enter(workload: Callable) -> Callable:
        if name in PROGRAMS:
            raise ValueError(f"two programs are called {name}")
        PROGRAMS[name] = Program(name, does, version, needs, workload, limit_s, fetched)
        return workload

    return enter
