"""`hakmem replay`: a recorded program's allocations, repeated under several allocators."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from hakmem import environment
from hakmem.documents import write_json
from hakmem.errors import UserError
from hakmem.experiments.pairing import (
    document,
    finish,
    measure,
    prove,
    require_figures,
    require_served,
    show_rows,
    verdicts,
)
from hakmem.measuring.measures import PEAK_RSS, WALL
from hakmem.measuring.rotation import OPS_PER_SECOND
from hakmem.measuring.summary import summarise
from hakmem.options import (
    InputFile,
    WholeRange,
    allocator_options,
    chosen_allocators,
    cpu_option,
    json_option,
    pairs_option,
    refuse_beside,
    resolve_cpus,
    resolve_seed,
    seed_option,
)
from hakmem.output import sentences, tables
from hakmem.traces.trace_replay import enough_passes, replay_command, replay_contenders
from hakmem.traces.trace_summary import (
    TraceSummary,
    figure_rows,
    sizes_table,
    summarise_trace,
    summary_document,
)


@click.command()
@allocator_options()
@pairs_option(15)
@click.option(
    "--passes",
    type=WholeRange(1, 1_000_000),
    help="Times the trace is replayed in one run (default: as many as take 0.1 s).",
)
@cpu_option("auto")
@seed_option()
@click.option("--summary", "summary_only", is_flag=True, help="Only say what the trace holds.")
@json_option()
@click.argument("trace", type=InputFile())
def replay(
    names: str | None,
    libraries: tuple[str, ...],
    pairs: int,
    passes: int | None,
    cpu: str,
    seed: int | None,
    summary_only: bool,
    json_path: Path | None,
    trace: Path,
) -> None:
    """Replay TRACE, a file of `hakmem record`, under each allocator in turn.

    Time counts from the first call to the last. Memory is what the allocator has resident beyond
    the replayer's own lists, at its peak. --cpu auto pins a trace of one thread to one CPU, and
    leaves others free.
    """
    console = tables.make_console()
    if summary_only:
        refuse_beside("--summary measures nothing", {"summary_only", "json_path", "trace"})
    held = summarise_trace(trace.absolute())
    if not held.calls:
        raise UserError(f"{trace} holds no events: the program had made no call of malloc yet", 2)
    if summary_only:
        console.print(tables.facts_table(figure_rows(held)))
        console.print(sizes_table(held))
        for remark in held.remarks():
            console.print(f"note: {remark}", soft_wrap=True)
        if json_path is not None:
            write_json(json_path, "replay --summary", summary_document(held))
        return
    cpus = None if cpu == "auto" and held.lanes > 1 else resolve_cpus(cpu, None)
    compare(console, held, names, libraries, pairs, passes, cpus, resolve_seed(seed), json_path)


def compare(
    console,
    held: TraceSummary,
    names: str | None,
    libraries: tuple[str, ...],
    pairs: int,
    passes: int | None,
    cpus: str | None,
    seed: int,
    json_path: Path | None,
) -> None:
    """The rotation over the allocators, its table and its document."""
    notes: list[str] = []
    chosen = chosen_allocators(names, libraries, notes)
    rows = replay_contenders(chosen, replay_command(held.path, passes or 1))
    if passes is None:
        passes = enough_passes(rows[0].run(cpus))
        rows = replay_contenders(chosen, replay_command(held.path, passes))
    baseline = rows[0].name
    served = prove(chosen, replay_command(held.path, 1), notes)
    facts = environment.describe(seed) | {
        "rounds": f"{pairs}, seed {seed}, pinned to {cpus or 'nothing'}, {passes} passes a run",
        **{name: figure_rows(held)[name] for name in ("trace", "command", "calls", "threads")},
        **{a.name: a.problem or str(a) for a in chosen},
        **served,
    }
    tables.print_notes(console, notes)
    rotation = measure(console, rows, OPS_PER_SECOND, pairs, seed, cpus)
    require_figures(rotation)
    summary = summarise(rotation, baseline, chosen)
    speed = replace(WALL, told="replayed the trace {x} times as fast as {b}")
    told = sentences.of_rows(summary, baseline, speed, PEAK_RSS)
    told = verdicts(served, "the replay", told)
    show_rows(console, summary, OPS_PER_SECOND, baseline, told)
    for remark in held.remarks():
        console.print(f"note: {remark}", soft_wrap=True)
    tables.print_facts(console, facts)
    if json_path is not None and not rotation.is_void:
        figures = document(facts, OPS_PER_SECOND, baseline, rotation, summary)
        write_json(json_path, "replay", figures | {"said": told, "trace": summary_document(held)})
    finish(console, rotation, pairs)
    require_served(served, "the replay")
