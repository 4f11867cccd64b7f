"""System calls of a program, counted by strace in a run of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hakmem.running.launching import input_of, own_session

TIME_LIMIT_S = 30


@dataclass(frozen=True)
class SystemCalls:
    """A count, or why there is none."""

    total: int | None
    note: str = ""

    def __str__(self) -> str:
        return "n/a" if self.total is None else f"{self.total:,}"


def parse_summary(text: str) -> int | None:
    """Sums the calls column of `strace -c`; the errors column may be empty."""
    total = None
    for line in text.splitlines():
        words = line.split()
        is_row = len(words) in (5, 6) and words[0].replace(".", "").isdigit()
        if is_row and words[-1] != "total" and words[3].isdigit():
            total = (total or 0) + int(words[3])
    return total


def count_system_calls(
    command: Sequence[str],
    preload: Path | None,
    settings: Mapping[str, str] | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    stdin: Path | None = None,
) -> SystemCalls:
    strace = shutil.which("strace")
    if strace is None:
        return SystemCalls(None, "strace is not installed")
    environment = dict(settings or {})
    if preload is not None:
        environment["LD_PRELOAD"] = str(preload)
    with tempfile.TemporaryDirectory() as folder, input_of(stdin or Path(os.devnull)) as given:
        out = Path(folder) / "summary"
        arguments = [strace, "-f", "-c", "-o", str(out)]
        for name, value in environment.items():
            arguments += ["-E", f"{name}={value}"]
        streams = {"stdin": given, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        with own_session([*arguments, *command], **streams) as process:
            try:
                _, errors = process.communicate(timeout=time_limit_s)
            except subprocess.TimeoutExpired:
                return SystemCalls(None, f"took longer than {time_limit_s:g} s under strace")
        total = parse_summary(out.read_text()) if out.exists() else None
    if total is None:
        words = errors.decode(errors="replace").strip().splitlines()
        return SystemCalls(None, f"strace counted nothing: {words[0] if words else 'no message'}")
    return SystemCalls(total)
