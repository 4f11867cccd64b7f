"""`hakmem replay`: a recorded program's allocations, repeated under several allocators."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from hakmem import environment, options
from hakmem.commands.compare import Plan, finish, measure, show_all
from hakmem.documents import write_json
from hakmem.errors import UserError
from hakmem.experiments.comparison import Comparison, document
from hakmem.measuring.measures import FAULTS, PEAK_RSS, measures_for
from hakmem.measuring.rotation import OPS_PER_SECOND
from hakmem.output import tables
from hakmem.running import interruption
from hakmem.traces.trace_replay import enough_passes, replay_command, replay_contenders
from hakmem.traces.trace_summary import (
    TraceSummary,
    figure_rows,
    sizes_table,
    summarise_trace,
    summary_document,
)

SPEED = replace(measures_for(OPS_PER_SECOND)[0], told="replayed the trace {x} times as fast as {b}")


@click.command()
@options.allocator_options()
@options.pairs_option(15)
@options.seed_option()
@click.option("--summary", "summary_only", is_flag=True, help="Only say what the trace holds.")
@options.json_option()
@click.argument("trace", type=options.InputFile())
def replay(
    names: str | None,
    libraries: tuple[str, ...],
    pairs: int,
    seed: int | None,
    summary_only: bool,
    json_path: Path | None,
    trace: Path,
) -> None:
    """Replay TRACE, a file of `hakmem record`, under each allocator in turn.

    Time counts from the first call to the last. Memory is what the allocator has resident beyond
    the replayer's own lists, at its peak. A trace of one thread is pinned to one CPU.
    """
    console = tables.make_console()
    if summary_only:
        options.refuse_beside("--summary measures nothing", {"summary_only", "json_path", "trace"})
    held = summarise_trace(trace.absolute())
    if not held.calls:
        raise UserError(f"{trace} holds no events: the program had made no call of malloc yet", 2)
    if summary_only:
        console.print(tables.facts_table(figure_rows(held)))
        console.print(sizes_table(held))
        tables.print_notes(console, held.remarks())
        if json_path is not None:
            write_json(json_path, "replay --summary", summary_document(held))
        return
    cpus = options.resolve_cpus("none" if held.lanes > 1 else "auto", None)
    how = Plan(pairs, options.resolve_seed(seed), cpus)
    found = compared(console, held, names, libraries, how)
    if found.figures:
        show_all(console, found)
        if json_path is not None:
            write_json(json_path, "replay", document(found) | {"trace": summary_document(held)})
    finish(found)


def compared(
    console: Console,
    held: TraceSummary,
    names: str | None,
    libraries: tuple[str, ...],
    how: Plan,
) -> Comparison:
    notes = held.remarks()
    chosen = options.chosen_allocators(names, libraries, notes)
    once = replay_command(held.path, 1)
    rows = replay_contenders(chosen, once)
    passes = enough_passes(rows[0].run(how.cpus))
    rows = replay_contenders(chosen, replay_command(held.path, passes))
    rounds = f"{how.pairs}, seed {how.seed}, pinned to {how.cpus or 'nothing'}"
    facts = environment.describe(how.seed) | {
        "rounds": f"{rounds}, {passes} passes a run",
        **{name: figure_rows(held)[name] for name in ("trace", "command", "calls", "threads")},
        **{a.name: str(a) for a in chosen},
    }
    measures = (SPEED, PEAK_RSS, FAULTS)
    found = Comparison(once, rows[0].name, how.pairs, facts, notes=notes, measures=measures)
    with interruption.only_once():
        measure(console, found, how, rows, chosen, OPS_PER_SECOND)
    found.end()
    return found
