"""How the program of a comparison is run: by itself, or with a file as its input.

A server is run by `hakmem.running.serving`, with a load beside it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hakmem.running.launching import Outcome, Start, run
from hakmem.running.witness import run_for_proof


@dataclass(frozen=True)
class Runner:
    """Runs a program to its end; its input is a file, read anew by each run, or empty."""

    stdin: Path | None = None

    def run(self, start: Start) -> Outcome:
        return run(start, self.stdin)

    def run_counted(self, start: Start) -> tuple[Outcome, tuple[int, int] | None]:
        """A run under hakmem, and its counter in memory with the processes that were read, where
        the program lives long enough to be looked at."""
        return self.run(start), None

    def spans_seen(self, start: Start) -> int | None:
        """hakmem's counter, read from the program's memory in a run of its own."""
        environment = {**os.environ, **(start.settings or {}), "LD_PRELOAD": str(start.preload)}
        command, library = start.command, start.preload
        return run_for_proof(command, environment, library, self.stdin, start.limit_s).served


BY_ITSELF = Runner()
