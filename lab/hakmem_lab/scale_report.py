"""How the figures of `hakmem scale` are shown and written: tables, CSV, JSON, a plot a load."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from hakmem.documents import write_json, write_text
from hakmem.output import report, tables
from rich.console import Console
from rich.table import Table

from hakmem_lab.scale_points import Load
from hakmem_lab.scale_run import NS_PER_S, Figures, Measured, Step, largest_steps
from hakmem_lab.suite_files import table_text

COLUMNS = (
    "axis", "load", "value", "allocator", "rounds", "ns_per_op", "ns_min", "ns_max", "ops_per_sec",
    "peak_rss_kb", "minor_faults", "major_faults", "problem", "command",
)  # fmt: skip
CSV_NAME, JSON_NAME = "scale.csv", "scale.json"
PICTURE_INCHES = (7.5, 4.5)
# Where the vertical axis is labelled, within each power of ten.
LABELLED = (1, 2, 5)


def loads_of(measured: Sequence[Measured]) -> list[Load]:
    return list(dict.fromkeys(one.point.load for one in measured))


def names_of(measured: Sequence[Measured]) -> list[str]:
    return list(dict.fromkeys(f.allocator for one in measured for f in one.figures))


def nanoseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def load_table(load: Load, measured: Sequence[Measured]) -> Table:
    names = names_of(measured)
    table = tables.plain_table("")
    columns = [(load.axis.title, {"justify": "right", "no_wrap": True})]
    columns += [(name, {"justify": "right"}) for name in names]
    line = [one for one in measured if one.point.load is load]
    rows = [[one.point.text, *(cell(one.of(name)) for name in names)] for one in line]
    tables.fill(table, columns, rows)
    return table


def cell(figures: Figures | None) -> str:
    if figures is None:
        return tables.ABSENT
    return f"{nanoseconds(figures.ns)} ({tables.megabytes(figures.peak_rss_kb)})"


def steps_table(measured: Sequence[Measured]) -> Table:
    """A cliff would show here: the baseline's line, with the others' for comparison."""
    names = names_of(measured)
    table = tables.plain_table("")
    table.add_column("load", no_wrap=True)
    for name in names:
        table.add_column(name)
    steps = largest_steps(measured, names)
    for load in loads_of(measured):
        found = {step.allocator: step for step in steps if step.load == load.name}
        cells = (step_text(found[name]) if name in found else tables.ABSENT for name in names)
        table.add_row(load.name, *cells)
    return table


def step_text(step: Step) -> str:
    return f"{step.ratio:.2f} ({step.before.text} to {step.after.text})"


def summary(measured: Sequence[Measured]) -> list[str]:
    """Of each load: the cost at its ends, of the first allocator and of the best other there."""
    names, told = names_of(measured), []
    for load in loads_of(measured):
        line = [one for one in measured if one.point.load is load]
        ours = [(one, f) for one in line if names and (f := one.of(names[0]))]
        if not ours:
            continue
        (first, low), (last, high) = ours[0], ours[-1]
        cost = f"{nanoseconds(low.ns)} ns at {first.point.text}"
        if first is not last:
            cost += f", {nanoseconds(high.ns)} ns at {last.point.text}"
        others = {name: f.ns for name in names[1:] if (f := last.of(name))}
        best = min(others, key=others.__getitem__, default="")
        beside = f"; {best}, the best other there, {nanoseconds(others[best])} ns" if best else ""
        told.append(f"{load.name}: an operation takes {names[0]} {cost}{beside}.")
    return told


def show(console: Console, measured: Sequence[Measured]) -> None:
    """Titles stand above the tables, which may be too narrow for them."""
    tables.print_summary(console, summary(measured))
    console.print("Median ns an operation; in brackets peak RSS, MB.")
    for load in loads_of(measured):
        console.print(f"\n{load.name}, {load.axis.title}: {load.title}", soft_wrap=True)
        console.print(load_table(load, measured))
    console.print("\nLargest rise of the cost from one point to the next, and between which:")
    console.print(steps_table(measured))


def problems(measured: Sequence[Measured]) -> list[str]:
    return [
        f"{one.point.load.name}, {one.point.text}, {figures.allocator}: {figures.problem}"
        for one in measured
        for figures in one.figures
        if figures.problem
    ]


def write_csv(path: Path, measured: Sequence[Measured]) -> None:
    lines = [csv_line(one, figures) for one in measured for figures in one.figures]
    write_text(path, table_text(COLUMNS, lines))


def csv_line(one: Measured, found: Figures) -> list:
    point = one.point
    times = (found.ns, found.ns_min, found.ns_max, NS_PER_S / found.ns if found.rounds else 0)
    costs = (found.peak_rss_kb, found.minor_faults, found.major_faults)
    return [
        point.load.axis.name,
        point.load.name,
        point.value,
        found.allocator,
        found.rounds,
        *(f"{value:.6g}" if found.rounds else "" for value in times),
        *(costs if found.rounds else [""] * len(costs)),
        found.problem,
        shlex.join(one.command),
    ]


def write_document(
    path: Path, measured: Sequence[Measured], facts: Mapping[str, str], skipped: Mapping[str, str]
) -> None:
    points = [
        {
            "axis": one.point.load.axis.name,
            "load": one.point.load.name,
            "value": one.point.value,
            "command": list(one.command),
            "figures": [asdict(figures) for figures in one.figures],
        }
        for one in measured
    ]
    steps = [
        {
            "load": step.load,
            "allocator": step.allocator,
            "ratio": step.ratio,
            "from": step.before.value,
            "to": step.after.value,
        }
        for step in largest_steps(measured, names_of(measured))
    ]
    document = {"facts": dict(facts), "points": points, "largest_steps": steps}
    write_json(path, "scale", document | {"skipped": dict(skipped)})


def write_plots(folder: Path, measured: Sequence[Measured]) -> list[Path]:
    paths = []
    for load in loads_of(measured):
        path = folder / f"{load.axis.name}-{load.name}.svg"
        write_text(path, draw(load, [one for one in measured if one.point.load is load]))
        paths.append(path)
    return paths


def draw(load: Load, line: Sequence[Measured]) -> str:
    """The cost of an operation against the axis: medians, and the range of the rounds."""
    # Slow to import, and only this needs it.
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    with rc_context(report.drawing_style("hakmem")):
        figure = Figure(figsize=PICTURE_INCHES, layout="constrained")
        axes = figure.subplots()
        for number, name in enumerate(names_of(line)):
            plot_one(axes, line, name, f"C{number}")
        axes.set_xscale("log")
        axes.set_xticks([one.point.value for one in line], [one.point.text for one in line])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(load.axis.title)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=LABELLED))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        low, high = axes.get_ylim()
        # Less than a power of ten might have no label.
        axes.set_ylim(min(low, high / 10), high)
        axes.set_ylabel("ns an operation (lower is better)")
        axes.set_title(f"{load.name}: {load.title}", fontsize=10)
        axes.grid(color="#dde1e8")
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower center", ncols=len(handles))
        return report.picture_of(figure, "svg").decode()


def plot_one(axes, line: Sequence[Measured], name: str, colour: str) -> None:
    found = [(one.point.value, f) for one in line if (f := one.of(name))]
    if not found:
        return
    values = [value for value, _ in found]
    axes.plot(values, [f.ns for _, f in found], label=name, color=colour, marker="o", markersize=4)
    lows, highs = [f.ns_min for _, f in found], [f.ns_max for _, f in found]
    axes.fill_between(values, lows, highs, color=colour, alpha=0.15, linewidth=0)
