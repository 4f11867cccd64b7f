"""One run of a suite: its jobs, who takes part in each, and how a job is run: proof first, then
whole rounds into its journal.

The folder holds plan.json, a journal for each job, and the results made of them.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from hakmem import environment
from hakmem.allocators.peers import Allocator, bench_program, known_names
from hakmem.measuring.rotation import OPS_PER_SECOND, WALL_TIME, Contender, Metric, Rotation
from hakmem.running.proof import hakmem_served, peer_served

from hakmem_lab import shell, static_peers
from hakmem_lab.shell import HAKMEM, Tick
from hakmem_lab.suite import PRELOAD, STATIC, Row


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
        return shlex.join([self.row.program, *self.arguments])


@dataclass(kw_only=True)
class Session(shell.Session):
    """One run of a suite."""

    suite: str
    title: str
    slice_s: float
    settings: dict[str, str] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    seconds: float = 0.0
    command = "bench"
    # 100,000,000 blocks take some allocators minutes; a program that hangs must not stop the suite.
    limit_s = 600.0

    def plan(self) -> dict:
        return super().plan() | {"jobs": [asdict(job) for job in self.jobs]}

    @classmethod
    def load(cls, folder: Path) -> Self:
        found = super().load(folder)
        found.jobs = [read_job(entry) for entry in found.jobs]
        return found


def read_job(entry: Mapping) -> Job:
    row = dict(entry["row"])
    return Job(**{**entry, "row": Row(**{**row, "arguments": tuple(row["arguments"])})})


def program_of(row: Row) -> str:
    """The path of a bench program; other programs are taken as they stand."""
    is_bench = row.program.startswith("bench_") and "/" not in row.program
    return str(bench_program(row.program)) if is_bench else row.program


def contenders_of(
    session: Session, row: Row, mode: str, work: int
) -> tuple[list[Contender], dict[str, str]]:
    """One for each allocator that can run this row, and why the others cannot."""
    words, missing = row.filled(work), {}
    if mode == STATIC:
        linked = link_all(row, session.allocators)
        missing = {one.name: one.problem for one in linked if one.problem}
        rows = [one.contender(words) for one in linked if not one.problem]
    else:
        command = (program_of(row), *words)
        rows = [Contender(a.name, command, a.library, a.settings) for a in session.allocators]
    own = session.settings
    return [
        replace(r, settings={**own, **r.settings}, limit_s=session.limit_s) for r in rows
    ], missing


def with_work(contender: Contender, row: Row, work: int) -> Contender:
    """The same row with another amount of work; a row without one stays as it is."""
    if not row.scales:
        return contender
    return replace(contender, command=(contender.command[0], *row.filled(work)))


def link_all(row: Row, allocators: list[Allocator]) -> list[static_peers.Linked]:
    sources = static_peers.program_sources(row.program)
    return [
        static_peers.link(sources, a.name)
        if a.name in known_names()
        else static_peers.Linked(a.name, problem="only its shared library is known")
        for a in allocators
    ]


# The share of a row's work that is enough to see whose malloc serves it.
PROOF_SHARE = 50


def prove_peers(session: Session, tick: Tick) -> None:
    """Once a session: the loader's word that each library serves malloc of a bench program."""
    job = next((j for j in session.jobs if not j.problem and j.mode == PRELOAD), None)
    if job is None or session.served:
        return
    rows, _ = contenders_of(session, job.row, job.mode, proof_work(job))
    for allocator in session.allocators:
        row = next((row for row in rows if row.name == allocator.name), None)
        if row is None or allocator.name == HAKMEM:
            continue
        tick(f"proof: {allocator.name}")
        session.served[allocator.name] = peer_served(
            row.command, allocator, session.settings, row.limit_s
        )


def proof_work(job: Job) -> int:
    lowest, _ = job.row.bounds
    return max(lowest, job.work // PROOF_SHARE)


def prove_hakmem(session: Session, job: Job, rows: list[Contender]) -> str:
    """What hakmem's own counters say of a short run of this row; empty where it takes no part."""
    row = next((row for row in rows if row.name == HAKMEM), None)
    if row is None:
        return ""
    row = with_work(row, job.row, proof_work(job))
    served = hakmem_served(row.command, row.preload, row.settings, row.limit_s)
    if served.settings:
        session.facts["effective settings"] = " ".join(served.settings)
    return str(served)


def run_job(session: Session, job: Job, seed: int, tick: Tick) -> Rotation:
    """Runs what is missing of a job's rounds; Ctrl-C leaves the whole ones in its journal."""
    rows, missing = contenders_of(session, job.row, job.mode, job.work)

    def head() -> dict:
        served = prove_hakmem(session, job, rows)
        return {"job": asdict(job), "missing": missing, "served": served}

    rounds = job.row.rounds_of(session.rounds)
    _, rotation = session.run_rotation(
        job.key, rows, job.metric, rounds, seed, job.cpus, tick, head
    )
    return rotation


def is_done(session: Session, job: Job) -> bool:
    """Whether a job has all its rounds, or nobody left who could run more."""
    if job.problem:
        return True
    _, rotation = session.read_rotation(job.key)
    if rotation is None:
        return False
    return rotation.rounds_done >= job.row.rounds_of(session.rounds) or not rotation.running()
