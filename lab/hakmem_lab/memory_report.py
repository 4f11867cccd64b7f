"""What `hakmem memory` shows and writes: all figures by load, then the bars with their verdicts."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from hakmem.documents import MARKDOWN, write_text, written_by
from hakmem.output import tables
from rich.console import Console
from rich.table import Table

from hakmem_lab.memory_bars import Line, text
from hakmem_lab.memory_run import Measured

# Of the facts, what a document needs.
TOLD = ("CPU", "kernel", "THP", "free memory", "load", "settings", "commit", "loads", "rounds",
        "versions")  # fmt: skip
COLUMNS = ("measure", "bar", "hakmem", "best peer", "verdict", "note")


def show(
    console: Console, measured: Sequence[Measured], lines: Sequence[Line], is_quick: bool
) -> None:
    for one in measured:
        if one.skipped:
            console.print(f"{one.load.title}: skipped: {one.skipped}", soft_wrap=True)
        else:
            console.print(figures_table(one))
    if lines:
        console.print(bars_table(lines, is_quick))


def figures_table(one: Measured) -> Table:
    """One line a contender, one column a figure: medians of the rounds."""
    table = tables.plain_table(one.load.title)
    table.add_column("contender", no_wrap=True)
    for figure in one.load.figures:
        table.add_column(figure.title, justify="right", overflow="fold")
    for series in one.series.values():
        if series.problem:
            table.add_row(series.name, series.problem)
            continue
        middles = [(series.middle(figure.name), figure) for figure in one.load.figures]
        table.add_row(
            series.name,
            *(tables.ABSENT if value is None else text(value, f) for value, f in middles),
        )
    return table


def cells(line: Line) -> tuple[str, ...]:
    return (line.measure, line.bar, line.ours, line.best, line.verdict, line.note)


def used_columns(lines: Sequence[Line]) -> int:
    return len(COLUMNS) if any(line.note for line in lines) else len(COLUMNS) - 1


def bars_table(lines: Sequence[Line], is_quick: bool) -> Table:
    what = "small loads, no figures to quote" if is_quick else "medians of the rounds"
    table = tables.plain_table(f"What it must show: {what}")
    shown = used_columns(lines)
    for title in COLUMNS[:shown]:
        table.add_column(title, overflow="fold")
    for line in lines:
        table.add_row(*cells(line)[:shown])
    return table


def write_csv(path: Path, lines: Sequence[Line]) -> None:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(cells(line) for line in lines)
    write_text(path, out.getvalue())


def write_markdown(path: Path, lines: Sequence[Line], facts: dict[str, str]) -> None:
    """A piece for a document: where the figures come from, without paths, then the table."""
    shown = used_columns(lines)
    told = "; ".join(f"{name}: {facts[name]}" for name in TOLD if name in facts)
    rows = [COLUMNS[:shown], ("---",) * shown, *(cells(line)[:shown] for line in lines)]
    body = "\n".join("| " + " | ".join(safe(cell) for cell in row) + " |" for row in rows)
    write_text(path, f"{written_by('memory')}\n\n{told}\n\n{body}\n", MARKDOWN)


def safe(cell: str) -> str:
    return cell.replace("|", "\\|")
