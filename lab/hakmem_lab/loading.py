"""Whether a library, preloaded, serves every allocation function of a real program."""

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hakmem.plain_text import with_last_words
from hakmem.running.launching import run_once

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
        # All bindings at the start, not at the first call.
        asked = {"LD_DEBUG": "bindings", "LD_BIND_NOW": "1"}
        asked["LD_DEBUG_OUTPUT"] = str(Path(folder) / "bindings")
        command = [sys.executable, "-I", "-S", load_check.__file__, str(library)]
        given = {**(settings or {}), **asked}
        outcome = run_once(command, library, None, given, limit_s=TIME_LIMIT_S)
        logs = [path.read_text(errors="replace") for path in Path(folder).iterdir()]
    if outcome.preload_problem:
        return Loading(outcome.preload_problem)
    if outcome.problem:
        why = with_last_words(outcome.problem, outcome.last_words(1))
        return Loading(f"a small program fails under it: {why}")
    return judge(json.loads(outcome.stdout), bindings("\n".join(logs)), library)


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
