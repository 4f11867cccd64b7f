"""What the rounds of drawn loads say: each seed beside its best peer, and all seeds together.

Ratios of speed are the baseline's over a peer's, medians over the rounds: above 1 the baseline is
faster. The best peer of a seed is chosen by the rounds that are compared with it, so it is partly
the luckiest; beside that figure stands one whose peer is chosen for each round by the others.
Ratios of memory are the baseline's over a peer's as well: below 1 it holds less. Over many seeds a
ratio is the geometric mean, and its interval is drawn over the seeds.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hakmem.measuring.measures import by_interval, speed_and_net
from hakmem.measuring.rotation import Rotation
from hakmem.measuring.statistics import Interval

from hakmem_lab.drawn_run import Measured, Session, problems, said
from hakmem_lab.shell import FLOOR
from hakmem_lab.spreads import costs_chosen_elsewhere, geometric_mean_interval

LOAD_LINE = re.compile(r"^Load: (.*)$", re.MULTILINE)
NEARLY = 0.95
SPEED, CHOSEN = "speed over the best peer", "the same, the peer chosen by other rounds"
NET = "speed over the best peer, net of the floor"
NET_CHOSEN = "the same, net, the peer chosen by other rounds"
TOO_FEW = "too few seeds"
WORST = 10
# A process that stands still holds some memory: no ratio is made of less than a page.
LEAST_KB = 4


@dataclass(frozen=True)
class Figures:
    """One allocator at one seed; memory without the program's own tables, in KiB."""

    speed: float
    ratio: Interval | None
    net: Interval | None
    peak_kb: float | None
    rest_kb: int | None


@dataclass(frozen=True)
class SeedResult:
    """One seed; ratios are absent where the baseline, or every peer, has no figures."""

    seed: int
    load: str
    rounds: int
    figures: Mapping[str, Figures]
    problems: Mapping[str, str]
    best_peer: str = ""
    over_best: Interval | None = None
    net_over_best: Interval | None = None
    # The peer of each round is chosen by the other rounds: absent with a single one.
    over_chosen: Interval | None = None
    net_over_chosen: Interval | None = None
    peak_over_best: float | None = None
    rest_over_best: float | None = None


@dataclass(frozen=True)
class Beside:
    """The baseline and one peer over all seeds both have."""

    peer: str
    seeds: int
    speed: Interval
    verdict: str
    faster: float
    peak: Interval | None
    peak_verdict: str
    rest: Interval | None
    rest_verdict: str


@dataclass(frozen=True)
class Share:
    """A ratio over all seeds: its mean, and the share of the seeds at which it is good."""

    title: str
    seeds: int
    mean: Interval
    first: float
    nearly: float
    lowest: float
    highest: float
    # A ratio below 1 is the good one.
    less: bool


@dataclass(frozen=True)
class Results:
    """All seeds that have rounds, and what was made of them."""

    baseline: str
    peers: Sequence[str]
    seeds: Sequence[SeedResult]
    shares: Mapping[str, Share]
    beside: Sequence[Beside]
    worst: Sequence[SeedResult]


def collect(session: Session, measured: Iterable[Measured]) -> Results:
    baseline = session.baseline
    peers = [a.name for a in session.allocators if a.name != baseline]
    seeds = [seed_result(one, baseline, peers) for one in measured]
    with_best = [one for one in seeds if one.over_best is not None]
    by_speed = sorted(with_best, key=lambda one: one.over_best.median)
    seed = session.seed
    return Results(
        baseline,
        peers,
        seeds,
        shares(seeds, seed),
        [found for peer in peers if (found := beside(seeds, baseline, peer, seed))],
        by_speed[:WORST],
    )


def seed_result(measured: Measured, baseline: str, peers: Sequence[str]) -> SeedResult:
    rotation = measured.rotation
    names = [name for name in (baseline, *peers, FLOOR) if rotation.has_figures(name)]
    figures = {name: figures_of(measured, name, baseline) for name in names}
    there = [name for name in peers if name in figures and figures[name].ratio is not None]
    best = min(there, key=lambda name: figures[name].ratio.median, default="")
    chosen = costs_chosen_elsewhere([rotation.costs(name) for name in there])
    return SeedResult(
        measured.seed,
        load_of(rotation),
        rotation.rounds_done,
        figures,
        problems(measured),
        best,
        figures[best].ratio if best else None,
        figures[best].net if best else None,
        *(speed_and_net(rotation, baseline, chosen, FLOOR) if chosen else (None, None)),
        memory_ratio(figures, baseline, there, lambda f: f.peak_kb),
        memory_ratio(figures, baseline, there, lambda f: f.rest_kb),
    )


def load_of(rotation: Rotation) -> str:
    """The load in words: every run prints the same."""
    outcomes = (outcome for series in rotation.series.values() for outcome in series.outcomes)
    found = filter(None, (LOAD_LINE.search(outcome.stdout) for outcome in outcomes))
    return next((one[1] for one in found), "")


def figures_of(measured: Measured, name: str, baseline: str) -> Figures:
    rotation = measured.rotation
    series, rounds = rotation.series[name], rotation.rounds_done
    ratio = net = None
    if name not in (baseline, FLOOR) and rotation.has_figures(baseline):
        ratio, net = speed_and_net(rotation, baseline, rotation.costs(name), FLOOR)
    peaks = [said(outcome).get("peak_kb") for outcome in series.outcomes[:rounds]]
    return Figures(
        median(series.values[:rounds]),
        ratio,
        net,
        median(peaks) if peaks and None not in peaks else None,
        measured.rest_kb.get(name),
    )


def memory_ratio(
    figures: Mapping[str, Figures],
    baseline: str,
    peers: Sequence[str],
    read: Callable[[Figures], float | None],
) -> float | None:
    """Over the lowest of all peers."""
    ours = read(figures[baseline]) if baseline in figures else None
    known = [value for name in peers if (value := read(figures[name])) is not None]
    return None if ours is None else ratio_to_least(ours, known)


def ratio_to_least(ours: float, others: Sequence[float]) -> float | None:
    return max(ours, LEAST_KB) / max(min(others), LEAST_KB) if others else None


def share(title: str, ratios: Sequence[float], seed: int, *, less: bool = False) -> Share | None:
    """Where less is good, at most 1.05 is nearly as good."""
    if not ratios:
        return None
    first = sum(r <= 1 if less else r >= 1 for r in ratios)
    nearly = sum(r <= 1 / NEARLY if less else r >= NEARLY for r in ratios)
    count = len(ratios)
    mean = geometric_mean_interval(ratios, seed)
    ends = min(ratios), max(ratios)
    return Share(title, count, mean, first / count, nearly / count, *ends, less)


# By title the ratios of the seeds that make a share; of memory less is good.
KINDS: dict[str, Callable[[SeedResult], Interval | float | None]] = {
    SPEED: lambda one: one.over_best,
    CHOSEN: lambda one: one.over_chosen,
    NET: lambda one: one.net_over_best,
    NET_CHOSEN: lambda one: one.net_over_chosen,
    "peak RSS over the lowest peer": lambda one: one.peak_over_best,
    "RSS after the rest over the lowest peer": lambda one: one.rest_over_best,
}


def shares(seeds: Sequence[SeedResult], seed: int) -> dict[str, Share]:
    """Without those that no seed has a ratio for."""
    found = {}
    for title, read in KINDS.items():
        each = [ratio for one in seeds if (ratio := read(one)) is not None]
        ratios = [ratio.median if isinstance(ratio, Interval) else ratio for ratio in each]
        if one := share(title, ratios, seed, less="RSS" in title):
            found[title] = one
    return found


def beside(seeds: Sequence[SeedResult], baseline: str, peer: str, seed: int) -> Beside | None:
    both = [one.figures for one in seeds if {baseline, peer} <= set(one.figures)]
    speeds = [found[peer].ratio.median for found in both if found[peer].ratio is not None]
    pairs = [(found[baseline], found[peer]) for found in both]
    peaks = memory_ratios((ours.peak_kb, theirs.peak_kb) for ours, theirs in pairs)
    rests = memory_ratios((ours.rest_kb, theirs.rest_kb) for ours, theirs in pairs)
    return beside_of(peer, speeds, ("slower", "faster"), peaks, rests, seed)


def memory_ratios(pairs: Iterable[tuple[float | None, float | None]]) -> list[float]:
    return [ratio_to_least(ours, [theirs]) for ours, theirs in pairs if None not in (ours, theirs)]


def beside_of(
    peer: str,
    speeds: Sequence[float],
    words: tuple[str, str],
    peaks: Sequence[float],
    rests: Sequence[float],
    seed: int,
) -> Beside | None:
    """None without a ratio of speed; `words` are the verdicts on speed below 1 and above."""
    if not speeds:
        return None
    speed, peak, rest = (
        geometric_mean_interval(found, seed) if found else None for found in (speeds, peaks, rests)
    )
    told = verdict(speed, *words), verdict(peak, "less", "more"), verdict(rest, "less", "more")
    faster = sum(s >= 1 for s in speeds) / len(speeds)
    return Beside(peer, len(speeds), speed, told[0], faster, peak, told[1], rest, told[2])


def verdict(mean: Interval | None, below: str, above: str) -> str:
    return by_interval(mean, below, above, TOO_FEW) if mean else ""
