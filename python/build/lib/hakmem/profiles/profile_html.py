"""Heap profiles as a page: a flame graph, tables, and live memory over time, in one file that needs
no other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files

from hakmem import environment
from hakmem.extras import INSTALL, MATPLOTLIB, is_there
from hakmem.output.report import (
    BAD_COLOUR,
    MAIN_COLOUR,
    NARROW_INCHES,
    WIDE_INCHES,
    document,
    facts_table,
    grid,
    new_figure,
    plots,
    summary_list,
    svg_of,
)
from hakmem.profiles import profile_view
from hakmem.profiles.heap_profile import HeapProfile
from hakmem.profiles.profile_sites import (
    MEASURES,
    Change,
    Frames,
    Named,
    Site,
    between,
    cells,
    duration,
    interval_of_live,
    largest,
    own_frame,
    size,
    together,
)
from hakmem.profiles.symbols import INTERPRETER, PYTHON

ROWS = 40
MORE_STYLE = """
#flame-graph { min-height: 4rem; }
.controls { display: flex; flex-wrap: wrap; gap: .6rem; align-items: center; }
.controls input, .controls select, .controls button { font: inherit; color: inherit;
       background: var(--shade); border: 1px solid var(--quiet); border-radius: 3px;
       padding: .2rem .5rem;
       max-width: 100%; }
/* Of one height whatever it says: the graph below must not move from under a pointer. */
#details { height: 3em; margin: .5rem 0; overflow: hidden auto; overflow-wrap: anywhere;
       font-size: .9rem; }
@media (max-width: 44rem) { #details { height: 6em; } }
td.stack, th.stack { text-align: left; white-space: normal; min-width: 14rem;
       overflow-wrap: anywhere; }
td.stack ol { margin: .3rem 0; padding-left: 1.6rem; font-size: .85rem; }
summary { cursor: pointer; }
td, th { vertical-align: top; }
.where { color: var(--quiet); }
.totals { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; margin: 1rem 0; }
.totals b { display: block; font-size: 1.4rem; }
"""
FOLD = '<label><input id="fold" type="checkbox" checked> Fold what runs Python</label>'
STACK_HEAD = '<th class="stack">stack</th>'
SECTIONS = (
    ("live", "Live now", "Pinned: memory that cannot be given back because of these blocks, with "
     "all that lies beside them.",
     ("live", "95 % interval", "objects", "pinned", "mean age", "oldest")),
    ("pinned", "Pinned",
     "Stacks whose surviving blocks keep the most memory from being given back.",
     ("pinned", "live", "objects", "mean age")),
    ("peak", "At the peak", "As it was when live memory was highest.",
     ("peak", "objects at the peak", "live")),
    ("total", "Allocated since sampling started",
     "All blocks, freed or not: where the work of allocation is.",
     ("total", "objects in all", "half freed within", "live")),
)  # fmt: skip
Cell = tuple[str, Callable[[Site], str]]


def of_profile(named: Named, order: str = "live", leaks: bool = False) -> str:
    profile = named.profile
    title = f"Heap profile of {profile.name} ({profile.pid})"
    read = cells(profile)
    sections = [
        section("Not freed: what is live, by stack" if leaks and order == "live" else head, note,
                largest(named.sites, MEASURES[order], ROWS), [(h, read[h]) for h in heads])
        for order, head, note, heads in SECTIONS
    ]  # fmt: skip
    measures = [
        ("live bytes", True, MEASURES["live"]),
        ("pinned bytes", True, MEASURES["pinned"]),
        ("bytes at the peak", True, MEASURES["peak"]),
        ("bytes allocated since sampling started", True, MEASURES["total"]),
        ("live objects", False, lambda f: f.live.count),
        ("objects allocated since sampling started", False, lambda f: f.total.count),
    ]
    chosen = next(i for i, (_, _, of) in enumerate(measures) if of is MEASURES[order])
    stacks = [(s.frames, [of(s.figures) for _, _, of in measures]) for s in named.sites]
    return page(
        title,
        [
            summary_list(profile_view.summary(named)),
            totals(profile),
            remarks(named.remarks),
            timeline(profile),
            flame_graph(profile.name, [(n, b) for n, b, _ in measures], stacks, chosen),
            *sections,
            "<h2>How it was measured</h2>",
            f"<p>A block is sampled on average once in {size(profile.rate)} of allocation, and "
            "stands for all of its kind: the figures are estimates without bias, and the "
            "intervals hold the truth in 95 of 100 cases. A stack with few samples has a wide "
            "one.</p>",
            facts_table(facts(profile) | {"page written": environment.signature()}),
        ],
    )


def of_changes(before: Named, after: Named, changes: Sequence[Change]) -> str:
    a, b = before.profile, after.profile
    all_changes = together(changes)
    grown = [c for c in changes if c.bytes > 0]
    shrunk = [c for c in reversed(changes) if c.bytes < 0]
    stacks = [
        (c.frames, [max(0, c.bytes), max(0, -c.bytes), max(0, c.count), c.after.bytes])
        for c in changes
    ]
    measures = [("growth, bytes", True), ("shrinkage, bytes", True), ("growth, objects", False),
                ("live bytes afterwards", True)]  # fmt: skip
    return page(
        f"Heap growth of {b.name}",
        [
            '<div class="totals">'
            f"<div><b>{size(a.live.bytes)}</b>live before</div>"
            f"<div><b>{size(b.live.bytes)}</b>live after</div>"
            f"<div><b>{profile_view.signed(all_changes.bytes)}</b>growth</div></div>",
            remarks((*before.remarks, *after.remarks)),
            flame_graph(b.name, measures, stacks),
            change_section("Grown", grown),
            change_section("Shrunk", shrunk),
            "<h2>How it was measured</h2>",
            "<p>Live bytes of each stack, before and after. A change within its ± can be chance: "
            "both figures are estimates from samples.</p>",
            facts_table({f"before: {k}": v for k, v in facts(a).items()}),
            facts_table(
                {f"after: {k}": v for k, v in facts(b).items()}
                | {"page written": environment.signature()}
            ),
        ],
    )


def page(title: str, parts: Sequence[str]) -> str:
    script = f"<script>{resource('page.js')}</script>"
    return document(title, [*parts, script], style=resource("style.css") + MORE_STYLE)


def resource(name: str) -> str:
    return files("hakmem.profiles").joinpath("flame_graph", name).read_text()


def facts(profile: HeapProfile) -> dict[str, str]:
    from datetime import datetime, timezone

    taken = datetime.fromtimestamp(min(profile.taken_ms, 1 << 47) / 1000 % (1 << 37), timezone.utc)
    samples = profile.samples
    return {
        "program": profile.program,
        "process": str(profile.pid),
        "taken": f"{taken:%Y-%m-%d %H:%M:%S} UTC, {profile.seconds:,.1f} s of sampling",
        "of what was allocated since": profile.since,
        "mean distance of samples": size(profile.rate),
        "samples": f"{samples['taken']:,} taken, {samples['live']:,} live, "
        f"{samples['dropped']:,} dropped",
        "memory of the profiler": size(samples["own_bytes"]),
        "hakmem": profile.version,
    }


def totals(profile: HeapProfile) -> str:
    low, high = interval_of_live(profile)
    return (
        '<div class="totals">'
        f"<div><b>{size(profile.live.bytes)}</b>live in {profile.live.count:,} objects"
        f"<br>95 %: {between(low, high)}</div>"
        f"<div><b>{size(profile.peak_bytes)}</b>at the peak, "
        f"{duration(profile.peak_ms)} after sampling started</div>"
        f"<div><b>{size(profile.total.bytes)}</b>allocated in {profile.total.count:,} objects"
        "</div></div>"
    )


def remarks(lines: Iterable[str]) -> str:
    return "".join(f'<p class="note bad">{escape(line)}</p>' for line in dict.fromkeys(lines))


def flame_graph(
    name: str,
    measures: Sequence[tuple[str, bool]],
    stacks: Sequence[tuple[Frames, Sequence[int]]],
    chosen: int = 0,
) -> str:
    """Inner frames are functions; of the place that allocates, the line too."""
    table: dict[tuple[str, str], int] = {}
    rows = []
    for frames, values in stacks:
        labels = [str(frames[0]), *(frame.function for frame in frames[1:])]
        keys = [(label, frame.part) for label, frame in zip(labels, frames)]
        if any(value > 0 for value in values):
            numbers = [table.setdefault(key, len(table)) for key in reversed(keys)]
            rows.append([numbers, list(values)])
    of_part = {
        part: [number for (_, one), number in table.items() if one == part]
        for part in (PYTHON, INTERPRETER)
    }
    data = {
        "root": name,
        "frames": [label for label, _ in table],
        "python": of_part[PYTHON],
        "interpreter": of_part[INTERPRETER],
        "stacks": rows,
        "measures": [{"bytes": is_bytes} for _, is_bytes in measures],
    }
    # Nothing in a name can end the element.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    options = "".join(
        f'<option value="{number}"{" selected" * (number == chosen)}>{escape(title)}</option>'
        for number, (title, _) in enumerate(measures)
    )
    return (
        "<h2>Flame graph</h2>"
        '<p class="note">Each box is a function, below it those it called; its width is its '
        "memory. A click shows a box as wide as the page. Keys: the arrows, Enter, and Escape for "
        "all of it.</p>"
        '<p class="controls"><label>Width: <select id="measure">'
        f"{options}</select></label>"
        '<label>Search: <input id="search" type="search" autocomplete="off"></label>'
        f"{FOLD if of_part[INTERPRETER] else ''}"
        '<button id="reset" type="button">Reset</button></p>'
        '<p id="details" class="note"></p><div id="flame-graph"></div>'
        f'<script type="application/json" id="stacks">{text}</script>'
    )


def section(title: str, note: str, sites: Sequence[Site], columns: Sequence[Cell]) -> str:
    lines = [([read(site) for _, read in columns], site.frames) for site in sites]
    return stack_table(title, [name for name, _ in columns], lines, note)


def change_section(title: str, changes: Sequence[Change]) -> str:
    lines = [(profile_view.change_cells(c), c.frames) for c in changes[:ROWS]]
    return stack_table(title, ("change", "± (95 %)", "objects", "before", "after"), lines)


def stack_table(
    title: str, heads: Sequence[str], lines: Sequence[tuple[Sequence[str], Frames]], note: str = ""
) -> str:
    """Figures, and the stack that they are of; nothing without a line."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in cells)}{stack_cell(frames)}</tr>"
        for cells, frames in lines
    )
    told = f'<p class="note">{escape(note)}</p>' if note else ""
    table = f'<table class="sites"><tr>{head}{STACK_HEAD}</tr>{rows}</table>'
    return f'<h2>{escape(title)}</h2>{told}<div class="scroll">{table}</div>' if lines else ""


def stack_cell(frames: Frames) -> str:
    own = own_frame(frames)
    items = "".join(
        f'<li>{escape(f.function)} <span class="where">{escape(f.where)}</span></li>'
        for f in frames
    )
    return (
        f'<td class="stack"><details><summary>{escape(own.function)} '
        f'<span class="where">{escape(own.where)}</span></summary><ol>{items}</ol></details></td>'
    )


def timeline(profile: HeapProfile) -> str:
    """Live bytes as time went, the peak marked."""
    if len(profile.timeline) < 2:
        return ""
    if not is_there(MATPLOTLIB):
        note = f"The plot of live bytes over time needs matplotlib: {INSTALL}"
        return f'<p class="note">{escape(note)}</p>'
    label = f"Live bytes of {profile.name} over time, the peak marked"
    return (
        "<h2>Live bytes over time</h2>"
        f"{plots(lambda narrow: draw(profile, narrow), 'timeline', label)}"
    )


def draw(profile: HeapProfile, narrow: bool) -> bytes:
    from matplotlib.ticker import MaxNLocator

    last = max(profile.timeline[-1][0], profile.peak_ms)
    factor, unit = (1000, "s") if last < 600_000 else (60_000, "min")
    with new_figure((NARROW_INCHES if narrow else WIDE_INCHES, 3.2), font=12) as figure:
        axes = figure.add_subplot()
        times = [at / factor for at, _ in profile.timeline]
        sizes = [count / (1 << 20) for _, count in profile.timeline]
        axes.fill_between(times, sizes, color=MAIN_COLOUR, alpha=0.15, linewidth=0)
        axes.plot(times, sizes, color=MAIN_COLOUR, linewidth=1.5)
        peak = (profile.peak_ms / factor, profile.peak_bytes / (1 << 20))
        axes.plot(*peak, marker="o", color=BAD_COLOUR, markersize=7)
        axes.annotate(f"peak {size(profile.peak_bytes)}", peak, xytext=(0, 8), ha="center",
                      textcoords="offset points", color=BAD_COLOUR)  # fmt: skip
        axes.set_xlim(left=0, right=max(last / factor, 1e-3) * 1.08)
        axes.set_ylim(bottom=0, top=max([*sizes, peak[1], 1e-6]) * 1.25)
        axes.set_xlabel(f"{unit} since sampling started")
        axes.set_ylabel("live, MB")
        axes.xaxis.set_major_locator(MaxNLocator(5 if narrow else 10))
        grid(axes, "y", "top", "right")
        return svg_of(figure)
