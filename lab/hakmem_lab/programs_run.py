"""Runs the programs of `hakmem programs`: rounds of all allocators, then the runs that tell more.

The figure of a round is CPU time, user and system, of the process tree. Whose malloc served, and
how many system calls were made, is asked in runs of their own that are not timed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from hakmem import environment
from hakmem.allocators.peers import Allocator
from hakmem.errors import UserError
from hakmem.measuring import journal
from hakmem.measuring.journal import Journal
from hakmem.measuring.rotation import Metric, Rotation, Series, new_rotation, run_rounds
from hakmem.running.launching import Outcome
from hakmem.running.syscalls import count_system_calls

from hakmem_lab.programs import Program
from hakmem_lab.programs_count import Counted, count_program
from hakmem_lab.programs_session import Session
from hakmem_lab.real_programs import RealContender, RealLoad



Tick = Callable[[str], None]


class CpuTime(Metric):
    """Of a run's process tree."""

    def read(self, outcome: Outcome) -> float | None:
        return outcome.cpu_s


CPU_TIME = CpuTime(None, False, "s")


@dataclass
class Measured:
    """One program: its rounds or counts, and what else is known, by allocator."""

    program: Program
    rotation: Rotation | None = None
    served: dict[str, str] = field(default_factory=dict)
    calls: dict[str, int | None] = field(default_factory=dict)
    counts: dict[str, Counted] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def add(self, line: dict) -> None:
        self.served |= line.get("served", {})
        self.calls |= line.get("calls", {})
        self.problems |= line.get("problems", {})
        for name, figures in line.get("counts", {}).items():
            self.counts[name] = Counted(**figures)


def cpus_of(program: Program) -> str:
    """One CPU, or two for a program with threads."""
    if program.threads == 1:
        return environment.default_cpu()
    return ",".join(map(str, environment.allowed_cpus()[-2:]))


def read(session: Session, program: Program) -> Measured | None:
    """What the journal of a program has, or nothing."""
    path = session.journal_path(program.name)
    lines = journal.whole_lines(path) if path.exists() else []
    if not lines:
        return None
    measured = Measured(program)
    if not session.counted:
        _, measured.rotation = journal.read(path)
        measured.rotation.metric = CPU_TIME
        for name, series in measured.rotation.series.items():
            if series.problem:
                measured.problems[name] = series.problem
    try:
        for line in lines:
            measured.add(line)
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged: {error}", 2) from error
    return measured


def missing(session: Session, measured: Measured | None) -> list[Allocator]:
    """Allocators of which something is still to be asked, rounds apart."""
    if measured is None:
        return session.allocators
    known = measured.counts if session.counted else measured.calls
    return [a for a in session.allocators if a.name not in known and a.name not in measured.problems]


def rounds_missing(session: Session, measured: Measured) -> int:
    rotation = measured.rotation
    if rotation is None or not rotation.running():
        return 0
    return max(0, session.rounds - rotation.rounds_done)


def is_done(session: Session, measured: Measured | None) -> bool:
    return measured is not None and not (
        missing(session, measured) or rounds_missing(session, measured)
    )


def run_program(session: Session, program: Program, inputs: Path, tick: Tick) -> Measured:
    """Runs what is missing; raises KeyboardInterrupt with all that is finished on disk."""
    tick(f"{program.name}: input")
    load = program.load(session.seed)
    size = program.scaled(session.scale, session.counted)
    # Another folder for each size: a run that goes on meets the same one.
    load.prepare(inputs / str(size), size)
    path = session.journal_path(program.name)
    log = Journal(path)
    measured = read(session, program)
    if measured is not None:
        log.drop_cut_line()
    if session.counted:
        measured = measured or Measured(program)
        for allocator in missing(session, measured):
            tick(f"{program.name}: {allocator.name}")
            note(measured, log, count_program(load, allocator, session.limit_s))
        return measured
    rows = contenders_of(session, load)
    if measured is None:
        path.unlink(missing_ok=True)
        rotation = new_rotation(list(rows.values()), CPU_TIME, session.seed, cpus_of(program))
        log.begin("programs", rotation, {}, program=program.name, size=size)
        measured = Measured(program, rotation)
    for series in measured.rotation.running():
        # A journal does not tell the limit, nor the output that is expected.
        series.contender = rows[series.contender.name]
    if rounds := rounds_missing(session, measured):
        run_rounds(measured.rotation, rounds, lambda name: tick(f"{program.name}: {name}"), log)
    if measured.rotation.interrupted:
        raise KeyboardInterrupt
    for name, series in measured.rotation.series.items():
        if series.problem:
            measured.problems[name] = with_words(series)
    for allocator in missing(session, measured):
        tick(f"{program.name}: proof: {allocator.name}")
        note(measured, log, ask(load, rows[allocator.name], allocator, session.limit_s))
    return measured


def with_words(series: Series) -> str:
    last = series.last_words.strip().splitlines()
    return f"{series.problem} ({last[-1].strip()})" if last else series.problem


def note(measured: Measured, log: Journal, line: dict) -> None:
    measured.add(line)
    log.write(line)


def contenders_of(session: Session, load: RealLoad) -> dict[str, RealContender]:
    return {
        a.name: replace(load.contender(a), limit_s=session.limit_s) for a in session.allocators
    }


def ask(load: RealLoad, row: RealContender, allocator: Allocator, limit_s: float) -> dict:
    """Whose malloc served, and the number of system calls: of servers with clients none."""
    served = load.served(allocator)
    calls = None
    if not load.is_server:
        # Ten times is what strace costs a program that does little else.
        calls = count_system_calls(row.command, row.preload, row.settings, 10 * limit_s or 1e6).total
    return {"served": {allocator.name: served}, "calls": {allocator.name: calls}}


def run_all(session: Session, inputs: Path, tick: Tick, told: Callable[[Measured, float], None]) -> bool:
    """Program after program; False when it was interrupted."""
    for program in session.programs:
        begun_at = time.monotonic()
        if is_done(session, read(session, program)):
            continue
        try:
            measured = run_program(session, program, inputs, tick)
        except KeyboardInterrupt:
            return False
        except UserError as error:
            session.broken[program.name] = error.message
            continue
        told(measured, time.monotonic() - begun_at)
    return True


def all_measured(session: Session) -> list[Measured]:
    """Every program that has a whole round, or a count."""
    found = (read(session, program) for program in session.programs)
    return [
        one for one in found
        if one is not None and (one.counts or one.problems or (one.rotation and one.rotation.rounds_done))
    ]  # fmt: skip
