"""`hakmem bench`: the project's own suites against all peers, as a matrix."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem
from hakmem import documents, environment
from hakmem.allocators.peers import USUAL_HELP
from hakmem.allocators.settings import settings_for
from hakmem.destinations import output_option
from hakmem.documents import table_kind, write_text
from hakmem.errors import UserError
from hakmem.measuring import journal
from hakmem.options import (
    INTERRUPTED,
    FiniteRange,
    WholeRange,
    allocator_options,
    chosen_allocators,
    csv_option,
    html_option,
    json_option,
    refuse_beside,
    require_resume_alone,
    resolve_seed,
    resume_folder_option,
    rows_option,
    seed_option,
)
from hakmem.output import tables
from hakmem.running.interruption import only_once
from rich import box
from rich.console import Console
from rich.table import Table

from hakmem_lab import suite_files
from hakmem_lab.pages import page
from hakmem_lab.shell import PLAN, clean_environment, end_interrupted, facts_of
from hakmem_lab.suite import (
    MODES,
    Row,
    load_suite,
    pick,
    suite_names,
)
from hakmem_lab.suite_plan import estimate_s, jobs_of, nominal_s, plan
from hakmem_lab.suite_results import Results, RowResult, collect, row_result
from hakmem_lab.suite_run import is_done, load_check_all, prove_peers, run_job
from hakmem_lab.suite_session import Session
from hakmem_lab.suite_tables import show

DEFAULT_SUITE = "quick"
# Estimates are no better than this.
LIMIT_SLACK = 1.1
# What can be given together with --resume: only where results go.
OUTPUTS = {"csv_path", "json_path", "html_path", "scenario_path", "resume"}


def complete_suites(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(name) for name in suite_names() if name.startswith(incomplete)]


@click.command()
@click.option("--list", "list_only", is_flag=True, help="Show suites, or the rows of SUITE.")
@rows_option("Only these rows")
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=click.Choice(MODES),
    help="Only one binary under LD_PRELOAD, or only separate binaries.",
)
@click.option("--rounds", type=WholeRange(1), help="Instead of the suite's own number.")
@click.option(
    "--minutes",
    type=FiniteRange(min=0, min_open=True),
    help="Time limit to scale the work to, instead of the suite's own.",
)
@allocator_options(f"{USUAL_HELP}, or what the file of a suite names")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A variable for every program; settings of allocators in your environment are taken away.",
)
@seed_option()
@resume_folder_option("make its reports")
@csv_option(suite_files.COLUMNS)
@json_option()
@html_option()
@output_option(
    "--scenario-csv",
    "scenario_path",
    text="Write the scenarios' figures as CSV.",
    kind=table_kind(suite_files.SCENARIO_COLUMNS),
)
@click.argument("suite", required=False, shell_complete=complete_suites)
def bench(**given) -> None:
    """Run SUITE (default: quick) under hakmem and its peers, in rounds.

    SUITE is a name of `--list` or the path of a TOML file. Results go to a folder of their own:
    journals of the rounds, results.json, results.csv, scenarios.csv and report.html. Ends with
    status 1 when something asked for has no figures, 130 after Ctrl-C; `--resume` goes on then.
    """
    console = tables.make_console()
    if given["list_only"]:
        refuse_beside("--list runs nothing", {"list_only", "suite"})
        list_suites(console, given["suite"])
        return
    with clean_environment() as removed, only_once():
        started = time.monotonic()
        if given["resume"]:
            require_resume_alone(OUTPUTS)
            session = Session.load(given["resume"])
        else:
            session = begun(console, given, removed)
        console.print(f"results: {session.folder}", soft_wrap=True)
        done: dict[str, RowResult] = {}
        try:
            if given["resume"] is None:
                prepare(console, session, given, started)
            run_all(console, session, done)
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
            leave_if_unplanned(console, session)
            session.save()
        conclude(console, session, given, interrupted, done)


def leave_if_unplanned(console: Console, session: Session) -> None:
    """Ends here when the interrupt came before there was a plan to go on with."""
    if not (session.folder / PLAN).exists():
        session.folder.rmdir()
        console.print("interrupted before the first round")
        raise SystemExit(INTERRUPTED)


def list_suites(console: Console, name: str | None) -> None:
    """All suites with their rows counted, or one suite with its rows."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    if name is None:
        for title in ("suite", "rows", "allocators", "rounds", "about, min", "what"):
            table.add_column(title, overflow="fold")
        for suite in map(load_suite, suite_names()):
            minutes = nominal_s(suite, len(suite.allocators)) / 60
            counts = (len(suite.rows), len(suite.allocators), suite.rounds)
            table.add_row(suite.name, *map(str, counts), f"{minutes:.1f}", suite.title)
        console.print(table)
        return
    suite = load_suite(name)
    for title in ("row", "group", "modes", "pinned", "program", "what"):
        table.add_column(title, overflow="fold")
    for row in suite.rows:
        modes = " ".join(job.mode for job in jobs_of(suite, [row], suite.modes))
        command = " ".join([row.program, *row.filled(row.work)])
        table.add_row(row.name, row.group, modes, row.cpu, command, row.title)
    console.print(f"{suite.title}; {suite.rounds} rounds; {', '.join(suite.allocators)}")
    console.print(table)


def begun(console: Console, given: dict, removed: dict[str, str]) -> Session:
    """A new session from the options, in a folder of its own."""
    suite = load_suite(given["suite"] or DEFAULT_SUITE)
    rows: Sequence[Row] = suite.rows
    if given["wanted"]:
        rows = pick(rows, given["wanted"], "--rows")
    jobs = jobs_of(suite, rows, given["modes"] or suite.modes)
    if not jobs:
        raise UserError(f"--mode: no row of suite '{suite.name}' has this mode", 2)
    notes: list[str] = []
    allocators = chosen_allocators(
        given["names"], given["libraries"], notes, usual=suite.allocators
    )
    settings = settings_for("--set", given["settings"], allocators, notes)
    seed = resolve_seed(given["seed"])
    rounds = given["rounds"] or suite.rounds
    built = (environment.compiler_of(a.library) for a in allocators if a.usable and a.library)
    facts = facts_of(
        seed, (), removed, compiler=next(built, "unknown"), rounds=f"{rounds}, seed {seed}",
        settings=said(settings) or "none given, defaults everywhere",
    )  # fmt: skip
    folder = journal.new_path("bench", "")
    folder.mkdir()
    session = Session(
        folder=folder, suite=suite.name, title=suite.title, rounds=rounds, slice_s=suite.slice_s,
        seed=seed, allocators=allocators, settings=settings, jobs=jobs, facts=facts,
    )  # fmt: skip
    given["limit_s"] = 60 * (given["minutes"] or suite.limit_minutes)
    for note in notes:
        console.print(f"note: {note}", soft_wrap=True)
    return session


def said(settings: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def prepare(console: Console, session: Session, given: dict, started: float) -> None:
    """Checks the libraries, scales the work, says how long it will take, writes the plan."""
    console.print("preparing: a trial of every row under every allocator")
    load_check_all(session)
    with tables.progress_line(console, "preparing", 2 * len(session.jobs)) as progress:

        def tick(what: str) -> None:
            progress.update(progress.task_ids[0], advance=1, now=what)

        limit_s = given["limit_s"] - (time.monotonic() - started)
        plan(session, limit_s, tick)
        prove_peers(session, tick)
    session.seconds = time.monotonic() - started
    session.save()
    seconds = estimate_s(session, session.jobs)
    names = ", ".join(a.name for a in session.allocators if a.usable)
    console.print(
        f"{len(session.jobs)} rows, {session.rounds} rounds, {names}: about {minutes(seconds)}",
        soft_wrap=True,
    )
    if session.seconds + seconds > LIMIT_SLACK * given["limit_s"]:
        console.print(
            f"that is more than the limit of {minutes(given['limit_s'])}, though the runs are cut "
            "to the shortest that can be measured"
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
            rotation = run_job(session, job, seed, lambda name: progress.update(task, now=name))
            session.seconds += time.monotonic() - begun_at
            session.save()
            done[job.key] = row_result(session, job)
            results = collect(session, documents.now(), False, done)
            suite_files.write_figures(results, session.folder)
            remaining -= estimate_s(session, [job])
            progress.update(task, advance=1)
            console.print(
                f"{number}/{len(todo)} {job.key}: {rotation.rounds_done} rounds, "
                f"{time.monotonic() - begun_at:.1f} s; about {minutes(max(remaining, 0))} left"
            )


def conclude(
    console: Console,
    session: Session,
    given: dict,
    interrupted: bool,
    done: dict[str, RowResult],
) -> None:
    """Tables, files and the exit status."""
    finished = not interrupted and all(is_done(session, job) for job in session.jobs)
    results = collect(session, documents.now(), finished, done)
    show(console, results)
    facts = session.facts | {a.name: a.problem or str(a) for a in session.allocators}
    tables.print_facts(console, facts)
    write_all(session, results, given)
    console.print(f"took {minutes(session.seconds)}; report: {session.folder / suite_files.REPORT}",
                  soft_wrap=True)  # fmt: skip
    if interrupted:
        rows = sum(is_done(session, job) for job in session.jobs)
        end_interrupted(console, session, f"{rows} of {len(session.jobs)} rows")
    if any(row.problems() for row in results.rows):
        raise SystemExit(1)


def summary_line(results: Results) -> str:
    state = "" if results.finished else " The run is not finished: rows without figures are empty."
    return (
        f"Suite {results.suite} ({results.title}), {results.date}, {results.rounds} rounds, "
        f"{results.seconds / 60:.1f} minutes.{state}"
    )


def write_all(session: Session, results: Results, given: dict) -> None:
    """Into the session's folder, and where the options say."""
    suite_files.write_figures(results, session.folder)
    html = page(
        f"{results.baseline} beside other allocators: hakmem bench {results.suite}",
        lambda console: show(console, results),
        results.facts | results.allocators,
        notes=[summary_line(results)],
    )
    write_text(session.folder / suite_files.REPORT, html)
    writers: dict[str, Callable[[Path], None]] = {
        "json_path": lambda path: suite_files.write_results(results, path),
        "csv_path": lambda path: suite_files.write_csv(results, path),
        "scenario_path": lambda path: suite_files.write_scenarios(results, path),
        "html_path": lambda path: write_text(path, html),
    }
    for name, write in writers.items():
        if given[name] is not None:
            write(given[name])
