"""Runs the jobs of a session: proof first, then whole rounds into the job's journal."""

from dataclasses import asdict

from hakmem.measuring.rotation import Contender, Rotation
from hakmem.running.proof import hakmem_served, peer_served

from hakmem_lab.shell import HAKMEM, Tick
from hakmem_lab.suite import PRELOAD
from hakmem_lab.suite_session import Job, Session, contenders_of, with_work

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
