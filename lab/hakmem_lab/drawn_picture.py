"""One picture of all peers: how fast, and how much memory, beside the baseline on drawn loads."""

from __future__ import annotations

from collections.abc import Sequence

from hakmem.measuring.statistics import Interval
from hakmem.output import report

from hakmem_lab.drawn_results import Beside

WIDTH_INCHES, ROW_INCHES, FRAME_INCHES = 8.4, 0.3, 1.1


def beside_picture(baseline: str, rows: Sequence[Beside], names: dict[str, str]) -> str:
    """An SVG with two panels, a line a peer: geometric means with their 95 % intervals.

    Both say by how much the baseline is better, to the right: speed as its speed over the peer's,
    memory as the peer's over its own.
    """
    ordered = sorted(rows, key=lambda row: row.speed.median, reverse=True)
    size = (WIDTH_INCHES, FRAME_INCHES + ROW_INCHES * len(ordered))
    with report.new_figure(size, f"{baseline} beside each") as figure:
        panels = figure.subplots(1, 2, sharey=True)
        speeds = [row.speed for row in ordered]
        memory = [row.peak.inverse if row.peak else None for row in ordered]
        draw(panels[0], f"speed of {baseline} ÷ speed of the peer", speeds)
        draw(panels[1], f"peak memory of the peer ÷ {baseline}'s", memory)
        panels[0].set_yticks(range(len(ordered)), [names.get(r.peer, r.peer) for r in ordered])
        panels[0].invert_yaxis()
        return report.picture_of(figure, "svg").decode()


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
    axes.grid(axis="x", color="#dde1e8")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
