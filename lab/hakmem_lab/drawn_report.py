"""How the figures of `hakmem drawn` are shown: tables, JSON and a picture."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from hakmem.errors import UserError
from hakmem.measuring.measures import PEAK_RSS, WALL
from hakmem.measuring.statistics import Interval
from hakmem.output import report, sentences, tables
from rich.console import Console
from rich.table import Table

from hakmem_lab.drawn_results import SPEED, Beside, Results, Share
from hakmem_lab.drawn_run import Session

BESIDE_TITLES = ("seeds", "speed", "", "faster on", "peak RSS", "", "rest RSS", "")
CHOSEN = (
    "Chosen by other rounds: the best peer of all rounds is partly the luckiest; this peer is the "
    "fastest in the rounds that it is not compared in."
)


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def ratio(value: float | None) -> str:
    return tables.ABSENT if value is None else f"{value:.2f}"


def show(console: Console, results: Results) -> None:
    tables.print_summary(console, summary(results))
    name = results.baseline
    of_rest = (
        f"Geometric means of {name} ÷ row over the seeds, [95 % interval]; rest: after the load."
    )
    beside = table_beside(name, of_rest, BESIDE_TITLES, results.beside)
    for table in (summary_table(results), worst_table(results), beside):
        if table is not None:
            console.print(table)
    for one in results.seeds:
        tables.print_problems(console, one.problems, f"seed {one.seed}: ")


def summary(results: Results) -> list[str]:
    """Beside the usual allocator, then beside the best of each load."""
    name, told = results.baseline, []
    usual = next((b for want in sentences.USUAL for b in results.beside if b.peer == want), None)
    if usual is not None:
        speed = replace(WALL, told="ran the loads {x} times as fast as {b}", slower="")
        judged = usual.speed.low is not None
        told.append(sentences.sentence(speed, name, {usual.peer: usual.speed}, judged))
        if usual.peak is not None:
            peak = {usual.peer: usual.peak.inverse}
            told.append(sentences.sentence(PEAK_RSS, name, peak, judged))
    for one in results.shares.values():
        if one.title == SPEED or one.less:
            told.append(
                f"{name}'s {one.title}: {tables.interval(one.mean, 2)} in the mean of {one.seeds} "
                f"loads, {'below' if one.less else 'above'} 1 is better; at least as good on "
                f"{percent(one.first)} of them."
            )
    return told


def summary_table(results: Results) -> Table | None:
    if not results.shares:
        return None
    caption = (
        "Geometric means over the seeds, [95 % interval]. Speed: above 1 "
        f"{results.baseline} is faster; memory: below 1 it holds less. First: at least as good as "
        f"the best; nearly: within 5 % of it. {CHOSEN}"
    )
    title = f"{results.baseline} on {len(results.seeds)} drawn loads"
    return share_table(title, caption, "seeds", results.shares.values())


def share_table(title: str, caption: str, many: str, found: Iterable[Share]) -> Table:
    heads = ("ratio", many, "geometric mean", "first", "nearly", "worst", "best")
    rows = []
    for one in found:
        ends = (one.highest, one.lowest) if one.less else (one.lowest, one.highest)
        shares = percent(one.first), percent(one.nearly)
        rows.append([one.title, str(one.seeds), tables.interval(one.mean), *shares,
                     *map(ratio, ends)])  # fmt: skip
    return tables.figures_table(title, heads, rows, heads[:1], caption)


def worst_table(results: Results) -> Table | None:
    if not results.worst:
        return None
    heads = ("seed", "speed", "best peer", "peak RSS", "load")
    rows = [
        [str(one.seed), ratio(one.over_best.median), one.best_peer, ratio(one.peak_over_best),
         one.load] for one in results.worst
    ]  # fmt: skip
    title = "The loads furthest behind the best peer"
    return tables.figures_table(title, heads, rows, ("best peer", "load"))


def table_beside(
    name: str, caption: str, titles: Sequence[str], rows: Sequence[Beside]
) -> Table | None:
    """Of the cells of a row as many as there are titles."""
    if not rows:
        return None
    heads = ("allocator", *titles)
    cells = ([one.peer, *beside_cells(one)[: len(titles)]] for one in rows)
    return tables.figures_table(f"{name} beside each", heads, cells, heads, caption)


def beside_cells(one: Beside) -> list[str]:
    def shown(value: Interval | None) -> str:
        return tables.ABSENT if value is None else tables.interval(value)

    return [
        str(one.seeds), tables.interval(one.speed), one.verdict, percent(one.faster),
        shown(one.peak), one.peak_verdict, shown(one.rest), one.rest_verdict,
    ]  # fmt: skip


def document(session: Session, results: Results) -> dict:
    return {
        "facts": session.facts,
        "served": session.served,
        "baseline": results.baseline,
        "peers": list(results.peers),
        "allocators": {a.name: str(a) for a in session.allocators},
        "wanted": {"seeds": session.facts["seeds"], "rounds": session.rounds,
                   "scale": session.scale, "rest_s": session.rest_s},
        "summary": [asdict(one) for one in results.shares.values()],
        "beside": [asdict(one) for one in results.beside],
        "worst": [one.seed for one in results.worst],
        "seeds": [asdict(one) for one in results.seeds],
    }  # fmt: skip


def picture_of_peers(session: Session, results: Results, of_rest: str = "") -> str:
    if not results.beside:
        raise UserError("--picture: no peer has figures")
    # A version is a number, and then where it comes from.
    numbers = {a.name: re.match(r"\d[\d.]*", a.version) for a in session.allocators}
    names = {name: f"{name} {found[0]}" for name, found in numbers.items() if found}
    return beside_picture(results.baseline, results.beside, names, of_rest)


PANEL_INCHES, ROW_INCHES, FRAME_INCHES = 4.2, 0.3, 1.1


def beside_picture(
    baseline: str, rows: Sequence[Beside], names: dict[str, str], of_rest: str = ""
) -> str:
    """An SVG with two panels, a line a peer: geometric means with their 95 % intervals; and a third
    where memory after a rest has a name and figures.

    All say by how much the baseline is better, to the right: speed as its speed over the peer's,
    memory as the peer's over its own.
    """
    ordered = sorted(rows, key=lambda row: row.speed.median, reverse=True)
    shown = {
        f"speed of {baseline} ÷ speed of the peer": [row.speed for row in ordered],
        f"peak memory of the peer ÷ {baseline}'s": inverses(row.peak for row in ordered),
    }
    if of_rest and any(row.rest for row in ordered):
        title = f"{of_rest} of the peer ÷ {baseline}'s"
        shown[title] = inverses(row.rest for row in ordered)
    size = (PANEL_INCHES * len(shown), FRAME_INCHES + ROW_INCHES * len(ordered))
    with report.new_figure(size, f"{baseline} beside each") as figure:
        panels = figure.subplots(1, len(shown), sharey=True)
        for panel, (title, values) in zip(panels, shown.items(), strict=True):
            draw(panel, title, values)
        panels[0].set_yticks(range(len(ordered)), [names.get(r.peer, r.peer) for r in ordered])
        panels[0].invert_yaxis()
        return report.picture_of(figure, "svg").decode()


def inverses(ratios: Iterable[Interval | None]) -> list[Interval | None]:
    return [ratio.inverse if ratio else None for ratio in ratios]


def draw(axes: object, title: str, values: Sequence[Interval | None]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for place, value in enumerate(values):
        if value is None:
            continue
        colour = report.MAIN_COLOUR if value.median >= 1 else report.OTHER_COLOUR
        axes.plot(value.median, place, "o", color=colour)
        if value.low is not None:
            axes.plot([value.low, value.high], [place, place], color=colour, linewidth=2)
        axes.annotate(f"{value.median:.2f}", (value.high or value.median, place), (6, -3.5),
                      textcoords="offset points", fontsize=9)  # fmt: skip
    axes.axvline(1, color=report.OTHER_COLOUR, linewidth=1)
    axes.set_xscale("log")
    axes.margins(x=0.15, y=0.1)
    axes.set_title(title, fontsize=10, loc="left")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    report.grid(axes, "x", "top", "right", "left")
    axes.tick_params(axis="y", length=0)
