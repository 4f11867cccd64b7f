"""`hakmem programs`: real programs, by CPU time, memory, faults and calls, or by counts."""

from pathlib import Path

import click
from hakmem import environment
from hakmem.allocators.peers import USUAL_HELP, repository_root
from hakmem.destinations import WORD
from hakmem.documents import write_json, write_text
from hakmem.errors import INTERRUPTED, UserError
from hakmem.measuring import journal
from hakmem.options import (
    FiniteRange,
    InputFile,
    WholeRange,
    allocator_options,
    json_option,
    plot_option,
    refuse,
    require_resume_alone,
    resolve_seed,
    resume_folder_option,
    seed_option,
)
from hakmem.output import tables
from hakmem.running.interruption import only_once
from rich.console import Console
from rich.table import Table

from hakmem_lab import programs_report, programs_results, programs_session
from hakmem_lab.commands.drawn import begin, chosen
from hakmem_lab.programs import ALL, CATALOGUE, SETS, Program, inputs_of, read_catalogue
from hakmem_lab.programs import chosen as chosen_programs
from hakmem_lab.programs_run import Measured, all_measured, run_all
from hakmem_lab.programs_session import Session
from hakmem_lab.suite_session import clean_environment, require_unchanged

LIMIT_S, COUNT_LIMIT_S = 120.0, 3600.0
OUTPUTS = {"json_path", "picture_path", "resume"}


@click.command()
@click.option("--programs", "wanted", type=WORD, help="These alone, comma-separated.")
@click.option(
    "--set",
    "which",
    type=click.Choice(SETS),
    default=ALL,
    show_default=True,
    help="Those to find causes with, those to judge by, or both.",
)
@click.option("--count", "counted", is_flag=True, help="Count under valgrind, once, smaller inputs.")
@click.option(
    "--rounds", default=5, show_default=True, type=WholeRange(1), help="Runs of each allocator."
)
@click.option(
    "--scale",
    default=100,
    show_default=True,
    type=WholeRange(1, 100_000),
    help="Size of the inputs in percent.",
)
@allocator_options(f"{USUAL_HELP}; NAME=PATH for a library")
@click.option(
    "--timeout",
    "limit_s",
    type=FiniteRange(0),
    metavar="SECONDS",
    help=f"End a run that takes longer. 0: no limit.  [default: {LIMIT_S:g}, {COUNT_LIMIT_S:g} with --count]",
)
@seed_option()
@click.option("--catalogue", type=InputFile(), help="Programs of yours, as in lab/hakmem_lab/programs.toml.")
@click.option("--list", "listed", is_flag=True, help="List the programs and what they lack.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the results.")
@resume_folder_option("show a finished one")
@json_option()
@plot_option("--picture", "picture_path", "Draw CPU time and memory beside each peer, as SVG.")
def programs(
    wanted: str | None,
    which: str,
    counted: bool,
    rounds: int,
    scale: int,
    names: str | None,
    libraries: tuple[str, ...],
    limit_s: float | None,
    seed: int | None,
    catalogue: Path | None,
    listed: bool,
    out: Path | None,
    resume: Path | None,
    json_path: Path | None,
    picture_path: Path | None,
) -> None:
    """Measure allocators on real programs, with inputs made from --seed.

    The first allocator is the baseline. Rounds go to a folder as they finish: Ctrl-C leaves tables
    and files of what is finished, --resume goes on. Ends with status 1 when the baseline has failed
    somewhere, or a program could not be run.
    """
    if picture_path is not None and picture_path.suffix != ".svg":
        raise UserError(f"--picture: '{picture_path}' does not end in .svg", 2)
    console = tables.make_console()
    with clean_environment(), only_once():
        if resume is not None:
            require_resume_alone(OUTPUTS)
            session = programs_session.load(resume)
            require_unchanged(session)
        else:
            if wanted is not None:
                refuse("--programs names them", {"which"})
            if counted:
                refuse("--count runs each once", {"rounds"})
            path = (catalogue or CATALOGUE).absolute()
            found = chosen_programs(read_catalogue(path), which, wanted)
            if listed:
                console.print(list_table(found))
                return
            found, lacking = runnable(found, counted)
            if out is not None and out.exists() and any(out.iterdir()):
                raise UserError(f"--out: {out} is not empty (--resume goes on with a run)", 2)
            limit = limit_s if limit_s is not None else COUNT_LIMIT_S if counted else LIMIT_S
            session = Session(
                out or journal.new_path("programs", ""), str(path), [one.name for one in found],
                1 if counted else rounds, scale, resolve_seed(seed), limit, counted,
                chosen(console, names, libraries),
            )  # fmt: skip
            if not session.names:
                raise UserError("nothing can be run: " + "; ".join(lacking), 2)
            session.facts = facts_of(session, lacking)
            begin(session)
        finished = run(console, session)
        results = programs_results.collect(session, all_measured(session))
        programs_report.show(console, session, results)
        tables.print_facts(console, session.facts)
        document = programs_report.document(session, results)
        for target in (session.folder / "programs.json", json_path):
            if target is not None:
                write_json(target, "programs", document)
        if picture_path is not None:
            write_text(picture_path, programs_report.picture(session, results))
    conclude(console, session, results, finished)


def runnable(found: list[Program], counted: bool) -> tuple[list[Program], list[str]]:
    """Those that are here and can be counted; of the others, what is lacking."""
    can, lacking = [], []
    for one in found:
        why = one.load(0).problem()
        if not why and counted and not one.count:
            why = "it cannot be counted"
        if why:
            lacking.append(f"{one.name}: {why}")
        else:
            can.append(one)
    return can, lacking


def list_table(found: list[Program]) -> Table:
    table = tables.plain_table("Programs")
    for title in ("program", "set", "what it does", "counted", "lacks"):
        table.add_column(title)
    for one in found:
        yes = "yes" if one.count else "no"
        table.add_row(one.name, one.set, one.title, yes, one.load(0).problem())
    return table


def facts_of(session: Session, lacking: list[str]) -> dict[str, str]:
    how = "counted under valgrind, once" if session.counted else f"{session.rounds} rounds, pinned"
    return environment.describe(session.seed) | {
        "commit": environment.revision_of(repository_root()) or "unknown",
        "programs": f"{len(session.names)} at scale {session.scale} %, seed {session.seed}, {how}",
        "not run": "; ".join(lacking) or "nothing",
        **{a.name: a.problem or str(a) for a in session.allocators},
    }


def run(console: Console, session: Session) -> bool:
    """All programs; False when it was interrupted."""
    many = len(session.allocators)
    steps = len(session.names) * (many if session.counted else (session.rounds + 1) * many)

    def told(measured: Measured, seconds: float) -> None:
        (one,) = programs_results.collect(session, [measured]).programs
        figure = "no ratio"
        if one.best_over_ours is not None:
            figure = f"{one.best_peer} ÷ {session.baseline} {one.best_over_ours:.2f}"
        console.print(f"{one.name}: {figure}, {seconds:.1f} s", soft_wrap=True)

    with tables.progress_line(console, "runs", steps) as progress, inputs_of(session.seed) as inputs:
        task = progress.task_ids[0]
        tick = lambda what: progress.update(task, advance=1, now=what)  # noqa: E731
        return run_all(session, inputs, tick, told)


def conclude(
    console: Console, session: Session, results: programs_results.Results, finished: bool
) -> None:
    """Where the files lie, and the exit status with what went wrong."""
    console.print(f"journals and programs.json: {session.folder}", soft_wrap=True)
    if not finished:
        console.print(
            f"interrupted after {len(results.programs)} of {len(session.names)} programs; go on "
            f"with hakmem programs --resume {session.folder}",
            soft_wrap=True,
        )
        raise SystemExit(INTERRUPTED)
    failed = any(session.baseline in one.problems for one in results.programs)
    if failed or session.broken or not results.programs:
        raise SystemExit(1)
