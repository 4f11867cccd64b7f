"""The project's bars and what measured figures say about them.

A bar that lacks a figure is not measured: nothing is assumed, and nothing is left out of a group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import median

from hakmem.allocators.peers import ALTERNATIVES
from hakmem.errors import UserError
from hakmem.measuring.statistics import Interval

from hakmem_lab.steady_calls import StepCalls, per_operation
from hakmem_lab.suite import MODES, PRELOAD, Row, Table, catalogue, pick, read_toml
from hakmem_lab.suite_results import Entry, Results

PATH = Path(__file__).parent / "milestones.toml"
REACHED, MISSED, UNMEASURED = "reached", "not reached", "not measured"
SPEED, MEMORY, CALLS = "speed", "memory", "system calls"
SPREAD = "spread"
# Names of a soak's figures, in percent.
VARIATION = "variation"
SOAK_KINDS = ("rss drift", "throughput drift", VARIATION)
KINDS = (SPEED, MEMORY, SPREAD, CALLS, *SOAK_KINDS)
BEST = "best"


@dataclass(frozen=True)
class Milestone:
    """One bar; see milestones.toml for the fields."""

    title: str
    kind: str
    rows: tuple[str, ...] = ()
    mode: str = PRELOAD
    against: tuple[str, ...] = ()
    at_least: float = 0.0
    at_most: float = 0.0
    within_interval: bool = False


@dataclass(frozen=True)
class Judged:
    """A bar with the worst measured value, and where that was."""

    milestone: Milestone
    state: str
    value: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Evidence:
    """All figures there are."""

    results: Results
    calls: Sequence[StepCalls] = ()
    soak: Mapping[str, float] = field(default_factory=dict)


def load_milestones(path: Path) -> list[Milestone]:
    entries = Table(str(path), read_toml(path)).rows("milestone")
    return [read_milestone(Table(f"{path}: milestone {i}", e)) for i, e in enumerate(entries, 1)]


def read_milestone(table: Table) -> Milestone:
    table.refuse_others(list(Milestone.__dataclass_fields__))
    found = Milestone(
        table.text("title"),
        table.text("kind"),
        table.texts("rows", ()),
        table.text("mode", PRELOAD),
        table.texts("against", ()),
        table.number("at_least", float, 0, 0.0),
        table.number("at_most", float, 0, 0.0),
        table.flag("within_interval"),
    )
    if found.kind not in KINDS:
        raise UserError(f"{table.where}: kind: '{found.kind}' is none of {', '.join(KINDS)}", 2)
    if found.mode not in MODES:
        raise UserError(f"{table.where}: mode: '{found.mode}' is none of {', '.join(MODES)}", 2)
    wanted = "at_least" if found.kind == SPEED else "at_most"
    if not getattr(found, wanted):
        raise UserError(f"{table.where}: {wanted} is missing", 2)
    if found.kind in (SPEED, MEMORY, SPREAD) and not (found.rows and found.against):
        raise UserError(f"{table.where}: it needs rows and against", 2)
    return found


def judge(milestone: Milestone, evidence: Evidence) -> Judged:
    if milestone.kind == SPEED:
        return judge_speed(milestone, evidence.results)
    if milestone.kind == MEMORY:
        return judge_memory(milestone, evidence.results)
    if milestone.kind == SPREAD:
        return judge_spread(milestone, evidence.results)
    if milestone.kind == CALLS:
        return judge_calls(milestone, evidence)
    return judge_soak(milestone, evidence.soak)


def rows_of(milestone: Milestone) -> list[Row]:
    rows = pick(catalogue(), milestone.rows, f"milestone '{milestone.title}'")
    return [row for row in rows if milestone.mode == PRELOAD or row.static]


def peers_of(milestone: Milestone, results: Results) -> list[str]:
    """The peers a bar names, as far as they take part; every peer for "best"."""
    if BEST in milestone.against:
        return results.peers()
    there = results.peers()
    chosen = []
    for text in milestone.against:
        chosen += [name for name in text.split(ALTERNATIVES) if name in there][:1]
    return chosen


def judge_speed(milestone: Milestone, results: Results) -> Judged:
    """The lowest ratio over all rows and peers; a peer without figures in a row is passed over."""
    found, lacking = [], []
    for row in rows_of(milestone):
        measured = results.row(row.name, milestone.mode)
        entries = (
            [measured.entry(name) for name in peers_of(milestone, results)] if measured else []
        )
        ratios = [(reached_by(milestone, e.ratio), measured, e) for e in entries if e and e.ratio]
        if not ratios:
            lacking.append(row.name)
        found += ratios
    if lacking or not found:
        return unmeasured(milestone, lacking)
    value, row, entry = min(found, key=lambda one: one[0])
    state = REACHED if value >= milestone.at_least else MISSED
    low, high = entry.ratio.low, entry.ratio.high
    within = "" if low is None or high is None else f", interval {low:.3f} to {high:.3f}"
    value = entry.ratio.median
    return Judged(milestone, state, f"{value:.3f}", f"{row.title}, {entry.allocator}{within}")


def reached_by(milestone: Milestone, ratio: Interval) -> float:
    """The median; the interval's upper end where that is enough, and there is one."""
    is_enough = milestone.within_interval and ratio.high is not None
    return ratio.high if is_enough else ratio.median


def judge_memory(milestone: Milestone, results: Results) -> Judged:
    found, lacking = [], []
    for row in rows_of(milestone):
        measured = results.row(row.name, milestone.mode)
        ours = measured.entry(results.baseline) if measured else None
        peers = peers_of(milestone, results) if measured else []
        theirs = [e for e in map(measured.entry, peers) if held(e)] if measured else []
        if not held(ours) or not theirs:
            lacking.append(row.name)
            continue
        lowest = min(theirs, key=lambda entry: entry.peak_rss_kb)
        found.append((ours.peak_rss_kb / lowest.peak_rss_kb, measured, lowest))
    if lacking or not found:
        return unmeasured(milestone, lacking)
    value, row, entry = max(found, key=lambda one: one[0])
    over = sum(one[0] > milestone.at_most for one in found)
    count = f"; {over} of {len(found)} rows above the bar" if over else ""
    state = MISSED if over else REACHED
    return Judged(milestone, state, f"{value:.3f}", f"{row.title}, {entry.allocator}{count}")


def held(entry: Entry | None) -> bool:
    return entry is not None and bool(entry.rounds) and entry.peak_rss_kb > 0


def judge_spread(milestone: Milestone, results: Results) -> Judged:
    """The lower end of our interval over the median of the peers' variations, in each row."""
    found, lacking = [], []
    for row in rows_of(milestone):
        measured = results.row(row.name, milestone.mode)
        ours = measured.entry(results.baseline) if measured else None
        peers = peers_of(milestone, results) if measured else []
        theirs = [e.cv for e in map(measured.entry, peers) if e and e.rounds] if measured else []
        if ours is None or ours.cv_low is None or not theirs:
            lacking.append(row.name)
            continue
        middle = median(theirs)
        share = ours.cv_low / middle if middle else (inf if ours.cv_low else 0.0)
        found.append((share, measured, ours, middle))
    if lacking or not found:
        return unmeasured(milestone, lacking)
    value, row, ours, middle = max(found, key=lambda one: one[0])
    over = sum(one[0] > milestone.at_most for one in found)
    count = f"; {over} of {len(found)} rows above the bar" if over else ""
    cv = f"CV {100 * ours.cv:.1f} % ({100 * ours.cv_low:.1f} to {100 * (ours.cv_high or 0):.1f} %)"
    detail = f"{row.title}, {cv}, the median peer's {100 * middle:.1f} %{count}"
    return Judged(milestone, MISSED if over else REACHED, f"{value:.3f}", detail)


def judge_calls(milestone: Milestone, evidence: Evidence) -> Judged:
    ours = [one for one in evidence.calls if one.allocator == evidence.results.baseline]
    rates = [(per_operation(one), one) for one in ours]
    if not rates or any(rate is None for rate, _ in rates):
        notes = "; ".join(dict.fromkeys(one.note for one in ours if one.note))
        return Judged(milestone, UNMEASURED, "", notes)
    value, worst = max(rates, key=lambda one: one[0])
    state = REACHED if value < milestone.at_most else MISSED
    more = worst.long_calls - worst.short_calls
    detail = (
        f"{more:,} calls more for {worst.long_operations - worst.short_operations:,} operations"
    )
    return Judged(milestone, state, f"{value:.1e}" if value else "0", f"{worst.title}: {detail}")


def judge_soak(milestone: Milestone, soak: Mapping[str, float]) -> Judged:
    value = soak.get(milestone.kind)
    if value is None:
        return Judged(milestone, UNMEASURED, "", "no soak of enough epochs")
    # Of throughput only a loss counts; resident memory may not move either way.
    off = -value if milestone.kind == "throughput drift" else abs(value)
    if milestone.kind == VARIATION:
        # Where even the steadiest peer varies more, it is the machine.
        limit = max(milestone.at_most, soak.get("best peer's variation", 0.0))
        detail = "" if limit == milestone.at_most else f"the steadiest peer's {limit:.2f} %"
        return Judged(milestone, REACHED if value <= limit else MISSED, f"{value:.2f} %", detail)
    state = REACHED if off <= milestone.at_most else MISSED
    return Judged(milestone, state, f"{value:+.2f} %", "")


def unmeasured(milestone: Milestone, lacking: Sequence[str]) -> Judged:
    few = ", ".join(lacking[:4]) + (f" and {len(lacking) - 4} more" if len(lacking) > 4 else "")
    return Judged(milestone, UNMEASURED, "", f"no figures: {few}" if few else "no peer takes part")
