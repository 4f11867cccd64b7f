"""Heap profiles in the terminal: a headline and one short table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hakmem.output.tables import plain_table, print_summary
from hakmem.profiles.heap_profile import Figures, HeapProfile, Stack, known_of_both
from hakmem.profiles.profile_sites import (
    MEASURES,
    Change,
    Frames,
    Named,
    Site,
    bare,
    between,
    cells,
    duration,
    interval_of_live,
    is_start,
    largest,
    mean_distance,
    own_frame,
    own_frames,
    size,
    together,
)

CALLERS = 4
MAIN_HEAP, UNNAMED = "(main heap)", "(without a name)"
# From here on the headline tells that samples are further apart than was asked.
PACE_SHOWN = 1.5
NOTHING_SAMPLED = (
    "Nothing was sampled: the program allocates nothing, or less than what lies between two "
    "samples; --rate 4K (HAKMEM_HEAP_PROFILE_RATE=4K) takes more of them."
)


def summary(named: Named) -> list[str]:
    """What is held, what was held at most, and who holds and who asks for most of it."""
    profile, told = named.profile, []
    peak = (
        f"; at its peak, {duration(profile.peak_ms)} after sampling started, "
        f"{size(profile.peak_bytes)}"
    )
    told.append(
        f"{profile.name} holds {size(profile.live.bytes)} in {profile.live.count:,} live blocks"
        f"{'' if profile.lacks else peak}."
    )
    for what, order, whole in (
        ("live memory", "live", profile.live.bytes),
        ("memory at the peak", "peak", profile.peak_bytes),
        ("all that was allocated", "total", profile.total.bytes),
    ):
        first = largest(named.sites, MEASURES[order], 1)
        if first and whole:
            part = min(1.0, MEASURES[order](first[0].figures) / whole)
            own = own_frame(first[0].frames)
            place = f"{bare(own.function)} {own.where}".strip()
            told.append(f"{100 * part:.0f} % of {what} is of {place}.")
    return told


def show(console: Console, named: Named, order: str, rows: int, by: str = "stack") -> None:
    console.print(headline(named.profile), soft_wrap=True)
    # The first says what the headline says.
    print_summary(console, summary(named)[1:])
    if rows and by != "stack":
        console.print(sums_table(named.profile, order, rows, by))
    elif rows:
        heads = ("live", "objects", "pinned", "peak", "total")
        title = f"Where it allocates, by {order}"
        console.print(site_table(named, title, order, heads, rows))
    show_remarks(console, named.remarks)


def show_remarks(console: Console, lines: Sequence[str]) -> None:
    for line in dict.fromkeys(lines):
        console.print(line)


def headline(profile: HeapProfile) -> str:
    distance = mean_distance(profile)
    pace = size(profile.rate)
    if distance > PACE_SHOWN * profile.rate:
        pace = (
            f"{size(round(distance))}, not {pace}: they are limited to a number a second "
            "(HAKMEM_HEAP_PROFILE_MOST)"
        )
    peak = f"{size(profile.peak_bytes)} at the peak, " if profile.peak_bytes else ""
    samples = f"; {profile.samples['taken']:,} samples, one in {pace}" if profile.rate else ""
    return (
        f"{profile.name} ({profile.pid or 'a process'}): {size(profile.live.bytes)} live, {peak}"
        f"{size(profile.total.bytes)} allocated in {profile.seconds:,.1f} s since sampling started "
        f"({profile.since}){samples}"
    )


def site_table(named: Named, title: str, order: str, heads: Sequence[str], rows: int) -> Table:
    having = largest(named.sites, MEASURES[order], len(named.sites))
    table, read = table_of_stacks(title, heads), cells(named.profile)
    if (more := len(having) - rows) > 0:
        table.caption = f"{more:,} more stacks: --top {len(having)}, or the reports"
    for site in having[:rows]:
        table.add_row(*(read[head](site) for head in heads), stack_text(site.frames))
    if not having:
        told = "nothing live" if order == "live" else "nothing sampled"
        table.add_row(*[""] * len(heads), told)
    return table


def table_of_stacks(title: str, heads: Sequence[str], what: str = "stack") -> Table:
    table = plain_table(title)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column(what)
    return table


def label_name(profile: HeapProfile, stack: Stack) -> str:
    name = profile.labels.get(stack.label, "")
    return f"{stack.label} {name}".strip() if stack.label else "none"


def heap_name(profile: HeapProfile, stack: Stack) -> str:
    return MAIN_HEAP if stack.heap is None else stack.heap or UNNAMED


NAMES = {"label": label_name, "heap": heap_name}


def sums_table(profile: HeapProfile, order: str, rows: int, by: str) -> Table:
    """What all stacks with one label hold together, or all in heaps of one name."""
    sums: dict[str, Figures] = {}
    for stack in profile.stacks:
        name = NAMES[by](profile, stack)
        sums[name] = sums[name] + stack.figures if name in sums else stack.figures
    having = sorted(sums.items(), key=lambda each: (-MEASURES[order](each[1]), each[0]))
    heads, read = ("live", "objects", "pinned", "peak", "total"), cells(profile)
    table = table_of_stacks(f"{by.capitalize()}s, by {order}", heads, by)
    if (left := len(having) - rows) > 0:
        table.caption = f"{left:,} more {by}s: --top {len(having)}"
    for name, figures in having[:rows]:
        table.add_row(*(read[head](Site((), figures)) for head in heads), Text(name))
    return table


def show_leaks(console: Console, named: Named, rows: int) -> None:
    """What is live, with what sampling can say of it."""
    profile = named.profile
    console.print(headline(profile), soft_wrap=True)
    heads = ("live", "95 % interval", "objects", "mean age")
    table = site_table(named, "Not freed, by stack", "live", heads, rows)
    table.add_section()
    table.add_row(size(profile.live.bytes), between(*interval_of_live(profile)),
                  f"{profile.live.count:,}", "", "all together", style="bold")  # fmt: skip
    console.print(table)
    show_remarks(console, named.remarks)


def show_changes(
    console: Console, before: Named, after: Named, changes: Sequence[Change], rows: int
) -> None:
    a, b = before.profile, after.profile
    console.print(
        f"{b.name}: {size(a.live.bytes)} live before ({a.pid}), {size(b.live.bytes)} after "
        f"({b.pid}): {signed(b.live.bytes - a.live.bytes)}"
    )
    heads = ("change", "±", "objects", "before", "after")
    table = table_of_stacks("Growth of live bytes, by stack", heads)
    if len(changes) > rows:
        table.caption = f"{len(changes) - rows:,} more stacks: --top {len(changes)}"
    for one in most_changed(changes, rows):
        table.add_row(*change_cells(one), stack_text(one.frames))
    table.add_section()
    table.add_row(*change_cells(together(changes)), "all that changed", style="bold")
    console.print(table)
    console.print("±: half of the 95 % interval; a change within it can be chance.")
    console.print(f"Figures are {known_of_both(a, b)}.")
    show_remarks(console, (*before.remarks, *after.remarks))


def change_cells(one: Change) -> list[str]:
    """The change, half of its interval, objects, and bytes before and after."""
    sizes = (size(one.before.bytes), size(one.after.bytes))
    return [signed(one.bytes), size(one.error), f"{one.count:+,}", *sizes]


def most_changed(changes: Sequence[Change], rows: int) -> list[Change]:
    """Growth first; where room is left, the largest shrinkage at the end."""
    grown = [c for c in changes if c.bytes > 0][:rows]
    rest = [c for c in changes if c.bytes <= 0]
    left = rows - len(grown)
    return grown + (rest[-left:] if left else [])


def signed(count: int) -> str:
    return f"{'+' if count > 0 else ''}{size(count)}"


def stack_text(frames: Frames) -> Text:
    """On one line: the figures keep their room."""
    return Text(chain(frames), no_wrap=True, overflow="ellipsis")


def chain(frames: Frames) -> str:
    """Who allocates, with its line, and the functions that called it."""
    own = own_frame(frames)
    callers = [f for f in own_frames(frames)[1:] if not is_start(f)]
    told = [f"{bare(own.function)} {own.where}".strip()]
    told += [bare(frame.function) for frame in callers[:CALLERS]]
    return " ← ".join(told) + (" ← …" if len(callers) > CALLERS else "")
