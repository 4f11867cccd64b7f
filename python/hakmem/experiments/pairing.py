"""What the commands share that run one program in rounds and print a row an allocator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.console import Console

from hakmem.allocators.peers import Allocator
from hakmem.errors import UserError
from hakmem.measuring.rotation import Contender, Metric, Rotation, run_rotation
from hakmem.measuring.summary import Row
from hakmem.options import INTERRUPTED
from hakmem.output import sentences, tables
from hakmem.plain_text import with_last_words
from hakmem.running import interruption
from hakmem.running.proof import FAILED, NOT_SERVED, hakmem_served


def prove(
    chosen: Sequence[Allocator],
    program: Sequence[str],
    notes: list[str] | None = None,
    limit_s: float = 0.0,
) -> dict[str, str]:
    """What hakmem's own counter says, where the library of that name takes part.

    Warnings of hakmem, which nobody sees in the measured runs, go to `notes`.
    """
    for allocator in chosen:
        if allocator.name == "hakmem" and allocator.library and allocator.usable:
            served = hakmem_served(program, allocator.library, None, limit_s)
            if served.is_idle:
                raise UserError(f"{served.why_idle}: nothing to compare")
            if notes is not None:
                notes += served.warnings
            return {"served by hakmem": str(served)}
    return {}


def require_figures(rotation: Rotation) -> None:
    """One line in place of a report in which nobody has a figure."""
    if not rotation.running() and not rotation.interrupted:
        problems = {
            name: with_last_words(series.problem, series.last_words)
            for name, series in rotation.series.items()
        }
        raise UserError(sentences.of_nothing(problems))


def require_served(served: Mapping[str, str], what: str) -> None:
    """Fails where prove() has not found that hakmem served."""
    if why := not_served(served, what):
        raise UserError(why)


def not_served(served: Mapping[str, str], what: str) -> str:
    """One line where prove() has not found that hakmem served, else nothing."""
    for said in served.values():
        if said.startswith(NOT_SERVED):
            return f"hakmem did not serve {what}: its figures are another malloc's"
        if said.startswith(FAILED):
            how = said.removeprefix(f"{FAILED} (").removesuffix(")")
            return f"under hakmem {what} failed: {how}"
    return ""


def verdicts(served: Mapping[str, str], what: str, told: Sequence[str]) -> Sequence[str]:
    """What the figures tell of hakmem, where they are its own."""
    why = not_served(served, what)
    return [f"{why}."] if why else told


def measure(
    console: Console,
    rows: Sequence[Contender],
    metric: Metric,
    pairs: int,
    seed: int,
    cpus: str | None,
) -> Rotation:
    """The rotation, with a line that says how far it is."""
    steps = pairs * len(rows)
    with interruption.only_once(), tables.progress_line(console, "runs", steps) as progress:
        return run_rotation(
            rows,
            metric,
            pairs,
            seed,
            cpus,
            lambda name: progress.update(progress.task_ids[0], advance=1, now=name),
        )


def document(
    facts: Mapping[str, str],
    metric: Metric,
    baseline: str,
    rotation: Rotation,
    summary: Sequence[Row],
) -> dict:
    """All slices and the summary, to be read by other tools."""
    slices = {
        name: [
            {
                "value": value,
                "wall_s": o.wall_s,
                "cpu_s": o.cpu_s,
                "peak_rss_kb": o.peak_rss_kb,
                "minor_faults": o.minor_faults,
                "major_faults": o.major_faults,
            }
            for value, o in zip(series.values, series.outcomes)
        ]
        for name, series in rotation.series.items()
    }
    return {
        "facts": dict(facts),
        "metric": {"unit": metric.unit, "higher_is_better": metric.higher_is_better},
        "baseline": baseline,
        "seed": rotation.seed,
        "rounds": rotation.rounds_done,
        "summary": [asdict(row) for row in summary],
        "slices": slices,
    }


def show_rows(
    console: Console,
    summary: Sequence[Row],
    metric: Metric,
    baseline: str,
    told: Sequence[str],
) -> None:
    """What was found in sentences, then row by row, then why some have no figures."""
    tables.print_summary(console, told)
    console.print(tables.comparison_table(summary, metric, baseline, console.width))
    for row in summary:
        if row.problem:
            console.print(f"{row.name}: {row.problem}", soft_wrap=True)


def finish(console: Console, rotation: Rotation, wanted: int) -> None:
    """Says what failed contenders last said, and ends with status 1 where any has failed."""
    for series in rotation.series.values():
        if series.problem and series.last_words:
            told = f"{series.contender.name}: {series.problem}"
            console.print(with_last_words(told, series.last_words), soft_wrap=True)
    if rotation.interrupted:
        console.print(f"interrupted after {rotation.rounds_done} of {wanted} rounds")
        raise SystemExit(INTERRUPTED)
    if any(series.problem for series in rotation.series.values()):
        raise SystemExit(1)
