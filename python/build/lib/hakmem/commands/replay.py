"""`hakmem replay`: a recorded program's allocations, repeated under several allocators."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console

from hakmem import environment, options
from hakmem.allocators.peers import Allocator, bench_program
from hakmem.commands.compare import Plan, finish, measure, show_all
from hakmem.documents import write_json
from hakmem.errors import UserError
from hakmem.experiments.comparison import Comparison, document
from hakmem.measuring.measures import FAULTS, PEAK_RSS, measures_for
from hakmem.measuring.rotation import OPS_PER_SECOND, Contender, contenders
from hakmem.output import tables
from hakmem.running import interruption
from hakmem.running.launching import Outcome
from hakmem.traces import trace_summary

SPEED = replace(
    measures_for(OPS_PER_SECOND)[0],
    told="replayed the trace {x} times as fast as {b}",
    slower="took {x} times {b}'s time for the trace",
)


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
    held = trace_summary.summarise_trace(trace.absolute())
    if not held.calls:
        raise UserError(f"{trace} holds no events: the program had made no call of malloc yet", 2)
    if summary_only:
        console.print(tables.facts_table(trace_summary.figure_rows(held)))
        console.print(trace_summary.sizes_table(held))
        tables.print_notes(console, held.remarks())
        write_json(json_path, "replay --summary", trace_summary.summary_document(held))
        return
    cpus = options.resolve_cpus("none" if held.lanes > 1 else "auto")
    how = Plan(pairs, options.resolve_seed(seed), cpus)
    found = compared(console, held, names, libraries, how)
    if found.figures:
        show_all(console, found)
        trace_held = {"trace": trace_summary.summary_document(held)}
        write_json(json_path, "replay", document(found) | trace_held)
    finish(found)


def compared(
    console: Console,
    held: trace_summary.TraceSummary,
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
    of_trace = trace_summary.figure_rows(held)
    facts = environment.describe(how.seed) | {
        "rounds": f"{rounds}, {passes} passes a run",
        **{name: of_trace[name] for name in ("trace", "command", "calls", "threads")},
        **{a.name: str(a) for a in chosen},
    }
    measures = (SPEED, PEAK_RSS, FAULTS)
    found = Comparison(once, rows[0].name, how.pairs, facts, notes=notes, measures=measures)
    with interruption.only_once():
        measure(console, found, how, rows, chosen, OPS_PER_SECOND)
    found.end()
    return found


TIME = re.compile(r"\btime=([0-9.]+)s")
FAULT_COUNT = re.compile(r"\bfaults=(\d+)")
HEAP_PEAK = re.compile(r"\bheap_peak_kb=(\d+)")
# Long enough that starting the threads does not matter, and short enough for a slice.
SLICE_S = 0.1
PASSES_MAX = 10_000


@dataclass(frozen=True)
class ReplayContender(Contender):
    """Memory and page faults are those of the replay, without its lists of operations."""

    def run(self, cpus: str | None = None) -> Outcome:
        return heap_only(super().run(cpus))


def heap_only(outcome: Outcome) -> Outcome:
    peak, faults = HEAP_PEAK.search(outcome.stdout), FAULT_COUNT.search(outcome.stdout)
    if outcome.problem or faults is None:
        return outcome
    if peak is None:
        return replace(outcome, start_error="the kernel does not tell its peak memory")
    return replace(outcome, peak_rss_kb=int(peak[1]), minor_faults=int(faults[1]), major_faults=0)


def replay_command(trace: Path, passes: int) -> list[str]:
    return [str(bench_program("bench_replay")), str(trace), str(passes)]


def replay_contenders(
    allocators: Sequence[Allocator], command: Sequence[str]
) -> list[ReplayContender]:
    return [
        ReplayContender(row.name, row.command, row.preload, row.settings)
        for row in contenders(allocators, command)
    ]


def enough_passes(outcome: Outcome) -> int:
    """How often the trace must be replayed for one slice, from a trial of one pass."""
    found = TIME.search(outcome.stdout)
    seconds = max(float(found[1]), 0.0005) if found else SLICE_S
    return min(PASSES_MAX, max(1, math.ceil(SLICE_S / seconds)))
