"""What a rotation of variants says of each: its speed and its memory beside the base's.

Here the ratios are the variant's over the base's: of speed, above 1 the variant is faster; of
memory, above 1 it holds more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from hakmem.measuring.measures import NO_DIFFERENCE, PEAK_RSS, TOO_FEW, evaluate
from hakmem.measuring.rotation import Rotation
from hakmem.measuring.statistics import Interval, net_speed_ratio, speed_ratio
from hakmem.measuring.summary import summarise
from scipy.stats import gmean

from hakmem_lab.suite_files import three
from hakmem_lab.suite_results import read_journal
from hakmem_lab.suite_session import FLOOR, Job, Session
from hakmem_lab.variants import BASE

FASTER, SLOWER, MORE, LESS = "faster", "slower", "more", "less"
COLUMNS = (
    "group", "base_commit", "row", "variant", "unit", "rounds", "median", "best", "cv",
    "speed_ratio", "speed_low", "speed_high", "verdict", "net_ratio", "net_low", "net_high",
    "peak_rss_kb", "rss_ratio", "rss_low", "rss_high", "rss_verdict", "minor_faults", "problem",
    "command",
)  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """One variant in one row."""

    variant: str
    problem: str = ""
    rounds: int = 0
    median: float = 0.0
    best: float = 0.0
    cv: float = 0.0
    speed: Interval | None = None
    net: Interval | None = None
    verdict: str = ""
    peak_rss_kb: int = 0
    rss: Interval | None = None
    rss_verdict: str = ""
    minor_faults: int = 0


@dataclass(frozen=True)
class RowFigures:
    """One row under all variants; `problem` where it did not run at all."""

    name: str
    title: str
    unit: str
    command: str
    rounds: int = 0
    problem: str = ""
    entries: tuple[Figures, ...] = ()

    def of(self, variant: str) -> Figures | None:
        return next((e for e in self.entries if e.variant == variant and e.rounds), None)


@dataclass(frozen=True)
class Total:
    """One variant over all rows: the geometric mean of its ratios, and its rows by verdict."""

    variant: str
    speed: float | None
    rss: float | None
    counts: Mapping[str, int]


def row_figures(session: Session, job: Job) -> RowFigures:
    head, rotation = read_journal(session, job)
    known = (job.row.name, job.row.title, job.metric.unit, job.command_line)
    if rotation is None:
        return RowFigures(*known, problem=job.problem or "not run")
    base = session.baseline
    ratios = {c.name: c.to_baseline for c in evaluate(rotation, PEAK_RSS, base)}
    found = {row.name: row for row in summarise(rotation, base)}
    entries = []
    for allocator in session.allocators:
        row = found.get(allocator.name)
        if row is None or row.problem:
            why = row.problem if row else head["missing"].get(allocator.name, allocator.problem)
            entries.append(Figures(allocator.name, why or "not run"))
            continue
        speed, net = speed_of(rotation, allocator.name, base)
        rss = ratios.get(allocator.name)
        entries.append(
            Figures(
                row.name,
                rounds=row.slices,
                median=row.median,
                best=row.best,
                cv=row.variation,
                speed=speed,
                net=net,
                verdict=verdict(speed, FASTER, SLOWER),
                peak_rss_kb=row.peak_rss_kb,
                rss=rss,
                rss_verdict=verdict(rss, MORE, LESS),
                minor_faults=row.minor_faults,
            )
        )
    return RowFigures(*known, rotation.rounds_done, entries=tuple(entries))


def speed_of(rotation: Rotation, name: str, base: str) -> tuple[Interval | None, Interval | None]:
    """How many times faster than the base it is, and the same net of the floor where it ran."""
    if name == base or rotation.series[base].problem or not rotation.rounds_done:
        return None, None
    own, other = rotation.costs(name), rotation.costs(base)
    floor = rotation.series.get(FLOOR)
    net = None
    if floor is not None and not floor.problem:
        net = net_speed_ratio(own, other, rotation.costs(FLOOR), rotation.seed)
    return speed_ratio(own, other, rotation.seed), net


def verdict(ratio: Interval | None, above: str, below: str) -> str:
    if ratio is None:
        return ""
    if ratio.low is None or ratio.high is None:
        return TOO_FEW
    if ratio.low > 1:
        return above
    return below if ratio.high < 1 else NO_DIFFERENCE


def totals(session: Session, rows: Sequence[RowFigures]) -> list[Total]:
    return [
        total(a.name, [e for row in rows if (e := row.of(a.name))])
        for a in session.allocators
        if a.name != BASE
    ]


def total(variant: str, entries: Sequence[Figures]) -> Total:
    speeds = [e.speed.median for e in entries if e.speed]
    memory = [e.rss.median for e in entries if e.rss]
    verdicts = [e.verdict for e in entries]
    return Total(
        variant,
        float(gmean(speeds)) if speeds else None,
        float(gmean(memory)) if memory else None,
        {kind: verdicts.count(kind) for kind in (FASTER, SLOWER, NO_DIFFERENCE, TOO_FEW)},
    )


def intervals(rows: Sequence[RowFigures]) -> int:
    """How many intervals of speed there are: one in twenty lies beside 1 by chance alone."""
    return sum(e.speed is not None and e.speed.low is not None for row in rows for e in row.entries)


def document(session: Session, rows: Sequence[RowFigures]) -> dict:
    return {
        "group": session.suite,
        "title": session.title,
        "facts": dict(session.facts),
        "rounds": session.rounds,
        "seed": session.seed,
        "variants": {
            a.name: {"title": a.source, "version": a.version, "problem": a.problem}
            for a in session.allocators
        },
        "served": dict(session.served),
        "rows": [asdict(row) for row in rows],
        "totals": [asdict(one) for one in totals(session, rows)],
    }


def csv_lines(session: Session, rows: Sequence[RowFigures]) -> list[list]:
    return [
        csv_line(session, row, entry)
        for row in rows
        for entry in row.entries or (Figures("", row.problem),)
    ]


def csv_line(session: Session, row: RowFigures, entry: Figures) -> list:
    ran = entry.rounds > 0
    return [
        session.suite,
        session.facts["base"],
        row.name,
        entry.variant,
        row.unit,
        entry.rounds,
        *(f"{value:.6g}" if ran else "" for value in (entry.median, entry.best)),
        f"{entry.cv:.5f}" if ran else "",
        *three(entry.speed),
        entry.verdict,
        *three(entry.net),
        entry.peak_rss_kb if ran else "",
        *three(entry.rss),
        entry.rss_verdict,
        entry.minor_faults if ran else "",
        " ".join(entry.problem.split()),
        row.command,
    ]
