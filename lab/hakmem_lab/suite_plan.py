"""How much work each row does, and how long a suite will take.

A trial of the baseline scales a row's work until a run takes the suite's slice. A trial of every
other allocator tells how long a round takes; where that exceeds the suite's time limit, the
longest rounds are cut first.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hakmem.errors import UserError
from hakmem.measuring.rotation import OPS_PER_SECOND, Contender
from hakmem.running.launching import Outcome

from hakmem_lab.shell import Tick
from hakmem_lab.suite import MODES, STATIC, Row, Suite
from hakmem_lab.suite_session import Job, Session, contenders_of, with_work

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
