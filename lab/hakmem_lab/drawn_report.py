"""How the figures of `hakmem drawn` are shown: tables, JSON, and a page with pictures."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from html import escape
from pathlib import Path

from hakmem.documents import write_text
from hakmem.errors import UserError
from hakmem.measuring.measures import PEAK_RSS, WALL
from hakmem.measuring.statistics import Interval
from hakmem.output import report, sentences, tables
from rich.console import Console
from rich.table import Table

from hakmem_lab.drawn_picture import beside_picture
from hakmem_lab.drawn_results import NEARLY, Beside, Results, SeedResult, Share
from hakmem_lab.drawn_session import Session, seeds_text

GOOD, BAD = report.GOOD_COLOUR, report.BAD_COLOUR
PICTURE_INCHES = (8.0, 3.6)
BESIDE_TITLES = ("seeds", "speed", "", "faster on", "peak RSS", "", "rest RSS", "")
CHOSEN = (
    "Chosen by other rounds: the best peer of all rounds is partly the luckiest; this peer is the "
    "fastest in the rounds that it is not compared in."
)
KEY = "A bar a seed, sorted; the line is 1."


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def ratio(value: float | None) -> str:
    return tables.ABSENT if value is None else f"{value:.2f}"


def show(console: Console, results: Results) -> None:
    tables.print_summary(console, summary(results))
    for table in (summary_table(results), worst_table(results), beside_table(results)):
        if table is not None:
            console.print(table)
    for line in problem_lines(results):
        console.print(line, soft_wrap=True)


def summary(results: Results) -> list[str]:
    """Beside the usual allocator, then beside the best of each load."""
    name, told = results.baseline, []
    usual = next((b for want in sentences.USUAL for b in results.beside if b.peer == want), None)
    if usual is not None:
        speed = replace(WALL, told="ran the loads {x} times as fast as {b}")
        judged = usual.speed.low is not None
        told.append(sentences.sentence(speed, name, {usual.peer: usual.speed}, judged))
        if usual.peak is not None:
            peak = {usual.peer: inverse(usual.peak)}
            told.append(sentences.sentence(PEAK_RSS, name, peak, judged))
    for one, less in shares(results):
        if one in (results.speed, *results.memory):
            told.append(
                f"{name}'s {one.title}: {tables.interval(one.mean, 2)} in the mean of {one.seeds} "
                f"loads, {'below' if less else 'above'} 1 is better; at least as good on "
                f"{percent(one.first)} of them."
            )
    return told


def inverse(value: Interval) -> Interval:
    """Of a mean ratio, the one of the others over the baseline."""
    if value.low is None or value.high is None:
        return Interval(1 / value.median)
    return Interval(1 / value.median, 1 / value.high, 1 / value.low)


def shares(results: Results) -> list[tuple[Share, bool]]:
    """Each with whether less is better."""
    speeds = (results.speed, results.chosen, results.net, results.net_chosen)
    found = [(one, False) for one in speeds if one is not None]
    return found + [(one, True) for one in results.memory]


def summary_table(results: Results) -> Table | None:
    found = shares(results)
    if not found:
        return None
    caption = (
        "Geometric means over the seeds, [95 % interval]. Speed: above 1 "
        f"{results.baseline} is faster; memory: below 1 it holds less. First: at least as good as "
        f"the best; nearly: within 5 % of it. {CHOSEN}"
    )
    title = f"{results.baseline} on {len(results.seeds)} drawn loads"
    return share_table(title, caption, "seeds", found)


def share_table(title: str, caption: str, many: str, found: list[tuple[Share, bool]]) -> Table:
    table = tables.plain_table(title)
    table.caption = caption
    for title in ("ratio", many, "geometric mean", "first", "nearly", "worst", "best"):
        table.add_column(title, justify="left" if title == "ratio" else "right")
    for one, less in found:
        worst, best = (one.highest, one.lowest) if less else (one.lowest, one.highest)
        table.add_row(one.title, str(one.seeds), tables.interval(one.mean), percent(one.first),
                      percent(one.nearly), ratio(worst), ratio(best))  # fmt: skip
    return table


def worst_table(results: Results) -> Table | None:
    if not results.worst:
        return None
    table = tables.plain_table("The loads furthest behind the best peer")
    table.add_column("seed", justify="right")
    table.add_column("speed", justify="right")
    table.add_column("best peer", no_wrap=True)
    table.add_column("peak RSS", justify="right")
    table.add_column("load")
    for one in results.worst:
        table.add_row(str(one.seed), ratio(one.over_best.median), one.best_peer,
                      ratio(one.peak_over_best), one.load)  # fmt: skip
    return table


def beside_table(results: Results) -> Table | None:
    name = results.baseline
    caption = (
        f"Geometric means of {name} ÷ row over the seeds, [95 % interval]; rest: after the load."
    )
    return table_beside(name, caption, BESIDE_TITLES, results.beside)


def table_beside(
    name: str, caption: str, titles: Sequence[str], rows: Sequence[Beside]
) -> Table | None:
    """Of the cells of a row as many as there are titles."""
    if not rows:
        return None
    table = tables.plain_table(f"{name} beside each")
    table.caption = caption
    columns = [("allocator", {"no_wrap": True}), *((title, {}) for title in titles)]
    cells = ([one.peer, *beside_cells(one)[: len(titles)]] for one in rows)
    tables.fill(table, columns, list(cells))
    return table


def beside_cells(one: Beside) -> list[str]:
    def shown(value: Interval | None) -> str:
        return tables.ABSENT if value is None else tables.interval(value)

    return [
        str(one.seeds), tables.interval(one.speed), one.verdict, percent(one.faster),
        shown(one.peak), one.peak_verdict, shown(one.rest), one.rest_verdict,
    ]  # fmt: skip


def problem_lines(results: Results) -> list[str]:
    return [
        f"seed {one.seed}: {name}: {why}"
        for one in results.seeds
        for name, why in one.problems.items()
    ]


def document(session: Session, results: Results) -> dict:
    return {
        "facts": session.facts,
        "served": session.served,
        "baseline": results.baseline,
        "peers": list(results.peers),
        "allocators": {a.name: a.problem or str(a) for a in session.allocators},
        "wanted": {"seeds": seeds_text(session.seeds), "rounds": session.rounds,
                   "scale": session.scale, "rest_s": session.rest_s},
        "summary": [asdict(one) for one, _ in shares(results)],
        "beside": [asdict(one) for one in results.beside],
        "worst": [one.seed for one in results.worst],
        "seeds": [asdict(one) for one in results.seeds],
    }  # fmt: skip


def write_page(path: Path, session: Session, results: Results) -> None:
    write_text(path, page(session, results))


def page(session: Session, results: Results) -> str:
    seeds = f"Seeds {seeds_text(session.seeds)}, {session.rounds} rounds. "
    seeds += f"{len(results.seeds)} of {len(session.seeds)} seeds have figures."
    return report.document(
        f"{results.baseline} on drawn loads",
        [
            f'<p class="note">{escape(seeds)}</p>',
            report.summary_list(summary(results)),
            summary_section(results),
            *picture_sections(results),
            beside_section(results),
            seeds_section(results),
            problem_section(results),
            "<h2>How it was measured</h2>",
            f"<p>{escape(method(results.baseline))}</p>",
            report.facts_table({**session.facts, **served(session)}),
        ],
    )


def picture_of_peers(session: Session, results: Results) -> str:
    if not results.beside:
        raise UserError("--picture: no peer has figures")
    # A version is a number, and then where it comes from.
    numbers = {a.name: re.match(r"\d[\d.]*", a.version) for a in session.allocators}
    names = {name: f"{name} {found[0]}" for name, found in numbers.items() if found}
    return beside_picture(results.baseline, results.beside, names)


def served(session: Session) -> dict[str, str]:
    return {f"served by {name}": said for name, said in session.served.items()}


def method(name: str) -> str:
    return (
        "A seed says what a program does: threads, live blocks, sizes, lifetimes, who frees, what "
        "is touched, which calls. Every allocator does the same work, once a round, in an order "
        f"shuffled anew each round. A ratio of speed is the median over the rounds of {name}'s "
        f"over the peer's; the best peer is that of the seed. {CHOSEN} Memory is without the "
        "program's own tables: the peak of the load, and what is resident when the load is over "
        "and the program works on with little."
    )


def summary_section(results: Results) -> str:
    rows = [
        (one.title, str(one.seeds), tables.interval(one.mean), percent(one.first),
         percent(one.nearly), *(ratio(v) for v in (one.lowest, one.highest)))
        for one, _ in shares(results)
    ]  # fmt: skip
    titles = ("ratio", "seeds", "geometric mean", "first", "within 5 %", "lowest", "highest")
    return report.plain_table(titles, rows) if rows else ""


PICTURES: tuple[tuple[str, bool, Callable[[SeedResult], float | None]], ...] = (
    ("Speed over the best peer of the seed", False,
     lambda one: one.over_best.median if one.over_best else None),
    ("Speed over the peer chosen by other rounds", False,
     lambda one: one.over_chosen.median if one.over_chosen else None),
    ("Peak RSS over the lower of mimalloc and jemalloc", True, lambda one: one.peak_over_pair),
    ("Peak RSS over the lowest peer", True, lambda one: one.peak_over_best),
    ("RSS after the rest over the lowest peer", True, lambda one: one.rest_over_best),
)  # fmt: skip


def picture_sections(results: Results) -> list[str]:
    parts = []
    for title, less, read in PICTURES:
        values = sorted(v for one in results.seeds if (v := read(one)) is not None)
        if values:
            told = "lower is better" if less else "higher is better"
            parts.append(
                f"<h2>{escape(title)} <small>({told})</small></h2>"
                f'<p class="note">{KEY}</p>'
                f'<figure class="scroll">{draw(title, values, less)}</figure>'
            )
    return parts


def draw(title: str, values: Sequence[float], less: bool) -> str:
    """The sorted ratios, good ones and bad ones in two colours, on a logarithmic scale."""
    # Slow to import, and only this needs it.
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    with rc_context(report.drawing_style(f"hakmem drawn {title}", 12)):
        figure = Figure(figsize=PICTURE_INCHES, layout="constrained")
        axes = figure.add_subplot()
        colours = [GOOD if (v <= 1 if less else v >= 1) else BAD for v in values]
        heights = [value - 1 for value in values]
        axes.bar(range(len(values)), heights, bottom=1, color=colours, width=0.8)
        axes.axhline(1, color=report.OTHER_COLOUR, linewidth=1)
        axes.axhline(1 / NEARLY if less else NEARLY, color=report.OTHER_COLOUR, linewidth=0.6,
                     linestyle=":")  # fmt: skip
        axes.set_yscale("log")
        axes.set_ylim(min(0.8, values[0] * 0.95), max(1.25, values[-1] * 1.05))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7, 8)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(-0.6, len(values) - 0.4)
        axes.set_xticks([])
        axes.set_xlabel(f"{len(values)} seeds, sorted")
        axes.set_ylabel("ratio")
        axes.grid(axis="y", color=report.LINE)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        svg = report.svg_of(figure).decode()
    return report.inlined(svg, title, f"{title}, one bar a seed")


def beside_section(results: Results) -> str:
    name = results.baseline
    if not results.beside:
        return ""
    rows = [(one.peer, *beside_cells(one)) for one in results.beside]
    return (
        f'<h2>Beside each</h2><p class="note">Geometric means of {escape(name)} ÷ row over the '
        f"seeds.</p>{report.plain_table(('allocator', *BESIDE_TITLES), rows)}"
    )


def seeds_section(results: Results) -> str:
    """Every seed, the furthest behind first; all speeds, so that a load can be found again."""
    ordered = sorted(results.seeds, key=lambda one: one.over_best.median if one.over_best else 0)
    titles = ("seed", "over best", "best peer", "by other rounds", "peak RSS", "after the rest",
              *results.peers)  # fmt: skip
    rows = []
    for one in ordered:
        middle = one.over_best.median if one.over_best else None
        each = (one.figures.get(peer) for peer in results.peers)
        rows.append(
            [
                str(one.seed),
                ratio(middle),
                one.best_peer,
                ratio(one.over_chosen.median if one.over_chosen else None),
                ratio(one.peak_over_best),
                ratio(one.rest_over_best),
                *(ratio(f.ratio.median if f and f.ratio else None) for f in each),
                one.load,
            ]
        )

    def kind(column: int, text: str) -> str:
        if column == len(titles):
            return "text"
        if column != 1 or text == tables.ABSENT:
            return ""
        return "good" if float(text) >= 1 else "bad"

    return f"<h2>Every seed</h2>{report.plain_table((*titles, 'load'), rows, kind)}"


def problem_section(results: Results) -> str:
    lines = "".join(f'<li class="bad">{escape(line)}</li>' for line in problem_lines(results))
    return f"<h2>Without figures</h2><ul>{lines}</ul>" if lines else ""


def problems_of(results: Results, name: str) -> Mapping[int, str]:
    """The seeds at which an allocator has failed."""
    return {one.seed: one.problems[name] for one in results.seeds if name in one.problems}
