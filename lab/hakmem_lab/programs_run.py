"""One run of `hakmem programs`, in a folder with its plan and a journal for each program: rounds of
all allocators, then the runs that tell more.

The figure of a round is CPU time, user and system, of the process tree. Whose malloc served, and
how many system calls were made, is asked in runs of their own that are not timed. Counts under
valgrind, which has no rseq and runs one thread at a time, repeat: addresses, environment, folder,
hash seeds and CPU are the same.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from hakmem import environment, files
from hakmem.allocators.peers import Allocator
from hakmem.errors import UserError
from hakmem.measuring import journal
from hakmem.measuring.deciding import CPU_TIME
from hakmem.measuring.journal import Journal
from hakmem.measuring.rotation import Rotation
from hakmem.running.launching import count_system_calls

from hakmem_lab import shell
from hakmem_lab.programs import Program, RealLoad, chosen, read_catalogue
from hakmem_lab.shell import Tick

# Of one run of about a second, or under valgrind of a tenth: no more than what hangs.
LIMIT_S = 900.0
# First level and last level: size, ways, line. As TLBs a line is a page.
CACHES = ("--D1=32768,8,64", "--LL=1048576,8,64")
TLBS = ("--D1=262144,64,4096", "--LL=8388608,16,4096")
# 50 times slower means 50 times as many decays a step.
SETTINGS = {"HAKMEM_DECAY_MS": "600000", "HOME": "/nonexistent"}
# Of the caller nothing reaches the program: a longer environment or folder is more work.
STILL = ("/usr/bin/setarch", "-R", "/usr/bin/taskset", "-c", "0")
FIGURES = [
    re.compile(rf"{words}\s*([\d,]+)") for words in (r"I\s+refs:", r"D1\s+misses:", "LLd misses:")
]
NAMED = re.compile(r"(c?)ob=\((\d+)\)(?: (.*))?")
CALLS = re.compile(r"calls=(\d+)")


@dataclass(frozen=True)
class Counted:
    """One program under one allocator. Two calls into the library are a pair: what glibc's own
    malloc executes is not told apart from the C library's other work."""

    instructions: int
    l1: int
    l2: int
    tlb1: int
    tlb2: int
    library_instructions: int | None = None
    library_calls: int | None = None

    @property
    def estimate(self) -> float:
        """Cycles."""
        misses = 10 * self.l1 + 40 * self.l2 + 6 * self.tlb1 + 25 * self.tlb2
        return self.instructions / 3 + misses

    @property
    def per_pair(self) -> float | None:
        return 2 * self.library_instructions / self.library_calls if self.library_calls else None


def count_program(load: RealLoad, allocator: Allocator) -> dict:
    """A line for the journal: the counts, or why there are none."""
    try:
        instructions, l1, l2 = cachegrind(load, allocator, CACHES)
        _, tlb1, tlb2 = cachegrind(load, allocator, TLBS)
        own = of_library(load, allocator) if allocator.library else (None, None)
    except UserError as error:
        return {"problems": {allocator.name: error.message}}
    if own[0] == 0:
        return {"problems": {allocator.name: "NOT SERVED: its library was not executed"}}
    counted = Counted(instructions, l1, l2, tlb1, tlb2, *own)
    return {"counts": {allocator.name: asdict(counted)}}


def run(load: RealLoad, allocator: Allocator, *tool: str) -> None:
    row = load.contender(allocator, SETTINGS)
    given = dict(row.settings) | ({"LD_PRELOAD": str(row.preload)} if row.preload else {})
    words = (f"{name}={value}" for name, value in sorted(given.items()))
    valgrind = ("/usr/bin/valgrind", "--trace-children=yes", *tool)
    command = ("/usr/bin/env", "-i", "-C", "/", *words, *STILL, *valgrind, *row.command)
    outcome = replace(row, command=command, preload=None, settings={}, limit_s=LIMIT_S).run()
    if outcome.problem:
        raise UserError(f"under valgrind: {outcome.problem}")


def cachegrind(load: RealLoad, allocator: Allocator, caches: tuple[str, str]) -> list[int]:
    """Instructions, misses of the first and of the last level: sums over all processes."""
    with files.scratch_folder() as folder:
        where = ("--cachegrind-out-file=/dev/null", f"--log-file={folder}/%p")
        run(load, allocator, "--tool=cachegrind", "--cache-sim=yes", *caches, *where)
        log = "\n".join(path.read_text(errors="replace") for path in Path(folder).iterdir())
    found = [
        sum(int(text.replace(",", "")) for text in pattern.findall(log)) for pattern in FIGURES
    ]
    if not found[0]:
        raise UserError("valgrind told no count")
    return found


def of_library(load: RealLoad, allocator: Allocator) -> tuple[int, int]:
    """Instructions within the allocator's library, and calls into it, of all processes."""
    with files.scratch_folder() as folder:
        where = (f"--callgrind-out-file={folder}/%p.out", f"--log-file={folder}/%p.log")
        run(load, allocator, "--tool=callgrind", *where)
        parts = [within(path, allocator.library.resolve()) for path in Path(folder).glob("*.out")]
    return sum(part[0] for part in parts), sum(part[1] for part in parts)


def within(profile: Path, library: Path) -> tuple[int, int]:
    """Of one profile of callgrind: costs of lines in the library, calls to it from elsewhere."""
    objects: dict[str, bool] = {}
    own = callee = is_callees = False
    instructions = calls = 0
    with profile.open(errors="replace") as lines:
        for line in lines:
            if found := NAMED.match(line):
                called, number, name = found.groups()
                if name is not None:
                    objects[number] = Path(name.strip()).resolve() == library
                if called:
                    callee = objects[number]
                else:
                    own = objects[number]
            elif found := CALLS.match(line):
                # A callee without an object is in the caller's.
                calls += int(found[1]) if callee and not own else 0
                callee, is_callees = False, True
            elif line[0] in "0123456789+-*":
                # The line after calls= is the callee's cost.
                instructions += int(line.split()[1]) if own and not is_callees else 0
                is_callees = False
    return instructions, calls


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
    rotation = measured.rotation
    return not unasked(session, measured) and not (rotation and rotation.lacks(session.rounds))


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
