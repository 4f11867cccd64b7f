"""`hakmem bench`: the project's own suites against all peers, as a matrix."""

import time
from collections.abc import Sequence

import click
import psutil
from hakmem import documents, environment, options
from hakmem.allocators.peers import USUAL_HELP
from hakmem.allocators.settings import settings_for
from hakmem.errors import INTERRUPTED, UserError
from hakmem.measuring import journal
from hakmem.output import tables
from hakmem.running.interruption import only_once
from rich.console import Console

from hakmem_lab.shell import PLAN, clean_environment, end_interrupted, facts_of
from hakmem_lab.suite import MODES, Row, load_suite, pick, suite_names
from hakmem_lab.suite_results import RowResult, collect, row_result, write_figures
from hakmem_lab.suite_session import (
    Session,
    estimate_s,
    is_done,
    jobs_of,
    plan,
    prove_peers,
    run_job,
)
from hakmem_lab.suite_tables import show

DEFAULT_SUITE = "quick"


@click.command()
@click.option("--list", "list_only", is_flag=True, help="Show suites, or the rows of SUITE.")
@options.rows_option("Only these rows")
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=click.Choice(MODES),
    help="Only one binary under LD_PRELOAD, or only separate binaries.",
)
@options.number_option("--rounds", "Instead of the suite's own number.", least=1)
@options.allocator_options(f"{USUAL_HELP}, or what the file of a suite names")
@options.set_option(
    "A variable for every program; settings of allocators in your environment are taken away."
)
@options.seed_option()
@options.resume_folder_option("make its reports")
@click.argument("suite", required=False, shell_complete=options.completing(suite_names))
def bench(**given) -> None:
    """Run SUITE (default: quick) under hakmem and its peers, in rounds.

    SUITE is a name of `--list` or the path of a TOML file. Results go to a folder of their own:
    journals of the rounds, results.json and scenarios.csv. Ends with status 1 when something asked
    for has no figures, 130 after Ctrl-C; `--resume` goes on then.
    """
    console = tables.make_console()
    if given["list_only"]:
        options.refuse_beside("--list runs nothing", {"list_only", "suite"})
        list_suites(console, given["suite"])
        return
    with clean_environment() as removed, only_once():
        if given["resume"]:
            options.require_resume_alone(set())
            run_session(console, Session.load(given["resume"]))
        else:
            run_session(console, *begun(console, given, removed))


def run_session(console: Console, session: Session, limit_s: float | None = None) -> None:
    """All that is not done yet; then tables and files of what there is, and the exit status. A new
    session has a limit."""
    console.print(f"results: {session.folder}", soft_wrap=True)
    done: dict[str, RowResult] = {}
    try:
        if limit_s is not None:
            prepare(console, session, limit_s)
        run_all(console, session, done)
        interrupted = False
    except KeyboardInterrupt:
        interrupted = True
        # Before there was a plan there is nothing to go on with.
        if not (session.folder / PLAN).exists():
            console.print("interrupted before the first round")
            raise SystemExit(INTERRUPTED) from None
    session.save()
    rows = sum(is_done(session, job) for job in session.jobs)
    finished = not interrupted and rows == len(session.jobs)
    results = collect(session, documents.now(), finished, done)
    show(console, results)
    write_figures(results, session.folder)
    tables.print_facts(console, session.facts | results.allocators)
    console.print(f"took {minutes(session.seconds)}")
    if interrupted:
        end_interrupted(console, session, f"{rows} of {len(session.jobs)} rows")
    if any(row.problems() for row in results.rows):
        raise SystemExit(1)


def list_suites(console: Console, name: str | None) -> None:
    """All suites with their rows counted, or one suite with its rows."""
    rows = []
    if name is None:
        heads = ("suite", "rows", "allocators", "rounds", "what")
        for suite in map(load_suite, suite_names()):
            counts = (len(suite.rows), len(suite.allocators), suite.rounds)
            rows.append([suite.name, *map(str, counts), suite.title])
    else:
        suite = load_suite(name)
        heads = ("row", "group", "modes", "pinned", "program", "what")
        for row in suite.rows:
            modes = " ".join(job.mode for job in jobs_of(suite, [row], suite.modes))
            command = " ".join([row.program, *row.filled(row.work)])
            rows.append([row.name, row.group, modes, row.cpu, command, row.title])
        console.print(f"{suite.title}; {suite.rounds} rounds; {', '.join(suite.allocators)}")
    console.print(tables.figures_table("", heads, rows, heads))


def begun(console: Console, given: dict, removed: dict[str, str]) -> tuple[Session, float]:
    """A new session from the options, in a folder of its own, and its time limit."""
    suite = load_suite(given["suite"] or DEFAULT_SUITE)
    rows: Sequence[Row] = suite.rows
    if given["wanted"]:
        rows = pick(rows, given["wanted"], "--rows")
    rows = fitting(console, rows)
    jobs = jobs_of(suite, rows, given["modes"] or suite.modes)
    if not jobs:
        raise UserError(f"--mode: no row of suite '{suite.name}' has this mode", 2)
    notes: list[str] = []
    allocators = options.chosen_allocators(
        given["names"], given["libraries"], notes, usual=suite.allocators
    )
    settings = settings_for("--set", given["settings"], allocators, notes)
    seed = options.resolve_seed(given["seed"])
    rounds = given["rounds"] or suite.rounds
    built = (environment.compiler_of(a.library) for a in allocators if a.library)
    told = " ".join(f"{name}={value}" for name, value in settings.items())
    facts = facts_of(
        seed, (), removed, compiler=next(built, "unknown"), rounds=f"{rounds}, seed {seed}",
        settings=told or "none given, defaults everywhere",
    )  # fmt: skip
    session = Session(
        folder=journal.new_path("bench", ""), suite=suite.name, title=suite.title, rounds=rounds,
        slice_s=suite.slice_s, seed=seed, allocators=allocators, settings=settings,
        jobs=jobs, facts=facts,
    )  # fmt: skip
    tables.print_notes(console, notes)
    return session, 60 * suite.limit_minutes


def fitting(console: Console, rows: Sequence[Row]) -> list[Row]:
    """Those that fit into free memory; the others are named."""
    free_mb = psutil.virtual_memory().available >> 20
    for row in rows:
        if row.needed_mb > free_mb:
            told = f"it needs about {row.needed_mb:,} MB, and {free_mb:,} MB are free"
            console.print(f"{row.name}: passed over: {told}", soft_wrap=True)
    found = [row for row in rows if row.needed_mb <= free_mb]
    if not found:
        raise UserError("no row fits into memory")
    return found


def prepare(console: Console, session: Session, limit_s: float) -> None:
    """Scales the work, says how long it will take, writes the plan."""
    started = time.monotonic()
    console.print("preparing: a trial of every row under every allocator")
    with tables.progress_line(console, "preparing", 2 * len(session.jobs)) as progress:
        plan(session, limit_s, progress.tick)
        prove_peers(session, progress.tick)
    session.seconds = time.monotonic() - started
    session.save()
    seconds = estimate_s(session, session.jobs)
    names = ", ".join(a.name for a in session.allocators)
    console.print(
        f"{len(session.jobs)} rows, {session.rounds} rounds, {names}: about {minutes(seconds)}",
        soft_wrap=True,
    )


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def run_all(console: Console, session: Session, done: dict[str, RowResult]) -> None:
    """Every job that is not done; `done` gets the rows' figures."""
    todo = [job for job in session.jobs if not is_done(session, job)]
    done |= {job.key: row_result(session, job) for job in session.jobs if job not in todo}
    remaining = estimate_s(session, todo)
    with tables.progress_line(console, "rows", len(todo)) as progress:
        task = progress.task_ids[0]
        for number, job in enumerate(todo, 1):
            begun_at = time.monotonic()
            progress.update(task, description=job.row.name)
            seed = session.seed + session.jobs.index(job)
            rotation = run_job(session, job, seed, progress.say)
            seconds = time.monotonic() - begun_at
            session.seconds += seconds
            session.save()
            done[job.key] = row_result(session, job)
            results = collect(session, documents.now(), False, done)
            write_figures(results, session.folder)
            remaining -= estimate_s(session, [job])
            progress.update(task, advance=1)
            # Known after a trial.
            left = f"; about {minutes(max(remaining, 0))} left" if job.round_s else ""
            rounds = f"{rotation.rounds_done} rounds, {seconds:.1f} s"
            console.print(f"{number}/{len(todo)} {job.key}: {rounds}{left}")
