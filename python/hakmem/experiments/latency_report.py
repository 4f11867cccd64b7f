"""Latencies as tables, CSV, JSON, plots and an HTML page."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape

import numpy as np
from rich import box
from rich.table import Table

from hakmem.experiments.latency_run import OPERATIONS, SHARES, Group, Latencies, share_name
from hakmem.measuring.latency_histogram import Histogram
from hakmem.output import report, tables

COLUMNS = [*(share_name(share) for share in SHARES), "max"]
# For these the document has each round's own figure, too.
ROUND_SHARES = (0.5, 0.99, 0.999)


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


def latency_table(found: Latencies) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), caption_justify="left")
    table.caption = caption(found)
    for title in ("size", "call", "allocator"):
        table.add_column(title, no_wrap=True)
    for title in ("calls", *COLUMNS):
        table.add_column(title, justify="right", no_wrap=True)
    before = None
    for group in found.groups():
        part = (group.size_bytes, group.operation)
        if before is not None and part != before:
            table.add_section()
        head = (size_text(group.size_bytes), group.operation) if part != before else ("", "")
        before = part
        cells = [shown(value, found) for value in figures(found, group).values()]
        table.add_row(*head, group.allocator, f"{found.merged[group].total:,}", *cells)
    return table


def csv_text(found: Latencies) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [f"{name}_ns" for name in COLUMNS]
    writer.writerow(["allocator", "operation", "size_bytes", "calls", *names])
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
    style = {"font.size": 10, "svg.hashsalt": "hakmem", "font.family": "DejaVu Sans"}
    with rc_context(style):
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
        out = io.BytesIO()
        figure.savefig(out, format=file_format, dpi=150,
                       metadata={"Date": None} if file_format == "svg" else None)  # fmt: skip
    return out.getvalue()


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
    axes.grid(color="#dde1e8")
    axes.spines[["top", "right"]].set_visible(False)


def page(
    found: Latencies, title: str, facts: Mapping[str, str], problems: Mapping[str, str]
) -> str:
    """One file that needs no other, the plot within it."""
    image = base64.b64encode(plot(found, "svg")).decode()
    head = "".join(f"<th>{name}</th>" for name in ("size, call, allocator", "calls", *COLUMNS))
    rows = "".join(html_row(found, group) for group in found.groups())
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{report.STYLE}</style></head><body>",
            "<h1>Latency of single calls</h1>",
            f"<p><code>{escape(title)}</code></p>",
            report.problem_list(problems),
            f'<p class="note">{escape(caption(found))}</p>',
            '<img alt="Latency against percentile, one line an allocator" '
            f'src="data:image/svg+xml;base64,{image}">',
            f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>',
            "<h2>How it was measured</h2>",
            report.facts_table(facts),
            "</body></html>",
            "",
        ]
    )


def html_row(found: Latencies, group: Group) -> str:
    name = f"{size_text(group.size_bytes)}, {group.operation}, {group.allocator}"
    cells: Sequence[str] = [shown(value, found) for value in figures(found, group).values()]
    calls = f"{found.merged[group].total:,}"
    numbers = "".join(f"<td>{cell}</td>" for cell in (calls, *cells))
    return f"<tr><td>{escape(name)}</td>{numbers}</tr>"
