"""Results of a suite on the terminal: matrices of rows and allocators, what is lost, totals."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import geometric_mean

from hakmem.measuring.measures import PEAK_RSS, WALL
from hakmem.measuring.rotation import OPS_PER_SECOND, WALL_TIME
from hakmem.measuring.statistics import Interval
from hakmem.output import sentences, tables
from rich.console import Console
from rich.table import Table

from hakmem_lab.suite import PRELOAD, STATIC
from hakmem_lab.suite_results import (
    LOST,
    SAME,
    TOO_FEW,
    WHOLE_ROW,
    WON,
    Entry,
    Results,
    RowResult,
    lost_rows,
)

MODE_TITLES = {
    PRELOAD: "One binary under LD_PRELOAD",
    STATIC: "Separate binaries, the allocator linked in",
}
SPEED_OF_ROWS = replace(WALL, told="ran the rows {x} times as fast as {b}", slower="")
# Behind a ratio: what its interval allows to say.
MARKS = {WON: "", LOST: " LOST", SAME: " ~", TOO_FEW: " ?"}


def show(console: Console, results: Results) -> None:
    modes = dict.fromkeys(row.mode for row in results.rows if row.entries)
    tables.print_summary(console, summary(results))
    for mode in modes:
        rows = [row for row in results.rows if row.mode == mode and row.entries]
        console.print(speed_matrix(results, rows, mode))
        console.print(memory_matrix(results, rows, mode))
        console.print(totals(results, mode))
    show_lost(console, results)
    for row in results.rows:
        for name, problem in row.problems().items():
            who = "" if name == WHOLE_ROW else f", {name}"
            console.print(f"{row.name} ({row.mode}){who}: {problem}", soft_wrap=True)


def summary(results: Results) -> list[str]:
    """Speed and memory over all rows of a mode: beside the usual allocator, and the best other."""
    told = []
    for mode in dict.fromkeys(one.mode for one in results.tallies):
        tallies = {t.allocator: t for t in results.tallies if t.mode == mode and t.mean_ratio}
        speeds = {name: Interval(one.mean_ratio) for name, one in tallies.items()}
        peaks = {
            name: Interval(geometric_mean(ratios))
            for name in results.peers()
            if (ratios := peak_ratios(results, mode, name))
        }
        title = MODE_TITLES[mode]
        if speeds:
            said = sentences.sentence(SPEED_OF_ROWS, results.baseline, speeds, judged=False)
            counts = "; ".join(
                f"{name} is faster in {one.lost} rows and slower in {one.won}"
                for name, one in tallies.items()
                if f" {name}" in said and one.won + one.lost
            )
            mean = f"{title}: {said.rstrip('.')}, in the mean of the rows"
            told.append(f"{mean}; {counts}." if counts else f"{mean}.")
        if peaks:
            told.append(
                f"{title}: {sentences.sentence(PEAK_RSS, results.baseline, peaks, judged=False)}"
            )
    return told


def peak_ratios(results: Results, mode: str, name: str) -> list[float]:
    """The peer's peak memory over the baseline's, of each row."""
    entries = [row.entry(name) for row in results.rows if row.mode == mode]
    found = [e.rss_ratio.median for e in entries if e is not None and e.rss_ratio is not None]
    return [ratio for ratio in found if ratio > 0]


def matrix(
    results: Results,
    rows: Sequence[RowResult],
    title: str,
    caption: str,
    own: Callable,
    cell: Callable,
) -> Table:
    """A line a row: our own figure, and what `cell` makes of each peer's entry."""
    lines = []
    for row in rows:
        ours = row.entry(results.baseline)
        peers = [row.entry(name) for name in results.peers()]
        shown = [tables.ABSENT if e is None or not e.rounds else cell(e) for e in peers]
        own_cell = own(row, ours) if ours and ours.rounds else tables.ABSENT
        lines.append([row.title, own_cell, *shown])
    heads = ("row", results.baseline, *results.peers())
    return tables.figures_table(title, heads, lines, heads[:1], caption)


def speed_matrix(results: Results, rows: Sequence[RowResult], mode: str) -> Table:
    name = results.baseline
    caption = (
        f"{name}: operations a second (higher is better), or what a run takes. Others: how many "
        f"times faster {name} is, median of the pairs, below it the 95 % interval. LOST: the peer "
        "is faster beyond the noise; ~: no difference seen; ?: too few rounds for an interval."
    )
    title = f"{MODE_TITLES[mode]}: speed"
    return matrix(
        results, rows, title, caption, own_figure, lambda e: ratio_cell(e.ratio, e.verdict)
    )


def memory_matrix(results: Results, rows: Sequence[RowResult], mode: str) -> Table:
    name = results.baseline
    caption = (
        f"Peak resident memory in MB, lower is better. LOST: {name} holds more than the peer, "
        "beyond the noise; ~: no difference seen."
    )

    def cell(entry: Entry) -> str:
        return tables.megabytes(entry.peak_rss_kb) + MARKS.get(entry.rss_verdict, "")

    title = f"{MODE_TITLES[mode]}: memory"
    return matrix(
        results, rows, title, caption, lambda _row, e: tables.megabytes(e.peak_rss_kb), cell
    )


def own_speed(row: RowResult, entry: Entry) -> str:
    if row.unit == OPS_PER_SECOND.unit:
        return tables.figure(entry.median, OPS_PER_SECOND)
    return f"{tables.figure(entry.median, WALL_TIME)} {row.unit}"


def own_figure(row: RowResult, entry: Entry) -> str:
    variation = f"\nCV {100 * entry.cv:.1f} %" if entry.rounds > 1 else ""
    return own_speed(row, entry) + variation


def ratio_cell(ratio: Interval | None, verdict: str) -> str:
    if ratio is None:
        return tables.ABSENT
    shown = f"{ratio.median:.2f}{MARKS.get(verdict, '')}"
    return shown if ratio.low is None else f"{shown}\n{ratio.low:.2f} … {ratio.high:.2f}"


def totals(results: Results, mode: str) -> Table:
    heads = ("peer", "mean ratio", "won", "lost", "no difference", "without verdict")
    rows = [[one.allocator, *one.cells(3)] for one in results.tallies if one.mode == mode]
    title = f"{results.baseline} beside each peer, all rows"
    caption = "Geometric mean of the speed ratios; rows by verdict."
    return tables.figures_table(title, heads, rows, heads[:1], caption)


def show_lost(console: Console, results: Results) -> None:
    found = lost_rows(results.rows)
    if not found:
        return
    console.print(f"Rows where a peer beats {results.baseline}:")
    for row, entry in found:
        shown = tables.interval(entry.ratio)
        console.print(f"  {row.title} ({row.mode}): {entry.allocator}, ratio {shown}")
