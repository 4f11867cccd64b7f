"""All that is known of one comparison: its journal on disk, its JSON and its HTML.

Each piece goes into the journal as soon as it is known, so that a run which was killed can still be
reported (`hakmem compare --from`).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hakmem.errors import UserError
from hakmem.measuring import journal
from hakmem.measuring.journal import Journal
from hakmem.measuring.measures import Cell, Measure, evaluate, measures_for
from hakmem.measuring.rotation import Rotation
from hakmem.output import report
from hakmem.running.syscalls import SystemCalls

NOT_SERVED = "NOT SERVED"


@dataclass
class Comparison:
    """What has been found so far; an interrupt leaves the rest empty."""

    program: Sequence[str]
    baseline: str
    pairs: int
    facts: dict[str, str]
    # Allocators that were asked for and cannot be had, and why.
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    log: Journal | None = None
    served: dict[str, str] = field(default_factory=dict)
    rotation: Rotation | None = None
    figures: list[tuple[Measure, list[Cell]]] = field(default_factory=list)
    calls: dict[str, SystemCalls] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def rounds_done(self) -> int:
        return self.rotation.rounds_done if self.rotation else 0

    @property
    def problems(self) -> dict[str, str]:
        """Allocators without figures, or with another malloc's, and why."""
        found = dict(self.missing)
        for name, series in (self.rotation.series if self.rotation else {}).items():
            if series.problem:
                words = series.last_words.strip()
                found[name] = (
                    f"{series.problem}; it last said: {words}" if words else series.problem
                )
        for name, said in self.served.items():
            if said.startswith(NOT_SERVED):
                found.setdefault(name, f"{said}: its figures are another malloc's")
        return found

    @property
    def without_figures(self) -> list[str]:
        measured = {cell.name for _, cells in self.figures for cell in cells}
        return [name for name in self.problems if name not in measured]

    def begin_journal(self, rotation: Rotation) -> None:
        self.rotation = rotation
        if self.log is not None:
            self.log.begin(
                "compare",
                rotation,
                self.facts,
                program=list(self.program),
                baseline=self.baseline,
                pairs=self.pairs,
                missing=self.missing,
                notes=list(self.notes),
            )

    def add_proof(self, name: str, said: str, effective: Sequence[str] = ()) -> None:
        self.served[name] = said
        if effective:
            self.facts["effective settings"] = " ".join(effective)
        self._write({"served": {name: said}, "effective": list(effective)})

    def add_calls(self, name: str, counted: SystemCalls) -> None:
        self.calls[name] = counted
        self._write({"system_calls": {name: asdict(counted)}})

    def end(self) -> None:
        """Evaluates what was measured, against another baseline where that has no figures."""
        done = self.rounds_done
        if done:
            running = [series.contender.name for series in self.rotation.running()]
            if self.baseline not in running and running:
                self.notes.append(f"{self.baseline} has no figures: {running[0]} is the baseline")
                self.baseline = running[0]
            found = [(m, evaluate(self.rotation, m, self.baseline))
                     for m in measures_for(self.rotation.metric)]  # fmt: skip
            self.figures = [(measure, cells) for measure, cells in found if cells]
        self.notes += [
            f"system calls of {name}: {counted.note}"
            for name, counted in self.calls.items()
            if counted.note
        ]
        if self.interrupted:
            told = (
                f"after {done} of {self.pairs} rounds" if done else "before the first whole round"
            )
            self.notes.append(f"interrupted {told}")
        self._write({"ended": "interrupted" if self.interrupted else "done"})

    def _write(self, line: dict) -> None:
        if self.log is not None:
            self.log.write(line)


def from_journal(path: Path) -> Comparison:
    """The comparison a journal tells of; one that was killed counts as interrupted."""
    head, rotation = journal.read(path)
    try:
        found = Comparison(
            tuple(head["program"]),
            head["baseline"],
            head["pairs"],
            dict(head["facts"]) | {"measured": head["date"]},
            dict(head["missing"]),
            list(head["notes"]),
            rotation=rotation,
            interrupted=True,
        )
        for line in journal.whole_lines(path)[1:]:
            read_line(found, line)
    except (KeyError, TypeError) as error:
        raise UserError(f"--from: {path} is no journal of hakmem compare: {error}", 2) from error
    return found


def read_line(found: Comparison, line: dict) -> None:
    if "served" in line:
        for name, said in line["served"].items():
            found.add_proof(name, said, line["effective"])
    for name, counted in line.get("system_calls", {}).items():
        found.add_calls(name, SystemCalls(**counted))
    if "ended" in line:
        found.interrupted = line["ended"] != "done"


def document(found: Comparison) -> dict:
    """All runs and what was made of them, to be read by other tools."""
    return {
        "program": list(found.program),
        "facts": found.facts,
        "baseline": found.baseline,
        "seed": found.rotation.seed if found.rotation else None,
        "rounds": found.rounds_done,
        "interrupted": found.interrupted,
        "served": found.served,
        "problems": found.problems,
        "notes": found.notes,
        "system_calls": {name: c.total for name, c in found.calls.items()},
        "measures": [
            {
                "title": measure.title,
                "unit": measure.unit,
                "higher_is_better": measure.higher_is_better,
                "rows": [asdict(cell) for cell in cells],
            }
            for measure, cells in found.figures
        ],
    }


def html(found: Comparison) -> str:
    facts = dict(found.facts)
    facts |= {f"{name} served": said for name, said in found.served.items()}
    facts |= {f"{name} system calls": str(c) for name, c in found.calls.items()}
    title = shlex.join(found.program)
    return report.page(title, facts, found.figures, found.problems, found.notes, found.baseline)
