"""What a soak's epochs say: drift of memory and speed, variation, latency, and a verdict.

The first tenth of every process's epochs is warm-up and does not count. Drift is the rise of a
robust straight line over the run, as a share of its start. The machine drifts too, so speed is
judged beside the others of the same rounds, where there are any.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hakmem.errors import UserError
from hakmem.measuring.statistics import variation

from hakmem_lab.soak_file import Epoch
from hakmem_lab.spreads import Trend, trend

EPOCHS_MIN = 10
WARM_UP_SHARE = 0.1
WARM_UP_MIN = 2
# The load whose processes live on from epoch to epoch.
LONG = "long"


@dataclass(frozen=True)
class Thresholds:
    """The most that passes, as shares."""

    rss_drift: float = 0.05
    throughput_loss: float = 0.05
    variation: float = 0.02


@dataclass(frozen=True)
class Judgement:
    """One allocator under one load. `beside_others` is its speed's drift relative to theirs."""

    load: str
    allocator: str
    epochs: int
    processes: int
    rss_kb: float
    rss_drift: Trend
    ops_per_sec: float
    throughput_drift: Trend
    beside_others: Trend | None
    variation: float
    best_other_variation: float | None
    p50_ns: float | None
    p99_ns: float | None
    p999_ns: float | None
    max_ns: float | None
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.failures


Kept = dict[tuple[str, str], list[Epoch]]


def judge(epochs: Sequence[Epoch], thresholds: Thresholds) -> list[Judgement]:
    """A judgement for each load and allocator, in the order in which they first appear."""
    kept = without_warm_up(epochs)
    for (load, name), rows in kept.items():
        if len(rows) < EPOCHS_MIN:
            raise UserError(
                f"{name}, {load}: {len(rows)} epochs after the warm-up are too few to judge "
                f"(at least {EPOCHS_MIN})",
                2,
            )
    if not kept:
        raise UserError("there is no epoch to judge", 2)
    variations = {key: variation([e.ops_per_sec for e in rows]) for key, rows in kept.items()}
    found = []
    for key in kept:
        try:
            found.append(judge_one(key, kept, variations, thresholds))
        except ValueError as error:
            raise UserError(f"{key[1]}, {key[0]}: no drift can be told: {error}", 2) from error
    return found


def without_warm_up(epochs: Sequence[Epoch]) -> Kept:
    """By load and allocator. Of a repeated program the run's first processes are warm-up."""
    lives: dict[tuple[str, str], dict[int, list[Epoch]]] = {}
    for epoch in epochs:
        life = epoch.process if epoch.load == LONG else 0
        lives.setdefault((epoch.load, epoch.allocator), {}).setdefault(life, []).append(epoch)
    kept: Kept = {}
    for key, processes in lives.items():
        for life in processes.values():
            warm_up = max(WARM_UP_MIN, math.ceil(WARM_UP_SHARE * len(life)))
            kept.setdefault(key, []).extend(life[warm_up:])
    return kept


def judge_one(
    key: tuple[str, str],
    kept: Kept,
    variations: Mapping[tuple[str, str], float],
    thresholds: Thresholds,
) -> Judgement:
    load, name = key
    rows = kept[key]
    speed = trend([e.ops_per_sec for e in rows])
    beside = drift_beside_others(key, kept)
    memory = memory_drift(rows, load)
    others = [value for other, value in variations.items() if other[0] == load and other != key]
    best_other = min(others, default=None)
    return Judgement(
        load=load,
        allocator=name,
        epochs=len(rows),
        processes=len({e.process for e in rows}),
        rss_kb=median(e.rss_kb for e in rows),
        rss_drift=memory,
        ops_per_sec=median(e.ops_per_sec for e in rows),
        throughput_drift=speed,
        beside_others=beside,
        variation=variations[key],
        best_other_variation=best_other,
        p50_ns=middle([e.p50_ns for e in rows]),
        p99_ns=middle([e.p99_ns for e in rows]),
        p999_ns=middle([e.p999_ns for e in rows]),
        max_ns=max((e.max_ns for e in rows if e.max_ns is not None), default=None),
        failures=tuple(failures(memory, speed, beside, variations[key], best_other, thresholds)),
    )


def middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def memory_drift(rows: Sequence[Epoch], load: str) -> Trend:
    """The furthest drift of the whole run and of each process that lived long enough.

    After a stop and a resume the memory begins anew: over the whole run growth would hide.
    """
    spans = [rows]
    if load == LONG:
        lives: dict[int, list[Epoch]] = {}
        for epoch in rows:
            lives.setdefault(epoch.process, []).append(epoch)
        spans += [life for life in lives.values() if len(life) >= EPOCHS_MIN]
    found = [trend([e.rss_kb for e in span]) for span in spans]
    return max(found, key=lambda t: abs(t.change))


def drift_beside_others(key: tuple[str, str], kept: Kept) -> Trend | None:
    """The drift of this one's speed over the median of the others' in the same rounds.

    Each of the others counts relative to its own median, so that it matters little who is there.
    """
    load, _ = key
    relative: dict[int, list[float]] = {}
    for other, rows in kept.items():
        if other[0] == load and other != key:
            own = median(e.ops_per_sec for e in rows)
            for epoch in rows:
                relative.setdefault(epoch.round, []).append(math.log(epoch.ops_per_sec / own))
    series = [
        e.ops_per_sec / math.exp(median(relative[e.round]))
        for e in kept[key]
        if e.round in relative
    ]
    return trend(series) if len(series) >= EPOCHS_MIN else None


def failures(
    memory: Trend,
    raw: Trend,
    beside: Trend | None,
    variation: float,
    best_other: float | None,
    most: Thresholds,
) -> Iterator[str]:
    if abs(memory.change) > most.rss_drift:
        yield f"RSS drift {percent(memory.change)} (at most ±{share(most.rss_drift)})"
    speed, how = (raw, "") if beside is None else (beside, " beside the others")
    if speed.change < -most.throughput_loss:
        limit = f"(at most -{share(most.throughput_loss)})"
        yield f"throughput drift{how} {percent(speed.change)} {limit}"
    if variation > max(most.variation, best_other or 0):
        best = "" if best_other is None else f", or the best other's {share(best_other)}"
        yield f"CV {share(variation)} (at most {share(most.variation)}{best})"


def percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def share(value: float) -> str:
    return f"{100 * value:.3g} %"
