"""How figures are shown: console, number formats, the comparison table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from hakmem.measuring import measures
from hakmem.measuring.rotation import Metric
from hakmem.measuring.statistics import Interval
from hakmem.output.streams import PLAIN_WIDTH as PLAIN_WIDTH
from hakmem.output.streams import make_console as make_console
from hakmem.plain_text import printable

ABSENT = "-"
EMPTY = ("", ABSENT, "n/a")
Column = tuple[str, Mapping[str, Any]]
# A verdict where there is little room.
SHORT = {
    measures.NO_DIFFERENCE: "no difference",
    measures.TOO_FEW: "too few pairs",
    measures.NOISY: "too noisy",
    measures.NOT_SERVED: "not served",
}
# Below this the tables of a comparison leave out what the report has anyway.
NARROW = 120


class NowColumn(ProgressColumn):
    """What runs now: a name, in which nothing is markup."""

    def render(self, task: Task) -> Text:
        return Text(printable(task.fields["now"]))


class Steps(Progress):
    """Of one task."""

    def tick(self, what: str) -> None:
        self.update(self.task_ids[0], advance=1, now=what)

    def say(self, what: str) -> None:
        self.update(self.task_ids[0], now=what)


@contextmanager
def progress_line(console: Console, title: str, steps: int) -> Iterator[Steps]:
    """One line that says what runs now; nothing at all where output is no terminal."""
    with Steps(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.completed}/{task.total}"),
        NowColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        progress.add_task(title, total=steps, now="")
        yield progress


def figure(value: float, metric: Metric) -> str:
    if metric.unit.startswith("ops/"):
        return f"{value / 1e6:.1f} M" if value >= 1e6 else f"{value:,.0f}"
    return f"{value:.3f}" if value < 1000 else f"{value:,.0f}"


def interval(value: Interval | None, digits: int = 3) -> str:
    if value is None:
        return "n/a"
    if value.low is None or value.high is None:
        return f"{value.median:.{digits}f}"
    return f"{value.median:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def megabytes(kb: int) -> str:
    return f"{kb / 1024:.1f}"


def fill(table: Table, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """A column without a figure in any row is left out, and the caption says so."""
    shown = [i for i in range(len(columns)) if not rows or any(r[i] not in EMPTY for r in rows)]
    for i in shown:
        title, how = columns[i]
        # A word that does not fit is broken, not cut off.
        table.add_column(title, **(how if "no_wrap" in how else {"overflow": "fold", **how}))
    for line in rows:
        table.add_row(*(line[i] for i in shown))
    lacking = [columns[i][0].replace("\n", " ") for i in range(len(columns)) if i not in shown]
    lacking = [title for title in lacking if title]
    if lacking:
        told = f"Left out, as no row has a figure: {', '.join(lacking)}."
        table.caption = f"{table.caption} {told}" if table.caption else told


def print_summary(console: Console, lines: Sequence[str]) -> None:
    """What was found, before any table."""
    for line in lines:
        console.print(line)
    if lines:
        console.print()


def print_facts(console: Console, facts: Mapping[str, str]) -> None:
    """What the figures depend on, below them."""
    if not facts:
        return
    console.print("\nHow it was measured")
    console.print(facts_table(facts))


def facts_table(facts: Mapping[str, str]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, value)
    return table


def print_problems(console: Console, problems: Mapping[str, str], where: str = "") -> None:
    for name, problem in problems.items():
        console.print(f"{where}{name}: {problem}", soft_wrap=True)


def print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in dict.fromkeys(notes):
        console.print(f"note: {note}", soft_wrap=True)


def verdict_table(
    measure: measures.Measure,
    cells: Sequence[measures.Cell],
    baseline: str,
    without_figures: Sequence[str] = (),
    width: int = PLAIN_WIDTH,
) -> Table:
    """One figure of each allocator with its verdict; the best is on top."""
    scale, narrow = measures.scale_of(measure, cells), width < NARROW
    table = plain_table(f"{measure.title}{', ' if scale.unit else ''}{scale.unit}: "
                        f"{measure.direction}")  # fmt: skip
    table.caption = (
        "Medians, [95 % interval]. cost ÷ best: of the medians; 1.00 is the best, 2.00 costs twice "
        f"as much. cost ÷ {baseline}: median over the rounds; above 1 the row costs more than "
        f"{baseline}, below 1 less."
    )
    right = {"justify": "right", "no_wrap": True}
    spread = () if narrow else (("interval", right), ("CV", right))
    columns: list[Column] = [
        ("allocator", {"no_wrap": True}),
        ("median", right),
        *spread,
        ("cost ÷ best", right),
        (f"cost ÷ {baseline}", right),
        (f"beside {baseline}", {"no_wrap": True}),
    ]
    rows = []
    for cell in measures.ranked(measure, cells):
        middle = cell.middle
        known = middle.low is not None and middle.high is not None
        low_to_high = f"[{scale.text(middle.low)}, {scale.text(middle.high)}]" if known else ABSENT
        rows.append([
            cell.name,
            scale.text(middle.median),
            *(() if narrow else (low_to_high, f"{100 * cell.variation:.1f} %")),
            f"{cell.to_best:.2f}" if cell.to_best is not None else ABSENT,
            interval(cell.to_baseline, 2 if narrow else 3) if cell.to_baseline else ABSENT,
            SHORT.get(cell.verdict, cell.verdict) if narrow else cell.verdict,
        ])  # fmt: skip
    none = "no figures" if narrow else "no figures, see below"
    rows += [[name, *[ABSENT] * (3 + len(spread)), none] for name in without_figures]
    fill(table, columns, rows)
    return table


def cost_table(
    figures: Sequence[tuple[measures.Measure, Sequence[measures.Cell]]],
    extra: Mapping[str, Mapping[str, str]],
    width: int = PLAIN_WIDTH,
) -> Table:
    """What else a run costs: medians, and the ratio to the best of the column in brackets.

    A narrow one has neither the ratios nor `served`.
    """
    narrow = width < NARROW
    table = plain_table("Costs of a run: lower is better")
    table.caption = "Medians" + ("." if narrow else "; in brackets the ratio to the column's best.")
    columns: list[Column] = [("allocator", {"no_wrap": True})]
    found: list[Mapping[str, str]] = []
    for measure, cells in figures:
        scale = measures.scale_of(measure, cells)
        columns.append((f"{measure.title} {scale.unit}".strip(), {"justify": "right"}))
        found.append(
            {
                c.name: with_ratio(scale.text(c.middle.median), None if narrow else c.to_best)
                for c in cells
            }
        )
    for title, cells in extra.items():
        if not (narrow and title == "served"):
            columns.append((title, {"justify": "left" if title == "served" else "right"}))
            found.append(cells)
    # Where there is no column `served`, the name says it.
    mark = "\n(not served)" if narrow else ""
    names = {c.name: "" if c.is_own else mark for _, cells in figures for c in cells}
    rows = [[n + m, *(column.get(n, ABSENT) for column in found)] for n, m in names.items()]
    fill(table, columns, rows)
    return table


def plain_table(title: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), caption_justify="left")
    table.title, table.title_justify = title, "left"
    return table


def figures_table(
    title: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    texts: Collection[str],
    caption: str = "",
) -> Table:
    """Columns of figures, and of what `texts` names of the heads."""
    table = plain_table(title)
    table.caption = caption
    fill(table, [(h, {} if h in texts else {"justify": "right"}) for h in heads], list(rows))
    return table


def with_ratio(text: str, ratio: float | None) -> str:
    return text if ratio is None else f"{text} ({ratio:.2f})"
