"""`hakmem explain`: where every resident byte of a process is."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from hakmem import environment, options
from hakmem.allocators.settings import overridden, own_settings
from hakmem.commands.run import chosen_settings, preloading, require_build
from hakmem.destinations import WORD, output_option, require_apart
from hakmem.documents import PICTURE, kind, open_descriptor, write_bytes, write_json, write_text
from hakmem.errors import INTERRUPTED, UserError, warn
from hakmem.extras import require_asked
from hakmem.output import report
from hakmem.output.streams import make_console
from hakmem.output.tables import NARROW, PLAIN_WIDTH, plain_table
from hakmem.processes import stats_page
from hakmem.processes.accounting import GROUPS, Account, explain_process
from hakmem.processes.live_figures import AT_REST_S
from hakmem.running import programs
from hakmem.running.handover import handing_over
from hakmem.running.launching import signal_name
from hakmem.running.threads import has_ended, seen_by
from hakmem.streams import is_lost, report_stream

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
    table.caption = (
        f"{ESTIMATED} estimated, within some 5 %: slabs of one size class count as equally "
        "resident, and sizes that were asked for are a sample's"
    )
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


PAGE_SETTING = "HAKMEM_STATS_PAGE"
# How long a program may take to its page.
PAGE_LIMIT_S, LOOK_EACH_S = 1.0, 0.01
EXPLANATION = kind("explanation", rb"[^\n]* \(\d+\): [\d.,]+ [KM]B resident, explained ")


@click.command(cls=options.TargetCommand, context_settings=options.PROGRAM_LAST)
@options.number_option(
    "--after after_s", "Explain PROGRAM so long after its start.", 1.0, 0.0, metavar="SECONDS"
)
@options.number_option(
    "--every every_s",
    "Explain again and again, until the process ends.",
    least=0.1,
    metavar="SECONDS",
)
@options.set_option()
@options.option("--profile", "HAKMEM_PROFILE for PROGRAM.", None, WORD, metavar="PROFILE")
@options.number_option(
    "--classes",
    "Lines of the table of size classes; 0: no such table.",
    CLASSES_SHOWN,
    0,
    metavar="N",
)
@options.plot_option("--plot", "plot_path", "Draw it as a stacked bar: .svg or .png.")
@options.json_option()
@output_option(
    "--output",
    "output_path",
    text="Write the tables there; PROGRAM's: else to stderr.",
    kind=EXPLANATION,
)
@click.argument(
    "target",
    nargs=-1,
    required=True,
    metavar="PID|PROGRAM",
    type=click.UNPROCESSED,
    shell_complete=options.complete_pids,
)
def explain(
    after_s: float,
    every_s: float | None,
    settings: tuple[str, ...],
    profile: str | None,
    classes: int,
    plot_path: Path | None,
    json_path: Path | None,
    output_path: Path | None,
    target: tuple[str, ...],
) -> None:
    """Account for every resident byte of a process under hakmem.

    hakmem explain PID for one that was started with HAKMEM_STATS_PAGE=1, or hakmem explain
    [OPTIONS] -- PROGRAM [ARGUMENT]..., which starts it so. What stands behind -- is a PROGRAM, a
    number too. The process is read from outside: no ptrace, no signal, no pause. PROGRAM keeps its
    input, output and exit status.
    """
    of_process = options.is_pid(target[0]) and not options.is_behind_dashes()
    pid = options.process_of(target[0]) if of_process else 0
    if of_process and len(target) > 1:
        raise UserError(f"one PID, and no more: {' '.join(target[1:])}", 2)
    if of_process:
        options.refuse("a PID is of a process that runs", {"settings", "profile", "after_s"})
    else:
        # Both say what is wrong with the command line, before a package is missing.
        if PAGE_SETTING in own_settings("--set", settings):
            raise UserError(f"--set: {PAGE_SETTING} is set by this command", 2)
        require_apart(json_path, "--json")
        programs.require_program(target)
    require_asked()
    series = Series(output_path, not of_process, classes, every_s)
    if of_process:
        status = series.of_process(pid)
    else:
        status = series.of_program(target, profile, settings, after_s)
    if series.accounts:
        series.console.print(f"\nExplained {environment.signature()}", soft_wrap=True)
        series.publish()
        found = [document(account) for account in series.accounts]
        write_json(json_path, "explain", {"explanations": found})
        if plot_path is not None:
            write_picture(plot_path, series.accounts)
    raise SystemExit(status)


class Series:
    """One explanation, or one each so many seconds."""

    def __init__(
        self, path: Path | None, to_stderr: bool, classes: int, every_s: float | None
    ) -> None:
        self.path, self.classes, self.every_s = path, classes, every_s
        self.kept = io.StringIO()
        stream = report_stream() if to_stderr else sys.stdout
        self.console = make_console(stream if path is None else self.kept)
        self.accounts: list[Account] = []

    def publish(self) -> None:
        """The file that was asked for is whole again: what has been shown until now."""
        if self.path is not None:
            write_text(self.path, self.kept.getvalue(), EXPLANATION)
            if open_descriptor(self.path) is not None:
                # A stream has it already.
                self.kept.seek(0)
                self.kept.truncate()

    def take(self, pid: int) -> None:
        account = explain_process(pid)
        self.accounts.append(account)
        show(self.console, account, self.classes)
        if children := stats_page.children_with_pages(pid):
            told = ", ".join(f"{name} ({child})" for child, name in children.items())
            self.console.print(f"It has started others, to be explained by their PID: {told}.")
        self.publish()

    def of_process(self, pid: int) -> int:
        try:
            self.take(pid)
            self.repeat(pid, time.sleep)
        except KeyboardInterrupt:
            return INTERRUPTED if self.every_s is None else 0
        return 0

    @property
    def is_unread(self) -> bool:
        """Whether the tables go nowhere any more: then there is no end to wait for."""
        return is_lost(self.console.file)

    def repeat(self, pid: int, pause: Callable[[float], object]) -> None:
        """Until the process ends, which is no failure once it has been explained."""
        while self.every_s is not None and not self.is_unread:
            if pause(self.every_s):
                return
            try:
                self.take(pid)
            except UserError:
                if not has_ended(seen_by(pid)):
                    raise
                return

    def of_program(
        self,
        program: Sequence[str],
        profile: str | None,
        settings: Sequence[str],
        after_s: float,
    ) -> int:
        """Its exit status; a failure of ours shows in it only if the program itself had none."""
        environment = explained_environment(program, profile, settings)
        with handing_over() as signals:
            process = signals.popen(program, environment)
            failed = False
            try:
                if after_s and ended_within(process, after_s):
                    told = f"{how_it_ended(process)} within {after_s:g} s"
                    sooner = ": --after SECONDS explains it sooner"
                    raise UserError(told + (sooner if process.returncode >= 0 else ""))
                self.take_first(process)
                self.repeat(process.pid, lambda seconds: ended_within(process, seconds))
            except UserError as error:
                warn("explain", error.format_message())
                failed = True
            status = process.wait()
        if status < 0:
            return 128 - status
        return status or (1 if failed else 0)

    def take_first(self, process: subprocess.Popen) -> None:
        """Waits for the page, which a program makes at its start, and so for the program itself:
        until then the process is a copy of this one."""
        end = time.monotonic() + PAGE_LIMIT_S
        while True:
            try:
                self.take(process.pid)
                return
            except UserError as error:
                if ended_within(process, LOOK_EACH_S):
                    told = f"{how_it_ended(process)} before it was explained: {error.message}"
                    raise UserError(told) from error
                if time.monotonic() > end:
                    raise


def ended_within(process: subprocess.Popen, seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def how_it_ended(process: subprocess.Popen) -> str:
    status = process.returncode
    if status < 0:
        return f"the program was killed by {signal_name(-status)}"
    return "the program ended"


def explained_environment(
    program: Sequence[str], profile: str | None, settings: Sequence[str]
) -> dict[str, str]:
    chosen, library = chosen_settings(profile, settings, with_environment=True)
    found = programs.examine(program)
    if not found.holds_hakmem:
        programs.require_servable(program)
    require_build(found, chosen, "--profile")
    for line in overridden({PAGE_SETTING: "1"}):
        warn("explain", line)
    return {**os.environ, **chosen, **preloading(found, library), PAGE_SETTING: "1"}
