"""What a figure depends on besides the code: machine, kernel, compiler, settings."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from hakmem.elf_files import elf_file

SETTING_PREFIXES = ("HAKMEM_", "GLIBC_TUNABLES", "MALLOC_", "MIMALLOC_", "TCMALLOC_")
# These tell us where a library is, and mean nothing to the allocator.
OWN_VARIABLES = ("MIMALLOC_SO", "JEMALLOC_SO", "TCMALLOC_SO")

# Of describe(): what tells one run from another.
OF_THE_RUN = ("measured", "host", "command line")


def told_by(path: str, pattern: str, otherwise: str) -> str:
    """What a file of the kernel's has at the pattern's group."""
    with suppress(OSError):
        if found := re.search(pattern, Path(path).read_text(), re.MULTILINE):
            return found[1]
    return otherwise


def user_folder(variable: str, of_system: str, *otherwise: str) -> Path:
    """What our variable names, else `hakmem` in the folder that another one names, or that below
    the user's home."""
    if given := os.environ.get(variable):
        return Path(given).expanduser().absolute()
    base = os.environ.get(of_system)
    return (Path(base) if base else Path.home().joinpath(*otherwise)) / "hakmem"


def allowed_cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def default_cpu() -> str:
    """The last CPU we may use: interrupts and other work tend to gather on the first."""
    return str(allowed_cpus()[-1])


def compiler_of(library: Path) -> str:
    """The compiler a library says it was built by, from its .comment section."""
    with suppress(OSError), elf_file(library) as elf:
        if section := elf.get_section_by_name(".comment"):
            named = section.data().decode(errors="replace").split("\0")
            return ", ".join(dict.fromkeys(filter(None, named)))
    return "unknown"


def revision_of(folder: Path) -> str:
    """The commit a checkout stands at, marked when it has changes; empty outside one."""
    if shutil.which("git") is None:
        return ""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--tags"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def settings() -> dict[str, str]:
    """Variables in our environment that change how an allocator behaves."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(SETTING_PREFIXES) and name not in OWN_VARIABLES
    }


def command_line(seed: int | None = None) -> str:
    """What was typed, with the seed where that was drawn: the same again measures the same."""
    words = ["hakmem", *sys.argv[1:]]
    own = words[: words.index("--")] if "--" in words else words
    if seed is not None and len(words) > 1 and not any(w.startswith("--seed") for w in own):
        words[2:2] = ["--seed", str(seed)]
    return shlex.join(words)


def signature() -> str:
    """The same in one line, for what was looked at and not measured."""
    return (
        f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC on {platform.node() or 'unknown'}, "
        f"{platform.system()} {platform.release()}, hakmem {version('hakmem')}: {command_line()}"
    )


def describe(seed: int | None = None) -> dict[str, str]:
    """When, where and how it was measured, in a few named lines for tables and JSON."""
    one, five, _ = os.getloadavg()
    given = " ".join(f"{k}={v}" for k, v in settings().items())
    model = told_by("/proc/cpuinfo", r"^model name\s*:\s*(.+)$", platform.machine())
    return {
        "measured": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        "host": platform.node() or "unknown",
        "command line": command_line(seed),
        "version": f"hakmem {version('hakmem')}, Python {platform.python_version()}",
        "kernel": f"{platform.system()} {platform.release()}",
        "CPU": f"{model}, {len(allowed_cpus())} usable",
        "load": f"{one:.2f} (1 min) {five:.2f} (5 min)",
        "THP": told_by("/sys/kernel/mm/transparent_hugepage/enabled", r"\[(\w+)\]", "none"),
        "settings": given or "none given, defaults everywhere",
    }
