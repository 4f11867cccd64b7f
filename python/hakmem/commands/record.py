"""`hakmem record`: writes down what a program asks of malloc."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hakmem.allocators import peers
from hakmem.allocators.peers import find
from hakmem.destinations import WORD, output_option, require_apart
from hakmem.documents import open_descriptor, write_json
from hakmem.errors import UserError
from hakmem.options import PROGRAM_LAST, json_option, number_option, option, stdin_option
from hakmem.output import tables
from hakmem.running import programs
from hakmem.running.proof import load_checked
from hakmem.streams import report_stream
from hakmem.traces import trace_record
from hakmem.traces.trace_summary import TraceSummary

SHOWN = 10


@click.command(context_settings=PROGRAM_LAST)
@output_option(
    "-o",
    "--output",
    "path",
    default="hakmem.trace",
    text="Trace of PROGRAM. Each further process of it has a trace of its own, FILE.PID.",
    kind=trace_record.TRACE,
)
@option("--on", "Allocator of PROGRAM.", "glibc", WORD, metavar="NAME")
@number_option(
    "--limit limit_mb",
    "Stop recording a process when its trace has this size.",
    4096,
    1,
    metavar="MB",
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

    `hakmem replay` repeats them under any allocator. PROGRAM keeps this terminal, and this command
    ends with PROGRAM's exit status (128 + n after signal n). Each call is in the file as soon as it
    is made, so a crash or SIGKILL loses none. Older traces of the same name are replaced once
    something has been recorded; until then they stay.
    """
    require_apart(json_path, "--json")
    if open_descriptor(path) is None:
        path = Path(os.path.realpath(path))
    programs.require_servable(program)
    below = peers.require_usable(load_checked(find(on)))
    with trace_record.replacing(path):
        status = trace_record.record_program(program, path, below, limit_mb, stdin)
        try:
            found = trace_record.recorded_traces(path)
        except UserError as error:
            # A signal that ended it before it was loaded is the status, as in the other commands.
            raise UserError(error.message, status if status > 128 else error.exit_code) from error
    report(found)
    traces = [
        {"trace": str(one.path), "executable": one.executable, "command": one.command,
         "calls": one.calls, **one.figures}
        for one in found
    ]  # fmt: skip
    write_json(json_path, "record", {"exit_status": status, "traces": traces})
    if status:
        raise SystemExit(status)


def report(found: list[TraceSummary]) -> None:
    """On stderr: stdout is the program's."""
    console = tables.make_console(report_stream())
    console.width = max(console.width, tables.PLAIN_WIDTH)
    heads = ("trace", "calls", "threads", "peak live MB", "program")
    rows = [
        (
            summary.path.name,
            f"{summary.calls:,}",
            f"{summary.figures['threads']:,}",
            f"{summary.figures['peak_bytes'] / 1e6:.2f}",
            summary.executable + (", forked" if summary.figures["forked"] else ""),
        )
        for summary in found[:SHOWN]
    ]
    console.print(tables.figures_table("", heads, rows, ("trace", "program")))
    if len(found) > SHOWN:
        console.print(f"and {len(found) - SHOWN} more processes with fewer calls")
