"""The HTML report of a comparison: one file that needs no other, plots within it."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from urllib.parse import quote

from hakmem.documents import GENERATOR, PICTURE_MAKER
from hakmem.measuring.measures import BASELINE, UNKNOWN, Cell, Measure, Scale, ranked, scale_of
from hakmem.output.axis import Axis, axis_of
from hakmem.plain_text import printable

# Plots are drawn in these colours, and take the page's own for them: light or dark.
INK, LINE, MAIN_COLOUR, OTHER_COLOUR = "#1d2430", "#dde1e8", "#1f5fbf", "#5a6475"
GOOD_COLOUR, BAD_COLOUR = "#14703a", "#b3261e"
VARIABLES = {
    INK: "ink", LINE: "line", MAIN_COLOUR: "main", OTHER_COLOUR: "quiet", GOOD_COLOUR: "good",
    BAD_COLOUR: "bad",
}  # fmt: skip
STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --paper: #fff; --line: #dde1e8; --main: #1f5fbf;
        --quiet: #5a6475; --good: #14703a; --bad: #b3261e; --shade: #f1f3f6; --own: #eef4ff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e7ee; --paper: #14181f; --line: #343c49; --main: #7fb0ff; --quiet: #a3adbd;
          --good: #6fd09a; --bad: #ff8f86; --shade: #222833; --own: #1b2940; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       margin: 2rem auto; max-width: 56rem; padding: 0 1rem; overflow-wrap: anywhere; }
a { color: var(--main); }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
h2 small { font-weight: normal; color: var(--quiet); }
code { background: var(--shade); padding: .1rem .3rem; border-radius: 3px; word-break: break-all; }
ul.summary { list-style: none; padding: .6rem 1rem; margin: 1rem 0; background: var(--shade);
       border-left: 4px solid var(--main); border-radius: 3px; }
ul.summary li { margin: .35rem 0; }
/* A table may be wider than the column of text, up to the window's width; then it scrolls, with a
   shade at the side where there is more, and with its first column staying. */
.scroll { overflow-x: auto; width: max-content; min-width: 100%; max-width: calc(100vw - 3rem);
          position: relative; left: 50%; transform: translateX(-50%);
          background: linear-gradient(to left, var(--paper) 1rem, transparent) right / 2rem 100%
          no-repeat local, linear-gradient(to left, var(--quiet), transparent) right 1px top /
          .5rem 100% no-repeat scroll; }
table { border-collapse: collapse; margin: 1rem 0; width: 100%; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
         white-space: nowrap; overflow-wrap: normal; }
th:first-child, td:first-child, td.text { text-align: left; }
td.text { white-space: normal; overflow-wrap: anywhere; min-width: 12rem; }
td.name { white-space: normal; overflow-wrap: anywhere; min-width: 8rem; max-width: 14rem; }
.scroll th:first-child, .scroll td:first-child { position: sticky; left: 0;
         background: var(--paper); }
.scroll tr.baseline td { background: var(--own); font-weight: 600; }
@media (max-width: 44rem) { td.name { min-width: 4.5rem; max-width: 7rem; } }
.good { color: var(--good); } .bad { color: var(--bad); } .none { color: var(--quiet); }
th { vertical-align: bottom; }
th small { font-weight: normal; color: var(--quiet); display: block; }
figure { margin: 0; }
figure svg { width: 100%; height: auto; display: block; }
figure svg.narrow { display: none; max-width: 32rem; }
@media (max-width: 44rem) {
  figure svg.narrow { display: block; } figure svg.wide { display: none; }
}
.note { color: var(--quiet); } .note.bad { color: var(--bad); }
table.facts td:first-child { vertical-align: top; }
"""
# Blocks of several sizes. Of its own colours: a tab has the browser's scheme, not the page's.
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<rect width="16" height="16" rx="3" fill="#1f5fbf"/><g fill="#fff"><rect x="3" y="3" '
    'width="10" height="3"/><rect x="3" y="7" width="4" height="6"/>'
    '<rect x="8" y="7" width="5" height="2.5"/></g></svg>'
)
# Fonts of one width: the plot is laid out with the first, a browser takes what it has.
FONTS = ["DejaVu Sans", "Verdana", "sans-serif"]
LABEL_CHARACTERS = 22
# Laid out for a column of 56rem, and for a phone.
WIDE_INCHES, NARROW_INCHES = 10.0, 4.6
WIDE_ROW_INCHES, NARROW_ROW_INCHES, FRAME_INCHES = 0.38, 0.56, 1.5
PLOT_KEY = (
    '<p class="note">In the plots each dot is a run, the upright line the median, the pale bar its '
    "95 % interval. The best is on top. Axes need not begin at 0: the scale above a plot tells how "
    "far apart the figures are.</p>"
)


def page(
    title: str,
    facts: Mapping[str, str],
    measures: Sequence[tuple[Measure, Sequence[Cell]]],
    problems: Mapping[str, str],
    notes: Sequence[str],
    baseline: str,
    summary: Sequence[str] = (),
) -> str:
    """The whole document."""
    sections = [section(m, cells, baseline) for m, cells in measures if cells]
    name = escape(baseline)
    return document(
        "Allocators compared",
        [
            f"<p><code>{escape(title)}</code></p>",
            summary_list(summary),
            problem_list(problems),
            *(f'<p class="note">{escape(note)}</p>' for note in notes),
            PLOT_KEY if sections else "",
            *sections,
            "<h2>How it was measured</h2>",
            "<p>Every allocator runs once a round, in an order shuffled anew each round; only "
            "whole rounds count. Brackets are bootstrap 95 % intervals of medians. There are two "
            "ratios of cost. <b>Cost ÷ best</b> divides the medians of all rounds: 1.00 is the "
            f"best, 2.00 costs twice as much. <b>Cost ÷ {name}</b> is the median of the ratios "
            f"within the rounds, a run beside {name}'s a moment apart: above 1 costs more. The "
            "verdict rests on the second, as the machine's speed drifts from round to round, and "
            "says “no difference seen” where its interval holds 1.</p>",
            facts_table(facts),
        ],
        title,
    )


def document(heading: str, parts: Sequence[str], title: str = "", style: str = "") -> str:
    """A page around its parts; it needs no other file."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            GENERATOR,
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<link rel="icon" href="data:image/svg+xml,{quote(ICON)}">',
            f"<title>{escape(title or heading)}</title><style>{STYLE}{style}</style></head><body>",
            f"<h1>{escape(heading)}</h1>",
            *(part for part in parts if part),
            "</body></html>",
            "",
        ]
    )


def summary_list(lines: Sequence[str]) -> str:
    rows = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="summary">{rows}</ul>' if rows else ""


def problem_list(problems: Mapping[str, str]) -> str:
    rows = "".join(
        f'<li class="bad"><b>{escape(name)}</b>: {escape(text)}</li>'
        for name, text in problems.items()
    )
    return f"<h2>Without figures of their own</h2><ul>{rows}</ul>" if rows else ""


def section(measure: Measure, cells: Sequence[Cell], baseline: str) -> str:
    """A plot and a table."""
    scale = scale_of(measure, cells)
    unit = f", {scale.unit}" if scale.unit else ""
    name = escape(baseline)
    heads = (
        "allocator",
        "median",
        f"beside {name}",
        "cost ÷ best<small>1 is the best</small>",
        f"cost ÷ {name}<small>above 1: costs more</small>",
        "95 % interval<small>of the median</small>",
        "CV",
    )
    head = "".join(f"<th>{title}</th>" for title in heads)
    body = "".join(row(measure, cell, scale) for cell in ranked(measure, cells))
    shown = plots(
        lambda narrow: plot(measure, cells, scale, baseline, narrow),
        measure.title,
        f"{measure.title} of each allocator, one dot a run",
    )
    return (
        f"<h2>{escape(measure.title + unit)} <small>({measure.direction})</small></h2>"
        f"{shown}"
        f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
    )


def inlined(svg: str, title: str, label: str, kind: str) -> str:
    """A picture without its head, to stand in a page among others of other titles."""
    label = escape(label, quote=True)
    head = f'<svg class="{kind}" role="img" aria-label="{label}"'
    svg = svg[svg.index("<svg") :].replace("<svg", head, 1)
    svg = svg.replace("fill: #ffffff", "fill: none")
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    # A page holds many plots: only names that are referred to stay, each plot's marked as its own.
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', svg))
    mark = re.sub(r"\W+", "-", title.lower())
    svg = re.sub(r' id="([^"]+)"', lambda at: f' id="{mark}-{at[1]}"' if at[1] in used else "", svg)
    return re.sub(r'(url\(|href=")#', rf"\1#{mark}-", svg)


def row(measure: Measure, cell: Cell, scale: Scale) -> str:
    """No text where nothing is known."""
    middle, ratio = cell.middle, cell.to_baseline
    interval = "" if middle.low is None else f"{scale.text(middle.low)} … {scale.text(middle.high)}"
    beside = "" if ratio is None else f"{ratio.median:.3f}"
    if ratio is not None and ratio.low is not None:
        beside += f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    kind = {measure.better: "good", measure.worse: "bad"}.get(cell.verdict, "none")
    mark = ' class="baseline"' if cell.verdict == BASELINE else ""
    figures = (
        "" if cell.to_best is None else f"{cell.to_best:.2f}",
        beside,
        interval,
        f"{100 * cell.variation:.1f} %" if len(cell.values) > 1 else "",
    )
    return (
        f"<tr{mark}>"
        f'<td class="name">{escape(cell.name)}</td><td>{scale.text(middle.median)}</td>'
        f'<td class="{kind}">{"" if cell.verdict == UNKNOWN else cell.verdict}</td>'
        + "".join(f"<td>{text}</td>" for text in figures)
        + "</tr>"
    )


def facts_table(facts: Mapping[str, str]) -> str:
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="text">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f'<div class="scroll"><table class="facts">{rows}</table></div>' if rows else ""


def plots(draw: Callable[[bool], bytes], title: str, label: str) -> str:
    """A picture that `draw(narrow)` makes, for the width of a desk and for that of a phone: one
    that is made smaller to fit has text nobody can read. The page shows one of the two.

    Elements of the page: their text can be selected, searched and read aloud."""
    wide = inlined(draw(False).decode(), title, label, "wide")
    narrow = inlined(draw(True).decode(), f"{title} narrow", label, "narrow")
    return f"<figure>{wide}{narrow}</figure>"


def plot(
    measure: Measure, cells: Sequence[Cell], scale: Scale, baseline: str, narrow: bool = False
) -> bytes:
    """One line an allocator, best on top: every run a dot, the median and its interval a bar."""
    ordered = ranked(measure, cells)[::-1]
    runs = [[value * scale.factor for value in cell.values] for cell in ordered]
    intervals = [interval_of(cell, scale.factor) for cell in ordered]
    axis = axis_of(runs, [value for interval in intervals for value in interval])
    jitter = random.Random(1)
    row = NARROW_ROW_INCHES if narrow else WIDE_ROW_INCHES
    size = (NARROW_INCHES if narrow else WIDE_INCHES, FRAME_INCHES + row * len(ordered))
    with new_figure(size, f"hakmem {measure.title} {narrow}", 12) as figure:
        axes = figure.add_subplot()
        along(axes, axis, 4 if narrow else 7)
        for line, (cell, values, (low, middle, high)) in enumerate(zip(ordered, runs, intervals)):
            colour = MAIN_COLOUR if cell.name == baseline else OTHER_COLOUR
            shown = [value for value in values if axis.holds(value)]
            heights = [line + jitter.uniform(-0.16, 0.16) for _ in shown]
            axes.scatter(shown, heights, s=16, color=colour, alpha=0.7, linewidths=0, zorder=3)
            axes.plot([low, high], [line, line], color=colour, linewidth=6, alpha=0.3)
            axes.plot(middle, line, marker="|", markersize=18, markeredgewidth=2.5, color=colour)
            beyond(axes, axis, line, values, colour)
        name_lines(axes, ordered, narrow)
        unit = f" ({scale.unit})" if scale.unit else ""
        apart = "\n" if narrow else " — "
        by_ratio = f"{apart}steps by ratio" if axis.by_ratio else ""
        axes.set_xlabel(f"{measure.title}{unit}{apart}{measure.direction}{by_ratio}")
        grid(axes, "x", "top", "right", "left")
        axes.tick_params(axis="y", length=0)
        best = next((i for cell, (_, i, _) in zip(ordered, intervals) if cell.to_best == 1), None)
        scale_of_costs(axes, axis, best, measure.higher_is_better, narrow)
        return svg_of(figure)


def interval_of(cell: Cell, factor: float) -> tuple[float, float, float]:
    middle = cell.middle
    low, high = (middle.median if end is None else end for end in (middle.low, middle.high))
    return low * factor, middle.median * factor, high * factor


def along(axes, axis: Axis, most: int) -> None:
    """The axis of what was measured."""
    axes.set_xscale("log" if axis.by_ratio else "linear")
    axes.set_xlim(axis.low, axis.high)
    marks = axis.marks(most)
    digits = ",.0f" if axis.high >= 1000 else ",.4g"
    axes.set_xticks(marks, [format(mark, digits) for mark in marks])
    axes.minorticks_off()


def scale_of_costs(
    axes, axis: Axis, best: float | None, higher_is_better: bool, narrow: bool
) -> None:
    """Above: how far apart the figures are, wherever the axis below begins."""
    if not best or best < 0 or axis.low <= 0:
        return
    ends = (best / axis.high, best / axis.low) if higher_is_better else (
        axis.low / best, axis.high / best)  # fmt: skip
    marks = Axis(*ends, by_ratio=axis.by_ratio).marks(4 if narrow else 6)
    above = axes.secondary_xaxis("top")
    places = [best / mark if higher_is_better else best * mark for mark in marks]
    above.set_xticks(places, [f"{mark:.4g}" for mark in marks])
    above.minorticks_off()
    above.set_xlabel("cost ÷ best", color=OTHER_COLOUR, labelpad=8)
    above.tick_params(colors=OTHER_COLOUR)
    above.spines["top"].set_visible(False)


def beyond(axes, axis: Axis, line: int, values: Sequence[float], colour: str) -> None:
    """Of runs that the axis does not reach, how many there are and the furthest."""
    for side, far in (
        ("right", [value for value in values if value > axis.high]),
        ("left", [value for value in values if value < axis.low]),
    ):
        if far:
            furthest = max(far) if side == "right" else min(far)
            more = f"{len(far)} runs, to " if len(far) > 1 else ""
            text = f"{more}{furthest:,.4g}"
            place, arrow = (1, f"{text} →") if side == "right" else (0, f"← {text}")
            axes.text(place, line, arrow, transform=axes.get_yaxis_transform(), ha=side,
                      va="center", color=colour, fontsize=11)  # fmt: skip


def name_lines(axes, ordered: Sequence[Cell], narrow: bool) -> None:
    """Beside the lines, or above them where the width is for the dots."""
    marks = ["" if cell.is_own else "(not served)" for cell in ordered]
    if narrow:
        axes.set_yticks([])
        axes.set_ylim(-0.5, len(ordered) - 0.2)
        for line, (cell, mark) in enumerate(zip(ordered, marks)):
            axes.text(0, line + 0.24, f"{shortened(cell.name)} {mark}".rstrip(), va="bottom",
                      transform=axes.get_yaxis_transform())  # fmt: skip
        return
    labels = [f"{shortened(cell.name)}\n{mark}".rstrip() for cell, mark in zip(ordered, marks)]
    axes.set_yticks(range(len(ordered)), labels)
    axes.set_ylim(-0.6, len(ordered) - 0.4)


@contextmanager
def new_figure(inches: tuple[float, float], salt: str = "hakmem", font: float = 10) -> Iterator:
    """Of matplotlib, to be drawn within: text stays text, in the page's colours."""
    # Slow to import, and only this needs it.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style = {
        "font.size": font,
        "font.family": FONTS[0],
        "svg.hashsalt": salt,
        "svg.fonttype": "none",
        **dict.fromkeys(inked, INK),
    }
    with rc_context(style):
        yield Figure(figsize=inches, layout="constrained")


def grid(axes, axis: str, *without: str) -> None:
    """Lines behind what is drawn, and no frame at those sides."""
    axes.grid(axis=axis, color=LINE)
    axes.set_axisbelow(True)
    for side in without:
        axes.spines[side].set_visible(False)


def picture_of(figure, picture_format: str) -> bytes:
    """A file of its own: an SVG without the date, so that it is the same each time, or a PNG."""
    out = io.BytesIO()
    figure.savefig(out, format=picture_format, dpi=150, metadata=PICTURE_MAKER[picture_format])
    return with_fonts(out.getvalue()) if picture_format == "svg" else out.getvalue()


def svg_of(figure) -> bytes:
    """For a page, without paper of its own."""
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    return with_fonts(out.getvalue())


def with_fonts(svg: bytes) -> bytes:
    """With the fonts that a browser may take in place of the one it was laid out with."""
    fonts = ", ".join(f"'{font}'" if " " in font else font for font in FONTS)
    return svg.replace(f"'{FONTS[0]}'".encode(), fonts.encode())


def shortened(name: str) -> str:
    name = printable(name)
    return name if len(name) <= LABEL_CHARACTERS else f"{name[: LABEL_CHARACTERS - 1]}…"
