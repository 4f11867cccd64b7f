"""`hakmem memory`: memory that comes back, or does not, beside the peers', with a verdict each."""

import time
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import click
from hakmem import environment
from hakmem.allocators.peers import Allocator, bench_program, repository_root
from hakmem.destinations import output_option
from hakmem.documents import MARKDOWN, write_json
from hakmem.errors import UserError
from hakmem.experiments.pairing import prove, require_served
from hakmem.measuring import journal
from hakmem.options import (
    INTERRUPTED,
    InputFile,
    WholeRange,
    allocator_options,
    chosen_allocators,
    csv_option,
    json_option,
    refuse_beside,
    resolve_seed,
    rows_option,
    seed_option,
)
from hakmem.output import tables
from hakmem.running.interruption import only_once
from hakmem.running.proof import peer_served
from rich.console import Console

from hakmem_lab import memory_bars, memory_report
from hakmem_lab.memory_loads import LOADS, Load
from hakmem_lab.memory_run import Measured, as_json, from_json, run_load, slices_of
from hakmem_lab.suite_session import clean_environment

PROOF_LOAD = ("bench_random_mixed", "100000", "400")


@dataclass
class Run:
    loads: list[Load]
    allocators: list[Allocator]
    rounds: int
    seed: int
    is_quick: bool
    facts: dict[str, str] = field(default_factory=dict)
    measured: list[Measured] = field(default_factory=list)


@click.command()
@rows_option("Loads")
@click.option(
    "--rounds",
    default=5,
    show_default=True,
    type=WholeRange(1),
    help="Runs of each allocator in each load.",
)
@click.option("--quick", is_flag=True, help="Small loads, one round: shows that all works.")
@allocator_options()
@click.option(
    "--peaks",
    type=InputFile(),
    metavar="RESULTS.CSV",
    help="Set hakmem's peaks in the CSV of a hakmem bench run against mimalloc 3 and jemalloc.",
)
@click.option(
    "--from",
    "earlier",
    type=InputFile(),
    metavar="FILE",
    help="Tables of the --json of an earlier run, without running anything.",
)
@click.option("--list", "only_list", is_flag=True, help="Say which loads there are.")
@seed_option()
@csv_option(memory_report.COLUMNS)
@json_option()
@output_option(
    "--markdown",
    "markdown_path",
    text="Write the table of the bars for a document.",
    kind=MARKDOWN,
)
def memory(
    wanted: tuple[str, ...],
    rounds: int,
    quick: bool,
    names: str | None,
    libraries: tuple[str, ...],
    peaks: Path | None,
    earlier: Path | None,
    only_list: bool,
    seed: int | None,
    csv_path: Path | None,
    json_path: Path | None,
    markdown_path: Path | None,
) -> None:
    """Run the loads whose memory must come back, and judge them.

    Allocators take turns in every round of a load. A load under a limit needs a control group
    (root); one under the kernel's mode `always` of huge pages sets that and puts it back. What
    cannot be run here is skipped, with the reason. Every round goes to a journal among the results.
    Ends with status 1 when an allocator has failed somewhere; a bar that is missed is no failure.
    """
    console = tables.make_console()
    if only_list:
        refuse_beside("--list runs nothing", {"only_list"})
        for load in LOADS:
            console.print(f"{load.name}: {load.title}: {' '.join(load.command)}", soft_wrap=True)
        return
    # Wrong input is refused before anything runs.
    peak_lines = [] if peaks is None else memory_bars.peaks(peaks)
    # A CSV or an earlier run alone need nothing to be run.
    run = Run([], [], 0, 0, quick)
    if earlier is not None:
        run.measured = from_json(earlier, LOADS)
    elif peaks is None or wanted:
        run = Run(pick(wanted), [], 1 if quick else rounds, resolve_seed(seed), quick)
        measure(console, run, names, libraries)
    lines = [*memory_bars.judged(run.measured), *peak_lines]
    memory_report.show(console, run.measured, lines, run.is_quick)
    tables.print_facts(console, run.facts)
    if csv_path is not None:
        memory_report.write_csv(csv_path, lines)
    if json_path is not None:
        write_json(json_path, "memory", {"facts": run.facts, "loads": as_json(run.measured),
                   "bars": [memory_report.cells(line) for line in lines]})  # fmt: skip
    if markdown_path is not None:
        memory_report.write_markdown(markdown_path, lines, run.facts)
    conclude(console, run)


def pick(wanted: tuple[str, ...]) -> list[Load]:
    """Loads by name or pattern, in their own order; all without any."""
    for text in wanted:
        if not any(fnmatchcase(load.name, text) for load in LOADS):
            known = ", ".join(load.name for load in LOADS)
            raise UserError(f"--rows: no load fits '{text}' (known: {known})", 2)
    return [load for load in LOADS if not wanted or any(fnmatchcase(load.name, w) for w in wanted)]


def chosen(console: Console, names: str | None, libraries: tuple[str, ...]) -> list[Allocator]:
    """Those asked for; else the usual ones, without those that are not there."""
    notes: list[str] = []
    found = chosen_allocators(names, libraries, notes)
    tables.print_notes(console, notes)
    return found


def measure(console: Console, run: Run, names: str | None, libraries: tuple[str, ...]) -> None:
    """The rounds of all loads, up to Ctrl-C."""
    with clean_environment() as removed, only_once():
        run.allocators = chosen(console, names, libraries)
        run.facts = facts_of(run, removed)
        log = journal.Journal(journal.new_path("memory"))
        log.write({"facts": run.facts})
        slices = sum(slices_of(load, run.allocators, run.rounds) for load in run.loads)
        started = time.monotonic()
        with tables.progress_line(console, "runs", slices) as progress:
            task = progress.task_ids[0]
            for load in run.loads:
                one = run_load(
                    load, run.allocators, run.rounds, run.seed, run.is_quick, log,
                    lambda name: progress.update(task, advance=1, now=name),
                )  # fmt: skip
                run.measured.append(one)
                if one.interrupted:
                    break
        console.print(f"journal: {log.path}", soft_wrap=True)
        console.print(f"took {(time.monotonic() - started) / 60:.1f} min")
    journal.prune("memory")


def facts_of(run: Run, removed: dict[str, str]) -> dict[str, str]:
    """What figures depend on, and whose malloc served."""
    command = (str(bench_program(PROOF_LOAD[0])), *PROOF_LOAD[1:])
    served = prove(run.allocators, command)
    require_served(served, PROOF_LOAD[0])
    for a in run.allocators:
        if a.usable and a.name != "hakmem":
            served[f"served by {a.name}"] = peer_served(command, a)
    taken = " ".join(f"{name}={value}" for name, value in removed.items())
    return environment.describe(run.seed) | {
        "commit": environment.revision_of(repository_root()) or "unknown",
        "loads": "small ones (--quick): no figures to quote" if run.is_quick else "as listed",
        "rounds": f"{run.rounds}, seed {run.seed}",
        "taken out of the environment": taken or "nothing",
        "versions": ", ".join(f"{a.name} {a.version}" for a in run.allocators if a.usable),
        **{a.name: a.problem or str(a) for a in run.allocators},
        **served,
    }


def conclude(console: Console, run: Run) -> None:
    """The exit status, with what went wrong."""
    problems = [
        f"{one.load.name}, {series.name}: {series.problem}"
        for one in run.measured
        for series in one.series.values()
        if series.problem
    ]
    for problem in problems:
        console.print(problem, soft_wrap=True)
    if any(one.interrupted for one in run.measured):
        console.print(f"interrupted in load {len(run.measured)} of {len(run.loads)}")
        raise SystemExit(INTERRUPTED)
    if problems:
        raise SystemExit(1)
