"""The files a suite leaves: results as JSON and CSV, the scenario CSV, the HTML report."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hakmem.documents import write_json, write_text
from hakmem.measuring.statistics import Interval

from hakmem_lab.suite import PRELOAD
from hakmem_lab.suite_results import RESULTS, Entry, Results, RowResult

RESULTS_CSV = "results.csv"
SCENARIOS_CSV = "scenarios.csv"
REPORT = "report.html"
COLUMNS = (
    "row", "group", "mode", "allocator", "unit", "rounds", "mean", "median", "min", "max", "cv",
    "ratio", "ratio_low", "ratio_high", "verdict", "net_ratio", "net_low", "net_high",
    "peak_rss_kb", "rss_ratio", "rss_low", "rss_high", "rss_verdict", "minor_faults",
    "major_faults", "problem", "command", "settings",
)  # fmt: skip
# As other tools of the project's history expect it.
SCENARIO_COLUMNS = (
    "allocator", "scenario", "iterations", "avg_ns", "soft_pf", "hard_pf", "rss_kb", "ops_per_sec",
)  # fmt: skip


def write_csv(results: Results, path: Path) -> None:
    settings = " ".join(f"{name}={value}" for name, value in results.settings.items())
    lines = [
        csv_line(row, entry, settings)
        for row in results.rows
        for entry in row.entries or (Entry("", row.problem),)
    ]
    write_text(path, table_text(COLUMNS, lines))


def csv_line(row: RowResult, entry: Entry, settings: str) -> list:
    """An entry without rounds has a problem in place of figures."""
    figures = (entry.mean, entry.median, entry.min, entry.max)
    costs = (entry.minor_faults, entry.major_faults)
    ran = entry.rounds > 0
    return [
        *(row.name, row.group, row.mode, entry.allocator, row.unit, entry.rounds),
        *(f"{value:.6g}" if ran else "" for value in figures),
        f"{entry.cv:.5f}" if ran else "",
        *(*three(entry.ratio), entry.verdict, *three(entry.net)),
        entry.peak_rss_kb if ran else "",
        *(*three(entry.rss_ratio), entry.rss_verdict),
        *(costs if ran else ("", "")),
        *(" ".join(entry.problem.split()), row.command, settings),
    ]


def three(value: Interval | None) -> list[str]:
    parts = (None, None, None) if value is None else (value.median, value.low, value.high)
    return ["" if part is None else f"{part:.4f}" for part in parts]


def write_scenarios(results: Results, path: Path) -> None:
    """One line an allocator and scenario: medians of the rounds."""
    lines = [
        scenario_line(row, entry)
        for row in results.rows
        if row.scenario and row.mode == PRELOAD
        for entry in row.entries
        if entry.rounds
    ]
    write_text(path, table_text(SCENARIO_COLUMNS, lines))


def scenario_line(row: RowResult, entry: Entry) -> list:
    return [
        entry.allocator,
        row.scenario,
        entry.operations,
        f"{1e9 / entry.median:.2f}",
        entry.minor_faults,
        entry.major_faults,
        entry.peak_rss_kb,
        f"{entry.median:.0f}",
    ]


def table_text(columns: Sequence[str], lines: Sequence[Sequence]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)
    return out.getvalue()


def write_figures(results: Results, folder: Path) -> None:
    """What is cheap enough to be brought up to date after every row."""
    write_json(folder / RESULTS, "bench", asdict(results))
    write_csv(results, folder / RESULTS_CSV)
    write_scenarios(results, folder / SCENARIOS_CSV)
