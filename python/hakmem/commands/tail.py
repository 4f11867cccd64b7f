"""`hakmem tail`: latency of single malloc and free calls, by size and percentile."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from hakmem import environment
from hakmem.allocators.peers import Allocator
from hakmem.destinations import WORD
from hakmem.documents import HTML, PICTURE, table_kind, write_bytes, write_json, write_text
from hakmem.errors import UserError
from hakmem.experiments import latency_report
from hakmem.experiments.latency_run import collect, latency_command, parse_sizes
from hakmem.experiments.pairing import (
    finish,
    measure,
    prove,
    require_figures,
    require_served,
    verdicts,
)
from hakmem.extras import require_asked
from hakmem.measuring.rotation import OPS_PER_SECOND, Rotation, contenders
from hakmem.options import (
    WholeRange,
    allocator_options,
    chosen_allocators,
    cpu_option,
    csv_option,
    html_option,
    json_option,
    pairs_option,
    plot_option,
    resolve_cpus,
    resolve_seed,
    seed_option,
)
from hakmem.output import tables

ROUNDS_MIN = 5
PLOT_FORMATS = (".svg", ".png")
SIZES_DEFAULT = "16,64,256,1k,4k,32k,64k,1M"


@click.command()
@allocator_options()
@pairs_option(10, ROUNDS_MIN)
@click.option(
    "--sizes",
    type=WORD,
    default=SIZES_DEFAULT,
    show_default=True,
    help="Of blocks, 12 at most.",
)
@click.option(
    "--steps",
    default=1_000_000,
    show_default=True,
    type=WholeRange(1_000, 1_000_000_000),
    help="Timed calls of a thread in one run, all sizes together.",
)
@click.option(
    "--slots",
    default=100,
    show_default=True,
    type=WholeRange(1, 1 << 20),
    help="Of a thread's working set for each size; about half are full.",
)
@click.option(
    "--threads",
    default=1,
    show_default=True,
    type=WholeRange(1, 256),
    help="That allocate at a time, each with a working set of its own.",
)
@cpu_option("auto")
@seed_option()
@json_option()
@csv_option(latency_report.CSV_COLUMNS)
@html_option()
@plot_option("--plot", "plot_path", "Write latency against percentile as .svg or .png.")
def tail(
    names: str | None,
    libraries: tuple[str, ...],
    pairs: int,
    sizes: str,
    steps: int,
    slots: int,
    threads: int,
    cpu: str,
    seed: int | None,
    json_path: Path | None,
    csv_path: Path | None,
    html_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Measure how long single malloc and free calls take: the median, and the slow ones.

    Each run frees and fills random slots of a working set and times every call with the
    time-stamp counter; the histograms of all runs of an allocator are merged. --cpu auto pins
    one thread to one CPU, and leaves several free.
    """
    if plot_path is not None and plot_path.suffix not in PLOT_FORMATS:
        raise UserError(f"--plot: '{plot_path}' ends in neither .svg nor .png", 2)
    console = tables.make_console()
    seed = resolve_seed(seed)
    blocks = parse_sizes(sizes)
    notes: list[str] = []
    chosen = chosen_allocators(names, libraries, notes)
    require_asked()
    command = latency_command(steps, slots, threads, seed, blocks)
    rows = contenders(chosen, command)
    cpus = None if cpu == "auto" and threads > 1 else resolve_cpus(cpu, None)
    served = prove(chosen, tuple(command), notes)
    facts = environment.describe(seed) | {
        "rounds": f"{pairs}, seed {seed}, pinned to {cpus or 'nothing'}",
        "program": shlex.join(command),
        **{a.name: a.problem or str(a) for a in chosen},
        **served,
    }
    tables.print_notes(console, notes)
    rotation = measure(console, rows, OPS_PER_SECOND, pairs, seed, cpus)
    require_figures(rotation)
    if rotation.rounds_done:
        found = collect(rotation)
        told = verdicts(served, "the benchmark", latency_report.summary(found))
        tables.print_summary(console, told)
        console.print(latency_report.latency_table(found, console.width))
        if json_path is not None:
            document = {"facts": facts, "seed": seed, "rounds": rotation.rounds_done}
            write_json(json_path, "tail", document | latency_report.latency_document(found))
        if csv_path is not None:
            kind = table_kind(latency_report.CSV_COLUMNS)
            write_text(csv_path, latency_report.csv_text(found), kind)
        if plot_path is not None:
            write_bytes(plot_path, latency_report.plot(found, plot_path.suffix[1:]), PICTURE)
        if html_path is not None:
            problems = problems_of(chosen, rotation)
            text = latency_report.page(found, shlex.join(command), facts, problems)
            write_text(html_path, text, HTML)
    for name, problem in problems_of(chosen, rotation).items():
        console.print(f"{name}: {problem}", soft_wrap=True)
    tables.print_facts(console, facts)
    finish(console, rotation, pairs)
    require_served(served, "the benchmark")


def problems_of(chosen: list[Allocator], rotation: Rotation) -> dict[str, str]:
    """Allocators without figures, and why."""
    found = {a.name: a.problem for a in chosen if not a.usable}
    return found | {n: s.problem for n, s in rotation.series.items() if s.problem}
