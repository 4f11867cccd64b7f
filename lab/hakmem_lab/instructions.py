"""Instructions of one step of a bench program, counted by valgrind: the same in every run.

Time on a shared machine cannot show a difference of one instruction; a count can.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hakmem.allocators.peers import bench_program
from hakmem.errors import UserError

FEW, MANY = 200_000, 400_000
TOTAL = re.compile(r"I\s+refs:\s+([\d,]+)")
TIME_LIMIT_S = 120


@dataclass(frozen=True)
class StepLoad:
    """A bench program whose first argument is the number of steps; each is one operation."""

    title: str
    program: str
    more: tuple[str, ...]


STEP_LOADS = (
    StepLoad("random mixed, 400 slots", "bench_random_mixed", ("400",)),
    StepLoad("replace one of 128 blocks, 64 B", "bench_fixed_size", ("64",)),
)


def problem() -> str:
    """Why nothing can be counted, or an empty string."""
    return "" if shutil.which("valgrind") else "valgrind is not installed (Debian package valgrind)"


def per_step(load: StepLoad, library: Path) -> float:
    """Two numbers of steps are compared: start and end are the same in both, and fall out."""
    few, many = (total(load, steps, library) for steps in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def total(load: StepLoad, steps: int, library: Path) -> int:
    program = str(bench_program(load.program))
    return count([program, str(steps), *load.more], library)


def count(command: Sequence[str], library: Path) -> int:
    """All instructions of one run with a library preloaded."""
    with tempfile.TemporaryDirectory() as folder:
        files = [f"--cachegrind-out-file={folder}/out", f"--log-file={folder}/log"]
        tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", *files]
        ran = subprocess.run(
            [*tool, *command],
            env={**os.environ, "LD_PRELOAD": str(library)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )
        found = TOTAL.search((Path(folder) / "log").read_text(errors="replace"))
    if ran.returncode or found is None:
        raise UserError(f"valgrind could not count {command[0]}: status {ran.returncode}")
    return int(found[1].replace(",", ""))
