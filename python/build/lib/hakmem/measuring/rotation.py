"""Paired measurement: every contender runs once a round, in an order shuffled anew each round.

On a shared machine speed drifts within minutes; contenders are compared within a round only.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hakmem.allocators.peers import Allocator
from hakmem.errors import UserError
from hakmem.running.interruption import held
from hakmem.running.launching import Outcome, Start
from hakmem.running.witness import BY_ITSELF, Runner

if TYPE_CHECKING:
    from hakmem.measuring.journal import Journal

# Beyond these a figure is none, and squares and quotients of two would be none either.
FIGURE_LEAST, FIGURE_MOST = 1e-30, 1e30
FIGURE_BOUNDS = f"from {FIGURE_LEAST:g} to {FIGURE_MOST:g}"
SHOWN_CHARACTERS = 40
# A line whose figure is none is found too: its run has failed, and no other figure is taken for it.
THROUGHPUT = re.compile(
    r"Throughput\s*=\s*([0-9.]+(?:[eE][+-]?[0-9]+)?|[+-]?(?:nan|inf(?:inity)?)\b)", re.IGNORECASE
)


@dataclass(frozen=True)
class Metric:
    """How a run's figure is read: a pattern over its output, or wall time without one."""

    pattern: re.Pattern[str] | None
    higher_is_better: bool
    unit: str

    def read(self, outcome: Outcome) -> float | None:
        if self.pattern is None:
            return outcome.wall_s
        found = self.pattern.search(outcome.stdout) or self.pattern.search(outcome.stderr)
        if found is None:
            return None
        try:
            return float(found[1])
        except (TypeError, ValueError):
            return None

    def cost(self, value: float) -> float:
        return 1.0 / value if self.higher_is_better else value

    def why_none(self, outcome: Outcome) -> str:
        """What is wrong with a run whose figure is none."""
        if self.pattern is None:
            return "it took no time"
        found = self.pattern.search(outcome.stdout) or self.pattern.search(outcome.stderr)
        is_usual = self.pattern is THROUGHPUT
        asked = "'Throughput ='" if is_usual else f"'{self.pattern.pattern}'"
        if found is None:
            return f"nothing in its output fits {asked}"
        if found[1] is None:
            return f"{asked} fits '{shortened(found[0])}', but its first group is not part of that"
        what = "is no number" if self.read(outcome) is None else f"is not {FIGURE_BOUNDS}"
        return f"{asked} finds '{shortened(found[1])}', which {what}"

    @property
    def direction(self) -> str:
        return "higher is better" if self.higher_is_better else "lower is better"


def is_figure(value: object) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and FIGURE_LEAST <= value <= FIGURE_MOST
    )


def shortened(text: str) -> str:
    """For a message of one line."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"


OPS_PER_SECOND = Metric(THROUGHPUT, True, "ops/s")
WALL_TIME = Metric(None, False, "s")


def custom_metric(expression: str, lower_is_better: bool) -> Metric:
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise UserError(f"--metric: '{expression}' is no regular expression: {error}", 2) from error
    if not pattern.groups:
        raise UserError(
            f"--metric: '{expression}' has no group, such as ([0-9.]+), around the figure", 2
        )
    return Metric(pattern, not lower_is_better, "")


WALL_METRIC_NAME = "wall"


@dataclass(frozen=True)
class Contender:
    """One row of a comparison: a command line with a library preloaded, or none."""

    name: str
    command: tuple[str, ...]
    preload: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    # Above 0 its memory is looked at while it runs, and after so long a span of rest.
    idle_s: float = 0.0
    # Above 0: a run that takes longer is ended, and counts as failed.
    limit_s: float = 0.0
    runner: Runner = BY_ITSELF

    def run(self, cpus: str | None = None) -> Outcome:
        how = (self.preload, cpus, self.settings, self.idle_s, self.limit_s)
        return self.runner.run(Start(self.command, *how))


def require_metric(
    expression: str | None, lower_is_better: bool, names: Sequence[str] = (WALL_METRIC_NAME,)
) -> None:
    """Refuses a bad --metric before anything runs, and a direction of none. Times, which have
    `names`, have their own."""
    if expression in names:
        if lower_is_better:
            raise UserError(f"--lower-is-better: of --metric {expression} that is always so", 2)
    elif expression is not None:
        custom_metric(expression, lower_is_better)
    elif lower_is_better:
        raise UserError("--lower-is-better is the direction of --metric, which is not given", 2)


def contenders(allocators: Sequence[Allocator], command: Sequence[str]) -> list[Contender]:
    """The usable allocators, all with the same command line, each with its own settings."""
    usable = (a for a in allocators if a.usable)
    return [Contender(a.name, tuple(command), a.library, a.settings) for a in usable]


@dataclass
class Series:
    """All slices of one contender; `problem` says why it was taken out of the rotation."""

    contender: Contender
    values: list[float] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    problem: str = ""
    last_words: str = ""


@dataclass
class Rotation:
    """Rounds of slices. Stays readable when a run is interrupted: only whole rounds count."""

    metric: Metric
    seed: int
    cpus: str | None
    series: dict[str, Series]
    rounds_done: int = 0
    interrupted: bool = False

    def costs(self, name: str) -> list[float]:
        return [self.metric.cost(v) for v in self.series[name].values[: self.rounds_done]]

    def has_figures(self, name: str) -> bool:
        series = self.series.get(name)
        return series is not None and not series.problem and bool(series.values)

    @property
    def is_void(self) -> bool:
        """Whether it was interrupted before anything was measured: no file is replaced by that."""
        return self.interrupted and not self.rounds_done

    def running(self) -> list[Series]:
        return [s for s in self.series.values() if not s.problem]

    def lacks(self, rounds: int) -> bool:
        """Whether it has fewer, and somebody who could run more."""
        return self.rounds_done < rounds and bool(self.running())

    def step(self, row: Series) -> None:
        outcome = row.contender.run(self.cpus)
        value = None if outcome.problem else self.metric.read(outcome)
        if not is_figure(value):
            row.problem = outcome.problem or f"no figure: {self.metric.why_none(outcome)}"
            row.last_words = outcome.last_words()
            return
        with held():
            row.values.append(value)
            row.outcomes.append(outcome)


def new_rotation(
    rows: Sequence[Contender], metric: Metric, seed: int, cpus: str | None = None
) -> Rotation:
    return Rotation(metric, seed, cpus, {row.name: Series(row) for row in rows})


def run_rounds(
    rotation: Rotation,
    rounds: int,
    progress: Callable[[str], None] = lambda _name: None,
    log: Journal | None = None,
    order: Callable[[list[Series]], Iterable[Series]] | None = None,
) -> None:
    """Runs whole rounds; a contender that fails is taken out, Ctrl-C ends it early.

    `order` says in which order a round runs its contenders: at random without it.
    """
    shuffler = random.Random(rotation.seed)
    arrange = order or (lambda rows: shuffler.sample(rows, len(rows)))
    try:
        for _ in range(rounds):
            for row in arrange(rotation.running()):
                progress(row.contender.name)
                rotation.step(row)
                if row.problem and log is not None:
                    log.add_problem(row)
            if not rotation.running():
                break
            with held():
                rotation.rounds_done += 1
                if log is not None:
                    log.add_round(rotation)
    except KeyboardInterrupt:
        rotation.interrupted = True
