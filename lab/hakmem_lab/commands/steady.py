"""`hakmem steady`: system calls of an operation once a program is warm, for every suite load."""

import csv
import io
from dataclasses import asdict
from pathlib import Path

import click
from hakmem import environment
from hakmem.allocators.peers import find, require_usable
from hakmem.documents import write_json, write_text
from hakmem.options import INTERRUPTED, FiniteRange, csv_option, json_option, rows_option
from hakmem.output import tables
from hakmem.running.interruption import only_once
from rich.console import Console
from rich.table import Table

from hakmem_lab.shell import clean_environment
from hakmem_lab.steady_run import BAR, Steady, count_row, strace_problem
from hakmem_lab.suite import Row, catalogue, pick

COLUMNS = (
    "row", "operations", "seconds", "late_calls", "late_per_op", "own_calls", "own_per_op",
    "all_calls", "all_per_op", "verdict",
)  # fmt: skip


@click.command()
@rows_option("Rows of the suites")
@click.option(
    "--seconds",
    default=60.0,
    show_default=True,
    type=FiniteRange(0.01),
    help="How long the long run of a row is, about.",
)
@click.option("--strace/--no-strace", default=True, show_default=True, help="Count all calls too.")
@csv_option(COLUMNS)
@json_option()
def steady(
    wanted: tuple[str, ...],
    seconds: float,
    strace: bool,
    csv_path: Path | None,
    json_path: Path | None,
) -> None:
    """Count the system calls of each suite load once it is warm, under hakmem.

    The verdict is on hakmem's own calls of mmap and madvise in the second half of a long run
    ("late"): less than 1e-8 an operation. Beside them what the long run makes beyond a short one:
    hakmem's own calls ("own") and, where strace may be used, all, those of the program and its
    threads as well. Ends with status 1 when a row is above that, or could not be counted.
    """
    console = tables.make_console()
    rows = [row for row in pick(catalogue(), wanted or ("*",), "--rows") if row.scales]
    hakmem = require_usable(find("hakmem"))
    if strace and (why := strace_problem()):
        console.print(f"note: hakmem's own counters alone: {why}", soft_wrap=True)
        strace = False
    found: list[Steady] = []
    interrupted = False
    with clean_environment(), only_once():
        facts = environment.describe() | {"hakmem": str(hakmem)}
        try:
            measure(console, rows, lambda row: found.append(
                count_row(row, hakmem, seconds, strace)))  # fmt: skip
        except KeyboardInterrupt:
            interrupted = True
    if found:
        tables.print_summary(console, [sentence(found)])
        console.print(table_of(found))
    tables.print_facts(console, facts)
    if csv_path is not None:
        write_csv(csv_path, found)
    if json_path is not None:
        entries = [asdict(one) | {"verdict": one.verdict} for one in found]
        write_json(json_path, "steady", {"seconds": seconds, "rows": entries})
    if interrupted:
        console.print(f"interrupted after {len(found)} of {len(rows)} rows")
        raise SystemExit(INTERRUPTED)
    if any(one.problem or one.verdict == "MISSED" for one in found):
        raise SystemExit(1)


def measure(console: Console, rows: list[Row], count) -> None:
    with tables.progress_line(console, "rows", len(rows)) as progress:
        for row in rows:
            progress.update(progress.task_ids[0], now=row.name)
            count(row)
            progress.update(progress.task_ids[0], advance=1)


def sentence(found: list[Steady]) -> str:
    """The verdict on all rows, with those that are not as they should be by name."""
    met = sum(one.verdict == "met" for one in found)
    missed = [one.row.name for one in found if one.verdict == "MISSED"]
    unknown = [one.row.name for one in found if one.verdict not in ("met", "MISSED")]
    told = f"Once warm, {met} of {len(found)} rows make less than {BAR:g} system calls an operation"
    told += f"; above it: {', '.join(missed)}" if missed else ""
    return told + (f"; without an answer: {', '.join(unknown)}." if unknown else ".")


def line_of(one: Steady) -> tuple[str, ...]:
    long, short = one.long, one.short
    if long is None or short is None:
        return (one.row.name, *[""] * (len(COLUMNS) - 2), one.verdict)
    every = "" if long.total is None or short.total is None else str(long.total - short.total)
    return (
        one.row.name,
        f"{long.operations - short.operations:.0f}",
        f"{long.seconds:.1f}",
        "" if long.late is None else str(long.late),
        rate(one.late_per_operation),
        str(long.own - short.own),
        rate(one.per_operation("own")),
        every,
        rate(one.per_operation("total")),
        one.verdict,
    )


def rate(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}" if value else "0"


def table_of(found: list[Steady]) -> Table:
    table = tables.plain_table(f"System calls in the second half of a run (late), and beyond a "
                               f"short one: hakmem's own below {BAR:g} an operation")  # fmt: skip
    for title in COLUMNS:
        left = title in ("row", "verdict")
        table.add_column(title.replace("_", " "), justify="left" if left else "right")
    for one in found:
        table.add_row(*line_of(one))
    return table


def write_csv(path: Path, found: list[Steady]) -> None:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(line_of(one) for one in found)
    write_text(path, out.getvalue())
