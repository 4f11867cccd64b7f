"""`hakmem tail`: latency of single malloc and free calls, by size and percentile."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean

import click
from rich.table import Table

from hakmem import environment, options
from hakmem.allocators.peers import bench_program
from hakmem.commands.compare import Plan, finish, measure
from hakmem.destinations import WORD
from hakmem.documents import write_json
from hakmem.errors import UserError
from hakmem.experiments.comparison import Comparison
from hakmem.measuring import latency_histogram
from hakmem.measuring.latency_histogram import Histogram
from hakmem.measuring.measures import WALL
from hakmem.measuring.rotation import OPS_PER_SECOND, Rotation, contenders
from hakmem.measuring.statistics import Interval
from hakmem.output import sentences, tables
from hakmem.running import interruption

OPERATIONS = ("malloc", "free")
SHARES = (0.5, 0.9, 0.99, 0.999, 0.9999)
FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
SIZE = re.compile(r"([0-9]{1,20})(?:([kmg])(?:ib)?)?")
SIZE_MAX_BYTES = 1 << 30
SIZES_MAX = 12
# Of the working set for each size; about half are full.
SLOTS = 100


def share_name(share: float) -> str:
    return f"p{100 * share:g}"


@dataclass(frozen=True)
class Group:
    """One line of figures: an allocator, an operation, a size."""

    allocator: str
    operation: str
    size_bytes: int


@dataclass
class Latencies:
    """All that the whole rounds gave; histograms are in ticks of the time-stamp counter."""

    ticks_per_second: float
    step_ticks: int
    overhead_ticks: int
    merged: dict[Group, Histogram] = field(default_factory=dict)
    switches: dict[str, int] = field(default_factory=dict)

    def nanoseconds(self, ticks: float) -> float:
        return ticks * 1e9 / self.ticks_per_second

    @property
    def step_ns(self) -> float:
        return self.nanoseconds(self.step_ticks)

    def percentiles_ns(self, histogram: Histogram) -> dict[str, float | None]:
        """None where too few calls lie beyond the percentile."""
        return {
            share_name(share): self.nanoseconds(ticks) if histogram.supported(share) else None
            for share, ticks in zip(SHARES, histogram.percentiles(SHARES))
        }

    def groups(self) -> list[Group]:
        """By size, operation and the allocators' order: what is compared lies together."""
        order = {name: place for place, name in enumerate(self.switches)}
        return sorted(
            self.merged,
            key=lambda g: (g.size_bytes, OPERATIONS.index(g.operation), order[g.allocator]),
        )


def latency_command(steps: int, seed: int, sizes: Sequence[int]) -> list[str]:
    numbers = (steps, SLOTS * len(sizes), 1, seed, *sizes)
    return [str(bench_program("bench_latency")), *map(str, numbers)]


def parse_sizes(text: str) -> list[int]:
    """Sizes such as 64,4k,1M."""
    found = [parse_size(part.strip()) for part in text.split(",")]
    if twice := [size for size in found if found.count(size) > 1]:
        raise UserError(f"--sizes: {twice[0]} bytes are given twice", 2)
    if len(found) > SIZES_MAX:
        raise UserError(f"--sizes: {len(found)} sizes, and {SIZES_MAX} are the most", 2)
    return found


def parse_size(text: str) -> int:
    matched = SIZE.fullmatch(text.lower())
    size = int(matched[1]) * FACTORS[matched[2] or ""] if matched else 0
    if not 0 < size <= SIZE_MAX_BYTES:
        raise UserError(f"--sizes: '{text}' is no size from 1 to 1G (such as 64, 4k or 1M)", 2)
    return size


def collect(rotation: Rotation) -> Latencies:
    """Merges the whole rounds of every contender that is still in the rotation."""
    found: Latencies | None = None
    for name, series in rotation.series.items():
        if series.problem:
            continue
        for outcome in series.outcomes[: rotation.rounds_done]:
            values, histograms = latency_histogram.parse(outcome.stdout)
            found = found or heading(values)
            add_slice(found, name, values, histograms)
    if found is None:
        raise UserError("no whole round was measured")
    return found


def heading(values: Mapping[str, str]) -> Latencies:
    try:
        return Latencies(
            float(values["ticks_per_second"]),
            int(values["step_ticks"]),
            int(values["overhead_ticks"]),
        )
    except (KeyError, ValueError) as error:
        raise UserError(f"bench_latency's output is not as expected: {error}") from error


def add_slice(
    found: Latencies, name: str, values: Mapping[str, str], histograms: Mapping[str, Histogram]
) -> None:
    found.switches[name] = found.switches.get(name, 0) + int(values["involuntary_switches"])
    for label, histogram in histograms.items():
        operation, _, size = label.partition(":")
        group = Group(name, operation, int(size))
        found.merged.setdefault(group, Histogram()).merge(histogram)


COLUMNS = [*(share_name(share) for share in SHARES), "max"]
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
    return found.percentiles_ns(histogram) | {"max": found.nanoseconds(histogram.largest)}


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
                logs.append(math.log(theirs / ours))
    return math.exp(fmean(logs)) if logs else None


def latency_table(found: Latencies, width: int = tables.PLAIN_WIDTH) -> Table:
    """A narrow one has neither the number of calls nor the percentile that few calls reach."""
    table = tables.plain_table("")
    table.caption = caption(found)
    without = ("calls", share_name(SHARES[-1])) if width < tables.NARROW else ()
    titles = [title for title in ("calls", *COLUMNS) if title not in without]
    groups, lines = list(found.groups()), []
    for group in groups:
        cells = {name: shown(value, found) for name, value in figures(found, group).items()}
        cells["calls"] = f"{found.merged[group].total:,}"
        lines.append([cells[title] for title in titles])
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


def latency_document(found: Latencies) -> dict:
    """Every figure, and the merged histograms in ticks."""
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
                "buckets_ticks": [
                    [low, high, count]
                    for (low, high), count in sorted(found.merged[group].counts.items())
                ],
            }
            for group in found.groups()
        ],
    }


ROUNDS_MIN = 5
SIZES_DEFAULT = "16,64,256,1k,4k,32k,64k,1M"


@click.command()
@options.allocator_options()
@options.pairs_option(10, ROUNDS_MIN)
@options.option("--sizes", "Of blocks, 12 at most.", SIZES_DEFAULT, WORD)
@options.number_option(
    "--steps", "Timed calls in one run, all sizes together.", 1_000_000, 1_000, 1_000_000_000
)
@options.seed_option()
@options.json_option()
def tail(
    names: str | None,
    libraries: tuple[str, ...],
    pairs: int,
    sizes: str,
    steps: int,
    seed: int | None,
    json_path: Path | None,
) -> None:
    """Measure how long single malloc and free calls take: the median, and the slow ones.

    Each run, pinned to one CPU, frees and fills random slots of a working set and times every call
    with the time-stamp counter; the histograms of all runs of an allocator are merged.
    """
    console = tables.make_console()
    how = Plan(pairs, options.resolve_seed(seed), options.resolve_cpus("auto"))
    command = latency_command(steps, how.seed, parse_sizes(sizes))
    notes: list[str] = []
    chosen = options.chosen_allocators(names, libraries, notes)
    rows = contenders(chosen, command)
    facts = environment.describe(how.seed) | {
        "rounds": f"{pairs}, seed {how.seed}, pinned to {how.cpus}",
        "program": shlex.join(command),
        **{a.name: str(a) for a in chosen},
    }
    found = Comparison(command, rows[0].name, pairs, facts, notes=notes)
    with interruption.only_once():
        measure(console, found, how, rows, chosen, OPS_PER_SECOND)
    found.end()
    if found.figures:
        latencies = collect(found.rotation)
        # What is told of an allocator would be another malloc's.
        told = [] if found.not_served else summary(latencies)
        tables.print_summary(console, told)
        console.print(latency_table(latencies, console.width))
        tables.print_problems(console, found.problems)
        tables.print_notes(console, found.notes)
        tables.print_facts(console, facts)
        document = {"facts": facts, "seed": how.seed, "rounds": found.rounds_done}
        write_json(json_path, "tail", document | latency_document(latencies))
    finish(found)
