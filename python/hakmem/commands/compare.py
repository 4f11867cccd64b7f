"""`hakmem compare`: the user's own program under each allocator, in interleaved runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console

from hakmem import environment, options
from hakmem.allocators.peers import Allocator, find
from hakmem.destinations import WORD
from hakmem.documents import HTML, write_json, write_text
from hakmem.errors import INTERRUPTED, UserError
from hakmem.experiments import comparison
from hakmem.experiments.workload import Workload, chosen_workload, workload_options
from hakmem.extras import INSTALL, MATPLOTLIB, is_there, require_asked
from hakmem.measuring import journal
from hakmem.measuring.measures import CPU, END_RSS, FAULTS, IDLE_RSS, PEAK_RSS, WALL
from hakmem.measuring.rotation import (
    OPS_PER_SECOND,
    WALL_METRIC_NAME,
    WALL_TIME,
    Contender,
    Metric,
    contenders,
    custom_metric,
    new_rotation,
    require_metric,
    run_rounds,
)
from hakmem.output import sentences, tables
from hakmem.running import interruption, programs
from hakmem.running.launching import TIME_LIMIT_S, count_system_calls
from hakmem.running.proof import IDLE, LIMIT, hakmem_served, peer_served

Tick = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What was asked for, checked."""

    pairs: int
    seed: int
    cpus: str | None
    metric: str | None = None
    lower_is_better: bool = False
    syscalls: bool = False


@click.command(context_settings=options.PROGRAM_LAST)
@options.pairs_option(10)
@options.allocator_options()
@options.option(
    "--metric", "Regular expression whose first group is the figure, or 'wall'.", kind=WORD
)
@click.option("--lower-is-better", is_flag=True, help="Direction of --metric.")
@workload_options()
@click.option("--syscalls", is_flag=True, help="Count system calls too, in runs under strace.")
@options.number_option(
    "--idle idle_s",
    "RSS after idle is measured where PROGRAM uses no CPU for at least so long, at the end of "
    "its longest such rest. 0: neither that nor RSS at end is measured.",
    0.5,
    0.0,
    metavar="SECONDS",
)
@options.number_option(
    "--timeout limit_s",
    "End a run that takes longer: its allocator has failed. 0: no limit.",
    0.0,
    0.0,
    metavar="SECONDS",
)
@options.cpu_option("none")
@options.seed_option()
@options.json_option()
@options.html_option()
@options.option(
    "--from source",
    "Measure nothing: show the tables of an earlier run again, also of one that was killed. "
    "--json and --html write its files.",
    kind=options.InputFile(),
    metavar="JOURNAL",
)
@click.argument("program", nargs=-1)
def compare(
    pairs: int,
    names: str | None,
    libraries: tuple[str, ...],
    metric: str | None,
    lower_is_better: bool,
    syscalls: bool,
    idle_s: float,
    limit_s: float,
    cpu: str,
    seed: int | None,
    json_path: Path | None,
    html_path: Path | None,
    source: Path | None,
    program: tuple[str, ...],
    **of_workload,
) -> None:
    """Compare allocators on PROGRAM: time, memory, page faults, and what it prints itself.

    The figure is the program's `Throughput =` line where it prints one, else its wall time. Put
    `--` before PROGRAM when it has options of its own. Finished rounds are kept in a journal, and
    an HTML report is put beside it, in HAKLAB_RESULTS or ~/.local/state/hakmem; the newest 20 runs
    stay there.

    With --server and --load each run starts the server under an allocator, waits for its port, runs
    the load and stops the server: memory and CPU time are the server's, the figure is the load's.

    Ends with status 1 when an allocator has no figures, 130 after Ctrl-C or SIGTERM; what was
    finished until then is reported.
    """
    console = tables.make_console()
    if source is not None:
        options.refuse_beside("--from measures nothing", {"source", "json_path", "html_path"})
        require_asked()
        report_again(console, source, json_path, html_path)
        return
    work = chosen_workload(program, **of_workload)
    if syscalls and work.is_server:
        raise UserError("--syscalls: not with --server", 2)
    how = Plan(
        pairs,
        options.resolve_seed(seed),
        options.resolve_cpus(cpu),
        metric,
        lower_is_better,
        syscalls,
    )
    require_metric(metric, lower_is_better)
    notes = programs.examine(work.command).notes
    if there := os.environ.get("LD_PRELOAD"):
        notes.append(f"LD_PRELOAD={there} of this shell is not in the measured runs")
    chosen = options.chosen_allocators(names, libraries, notes)
    require_asked()
    rows = [
        replace(row, idle_s=idle_s, limit_s=limit_s, runner=work.runner)
        for row in contenders(chosen, work.command)
    ]
    facts = facts_of(how, work, chosen, idle_s)
    path = journal.new_path("compare")
    log = journal.Journal(path, goes_on=True)
    found = comparison.Comparison(work.command, rows[0].name, pairs, facts, notes, log)
    work.require_working(limit_s)
    for line in sentences.of_noise(facts, ()) if console.is_terminal else ():
        # While it can still be stopped; with the figures it is said again.
        console.print(line)
    with interruption.only_once():
        measure(console, found, how, rows, chosen)
        interruption.ignore()
        journal.prune("compare")
        found.end()
        kept = f"; what was measured is in {path}: hakmem compare --from reads it"
        is_whole = found.rotation is not None and not log.incomplete
        can_draw = is_there(MATPLOTLIB)
        page = path.with_suffix(".html") if can_draw and not log.incomplete else None
        with journal.named_in_errors(kept if is_whole else ""):
            conclude(console, found, json_path, html_path, page)
            if found.figures and html_path is None and not can_draw:
                console.print(f"report: no page with plots without {INSTALL}", soft_wrap=True)
        if found.figures and is_whole:
            console.print(f"journal: {path} (hakmem compare --from reads it)", soft_wrap=True)
    finish(found)


def facts_of(
    how: Plan, work: Workload, chosen: Sequence[Allocator], idle_s: float
) -> dict[str, str]:
    return environment.describe(how.seed) | {
        "rounds": f"{how.pairs}, seed {how.seed}, pinned to {how.cpus or 'nothing'}",
        **work.facts,
        comparison.MEMORY_FACT: f"after at least {idle_s:g} s of rest"
        if idle_s
        else comparison.NOT_LOOKED_AT,
        **{a.name: str(a) for a in chosen},
    }


def measure(
    console: Console,
    found: comparison.Comparison,
    how: Plan,
    rows: Sequence[Contender],
    allocators: Sequence[Allocator],
    metric: Metric | None = None,
) -> None:
    """Proofs, then the rounds, then system calls; an interrupt ends it with what there is.

    The metric is what was asked for, or what the program prints, where it is not known before.
    """
    steps = len(rows) * (how.pairs + 1 + how.syscalls)
    try:
        with tables.progress_line(console, "comparing", steps) as progress:
            known = metric or metric_of(rows, how.metric, how.lower_is_better, how.cpus)
            found.begin_journal(new_rotation(rows, known, how.seed, how.cpus))
            prove(found, allocators, rows[0], progress.tick)
            run_rounds(found.rotation, how.pairs, progress.tick, found.log)
            if found.rotation.interrupted:
                raise KeyboardInterrupt
            if how.syscalls:
                count_calls(found, rows, progress.tick)
    except KeyboardInterrupt:
        found.interrupted = True


def metric_of(
    rows: Sequence[Contender], expression: str | None, lower_is_better: bool, cpus: str | None
) -> Metric:
    """The metric asked for, or what the first run that works prints."""
    if expression is not None:
        is_wall = expression == WALL_METRIC_NAME
        return WALL_TIME if is_wall else custom_metric(expression, lower_is_better)
    for row in rows:
        trial = row.run(cpus)
        if trial.start_error:
            raise UserError(trial.start_error, trial.start_status)
        if not trial.problem:
            return WALL_TIME if OPS_PER_SECOND.read(trial) is None else OPS_PER_SECOND
    return WALL_TIME


def prove(
    found: comparison.Comparison, allocators: Sequence[Allocator], row: Contender, tick: Tick
) -> None:
    """Whether each allocator serves the program at all, in a run of its own.

    A program that asks nothing of hakmem asks nothing of the others either: then all differences
    are noise, and nothing is measured.
    """
    how = (None, row.limit_s, row.runner)
    if not any(a.name == "hakmem" for a in allocators):
        # hakmem takes no part: what the environment sets for it must not decide.
        witness, how_looked = find("hakmem"), ({LIMIT: "0"}, row.limit_s, row.runner)
        if witness.usable and hakmem_served(found.program, witness.library, *how_looked).is_idle:
            raise UserError(f"{IDLE}: nothing to compare")
    for allocator in allocators:
        tick(f"proof: {allocator.name}")
        if allocator.name == "hakmem" and allocator.library:
            proof = hakmem_served(found.program, allocator.library, *how)
            if proof.is_idle:
                raise UserError(f"{proof.why_idle}: nothing to compare")
            if programs.examine(found.program).holds_hakmem:
                # Each of the two hakmems in a process has a line of its own.
                proof = replace(proof, processes=1)
            found.add_proof("hakmem", str(proof), proof.settings)
            found.notes += proof.warnings
        else:
            said = peer_served(found.program, allocator, *how)
            found.add_proof(allocator.name, said)


def count_calls(found: comparison.Comparison, rows: Sequence[Contender], tick: Tick) -> None:
    for row in rows:
        if found.rotation.series[row.name].problem:
            continue
        tick(f"strace: {row.name}")
        limit_s = min(TIME_LIMIT_S, row.limit_s or TIME_LIMIT_S)
        counted = count_system_calls(
            row.command, row.preload, row.settings, limit_s, row.runner.stdin
        )
        found.add_calls(row.name, counted)


def report_again(
    console: Console, source: Path, json_path: Path | None, html_path: Path | None
) -> None:
    found = comparison.from_journal(source)
    if not found.rounds_done and not found.problems:
        why = found.notes[-1] if found.damaged else "its command ended before the first was done"
        raise UserError(f"--from: {source} holds no whole round: {why}", 2)
    found.end()
    conclude(console, found, json_path, html_path)
    finish(found)


def conclude(
    console: Console,
    found: comparison.Comparison,
    json_path: Path | None,
    html_path: Path | None,
    unasked_page: Path | None = None,
) -> None:
    """Shows what was measured and writes the files.

    Where nothing was measured that is one line, and the files that were asked for; an interrupt
    before that leaves the old ones.
    """
    if found.interrupted and not found.figures:
        return
    if found.figures:
        show_all(console, found)
        html_path = html_path or unasked_page
    try:
        if html_path is not None:
            write_text(html_path, comparison.html(found), HTML)
            console.print(f"report: {html_path}", soft_wrap=True)
    finally:
        write_json(json_path, "compare", comparison.document(found))


def show_all(console: Console, found: comparison.Comparison) -> None:
    """Warnings and how it was measured, the tables, what is to be said of them, and last what was
    found: a terminal's last lines are seen."""
    tables.print_summary(console, [*found.warnings, *method(found)])
    show(console, found)
    tables.print_problems(console, found.problems)
    tables.print_notes(console, found.notes)
    console.print()
    for line in found.summary:
        console.print(line)


# The other facts are in the files.
WHERE, HOW = ("measured", "host", "kernel", "CPU"), ("load", "rounds", "settings")


def method(found: comparison.Comparison) -> list[str]:
    """Where, when and how it was measured, with which settings of an allocator's own, and what
    measures the same again."""
    facts = found.facts
    where = ", ".join(facts[name] for name in WHERE if name in facts)
    how = "; ".join(f"{name} {facts[name]}" for name in HOW if name in facts)
    lines = [f"How it was measured: {'; '.join(text for text in (where, how) if text)}"]
    for name, series in found.rotation.series.items():
        given = " ".join(f"{key}={value}" for key, value in series.contender.settings.items())
        lines.append(f"{name} ran with {given}" if given else "")
    lines.append(f"Again: {facts['command line']}" if "command line" in facts else "")
    return [line for line in lines if line]


def show(console: Console, found: comparison.Comparison) -> None:
    """The figure the comparison is about, then what a run costs."""
    width = console.width
    measure, cells = found.figures[0]
    console.print(
        tables.verdict_table(measure, cells, found.baseline, found.without_figures, width)
    )
    titles = {measure.title for measure, _ in found.figures}
    resident = IDLE_RSS if IDLE_RSS.title in titles else END_RSS
    wanted = [m.title for m in (WALL, CPU, PEAK_RSS, resident, FAULTS)]
    if width < tables.NARROW:
        wanted = [title for title in wanted if title != measure.title]
    costs = [(m, c) for m, c in found.figures if m.title in wanted]
    extra = {"system calls": calls_column(found, width < tables.NARROW)} if found.calls else {}
    console.print(tables.cost_table(costs, {**extra, "served": found.served}, width))


def calls_column(found: comparison.Comparison, narrow: bool) -> dict[str, str]:
    best = min((c.total for c in found.calls.values() if c.total), default=None)
    return {
        name: tables.with_ratio(str(c), c.total / best if c.total and best and not narrow else None)
        for name, c in found.calls.items()
    }


def finish(found: comparison.Comparison) -> None:
    if not found.figures:
        raise UserError(found.why_nothing, INTERRUPTED if found.interrupted else 1)
    if found.damaged or found.missing_rounds:
        raise SystemExit(1)
    if found.interrupted:
        raise SystemExit(INTERRUPTED)
    if found.problems or found.is_kept_in_part:
        raise SystemExit(1)
