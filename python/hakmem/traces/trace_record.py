"""Runs a program with the recorder preloaded, and finds the traces it left."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hakmem.allocators.peers import Allocator, bench_program
from hakmem.documents import HEAD_BYTES, kind, open_descriptor, require_kind
from hakmem.errors import REFUSED, UserError
from hakmem.running.handover import handing_over
from hakmem.running.launching import input_of
from hakmem.running.proof import IDLE
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
    if open_descriptor(path) is not None or (path.exists() and not path.is_file()):
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
            kept = old.with_name(f"{old.name}.old-{os.getpid()}")
            old.replace(kept)
            aside[old] = kept
    except OSError as error:
        bring_back(aside)
        raise UserError(f"--output: cannot move {old}: {error.strerror}", 2) from error
    try:
        yield
    except BaseException:
        for new in traces_of(path):
            new.unlink(missing_ok=True)
        bring_back(aside)
        raise
    for kept in aside.values():
        kept.unlink(missing_ok=True)


def bring_back(aside: Mapping[Path, Path]) -> None:
    for old, kept in aside.items():
        kept.replace(old)


def traces_of(path: Path) -> list[Path]:
    """An empty file of the name itself gives way as well: the recorder makes its own."""
    is_empty = path.is_file() and path.stat().st_size == 0
    return [p for p in [path, *other_files(path)] if is_trace(p) or (p == path and is_empty)]


def is_trace(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return TRACE.mark.match(file.read(HEAD_BYTES)) is not None
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
