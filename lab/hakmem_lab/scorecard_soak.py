"""What soaks say of one allocator, for the scorecard: drift of memory and speed, variation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hakmem.errors import UserError
from hakmem.measuring import journal

from hakmem_lab import soak_file
from hakmem_lab.scorecard_text import table
from hakmem_lab.soak_file import Record
from hakmem_lab.soak_judging import LONG, Judgement, Thresholds, judge


@dataclass(frozen=True)
class Soak:
    """Its long process judged, or why it could not be."""

    name: str
    judgement: Judgement | None = None
    problem: str = ""

    @property
    def figures(self) -> dict[str, float]:
        """In percent, by the kinds of milestones."""
        found = self.judgement
        if found is None:
            return {}
        speed = found.beside_others or found.throughput_drift
        figures = {
            "rss drift": 100 * found.rss_drift.change,
            "throughput drift": 100 * speed.change,
            "variation": 100 * found.variation,
        }
        if found.best_other_variation is not None:
            figures["best peer's variation"] = 100 * found.best_other_variation
        return figures


def newest() -> Path | None:
    found = sorted(journal.results_folder().glob("soak-*.csv"))
    return found[-1] if found else None


def read(path: Path, allocator: str) -> Soak:
    """A file that is no soak is refused; one that is too short is said to be."""
    epochs = soak_file.read(path).epochs
    try:
        judged = judge(epochs, Thresholds())
    except UserError as error:
        return Soak(path.name, None, error.message)
    fitting = [j for j in judged if (j.load, j.allocator) == (LONG, allocator)]
    if not fitting:
        return Soak(path.name, None, f"{allocator} has no long process in it")
    return Soak(path.name, fitting[0])


def lines(soak: Soak | None) -> list[str]:
    if soak is None:
        return ["Not measured: there is no soak (`hakmem soak --minutes 60`)."]
    found = soak.judgement
    if found is None:
        return [f"Not measured: `{soak.name}`: {soak.problem}."]
    figures = soak.figures
    beside = "beside the peers of the same rounds" if found.beside_others else "by itself"
    others = figures.get("best peer's variation")
    told = "" if others is None else f" (the steadiest peer's {others:.2f} %)"
    parts = [
        f"`{soak.name}`, one long process, {found.epochs} epochs after warm-up.",
        "",
        f"- throughput {found.ops_per_sec / 1e6:.1f} M ops/s, drift {beside} "
        f"{figures['throughput drift']:+.2f} %, CV {figures['variation']:.2f} %{told}",
        f"- resident memory {found.rss_kb / 1024:.1f} MB, drift {figures['rss drift']:+.2f} %",
    ]
    if found.p50_ns is not None:
        parts.append(
            f"- latency of single calls, medians of the epochs: p50 {found.p50_ns:.0f} ns, "
            f"p99 {found.p99_ns:.0f} ns, p99.9 {found.p999_ns:.0f} ns"
        )
    return parts


HEADS = ("soak", "build", "settings", "minutes", "load", "epochs",
         "speed", "its drift", "CV", "memory", "its drift")  # fmt: skip
TEXTS = 3


def series_table(paths: Sequence[Path], allocator: str) -> str:
    """All that was judged, long processes and repeated programs, a line each."""
    lines = [line for path in paths for line in series_of(path, allocator)]
    return table(HEADS, lines, TEXTS).rstrip() if lines else ""


def series_of(path: Path, allocator: str) -> list[list[str]]:
    record = soak_file.read(path)
    head = [f"`{path.name}`", *made_with(record, allocator)]
    try:
        judged = judge(record.epochs, Thresholds())
    except UserError as error:
        return [[*head, error.message, *[""] * (len(HEADS) - TEXTS - 1)]]
    head.append(f"{max(e.elapsed_s for e in record.epochs) / 60:.0f}")
    return [[*head, *figures_of(one)] for one in judged if one.allocator == allocator]


def made_with(record: Record, allocator: str) -> tuple[str, str]:
    """Build and settings."""
    own = record.head.get("allocators", {}).get(allocator, {})
    given = " ".join(f"`{name}={value}`" for name, value in own.get("settings", {}).items())
    return own.get("version") or "unknown", given or "none"


def figures_of(one: Judgement) -> list[str]:
    speed = one.beside_others or one.throughput_drift
    rate = one.ops_per_sec
    return [
        one.load,
        f"{one.epochs}",
        f"{rate / 1e6:.1f} M/s" if rate >= 1e5 else f"{rate:.3g}/s",
        f"{100 * speed.change:+.2f} %",
        f"{100 * one.variation:.2f} %",
        f"{one.rss_kb / 1024:.1f} MB",
        f"{100 * one.rss_drift.change:+.2f} %",
    ]
