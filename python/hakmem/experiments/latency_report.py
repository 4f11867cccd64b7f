"""Latencies as tables, CSV, JSON, plots and an HTML page."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, replace
from html import escape

import numpy as np
from rich import box
from rich.table import Table

from hakmem.experiments.latency_run import OPERATIONS, SHARES, Group, Latencies, share_name
from hakmem.measuring.latency_histogram import Histogram
from hakmem.measuring.measures import WALL
from hakmem.measuring.statistics import Interval
from hakmem.output import report, sentences, tables

COLUMNS = [*(share_name(share) for share in SHARES), "max"]
CSV_COLUMNS = ["allocator", "operation", "size_bytes", "calls", *(f"{name}_ns" for name in COLUMNS)]
# For these the document has each round's own figure, too.
ROUND_SHARES = (0.5, 0.99, 0.999)
# The summary tells of these.
SAID = (0.5, 0.99, 0.999)


def size_text(size_bytes: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"


def caption(found: Latencies) -> str:
    """What must be known to read the figures."""
    rate = found.ticks_per_second / 1e9
    switches = ", ".join(f"{name} {count:,}" for name, count in found.switches.items())
    return (
        f"ns a call, lower is better. Counter: {rate:.4f} GHz, measured against CLOCK_MONOTONIC; "
        f"it moves in steps of {found.step_ns:.1f} ns, and {found.overhead_ticks} ticks of its own "
        "are taken off each call. The maximum, and high percentiles of few calls, hold "
        "interrupts and time stolen by other work of the machine: a maximum means nothing across "
        f"runs. Involuntary context switches: {switches}. A '{tables.ABSENT}' has fewer than 10 "
        "calls beyond it."
    )


def figures(found: Latencies, group: Group) -> dict[str, float | None]:
    histogram = found.merged[group]
    return found.percentiles_ns(histogram) | {"max": found.largest_ns(histogram)}


def shown(value: float | None, found: Latencies) -> str:
    if value is None:
        return tables.ABSENT
    if value < found.step_ns / 2:
        return f"<{found.step_ns:.2g}"
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def summary(found: Latencies) -> list[str]:
    """The first allocator beside the usual and the best other, in the mean of sizes and calls."""
    names = [name for name in found.switches if any(g.allocator == name for g in found.merged)]
    told = []
    for share in SAID:
        ratios = {
            name: Interval(ratio)
            for name in names[1:]
            if (ratio := mean_ratio(found, names[0], name, share_name(share))) is not None
        }
        if ratios:
            what = "the median call" if share == 0.5 else f"the call at {100 * share:g} %"
            measure = replace(WALL, told=f"took {{x}} of {{b}}'s time for {what}", as_speed=False)
            said = sentences.sentence(measure, names[0], ratios, judged=False).rstrip(".")
            told.append(f"{said} (geometric mean of all sizes, malloc and free).")
    return told


def mean_ratio(found: Latencies, name: str, other: str, column: str) -> float | None:
    """The other's latency over the first's; what is below a step of the counter counts as one."""
    logs = []
    for group in found.merged:
        twin = Group(other, group.operation, group.size_bytes)
        if group.allocator == name and twin in found.merged:
            both = figures(found, group)[column], figures(found, twin)[column]
            if None not in both:
                ours, theirs = (max(value, found.step_ns) for value in both)
                logs.append(np.log(theirs / ours))
    return float(np.exp(np.mean(logs))) if logs else None


def latency_table(found: Latencies, width: int = tables.PLAIN_WIDTH) -> Table:
    """A narrow one has neither the number of calls nor the percentile that few calls reach."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), caption_justify="left")
    table.caption = caption(found)
    without = ("calls", share_name(SHARES[-1])) if width < tables.NARROW else ()
    titles = [title for title in ("calls", *COLUMNS) if title not in without]
    groups = list(found.groups())
    lines = [
        [text for title, text in zip(("calls", *COLUMNS), cells_of(found, group))
         if title not in without] for group in groups
    ]  # fmt: skip
    kept = [i for i in range(len(titles)) if any(line[i] != tables.ABSENT for line in lines)]
    for title in ("size", "call", "allocator"):
        table.add_column(title, no_wrap=True)
    for i in kept:
        table.add_column(titles[i], justify="right", no_wrap=True)
    before = None
    for group, line in zip(groups, lines):
        part = (group.size_bytes, group.operation)
        if before is not None and part != before:
            table.add_section()
        head = (size_text(group.size_bytes), group.operation) if part != before else ("", "")
        before = part
        table.add_row(*head, group.allocator, *(line[i] for i in kept))
    return table


def cells_of(found: Latencies, group: Group) -> list[str]:
    """The number of calls, then each percentile and the maximum."""
    cells = [shown(value, found) for value in figures(found, group).values()]
    return [f"{found.merged[group].total:,}", *cells]


def csv_text(found: Latencies) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for group in found.groups():
        cells = ["" if v is None else f"{v:.2f}" for v in figures(found, group).values()]
        writer.writerow([group.allocator, group.operation, group.size_bytes,
                         found.merged[group].total, *cells])  # fmt: skip
    return out.getvalue()


def latency_document(found: Latencies) -> dict:
    """Every figure, those of each round, and the merged histograms in ticks."""
    return {
        "ticks_per_second": found.ticks_per_second,
        "step_ticks": found.step_ticks,
        "overhead_ticks": found.overhead_ticks,
        "involuntary_switches": found.switches,
        "groups": [
            asdict(group)
            | {
                "calls": found.merged[group].total,
                "ns": figures(found, group),
                "rounds_ns": [
                    found.percentiles_ns(one, ROUND_SHARES) for one in found.rounds[group]
                ],
                "buckets_ticks": [
                    [low, high, count]
                    for (low, high), count in sorted(found.merged[group].counts.items())
                ],
            }
            for group in found.groups()
        ],
    }


def curve(found: Latencies, histogram: Histogram) -> tuple[np.ndarray, np.ndarray]:
    """1 / (1 - share) and the latency at it, for each bucket."""
    middles, up_to = histogram.arrays()
    total = int(up_to[-1])
    # The share below a bucket's values: the last bucket, too, has a finite place.
    below = np.concatenate([[0], up_to[:-1]])
    return total / (total - below), found.nanoseconds(1) * middles


def plot(found: Latencies, file_format: str) -> bytes:
    """A row of panels a size, malloc and free beside each other, one line an allocator."""
    # Slow to import, and only this needs it.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    sizes = sorted({group.size_bytes for group in found.merged})
    with rc_context(report.drawing_style("hakmem")):
        figure = Figure(figsize=(10, 1 + 2.6 * len(sizes)), layout="constrained")
        axes = figure.subplots(len(sizes), len(OPERATIONS), squeeze=False, sharex=True)
        for line, size in enumerate(sizes):
            for column, operation in enumerate(OPERATIONS):
                draw_panel(axes[line][column], found, operation, size)
        for panel in axes[-1]:
            panel.set_xlabel("percentile, by 1 / (1 - share of calls)")
        for line in axes:
            line[0].set_ylabel("latency (ns)")
        figure.suptitle("Latency of single calls — lower is better")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5))
        return report.picture_of(figure, file_format)


def draw_panel(axes, found: Latencies, operation: str, size: int) -> None:
    # Calls shorter than a step of the counter are drawn at one step, not at 0.
    least = found.step_ns
    for name in found.switches:
        histogram = found.merged.get(Group(name, operation, size))
        if histogram is None:
            continue
        across, up = curve(found, histogram)
        axes.plot(across, np.maximum(up, least), label=name, linewidth=1.4, drawstyle="steps-post")
    axes.set_xscale("log")
    axes.set_yscale("log")
    marks = [2, 10, 100, 1e3, 1e4, 1e5, 1e6]
    names = ["50 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %"]
    most = axes.get_xlim()[1]
    kept = [(m, n) for m, n in zip(marks, names) if m <= most]
    axes.set_xticks([m for m, _ in kept], [n for _, n in kept], fontsize=8)
    axes.set_xticks([], minor=True)
    axes.set_title(f"{operation}, {size_text(size)}", fontsize=10)
    axes.grid(color=report.LINE)
    axes.spines[["top", "right"]].set_visible(False)


def page(
    found: Latencies, title: str, facts: Mapping[str, str], problems: Mapping[str, str]
) -> str:
    """One file that needs no other, the plot within it."""
    label = "Latency against percentile, one line an allocator"
    plot_text = report.inlined(plot(found, "svg").decode(), "latency", label)
    titles = ["size, call, allocator", "calls", *COLUMNS]
    rows = [
        [f"{size_text(g.size_bytes)}, {g.operation}, {g.allocator}", *cells_of(found, g)]
        for g in found.groups()
    ]
    return report.document(
        "Latency of single calls",
        [
            f"<p><code>{escape(title)}</code></p>",
            report.summary_list(summary(found)),
            report.problem_list(problems),
            "<h2>Latency, ns a call <small>(lower is better)</small></h2>",
            f'<figure class="scroll large">{plot_text}</figure>',
            report.plain_table(titles, rows),
            "<h2>How it was measured</h2>",
            f"<p>{escape(caption(found))}</p>",
            report.facts_table(facts),
        ],
        title,
    )
