"""Runs the jobs of a session: proof first, then whole rounds into the job's journal."""

from collections.abc import Callable
from dataclasses import asdict

from hakmem.measuring import journal
from hakmem.measuring.journal import Journal
from hakmem.measuring.rotation import Contender, Rotation, new_rotation, run_rounds
from hakmem.running.proof import hakmem_served, load_checked, peer_served

from hakmem_lab.suite import PRELOAD
from hakmem_lab.suite_session import Job, Session, contenders_of, prepared_load, with_work

# The share of a row's work that is enough to see whose malloc serves it.
PROOF_SHARE = 50
HAKMEM = "hakmem"
Tick = Callable[[str], None]


def load_check_all(session: Session) -> None:
    """Libraries that the loader refuses keep their column, with the reason."""
    session.allocators = [load_checked(allocator) for allocator in session.allocators]


def prove_peers(session: Session, tick: Tick) -> None:
    """Once a session: the loader's word that each library serves malloc of a bench program."""
    job = next(
        (j for j in session.jobs if not (j.problem or j.row.load) and j.mode == PRELOAD), None
    )
    if job is None:
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
    if job.row.load:
        return next((prepared_load(session, job.row).served(a) for a in session.allocators
                     if a.name == HAKMEM and a.usable), "")  # fmt: skip
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
    path = session.journal_path(job)
    log = Journal(path)
    if path.exists() and journal.whole_lines(path):
        log.drop_cut_line()
        _, rotation = journal.read(path)
        # A journal does not tell what else a contender does, such as looking at its output.
        for row in contenders_of(session, job.row, job.mode, job.work)[0]:
            rotation.series[row.name].contender = row
    else:
        path.unlink(missing_ok=True)
        rotation = begin(session, job, seed, log)
    missing = job.row.rounds_of(session.rounds) - rotation.rounds_done
    if missing > 0 and rotation.running():
        run_rounds(rotation, missing, tick, log)
    return rotation


def begin(session: Session, job: Job, seed: int, log: Journal) -> Rotation:
    rows, missing = contenders_of(session, job.row, job.mode, job.work)
    served = prove_hakmem(session, job, rows)
    rotation = new_rotation(rows, job.metric, seed, job.cpus)
    log.begin("bench", rotation, session.facts, job=asdict(job), missing=missing, served=served)
    return rotation


def is_done(session: Session, job: Job) -> bool:
    """Whether a job has all its rounds, or nobody left who could run more."""
    path = session.journal_path(job)
    if job.problem:
        return True
    if not path.exists() or not journal.whole_lines(path):
        return False
    _, rotation = journal.read(path)
    return rotation.rounds_done >= job.row.rounds_of(session.rounds) or not rotation.running()
