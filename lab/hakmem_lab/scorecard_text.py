"""The scorecard as Markdown. The same files give the same text: nothing is measured here."""

import re
from collections.abc import Iterable, Sequence

from hakmem.measuring.statistics import Interval
from hakmem.output import tables

from hakmem_lab.milestones import REACHED, Evidence, Judged
from hakmem_lab.steady_calls import StepCalls, per_operation
from hakmem_lab.suite import GROUPS, PRELOAD, STATIC
from hakmem_lab.suite_results import LOST, SAME, TOO_FEW, WHOLE_ROW, Results, RowResult, lost_rows
from hakmem_lab.suite_tables import own_speed

FOLDERS = re.compile(r"(?<![\w/])(?:/[\w.+~-]+)+/(?=[\w.])")
NOT_MEASURED = "not measured"
MODE_TITLES = {
    PRELOAD: "Speed: one binary under LD_PRELOAD",
    STATIC: "Speed: separate binaries, the allocator linked in",
}
INTRODUCTION = """\
# Scorecard

<!-- Written by `hakmem scorecard`: do not edit. -->

"""
SPEED_NOTE = """\
{baseline}: operations a second, or seconds of a run where it says s; CV over the rounds. Peers: how
many times faster {baseline} is (median of the pairs; above 1 it is faster). **Bold**: the peer is
faster, the whole 95 % interval is on its side. ~: no difference seen. ?: too few rounds to say.
"""
MEMORY_NOTE = """\
Peak resident memory in MB, medians; lower is better. **Bold**: the peer holds less, beyond the
noise. ~: no difference seen.
"""


def render(evidence: Evidence, judged: Sequence[Judged], soak_lines: Sequence[str]) -> str:
    results = evidence.results
    parts = [
        INTRODUCTION + head(results),
        milestones_part(judged),
        lost_part(results),
        totals_part(results),
    ]
    modes = dict.fromkeys(row.mode for row in results.rows)
    parts += [speed_part(results, mode) for mode in modes]
    parts += [
        memory_part(results),
        calls_part(evidence.calls),
        "\n".join(["## Over time", "", *soak_lines, ""]),
        problems_part(results),
        repeat_part(results),
    ]
    return "\n".join(part for part in parts if part)


def head(results: Results) -> str:
    state = "" if results.finished else " **The run was stopped: it is not complete.**"
    return (
        f"Measured {results.date}, suite `{results.suite}`, {results.rounds} rounds, "
        f"{results.seconds / 60:.0f} minutes.{state}\n"
    )


def table(heads: Sequence[str], lines: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table; the first columns are text, the others are figures."""
    rule = ["---"] * texts + ["---:"] * (len(heads) - texts)
    return "\n".join(f"| {' | '.join(map(clean, line))} |" for line in [heads, rule, *lines]) + "\n"


def clean(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def milestones_part(judged: Sequence[Judged]) -> str:
    lines = [
        (
            one.milestone.title,
            one.state if one.state == REACHED else f"**{one.state}**",
            one.value,
            one.detail,
        )
        for one in judged
    ]
    heads = ("milestone", "state", "measured", "where, or why not")
    reached = sum(one.state == REACHED for one in judged)
    return (
        f"## Milestones\n\n{reached} of {len(judged)} reached. The value is the worst of the rows "
        f"and peers that the milestone names.\n\n{table(heads, lines, len(heads))}"
    )


def lost_part(results: Results) -> str:
    found = lost_rows(results.rows)
    if not found:
        return "## Where a peer is faster\n\nNowhere beyond the noise, in the rows with figures.\n"
    lines = [
        (row.title, row.mode, entry.allocator, spread(entry.ratio), percent(entry.ratio.median))
        for row, entry in found
    ]
    heads = ("row", "mode", "peer", "ratio, 95 % interval", "the peer is faster by")
    return f"## Where a peer is faster\n\n{table(heads, lines, 3)}"


def percent(ratio: float) -> str:
    return f"{100 * (1 / ratio - 1):.0f} %"


def spread(ratio: Interval) -> str:
    return tables.interval(ratio).replace("[", "(").replace("]", ")")


def totals_part(results: Results) -> str:
    lines = [
        (
            one.allocator,
            one.mode,
            tables.ABSENT if one.mean_ratio is None else f"{one.mean_ratio:.2f}",
            *map(str, (one.won, one.lost, one.same, one.without)),
        )
        for one in results.tallies
    ]
    heads = ("peer", "mode", "mean ratio", "won", "lost", "no difference", "without verdict")
    return (
        f"## Over all rows\n\nGeometric mean of {results.baseline}'s speed over each peer's, and "
        f"rows by verdict.\n\n{table(heads, lines, 2)}"
    )


def groups(rows: Sequence[RowResult]) -> list[str]:
    there = dict.fromkeys(row.group for row in rows)
    return [*(g for g in GROUPS if g in there), *(g for g in there if g not in GROUPS)]


def speed_part(results: Results, mode: str) -> str:
    rows = [row for row in results.rows if row.mode == mode and row.rounds]
    if not rows:
        return ""
    parts = [f"## {MODE_TITLES[mode]}\n", SPEED_NOTE.format(baseline=results.baseline)]
    for group in groups(rows):
        lines = [speed_line(results, row) for row in rows if row.group == group]
        heads = ("row", results.baseline, "CV", *results.peers())
        parts.append(f"### {GROUPS.get(group, group)}\n\n{table(heads, lines)}")
    return "\n".join(parts)


def speed_line(results: Results, row: RowResult) -> list[str]:
    ours = row.entry(results.baseline)
    measured = ours is not None and bool(ours.rounds)
    own = [own_speed(row, ours), f"{100 * ours.cv:.1f} %"] if measured else [tables.ABSENT] * 2
    entries = [row.entry(name) for name in results.peers()]
    return [row.title, *own, *(marked(e.ratio, e.verdict) if e else "-" for e in entries)]


def marked(ratio: Interval | None, verdict: str) -> str:
    if ratio is None:
        return tables.ABSENT
    return emphasised(f"{ratio.median:.2f}", verdict)


def emphasised(text: str, verdict: str) -> str:
    if verdict == LOST:
        return f"**{text}**"
    return text + {SAME: " ~", TOO_FEW: " ?"}.get(verdict, "")


def memory_part(results: Results) -> str:
    rows = [row for row in results.rows if row.mode == PRELOAD and row.rounds]
    if not rows:
        return ""
    names = [results.baseline, *results.peers()]
    lines = []
    for row in rows:
        entries = [row.entry(name) for name in names]
        shown = [
            emphasised(tables.megabytes(e.peak_rss_kb), e.rss_verdict)
            if e and e.rounds
            else tables.ABSENT
            for e in entries
        ]
        lines.append([row.title, *shown])
    return f"## Peak RSS\n\n{MEMORY_NOTE}\n{table(['row', *names], lines)}"


def calls_part(calls: Sequence[StepCalls]) -> str:
    if not calls:
        return f"## System calls per operation\n\n{NOT_MEASURED.capitalize()}.\n"
    names = list(dict.fromkeys(one.allocator for one in calls))
    known = {(one.row, one.allocator): one for one in calls}
    titles = {one.row: one.title for one in calls}
    lines = [
        [title, *(calls_cell(known.get((row, name))) for name in names)]
        for row, title in titles.items()
    ]
    note = (
        "What a longer run makes more than a shorter one, over its additional operations, counted "
        "by strace; in brackets the calls."
    )
    return f"## System calls per operation\n\n{note}\n\n{table(['row', *names], lines)}"


def calls_cell(one: StepCalls | None) -> str:
    rate = per_operation(one) if one is not None else None
    if one is None or rate is None:
        return one.note if one is not None and one.note else tables.ABSENT
    more = max(0, one.long_calls - one.short_calls)
    return f"{rate:.1e} ({more:,})" if more else "0"


def problems_part(results: Results) -> str:
    lines = [
        f"- {row.title} ({row.mode}){who(name)}: {without_folders(problem)}"
        for row in results.rows
        for name, problem in row.problems().items()
    ]
    return "\n".join(["## Without figures", "", *lines, ""]) if lines else ""


def who(name: str) -> str:
    return "" if name == WHOLE_ROW else f", {name}"


def without_folders(text: str) -> str:
    """Where files lie on the machine that measured tells nobody anything."""
    return clean(FOLDERS.sub("", text))


def repeat_part(results: Results) -> str:
    facts = results.facts | results.versions
    lines = [[name, said] for name, said in facts.items()]
    served = f" {results.baseline}'s own counters showed that it served every row with figures."
    body = table(("", ""), lines, 2)
    return (
        f"## Where and how\n\n{body}\nEach round runs every allocator once, in a new order; "
        "ratios are of the pairs of a round. All programs run in an environment without settings "
        f"of allocators, but for those named above.{served if proved(results) else ''}\n\n"
        f"To repeat it, on an otherwise idle machine:\n\n"
        "    .venv/bin/hakmem peers build\n"
        f"    .venv/bin/hakmem bench {results.suite} --seed {results.seed}\n"
        "    .venv/bin/hakmem soak --minutes 60\n"
        "    .venv/bin/hakmem scorecard\n"
    )


def proved(results: Results) -> bool:
    return all(row.served.startswith("yes") for row in results.rows if row.rounds)
