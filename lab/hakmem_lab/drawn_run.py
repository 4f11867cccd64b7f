"""Runs the seeds of `hakmem drawn`: rounds of all allocators, then the runs that rest.

A run that rests takes its time asleep, and only its memory is looked at: these go side by side.
"""

import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

import psutil
from hakmem.allocators.peers import find
from hakmem.measuring import journal
from hakmem.measuring.journal import Journal
from hakmem.measuring.rotation import OPS_PER_SECOND, Contender, Rotation
from hakmem.running.launching import Outcome
from hakmem.running.proof import hakmem_served, peer_served

from hakmem_lab.drawn_session import Session
from hakmem_lab.shell import FLOOR, HAKMEM, Tick

# A load takes some 0.2 s under most allocators; the slowest here took 90 times that.
LIMIT_S = 60.0
# Loads have up to 512 MiB live, and an allocator may hold several times that.
REST_BYTES = 2 << 30
# The share of the work that shows whose malloc serves.
PROOF_SCALE = 1
MEMORY_LINE = re.compile(r"^Memory: (.*)$", re.MULTILINE)
MEMORY_WORD = re.compile(r"(\w+)=(\d+)")


@dataclass
class Measured:
    """A seed's rounds, and what each allocator held after the rest, in KiB."""

    seed: int
    rotation: Rotation
    rest_kb: dict[str, int] = field(default_factory=dict)
    rest_problems: dict[str, str] = field(default_factory=dict)


def said(outcome: Outcome) -> dict[str, int]:
    """What the program printed of its own memory."""
    found = MEMORY_LINE.search(outcome.stdout)
    return {name: int(value) for name, value in MEMORY_WORD.findall(found[1])} if found else {}


def contenders_of(session: Session, seed: int) -> list[Contender]:
    rows = [
        Contender(a.name, session.words(seed), a.library, a.settings, limit_s=LIMIT_S)
        for a in session.allocators
    ]
    if session.floor and (floor := find(FLOOR)).usable:
        command = session.words(seed, check=False)
        rows.append(Contender(FLOOR, command, floor.library, limit_s=LIMIT_S))
    return rows


def prove(session: Session, tick: Tick) -> None:
    """Whose malloc serves the program: hakmem's counter, for the others the loader's word."""
    command = session.words(session.seeds[0], scale=PROOF_SCALE)
    for a in session.allocators:
        tick(f"proof: {a.name}")
        if a.name == HAKMEM and a.library is not None:
            session.served[a.name] = str(hakmem_served(command, a.library, None, LIMIT_S))
        else:
            session.served[a.name] = peer_served(command, a, None, LIMIT_S)


def read(session: Session, seed: int) -> Measured | None:
    """What the journal of a seed has, or nothing."""
    _, rotation = session.read_rotation(f"seed-{seed}")
    if rotation is None:
        return None
    measured = Measured(seed, rotation)
    for line in journal.whole_lines(session.journal_path(f"seed-{seed}")):
        measured.rest_kb |= line.get("rest_kb", {})
        measured.rest_problems |= line.get("rest_problems", {})
    return measured


def is_done(session: Session, measured: Measured | None) -> bool:
    """Whether nothing of a seed is left to run."""
    if measured is None:
        return False
    rotation = measured.rotation
    if rotation.rounds_done < session.rounds and rotation.running():
        return False
    return not missing_rests(session, measured)


def missing_rests(session: Session, measured: Measured) -> list[str]:
    if not session.rest_s:
        return []
    running = [series.contender.name for series in measured.rotation.running()]
    known = {*measured.rest_kb, *measured.rest_problems, FLOOR}
    return [name for name in running if name not in known]


def run_seed(session: Session, seed: int, tick: Tick) -> Measured:
    """Runs what is missing; raises KeyboardInterrupt with all finished rounds on disk."""
    rows = contenders_of(session, seed)
    log, _ = session.run_rotation(
        f"seed-{seed}", rows, OPS_PER_SECOND, session.rounds, session.seed + seed, None,
        tick, lambda: {"drawn_seed": seed},
    )  # fmt: skip
    measured = read(session, seed)
    run_rests(session, measured, log, tick)
    return measured


def run_rests(session: Session, measured: Measured, log: Journal, tick: Tick) -> None:
    """One run of each allocator, as many at a time as fit into memory."""
    names = missing_rests(session, measured)
    if not names:
        return
    tick("rest")
    rest_ms = round(session.rest_s * 1000)
    command = session.words(measured.seed, rest_ms=rest_ms)
    limit_s = LIMIT_S * len(names) + session.rest_s
    rows = [
        Contender(a.name, command, a.library, a.settings, limit_s=limit_s)
        for a in session.allocators
        if a.name in names
    ]
    workers = max(1, min(len(rows), psutil.virtual_memory().available // REST_BYTES))
    with ThreadPoolExecutor(workers) as pool:
        try:
            running = {pool.submit(row.run): row.name for row in rows}
            for done in as_completed(running):
                note_rest(measured, log, running[done], done.result())
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def note_rest(measured: Measured, log: Journal, name: str, outcome: Outcome) -> None:
    found = said(outcome).get("rest_kb")
    if outcome.problem or found is None:
        measured.rest_problems[name] = outcome.problem or "its output has no such figure"
        log.write({"rest_problems": {name: measured.rest_problems[name]}})
    else:
        measured.rest_kb[name] = found
        log.write({"rest_kb": {name: found}})


def run_all(session: Session, tick: Tick, told: Callable[[Measured, float], None]) -> bool:
    """Seed after seed; False when it was interrupted."""
    for seed in session.seeds:
        begun_at = time.monotonic()
        if is_done(session, read(session, seed)):
            continue
        try:
            measured = run_seed(session, seed, tick)
        except KeyboardInterrupt:
            return False
        told(measured, time.monotonic() - begun_at)
    return True


def all_measured(session: Session) -> list[Measured]:
    """Every seed that has a whole round."""
    found = (read(session, seed) for seed in session.seeds)
    return [one for one in found if one is not None and one.rotation.rounds_done]


def problems(measured: Measured) -> Mapping[str, str]:
    """Allocators without figures at this seed, and why."""
    found = {name: s.problem for name, s in measured.rotation.series.items() if s.problem}
    return found | {name: f"at rest: {why}" for name, why in measured.rest_problems.items()}
