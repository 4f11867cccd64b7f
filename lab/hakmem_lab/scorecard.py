"""What the scorecard is made of: the newest results, counted system calls, soaks."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from hakmem.errors import UserError
from hakmem.measuring import journal

from hakmem_lab import scorecard_soak, steady_calls, suite_session
from hakmem_lab.milestones import PATH as MILESTONES
from hakmem_lab.milestones import Evidence, Judged, judge, load_milestones
from hakmem_lab.scorecard_soak import Soak
from hakmem_lab.scorecard_text import render
from hakmem_lab.suite_results import RESULTS, read

PREFERRED_SUITE = "full"


def newest_results() -> Path:
    """The newest finished run of the full suite; of any suite when there is none."""
    found: dict[bool, list[Path]] = {True: [], False: []}
    for path in sorted(journal.results_folder().glob(f"bench-*/{RESULTS}")):
        results = read(path.parent)
        if results.finished:
            found[results.suite == PREFERRED_SUITE].append(path.parent)
    ordered = [*found[False], *found[True]]
    if not ordered:
        raise UserError(
            f"no finished results in {journal.results_folder()}: run `hakmem bench full` first, "
            "or name a folder with --from", 2,
        )  # fmt: skip
    return ordered[-1]


def counted_calls(folder: Path, tick: Callable[[str], None]) -> None:
    """Counts system calls into the results folder, unless they are there."""
    if (folder / steady_calls.FILE).exists():
        return
    session = suite_session.load(folder)
    suite_session.require_unchanged(session)
    with suite_session.clean_environment():
        steady_calls.save(folder, steady_calls.count(session, tick))


def weigh(
    folder: Path, soaks: Sequence[Path] = (), bars: Path = MILESTONES
) -> tuple[Evidence, list[Judged], Soak | None]:
    """All figures of the files, and what they say of the milestones; of the soaks, the first."""
    results = read(folder)
    soak = scorecard_soak.read(soaks[0], results.baseline) if soaks else None
    evidence = Evidence(results, steady_calls.load(folder), soak.figures if soak else {})
    return evidence, [judge(milestone, evidence) for milestone in load_milestones(bars)], soak


def compose(folder: Path, soaks: Sequence[Path] = (), bars: Path = MILESTONES) -> str:
    """The document, from files alone."""
    evidence, judged, soak = weigh(folder, soaks, bars)
    series = scorecard_soak.series_table(soaks, evidence.results.baseline)
    return render(
        evidence, judged, [*scorecard_soak.lines(soak), *(["", series] if series else [])]
    )


def document(folder: Path, soaks: Sequence[Path] = (), bars: Path = MILESTONES) -> dict:
    """The same for other tools; the rows are in the folder's results.json."""
    evidence, judged, _ = weigh(folder, soaks, bars)
    return {
        "results": str(folder),
        "suite": evidence.results.suite,
        "soak": str(soaks[0]) if soaks else None,
        "soak_figures": dict(evidence.soak),
        "system_calls": [asdict(one) for one in evidence.calls],
        "milestones": [
            asdict(one.milestone) | {"state": one.state, "value": one.value, "detail": one.detail}
            for one in judged
        ],
    }
