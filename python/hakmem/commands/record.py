"""`hakmem record`: writes down what a program asks of malloc."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from rich import box
from rich.table import Table

from hakmem.allocators import peers
from hakmem.allocators.peers import find
from hakmem.destinations import output_option
from hakmem.documents import open_descriptor, write_json
from hakmem.options import PROGRAM_LAST, json_option, stdin_option
from hakmem.output import tables
from hakmem.running import programs
from hakmem.running.proof import load_checked
from hakmem.traces.trace_record import (
    TRACE,
    record_program,
    recorded_traces,
    replacing,
)
from hakmem.traces.trace_summary import TraceSummary

SHOWN = 10


@click.command(context_settings=PROGRAM_LAST)
@output_option(
    "-o",
    "--output",
    "path",
    default="hakmem.trace",
    text="Trace of the first process; others go to FILE.<process id>.",
    kind=TRACE,
)
@click.option("--on", default="glibc", show_default=True, metavar="NAME", help="Allocator below.")
@click.option(
    "--limit",
    "limit_mb",
    default=4096,
    show_default=True,
    type=click.IntRange(1),
    metavar="MB",
    help="Recording stops where a file gets larger.",
)
@stdin_option()
@json_option()
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def record(
    path: Path,
    on: str,
    limit_mb: int,
    stdin: Path | None,
    json_path: Path | None,
    program: tuple[str, ...],
) -> None:
    """Record the allocations of PROGRAM: hakmem record [OPTIONS] -- PROGRAM [ARGUMENT]...

    `hakmem replay` repeats them under any allocator. The program has this terminal, and its exit
    status becomes that of this command (128 + n after signal n). Programs it starts, and children
    it forks, each get a file of their own. What is recorded is in the file at once: a crash or
    SIGKILL loses nothing that was. Traces of that name are replaced when something was recorded.
    """
    if open_descriptor(path) is None:
        path = Path(os.path.realpath(path))
    programs.require_servable(program)
    below = peers.require_usable(load_checked(find(on)))
    with replacing(path):
        status = record_program(program, path, below, limit_mb, stdin)
        found = recorded_traces(path)
    report(found)
    if json_path is not None:
        traces = [trace_json(summary) for summary in found]
        write_json(json_path, "record", {"exit_status": status, "traces": traces})
    if status:
        raise SystemExit(status)


def trace_json(summary: TraceSummary) -> dict:
    return {
        "trace": str(summary.path),
        "executable": summary.executable,
        "command": summary.command,
        "calls": summary.calls,
        **summary.figures,
    }


def report(found: list[TraceSummary]) -> None:
    """On stderr: stdout is the program's."""
    console = tables.make_console(sys.stderr)
    console.width = max(console.width, tables.PLAIN_WIDTH)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for title, side in (("trace", "left"), ("calls", "right"), ("threads", "right"),
                        ("peak live MB", "right"), ("program", "left")):  # fmt: skip
        table.add_column(title, justify=side, overflow="fold")
    for summary in found[:SHOWN]:
        kind = ", forked" if summary.figures["forked"] else ""
        table.add_row(
            summary.path.name,
            f"{summary.calls:,}",
            f"{summary.figures['threads']:,}",
            f"{summary.figures['peak_bytes'] / 1e6:.2f}",
            f"{summary.executable}{kind}",
        )
    console.print(table)
    if len(found) > SHOWN:
        console.print(f"and {len(found) - SHOWN} more processes with fewer calls")
