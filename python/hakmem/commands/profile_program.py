"""Runs a program with its heap profile on; collects what it and its children write."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hakmem.allocators.settings import check_library, is_hakmem, overridden, own_settings
from hakmem.commands.run import appended, chosen_settings, reason
from hakmem.errors import NOT_STARTED, UserError, warn
from hakmem.profiles.heap_profile import HeapProfile, read_file
from hakmem.running import programs
from hakmem.running.launching import signal_name
from hakmem.running.witness import Ended, run_watched

FILE = re.compile(r"\.(?P<pid>\d+)\.(?P<number>\d+)\.json$")
PREFIX = "heap"
OWN_FILE = Path("/proc/self/exe")
OPTION_OF = {"HAKMEM_HEAP_PROFILE_RATE": "--rate", "HAKMEM_HEAP_PROFILE_SECONDS": "--every"}


@dataclass(frozen=True)
class Ran:
    """What a run left: the profiles of the program itself in order, the last one of each other
    process. A start script may leave none of its own: then the largest of the others takes its
    place, and a remark says so."""

    ended: Ended
    profiles: tuple[HeapProfile, ...]
    others: tuple[HeapProfile, ...]
    problems: tuple[str, ...]
    remark: str = ""


def run_profiled(
    program: Sequence[str],
    folder: Path,
    rate: str | None,
    every_s: int | None,
    settings: Sequence[str],
) -> Ran:
    own = {
        "HAKMEM_HEAP_PROFILE": "1",
        "HAKMEM_HEAP_PROFILE_FORMAT": "json",
        "HAKMEM_HEAP_PROFILE_AT_EXIT": "1",
        "HAKMEM_HEAP_PROFILE_PREFIX": str(folder / PREFIX),
    }
    if rate is not None:
        own["HAKMEM_HEAP_PROFILE_RATE"] = rate
    if every_s is not None:
        own["HAKMEM_HEAP_PROFILE_SECONDS"] = str(every_s)
    if taken := sorted(own.keys() & own_settings("--set", settings).keys()):
        raise UserError(f"--set: {taken[0]} is set by this command", 2)
    chosen, library = chosen_settings(None, settings, with_environment=True)
    if is_hakmem(library):
        check_library(library, {OPTION_OF.get(name, "--set"): {name: own[name]} for name in own})
    found = require_target(program)
    for line in overridden({name: own[name] for name in own if name not in OPTION_OF}):
        warn("profile", line)
    environment = {**os.environ, **chosen, **own, "LD_PRELOAD": appended(library)}
    ended = run_watched(program, environment, library)
    return collected(folder, ended, found, chosen)


def require_target(program: Sequence[str]) -> programs.Examined:
    """A program that can be served; what is none may be a heap profile of another name."""
    found = programs.examine(program)
    if not found.holds_hakmem:
        try:
            programs.require_servable(program)
        except UserError as error:
            if found.path is not None or not programs.is_file(Path(program[0])):
                raise
            told = f"{error.format_message()}; as a heap profile its name would end in .json"
            raise UserError(told, error.exit_code) from error
    return found


def collected(
    folder: Path, ended: Ended, found: programs.Examined, chosen: Mapping[str, str]
) -> Ran:
    by_process: dict[int, list[HeapProfile]] = {}
    problems = []
    for pid, path in numbered(folder.iterdir()):
        try:
            by_process.setdefault(pid, []).append(read_file(path))
        except UserError as error:
            problems.append(error.format_message())
    own = tuple(by_process.pop(ended.pid, ()))
    others = sorted((p[-1] for p in by_process.values() if p), key=lambda p: -p.total.bytes)
    remark = ""
    if own and os.WIFSIGNALED(ended.wait_status):
        name = signal_name(os.WTERMSIG(ended.wait_status))
        remark = f"the program was killed by {name}: the last profile is of before"
    if not own:
        why = f"no heap profile was written: {why_nothing(ended, found, chosen)}"
        if others:
            largest = others.pop(0)
            own = tuple(by_process[largest.pid]) if largest.pid in by_process else (largest,)
            remark = f"{why}; this is the largest process that it started"
        else:
            problems.insert(0, why)
    return Ran(ended, own, tuple(others), tuple(problems), remark)


def numbered(paths: Iterable[Path]) -> list[tuple[int, Path]]:
    """The process and the file, in the order they were written in."""
    matches = [(FILE.search(path.name), path) for path in paths]
    known = [(int(m["pid"]), int(m["number"]), path) for m, path in matches if m]
    return [(pid, path) for pid, _, path in sorted(known)]


def why_nothing(ended: Ended, found: programs.Examined, chosen: Mapping[str, str]) -> str:
    if os.WIFSIGNALED(ended.wait_status):
        name = signal_name(os.WTERMSIG(ended.wait_status))
        return f"the program was killed by {name} (--every SECONDS writes some before)"
    # Until it becomes the program, the process is of this command's own file.
    if ended.exit_status == NOT_STARTED and ended.program in ("", str(OWN_FILE.resolve())):
        return "the program could not be started"
    if ended.served:
        return "the program ended without its exit handlers (--every SECONDS writes some before)"
    if ended.served is None and ended.why_unknown:
        return f"whether hakmem served the program could not be seen: {ended.why_unknown}"
    return f"hakmem did not serve the program: {reason(ended, found, chosen)}"
