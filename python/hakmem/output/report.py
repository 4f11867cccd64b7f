"""The HTML report of a comparison: one file that needs no other, plots within it."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Mapping, Sequence
from html import escape

from hakmem.measuring.measures import BASELINE, Cell, Measure, Scale, scale_of

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1d2430; margin: 2rem auto;
       max-width: 68rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
h2 small { font-weight: normal; color: #5a6475; }
code { background: #f1f3f6; padding: .1rem .3rem; border-radius: 3px; word-break: break-all; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #dde1e8;
         white-space: nowrap; }
th:first-child, td:first-child, td.text { text-align: left; }
td.text { white-space: normal; word-break: break-word; }
td.name { white-space: normal; overflow-wrap: anywhere; min-width: 6rem; max-width: 14rem; }
tr.baseline td { background: #eef4ff; font-weight: 600; }
.good { color: #14703a; } .bad { color: #b3261e; } .none { color: #5a6475; }
th { vertical-align: bottom; }
th small { font-weight: normal; color: #5a6475; display: block; }
img { width: 100%; max-width: 52rem; height: auto; display: block; }
figure { margin: 0; }
figure svg { width: 100%; min-width: 26rem; max-width: 46rem; height: auto; display: block; }
.note { color: #5a6475; overflow-wrap: anywhere; } li { overflow-wrap: anywhere; }
"""
MAIN_COLOUR, OTHER_COLOUR = "#1f5fbf", "#5a6475"
# Fonts of one width: the plot is laid out with the first, a browser takes what it has.
FONTS = ["DejaVu Sans", "Verdana", "sans-serif"]
LABEL_CHARACTERS = 22
PLOT_KEY = (
    '<p class="note">In the plots each dot is a run, the upright line the median, the pale bar its '
    "95 % interval. The best is on top.</p>"
)


def page(
    title: str,
    facts: Mapping[str, str],
    measures: Sequence[tuple[Measure, Sequence[Cell]]],
    problems: Mapping[str, str],
    notes: Sequence[str],
    baseline: str,
) -> str:
    """The whole document."""
    sections = [section(m, cells, baseline) for m, cells in measures if cells]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            "<h1>Allocators compared</h1>",
            f"<p><code>{escape(title)}</code></p>",
            problem_list(problems),
            *(f'<p class="note">{escape(note)}</p>' for note in notes),
            PLOT_KEY if sections else "",
            *sections,
            "<h2>How it was measured</h2>",
            "<p>Every allocator runs once a round, in an order shuffled anew each round; only "
            "whole rounds count. Brackets are bootstrap 95 % intervals of medians. The ratio to "
            "the best is of cost: 1.00 is the best, 2.00 costs twice as much. A verdict is about "
            f"the rounds of a row and {escape(baseline)}, and says “no difference seen” where the "
            "interval of their ratio holds 1.</p>",
            facts_table(facts),
            "</body></html>",
            "",
        ]
    )


def problem_list(problems: Mapping[str, str]) -> str:
    rows = "".join(
        f'<li class="bad"><b>{escape(name)}</b>: {escape(text)}</li>'
        for name, text in problems.items()
    )
    return f"<h2>Without figures</h2><ul>{rows}</ul>" if rows else ""


def section(measure: Measure, cells: Sequence[Cell], baseline: str) -> str:
    scale = scale_of(measure, cells)
    unit = f", {scale.unit}" if scale.unit else ""
    name = escape(baseline)
    head = (
        f"<tr><th>allocator</th><th>median</th><th>beside {name}</th>"
        "<th>cost ÷ best<small>1 is the best</small></th>"
        f"<th>cost ÷ {name}<small>above 1: costs more</small></th>"
        "<th>95 % interval<small>of the median</small></th><th>CV</th></tr>"
    )
    best_first = sorted(cells, key=median_of, reverse=measure.higher_is_better)
    rows = "".join(row(measure, cell, scale) for cell in best_first)
    return (
        f"<h2>{escape(measure.title + unit)} <small>({measure.direction})</small></h2>"
        f'<figure class="scroll">{inline_plot(measure, cells, scale, baseline)}</figure>'
        f'<div class="scroll"><table>{head}{rows}</table></div>'
    )


def median_of(cell: Cell) -> float:
    return cell.middle.median


def inline_plot(measure: Measure, cells: Sequence[Cell], scale: Scale, baseline: str) -> str:
    """The plot as an element of the page: its text can be selected, searched and read aloud."""
    svg = plot(measure, cells, scale, baseline).decode()
    return inlined(svg, measure.title, f"{measure.title} of each allocator, one dot a run")


def inlined(svg: str, title: str, label: str) -> str:
    """A picture without its head, to stand in a page among others of other titles."""
    label = escape(label, quote=True)
    svg = svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    # A page holds many plots: only names that are referred to stay, each plot's marked as its own.
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', svg))
    mark = re.sub(r"\W+", "-", title.lower())
    svg = re.sub(r' id="([^"]+)"', lambda at: f' id="{mark}-{at[1]}"' if at[1] in used else "", svg)
    return re.sub(r'(url\(|href=")#', rf"\1#{mark}-", svg)


def row(measure: Measure, cell: Cell, scale: Scale) -> str:
    middle, ratio = cell.middle, cell.to_baseline
    interval = "" if middle.low is None else f"{scale.text(middle.low)} … {scale.text(middle.high)}"
    to_best = "" if cell.to_best is None else f"{cell.to_best:.2f}"
    beside = "" if ratio is None else f"{ratio.median:.3f}"
    if ratio is not None and ratio.low is not None:
        beside += f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    kind = {measure.better: "good", measure.worse: "bad"}.get(cell.verdict, "none")
    mark = ' class="baseline"' if cell.verdict == BASELINE else ""
    return (
        f'<tr{mark}><td class="name">{escape(cell.name)}</td><td>{scale.text(middle.median)}</td>'
        f'<td class="{kind}">{cell.verdict}</td><td>{to_best}</td><td>{beside}</td>'
        f"<td>{interval}</td><td>{100 * cell.variation:.1f} %</td></tr>"
    )


def facts_table(facts: Mapping[str, str]) -> str:
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="text">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table>{rows}</table>"


def plot(measure: Measure, cells: Sequence[Cell], scale: Scale, baseline: str) -> bytes:
    """One line an allocator, best on top: every run a dot, the median and its interval a bar."""
    # Slow to import, and only this needs it.
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    ordered = sorted(cells, key=median_of, reverse=not measure.higher_is_better)
    jitter = random.Random(1)
    style = {
        "font.size": 12,
        "font.family": FONTS[0],
        "svg.hashsalt": f"hakmem {measure.title}",
        "svg.fonttype": "none",
    }
    with rc_context(style):
        figure = Figure(figsize=(7.0, 1.2 + 0.38 * len(ordered)), layout="constrained")
        axes = figure.add_subplot()
        for line, cell in enumerate(ordered):
            colour = MAIN_COLOUR if cell.name == baseline else OTHER_COLOUR
            heights = [line + jitter.uniform(-0.16, 0.16) for _ in cell.values]
            shown = [value * scale.factor for value in cell.values]
            axes.scatter(shown, heights, s=16, color=colour, alpha=0.7, linewidths=0, zorder=3)
            middle = cell.middle
            if middle.low is not None:
                ends = [middle.low * scale.factor, middle.high * scale.factor]
                axes.plot(ends, [line, line], color=colour, linewidth=6, alpha=0.3)
            axes.plot(middle.median * scale.factor, line, marker="|", markersize=18,
                      markeredgewidth=2.5, color=colour)  # fmt: skip
        axes.set_yticks(range(len(ordered)), [shortened(cell.name) for cell in ordered])
        axes.set_ylim(-0.6, len(ordered) - 0.4)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter("{x:,.4g}" if axes.get_xlim()[1] < 1000 else "{x:,.0f}")
        axes.xaxis.set_major_locator(MaxNLocator(6))
        unit = f" ({scale.unit})" if scale.unit else ""
        axes.set_xlabel(f"{measure.title}{unit} — {measure.direction}")
        axes.grid(axis="x", color="#dde1e8")
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    fonts = ", ".join(f"'{font}'" if " " in font else font for font in FONTS)
    return out.getvalue().replace(f"'{FONTS[0]}'".encode(), fonts.encode())


def shortened(name: str) -> str:
    return name if len(name) <= LABEL_CHARACTERS else f"{name[: LABEL_CHARACTERS - 1]}…"
