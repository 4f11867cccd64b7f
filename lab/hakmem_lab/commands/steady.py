"""`hakmem steady`: system calls of an operation once a program is warm, for every suite load."""

import click
from hakmem import environment
from hakmem.allocators.peers import find, require_usable
from hakmem.errors import INTERRUPTED
from hakmem.options import number_option, rows_option
from hakmem.output import tables
from hakmem.running.interruption import only_once

from hakmem_lab.shell import clean_environment
from hakmem_lab.steady_run import BAR, Calls, count_row
from hakmem_lab.suite import catalogue, pick

COLUMNS = ("row", "operations", "seconds", "calls", "per op", "verdict")


@click.command()
@rows_option("Rows of the suites")
@number_option("--seconds", "How long the long run of a row is, about.", 60.0, 0.01)
def steady(wanted: tuple[str, ...], seconds: float) -> None:
    """Count the system calls of each suite load once it is warm, under hakmem.

    The verdict is on hakmem's own calls of mmap and madvise in the second half of a long run: less
    than 1e-8 an operation. Ends with status 1 when a row is above that, or could not be counted.
    """
    console = tables.make_console()
    rows = [row for row in pick(catalogue(), wanted or ("*",), "--rows") if row.scales]
    hakmem = require_usable(find("hakmem"))
    found: list[Calls] = []
    interrupted = False
    bar = tables.progress_line(console, "rows", len(rows))
    with clean_environment(), only_once(), bar as progress:
        facts = environment.describe() | {"hakmem": str(hakmem)}
        try:
            for row in rows:
                found.append(count_row(row, hakmem, seconds))
                progress.tick(row.name)
        except KeyboardInterrupt:
            interrupted = True
    if found:
        tables.print_summary(console, [sentence(found)])
        title = "System calls in the second half of a run, hakmem's own"
        lines = map(line_of, found)
        console.print(tables.figures_table(title, COLUMNS, lines, ("row", "verdict")))
    tables.print_facts(console, facts)
    if interrupted:
        console.print(f"interrupted after {len(found)} of {len(rows)} rows")
        raise SystemExit(INTERRUPTED)
    if any(one.note or one.verdict == "MISSED" for one in found):
        raise SystemExit(1)


def sentence(found: list[Calls]) -> str:
    """The verdict on all rows, with those that are not as they should be by name."""
    met = sum(one.verdict == "met" for one in found)
    missed = [one.row for one in found if one.verdict == "MISSED"]
    unknown = [one.row for one in found if one.verdict not in ("met", "MISSED")]
    told = f"Once warm, {met} of {len(found)} rows make less than {BAR:g} system calls an operation"
    told += f"; above it: {', '.join(missed)}" if missed else ""
    return told + (f"; without an answer: {', '.join(unknown)}." if unknown else ".")


def line_of(one: Calls) -> tuple[str, ...]:
    if one.rate is None:
        return (one.row, *[""] * (len(COLUMNS) - 2), one.verdict)
    rate = f"{one.rate:.1e}" if one.rate else "0"
    seconds = f"{one.seconds:.1f}"
    return (one.row, str(one.operations), seconds, str(one.calls), rate, one.verdict)
