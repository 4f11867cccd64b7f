"""`hakmem scorecard`: current figures as Markdown, of measured files alone.

A bar that lacks a figure is not measured: nothing is assumed, and nothing is left out of a group.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from statistics import median

import click
from hakmem import environment
from hakmem.allocators.peers import ALTERNATIVES, repository_root
from hakmem.destinations import output_option
from hakmem.documents import MARKDOWN, write_json, write_text, written_by
from hakmem.errors import INTERRUPTED, UserError
from hakmem.inputs import read_whole
from hakmem.measuring.statistics import Interval
from hakmem.options import InputFile, option, several
from hakmem.output import tables
from hakmem.plain_text import parse_json, some
from rich.console import Console

from hakmem_lab import shell, soak_file, suite_session
from hakmem_lab.shell import PLAN
from hakmem_lab.soak_judging import LONG, Judgement, Thresholds
from hakmem_lab.soak_judging import judge as judge_epochs
from hakmem_lab.steady_run import Calls, count_row
from hakmem_lab.suite import MODES, PRELOAD, Row, catalogue, from_table, pick, read_toml
from hakmem_lab.suite_results import WHOLE_ROW, Entry, Results, lost_rows, read
from hakmem_lab.suite_tables import own_speed

PATH = Path(__file__).parents[1] / "milestones.toml"
REACHED, MISSED, UNMEASURED = "reached", "not reached", "not measured"
SPEED, MEMORY, SPREAD, CALLS = "speed", "memory", "spread", "system calls"
# Names of a soak's figures, in percent.
VARIATION = "variation"
SOAK_KINDS = ("rss drift", "throughput drift", VARIATION)
BEST = "best"


@dataclass(frozen=True)
class Milestone:
    """One bar; see milestones.toml for the fields."""

    title: str
    kind: str
    rows: tuple[str, ...] = ()
    mode: str = PRELOAD
    against: tuple[str, ...] = ()
    at_least: float = 0.0
    at_most: float = 0.0
    within_interval: bool = False


@dataclass(frozen=True)
class Judged:
    """A bar with the worst measured value, and where that was."""

    milestone: Milestone
    state: str
    value: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Evidence:
    """All figures there are."""

    results: Results
    calls: Sequence[Calls] = ()
    soak: Mapping[str, float] = field(default_factory=dict)


def load_milestones(path: Path) -> list[Milestone]:
    entries = read_toml(path)["milestone"]
    return [read_milestone(f"{path}: milestone {i}", entry) for i, entry in enumerate(entries, 1)]


def read_milestone(where: str, entry: Mapping) -> Milestone:
    found = from_table(Milestone, where, entry)
    for name, kinds in (("kind", (*OF_ROWS, CALLS, *SOAK_KINDS)), ("mode", MODES)):
        if (value := getattr(found, name)) not in kinds:
            raise UserError(f"{where}: {name}: '{value}' is none of {', '.join(kinds)}", 2)
    wanted = "at_least" if found.kind == SPEED else "at_most"
    if not getattr(found, wanted):
        raise UserError(f"{where}: {wanted} is missing", 2)
    if found.kind in OF_ROWS and not (found.rows and found.against):
        raise UserError(f"{where}: it needs rows and against", 2)
    return found


def judge(milestone: Milestone, evidence: Evidence) -> Judged:
    if milestone.kind in OF_ROWS:
        return judge_rows(milestone, evidence.results)
    if milestone.kind == CALLS:
        return judge_calls(milestone, evidence.calls)
    return judge_soak(milestone, evidence.soak)


def rows_of(milestone: Milestone) -> list[Row]:
    rows = pick(catalogue(), milestone.rows, f"milestone '{milestone.title}'")
    return [row for row in rows if milestone.mode == PRELOAD or row.static]


def peers_of(milestone: Milestone, results: Results) -> list[str]:
    """The peers a bar names, as far as they take part; every peer for "best"."""
    there = results.peers()
    if BEST in milestone.against:
        return there
    named = (text.split(ALTERNATIVES) for text in milestone.against)
    return [found for names in named for found in [n for n in names if n in there][:1]]


# A row's value, how it is shown, and where it was; None where figures are missing.
Finding = tuple[float, str, str] | None


def speed(milestone: Milestone, _ours: Entry, theirs: Sequence[Entry]) -> Finding:
    """The lowest ratio of all peers; by the interval's upper end where that is enough."""

    def reached(ratio: Interval) -> float:
        is_enough = milestone.within_interval and ratio.high is not None
        return ratio.high if is_enough else ratio.median

    worst = min((e for e in theirs if e.ratio), key=lambda e: reached(e.ratio), default=None)
    if worst is None:
        return None
    low, high = worst.ratio.low, worst.ratio.high
    within = "" if low is None or high is None else f", interval {low:.3f} to {high:.3f}"
    return reached(worst.ratio), f"{worst.ratio.median:.3f}", f"{worst.allocator}{within}"


def memory(_milestone: Milestone, ours: Entry, theirs: Sequence[Entry]) -> Finding:
    lowest = min((e for e in theirs if e.peak_rss_kb), key=lambda e: e.peak_rss_kb, default=None)
    if lowest is None or not ours.peak_rss_kb:
        return None
    value = ours.peak_rss_kb / lowest.peak_rss_kb
    return value, f"{value:.3f}", lowest.allocator


def spread(_milestone: Milestone, ours: Entry, theirs: Sequence[Entry]) -> Finding:
    """The lower end of our interval over the median of the peers' variations."""
    if ours.cv_low is None or not theirs:
        return None
    middle = median(e.cv for e in theirs)
    value = ours.cv_low / middle if middle else (inf if ours.cv_low else 0.0)
    cv = f"CV {100 * ours.cv:.1f} % ({100 * ours.cv_low:.1f} to {100 * (ours.cv_high or 0):.1f} %)"
    return value, f"{value:.3f}", f"{cv}, the median peer's {100 * middle:.1f} %"


OF_ROWS: Mapping[str, Callable[[Milestone, Entry, Sequence[Entry]], Finding]] = {
    SPEED: speed, MEMORY: memory, SPREAD: spread,
}  # fmt: skip


def judge_rows(milestone: Milestone, results: Results) -> Judged:
    """By the worst row; a peer without figures in a row is passed over."""
    found, lacking = [], []
    for row in rows_of(milestone):
        measured = results.row(row.name, milestone.mode)
        ours = measured.entry(results.baseline) if measured else None
        peers = map(measured.entry, peers_of(milestone, results)) if measured else ()
        theirs = [e for e in peers if e is not None and e.rounds]
        one = OF_ROWS[milestone.kind](milestone, ours, theirs) if ours and ours.rounds else None
        if one is None:
            lacking.append(row.name)
        else:
            found.append((one, f"{measured.title}, {one[2]}"))
    if lacking or not found:
        few = f"no figures: {some(lacking, 4)}" if lacking else "no rows"
        return Judged(milestone, UNMEASURED, "", few)
    worse = min if milestone.kind == SPEED else max
    (value, shown, _), detail = worse(found, key=lambda one: one[0][0])
    if milestone.kind == SPEED:
        return Judged(milestone, REACHED if value >= milestone.at_least else MISSED, shown, detail)
    over = sum(one[0] > milestone.at_most for one, _ in found)
    count = f"; {over} of {len(found)} rows above the bar" if over else ""
    return Judged(milestone, MISSED if over else REACHED, shown, f"{detail}{count}")


def judge_calls(milestone: Milestone, calls: Sequence[Calls]) -> Judged:
    if not calls or any(one.rate is None for one in calls):
        notes = "; ".join(dict.fromkeys(one.note for one in calls if one.note))
        return Judged(milestone, UNMEASURED, "", notes)
    worst = max(calls, key=lambda one: one.rate)
    state = REACHED if worst.rate < milestone.at_most else MISSED
    detail = f"{worst.title}: {worst.calls:,} calls in {worst.operations:,} operations"
    return Judged(milestone, state, f"{worst.rate:.1e}" if worst.rate else "0", detail)


def judge_soak(milestone: Milestone, soak: Mapping[str, float]) -> Judged:
    value = soak.get(milestone.kind)
    if value is None:
        return Judged(milestone, UNMEASURED, "", "no soak of enough epochs")
    if milestone.kind == VARIATION:
        # Where even the steadiest peer varies more, it is the machine.
        limit = max(milestone.at_most, soak.get("best peer's variation", 0.0))
        detail = "" if limit == milestone.at_most else f"the steadiest peer's {limit:.2f} %"
        return Judged(milestone, REACHED if value <= limit else MISSED, f"{value:.2f} %", detail)
    # Of throughput only a loss counts; resident memory may not move either way.
    off = -value if milestone.kind == "throughput drift" else abs(value)
    return Judged(milestone, REACHED if off <= milestone.at_most else MISSED, f"{value:+.2f} %", "")


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
    folder: Path, soaks: Sequence[Path] = (), bars: Path = PATH
) -> tuple[Evidence, list[Judged]]:
    """All figures of the files, and what they say of the milestones; of the soaks, the first."""
    results = read(folder)
    soak = soak_figures(soaks[0], results.baseline) if soaks else {}
    evidence = Evidence(results, read_calls(folder), soak)
    return evidence, [judge(milestone, evidence) for milestone in load_milestones(bars)]


def compose(folder: Path, soaks: Sequence[Path] = (), bars: Path = PATH) -> str:
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
