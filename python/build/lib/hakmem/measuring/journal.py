"""Rounds on disk as they finish: what a stopped run leaves, and what a report can be made of.

A journal is JSON lines: a head that says what is measured, then a line for each whole round and
for each contender that had to leave. A line that was cut short is ignored.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from itertools import takewhile
from pathlib import Path

from hakmem import documents, files
from hakmem.environment import user_folder
from hakmem.errors import UserError
from hakmem.inputs import read_text
from hakmem.measuring.rotation import (
    FIGURE_BOUNDS,
    Contender,
    Metric,
    Rotation,
    Series,
    is_figure,
)
from hakmem.running.launching import Outcome

# Figures need no more of what a program wrote.
KEPT_OUTPUT_CHARACTERS = 2000
KEPT_RUNS = 20


def results_folder() -> Path:
    """HAKLAB_RESULTS, else hakmem in the user's state folder."""
    return user_folder("HAKLAB_RESULTS", "XDG_STATE_HOME", ".local", "state")


def new_path(command: str, suffix: str = ".jsonl") -> Path:
    """A name of its own for each run: command, time, process."""
    folder = results_folder()
    try:
        files.make_folder(folder)
    except OSError as error:
        told = f"cannot make the results folder {folder}: {error.strerror}"
        raise UserError(f"{told}; HAKLAB_RESULTS names another one") from error
    moment = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    return folder / f"{command}-{moment}-{os.getpid()}{suffix}"


def prune(command: str) -> None:
    """Removes what older runs of a command have left, but for the newest of them."""
    runs: dict[str, list[Path]] = {}
    for path in results_folder().glob(f"{command}-[0-9]*"):
        runs.setdefault(path.stem, []).append(path)
    for stem in sorted(runs)[:-KEPT_RUNS]:
        for path in runs[stem]:
            files.remove(path)


@contextmanager
def named_in_errors(words: str) -> Iterator[None]:
    """What is safe, behind the message of what could not be written."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error.message}{words}", error.exit_code) from error


@dataclass
class Journal:
    """Appends a rotation's rounds to a file; every line is on its way to disk when it returns.

    Where the command shows its figures without the file (`goes_on`), a full disk after the head
    ends the journal alone, and `incomplete` says so.
    """

    path: Path
    goes_on: bool = False
    incomplete: str = ""

    def write(self, line: Mapping) -> None:
        if self.incomplete:
            return
        try:
            with files.open_to_append(self.path) as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            if not self.goes_on or "made_by" in line:
                raise UserError(f"cannot write {self.path}: {error.strerror}") from error
            self.incomplete = f"the journal {self.path} is incomplete: {error.strerror}"

    def drop_cut_line(self) -> None:
        """Takes off a last line that was cut short, so that more can be appended."""
        kept = "".join(json.dumps(line) + "\n" for line in whole_lines(self.path))
        documents.write_text(self.path, kept)

    def begin(self, command: str, rotation: Rotation, facts: Mapping[str, str], **more) -> None:
        metric = rotation.metric
        self.write(
            documents.head(command)
            | {
                "metric": {
                    "pattern": metric.pattern.pattern if metric.pattern else None,
                    "higher_is_better": metric.higher_is_better,
                    "unit": metric.unit,
                },
                "seed": rotation.seed,
                "cpus": rotation.cpus,
                "contenders": {
                    name: {
                        "command": list(series.contender.command),
                        "preload": str(series.contender.preload or ""),
                        "settings": dict(series.contender.settings),
                    }
                    for name, series in rotation.series.items()
                },
                "facts": dict(facts),
            }
            | more
        )

    def add_round(self, rotation: Rotation) -> None:
        """The round that has just been finished."""
        last = rotation.rounds_done - 1
        slices = {
            series.contender.name: {
                "value": series.values[last],
                "outcome": asdict(shortened(series.outcomes[last])),
            }
            for series in rotation.running()
        }
        self.write({"round": rotation.rounds_done, "slices": slices})

    def add_problem(self, series: Series) -> None:
        self.write(
            {
                "contender": series.contender.name,
                "problem": series.problem,
                "last_words": series.last_words,
            }
        )


def shortened(outcome: Outcome) -> Outcome:
    return replace(
        outcome,
        stdout=outcome.stdout[-KEPT_OUTPUT_CHARACTERS:],
        stderr=outcome.stderr[-KEPT_OUTPUT_CHARACTERS:],
    )


def read(path: Path) -> tuple[dict, Rotation]:
    """The head of a journal and the rotation as far as it went."""
    head, rotation, later = begin_reading(path)
    for number, line in later:
        if line is None:
            break
        try:
            replay(rotation, line)
        except DAMAGE as error:
            raise UserError(f"{path}: line {number} is damaged: {error}", 2) from error
    return head, rotation


def begin_reading(path: Path) -> tuple[dict, Rotation, list[tuple[int, dict | None]]]:
    """The head of a journal, its rotation before the first round, and the lines that follow with
    their numbers: None for one that is no JSON object."""
    lines = [entry_of(line) for line in lines_of(path)]
    if not lines or lines[0] is None or "contenders" not in lines[0]:
        raise UserError(f"{path} is no journal of rounds{what_it_is(path)}", 2)
    try:
        return lines[0], empty_rotation(lines[0]), list(enumerate(lines[1:], 2))
    except DAMAGE as error:
        raise UserError(f"{path}: line 1, which says what was measured, is damaged", 2) from error


# What a line of another shape does to whoever takes it for one of ours.
DAMAGE = (KeyError, TypeError, AttributeError, ValueError, re.error)
TRACE_MAGIC = b"HAKTRACE"


def what_it_is(path: Path) -> str:
    """For a file that is often mistaken for a journal."""
    with suppress(OSError), path.open("rb") as file:
        start = file.read(1 << 12)
        if start.startswith(TRACE_MAGIC):
            return ": it is a trace, which hakmem replay takes"
        if start.startswith(b"{\n") and b'"made_by": "hakmem ' in start:
            return ": it is what --json wrote; the journal ends in .jsonl"
    return ""


def lines_of(path: Path) -> list[str]:
    return read_text(path).removesuffix("\n").split("\n")


def entry_of(line: str) -> dict | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def whole_lines(path: Path) -> Sequence[dict]:
    """Those before the first that is damaged."""
    entries = (entry_of(line) for line in lines_of(path))
    return list(takewhile(lambda entry: entry is not None, entries))


def empty_rotation(head: Mapping) -> Rotation:
    metric = head["metric"]
    pattern = re.compile(metric["pattern"]) if metric["pattern"] else None
    series = {
        name: Series(
            Contender(
                name,
                tuple(row["command"]),
                Path(row["preload"]) if row["preload"] else None,
                row["settings"],
            )
        )
        for name, row in head["contenders"].items()
    }
    found = Metric(pattern, metric["higher_is_better"], metric["unit"])
    seed = head["seed"]
    if not isinstance(seed, int) or seed < 0:
        raise ValueError("the seed is no number from 0 on")
    return Rotation(found, seed, head["cpus"], series)


def replay(rotation: Rotation, line: Mapping) -> None:
    """Adds what a line says, or nothing of it where it is not as Journal writes it."""
    if "problem" in line:
        series = rotation.series[line["contender"]]
        series.problem, series.last_words = text_of(line, "problem"), text_of(line, "last_words")
        return
    if "round" not in line:
        # What else a command has to say of its run is for that command to read.
        return
    # The rounds before may be damaged, and left out.
    if not line["slices"] or line["round"] <= rotation.rounds_done:
        raise ValueError("it is no round that follows")
    slices = [
        (rotation.series[name], figure_of(part["value"]), outcome_of(part["outcome"]))
        for name, part in line["slices"].items()
    ]
    for series, value, outcome in slices:
        series.values.append(value)
        series.outcomes.append(outcome)
    rotation.rounds_done += 1


def text_of(line: Mapping, name: str) -> str:
    if not isinstance(line[name], str):
        raise TypeError(f"{name} is no text")
    return line[name]


def figure_of(value: object) -> float:
    if not is_figure(value):
        raise ValueError(f"a figure is no number {FIGURE_BOUNDS}")
    return value


KINDS = {"int": int, "float": (int, float), "str": str, "int | None": (int, type(None))}


def outcome_of(given: Mapping) -> Outcome:
    found = Outcome(**given)
    for one in fields(found):
        value = getattr(found, one.name)
        is_odd = isinstance(value, (int, float)) and not 0 <= value < math.inf
        if is_odd or not isinstance(value, KINDS[one.type]):
            raise ValueError(f"{one.name} of a run is of the wrong type")
    return found
