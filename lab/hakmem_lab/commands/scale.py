"""`hakmem scale`: what an operation costs as threads, the live heap or live blocks grow."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import click
from hakmem import environment
from hakmem.errors import UserError
from hakmem.experiments.pairing import prove
from hakmem.extras import MATPLOTLIB, require
from hakmem.measuring import journal
from hakmem.measuring.rotation import OPS_PER_SECOND
from hakmem.options import (
    INTERRUPTED,
    WholeRange,
    allocator_options,
    csv_option,
    json_option,
    resolve_seed,
    seed_option,
    timeout_option,
)
from hakmem.output import tables
from hakmem.running.interruption import only_once
from hakmem.running.proof import peer_served, why_unproven
from rich.console import Console

from hakmem_lab import scale_report, shell
from hakmem_lab.scale_points import AXES, LOADS, Point, points_of
from hakmem_lab.scale_run import (
    Measured,
    command_of,
    contenders_of,
    figures_of,
    lacking_memory,
)

ALL = "all"


@dataclass(kw_only=True)
class Run(shell.Session):
    """One call of the command: what is measured, and what there is of it so far."""

    points: list[Point]
    limit_s: float
    measured: list[Measured] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    command = "scale"


@click.command()
@click.option(
    "--axis",
    type=click.Choice([*AXES, ALL]),
    default=ALL,
    show_default=True,
    help="What grows.",
)
@click.option(
    "--most",
    metavar="VALUE",
    help="No point above this: 16, 512M, 100k (bytes where the heap grows); with one --axis.",
)
@click.option(
    "--rounds",
    default=3,
    show_default=True,
    type=WholeRange(1),
    help="Runs of each allocator at each point.",
)
@allocator_options()
@timeout_option()
@seed_option()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Put plots, CSV and JSON there (default: a new folder among the results).",
)
@csv_option(scale_report.COLUMNS)
@json_option()
def scale(
    axis: str,
    most: str | None,
    rounds: int,
    names: str | None,
    libraries: tuple[str, ...],
    limit_s: float,
    seed: int | None,
    out: Path | None,
    csv_path: Path | None,
    json_path: Path | None,
) -> None:
    """Measure the cost of an operation as work grows: threads, live heap, live blocks.

    Allocators take turns at each point. Every round goes to a journal among the results when it is
    over; Ctrl-C leaves tables, plots and files of what is finished. A point that does not fit into
    free memory is passed over. Ends with status 1 when an allocator has failed somewhere.
    """
    console = tables.make_console()
    points = wanted_points(axis, most)
    with shell.clean_environment() as removed, only_once():
        started = time.monotonic()
        run = Run(
            folder=journal.new_path("scale", ""), points=points, rounds=rounds, limit_s=limit_s,
            allocators=shell.chosen(console, names, libraries), seed=resolve_seed(seed),
        )  # fmt: skip
        require("scale", MATPLOTLIB)
        target = out or run.folder
        for folder in (run.folder, target):
            shell.make_folder(folder)
        try:
            how = f"{rounds}, seed {run.seed}"
            run.facts = shell.facts_of(run.seed, run.allocators, removed, rounds=how)
            run.facts |= served(run)
            run_all(console, run)
        except KeyboardInterrupt:
            run.interrupted = True
        finish(console, run, target, csv_path, json_path)
        console.print(f"took {(time.monotonic() - started) / 60:.1f} min")
    conclude(console, run)


def wanted_points(axis: str, most: str | None) -> list[Point]:
    if axis != ALL:
        chosen_axis = AXES[axis]
        return points_of([chosen_axis], None if most is None else chosen_axis.parse(most))
    if most is not None:
        raise UserError(f"--most: {most} is of one axis: give --axis {', '.join(AXES)} with it", 2)
    return points_of(list(AXES.values()))


def served(run: Run) -> dict[str, str]:
    """hakmem's own counter for every load, the loader's word for the peers, at small points."""
    smallest = [next(p for p in run.points if p.load is load) for load in loads(run)]
    found = {}
    for point in smallest:
        for title, said in prove(run.allocators, command_of(point), None, run.limit_s).items():
            found[f"{title}, {point.load.name}"] = said
    for a in run.allocators:
        if a.usable and a.name != "hakmem":
            said = peer_served(command_of(smallest[0]), a, None, run.limit_s)
            found[f"served by {a.name}"] = said
    return found


def loads(run: Run) -> list:
    there = {point.load.name for point in run.points}
    return [load for load in LOADS if load.name in there]


def run_all(console: Console, run: Run) -> None:
    """Point after point; stops after the rounds of the one that is interrupted."""
    slices = len(run.points) * run.rounds * sum(a.usable for a in run.allocators)
    with tables.progress_line(console, "points", slices) as progress:
        task = progress.task_ids[0]
        for number, point in enumerate(run.points, 1):
            what = f"{number}/{len(run.points)} {point.load.name}, {point.text}"
            if lack := lacking_memory(point):
                run.skipped[point.name] = lack
                console.print(f"{what}: skipped: {lack}", soft_wrap=True)
                continue
            rows = contenders_of(point, run.allocators, run.limit_s)
            begun_at = time.monotonic()
            cpus = environment.default_cpu() if point.load.pinned else None
            axis = {"axis": point.load.axis.name, "value": point.value}
            try:
                run.run_rotation(
                    point.name, rows, OPS_PER_SECOND, run.rounds, run.seed + number, cpus,
                    lambda name: progress.update(task, advance=1, now=name), lambda axis=axis: axis,
                )  # fmt: skip
            finally:
                _, rotation = run.read_rotation(point.name)
                if rotation is not None and (rotation.rounds_done or not rotation.running()):
                    figures = figures_of(point, rotation, run.baseline, run.allocators)
                    run.measured.append(figures)
            seconds = time.monotonic() - begun_at
            console.print(f"{what}: {rotation.rounds_done} rounds, {seconds:.1f} s")


def finish(
    console: Console, run: Run, target: Path, csv_path: Path | None, json_path: Path | None
) -> None:
    """Tables and files of the points there are."""
    if not run.measured:
        return
    scale_report.show(console, run.measured)
    tables.print_facts(console, run.facts)
    for path in (target / scale_report.CSV_NAME, csv_path):
        if path is not None:
            scale_report.write_csv(path, run.measured)
    for path in (target / scale_report.JSON_NAME, json_path):
        if path is not None:
            scale_report.write_document(path, run.measured, run.facts, run.skipped)
    pictures = scale_report.write_plots(target, run.measured)
    names = ", ".join(path.name for path in pictures)
    console.print(f"journals: {run.folder}", soft_wrap=True)
    console.print(f"figures and plots: {target} ({names})", soft_wrap=True)


def conclude(console: Console, run: Run) -> None:
    """The exit status, with what went wrong."""
    problems = scale_report.problems(run.measured)
    for problem in problems:
        console.print(problem, soft_wrap=True)
    unproven = {title: why for title, said in run.facts.items() if (why := why_unproven(said))}
    for title, why in unproven.items():
        console.print(f"{title}: {why}", soft_wrap=True)
    if run.interrupted:
        console.print(f"interrupted after {len(run.measured)} of {len(run.points)} points")
        raise SystemExit(INTERRUPTED)
    if problems or unproven:
        raise SystemExit(1)
