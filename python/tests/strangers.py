"""Another user, for tests that run as root: what this user can do to our files and to our eyes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

UID = 65534
as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root: only root can act as a second user"
)


def command(*words: str | Path) -> list[str]:
    drop = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups")
    return [*drop, *map(str, words)]


def acts(*words: str | Path, **how) -> subprocess.CompletedProcess:
    """Something that this user does, to its end."""
    return subprocess.run(command(*words), check=True, timeout=60, **how)


def links(name: Path, target: Path | str) -> None:
    acts("ln", "-s", target, name)


def process(*words: str, **how) -> subprocess.Popen:
    return subprocess.Popen(command(*words), **how)


def python(*words: str, **how) -> subprocess.Popen:
    return process(sys.executable, "-I", "-S", *words, **how)


def lets_in(*folders: Path, mode: int = 0o755) -> None:
    """pytest's folders are for their owner alone."""
    for folder in folders:
        for each in (folder, *folder.parents):
            if each != Path("/") and each.stat().st_uid == os.geteuid():
                each.chmod(each.stat().st_mode | 0o111)
        folder.chmod(mode)
