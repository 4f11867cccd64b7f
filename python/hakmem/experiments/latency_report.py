"""Latencies as a summary, a table and JSON."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
from rich import box
from rich.table import Table

from hakmem.experiments.latency_run import SHARES, Group, Latencies, share_name
from hakmem.measuring.measures import WALL
from hakmem.measuring.statistics import Interval
from hakmem.output import sentences, tables

COLUMNS = [*(share_name(share) for share in SHARES), "max"]
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
