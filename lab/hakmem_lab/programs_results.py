"""What the runs of programs say: each program beside its best peer, and all programs together.

Of CPU time the minimum of the rounds counts: what else runs on the machine only adds to it. Ratios
of cost are a peer's over the baseline's; those of memory are the baseline's over a peer's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from hakmem.running.proof import why_unproven

from hakmem_lab.drawn_results import Beside, Share, beside_of, ratio_to_least, share
from hakmem_lab.programs import ALL, CAUSES, JUDGING
from hakmem_lab.programs_run import Measured, Session

CPU, PEAK, ESTIMATE = "cpu_min_s", "peak_kb", "estimate"
# Each a table: title, digits behind the point, scale. The first is the cost that is compared.
TIMED = {
    CPU: ("CPU seconds of the process tree, minimum", 2, 1),
    "cpu_median_s": ("CPU seconds of the process tree, median", 2, 1),
    PEAK: ("Peak RSS, MB", 1, 1024),
    "faults": ("Page faults, thousands", 1, 1000),
    "calls": ("System calls, thousands", 2, 1000),
}
COUNTED = {
    ESTIMATE: ("Estimate, million cycles", 0, 1e6),
    "instructions": ("Instructions, millions", 0, 1e6),
    "l1": ("L1 misses, thousands", 0, 1000),
    "l2": ("L2 misses, thousands", 0, 1000),
    "tlb1": ("First TLB's misses, thousands", 0, 1000),
    "tlb2": ("Second TLB's misses, thousands", 0, 1000),
    "library_instructions": ("Instructions in the allocator's library, millions", 1, 1e6),
    "per_pair": ("Instructions in the allocator's library of a pair of calls", 1, 1),
}


@dataclass(frozen=True)
class ProgramResult:
    """One program; `figures` by allocator, without those that failed or did not serve."""

    name: str
    title: str
    set: str
    rounds: int
    figures: Mapping[str, Mapping[str, float | None]]
    served: Mapping[str, str]
    problems: Mapping[str, str]
    best_peer: str = ""
    best_over_ours: float | None = None
    peak_over_lowest: float | None = None


@dataclass
class Results:
    """All programs that have figures."""

    baseline: str
    peers: Sequence[str]
    counted: bool
    programs: Sequence[ProgramResult]
    shares: list[Share] = field(default_factory=list)
    beside: list[Beside] = field(default_factory=list)


def collect(session: Session, measured: Iterable[Measured]) -> Results:
    programs = [result_of(session, one) for one in measured]
    peers = [a.name for a in session.allocators[1:]]
    found = Results(session.baseline, peers, session.counted, programs)
    for which in (ALL, CAUSES, JUDGING):
        found.shares += shares(found, which, session.seed)
    beside = (beside_one(found, peer, session.seed) for peer in peers)
    found.beside = [one for one in beside if one]
    return found


def result_of(session: Session, measured: Measured) -> ProgramResult:
    unproven = {name: why for name, said in measured.served.items() if (why := why_unproven(said))}
    problems = measured.problems | unproven
    names = [a.name for a in session.allocators if a.name not in problems]
    read, cost = (counted_figures, ESTIMATE) if session.counted else (timed_figures, CPU)
    figures = {name: found for name in names if (found := read(measured, name))}
    theirs = {name: found for name, found in figures.items() if name != session.baseline}
    best = min(theirs, key=lambda name: theirs[name][cost], default="")
    over = peak = None
    if best and (ours := figures.get(session.baseline)):
        over = theirs[best][cost] / ours[cost]
        if PEAK in ours:
            peak = ratio_to_least(ours[PEAK], [found[PEAK] for found in theirs.values()])
    one = measured.program
    return ProgramResult(one.name, one.title, one.set, measured.rounds, figures, measured.served,
                         problems, best, over, peak)  # fmt: skip


def timed_figures(measured: Measured, name: str) -> dict[str, float | None]:
    rounds, series = measured.rounds, measured.rotation.series[name]
    if not rounds:
        return {}
    values, outcomes = series.values[:rounds], series.outcomes[:rounds]
    peak = median(o.peak_rss_kb for o in outcomes)
    faults = median(o.minor_faults + o.major_faults for o in outcomes)
    figures = (min(values), median(values), peak, faults, measured.calls.get(name))
    return dict(zip(TIMED, figures, strict=True))


def counted_figures(measured: Measured, name: str) -> dict[str, float | None]:
    found = measured.counts.get(name)
    return {kind: getattr(found, kind) for kind in COUNTED} if found else {}


def shares(results: Results, which: str, seed: int) -> list[Share]:
    """Over all programs, or over a half of them."""
    rows = [one for one in results.programs if which in (ALL, one.set)]
    if which != ALL and len(rows) == len(results.programs):
        return []
    cost = "estimate" if results.counted else "CPU time"
    over = [one.best_over_ours for one in rows if one.best_over_ours is not None]
    peak = [one.peak_over_lowest for one in rows if one.peak_over_lowest is not None]
    found = (
        share(f"{cost} of the best peer ÷ {results.baseline}'s, {which}", over, seed),
        share(f"peak RSS ÷ the lowest peer's, {which}", peak, seed, less=True),
    )
    return [one for one in found if one]


def beside_one(results: Results, peer: str, seed: int) -> Beside | None:
    name, cost = results.baseline, ESTIMATE if results.counted else CPU
    both = [one.figures for one in results.programs if {name, peer} <= set(one.figures)]
    costs = [found[peer][cost] / found[name][cost] for found in both]
    peaks = [] if results.counted else [found[name][PEAK] / found[peer][PEAK] for found in both]
    return beside_of(peer, costs, ("worse", "better"), peaks, (), seed)
