"""`hakmem scale`: what an operation costs as threads, the live heap or live blocks grow."""

from pathlib import Path

import click
import psutil
from hakmem.extras import MATPLOTLIB, require
from hakmem.measuring import journal
from hakmem.options import (
    allocator_options,
    number_option,
    require_resume_alone,
    resolve_seed,
    resume_folder_option,
    seed_option,
)
from hakmem.output import tables
from hakmem.running.interruption import only_once
from rich.console import Console

from hakmem_lab import scale_report, suite_files, suite_session
from hakmem_lab.commands.bench import run_session
from hakmem_lab.scale_points import AXES, GIB, Point, points_of
from hakmem_lab.shell import chosen, clean_environment, facts_of, make_folder
from hakmem_lab.suite import PRELOAD
from hakmem_lab.suite_results import Results
from hakmem_lab.suite_run import prove_peers
from hakmem_lab.suite_session import Job
from hakmem_lab.suite_tables import show_problems

ALL = "all"


class Session(suite_session.Session):
    """A suite of one row a point."""

    command = "scale"
    # 100,000,000 blocks take some allocators minutes on a busy machine.
    limit_s = 0.0


@click.command()
@click.option("--axis", type=click.Choice([*AXES, ALL]), default=ALL, show_default=True,
              help="What grows.")  # fmt: skip
@number_option("--rounds", "Runs of each allocator at each point.", 3, 1)  # fmt: skip
@allocator_options()
@seed_option()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Put all files there (default: a new folder among the results).")  # fmt: skip
@resume_folder_option("make its tables and plots")
def scale(
    axis: str,
    rounds: int,
    names: str | None,
    libraries: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    resume: Path | None,
) -> None:
    """Measure the cost of an operation as work grows: threads, live heap, live blocks.

    Allocators take turns at each point. Journals of the rounds, figures as CSV and JSON, and a plot
    of each load go to a folder; Ctrl-C leaves what is finished, --resume goes on. A point that does
    not fit into free memory is passed over. Ends with status 1 when an allocator has failed
    somewhere.
    """
    console = tables.make_console()
    with clean_environment() as removed, only_once():
        if resume is not None:
            require_resume_alone(set())
            session = Session.load(resume)
        else:
            points = fitting(
                console, points_of(list(AXES.values()) if axis == ALL else [AXES[axis]])
            )
            seed = resolve_seed(seed)
            session = Session(
                folder=out or journal.new_path("scale", ""), suite="scale", title="as work grows",
                rounds=rounds, slice_s=0.0, seed=seed, allocators=chosen(console, names, libraries),
                facts=facts_of(seed, (), removed, rounds=f"{rounds}, seed {seed}"),
                jobs=[Job(point.row, PRELOAD, point.row.work) for point in points],
            )  # fmt: skip
            require("scale", MATPLOTLIB)
            make_folder(session.folder)
            session.save()
        run_session(console, session, lambda: prove_peers(session), conclude)


def fitting(console: Console, points: list[Point]) -> list[Point]:
    """Those that fit into free memory; the others are named."""
    free_bytes = psutil.virtual_memory().available
    lacking = [point for point in points if point.needed_bytes > free_bytes]
    for point in lacking:
        needed = f"it needs about {point.needed_bytes / GIB:.1f} GiB"
        told = f"skipped: {needed}, and {free_bytes / GIB:.1f} GiB are available"
        console.print(f"{point.load.name}, {point.text}: {told}", soft_wrap=True)
    return [point for point in points if point not in lacking]


def conclude(console: Console, session: Session, results: Results) -> None:
    """Tables and files of the points there are."""
    scale_report.show(console, results)
    show_problems(console, results)
    suite_files.write_figures(results, session.folder)
    scale_report.write_plots(session.folder, results)
    console.print(f"journals, figures and plots: {session.folder}", soft_wrap=True)
