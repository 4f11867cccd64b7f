"""Rounds on disk as they finish: what a stopped run leaves, and what a report can be made of.

A journal is JSON lines: a head that says what is measured, then a line for each whole round and
for each contender that had to leave. A line that was cut short is ignored.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from hakmem import documents
from hakmem.errors import UserError
from hakmem.measuring.rotation import Contender, Metric, Rotation, Series
from hakmem.running.launching import Outcome

# Figures need no more of what a program wrote.
KEPT_OUTPUT_CHARACTERS = 2000
KEPT_RUNS = 20


def results_folder() -> Path:
    """HAKLAB_RESULTS, else hakmem in the user's state folder."""
    given = os.environ.get("HAKLAB_RESULTS")
    if given:
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "hakmem"


def new_path(command: str, suffix: str = ".jsonl") -> Path:
    """A name of its own for each run: command, time, process."""
    folder = results_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the results folder {folder}: {error.strerror}") from error
    moment = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    return folder / f"{command}-{moment}-{os.getpid()}{suffix}"


def prune(command: str, keep: int = KEPT_RUNS) -> None:
    """Removes what older runs of a command have left, but for the newest `keep` of them."""
    runs: dict[str, list[Path]] = {}
    for path in results_folder().glob(f"{command}-[0-9]*"):
        runs.setdefault(path.stem, []).append(path)
    for stem in sorted(runs)[:-keep]:
        for path in runs[stem]:
            path.unlink(missing_ok=True)


@contextmanager
def named_in_errors(words: str) -> Iterator[None]:
    """What is safe, behind the message of what could not be written."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error.message}{words}", error.exit_code) from error


@dataclass
class Journal:
    """Appends a rotation's rounds to a file; every line is on its way to disk when it returns."""

    path: Path

    def write(self, line: Mapping) -> None:
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}") from error

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
    lines = list(whole_lines(path))
    if not lines or "contenders" not in lines[0]:
        raise UserError(f"{path} is no journal of rounds", 2)
    head, later = lines[0], lines[1:]
    try:
        rotation = empty_rotation(head)
        for line in later:
            replay(rotation, line)
    except (KeyError, TypeError, AttributeError, ValueError, re.error) as error:
        raise UserError(f"{path} is not readable as a journal: {error}", 2) from error
    return head, rotation


def whole_lines(path: Path) -> Sequence[dict]:
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", 2) from error
    found = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(entry, dict):
            break
        found.append(entry)
    return found


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
    return Rotation(found, head["seed"], head["cpus"], series)


def replay(rotation: Rotation, line: Mapping) -> None:
    if "problem" in line:
        series = rotation.series[line["contender"]]
        series.problem, series.last_words = line["problem"], line["last_words"]
        return
    if "round" not in line:
        # What else a command has to say of its run is for that command to read.
        return
    for name, part in line["slices"].items():
        if refusal := rotation.metric.refusal(part["value"]):
            raise ValueError(refusal)
        rotation.series[name].values.append(part["value"])
        rotation.series[name].outcomes.append(Outcome(**part["outcome"]))
    rotation.rounds_done = line["round"]
