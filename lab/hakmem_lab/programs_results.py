"""What the runs of programs say: each program beside its best peer, and all programs together.

Of CPU time the minimum of the rounds counts: what else runs on the machine only adds to it. Ratios
of cost are a peer's over the baseline's, above 1 the baseline is better; those of memory are the
baseline's over a peer's, as in the bars.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hakmem.running.proof import why_unproven

from hakmem_lab.drawn_results import Beside, Share, ratio_to_least, share, verdict
from hakmem_lab.programs import ALL, CAUSES, JUDGING
from hakmem_lab.programs_run import Measured
from hakmem_lab.programs_session import Session
from hakmem_lab.spreads import geometric_mean_interval

CPU, PEAK, ESTIMATE = "cpu_min_s", "peak_kb", "estimate"
# As rows and columns of tables: title, digits behind the point, scale.
TIMED_FIGURES = {
    CPU: ("CPU seconds of the process tree, minimum", 2, 1),
    "cpu_median_s": ("CPU seconds of the process tree, median", 2, 1),
    PEAK: ("Peak RSS, MB", 1, 1024),
    "faults": ("Page faults, thousands", 1, 1000),
    "calls": ("System calls, thousands", 2, 1000),
}
COUNTED_FIGURES = {
    ESTIMATE: ("Estimate, million cycles", 0, 1e6),
    "instructions": ("Instructions, millions", 0, 1e6),
    "l1": ("L1 misses, thousands", 0, 1000),
    "l2": ("L2 misses, thousands", 0, 1000),
    "tlb1": ("First TLB's misses, thousands", 0, 1000),
    "tlb2": ("Second TLB's misses, thousands", 0, 1000),
    "per_pair": ("Instructions in the allocator's library, of a pair of calls", 1, 1),
}
Figures = Mapping[str, float | None]


@dataclass(frozen=True)
class ProgramResult:
    """One program; `figures` by allocator, without those that failed or did not serve."""

    name: str
    title: str
    set: str
    rounds: int
    figures: Mapping[str, Figures]
    served: Mapping[str, str]
    problems: Mapping[str, str]
    best_peer: str = ""
    best_over_ours: float | None = None
    peak_over_lowest: float | None = None


@dataclass(frozen=True)
class Results:
    """All programs that have figures."""

    baseline: str
    peers: Sequence[str]
    counted: bool
    programs: Sequence[ProgramResult]
    shares: Sequence[tuple[Share, bool]]
    beside: Sequence[Beside]

    @property
    def kinds(self) -> Mapping[str, tuple[str, int, float]]:
        return COUNTED_FIGURES if self.counted else TIMED_FIGURES

    @property
    def cost(self) -> str:
        return ESTIMATE if self.counted else CPU


def collect(session: Session, measured: Iterable[Measured]) -> Results:
    cost = ESTIMATE if session.counted else CPU
    programs = [result_of(session, one, cost) for one in measured]
    found = Results(session.baseline, session.peers, session.counted, programs, [], [])
    beside = [row for peer in session.peers if (row := beside_one(found, peer, session.seed))]
    return Results(session.baseline, session.peers, session.counted, programs,
                   shares(found, session.seed), beside)  # fmt: skip


def result_of(session: Session, measured: Measured, cost: str) -> ProgramResult:
    unproven = {name: why for name, said in measured.served.items() if (why := why_unproven(said))}
    problems = measured.problems | unproven
    names = [a.name for a in session.allocators if a.name not in problems]
    read = counted_figures if session.counted else timed_figures
    figures = {name: found for name in names if (found := read(measured, name))}
    ours = figures.get(session.baseline)
    theirs = {name: found for name, found in figures.items() if name != session.baseline}
    best = min(theirs, key=lambda name: theirs[name][cost], default="")
    over = peak = None
    if ours and best:
        over = theirs[best][cost] / ours[cost]
        if PEAK in ours:
            peak = ratio_to_least(ours[PEAK], [found[PEAK] for found in theirs.values()])
    one = measured.program
    rounds = measured.rotation.rounds_done if measured.rotation else 1
    return ProgramResult(one.name, one.title, one.set, rounds, figures, measured.served, problems,
                         best, over, peak)  # fmt: skip


def timed_figures(measured: Measured, name: str) -> Figures:
    rotation = measured.rotation
    rounds = rotation.rounds_done
    if name not in rotation.series or not rounds:
        return {}
    series = rotation.series[name]
    values, outcomes = series.values[:rounds], series.outcomes[:rounds]
    return {
        CPU: min(values),
        "cpu_median_s": median(values),
        PEAK: median(o.peak_rss_kb for o in outcomes),
        "faults": median(o.minor_faults + o.major_faults for o in outcomes),
        "calls": measured.calls.get(name),
    }


def counted_figures(measured: Measured, name: str) -> Figures:
    if (found := measured.counts.get(name)) is None:
        return {}
    return {kind: getattr(found, kind) for kind in COUNTED_FIGURES} | {
        "library_instructions": found.library_instructions,
        "library_calls": found.library_calls,
    }


def shares(results: Results, seed: int) -> list[tuple[Share, bool]]:
    """Over all programs and over each half; the second says whether less is better."""
    what = "estimate" if results.counted else "CPU time"
    kinds: tuple[tuple[str, Callable[[ProgramResult], float | None], bool], ...] = (
        (f"{what} of the best peer ÷ {results.baseline}'s", lambda one: one.best_over_ours, False),
        ("peak RSS ÷ the lowest peer's", lambda one: one.peak_over_lowest, True),
    )
    found = []
    for which in (ALL, CAUSES, JUDGING):
        rows = [one for one in results.programs if which in (ALL, one.set)]
        if which != ALL and len(rows) == len(results.programs):
            continue
        for title, read, less in kinds:
            ratios = [value for one in rows if (value := read(one)) is not None]
            if one := share(f"{title}, {which}", ratios, seed, less=less):
                found.append((one, less))
    return found


def beside_one(results: Results, peer: str, seed: int) -> Beside | None:
    both = [one.figures for one in results.programs if {results.baseline, peer} <= set(one.figures)]
    if not both:
        return None
    ours = [found[results.baseline] for found in both]
    theirs = [found[peer] for found in both]
    costs = [b[results.cost] / a[results.cost] for a, b in zip(ours, theirs, strict=True)]
    speed, peak = geometric_mean_interval(costs, seed), None
    if not results.counted:
        peaks = [a[PEAK] / b[PEAK] for a, b in zip(ours, theirs, strict=True)]
        peak = geometric_mean_interval(peaks, seed)
    faster = sum(cost >= 1 for cost in costs) / len(costs)
    return Beside(peer, len(both), speed, verdict(speed, "slower", "faster"), faster,
                  peak, verdict(peak, "less", "more"), None, "")  # fmt: skip
