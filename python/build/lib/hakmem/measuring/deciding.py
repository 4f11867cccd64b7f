"""The decision of `hakmem ab`: what paired slices of A and B allow to say, and when to stop.

Everything is about the median of the pairs' speed ratios, B over A. Its interval is that of the
sign test, so nothing is assumed about the noise. The data is looked at after the first pairs and
then after each doubling; the error allowed is shared equally among the looks (Bonferroni), so that
looking often does not make a difference out of noise.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hakmem.measuring.rotation import THROUGHPUT, Metric, Series
from hakmem.measuring.statistics import Interval, exact_median_interval
from hakmem.running.launching import Outcome

# Beyond this an estimate of the pairs needed only means "not in reasonable time".
PAIRS_TOLD_AT_MOST = 100_000


class Verdict(Enum):
    GO = "go"
    NO_GO = "no-go"
    NO_DIFFERENCE = "no difference"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Plan:
    """When the data is looked at, and how sure an answer must be.

    `min_effect` is the smallest difference that matters, as a share: 0.01 for 1 %.
    """

    first: int
    most: int
    min_effect: float
    confidence: float

    @property
    def looks(self) -> list[int]:
        """The numbers of pairs after which the data is looked at."""
        found = [min(self.first, self.most)]
        while found[-1] < self.most:
            found.append(min(2 * found[-1], self.most))
        return found

    @property
    def confidence_per_look(self) -> float:
        return 1 - (1 - self.confidence) / len(self.looks)


@dataclass(frozen=True)
class Decision:
    """A verdict on the speed of B over A; `pairs_needed` is a guess, for an undecided one."""

    verdict: Verdict
    ratio: Interval
    pairs: int
    pairs_needed: int | None = None


def decide(ratios: Sequence[float], plan: Plan) -> Decision:
    """What the speed ratios of the pairs so far, B over A, allow to say."""
    logs = [math.log(ratio) for ratio in ratios]
    found = exact_median_interval(logs, plan.confidence_per_look)
    verdict = judge(found, math.log1p(plan.min_effect))
    shown = Interval(
        *(None if v is None else math.exp(v) for v in (found.median, found.low, found.high))
    )
    needed = pairs_needed(found, len(logs), plan) if verdict is Verdict.UNDECIDED else None
    return Decision(verdict, shown, len(logs), needed)


def judge(found: Interval, least: float) -> Verdict:
    """On logarithms, so that A and B can change places: `least` is that of 1 + min_effect."""
    if found.low is None or found.high is None:
        return Verdict.UNDECIDED
    if found.low > 0 and found.median >= least:
        return Verdict.GO
    if found.high < 0 and found.median <= -least:
        return Verdict.NO_GO
    if -least < found.low and found.high < least:
        return Verdict.NO_DIFFERENCE
    return Verdict.UNDECIDED


def pairs_needed(found: Interval, pairs: int, plan: Plan) -> int | None:
    """How many pairs would decide if the median stayed: intervals shrink with the square root.

    None when that is out of reach: the median lies too close to the smallest effect that matters.
    """
    least = math.log1p(plan.min_effect)
    if found.low is None or found.high is None:
        return math.ceil(1 - math.log2(1 - plan.confidence_per_look))
    reach = max(found.high - found.median, found.median - found.low)
    distance = abs(found.median)
    wanted = distance if distance >= least else least - distance
    needed = pairs * (reach / wanted) ** 2 if wanted > 0 else math.inf
    return math.ceil(max(needed, pairs + 1)) if needed <= PAIRS_TOLD_AT_MOST else None


class MirroredOrder:
    """Rounds in twos: a random order, then its reverse, so that a steady drift cancels."""

    def __init__(self, seed: int) -> None:
        self._shuffler = random.Random(seed)
        self._next: list[str] = []

    def __call__(self, rows: list[Series]) -> list[Series]:
        by_name = {row.contender.name: row for row in rows}
        if sorted(self._next) == sorted(by_name):
            order, self._next = self._next, []
        else:
            order = sorted(by_name)
            self._shuffler.shuffle(order)
            self._next = order[::-1]
        return [by_name[name] for name in order]


@dataclass(frozen=True)
class CpuMetric(Metric):
    """Work per second of CPU time: what other processes take from the CPU is no part of it.

    Without a figure of the program's own it is the CPU time of the run.
    """

    def read(self, outcome: Outcome) -> float | None:
        if self.pattern is None:
            return outcome.cpu_s
        value = super().read(outcome)
        if value is None or outcome.cpu_s <= 0:
            return None
        return value * outcome.wall_s / outcome.cpu_s


OPS_PER_CPU_SECOND = CpuMetric(THROUGHPUT, True, "ops/CPU s")
CPU_TIME = CpuMetric(None, False, "CPU s")
