"""How figures are shown: console, number formats, the comparison table."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hakmem.measuring.measures import Cell, Measure, scale_of
from hakmem.measuring.rotation import Metric
from hakmem.measuring.statistics import Interval
from hakmem.measuring.summary import Row

# Wide enough for every table here when there is no terminal to ask.
PLAIN_WIDTH = 150
ABSENT = "-"
# Below this the tables of a comparison leave out what the report has anyway.
NARROW = 120


def make_console() -> Console:
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    # Paths and command lines may hold brackets and colons: nothing in them is markup.
    return Console(width=width, highlight=False, markup=False, emoji=False)


@contextmanager
def progress_line(console: Console, title: str, steps: int) -> Iterator[Progress]:
    """One line that says what runs now; nothing at all where output is no terminal."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        progress.add_task(title, total=steps, now="")
        yield progress


def figure(value: float, metric: Metric) -> str:
    if metric.unit == "ops/s":
        return f"{value / 1e6:.1f} M" if value >= 1e6 else f"{value:,.0f}"
    return f"{value:.3f}" if value < 1000 else f"{value:,.0f}"


def interval(value: Interval | None) -> str:
    if value is None:
        return "n/a"
    if value.low is None or value.high is None:
        return f"{value.median:.3f}"
    return f"{value.median:.3f} [{value.low:.3f}, {value.high:.3f}]"


def megabytes(kb: int) -> str:
    return f"{kb / 1024:.1f}"


def comparison_table(
    rows: Sequence[Row],
    metric: Metric,
    baseline: str,
    with_net: bool,
    extra: Mapping[str, Mapping[str, str]] | None = None,
) -> Table:
    """One line a contender; `extra` maps a column's title to a cell for each name."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), caption_justify="left")
    unit = metric.unit or "figure"
    table.caption = (
        f"{unit}: {metric.direction}; medians, and the best run. "
        f"cost ÷ {baseline}: median over the rounds, [95 % interval]; above 1 the row costs more."
    )
    table.add_column("allocator", no_wrap=True)
    table.add_column(unit, justify="right", no_wrap=True)
    table.add_column("best", justify="right", no_wrap=True)
    table.add_column("CV", justify="right", no_wrap=True)
    table.add_column(f"cost ÷ {baseline}")
    if with_net:
        table.add_column("net of floor")
    table.add_column("peak\nRSS MB", justify="right", no_wrap=True)
    table.add_column("faults\nminor/major", justify="right", no_wrap=True)
    for title in extra or {}:
        table.add_column(title, justify="left" if title == "served" else "right")
    for row in rows:
        table.add_row(*_cells(row, metric, baseline, with_net), *_extra_cells(row, extra))
    return table


def _cells(row: Row, metric: Metric, baseline: str, with_net: bool) -> list[str]:
    if row.problem:
        return [
            row.name,
            ABSENT,
            ABSENT,
            ABSENT,
            row.problem,
            *([ABSENT] if with_net else []),
            ABSENT,
            ABSENT,
        ]
    ratio = "1 (baseline)" if row.name == baseline else interval(row.ratio)
    cells = [
        row.name,
        figure(row.median, metric),
        figure(row.best, metric),
        f"{100 * row.variation:.1f} %",
        ratio,
    ]
    if with_net:
        is_reference = row.name in (baseline, "floor")
        cells.append(ABSENT if is_reference else interval(row.net))
    cells.append(megabytes(row.peak_rss_kb))
    cells.append(f"{row.minor_faults:,}/{row.major_faults:,}")
    return cells


def _extra_cells(row: Row, extra: Mapping[str, Mapping[str, str]] | None) -> list[str]:
    return [cells.get(row.name, ABSENT) for cells in (extra or {}).values()]


def facts_table(facts: Mapping[str, str]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, value)
    return table


def print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in dict.fromkeys(notes):
        console.print(f"note: {note}", soft_wrap=True)


def verdict_table(
    measure: Measure,
    cells: Sequence[Cell],
    baseline: str,
    without_figures: Sequence[str] = (),
    width: int = PLAIN_WIDTH,
) -> Table:
    """One figure of each allocator with its verdict; the best is on top."""
    scale, narrow = scale_of(measure, cells), width < NARROW
    table = plain_table(f"{measure.title}{', ' if scale.unit else ''}{scale.unit}: "
                        f"{measure.direction}")  # fmt: skip
    table.caption = (
        "Medians, [95 % interval]. cost ÷ best: of the medians; 1.00 is the best, 2.00 costs twice "
        f"as much. cost ÷ {baseline}: median over the rounds; above 1 the row costs more than "
        f"{baseline}, below 1 less."
    )
    table.add_column("allocator", no_wrap=True)
    spread = () if narrow else ("interval", "CV")
    for title in ("median", *spread, "cost ÷ best", f"cost ÷ {baseline}"):
        table.add_column(title, justify="right")
    table.add_column(f"beside {baseline}")
    for cell in sorted(cells, key=lambda c: c.middle.median, reverse=measure.higher_is_better):
        middle = cell.middle
        known = middle.low is not None and middle.high is not None
        low_to_high = f"[{scale.text(middle.low)}, {scale.text(middle.high)}]" if known else ABSENT
        table.add_row(
            cell.name,
            scale.text(middle.median),
            *(() if narrow else (low_to_high, f"{100 * cell.variation:.1f} %")),
            f"{cell.to_best:.2f}" if cell.to_best is not None else ABSENT,
            interval(cell.to_baseline) if cell.to_baseline else ABSENT,
            cell.verdict,
        )
    for name in without_figures:
        table.add_row(name, *[ABSENT] * (3 + len(spread)), "no figures, see below")
    return table


def cost_table(
    figures: Sequence[tuple[Measure, Sequence[Cell]]],
    extra: Mapping[str, Mapping[str, str]],
    width: int = PLAIN_WIDTH,
) -> Table:
    """What else a run costs: medians, and the ratio to the best of the column in brackets."""
    narrow = width < NARROW
    table = plain_table("Costs of a run: lower is better")
    table.caption = "Medians" + ("" if narrow else "; in brackets the ratio to the column's best")
    table.add_column("allocator", no_wrap=True)
    columns: list[Mapping[str, str]] = []
    for measure, cells in figures:
        scale = scale_of(measure, cells)
        table.add_column(f"{measure.title} {scale.unit}".strip(), justify="right")
        columns.append(
            {
                c.name: with_ratio(scale.text(c.middle.median), None if narrow else c.to_best)
                for c in cells
            }
        )
    for title, cells in extra.items():
        table.add_column(title, justify="left" if title == "served" else "right")
        columns.append(cells)
    for name in dict.fromkeys(c.name for _, cells in figures for c in cells):
        table.add_row(name, *(column.get(name, ABSENT) for column in columns))
    return table


def plain_table(title: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), caption_justify="left")
    table.title, table.title_justify = title, "left"
    return table


def with_ratio(text: str, ratio: float | None) -> str:
    return text if ratio is None else f"{text} ({ratio:.2f})"
