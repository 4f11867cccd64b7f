"""The HTML report of a suite: heat tables with words in them, and a plot of every row."""

import re
from collections.abc import Sequence
from html import escape

from hakmem.measuring.measures import evaluate, measures_for
from hakmem.measuring.rotation import OPS_PER_SECOND
from hakmem.measuring.statistics import Interval
from hakmem.output import report, tables

from hakmem_lab.suite import GROUPS
from hakmem_lab.suite_results import (
    LOST,
    SAME,
    TOO_FEW,
    WHOLE_ROW,
    WON,
    Entry,
    Results,
    RowResult,
    lost_rows,
    read_journal,
)
from hakmem_lab.suite_session import Session
from hakmem_lab.suite_tables import MODE_TITLES, own_figure

STYLE = """
body { max-width: 90rem; }
table.heat th, table.heat td { padding: .25rem .5rem; }
table.heat td:first-child { white-space: normal; min-width: 12rem; }
table.heat td small { display: block; color: #3a4352; font-size: .75rem; }
td.won-2 { background: #bfe3cb; } td.won-1 { background: #e1f2e6; } td.same { background: #f1f3f6; }
td.lost-1 { background: #fbe0dd; font-weight: 600; }
td.lost-2 { background: #f2b8b2; font-weight: 600; }
details { margin: .4rem 0; } summary { cursor: pointer; }
details h2 { font-size: 1rem; margin-top: 1rem; }
"""
# From here on a difference is large enough for the darker colour.
STRONG_RATIO = 1.25
WORDS = {WON: "won", LOST: "lost", SAME: "no difference", TOO_FEW: "too few rounds"}


def page(session: Session, results: Results) -> str:
    title = f"hakmem bench {results.suite}"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{report.STYLE}{STYLE}</style></head><body>",
            f"<h1>{escape(results.baseline)} beside other allocators</h1>",
            f"<p>{escape(summary_line(results))}</p>",
            *totals_sections(results),
            lost_section(results),
            problems_section(results),
            *(part for group in groups_of(results) for part in group_section(results, group)),
            "<h2>Every row</h2>",
            *(row_details(session, job_index, results) for job_index in range(len(results.rows))),
            "<h2>How it was measured</h2>",
            f"<p>{escape(method(results))}</p>",
            report.facts_table(results.facts | facts_of(results)),
            "</body></html>",
            "",
        ]
    )


def summary_line(results: Results) -> str:
    state = "" if results.finished else " The run is not finished: rows without figures are empty."
    return (
        f"Suite {results.suite} ({results.title}), {results.date}, {results.rounds} rounds, "
        f"{results.seconds / 60:.1f} minutes.{state}"
    )


def method(results: Results) -> str:
    name = results.baseline
    return (
        "Every allocator runs once a round, in an order shuffled anew each round; only whole "
        "rounds count. All run the same arguments, scaled so that a run takes about the suite's "
        f"slice under {name}. A ratio is the median over the rounds of the peer's cost over "
        f"{name}'s: above 1, {name} is faster. The interval is the bootstrap 95 % interval of "
        "that median; a row is won or lost where it lies wholly on one side of 1."
    )


def facts_of(results: Results) -> dict[str, str]:
    served = {f"{name} served": said for name, said in results.served.items()}
    return {**results.allocators, **served, "seed": str(results.seed)}


def groups_of(results: Results) -> list[str]:
    there = dict.fromkeys(row.group for row in results.rows)
    return [*(g for g in GROUPS if g in there), *(g for g in there if g not in GROUPS)]


def group_section(results: Results, group: str) -> list[str]:
    """Speed and memory of a group, one table a mode."""
    parts = [f"<h2>{escape(GROUPS.get(group, group))}</h2>"]
    for mode in dict.fromkeys(row.mode for row in results.rows if row.group == group):
        rows = [r for r in results.rows if (r.group, r.mode) == (group, mode) and r.entries]
        if rows:
            parts.append(f"<h3>{escape(MODE_TITLES[mode])}</h3>")
            parts += [speed_table(results, rows), memory_table(results, rows)]
    return parts if len(parts) > 1 else []


def heat_table(results: Results, caption: str, lines: Sequence[str]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in [results.baseline, *results.peers()])
    return (
        f'<p class="note">{escape(caption)}</p><div class="scroll"><table class="heat">'
        f"<tr><th>row</th>{heads}</tr>{''.join(lines)}</table></div>"
    )


def speed_table(results: Results, rows: Sequence[RowResult]) -> str:
    name = results.baseline
    caption = (
        f"Speed: {name}'s own figure; then how many times faster {name} is than each peer "
        f"(above 1 is better), with the 95 % interval; won and lost are {name}'s."
    )
    lines = []
    for row in rows:
        ours = row.entry(name)
        own = escape(own_figure(row, ours)) if ours and ours.rounds else tables.ABSENT
        cells = [ratio_cell(row.entry(peer), lambda e: (e.ratio, e.verdict, "")) for peer in
                 results.peers()]  # fmt: skip
        own = own.replace("\n", "<small>") + ("</small>" if "\n" in own else "")
        lines.append(f"<tr><td>{escape(row.title)}</td><td>{own}</td>{''.join(cells)}</tr>")
    return heat_table(results, caption, lines)


def memory_table(results: Results, rows: Sequence[RowResult]) -> str:
    name = results.baseline
    caption = (
        f"Peak resident memory, MB (lower is better); below it the peer's over {name}'s "
        f"(above 1 is better); won and lost are {name}'s."
    )

    def shown(entry: Entry) -> tuple[Interval | None, str, str]:
        return entry.rss_ratio, entry.rss_verdict, tables.megabytes(entry.peak_rss_kb)

    lines = []
    for row in rows:
        ours = row.entry(name)
        own = tables.megabytes(ours.peak_rss_kb) if ours and ours.rounds else tables.ABSENT
        cells = [ratio_cell(row.entry(peer), shown) for peer in results.peers()]
        lines.append(f"<tr><td>{escape(row.title)}</td><td>{own}</td>{''.join(cells)}</tr>")
    return heat_table(results, caption, lines)


def ratio_cell(entry: Entry | None, read) -> str:
    """A ratio in colour, with the word that says the same."""
    if entry is None or not entry.rounds:
        return f'<td class="none">{tables.ABSENT}</td>'
    ratio, verdict, lead = read(entry)
    if ratio is None:
        return f'<td class="none">{lead or tables.ABSENT}</td>'
    word = WORDS.get(verdict, "")
    first = lead or f"{ratio.median:.2f}"
    notes = [f"{ratio.median:.2f}"] if lead else []
    if ratio.low is not None and not lead:
        notes.append(f"{ratio.low:.2f} … {ratio.high:.2f}")
    below = "".join(f"<small>{escape(note)}</small>" for note in [*notes, word])
    return f'<td class="{colour(ratio, verdict)}">{first}{below}</td>'


def colour(ratio: Interval, verdict: str) -> str:
    if verdict == WON:
        return "won-2" if ratio.median >= STRONG_RATIO else "won-1"
    if verdict == LOST:
        return "lost-2" if ratio.median <= 1 / STRONG_RATIO else "lost-1"
    return "same"


def totals_sections(results: Results) -> list[str]:
    parts = []
    for mode in dict.fromkeys(one.mode for one in results.tallies):
        rows = "".join(
            f"<tr><td>{escape(one.allocator)}</td>"
            f"<td>{'' if one.mean_ratio is None else f'{one.mean_ratio:.3f}'}</td>"
            f"<td>{one.won}</td><td>{one.lost}</td><td>{one.same}</td><td>{one.without}</td></tr>"
            for one in results.tallies
            if one.mode == mode
        )
        head = "<tr><th>peer</th><th>mean speed ratio</th><th>won</th><th>lost</th>"
        head += "<th>no difference</th><th>without verdict</th></tr>"
        parts.append(f"<h2>{escape(MODE_TITLES[mode])}, all rows</h2>")
        parts.append(f'<div class="scroll"><table>{head}{rows}</table></div>')
    return parts


def lost_section(results: Results) -> str:
    found = lost_rows(results.rows)
    if not found:
        return '<p class="good">No peer is faster beyond the noise in any row with figures.</p>'
    items = "".join(
        f"<li>{escape(row.title)} ({row.mode}): <b>{escape(entry.allocator)}</b>, "
        f"ratio {escape(tables.interval(entry.ratio))}</li>"
        for row, entry in found
    )
    return f"<h2>Rows where a peer is faster</h2><ul>{items}</ul>"


def problems_section(results: Results) -> str:
    found = {
        f"{row.name} ({row.mode}){'' if name == WHOLE_ROW else ', ' + name}": problem
        for row in results.rows
        for name, problem in row.problems().items()
    }
    return report.problem_list(found)


def row_details(session: Session, index: int, results: Results) -> str:
    """The plot and the figures of a row, folded away."""
    row, job = results.rows[index], session.jobs[index]
    _, rotation = read_journal(session, job)
    if rotation is None or not rotation.rounds_done:
        return ""
    measure = measures_for(rotation.metric)[0]
    cells = evaluate(rotation, measure, results.baseline)
    figures = own_names(report.section(measure, cells, results.baseline), job.key)
    head = f"{escape(row.title)} <small>({row.mode}: <code>{escape(row.command)}</code>)</small>"
    return f"<details><summary>{head}</summary>{figures}{figures_table(row)}</details>"


def own_names(section: str, key: str) -> str:
    """Plots of many rows in one page: the names within each are made its own."""
    mark = re.sub(r"\W+", "-", key)
    return re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{mark}-", section)


def figures_table(row: RowResult) -> str:
    """What the plot does not say in figures."""
    scale = 1e6 if row.unit == OPS_PER_SECOND.unit and row.median_figure() >= 1e6 else 1.0
    unit = f"M {row.unit}" if scale > 1 else row.unit
    titles = (f"mean, {unit}", "least", "most", "CV", "peak RSS, MB", "faults, minor/major")
    heads = "".join(f"<th>{escape(title)}</th>" for title in ("allocator", *titles))
    lines = "".join(
        f"<tr><td>{escape(e.allocator)}</td>"
        + "".join(f"<td>{value / scale:.3f}</td>" for value in (e.mean, e.min, e.max))
        + f"<td>{100 * e.cv:.1f} %</td><td>{tables.megabytes(e.peak_rss_kb)}</td>"
        f"<td>{e.minor_faults:,}/{e.major_faults:,}</td></tr>"
        for e in row.entries
        if e.rounds
    )
    return f'<div class="scroll"><table><tr>{heads}</tr>{lines}</table></div>'
