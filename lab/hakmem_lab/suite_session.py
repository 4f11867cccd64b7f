"""One run of a suite: what was planned, in a folder, so that a stopped run can be continued.

The folder holds plan.json, a journal for each job, and the results made of them. Libraries are
remembered by checksum: rounds of two builds must not end up in one row.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hakmem import environment
from hakmem.allocators import cache
from hakmem.allocators.peers import Allocator, bench_program, find
from hakmem.documents import write_json
from hakmem.errors import UserError
from hakmem.inputs import read_whole
from hakmem.measuring.rotation import OPS_PER_SECOND, WALL_TIME, Contender, Metric
from hakmem.plain_text import parse_json

from hakmem_lab import static_peers
from hakmem_lab.real_programs import LOADS, RealLoad
from hakmem_lab.suite import STATIC, Row

PLAN = "plan.json"
FLOOR = "floor"
# No slice takes a fifth of this; a program that hangs must not stop the suite.
RUN_LIMIT_S = 120.0
# Beside environment.SETTING_PREFIXES: what else can change how a malloc behaves.
MORE_PREFIXES = ("_RJEM_", "SNMALLOC_", "RPMALLOC_", "PERFTOOLS_", "HEAPPROFILE", "HEAPCHECK")
LOADER_VARIABLES = ("LD_PRELOAD", "LD_AUDIT", "LD_BIND_NOW", "LD_DEBUG", "LD_DEBUG_OUTPUT")


@dataclass(frozen=True)
class Job:
    """One row in one mode, with its work scaled; `problem` says why it cannot run at all."""

    row: Row
    mode: str
    work: int = 0
    round_s: float = 0.0
    is_throughput: bool = True
    problem: str = ""

    @property
    def key(self) -> str:
        return f"{self.row.name}.{self.mode}"

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.row.filled(self.work)

    @property
    def metric(self) -> Metric:
        if self.row.figure:
            return Metric(re.compile(rf"\b{re.escape(self.row.figure)}=(\d+)"), False, "")
        return OPS_PER_SECOND if self.is_throughput else WALL_TIME

    @property
    def cpus(self) -> str | None:
        return environment.default_cpu() if self.row.cpu == "one" else None

    @property
    def command_line(self) -> str:
        return shlex.join([self.row.program or self.row.load, *self.arguments])


@dataclass
class Session:
    """All that a run of a suite needs to go on after a stop."""

    folder: Path
    suite: str
    title: str
    rounds: int
    slice_s: float
    seed: int
    allocators: list[Allocator]
    settings: dict[str, str] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    served: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    # Inputs of real programs, gone at the end.
    scratch: TemporaryDirectory | None = None

    def scratch_folder(self) -> Path:
        if self.scratch is None:
            self.scratch = TemporaryDirectory(prefix="hakmem-bench-")
        return Path(self.scratch.name)

    def close(self) -> None:
        if self.scratch is not None:
            self.scratch.cleanup()
            self.scratch = None

    @property
    def baseline(self) -> str:
        return next(a.name for a in self.allocators if a.usable)

    def journal_path(self, job: Job) -> Path:
        return self.folder / f"{job.key}.jsonl"

    def save(self) -> None:
        write_json(self.folder / PLAN, "bench", as_json(self))


def as_json(session: Session) -> dict:
    return {
        "suite": session.suite,
        "title": session.title,
        "rounds": session.rounds,
        "slice_s": session.slice_s,
        "seed": session.seed,
        "settings": session.settings,
        "facts": session.facts,
        "served": session.served,
        "seconds": session.seconds,
        "allocators": [allocator_json(allocator) for allocator in session.allocators],
        "jobs": [asdict(job) for job in session.jobs],
    }


def allocator_json(allocator: Allocator) -> dict:
    library = allocator.library
    return asdict(allocator) | {
        "library": str(library) if library else None,
        "settings": dict(allocator.settings),
        "checksum": cache.checksum(library) if library and allocator.usable else "",
    }


def load(folder: Path) -> Session:
    """The session of a folder, with the allocators as they were; refuses changed libraries."""
    path = folder / PLAN
    try:
        plan = parse_json(read_whole(path))
        allocators = [read_allocator(entry) for entry in plan["allocators"]]
        names = ("suite", "title", "rounds", "slice_s", "seed")
        more = ("settings", "facts", "served", "seconds")
        return Session(
            folder,
            **{name: plan[name] for name in (*names, *more)},
            allocators=allocators,
            jobs=[read_job(entry) for entry in plan["jobs"]],
        )
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", 2) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no plan of a suite: {error}", 2) from error


def read_allocator(entry: Mapping) -> Allocator:
    known = {name: entry[name] for name in ("name", "version", "problem", "source", "settings")}
    return Allocator(**known, library=Path(entry["library"]) if entry["library"] else None)


def read_job(entry: Mapping) -> Job:
    row = dict(entry["row"])
    return Job(**{**entry, "row": Row(**{**row, "arguments": tuple(row["arguments"])})})


def require_unchanged(session: Session) -> None:
    """The libraries must be those that the rounds on disk were measured with."""
    plan = parse_json((session.folder / PLAN).read_bytes())
    for entry in plan["allocators"]:
        if not entry["checksum"]:
            continue
        path = Path(entry["library"])
        now = cache.checksum(path) if path.is_file() else "missing"
        if now != entry["checksum"]:
            what = "is not there any more" if now == "missing" else "has changed"
            raise UserError(f"{path} {what} since {session.folder} was begun: start anew", 2)


@contextmanager
def clean_environment() -> Iterator[dict[str, str]]:
    """Takes away what the user's environment would change in an allocator; gives what it was."""
    prefixes = (*environment.SETTING_PREFIXES, *MORE_PREFIXES)
    removed = {
        name: value
        for name, value in os.environ.items()
        if name in LOADER_VARIABLES
        or (name.startswith(prefixes) and name not in environment.OWN_VARIABLES)
    }
    for name in removed:
        del os.environ[name]
    try:
        yield removed
    finally:
        os.environ.update(removed)


def program_of(row: Row) -> str:
    """The path of a bench program; other programs are taken as they stand."""
    is_bench = row.program.startswith("bench_") and "/" not in row.program
    return str(bench_program(row.program)) if is_bench else row.program


def contenders_of(
    session: Session, row: Row, mode: str, work: int
) -> tuple[list[Contender], dict[str, str]]:
    """One for each allocator that can run this row, and why the others cannot."""
    rows, missing = unlimited_contenders(session, row, mode, work)
    return [replace(contender, limit_s=RUN_LIMIT_S) for contender in rows], missing


def unlimited_contenders(
    session: Session, row: Row, mode: str, work: int
) -> tuple[list[Contender], dict[str, str]]:
    wanted = list(session.allocators)
    if row.floor:
        wanted.append(find(FLOOR))
    missing = {a.name: a.problem for a in wanted if not a.usable and a.name != FLOOR}
    usable = [a for a in wanted if a.usable]
    if row.load:
        load = prepared_load(session, row)
        return [load.contender(a, session.settings) for a in usable], missing
    if mode == STATIC:
        linked = link_all(row, usable)
        missing |= {one.name: one.problem for one in linked if not one.usable}
        settings = session.settings
        rows = [one.contender(row.filled(work)) for one in linked if one.usable]
        return [with_settings(contender, settings) for contender in rows], missing
    command = (program_of(row), *row.filled(work))
    rows = [
        Contender(a.name, command, a.library, {**session.settings, **a.settings}) for a in usable
    ]
    return rows, missing


def prepared_load(session: Session, row: Row) -> RealLoad:
    """A real program with its input made; once a session and size."""
    load = LOADS[row.load]
    folder = session.scratch_folder() / (f"size-{row.size}" if row.size else "default-size")
    if load.folder is None or load.folder.parent != folder:
        load.prepare(folder, row.size or None)
    return load


def with_settings(contender: Contender, settings: Mapping[str, str]) -> Contender:
    return replace(contender, settings={**settings, **contender.settings})


def with_work(contender: Contender, row: Row, work: int) -> Contender:
    """The same row with another amount of work; a row without one stays as it is."""
    if not row.scales:
        return contender
    return replace(contender, command=(contender.command[0], *row.filled(work)))


def link_all(row: Row, allocators: list[Allocator]) -> list[static_peers.Linked]:
    sources = static_peers.program_sources(row.program)
    known = static_peers.linkable_names()
    return [
        static_peers.link(sources, a.name)
        if a.name in known
        else static_peers.Linked(a.name, problem="only its shared library is known")
        for a in allocators
    ]
