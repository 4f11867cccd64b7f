"""`hakmem tail`: latency of single malloc and free calls, by size and percentile."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from hakmem import environment, options
from hakmem.commands.compare import Plan, finish, measure
from hakmem.destinations import WORD
from hakmem.documents import write_json
from hakmem.experiments import latency_run
from hakmem.experiments.comparison import Comparison
from hakmem.measuring.rotation import OPS_PER_SECOND, contenders
from hakmem.output import tables
from hakmem.running import interruption

ROUNDS_MIN = 5
SIZES_DEFAULT = "16,64,256,1k,4k,32k,64k,1M"


@click.command()
@options.allocator_options()
@options.pairs_option(10, ROUNDS_MIN)
@options.option("--sizes", "Of blocks, 12 at most.", SIZES_DEFAULT, WORD)
@options.number_option(
    "--steps", "Timed calls in one run, all sizes together.", 1_000_000, 1_000, 1_000_000_000
)
@options.seed_option()
@options.json_option()
def tail(
    names: str | None,
    libraries: tuple[str, ...],
    pairs: int,
    sizes: str,
    steps: int,
    seed: int | None,
    json_path: Path | None,
) -> None:
    """Measure how long single malloc and free calls take: the median, and the slow ones.

    Each run, pinned to one CPU, frees and fills random slots of a working set and times every call
    with the time-stamp counter; the histograms of all runs of an allocator are merged.
    """
    console = tables.make_console()
    how = Plan(pairs, options.resolve_seed(seed), options.resolve_cpus("auto"))
    command = latency_run.latency_command(steps, how.seed, latency_run.parse_sizes(sizes))
    notes: list[str] = []
    chosen = options.chosen_allocators(names, libraries, notes)
    rows = contenders(chosen, command)
    facts = environment.describe(how.seed) | {
        "rounds": f"{pairs}, seed {how.seed}, pinned to {how.cpus}",
        "program": shlex.join(command),
        **{a.name: str(a) for a in chosen},
    }
    found = Comparison(command, rows[0].name, pairs, facts, notes=notes)
    with interruption.only_once():
        measure(console, found, how, rows, chosen, OPS_PER_SECOND)
    found.end()
    if found.figures:
        latencies = latency_run.collect(found.rotation)
        # What is told of an allocator would be another malloc's.
        told = [] if found.not_served else latency_run.summary(latencies)
        tables.print_summary(console, told)
        console.print(latency_run.latency_table(latencies, console.width))
        tables.print_problems(console, found.problems)
        tables.print_notes(console, found.notes)
        tables.print_facts(console, facts)
        document = {"facts": facts, "seed": how.seed, "rounds": found.rounds_done}
        write_json(json_path, "tail", document | latency_run.latency_document(latencies))
    finish(found)
