"""`hakmem scorecard`: current figures as Markdown, of measured files alone."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from hakmem import environment
from hakmem.allocators.peers import repository_root
from hakmem.destinations import output_option
from hakmem.documents import MARKDOWN, write_json, write_text, written_by
from hakmem.errors import INTERRUPTED, UserError
from hakmem.inputs import read_whole
from hakmem.options import InputFile, option, several
from hakmem.output import tables
from hakmem.plain_text import parse_json
from rich.console import Console

from hakmem_lab import shell, soak_file, suite_session
from hakmem_lab.milestones import PATH as MILESTONES
from hakmem_lab.milestones import REACHED, Evidence, Judged, judge, load_milestones
from hakmem_lab.shell import PLAN
from hakmem_lab.soak_judging import LONG, Judgement, Thresholds
from hakmem_lab.soak_judging import judge as judge_epochs
from hakmem_lab.steady_run import Calls, count_row
from hakmem_lab.suite import PRELOAD
from hakmem_lab.suite_results import WHOLE_ROW, Results, lost_rows, read
from hakmem_lab.suite_tables import own_speed

CALLS_FILE = "system-calls.json"
# Long enough to tell one call in a hundred million operations.
CALLS_S = 15.0
FOLDERS = re.compile(r"(?<![\w/])(?:/[\w.+~-]+)+/(?=[\w.])")
SOAK_HEADS = ("soak", "build", "settings", "minutes", "load", "epochs", "speed", "its drift", "CV",
              "memory", "its drift", "p50, p99, p99.9 of a call, ns")  # fmt: skip
DEFAULT_OUT = "docs/scorecard.md"


@click.command()
@option(
    "--from folder",
    "Results of `hakmem bench`.",
    kind=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    metavar="FOLDER",
)
@several(
    "--soak soaks",
    "A soak's figures. Of several, milestones are judged by the first.",
    "CSV",
    InputFile(),
)
@output_option("--out", "out", text=f"The document (default: {DEFAULT_OUT}).", kind=MARKDOWN)
def scorecard(
    folder: Path,
    soaks: tuple[Path, ...],
    out: Path | None,
) -> None:
    """Write the scorecard: figures beside peers, milestones, system calls, memory, drift.

    Nothing is invented: what no file has a figure for says so. The same files give the same text.
    """
    console = tables.make_console()
    if (folder / PLAN).exists():
        count_calls(console, folder)
    target = out or repository_root() / DEFAULT_OUT
    write_text(target, compose(folder, soaks))
    console.print(f"wrote {target}", soft_wrap=True)


def count_calls(console: Console, folder: Path) -> None:
    """Counts system calls of the steady rows into the results folder, unless they are there."""
    if (folder / CALLS_FILE).exists():
        return
    session = suite_session.Session.load(folder)
    hakmem = next((a for a in session.allocators if a.name == "hakmem"), None)
    jobs = [j for j in session.jobs if j.row.steady and j.mode == PRELOAD and not j.problem]
    found = []
    try:
        with shell.clean_environment(), console.status("counting system calls") as status:
            for job in jobs if hakmem else ():
                status.update(f"counting system calls: {job.row.name}")
                found.append(count_row(job.row, hakmem, CALLS_S))
    except KeyboardInterrupt:
        console.print("interrupted while counting system calls")
        raise SystemExit(INTERRUPTED) from None
    write_json(folder / CALLS_FILE, "scorecard", {"rows": [asdict(one) for one in found]})


def read_calls(folder: Path) -> list[Calls]:
    path = folder / CALLS_FILE
    if not path.exists():
        return []
    try:
        return [Calls(**entry) for entry in parse_json(read_whole(path))["rows"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not readable: {error}", 2) from error


def soak_judgements(path: Path, allocator: str) -> list[Judgement]:
    """Of its long process and repeated programs; a UserError says why there are none."""
    judged = judge_epochs(soak_file.read(path).epochs, Thresholds())
    return [one for one in judged if one.allocator == allocator]


def soak_figures(path: Path, allocator: str) -> dict[str, float]:
    """In percent, by the kinds of milestones; empty where it is too short."""
    try:
        long = [one for one in soak_judgements(path, allocator) if one.load == LONG]
    except UserError:
        return {}
    if not long:
        return {}
    speed = long[0].beside_others or long[0].throughput_drift
    figures = {
        "rss drift": 100 * long[0].rss_drift.change,
        "throughput drift": 100 * speed.change,
        "variation": 100 * long[0].variation,
    }
    best = long[0].best_other_variation
    return figures if best is None else figures | {"best peer's variation": 100 * best}


def weigh(
    folder: Path, soaks: Sequence[Path] = (), bars: Path = MILESTONES
) -> tuple[Evidence, list[Judged]]:
    """All figures of the files, and what they say of the milestones; of the soaks, the first."""
    results = read(folder)
    soak = soak_figures(soaks[0], results.baseline) if soaks else {}
    evidence = Evidence(results, read_calls(folder), soak)
    return evidence, [judge(milestone, evidence) for milestone in load_milestones(bars)]


def compose(folder: Path, soaks: Sequence[Path] = (), bars: Path = MILESTONES) -> str:
    evidence, judged = weigh(folder, soaks, bars)
    results = evidence.results
    state = "" if results.finished else " **The run was stopped: it is not complete.**"
    parts = [
        f"# Scorecard\n\n{written_by('scorecard')}\n\nMeasured {results.date}, suite "
        f"`{results.suite}`, {results.rounds} rounds, {results.seconds / 60:.0f} minutes.{state}\n",
        milestones_part(judged),
        lost_part(results),
        totals_part(results),
        rows_part(results),
        calls_part(evidence.calls),
        soak_part(soaks, results.baseline),
        problems_part(results),
        repeat_part(results),
    ]
    return "\n".join(part for part in parts if part)


def table(heads: Sequence[str], lines: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table; the first columns are text, the others are figures."""
    rule = ["---"] * texts + ["---:"] * (len(heads) - texts)
    return "\n".join(f"| {' | '.join(map(clean, line))} |" for line in [heads, rule, *lines]) + "\n"


def clean(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def milestones_part(judged: Sequence[Judged]) -> str:
    lines = [
        (one.milestone.title, one.state if one.state == REACHED else f"**{one.state}**", one.value,
         one.detail)
        for one in judged
    ]  # fmt: skip
    reached = sum(one.state == REACHED for one in judged)
    return (
        f"## Milestones\n\n{reached} of {len(judged)} reached. The value is the worst of the rows "
        "and peers that the milestone names.\n\n"
        + table(("milestone", "state", "measured", "where, or why not"), lines, 4)
    )


def lost_part(results: Results) -> str:
    lines = [
        (row.title, row.mode, entry.allocator, tables.interval(entry.ratio))
        for row, entry in lost_rows(results.rows)
    ]
    heads = ("row", "mode", "peer", "ratio, 95 % interval")
    told = "Nowhere beyond the noise, in the rows with figures.\n"
    return f"## Where a peer is faster\n\n{table(heads, lines, 3) if lines else told}"


def totals_part(results: Results) -> str:
    lines = [(one.allocator, one.mode, *one.cells(2)) for one in results.tallies]
    heads = ("peer", "mode", "mean ratio", "won", "lost", "no difference", "without verdict")
    return (
        f"## Over all rows\n\nGeometric mean of {results.baseline}'s speed over each peer's, and "
        f"rows by verdict.\n\n{table(heads, lines, 2)}"
    )


def rows_part(results: Results) -> str:
    """A line a row: the own figures, and the best peer's beside them."""
    lines = []
    for row in results.rows:
        ours = row.entry(results.baseline)
        if ours is None or not ours.rounds:
            continue
        theirs = [e for name in results.peers() if (e := row.entry(name)) and e.ratio]
        best = min(theirs, key=lambda e: e.ratio.median, default=None)
        lowest = min((e.peak_rss_kb for e in theirs if e.peak_rss_kb), default=0)
        beside = f"{best.ratio.median:.2f} ({best.allocator})" if best else tables.ABSENT
        peak = f"{ours.peak_rss_kb / lowest:.2f}" if lowest else tables.ABSENT
        lines.append((row.title, row.mode, own_speed(row, ours), f"{100 * ours.cv:.1f} %", beside,
                      tables.megabytes(ours.peak_rss_kb), peak))  # fmt: skip
    heads = ("row", "mode", "speed", "CV", "÷ the best peer's", "peak RSS, MB", "÷ the lowest")
    note = f"{results.baseline}: operations a second, or seconds of a run where it says s."
    return f"## Every row\n\n{note}\n\n{table(heads, lines, 2)}" if lines else ""


def calls_part(calls: Sequence[Calls]) -> str:
    heading = "## System calls per operation\n\n"
    if not calls:
        return f"{heading}Not measured.\n"
    lines = [
        (one.title, one.note or f"{one.rate:.1e}", f"{one.calls or 0:,}", f"{one.operations:,}")
        for one in calls
    ]
    note = "Of mmap and madvise, in the second half of a long run, by hakmem's own counters."
    return f"{heading}{note}\n\n{table(('row', 'a call', 'calls', 'operations'), lines)}"


def soak_part(paths: Sequence[Path], allocator: str) -> str:
    """All that was judged, long processes and repeated programs, a line each."""
    told = "Not measured: there is no soak (`hakmem soak --minutes 60`).\n"
    lines = [line for path in paths for line in soak_lines(path, allocator)]
    return f"## Over time\n\n{table(SOAK_HEADS, lines, 3) if paths else told}"


def soak_lines(path: Path, allocator: str) -> list[list[str]]:
    record = soak_file.read(path)
    own = record.head.get("allocators", {}).get(allocator, {})
    given = " ".join(f"`{name}={value}`" for name, value in own.get("settings", {}).items())
    head = [f"`{path.name}`", own.get("version") or "unknown", given or "none"]
    try:
        judged = soak_judgements(path, allocator)
    except UserError as error:
        return [[*head, error.message, *[""] * (len(SOAK_HEADS) - 4)]]
    head.append(f"{max(e.elapsed_s for e in record.epochs) / 60:.0f}")
    return [[*head, *figures_of(one)] for one in judged]


def figures_of(one: Judgement) -> list[str]:
    speed, rate = one.beside_others or one.throughput_drift, one.ops_per_sec
    calls = (one.p50_ns, one.p99_ns, one.p999_ns)
    return [
        one.load,
        f"{one.epochs}",
        f"{rate / 1e6:.1f} M/s" if rate >= 1e5 else f"{rate:.3g}/s",
        f"{100 * speed.change:+.2f} %",
        f"{100 * one.variation:.2f} %",
        f"{one.rss_kb / 1024:.1f} MB",
        f"{100 * one.rss_drift.change:+.2f} %",
        "" if one.p50_ns is None else ", ".join(f"{value:.0f}" for value in calls),
    ]


def problems_part(results: Results) -> str:
    lines = [
        f"- {row.title} ({row.mode}){'' if name == WHOLE_ROW else f', {name}'}: "
        f"{without_folders(problem)}"
        for row in results.rows
        for name, problem in row.problems().items()
    ]
    return "\n".join(["## Without figures", "", *lines, ""]) if lines else ""


def without_folders(text: str) -> str:
    """Where files lie on the machine that measured tells nobody anything."""
    return clean(FOLDERS.sub("", text))


def repeat_part(results: Results) -> str:
    kept = {name: f for name, f in results.facts.items() if name not in environment.OF_THE_RUN}
    facts = kept | results.versions
    proved = all(row.served.startswith("yes") for row in results.rows if row.rounds)
    served = f" {results.baseline}'s own counters showed that it served every row with figures."
    return (
        f"## Where and how\n\n{table(('', ''), [[*one] for one in facts.items()], 2)}\n"
        "Each round runs every allocator once, in a new order; ratios are of the pairs of a round, "
        f"above 1 {results.baseline} is faster. All programs run in an environment without "
        f"settings of allocators, but for those named above.{served if proved else ''}\n\n"
        "To repeat it, on an otherwise idle machine: `hakmem peers build`, "
        f"`hakmem bench {results.suite} --seed {results.seed}`, `hakmem soak`.\n"
    )
