"""The files that commands leave: JSON with one kind of head, written whole or not at all."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

import click

from hakmem.errors import UserError


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def head(command: str) -> dict[str, str]:
    """What every document begins with: which command made it, in which version, when."""
    return {
        "made_by": f"hakmem {command}",
        "version": version("hakmem"),
        "date": now(),
        "command_line": shlex.join(["hakmem", *sys.argv[1:]]),
    }


def write_json(path: Path, command: str, document: Mapping) -> None:
    write_text(path, json.dumps(head(command) | dict(document), indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Takes the file's place at once: an interrupt leaves the old one or the new one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        # In place where it is no plain file, such as /dev/stdout.
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        fresh.write_bytes(data)
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def check_output(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Refuses a file that cannot be written before the work begins, not after it."""
    if path is None or context.resilient_parsing:
        return path
    folder = path.absolute().parent
    option = parameter.opts[0]
    if not folder.is_dir():
        raise UserError(f"{option}: there is no folder {folder}", 2)
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UserError(f"{option}: {path} is not writable", 2)
    return path
