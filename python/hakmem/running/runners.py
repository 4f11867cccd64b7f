"""How the program of a comparison is run: by itself, or with a file as its input.

A server is run by `hakmem.running.serving`, with a load beside it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hakmem.running.launching import Outcome, run_once
from hakmem.running.witness import run_for_proof


@dataclass(frozen=True)
class Runner:
    """Runs a program to its end; its input is a file, read anew by each run, or empty."""

    stdin: Path | None = None

    def run(
        self,
        command: Sequence[str],
        preload: Path | None = None,
        cpus: str | None = None,
        settings: Mapping[str, str] | None = None,
        idle_s: float = 0.0,
        limit_s: float = 0.0,
    ) -> Outcome:
        return run_once(command, preload, cpus, settings, idle_s, limit_s, self.stdin)

    def run_counted(
        self,
        command: Sequence[str],
        library: Path,
        settings: Mapping[str, str],
        limit_s: float = 0.0,
    ) -> tuple[Outcome, tuple[int, int] | None]:
        """A run under hakmem, and its counter in memory with the processes that were read, where
        the program lives long enough to be looked at."""
        return self.run(command, library, settings=settings, limit_s=limit_s), None

    def spans_seen(
        self,
        command: Sequence[str],
        library: Path,
        settings: Mapping[str, str] | None = None,
        limit_s: float = 0.0,
    ) -> int | None:
        """hakmem's counter, read from the program's memory in a run of its own."""
        environment = {**os.environ, **(settings or {}), "LD_PRELOAD": str(library)}
        return run_for_proof(command, environment, library, self.stdin, limit_s).served


BY_ITSELF = Runner()
