"""The project's bars and what measured figures say about them.

A bar that lacks a figure is not measured: nothing is assumed, and nothing is left out of a group.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import median

from hakmem.allocators.peers import ALTERNATIVES
from hakmem.errors import UserError
from hakmem.measuring.statistics import Interval
from hakmem.plain_text import some

from hakmem_lab.steady_run import Calls
from hakmem_lab.suite import MODES, PRELOAD, Row, catalogue, from_table, pick, read_toml
from hakmem_lab.suite_results import Entry, Results

PATH = Path(__file__).parent / "milestones.toml"
REACHED, MISSED, UNMEASURED = "reached", "not reached", "not measured"
SPEED, MEMORY, SPREAD, CALLS = "speed", "memory", "spread", "system calls"
# Names of a soak's figures, in percent.
VARIATION = "variation"
SOAK_KINDS = ("rss drift", "throughput drift", VARIATION)
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
    calls: Sequence[Calls] = ()
    soak: Mapping[str, float] = field(default_factory=dict)


def load_milestones(path: Path) -> list[Milestone]:
    entries = read_toml(path)["milestone"]
    return [read_milestone(f"{path}: milestone {i}", entry) for i, entry in enumerate(entries, 1)]


def read_milestone(where: str, entry: Mapping) -> Milestone:
    found = from_table(Milestone, where, entry)
    for name, kinds in (("kind", (*OF_ROWS, CALLS, *SOAK_KINDS)), ("mode", MODES)):
        if (value := getattr(found, name)) not in kinds:
            raise UserError(f"{where}: {name}: '{value}' is none of {', '.join(kinds)}", 2)
    wanted = "at_least" if found.kind == SPEED else "at_most"
    if not getattr(found, wanted):
        raise UserError(f"{where}: {wanted} is missing", 2)
    if found.kind in OF_ROWS and not (found.rows and found.against):
        raise UserError(f"{where}: it needs rows and against", 2)
    return found


def judge(milestone: Milestone, evidence: Evidence) -> Judged:
    if milestone.kind in OF_ROWS:
        return judge_rows(milestone, evidence.results)
    if milestone.kind == CALLS:
        return judge_calls(milestone, evidence.calls)
    return judge_soak(milestone, evidence.soak)


def rows_of(milestone: Milestone) -> list[Row]:
    rows = pick(catalogue(), milestone.rows, f"milestone '{milestone.title}'")
    return [row for row in rows if milestone.mode == PRELOAD or row.static]


def peers_of(milestone: Milestone, results: Results) -> list[str]:
    """The peers a bar names, as far as they take part; every peer for "best"."""
    there = results.peers()
    if BEST in milestone.against:
        return there
    named = (text.split(ALTERNATIVES) for text in milestone.against)
    return [found for names in named for found in [n for n in names if n in there][:1]]


# A row's value, how it is shown, and where it was; None where figures are missing.
Finding = tuple[float, str, str] | None


def speed(milestone: Milestone, _ours: Entry, theirs: Sequence[Entry]) -> Finding:
    """The lowest ratio of all peers; by the interval's upper end where that is enough."""

    def reached(ratio: Interval) -> float:
        is_enough = milestone.within_interval and ratio.high is not None
        return ratio.high if is_enough else ratio.median

    worst = min((e for e in theirs if e.ratio), key=lambda e: reached(e.ratio), default=None)
    if worst is None:
        return None
    low, high = worst.ratio.low, worst.ratio.high
    within = "" if low is None or high is None else f", interval {low:.3f} to {high:.3f}"
    return reached(worst.ratio), f"{worst.ratio.median:.3f}", f"{worst.allocator}{within}"


def memory(_milestone: Milestone, ours: Entry, theirs: Sequence[Entry]) -> Finding:
    lowest = min((e for e in theirs if e.peak_rss_kb), key=lambda e: e.peak_rss_kb, default=None)
    if lowest is None or not ours.peak_rss_kb:
        return None
    value = ours.peak_rss_kb / lowest.peak_rss_kb
    return value, f"{value:.3f}", lowest.allocator


def spread(_milestone: Milestone, ours: Entry, theirs: Sequence[Entry]) -> Finding:
    """The lower end of our interval over the median of the peers' variations."""
    if ours.cv_low is None or not theirs:
        return None
    middle = median(e.cv for e in theirs)
    value = ours.cv_low / middle if middle else (inf if ours.cv_low else 0.0)
    cv = f"CV {100 * ours.cv:.1f} % ({100 * ours.cv_low:.1f} to {100 * (ours.cv_high or 0):.1f} %)"
    return value, f"{value:.3f}", f"{cv}, the median peer's {100 * middle:.1f} %"


OF_ROWS: Mapping[str, Callable[[Milestone, Entry, Sequence[Entry]], Finding]] = {
    SPEED: speed, MEMORY: memory, SPREAD: spread,
}  # fmt: skip


def judge_rows(milestone: Milestone, results: Results) -> Judged:
    """By the worst row; a peer without figures in a row is passed over."""
    found, lacking = [], []
    for row in rows_of(milestone):
        measured = results.row(row.name, milestone.mode)
        ours = measured.entry(results.baseline) if measured else None
        peers = map(measured.entry, peers_of(milestone, results)) if measured else ()
        theirs = [e for e in peers if e is not None and e.rounds]
        one = OF_ROWS[milestone.kind](milestone, ours, theirs) if ours and ours.rounds else None
        if one is None:
            lacking.append(row.name)
        else:
            found.append((one, f"{measured.title}, {one[2]}"))
    if lacking or not found:
        few = f"no figures: {some(lacking, 4)}" if lacking else "no rows"
        return Judged(milestone, UNMEASURED, "", few)
    worse = min if milestone.kind == SPEED else max
    (value, shown, _), detail = worse(found, key=lambda one: one[0][0])
    if milestone.kind == SPEED:
        return Judged(milestone, REACHED if value >= milestone.at_least else MISSED, shown, detail)
    over = sum(one[0] > milestone.at_most for one, _ in found)
    count = f"; {over} of {len(found)} rows above the bar" if over else ""
    return Judged(milestone, MISSED if over else REACHED, shown, f"{detail}{count}")


def judge_calls(milestone: Milestone, calls: Sequence[Calls]) -> Judged:
    if not calls or any(one.rate is None for one in calls):
        notes = "; ".join(dict.fromkeys(one.note for one in calls if one.note))
        return Judged(milestone, UNMEASURED, "", notes)
    worst = max(calls, key=lambda one: one.rate)
    state = REACHED if worst.rate < milestone.at_most else MISSED
    detail = f"{worst.title}: {worst.calls:,} calls in {worst.operations:,} operations"
    return Judged(milestone, state, f"{worst.rate:.1e}" if worst.rate else "0", detail)


def judge_soak(milestone: Milestone, soak: Mapping[str, float]) -> Judged:
    value = soak.get(milestone.kind)
    if value is None:
        return Judged(milestone, UNMEASURED, "", "no soak of enough epochs")
    if milestone.kind == VARIATION:
        # Where even the steadiest peer varies more, it is the machine.
        limit = max(milestone.at_most, soak.get("best peer's variation", 0.0))
        detail = "" if limit == milestone.at_most else f"the steadiest peer's {limit:.2f} %"
        return Judged(milestone, REACHED if value <= limit else MISSED, f"{value:.2f} %", detail)
    # Of throughput only a loss counts; resident memory may not move either way.
    off = -value if milestone.kind == "throughput drift" else abs(value)
    return Judged(milestone, REACHED if off <= milestone.at_most else MISSED, f"{value:+.2f} %", "")
