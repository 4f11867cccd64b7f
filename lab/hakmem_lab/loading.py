"""Whether a library, preloaded, serves every allocation function of a real program."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hakmem.plain_text import last_lines
from hakmem.running.launching import NOT_PRELOADED, signal_name

from hakmem_lab import load_check

TIME_LIMIT_S = 20
BINDING = re.compile(r"binding file \S+ \[\d+\] to (\S+) \[\d+\]: normal symbol `(\w+)'")


@dataclass(frozen=True)
class Loading:
    """What a trial of a library showed; no problem means that it serves all functions.

    A remark is a fault of the library in what it serves.
    """

    problem: str = ""
    remark: str = ""
    operator_new: bool = False


def try_library(library: Path, settings: Mapping[str, str] | None = None) -> Loading:
    """Preloads a library into a small program that looks up and uses all functions."""
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            "LD_PRELOAD": str(library),
            "LD_DEBUG": "bindings",
            "LD_DEBUG_OUTPUT": str(Path(folder) / "bindings"),
            # All at the start, not at the first call.
            "LD_BIND_NOW": "1",
        }
        try:
            ran = subprocess.run(
                [sys.executable, "-I", "-S", load_check.__file__, str(library)],
                env={**os.environ, **(settings or {}), **asked},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIME_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Loading(f"a small program did not end within {TIME_LIMIT_S} s under it")
        logs = [path.read_text(errors="replace") for path in Path(folder).iterdir()]
    if refused := NOT_PRELOADED.search(ran.stderr):
        return Loading(f"not loaded: {refused['why']}")
    if ran.returncode < 0:
        return Loading(f"a small program was killed by {signal_name(-ran.returncode)} under it")
    if ran.returncode:
        words = last_lines(ran.stderr, 1) or "no message"
        return Loading(f"a small program failed under it: {words}")
    return judge(json.loads(ran.stdout), bindings("\n".join(logs)), library)


def bindings(log: str) -> dict[str, set[str]]:
    """The files that each allocation function was bound to, from the loader's log."""
    found: dict[str, set[str]] = {}
    for file, name in BINDING.findall(log):
        if name in load_check.FUNCTIONS:
            found.setdefault(name, set()).add(file)
    return found


def judge(report: Mapping, bound: Mapping[str, set[str]], library: Path) -> Loading:
    """What the report of load_check.py and the loader's log say about `library`."""
    real = library.resolve()
    own = {name: Path(file).resolve() == real for name, file in report["providers"].items()}
    if lacking := [name for name in load_check.FUNCTIONS if not own[name]]:
        return Loading(f"has no {', '.join(lacking)} of its own")
    for name, files in bound.items():
        if str(library) not in files:
            others = ", ".join(sorted(Path(file).name for file in files))
            return Loading(f"{name} is served by {others}, not by it")
    if "malloc" not in bound:
        return Loading("the loader does not say what serves malloc")
    return Loading("", report["trial"], own["_Znwm"] and own["_ZdlPv"])
