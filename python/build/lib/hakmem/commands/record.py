"""`hakmem record`: writes down what a program asks of malloc."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from hakmem import files
from hakmem.allocators import peers
from hakmem.allocators.peers import Allocator, bench_program, find
from hakmem.destinations import WORD, output_option, require_apart
from hakmem.documents import HEAD_BYTES, kind, open_descriptor, require_kind, write_json
from hakmem.errors import REFUSED, UserError, warn
from hakmem.options import PROGRAM_LAST, json_option, number_option, option, stdin_option
from hakmem.output import tables
from hakmem.running import programs
from hakmem.running.handover import handing_over
from hakmem.running.launching import input_of
from hakmem.running.proof import IDLE, load_checked
from hakmem.streams import report_stream
from hakmem.traces.trace_summary import TraceSummary, summarise_trace

TRACE = kind("trace", rb"HAKTRACE")
FILE_VARIABLE = "HAKLAB_RECORD_FILE"
LIMIT_VARIABLE = "HAKLAB_RECORD_LIMIT_MB"


@contextmanager
def replacing(path: Path) -> Iterator[None]:
    """Makes way for a new trace, and brings the old one back when the recording fails.

    The old files are put aside, not the new ones beside them: the recorder opens its file by its
    name again and again, also in processes that outlive the command.
    """
    found = files.look(path) if open_descriptor(path) is None else None
    if open_descriptor(path) is not None or (found and not stat.S_ISREG(found.st_mode)):
        raise UserError(f"--output: a trace needs a file, and {path} is none", 2)
    require_kind(path, TRACE, "--output", 2)
    with taken(path), made_way(path):
        yield


@contextmanager
def taken(path: Path) -> Iterator[None]:
    """Refuses a trace that another command records: they would take each other's for old ones.

    A socket without a file has the trace's name: it is free again when the command ends, however.
    """
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()
    with socket.socket(socket.AF_UNIX) as mark:
        try:
            mark.bind(f"\0hakmem-record-{name}")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                why = "is being recorded by another command; nothing was started"
                raise UserError(f"--output: {path} {why}", 2) from error
        yield


@contextmanager
def made_way(path: Path) -> Iterator[None]:
    aside: dict[Path, Path] = {}
    try:
        for old in traces_of(path):
            kept = files.put_aside(old)
            aside[old] = kept
    except OSError as error:
        bring_back(aside)
        raise UserError(f"--output: cannot move {old}: {error.strerror}", 2) from error
    try:
        yield
    except BaseException:
        for new in traces_of(path):
            files.remove(new)
        bring_back(aside)
        raise
    for kept in aside.values():
        files.remove(kept)


def bring_back(aside: Mapping[Path, Path]) -> None:
    for old, kept in aside.items():
        files.move(kept, old)


def traces_of(path: Path) -> list[Path]:
    """An empty file of the name itself gives way as well: the recorder makes its own."""
    is_empty = path.is_file() and path.stat().st_size == 0
    return [p for p in [path, *other_files(path)] if is_trace(p) or (p == path and is_empty)]


def is_trace(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        return TRACE.mark.match(files.begin_of(path, HEAD_BYTES) or b"") is not None
    except OSError:
        return False


def other_files(path: Path) -> list[Path]:
    """The traces of other processes of the same recording: FILE.<process>, FILE.<process>.<n>."""
    name = re.compile(re.escape(path.name) + r"\.\d+(\.\d+)?")
    found = [p for p in path.parent.iterdir() if name.fullmatch(p.name)]
    return sorted(p for p in found if is_trace(p))


def recording_environment(path: Path, below: Allocator, limit_mb: int) -> dict[str, str]:
    preloaded = [
        str(bench_program("librecord.so")),
        str(below.library or ""),
        os.environ.get("LD_PRELOAD", ""),
    ]
    if any(mark in text for text in preloaded[:2] for mark in ": "):
        raise UserError("LD_PRELOAD cannot hold a path with a blank or colon: move it", REFUSED)
    return {
        **os.environ,
        **below.settings,
        "LD_PRELOAD": ":".join(text for text in preloaded if text),
        FILE_VARIABLE: str(path),
        LIMIT_VARIABLE: str(limit_mb),
    }


def record_program(
    command: Sequence[str],
    path: Path,
    below: Allocator,
    limit_mb: int,
    stdin: Path | None = None,
) -> int:
    """Runs the program to its end and returns its status as a shell would give it."""
    environment = recording_environment(path, below, limit_mb)
    # What it does at a signal is recorded as well.
    with input_of(stdin) as file, handing_over() as signals:
        status = signals.popen(command, environment, file).wait()
    return status if status >= 0 else 128 - status


def recorded_traces(path: Path) -> list[TraceSummary]:
    """The first process's trace, then those of the others with most calls first."""
    # On a full disk the recorder leaves an empty one.
    if path.exists() and path.stat().st_size == 0:
        raise UserError(f"nothing was recorded: {path} could not be written, the recorder says why")
    if not path.exists():
        raise UserError(
            f"nothing was recorded: no {path}. The recorder was not loaded (static program, or "
            "one with more rights than yours), or it said why it cannot write"
        )
    others = [summarise_trace(other) for other in other_files(path)]
    found = [summarise_trace(path), *sorted(others, key=lambda s: -s.calls)]
    if not any(summary.calls for summary in found):
        raise UserError(
            "nothing was recorded. Unless the recorder said above why it cannot write, it saw no "
            f"call: {IDLE}, or is started by one that is static or has more rights than yours"
        )
    return found


SHOWN = 10


@click.command(context_settings=PROGRAM_LAST)
@output_option(
    "-o",
    "--output",
    "path",
    default="hakmem.trace",
    text="Trace of PROGRAM. Each further process of it has a trace of its own, FILE.PID.",
    kind=TRACE,
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
    if (holder := programs.require_servable(program)).holds_hakmem:
        warn("record", f"{holder.remark}; the calls of malloc alone are recorded")
    below = peers.require_usable(load_checked(find(on)))
    with replacing(path):
        status = record_program(program, path, below, limit_mb, stdin)
        try:
            found = recorded_traces(path)
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
