"""System calls of an operation once a program is warm: strace's counts of two lengths of a run.

Start and warm-up are in both counts, so the difference is what the additional operations cost.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from hakmem.documents import write_json
from hakmem.errors import UserError
from hakmem.inputs import read_whole
from hakmem.measuring.rotation import Contender
from hakmem.plain_text import parse_json
from hakmem.running.syscalls import count_system_calls

from hakmem_lab.suite import PRELOAD
from hakmem_lab.suite_session import Job, Session, contenders_of, with_work

FILE = "system-calls.json"
# Enough to tell one call in a hundred million operations; peers are shown, not judged.
OWN_OPERATIONS = 200_000_000
PEER_OPERATIONS = 20_000_000
TIME_LIMIT_S = 120
Tick = Callable[[str], None]


@dataclass(frozen=True)
class StepCalls:
    """Calls of a short and of a long run of a row under one allocator, or why there are none."""

    row: str
    title: str
    allocator: str
    short_operations: int = 0
    short_calls: int | None = None
    long_operations: int = 0
    long_calls: int | None = None
    note: str = ""


def per_operation(calls: StepCalls) -> float | None:
    """Fewer calls in the longer run are noise of the start: none for its operations."""
    if calls.short_calls is None or calls.long_calls is None:
        return None
    more = max(0, calls.long_calls - calls.short_calls)
    return more / (calls.long_operations - calls.short_operations)


def steady_jobs(session: Session) -> list[Job]:
    return [j for j in session.jobs if j.row.steady and j.mode == PRELOAD and not j.problem]


def count(session: Session, tick: Tick) -> list[StepCalls]:
    """Counts for every steady row and allocator of a session; its libraries must be there."""
    found = []
    for job in steady_jobs(session):
        rows, _ = contenders_of(session, job.row, job.mode, job.work)
        for row in rows:
            if row.name in {a.name for a in session.allocators}:
                tick(f"{job.row.name}, {row.name}")
                found.append(count_one(job, row, row.name == session.baseline))
    return found


def count_one(job: Job, row: Contender, is_own: bool) -> StepCalls:
    # The row's own length warms everything up.
    short = job.row.work
    long = short + (OWN_OPERATIONS if is_own else PEER_OPERATIONS)
    known = StepCalls(job.row.name, job.row.title, row.name, short, None, long)
    totals = []
    for work in (short, long):
        one = with_work(row, job.row, work)
        counted = count_system_calls(one.command, one.preload, one.settings, TIME_LIMIT_S)
        if counted.total is None:
            return StepCalls(**{**asdict(known), "note": counted.note})
        totals.append(counted.total)
    return StepCalls(**{**asdict(known), "short_calls": totals[0], "long_calls": totals[1]})


def save(folder: Path, calls: list[StepCalls]) -> None:
    write_json(folder / FILE, "scorecard", {"rows": [asdict(one) for one in calls]})


def load(folder: Path) -> list[StepCalls]:
    """What an earlier scorecard counted; empty when none did."""
    path = folder / FILE
    if not path.exists():
        return []
    try:
        return [StepCalls(**entry) for entry in parse_json(read_whole(path))["rows"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not readable: {error}", 2) from error
