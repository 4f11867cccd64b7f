"""One run of `hakmem drawn`, a journal for each seed: rounds, then runs that rest.

A run that rests takes its time asleep, and only its memory is looked at: these go side by side.
"""

import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

import psutil
from hakmem.allocators.peers import bench_program, find
from hakmem.errors import UserError
from hakmem.measuring import journal
from hakmem.measuring.journal import Journal
from hakmem.measuring.rotation import OPS_PER_SECOND, Contender, Rotation
from hakmem.running.launching import Outcome
from hakmem.running.proof import hakmem_served, peer_served

from hakmem_lab import shell
from hakmem_lab.shell import FLOOR, HAKMEM, Tick

PROGRAM = "bench_drawn"
SEEDS = re.compile(r"(\d+)(?:\.\.(\d+))?")
# More is a typing error.
SEEDS_MAX = 100_000


@dataclass(kw_only=True)
class Session(shell.Session):
    """One run of `hakmem drawn`; its seed is that of the order in the rounds."""

    seeds: list[int]
    scale: int
    rest_s: float
    floor: bool
    command = "drawn"

    def words(self, seed: int, *, scale: int = 0, check: bool = True, rest_ms: int = 0):
        """The arguments of the program; the floor's blocks overlap, so that it needs no check."""
        arguments = (seed, scale or self.scale, int(check), rest_ms)
        return (str(bench_program(PROGRAM)), *map(str, arguments))


def parse_seeds(text: str) -> list[int]:
    """The seeds of a list such as 7 or 1..50 or 1..20,90, none of them twice."""
    seeds: dict[int, None] = {}
    for part in text.split(","):
        found = SEEDS.fullmatch(part.strip())
        if found is None:
            raise UserError(f"--seeds: '{text}' is no list of seeds (such as 1..50 or 7,9)", 2)
        first = int(found[1])
        last = int(found[2] or first)
        if last < first:
            raise UserError(f"--seeds: {first}..{last} ends before it begins", 2)
        if last - first >= SEEDS_MAX or last >= 1 << 64:
            raise UserError(f"--seeds: {first}..{last} are too many, or too large", 2)
        if (twice := next((s for s in seeds if first <= s <= last), None)) is not None:
            raise UserError(f"--seeds: {twice} is given twice", 2)
        seeds |= dict.fromkeys(range(first, last + 1))
    return list(seeds)


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
    if measured is None or measured.rotation.lacks(session.rounds):
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
                found = said(done.result()).get("rest_kb")
                why = done.result().problem or (
                    "its output has no such figure" if found is None else ""
                )
                kind, figure = ("rest_problems", why) if why else ("rest_kb", found)
                getattr(measured, kind)[running[done]] = figure
                log.write({kind: {running[done]: figure}})
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


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
