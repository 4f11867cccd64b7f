"""Runs the loads of `hakmem memory` in rounds, in an order shuffled anew, each into a journal."""

import math
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from hakmem import environment
from hakmem.allocators.peers import Allocator, bench_program
from hakmem.errors import UserError
from hakmem.inputs import read_whole
from hakmem.measuring.journal import Journal
from hakmem.measuring.rotation import Contender
from hakmem.plain_text import parse_json, with_last_words

from hakmem_lab.control_group import ControlGroup, open_group
from hakmem_lab.memory_loads import Load, Variant, said

# None of them takes a third of this.
RUN_LIMIT_S = 300.0
KERNEL_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HAKMEM = "hakmem"
# Without the option, the figures would be those of the variant beside it.
UNKNOWN_OPTION = re.compile(r"^hakmem: (\w+ is not an option.*?)(?:: ignored)?$", re.MULTILINE)
Tick = Callable[[str], None]


@dataclass
class Series:
    """What one contender of a load gave in each round; a figure may be absent from some."""

    name: str
    rounds: list[dict[str, float]] = field(default_factory=list)
    problem: str = ""

    def values(self, figure: str) -> list[float]:
        return [one[figure] for one in self.rounds if figure in one]

    def middle(self, figure: str) -> float | None:
        """The median, and None where any round is without the figure: a goal was not reached."""
        found = self.values(figure)
        return median(found) if found and len(found) == len(self.rounds) else None


@dataclass
class Measured:
    """A load with what all contenders gave; `skipped` says why it could not be run."""

    load: Load
    series: dict[str, Series] = field(default_factory=dict)
    skipped: str = ""
    interrupted: bool = False

    def keep_whole_rounds(self) -> None:
        """Without the rounds that not all have had: pairs are of one round."""
        running = [s for s in self.series.values() if not s.problem]
        whole = min((len(s.rounds) for s in running), default=0)
        for series in running:
            del series.rounds[whole:]


@dataclass(frozen=True)
class Runner:
    """A contender, with the mode of the kernel it needs."""

    contender: Contender
    kernel_thp: str = ""
    problem: str = ""


def command_of(load: Load, is_quick: bool) -> tuple[str, ...]:
    """The command line; a bench program's path, or that of a program of the system."""
    name, *arguments = load.arguments(is_quick)
    path = name if "/" in name else str(bench_program(name))
    if shutil.which(path) is None:
        raise UserError(f"there is no {path}")
    return (path, *arguments)


def runners_of(load: Load, allocators: Sequence[Allocator], command: tuple) -> list[Runner]:
    """One for each allocator, and one for each variant of hakmem."""
    variants = load.variants or load.extra
    everyone = () if load.variants else allocators
    ours = next((a for a in allocators if a.name == HAKMEM), None)
    return [
        *(Runner(contender(a, command), problem=a.problem) for a in everyone),
        *(variant_runner(ours, variant, command) for variant in variants if ours is not None),
    ]


def contender(a: Allocator, command: tuple[str, ...]) -> Contender:
    return Contender(a.name, command, a.library, a.settings, limit_s=RUN_LIMIT_S)


def variant_runner(ours: Allocator, variant: Variant, command: tuple[str, ...]) -> Runner:
    own = contender(ours, command)
    row = replace(own, name=variant.name, settings={**own.settings, **variant.settings})
    return Runner(row, variant.kernel_thp, ours.problem)


def slices_of(load: Load, allocators: Sequence[Allocator], rounds: int) -> int:
    return rounds * (len(load.variants or allocators) + len(load.extra))


def run_load(
    load: Load,
    allocators: Sequence[Allocator],
    rounds: int,
    seed: int,
    is_quick: bool,
    log: Journal,
    tick: Tick,
) -> Measured:
    """All rounds of a load; one that fails under an allocator leaves that one out.

    Ctrl-C leaves the whole rounds.
    """
    measured = Measured(load)
    try:
        runners = runners_of(load, allocators, command_of(load, is_quick))
    except UserError as error:
        return Measured(load, skipped=error.message)
    if not runners:
        return Measured(load, skipped="it is about hakmem, which takes no part")
    measured.series = {
        r.contender.name: Series(r.contender.name, problem=r.problem) for r in runners
    }
    try:
        with open_group(load.cgroup_mb) as group:
            run_rounds(measured, runners, rounds, seed, group, log, tick)
    except UserError as error:
        measured.skipped = error.message
    except KeyboardInterrupt:
        measured.interrupted = True
        measured.keep_whole_rounds()
    return measured


def run_rounds(
    measured: Measured,
    runners: Sequence[Runner],
    rounds: int,
    seed: int,
    group: ControlGroup | None,
    log: Journal,
    tick: Tick,
) -> None:
    shuffler = random.Random(seed)
    for number in range(rounds):
        order = list(runners)
        shuffler.shuffle(order)
        for runner in order:
            series = measured.series[runner.contender.name]
            tick(f"{measured.load.name}, {series.name}")
            if series.problem:
                continue
            figures = one_round(measured.load, runner, group, series)
            if figures is not None:
                series.rounds.append(figures)
            log.write({"load": measured.load.name, "round": number, "contender": series.name,
                       "figures": figures, "problem": series.problem})  # fmt: skip


def one_round(
    load: Load, runner: Runner, group: ControlGroup | None, series: Series
) -> dict[str, float] | None:
    """The figures of a round, medians where it has several runs; None when a run failed."""
    cpus = environment.default_cpu() if load.pinned else None
    row = runner.contender
    if group is not None:
        row = replace(row, command=group.command(row.command))
    try:
        with kernel_mode(runner.kernel_thp):
            outcomes = [row.run(cpus) for _ in range(load.runs)]
    except UserError as error:
        series.problem = error.message
        return None
    may_be_killed = group is not None and all(o.signal_number in (0, 9) for o in outcomes)
    problem = next((o.problem for o in outcomes if o.problem), "")
    if problem and not may_be_killed:
        words = next(o.last_words(1) for o in outcomes if o.problem)
        series.problem = with_last_words(problem, words)
        return None
    if unknown := UNKNOWN_OPTION.search(outcomes[0].stderr):
        series.problem = unknown[1]
        return None
    figures: dict[str, float] = {}
    for figure in load.figures:
        values = [figure.read(o, said(o)) for o in outcomes]
        known = [value for value in values if value is not None]
        if len(known) == len(outcomes):
            figures[figure.name] = median(known)
    return figures


@contextmanager
def kernel_mode(wanted: str) -> Iterator[None]:
    """The system's mode of huge pages while the block runs; put back after it in any case."""
    if not wanted:
        yield
        return
    before = environment.thp_mode()
    if before == "none":
        raise UserError("this kernel has no huge pages on demand")
    try:
        KERNEL_THP.write_text(wanted)
    except OSError as error:
        raise UserError(f"cannot set {KERNEL_THP} to {wanted}: {error.strerror}") from error
    try:
        yield
    finally:
        KERNEL_THP.write_text(before)


def as_json(measured: Sequence[Measured]) -> list[dict]:
    return [
        {
            "load": one.load.name,
            "title": one.load.title,
            "skipped": one.skipped,
            "series": [
                {"name": s.name, "rounds": s.rounds, "problem": s.problem}
                for s in one.series.values()
            ],
        }
        for one in measured
    ]


def from_json(path: Path, loads: Sequence[Load]) -> list[Measured]:
    """What an earlier run wrote with --json."""
    known = {load.name: load for load in loads}
    try:
        document = parse_json(read_whole(path))
        entries = document.get("loads") if isinstance(document, dict) else None
        if not isinstance(entries, list):
            raise ValueError("it has no list of loads")
        found = [measured_of(entry, known, at) for at, entry in enumerate(entries, 1)]
        return [one for one in found if one is not None]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", 2) from error
    except ValueError as error:
        raise UserError(f"{path} has no figures of hakmem memory: {error}", 2) from error


def measured_of(entry: Mapping, known: Mapping[str, Load], number: int) -> Measured | None:
    """None for a load that this version does not have."""
    try:
        series = {s["name"]: series_of(s) for s in entry["series"]}
        load = known.get(entry["load"])
        return None if load is None else Measured(load, series, text_of(entry["skipped"]))
    except KeyError as error:
        raise ValueError(f"load {number} of it has no {error.args[0]}") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(f"load {number} of it has another shape") from error


def series_of(entry: Mapping) -> Series:
    for figures in entry["rounds"]:
        if not all(type(v) in (int, float) and math.isfinite(v) for v in figures.values()):
            raise TypeError("a figure is no number")
    return Series(text_of(entry["name"]), entry["rounds"], text_of(entry["problem"]))


def text_of(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value
