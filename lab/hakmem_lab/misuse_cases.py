"""Runs the programs of tests/misuse and says how each ended. Standard library alone: ctest uses it.

A case ends *stopped* by a signal, *reported* when the allocator also said why on stderr, *told*
when it said something and the program went on, *passed* when nothing was noticed. An impossible
request is *refused*. *absent*: the misuse could not be done under this allocator.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

REPORTED, STOPPED, TOLD, PASSED = "reported", "stopped", "told", "passed"
REFUSED, ABSENT, HUNG, FAILED = "refused", "absent", "hung", "failed"
# Right answers are counted apart from misuse.
IMPOSSIBLE = "impossible-size"
CONTROL = "control"
# As in tests/misuse/misuse.h.
STATUS_REFUSED, STATUS_NOT_DONE = 10, 11
LIMIT_S = 10.0
JOBS = 2
OUTPUT_LIMIT = 4000


@dataclass(frozen=True)
class Ending:
    """How one case ended under one allocator."""

    case: str
    outcome: str
    signal: int = 0
    status: int = 0
    words: str = ""

    @property
    def family(self) -> str:
        return family_of(self.case)

    @property
    def is_stopped(self) -> bool:
        return self.outcome in (STOPPED, REPORTED)

    @property
    def is_silent(self) -> bool:
        """What a control must be."""
        return self.status == 0 and self.signal == 0 and not self.words and self.outcome == PASSED


@dataclass
class Tally:
    """Of the cases of one family under one allocator."""

    cases: int = 0
    stopped: int = 0
    reported: int = 0
    refused: int = 0
    missed: list[str] = field(default_factory=list)

    def add(self, ending: Ending) -> None:
        if ending.outcome == ABSENT:
            return
        self.cases += 1
        self.stopped += ending.is_stopped
        self.reported += ending.outcome == REPORTED
        self.refused += ending.outcome == REFUSED
        if not ending.is_stopped and ending.outcome != REFUSED:
            self.missed.append(ending.case)


def family_of(case: str) -> str:
    return case.partition(".")[0]


def is_control(case: str) -> bool:
    return case.split(".")[1].startswith(CONTROL)


def listed(program: Path) -> list[str]:
    """All cases by name, controls among them."""
    found = subprocess.run([str(program), "--list"], capture_output=True, text=True, check=True)
    return found.stdout.split()


def judged(case: str, status: int, output: bytes) -> Ending:
    """What the end of a program says: `status` as Popen has it, `output` both its streams."""
    words = output.decode(errors="replace").strip()
    signal = -status if status < 0 else 0
    if signal:
        outcome = REPORTED if words else STOPPED
    elif status == STATUS_REFUSED and family_of(case) == IMPOSSIBLE:
        # What is said besides, such as a warning, makes no difference: the request was refused.
        outcome = REFUSED
    elif status == STATUS_NOT_DONE:
        outcome = ABSENT
    elif status:
        outcome = FAILED
    else:
        outcome = TOLD if words else PASSED
    return Ending(case, outcome, signal, max(status, 0), words)


def run_case(
    program: Path,
    case: str,
    library: Path | None,
    settings: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
) -> Ending:
    """Runs one case with a library preloaded, and nothing else of an allocator in its way."""
    variables = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    variables |= dict(settings or {})
    if library is not None:
        variables["LD_PRELOAD"] = str(library)
    try:
        ran = subprocess.run(
            [str(program), case],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Ending(case, HUNG)
    return judged(case, ran.returncode, ran.stdout[:OUTPUT_LIMIT])


def run_cases(
    program: Path,
    cases: Sequence[str],
    library: Path | None,
    settings: Mapping[str, str] | None = None,
    done: Callable[[str], None] = lambda _case: None,
    limit_s: float = LIMIT_S,
) -> list[Ending]:
    """Runs all cases, JOBS at a time, in the order of their names."""

    def one(case: str) -> Ending:
        ending = run_case(program, case, library, settings, limit_s)
        done(case)
        return ending

    with ThreadPoolExecutor(JOBS) as pool:
        # After an interrupt no further case is started.
        waiting = [pool.submit(one, case) for case in cases]
        try:
            return [future.result() for future in waiting]
        except BaseException:
            for future in waiting:
                future.cancel()
            raise


def tallies(endings: Iterable[Ending]) -> dict[str, Tally]:
    """By family in the order of the cases, controls left out."""
    found: dict[str, Tally] = {}
    for ending in endings:
        if not is_control(ending.case):
            found.setdefault(ending.family, Tally()).add(ending)
    return found


def total(by_family: Mapping[str, Tally]) -> Tally:
    """Of all misuse: impossible requests are none."""
    whole = Tally()
    for family, tally in by_family.items():
        if family != IMPOSSIBLE:
            whole.cases += tally.cases
            whole.stopped += tally.stopped
            whole.reported += tally.reported
            whole.missed += tally.missed
    return whole
