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
from hakmem.measuring.measures import END_RSS, IDLE_RSS, Cell, Measure, evaluate, measures_for
from hakmem.measuring.rotation import Rotation
from hakmem.output import report, sentences
from hakmem.plain_text import some, with_last_words
from hakmem.running.launching import SystemCalls
from hakmem.running.proof import FAILED, NOT_SERVED

# When memory was looked at.
MEMORY_FACT, NOT_LOOKED_AT = "RSS after idle", "not looked at"
LINES_NAMED = 10


@dataclass
class Comparison:
    """What has been found so far; an interrupt leaves the rest empty."""

    program: Sequence[str]
    baseline: str
    pairs: int
    facts: dict[str, str]
    notes: list[str] = field(default_factory=list)
    log: Journal | None = None
    served: dict[str, str] = field(default_factory=dict)
    rotation: Rotation | None = None
    figures: list[tuple[Measure, list[Cell]]] = field(default_factory=list)
    calls: dict[str, SystemCalls] = field(default_factory=dict)
    interrupted: bool = False
    # Of the journal that it was read from: lines that are left out.
    damaged: list[int] = field(default_factory=list)
    # And rounds that it has no line of.
    missing_rounds: int = 0
    # What is told of a run, where that is not all that may be.
    measures: Sequence[Measure] = ()

    @property
    def rounds_done(self) -> int:
        return self.rotation.rounds_done if self.rotation else 0

    @property
    def is_kept_in_part(self) -> bool:
        return self.log is not None and bool(self.log.incomplete)

    @property
    def not_served(self) -> list[str]:
        """Allocators in whose place another malloc served the program."""
        return [name for name, said in self.served.items() if said.startswith(NOT_SERVED)]

    @property
    def problems(self) -> dict[str, str]:
        """Allocators without figures, or with another malloc's, and why."""
        found: dict[str, str] = {}
        for name, series in (self.rotation.series if self.rotation else {}).items():
            if series.problem:
                found[name] = with_last_words(series.problem, series.last_words)
        for name in self.not_served:
            found.setdefault(name, f"{self.served[name]}: its figures are another malloc's")
        for name, said in self.served.items():
            if said.startswith(FAILED):
                found.setdefault(name, said)
        return found

    @property
    def why_nothing(self) -> str:
        """One line for a comparison in which no allocator has a figure."""
        if self.interrupted and not self.problems:
            return "interrupted before the first whole round: there is nothing to show"
        return sentences.of_nothing(self.problems)

    @property
    def without_figures(self) -> list[str]:
        measured = {cell.name for _, cells in self.figures for cell in cells}
        return [name for name in self.problems if name not in measured]

    @property
    def warnings(self) -> list[str]:
        return sentences.of_noise(self.facts, self.figures)

    @property
    def summary(self) -> list[str]:
        """Resident memory after a rest where the program has one, else at its end."""
        titles = [measure.title for measure, _ in self.figures]
        unsaid = END_RSS.title if IDLE_RSS.title in titles else ""
        told = [(m, cells) for m, cells in self.figures if m.title != unsaid]
        return sentences.of_comparison(told, self.baseline, self.not_served)

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
            not_served = self.not_served
            running = [series.contender.name for series in self.rotation.running()]
            fitting = [name for name in running if name not in not_served] or running
            if self.baseline not in fitting and fitting:
                why = "did not serve" if self.baseline in running else "has no figures"
                self.notes.append(f"{self.baseline} {why}: {fitting[0]} is the baseline")
                self.baseline = fitting[0]
            measures = self.measures or measures_for(self.rotation.metric)
            found = [(m, evaluate(self.rotation, m, self.baseline, not_served)) for m in measures]
            self.figures = [(measure, cells) for measure, cells in found if cells]
            if self.facts.get(MEMORY_FACT, NOT_LOOKED_AT) != NOT_LOOKED_AT:
                self.notes += sentences.of_absent(measures, self.figures)
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
        if self.is_kept_in_part:
            self.notes.append(self.log.incomplete)

    def _write(self, line: dict) -> None:
        if self.log is not None:
            self.log.write(line)


def from_journal(path: Path) -> Comparison:
    """The comparison a journal tells of; one that was killed counts as interrupted.

    A line that is damaged is left out, which a note says. Only the last one may have been cut short
    by the end of the command that wrote it.
    """
    head, rotation, later = journal.begin_reading(path)
    try:
        require_texts(head)
        found = Comparison(
            tuple(head["program"]),
            head["baseline"],
            head["pairs"],
            {"measured": head["date"], **head["facts"]},
            notes=list(head["notes"]),
            rotation=rotation,
            interrupted=True,
        )
    except journal.DAMAGE as error:
        raise UserError(f"--from: {path} is no journal of hakmem compare", 2) from error
    left_out = [number for number, line in later if not was_read(found, line)]
    found.missing_rounds = missing_rounds(found, [line for _, line in later], len(left_out))
    if found.missing_rounds:
        found.notes.append(
            f"{found.missing_rounds} of the rounds are missing in {path}: these are the other "
            f"{rotation.rounds_done}"
        )
    if left_out:
        is_cut = left_out == [later[-1][0]] and not path.read_bytes().endswith(b"\n")
        found.damaged = [] if is_cut else left_out
        # What the last line said nobody knows: perhaps that it was done.
        if not is_cut and left_out[-1] == later[-1][0]:
            found.interrupted = False
        found.notes.append(told_damage(path, left_out, is_cut, rotation.rounds_done, found.pairs))
    return found


def missing_rounds(found: Comparison, lines: Sequence[dict | None], left_out: int) -> int:
    """Rounds below the highest number, and all that were asked for where it came to its end, that
    are in no line; each line that is left out may have been one."""
    numbers = [line["round"] for line in lines if line and isinstance(line.get("round"), int)]
    has_all = not found.interrupted and bool(found.rotation.running())
    last = found.pairs if has_all else min(max(numbers, default=0), found.pairs)
    return max(0, last - found.rounds_done - left_out)


def require_texts(head: dict) -> None:
    """Nothing else can be shown."""
    texts = [head["baseline"], head["date"], *head["program"], *head["notes"]]
    texts += head["facts"].values()
    if not all(isinstance(text, str) for text in texts) or not isinstance(head["pairs"], int):
        raise TypeError("what was measured is not told in words")


def told_damage(path: Path, numbers: Sequence[int], is_cut: bool, done: int, pairs: int) -> str:
    if is_cut:
        return f"line {numbers[0]} of {path} was cut short when its command ended, and is left out"
    lines, verb = ("line", "is") if len(numbers) == 1 else ("lines", "are")
    return (
        f"{lines} {some(numbers, LINES_NAMED)} of {path} {verb} damaged and left out: these are "
        f"the other {done} of {pairs} rounds"
    )


def was_read(found: Comparison, line: dict | None) -> bool:
    """Whether a line could be taken over, wholly."""
    if line is None:
        return False
    try:
        journal.replay(found.rotation, line)
        read_line(found, line)
    except journal.DAMAGE:
        return False
    return True


def read_line(found: Comparison, line: dict) -> None:
    if "served" in line:
        effective = " ".join(line["effective"]).split()
        for name, said in line["served"].items():
            found.add_proof(name, journal.text_of({name: said}, name), effective)
    for name, counted in line.get("system_calls", {}).items():
        calls = SystemCalls(**counted)
        if calls.total is not None:
            journal.figure_of(calls.total)
        found.add_calls(name, calls)
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
        "warnings": found.warnings,
        "summary": found.summary,
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
    return report.page(
        title,
        facts,
        found.figures,
        found.problems,
        found.notes,
        found.baseline,
        [*found.warnings, *found.summary],
    )
