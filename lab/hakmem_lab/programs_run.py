"""One run of `hakmem programs`, in a folder with its plan and a journal for each program: rounds of
all allocators, then the runs that tell more.

The figure of a round is CPU time, user and system, of the process tree. Whose malloc served, and
how many system calls were made, is asked in runs of their own that are not timed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from hakmem import environment
from hakmem.allocators.peers import Allocator
from hakmem.errors import UserError
from hakmem.measuring import journal
from hakmem.measuring.deciding import CPU_TIME
from hakmem.measuring.journal import Journal
from hakmem.measuring.rotation import Rotation
from hakmem.running.syscalls import count_system_calls

from hakmem_lab import shell
from hakmem_lab.programs import Program, chosen, read_catalogue
from hakmem_lab.programs_count import LIMIT_S, Counted, count_program
from hakmem_lab.real_programs import RealLoad
from hakmem_lab.shell import Tick


@dataclass(kw_only=True)
class Session(shell.Session):
    """One run of `hakmem programs`; `names` have commas between."""

    catalogue: str
    names: str
    scale: int
    counted: bool
    # Programs that could not be run at all, and why: tried again by a run that goes on.
    broken: dict[str, str] = field(default_factory=dict)
    command = "programs"
    unsaved = (*shell.Session.unsaved, "broken")

    @property
    def programs(self) -> list[Program]:
        return chosen(read_catalogue(Path(self.catalogue)), "", self.names)


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
        """What a line of the journal says, rounds apart."""
        self.served |= line.get("served", {})
        self.calls |= line.get("calls", {})
        self.problems |= line.get("problems", {})
        if "problem" in line:
            words = [line["problem"], *line["last_words"].strip().splitlines()[-1:]]
            self.problems[line["contender"]] = ": ".join(words)
        for name, figures in line.get("counts", {}).items():
            self.counts[name] = Counted(**figures)

    @property
    def rounds(self) -> int:
        return self.rotation.rounds_done if self.rotation else 1


def read(session: Session, program: Program) -> Measured:
    """What the journal of a program has."""
    path = session.journal_path(program.name)
    measured = Measured(program)
    lines = journal.whole_lines(path) if path.exists() else []
    if lines and not session.counted:
        _, measured.rotation = session.read_rotation(program.name)
        measured.rotation.metric = CPU_TIME
    try:
        for line in lines:
            measured.add(line)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise UserError(f"{path} is damaged: {error}", 2) from error
    return measured


def unasked(session: Session, measured: Measured) -> list[Allocator]:
    """Allocators of which something is still to be told, rounds apart."""
    known = {*(measured.counts if session.counted else measured.calls), *measured.problems}
    return [a for a in session.allocators if a.name not in known]


def is_done(session: Session, measured: Measured) -> bool:
    if unasked(session, measured):
        return False
    rotation = measured.rotation
    return not rotation or not rotation.running() or rotation.rounds_done >= session.rounds


def run_program(session: Session, measured: Measured, inputs: Path, tick: Tick) -> Measured:
    """Runs what is missing; raises KeyboardInterrupt with all that is finished on disk."""
    program = measured.program
    tick(f"{program.name}: input")
    load = RealLoad(program, session.seed)
    load.prepare(inputs, program.scaled(session.scale, session.counted))
    log = Journal(session.journal_path(program.name))
    if session.counted and log.path.exists():
        log.drop_cut_line()
    if not session.counted:
        rows = [replace(load.contender(a), limit_s=LIMIT_S) for a in session.allocators]
        # Two for a program with threads.
        cpus = ",".join(map(str, environment.allowed_cpus()[-min(program.threads, 2) :]))
        session.run_rotation(
            program.name, rows, CPU_TIME, session.rounds, session.seed, cpus,
            lambda row: tick(f"{program.name}: {row}"), lambda: {"program": program.name},
        )  # fmt: skip
        measured = read(session, program)
    ask = count_program if session.counted else prove
    for allocator in unasked(session, measured):
        tick(f"{program.name}: {allocator.name}")
        line = ask(load, allocator)
        measured.add(line)
        log.write(line)
    return measured


def prove(load: RealLoad, allocator: Allocator) -> dict:
    """Whose malloc served, and the number of system calls: of servers with clients none."""
    row, calls = load.contender(allocator), None
    if not load.is_server:
        counted = count_system_calls(row.command, row.preload, row.settings, LIMIT_S)
        calls = counted.total
    name = allocator.name
    return {"served": {name: load.served(allocator)}, "calls": {name: calls}}


def run_all(session: Session, inputs: Path, tick: Tick, told: Callable[[Measured], None]) -> bool:
    """Program after program; False when it was interrupted."""
    for program in session.programs:
        measured = read(session, program)
        if is_done(session, measured):
            continue
        try:
            measured = run_program(session, measured, inputs, tick)
        except KeyboardInterrupt:
            return False
        except UserError as error:
            session.broken[program.name] = error.message
        else:
            told(measured)
    return True


def all_measured(session: Session) -> list[Measured]:
    """Every program that has a whole round, a count, or a failure."""
    found = (read(session, program) for program in session.programs)
    return [one for one in found if one.problems or one.counts or (one.rotation and one.rounds)]
