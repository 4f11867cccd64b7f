"""How an account of memory is shown: tables and a bar in the terminal, a picture, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from hakmem.documents import PICTURE, write_bytes
from hakmem.output import report
from hakmem.output.tables import NARROW, PLAIN_WIDTH, plain_table
from hakmem.processes.accounting import GROUPS, Account
from hakmem.processes.live_figures import AT_REST_S

# A sign of its own for each group: the bar can be read without colours.
SIGNS = ("█", "▓", "▒", "░", "#", "=", "·")
COLOURS = ("#2f6fde", "#59a0ff", "#e0a030", "#d05050", "#8f6fd0", "#50a070", "#9aa2ad")
CLASSES_SHOWN = 12
ESTIMATED = "≈"


@dataclass(frozen=True)
class Unit:
    """Kilobytes for small processes, so that small parts are seen."""

    name: str
    size: int
    digits: int

    def text(self, count: int) -> str:
        return f"{count / self.size:,.{self.digits}f}"


def unit_of(account: Account) -> Unit:
    return Unit("KB", 1 << 10, 0) if account.rss < 100 << 20 else Unit("MB", 1 << 20, 1)


def share(count: int, total: int) -> str:
    return f"{100 * count / total:.1f} %" if total else "-"


def show(console: Console, account: Account, classes: int = CLASSES_SHOWN) -> None:
    console.print(headline(account))
    console.print(bar(account, min(console.width, 100)))
    console.print(part_table(account))
    if account.classes and classes:
        console.print(class_table(account, classes, console.width))
    for line in remarks(account):
        console.print(line)


def headline(account: Account) -> str:
    unit = unit_of(account)
    return (
        f"{account.name} ({account.pid}): {unit.text(account.rss)} {unit.name} resident, "
        f"explained {account.when}; its page was {account.age_s:.1f} s old"
    )


def bar(account: Account, width: int) -> Group:
    """All that is resident, as one line; the legend below it."""
    sums = account.by_group()
    total = sum(sums.values()) or 1
    line, legend, edge, begun = Text(), [Text()], 0.0, 0
    for number, group in enumerate(GROUPS):
        edge += sums[group] * width / total
        sign, colour = SIGNS[number], COLOURS[number]
        line.append(sign * (round(edge) - begun), style=colour)
        begun = round(edge)
        entry = Text(f"{sign} ", style=colour)
        entry.append(f"{group} {share(sums[group], total)}   ", style="default")
        # No entry is broken over two lines.
        if len(legend[-1]) + len(entry) > width:
            legend.append(Text())
        legend[-1].append_text(entry)
    return Group(line, *legend)


def part_table(account: Account) -> Table:
    unit = unit_of(account)
    table = plain_table("")
    table.caption = f"{ESTIMATED} estimated: docs/explain.md says how"
    table.add_column("")
    table.add_column("what")
    table.add_column("", no_wrap=True)
    table.add_column(unit.name, justify="right", no_wrap=True)
    table.add_column("of RSS", justify="right", no_wrap=True)
    sums = account.by_group()
    for group in GROUPS:
        parts = [p for p in account.parts if p.group == group and p.bytes]
        for number, part in enumerate(parts):
            table.add_row(
                "" if number else group,
                part.title,
                ESTIMATED if part.estimated else "",
                unit.text(part.bytes),
                share(part.bytes, account.rss),
            )
        if len(parts) > 1:
            told = unit.text(sums[group]), share(sums[group], account.rss)
            table.add_row("", "together", "", *told, style="bold")
    table.add_section()
    table.add_row("sum", "all of the above", "", unit.text(account.explained),
                  share(account.explained, account.rss), style="bold")  # fmt: skip
    table.add_row("", "smaps_rollup Rss", "", unit.text(account.rss), "")
    table.add_row("", "difference", "", unit.text(account.difference),
                  share(account.difference, account.rss))  # fmt: skip
    return table


def class_table(account: Account, most: int, width: int = PLAIN_WIDTH) -> Table:
    """Slabs by size class, those first that hold most memory without a live block in it.

    In a narrow one thread caches and depots are one column.
    """
    narrow = width < NARROW
    unit = unit_of(account)
    order = sorted(account.classes, key=lambda c: c.live - c.resident)
    table = plain_table(f"Slabs by class, {unit.name} resident: most unused first")
    if len(order) > most:
        table.caption = f"{len(order) - most} more classes: --classes {len(order)}, or --json"
    titles = ("block", "slabs", "live", "thread caches", "depots", "free blocks",
              "never allocated", "colour, tail", "used")  # fmt: skip
    if narrow:
        table.padding = (0, 1, 0, 0)
        titles = ("block", "slabs", "live", "caches,\ndepots", "free\nblocks", "never\nallocated",
                  "colour,\ntail", "used")  # fmt: skip
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for one in order[:most]:
        caches = (one.cached + one.depots,) if narrow else (one.cached, one.depots)
        counts = (one.resident, one.live, *caches, one.free, one.never_allocated, one.rest)
        table.add_row(
            f"{one.block_size:,}{' aligned' if one.aligned else ''}",
            *map(unit.text, counts),
            share(one.live, one.resident),
        )
    return table


def remarks(account: Account) -> list[str]:
    found, unit = [], unit_of(account)
    if account.age_s > AT_REST_S:
        found.append(
            f"The process has not written its page for {account.age_s:.1f} s, as it neither filled "
            "nor emptied a thread cache: what it freed or took last, in up to a quarter of a "
            "second, is not on it."
        )
    for title, count in account.swapped.items():
        if count:
            found.append(
                f"Swapped out, and so not resident: {unit.text(count)} {unit.name} of {title}."
            )
    if account.huge_pages:
        found.append(f"On huge pages: {unit.text(account.huge_pages)} {unit.name}.")
    if account.unseen_stacks:
        found.append(
            f"Stacks of {account.unseen_stacks} threads could not be told (the threads were "
            "running, or the system bars it): they count as other mappings."
        )
    if not account.can_see_zero_pages:
        found.append(
            "This kernel (before Linux 6.7) does not tell pages that were read and never written "
            "to: they count as resident here, and not in smaps."
        )
    if account.unlisted_huge_blocks:
        found.append(
            f"{account.unlisted_huge_blocks} huge blocks are not on the page: they count as other "
            "mappings."
        )
    if account.unmapped_spans:
        found.append(f"{account.unmapped_spans} spans are beyond the page's map.")
    return found


def document(account: Account) -> dict:
    found = asdict(account)
    return found | {
        "groups": account.by_group(),
        "explained": account.explained,
        "difference": account.difference,
    }


def write_picture(path: Path, accounts: Sequence[Account]) -> None:
    write_bytes(path, draw(accounts, path.suffix.removeprefix(".")), PICTURE)


def draw(accounts: Sequence[Account], picture_format: str) -> bytes:
    """One stacked bar for each account, from live memory at the bottom to what is not malloc's."""
    with report.new_figure((max(6.5, 4.5 + 0.4 * len(accounts)), 4.5)) as figure:
        axes = figure.subplots()
        names = [a.when.rpartition("T")[2][:8] if len(accounts) > 1 else a.name for a in accounts]
        places = range(len(accounts))
        below = [0.0] * len(accounts)
        for group, colour in zip(GROUPS, COLOURS):
            heights = [a.by_group()[group] / (1 << 20) for a in accounts]
            told = f"{group}, {heights[0]:,.1f} MB" if len(accounts) == 1 else group
            axes.bar(places, heights, 0.7, below, color=colour, label=told)
            below = [b + h for b, h in zip(below, heights)]
        # A process chooses its name, and a formula in it is none.
        axes.set_xticks(list(places), names, rotation=45 if len(names) > 4 else 0, parse_math=False)
        axes.margins(x=0.6 if len(accounts) == 1 else 0.05)
        axes.set_ylabel("resident, MB")
        axes.set_title(f"{accounts[0].name} ({accounts[0].pid})", fontsize=10, parse_math=False)
        report.grid(axes, "y")
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside right upper")
        return report.picture_of(figure, picture_format)
