"""How the figures of `hakmem scale` are shown: a table and a plot of each load."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hakmem.documents import write_text
from hakmem.output import report, tables
from rich.console import Console
from rich.table import Table

from hakmem_lab.scale_points import AXES, Load, Point, points_of
from hakmem_lab.suite_results import Entry, Results

NS_PER_S = 1e9
PICTURE_INCHES = (7.5, 4.5)
# Where the vertical axis is labelled, within each power of ten.
LABELLED = (1, 2, 5)
# Of a load, the points that were measured, each with the figures of the allocators that have some.
Line = list[tuple[Point, Mapping[str, Entry]]]


def lines_of(results: Results) -> dict[Load, Line]:
    known = {point.name: point for point in points_of(list(AXES.values()))}
    found: dict[Load, Line] = {}
    for row in results.rows:
        if entries := {e.allocator: e for e in row.entries if e.rounds}:
            point = known[row.name]
            found.setdefault(point.load, []).append((point, entries))
    return found


def nanoseconds(entry: Entry) -> str:
    value = NS_PER_S / entry.median
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def load_table(load: Load, line: Line, names: Sequence[str]) -> Table:
    table = tables.plain_table("")
    columns = [(load.axis.title, {"justify": "right", "no_wrap": True})]
    columns += [(name, {"justify": "right"}) for name in names]
    rows = [[point.text, *(cell(entries.get(n)) for n in names)] for point, entries in line]
    tables.fill(table, columns, rows)
    return table


def cell(entry: Entry | None) -> str:
    if entry is None:
        return tables.ABSENT
    return f"{nanoseconds(entry)} ({tables.megabytes(entry.peak_rss_kb)})"


def summary(results: Results) -> list[str]:
    """Of each load: the cost at its ends, of the first allocator and of the best other there."""
    name, told = results.baseline, []
    for load, line in lines_of(results).items():
        ours = [(point, entries[name]) for point, entries in line if name in entries]
        if not ours:
            continue
        ends = dict.fromkeys((ours[0], ours[-1]))
        cost = ", ".join(f"{nanoseconds(entry)} ns at {point.text}" for point, entry in ends)
        others = [e for other, e in line[-1][1].items() if other != name]
        best = max(others, key=lambda e: e.median, default=None)
        beside = f"; {best.allocator}, the best other there, {nanoseconds(best)} ns" if best else ""
        told.append(f"{load.name}: an operation takes {name} {cost}{beside}.")
    return told


def show(console: Console, results: Results) -> None:
    """Titles stand above the tables, which may be too narrow for them."""
    tables.print_summary(console, summary(results))
    console.print("Median ns an operation; in brackets peak RSS, MB.")
    for load, line in lines_of(results).items():
        console.print(f"\n{load.name}, {load.axis.title}: {load.title}", soft_wrap=True)
        console.print(load_table(load, line, list(results.allocators)))


def write_plots(folder: Path, results: Results) -> None:
    for load, line in lines_of(results).items():
        path = folder / f"{load.axis.name}-{load.name}.svg"
        write_text(path, draw(load, line, list(results.allocators)))


def draw(load: Load, line: Line, names: Sequence[str]) -> str:
    """The cost of an operation against the axis: medians, and the range of the rounds."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    with report.new_figure(PICTURE_INCHES) as figure:
        axes = figure.subplots()
        for number, name in enumerate(names):
            plot_one(axes, line, name, f"C{number}")
        axes.set_xscale("log")
        axes.set_xticks([point.value for point, _ in line], [point.text for point, _ in line])
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
        axes.grid(color=report.LINE)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(handles))
        return report.picture_of(figure, "svg").decode()


def plot_one(axes, line: Line, name: str, colour: str) -> None:
    found = [(point.value, entries[name]) for point, entries in line if name in entries]
    values = [value for value, _ in found]
    costs, most, least = (
        [NS_PER_S / getattr(entry, figure) for _, entry in found]
        for figure in ("median", "min", "max")
    )
    axes.plot(values, costs, label=name, color=colour, marker="o", markersize=4)
    axes.fill_between(values, least, most, color=colour, alpha=0.15, linewidth=0)
