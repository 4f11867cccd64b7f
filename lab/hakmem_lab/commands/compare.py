"""`hakmem compare`: the user's own program under each allocator, in interleaved runs."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from hakmem_lab import environment, report, tables
from hakmem_lab.documents import write_json, write_text
from hakmem_lab.errors import LabError
from hakmem_lab.measures import CPU, FAULTS, PEAK_RSS, WALL, Cell, Measure, evaluate, measures_for
from hakmem_lab.measures import scale_of as scale_for
from hakmem_lab.options import (
    INTERRUPTED,
    allocator_options,
    chosen_allocators,
    cpu_option,
    html_option,
    json_option,
    metric_options,
    pairs_option,
    resolve_cpus,
    resolve_seed,
    seed_option,
)
from hakmem_lab.peers import DEFAULT_NAMES, Allocator, find
from hakmem_lab.proof import Served, hakmem_served, load_checked, peer_served
from hakmem_lab.recipes import RECIPES
from hakmem_lab.rotation import Contender, Rotation, choose_metric, contenders, run_rotation
from hakmem_lab.syscalls import SystemCalls, count_system_calls


@dataclass
class Comparison:
    """All that is known so far; an interrupt leaves the rest empty."""

    program: tuple[str, ...]
    allocators: Sequence[Allocator]
    baseline: str
    pairs: int
    facts: dict[str, str]
    served: dict[str, str] = field(default_factory=dict)
    rotation: Rotation | None = None
    figures: list[tuple[Measure, list[Cell]]] = field(default_factory=list)
    calls: dict[str, SystemCalls] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def problems(self) -> dict[str, str]:
        """Allocators without figures, or with another malloc's, and why."""
        found = {a.name: a.problem for a in self.allocators if not a.usable}
        for name, series in (self.rotation.series if self.rotation else {}).items():
            if series.problem:
                words = series.last_words.strip()
                found[name] = (
                    f"{series.problem}; it last said: {words}" if words else series.problem
                )
        for name, said in self.served.items():
            if said.startswith("NOT SERVED"):
                found.setdefault(name, f"{said}: its figures are another malloc's")
        return found


@click.command(context_settings={"ignore_unknown_options": True})
@pairs_option(10)
@allocator_options(None, "hakmem, glibc and all others that are there")
@metric_options()
@click.option("--syscalls", is_flag=True, help="Count system calls too, in runs under strace.")
@cpu_option("none")
@seed_option()
@json_option()
@html_option()
@click.argument("program", nargs=-1, required=True)
def compare(
    pairs: int,
    names: str | None,
    libraries: tuple[str, ...],
    metric: str | None,
    lower_is_better: bool,
    syscalls: bool,
    cpu: str,
    seed: int | None,
    json_path: Path | None,
    html_path: Path | None,
    program: tuple[str, ...],
) -> None:
    """Compare allocators on PROGRAM: time, memory, page faults, and what it prints itself.

    The figure is the program's `Throughput =` line where it prints one, else its wall time. Put
    `--` before PROGRAM when it has options of its own. Ends with status 1 when an allocator has no
    figures, 130 after Ctrl-C; the whole rounds until then are reported.
    """
    console = tables.make_console()
    notes: list[str] = []
    wanted = names if names is not None else default_names(notes)
    chosen = [load_checked(a) for a in chosen_allocators(wanted, libraries)]
    rows = contenders(chosen, program)
    if not rows:
        raise LabError("no allocator to measure: " + "; ".join(a.problem for a in chosen))
    cpus, seed = resolve_cpus(cpu, None), resolve_seed(seed)
    chosen_metric = choose_metric(metric, lower_is_better, rows[0], cpus)
    facts = environment.describe() | {
        "rounds": f"{pairs}, seed {seed}, pinned to {cpus or 'nothing'}",
        "program": shlex.join(program),
        **{a.name: a.problem or str(a) for a in chosen},
    }
    comparison = Comparison(program, chosen, rows[0].name, pairs, facts, notes=notes)
    console.print(tables.facts_table(facts))
    steps = len(rows) * (pairs + 1 + syscalls)
    try:
        with tables.progress_line(console, "comparing", steps) as progress:

            def tick(what: str) -> None:
                progress.update(progress.task_ids[0], advance=1, now=what)

            prove(comparison, tick)
            comparison.rotation = run_rotation(rows, chosen_metric, pairs, seed, cpus, tick)
            if comparison.rotation.interrupted:
                raise KeyboardInterrupt
            if syscalls:
                count_calls(comparison, rows, tick)
    except KeyboardInterrupt:
        comparison.interrupted = True
    conclude(console, comparison, json_path, html_path)


def default_names(notes: list[str]) -> str:
    """All that is there. What is not is named, not left out in silence."""
    found = [find(name) for name in (*DEFAULT_NAMES, *RECIPES)]
    missing = [a for a in found if not a.usable and a.name != "hakmem"]
    notes += [f"not compared: {a.name}: {a.problem}" for a in missing]
    return ",".join(a.name for a in found if a not in missing)


def prove(comparison: Comparison, tick) -> None:
    """Whether each allocator serves the program at all, in a run of its own."""
    for allocator in comparison.allocators:
        if not allocator.usable:
            continue
        tick(f"proof: {allocator.name}")
        if allocator.name == "hakmem" and allocator.library:
            proof: Served = hakmem_served(comparison.program, allocator.library)
            comparison.served["hakmem"] = str(proof)
            if proof.settings:
                comparison.facts["effective settings"] = " ".join(proof.settings)
        else:
            comparison.served[allocator.name] = peer_served(comparison.program, allocator)


def count_calls(comparison: Comparison, rows: Sequence[Contender], tick) -> None:
    for row in rows:
        if comparison.rotation.series[row.name].problem:
            continue
        tick(f"strace: {row.name}")
        counted = count_system_calls(row.command, row.preload, row.settings)
        comparison.calls[row.name] = counted
        if counted.note:
            comparison.notes.append(f"system calls of {row.name}: {counted.note}")


def conclude(
    console: Console, comparison: Comparison, json_path: Path | None, html_path: Path | None
) -> None:
    """Evaluates what was measured, shows it, writes the files, and ends with the status."""
    rotation = comparison.rotation
    if rotation is not None and rotation.rounds_done:
        for measure in measures_for(rotation.metric):
            cells = evaluate(rotation, measure, comparison.baseline)
            comparison.figures.append((measure, cells))
        show(console, comparison)
    for name, problem in comparison.problems.items():
        console.print(f"{name}: {problem}", soft_wrap=True)
    done = rotation.rounds_done if rotation else 0
    if comparison.interrupted:
        comparison.notes.append(f"interrupted after {done} of {comparison.pairs} rounds")
    for note in comparison.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if json_path is not None:
        write_json(json_path, "compare", document(comparison))
    if html_path is not None:
        write_text(html_path, html(comparison))
        console.print(f"report: {html_path}", soft_wrap=True)
    if comparison.interrupted:
        raise SystemExit(INTERRUPTED)
    if comparison.problems:
        raise SystemExit(1)


def show(console: Console, comparison: Comparison) -> None:
    console.print(main_table(comparison))
    console.print(cost_table(comparison))


def main_table(comparison: Comparison) -> Table:
    """The figure the comparison is about, with its verdicts; the best is on top."""
    measure, cells = comparison.figures[0]
    scale, baseline = scale_for(measure, cells), comparison.baseline
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), caption_justify="left")
    unit = f", {scale.unit}" if scale.unit else ""
    table.title = f"{measure.title}{unit}: {measure.direction}"
    table.title_justify = "left"
    table.caption = (
        "Medians, [95 % interval]. ÷ best: of the medians. "
        f"÷ {baseline}: median of the pairs, of cost; above 1 the row costs more."
    )
    table.add_column("allocator", no_wrap=True)
    for title in ("median", "interval", "CV", "÷ best", f"÷ {baseline}"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column(f"beside {baseline}")
    for cell in sorted(cells, key=lambda c: c.middle.median, reverse=measure.higher_is_better):
        middle = cell.middle
        known = middle.low is not None and middle.high is not None
        table.add_row(
            cell.name,
            scale.text(middle.median),
            f"[{scale.text(middle.low)}, {scale.text(middle.high)}]" if known else tables.ABSENT,
            f"{100 * cell.variation:.1f} %",
            f"{cell.to_best:.2f}" if cell.to_best is not None else tables.ABSENT,
            tables.interval(cell.to_baseline) if cell.to_baseline else tables.ABSENT,
            cell.verdict,
        )
    for name in comparison.problems:
        if all(cell.name != name for cell in cells):
            table.add_row(name, *[tables.ABSENT] * 5, "no figures, see below")
    return table


def cost_table(comparison: Comparison) -> Table:
    """What else a run costs: medians, and the ratio to the best in brackets."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), caption_justify="left")
    table.title = "Costs of a run: lower is better"
    table.title_justify = "left"
    table.caption = "Medians; in brackets the ratio to the best of the column."
    table.add_column("allocator", no_wrap=True)
    columns = []
    for measure, cells in comparison.figures:
        if measure not in (WALL, CPU, PEAK_RSS, FAULTS):
            continue
        scale = scale_for(measure, cells)
        unit = f" {scale.unit}" if scale.unit else ""
        table.add_column(f"{measure.title}{unit}", justify="right", no_wrap=True)
        columns.append({c.name: with_ratio(scale.text(c.middle.median), c.to_best) for c in cells})
    if comparison.calls:
        table.add_column("system calls", justify="right", no_wrap=True)
        columns.append(calls_column(comparison.calls))
    table.add_column("served")
    for cell in comparison.figures[0][1]:
        said = comparison.served.get(cell.name, tables.ABSENT)
        table.add_row(cell.name, *(c.get(cell.name, tables.ABSENT) for c in columns), said)
    return table


def with_ratio(text: str, ratio: float | None) -> str:
    return text if ratio is None else f"{text} ({ratio:.2f})"


def calls_column(calls: Mapping[str, SystemCalls]) -> dict[str, str]:
    counted = [c.total for c in calls.values() if c.total]
    best = min(counted, default=None)
    return {
        name: with_ratio(str(c), c.total / best if c.total and best else None)
        for name, c in calls.items()
    }


def document(comparison: Comparison) -> dict:
    """All runs and what was made of them, to be read by other tools."""
    rotation = comparison.rotation
    return {
        "program": list(comparison.program),
        "facts": comparison.facts,
        "baseline": comparison.baseline,
        "seed": rotation.seed if rotation else None,
        "rounds": rotation.rounds_done if rotation else 0,
        "interrupted": comparison.interrupted,
        "served": comparison.served,
        "problems": comparison.problems,
        "notes": comparison.notes,
        "system_calls": {name: c.total for name, c in comparison.calls.items()},
        "measures": [
            {
                "title": measure.title,
                "unit": measure.unit,
                "higher_is_better": measure.higher_is_better,
                "rows": [asdict(cell) for cell in cells],
            }
            for measure, cells in comparison.figures
        ],
    }


def html(comparison: Comparison) -> str:
    facts = dict(comparison.facts)
    facts |= {f"{name} served": said for name, said in comparison.served.items()}
    facts |= {f"{name} system calls": str(c) for name, c in comparison.calls.items()}
    title = shlex.join(comparison.program)
    return report.page(
        title,
        facts,
        comparison.figures,
        comparison.problems,
        comparison.notes,
        comparison.baseline,
    )
