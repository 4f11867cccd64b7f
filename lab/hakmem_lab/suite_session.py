"""One run of a suite: its jobs, who takes part in each, and how a job is run: proof first, then
whole rounds into its journal. The folder holds plan.json, a journal for each job, and the results.

How much work each row does: a trial of the baseline scales it until a run takes the suite's slice.
A trial of every other allocator tells how long a round takes; where that exceeds the suite's time
limit, the longest rounds are cut first.
"""

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from hakmem import environment
from hakmem.allocators.peers import Allocator, bench_program, known_names
from hakmem.errors import UserError
from hakmem.measuring.rotation import OPS_PER_SECOND, WALL_TIME, Contender, Metric, Rotation
from hakmem.running.launching import Outcome
from hakmem.running.proof import hakmem_served, peer_served

from hakmem_lab import shell, static_peers
from hakmem_lab.shell import HAKMEM, Tick
from hakmem_lab.suite import MODES, PRELOAD, STATIC, Row, Suite


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
    return rotation is not None and not rotation.lacks(job.row.rounds_of(session.rounds))


CALIBRATION_TRIES = 4
# Near enough to the slice: another trial would cost more than it gains.
NEAR = 1.3
# Below this the start of a program and the clock's grain show in the figures.
SHORTEST_SLICE_S = 0.05
# Of a job, beside its rounds: the proof before, tables and plots after.
AROUND_JOB_S = 0.6


@dataclass(frozen=True)
class Trial:
    """What one round of a row takes, and what kind of figure it prints."""

    work: int
    round_s: float
    baseline_s: float
    is_throughput: bool
    scales: bool = True
    # How often a round is run, where the row has fewer than the suite.
    rounds: int = 0


def jobs_of(suite: Suite, rows: Sequence[Row], modes: Sequence[str]) -> list[Job]:
    """Every row in every mode it has; static binaries need a bench program."""
    return [
        Job(row, mode, row.work)
        for mode in MODES
        if mode in modes and mode in suite.modes
        for row in rows
        if mode != STATIC or row.static
    ]


def plan(session: Session, limit_s: float, tick: Tick) -> None:
    """Scales the work of all jobs so that they fit into the limit, where they can be cut.

    The trials themselves are part of the limit.
    """
    started = time.monotonic()
    trials: list[Trial | None] = []
    for position, job in enumerate(session.jobs):
        tick(f"trial: {job.row.name}")
        try:
            trial = try_job(session, job)
        except UserError as error:
            session.jobs[position] = replace(job, problem=error.message)
            trial = None
        trials.append(trial)
    around = AROUND_JOB_S * sum(trial is not None for trial in trials)
    left_s = limit_s - (time.monotonic() - started) - around
    cuts = fit(trials, session.rounds, left_s)
    for position, (trial, cut) in enumerate(zip(trials, cuts, strict=True)):
        if trial is not None:
            session.jobs[position] = scaled(session.jobs[position], trial, cut)


def try_job(session: Session, job: Job) -> Trial:
    """One run under each allocator; those that fail are left to the rounds to report."""
    rows, missing = contenders_of(session, job.row, job.mode, job.work)
    if not rows:
        raise UserError("; ".join(f"{name}: {why}" for name, why in missing.items()))

    def run(contender: Contender, work: int) -> Outcome:
        return with_work(contender, job.row, work).run(job.cpus)

    work, outcome = calibrate(job.row, lambda work: run(rows[0], work), session.slice_s)
    others = [run(row, work).wall_s for row in rows[1:]]
    is_throughput = OPS_PER_SECOND.read(outcome) is not None
    round_s = outcome.wall_s + sum(others)
    rounds = job.row.rounds_of(session.rounds)
    return Trial(work, round_s, outcome.wall_s, is_throughput, job.row.scales, rounds)


def calibrate(row: Row, run: Callable[[int], Outcome], slice_s: float) -> tuple[int, Outcome]:
    """The work with which a run takes about a slice; the row's own where a run fails."""
    work, (lowest, highest) = row.work, row.bounds
    outcome = run(work)
    for _ in range(CALIBRATION_TRIES):
        if not row.scales or outcome.problem or outcome.wall_s <= 0:
            break
        factor = slice_s / outcome.wall_s
        wanted = min(max(round_work(work * factor), lowest), highest)
        if 1 / NEAR < factor < NEAR or wanted == work:
            break
        work, outcome = wanted, run(wanted)
    return work, outcome


def round_work(work: float) -> int:
    """Two significant digits: the same machine gives the same arguments more often than not."""
    whole = max(1, round(work))
    unit = 10 ** max(0, len(str(whole)) - 2)
    return round(whole / unit) * unit


def fit(trials: Sequence[Trial | None], rounds: int, limit_s: float) -> list[float]:
    """The share of each job's work to keep: no round longer than the cap that meets the limit."""

    def cuts(cap: float) -> list[float]:
        return [
            1.0 if trial is None else min(1.0, max(least_cut(trial), cap / trial.round_s))
            for trial in trials
        ]

    def total(cap: float) -> float:
        pairs = zip(trials, cuts(cap), strict=True)
        return sum((trial.rounds or rounds) * trial.round_s * cut for trial, cut in pairs if trial)

    low, high = 0.0, max((trial.round_s for trial in trials if trial is not None), default=0.0)
    if total(high) <= limit_s:
        return cuts(high)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if total(middle) > limit_s else (middle, high)
    return cuts(low)


def least_cut(trial: Trial) -> float:
    return min(1.0, SHORTEST_SLICE_S / trial.baseline_s) if trial.scales else 1.0


def scaled(job: Job, trial: Trial, cut: float) -> Job:
    work = trial.work
    if job.row.scales and cut < 1:
        lowest, _ = job.row.bounds
        work = max(lowest, round_work(work * cut))
    share = work / trial.work if job.row.scales else 1.0
    return replace(job, work=work, round_s=trial.round_s * share, is_throughput=trial.is_throughput)


def estimate_s(session: Session, jobs: Sequence[Job]) -> float:
    return sum(
        job.row.rounds_of(session.rounds) * job.round_s + AROUND_JOB_S
        for job in jobs
        if not job.problem
    )
