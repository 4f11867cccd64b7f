"""A session of variants: builds them, makes sure of them, and remembers what was compared."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hakmem import environment
from hakmem.allocators.peers import Allocator, known_names
from hakmem.errors import UserError
from hakmem.measuring import journal
from hakmem.options import chosen_allocators, require_distinct
from hakmem.running.proof import hakmem_served

from hakmem_lab.suite import MODES, PRELOAD, Row, Suite, catalogue, pick
from hakmem_lab.suite_plan import jobs_of
from hakmem_lab.suite_results import NOT_SERVED
from hakmem_lab.suite_run import HAKMEM, proof_work
from hakmem_lab.suite_session import Job, Session, contenders_of, prepared_load
from hakmem_lab.variants import BASE, Group, Variant
from hakmem_lab.variants_build import Source, build, compiler

# Long enough that the start of a program does not show, short enough for ten rounds of a group.
SLICE_S = 0.1


@dataclass(frozen=True)
class Asked:
    """What the command line asks of a comparison."""

    rounds: int
    seed: int
    wanted: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    peers: str = ""


def rows_of(group: Group, wanted: Sequence[str]) -> list[Row]:
    """The group's rows, or those asked for instead."""
    if wanted:
        return pick(catalogue(), wanted, "--rows")
    return pick(catalogue(), group.rows, f"group '{group.name}': rows")


def build_all(group: Group, source: Source, say: Callable[[str], None]) -> list[Allocator]:
    """The base and the variants; one that cannot be built keeps its place, with the reason."""
    built = []
    for variant in (Variant(BASE, f"commit {source.short} as it is"), *group.variants):
        allocator, was_known = build(variant, source)
        state = "known already" if was_known else "built"
        say(f"{variant.name}: {allocator.problem or f'{state}: {allocator.library}'}")
        built.append(allocator)
        if variant.name == BASE and not allocator.usable:
            raise UserError(f"the base cannot be built: {allocator.problem}")
    return built


def new_session(
    group: Group, source: Source, built: Sequence[Allocator], rows: Sequence[Row], asked: Asked
) -> Session:
    allocators = [*built, *(chosen_allocators(asked.peers, (), []) if asked.peers else [])]
    require_distinct([allocator.name for allocator in allocators])
    names = tuple(allocator.name for allocator in allocators)
    suite = Suite(group.name, group.title, asked.rounds, SLICE_S, 1, names, (PRELOAD,), tuple(rows))
    facts = environment.describe() | {
        "base": source.commit,
        "compiler": compiler(),
        "rounds": str(asked.rounds),
        "repeat": repeat_line(group, source, asked),
    }
    folder = journal.new_path("variants", "")
    folder.mkdir()
    return Session(
        folder, group.name, group.title, asked.rounds, SLICE_S, asked.seed, allocators,
        jobs=jobs_of(suite, rows, MODES), facts=facts,
    )  # fmt: skip


def repeat_line(group: Group, source: Source, asked: Asked) -> str:
    words = ["hakmem", "variants", group.name, "--base", source.short]
    words += ["--rounds", str(asked.rounds), "--seed", str(asked.seed)]
    for row in asked.wanted:
        words += ["--rows", row]
    if asked.only:
        words += ["--only", ",".join(asked.only)]
    if asked.peers:
        words += ["--with", asked.peers]
    return shlex.join(words)


def prove(session: Session) -> None:
    """hakmem's own counters: of the base in every row, of the variants in the first one.

    All are preloaded in the same way: a program that the base serves is served by each of them.
    """
    ready = [position for position, job in enumerate(session.jobs) if not job.problem]
    for position in ready:
        problem, _ = served_by(session, session.jobs[position], session.allocators[0])
        if problem:
            session.jobs[position] = replace(session.jobs[position], problem=f"{BASE}: {problem}")
    job = next((session.jobs[p] for p in ready if not session.jobs[p].problem), None)
    if job is None:
        return
    for position, allocator in enumerate(session.allocators):
        # Peers have been proved by the loader's word.
        if allocator.name in known_names() or not allocator.usable:
            continue
        problem, session.served[allocator.name] = served_by(session, job, allocator)
        if problem:
            problem = f"{job.row.name}: {problem}"
            session.allocators[position] = replace(allocator, problem=problem)


def served_by(session: Session, job: Job, allocator: Allocator) -> tuple[str, str]:
    """What is wrong with a short run of this row under one build, and what its counters say."""
    if job.row.load:
        said = prepared_load(session, job.row).served(replace(allocator, name=HAKMEM))
        return (NOT_SERVED if said == NOT_SERVED else ""), said
    rows, _ = contenders_of(session, job.row, job.mode, proof_work(job))
    row = next(row for row in rows if row.name == allocator.name)
    served = hakmem_served(row.command, row.preload, row.settings, row.limit_s)
    problem = served.outcome.problem or ("" if served else NOT_SERVED)
    return problem, str(served)
