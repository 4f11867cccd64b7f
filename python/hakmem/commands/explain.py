"""`hakmem explain`: where every resident byte of a process is."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from hakmem import environment, options
from hakmem.allocators.settings import overridden, own_settings
from hakmem.commands.run import appended, chosen_settings
from hakmem.destinations import WORD, output_option, require_apart
from hakmem.documents import kind, open_descriptor, write_json, write_text
from hakmem.errors import INTERRUPTED, UserError, warn
from hakmem.extras import require_asked
from hakmem.output import accounting_view
from hakmem.output.streams import make_console
from hakmem.processes import stats_page
from hakmem.processes.accounting import Account, explain_process
from hakmem.running import programs
from hakmem.running.handover import handing_over
from hakmem.running.launching import signal_name
from hakmem.running.threads import has_ended, seen_by
from hakmem.streams import is_lost, report_stream

PAGE_SETTING = "HAKMEM_STATS_PAGE"
# How long a program may take to its page.
PAGE_LIMIT_S, LOOK_EACH_S = 1.0, 0.01
EXPLANATION = kind("explanation", rb"[^\n]* \(\d+\): [\d.,]+ [KM]B resident, explained ")


@click.command(
    short_help="Where every resident byte of a process is.",
    cls=options.TargetCommand,
    context_settings=options.PROGRAM_LAST,
)
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
    accounting_view.CLASSES_SHOWN,
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
@click.argument("target", nargs=-1, required=True, metavar="PID|PROGRAM", type=click.UNPROCESSED)
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
    pid = options.pid_of(target[0]) if of_process else 0
    if of_process and len(target) > 1:
        raise UserError(f"options go before the PID: {' '.join(target[1:])}", 2)
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
        found = [accounting_view.document(account) for account in series.accounts]
        write_json(json_path, "explain", {"explanations": found})
        if plot_path is not None:
            accounting_view.write_picture(plot_path, series.accounts)
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
        accounting_view.show(self.console, account, self.classes)
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
    if not programs.examine(program).holds_hakmem:
        programs.require_servable(program)
    for line in overridden({PAGE_SETTING: "1"}):
        warn("explain", line)
    return {**os.environ, **chosen, "LD_PRELOAD": appended(library), PAGE_SETTING: "1"}
