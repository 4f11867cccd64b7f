"""`hakmem pair`: one program under several allocators, in rounds."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from hakmem import environment
from hakmem.allocators.settings import split_pair
from hakmem.documents import write_json
from hakmem.experiments.pairing import (
    document,
    finish,
    measure,
    prove,
    require_served,
    show_rows,
    verdicts,
)
from hakmem.measuring.measures import PEAK_RSS, measures_for
from hakmem.measuring.rotation import (
    Contender,
    choose_metric,
    contenders,
    require_metric,
)
from hakmem.measuring.summary import Row, summarise
from hakmem.options import (
    PROGRAM_LAST,
    allocator_options,
    chosen_allocators,
    cpu_option,
    json_option,
    metric_options,
    pairs_option,
    require_distinct,
    resolve_cpus,
    resolve_seed,
    seed_option,
    split_command,
    timeout_option,
)
from hakmem.output import sentences, tables
from hakmem.running import programs as program_files

from hakmem_lab.suite_session import FLOOR


@click.command(context_settings=PROGRAM_LAST)
@pairs_option(15)
@click.option("--floor", is_flag=True, help="Add the allocator that does nothing; net figures.")
@allocator_options()
@click.option(
    "--program",
    "programs",
    multiple=True,
    metavar="NAME=COMMAND",
    help="Add a row with a command line of its own and nothing preloaded (a static binary).",
)
@timeout_option()
@cpu_option("auto")
@metric_options()
@seed_option()
@json_option()
@click.argument("program", nargs=-1, required=True)
def pair(
    pairs: int,
    floor: bool,
    names: str | None,
    libraries: tuple[str, ...],
    programs: tuple[str, ...],
    limit_s: float,
    cpu: str,
    metric: str | None,
    lower_is_better: bool,
    seed: int | None,
    json_path: Path | None,
    program: tuple[str, ...],
) -> None:
    """Run PROGRAM under each allocator in turn and print ratios of cost.

    The figure is the program's `Throughput =` line where it prints one, else its wall time.
    Put `--` before PROGRAM when it has options of its own.
    """
    console = tables.make_console()
    require_metric(metric, lower_is_better)
    notes = program_files.require_servable(program).notes
    chosen = chosen_allocators(names, libraries, notes, floor)
    rows = contenders(chosen, program) + [static_row(text) for text in programs]
    rows = [replace(row, limit_s=limit_s) for row in rows]
    require_distinct([row.name for row in rows])
    baseline = chosen[0].name
    cpus = resolve_cpus(cpu, None)
    seed = resolve_seed(seed)

    served = prove(chosen, program, notes, limit_s)
    chosen_metric = choose_metric(metric, lower_is_better, rows[0], cpus)
    facts = environment.describe(seed) | {
        "rounds": f"{pairs}, seed {seed}, pinned to {cpus or 'nothing'}",
        "program": shlex.join(program),
        **{a.name: a.problem or str(a) for a in chosen},
        **served,
    }
    tables.print_notes(console, notes)
    rotation = measure(console, rows, chosen_metric, pairs, seed, cpus)
    summary = summarise(rotation, baseline, chosen)
    own = measures_for(chosen_metric)[0]
    told = sentences.of_rows(without_floor(summary), baseline, own, PEAK_RSS)
    told = verdicts(served, "this program", told)
    show_rows(console, summary, chosen_metric, baseline, told, with_net=floor)
    tables.print_facts(console, facts)
    if json_path is not None:
        write_json(json_path, "pair", document(facts, chosen_metric, baseline, rotation, summary))
    finish(console, rotation, pairs)
    require_served(served, "this program")


def without_floor(summary: Sequence[Row]) -> list[Row]:
    """The allocator that does nothing is no other to be compared with."""
    return [row for row in summary if row.name != FLOOR]


def static_row(text: str) -> Contender:
    """Nothing is preloaded into it, so that only its file must be there."""
    name, command = split_pair("--program", text)
    words = split_command("--program", command)
    program_files.require_program(words)
    return Contender(name, tuple(words))
