"""What the journals of a suite come to: figures of each allocator in each row, won and lost.

Ratios are of speed, from pairs: above 1 the baseline is faster. A row is lost to a peer where the
whole 95 % interval lies below 1.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, geometric_mean, median

from hakmem.allocators.peers import Allocator
from hakmem.documents import write_json, write_text
from hakmem.errors import UserError
from hakmem.inputs import read_whole
from hakmem.measuring.measures import PEAK_RSS, by_interval, evaluate
from hakmem.measuring.rotation import Rotation
from hakmem.measuring.statistics import Interval, speed_ratio, variation
from hakmem.output.tables import ABSENT
from hakmem.plain_text import parse_json, with_last_words
from hakmem.running.proof import FAILED

from hakmem_lab.spreads import variation_interval
from hakmem_lab.suite import PRELOAD
from hakmem_lab.suite_session import Job, Session

RESULTS, SCENARIOS_CSV = "results.json", "scenarios.csv"
# As other tools of the project's history expect it.
SCENARIO_COLUMNS = (
    "allocator", "scenario", "iterations", "avg_ns", "soft_pf", "hard_pf", "rss_kb", "ops_per_sec",
)  # fmt: skip
WON, LOST, SAME = "won", "lost", "no difference"
TOO_FEW, BASELINE, NO_FIGURES = "too few rounds", "baseline", "no figures"
NOT_SERVED = "NOT SERVED"
# In place of an allocator's name, where none has figures.
WHOLE_ROW = "all"
RUN_TIME = re.compile(r"\btime=([\d.]+)s")


@dataclass(frozen=True)
class Entry:
    """One allocator in one row. Ratios: above 1 the baseline is faster, or holds less memory."""

    allocator: str
    problem: str = ""
    rounds: int = 0
    mean: float = 0.0
    median: float = 0.0
    min: float = 0.0
    max: float = 0.0
    cv: float = 0.0
    ratio: Interval | None = None
    verdict: str = NO_FIGURES
    peak_rss_kb: int = 0
    rss_ratio: Interval | None = None
    rss_verdict: str = NO_FIGURES
    minor_faults: int = 0
    major_faults: int = 0
    operations: int = 0
    # The 95 % interval of cv, where there are enough rounds.
    cv_low: float | None = None
    cv_high: float | None = None


@dataclass(frozen=True)
class RowResult:
    """One row in one mode."""

    name: str
    title: str
    group: str
    mode: str
    scenario: str
    command: str
    pinned: str
    unit: str
    higher_is_better: bool
    rounds: int
    served: str = ""
    problem: str = ""
    entries: tuple[Entry, ...] = ()

    def entry(self, allocator: str) -> Entry | None:
        return next((e for e in self.entries if e.allocator == allocator), None)

    def problems(self) -> dict[str, str]:
        found = {e.allocator: e.problem for e in self.entries if e.problem}
        if self.served == NOT_SERVED:
            found["hakmem"] = f"{NOT_SERVED}: its figures are another malloc's"
        elif self.served.startswith(FAILED):
            found.setdefault("hakmem", self.served)
        return {WHOLE_ROW: self.problem, **found} if self.problem else found


@dataclass(frozen=True)
class Tally:
    """A peer over all rows of a mode."""

    allocator: str
    mode: str
    mean_ratio: float | None
    won: int
    lost: int
    same: int
    without: int

    def cells(self, digits: int) -> list[str]:
        mean = ABSENT if self.mean_ratio is None else f"{self.mean_ratio:.{digits}f}"
        return [mean, *map(str, (self.won, self.lost, self.same, self.without))]


@dataclass
class Results:
    """Everything tables, files and the scorecard are made of."""

    suite: str
    title: str
    date: str
    baseline: str
    allocators: dict[str, str]
    rounds: int
    finished: bool
    seconds: float
    seed: int
    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    served: dict[str, str] = field(default_factory=dict)
    rows: list[RowResult] = field(default_factory=list)
    tallies: list[Tally] = field(default_factory=list)

    def row(self, name: str, mode: str) -> RowResult | None:
        return next((r for r in self.rows if (r.name, r.mode) == (name, mode)), None)

    def peers(self) -> list[str]:
        return [name for name in self.allocators if name != self.baseline]


def collect(session: Session, date: str, finished: bool, known: Mapping[str, RowResult]) -> Results:
    """Everything so far; `known` has rows by job that need not be read from journals again."""
    own = ("suite", "title", "baseline", "rounds", "seed", "settings", "facts", "served")
    results = Results(
        date=date, finished=finished, seconds=round(session.seconds, 1),
        allocators={a.name: str(a) for a in session.allocators},
        versions={a.name: version(a) for a in session.allocators},
        **{name: getattr(session, name) for name in own},
    )  # fmt: skip
    results.rows = [known.get(job.key) or row_result(session, job) for job in session.jobs]
    modes = dict.fromkeys(row.mode for row in results.rows)
    results.tallies = [tally(results, name, mode) for mode in modes for name in results.peers()]
    return results


def version(allocator: Allocator) -> str:
    """Without the path of its library: for documents that leave this machine."""
    given = " ".join(f"{name}={value}" for name, value in allocator.settings.items())
    what = allocator.version or "version unknown"
    return f"{what}, with {given}" if given else what


def row_result(session: Session, job: Job) -> RowResult:
    head, rotation = session.read_rotation(job.key)
    known = {
        "name": job.row.name,
        "title": job.row.title,
        "group": job.row.group,
        "mode": job.mode,
        "scenario": job.row.scenario,
        "command": job.command_line,
        "pinned": job.cpus or "",
        "unit": job.metric.unit,
        "higher_is_better": job.metric.higher_is_better,
    }
    if rotation is None:
        return RowResult(**known, rounds=0, problem=job.problem or "not run")
    entries = row_entries(session, job, rotation, head["missing"])
    problem = "" if rotation.rounds_done else "no whole round"
    return RowResult(**known, rounds=rotation.rounds_done, served=head["served"], problem=problem,
                     entries=entries)  # fmt: skip


def row_entries(
    session: Session, job: Job, rotation: Rotation, missing: Mapping[str, str]
) -> tuple[Entry, ...]:
    memory = {cell.name: cell for cell in evaluate(rotation, PEAK_RSS, session.baseline)}
    names = dict.fromkeys([*(a.name for a in session.allocators), *rotation.series])
    entries = []
    for name in names:
        series = rotation.series.get(name)
        if series is None:
            entries.append(Entry(name, missing.get(name, "not run")))
        elif series.problem:
            entries.append(Entry(name, with_last_words(series.problem, series.last_words)))
        elif not rotation.rounds_done:
            entries.append(Entry(name, "no whole round"))
        else:
            entries.append(entry_of(session, job, rotation, name, memory[name].to_baseline))
    return tuple(entries)


def entry_of(
    session: Session, job: Job, rotation: Rotation, name: str, rss_ratio: Interval | None
) -> Entry:
    series, baseline = rotation.series[name], session.baseline
    values = series.values[: rotation.rounds_done]
    outcomes = series.outcomes[: rotation.rounds_done]
    ratio = None
    if name != baseline and rotation.has_figures(baseline):
        ratio = speed_ratio(rotation.costs(baseline), rotation.costs(name), rotation.seed)
    cv_low, cv_high = variation_interval(values, rotation.seed) or (None, None)
    return Entry(
        name,
        rounds=len(values),
        mean=fmean(values),
        median=median(values),
        min=min(values),
        max=max(values),
        cv=variation(values),
        ratio=ratio,
        verdict=verdict(name, baseline, ratio),
        peak_rss_kb=round(median(o.peak_rss_kb for o in outcomes)),
        rss_ratio=rss_ratio,
        rss_verdict=verdict(name, baseline, rss_ratio),
        minor_faults=round(median(o.minor_faults for o in outcomes)),
        major_faults=round(median(o.major_faults for o in outcomes)),
        operations=operations(job, rotation, name),
        cv_low=cv_low,
        cv_high=cv_high,
    )


def verdict(name: str, baseline: str, ratio: Interval | None) -> str:
    """What the interval of a ratio allows to say of the baseline."""
    if name == baseline:
        return BASELINE
    return by_interval(ratio, LOST, WON, TOO_FEW, SAME) if ratio else NO_FIGURES


def operations(job: Job, rotation: Rotation, name: str) -> int:
    """Operations of one run, as the program says them; else its rate times its time."""
    if not job.row.operations:
        return rate_times_time(rotation, name)
    pattern = re.compile(rf"\b{re.escape(job.row.operations)}=(\d+)")
    outcomes = rotation.series[name].outcomes[: rotation.rounds_done]
    found = [pattern.search(outcome.stdout) for outcome in outcomes]
    each = median([int(one[1]) for one in found if one] or [0])
    return round(each * job.row.operations_times)


def rate_times_time(rotation: Rotation, name: str) -> int:
    """Of programs that print `time=`; 0 for others."""
    series = rotation.series[name]
    rounds = zip(series.values, series.outcomes[: rotation.rounds_done], strict=False)
    found = [(value, RUN_TIME.search(outcome.stdout)) for value, outcome in rounds]
    return round(median([value * float(time[1]) for value, time in found if time] or [0]))


def tally(results: Results, name: str, mode: str) -> Tally:
    entries = [row.entry(name) for row in results.rows if row.mode == mode]
    ratios = [e.ratio.median for e in entries if e is not None and e.ratio is not None]
    verdicts = [e.verdict if e is not None else NO_FIGURES for e in entries]
    counts = {kind: verdicts.count(kind) for kind in (WON, LOST, SAME)}
    return Tally(
        name,
        mode,
        geometric_mean(ratios) if ratios else None,
        counts[WON],
        counts[LOST],
        counts[SAME],
        len(entries) - sum(counts.values()),
    )


def lost_rows(rows: Sequence[RowResult]) -> list[tuple[RowResult, Entry]]:
    """Where a peer beats the baseline beyond the noise, the worst first."""
    found = [(row, e) for row in rows for e in row.entries if e.verdict == LOST]
    return sorted(found, key=lambda pair: pair[1].ratio.median)


def read(folder: Path) -> Results:
    """The results of a folder, or of a file of this format."""
    path = folder / RESULTS if folder.is_dir() else folder
    try:
        document = parse_json(read_whole(path))
        known = {name: document[name] for name in Results.__dataclass_fields__}
        known["rows"] = [read_row(row) for row in document["rows"]]
        known["tallies"] = [Tally(**one) for one in document["tallies"]]
        return Results(**known)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} holds no results of a suite: {error}", 2) from error


def read_row(row: Mapping) -> RowResult:
    entries = []
    for entry in row["entries"]:
        intervals = {n: entry[n] and Interval(**entry[n]) for n in ("ratio", "rss_ratio")}
        entries.append(Entry(**{**entry, **intervals}))
    return RowResult(**{**row, "entries": tuple(entries)})


def write_figures(results: Results, folder: Path) -> None:
    """What is cheap enough to be brought up to date after every row."""
    write_json(folder / RESULTS, "bench", asdict(results))
    lines = [
        scenario_line(row, entry)
        for row in results.rows
        if row.scenario and row.mode == PRELOAD
        for entry in row.entries
        if entry.rounds
    ]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([SCENARIO_COLUMNS, *lines])
    write_text(folder / SCENARIOS_CSV, out.getvalue())


def scenario_line(row: RowResult, entry: Entry) -> list:
    """Medians of the rounds."""
    return [
        *(entry.allocator, row.scenario, entry.operations, f"{1e9 / entry.median:.2f}"),
        *(entry.minor_faults, entry.major_faults, entry.peak_rss_kb, f"{entry.median:.0f}"),
    ]
