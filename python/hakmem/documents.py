"""The files that commands leave: JSON with one kind of head, written whole or not at all."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

import click

from hakmem.errors import UserError

# An open file of ours by its name. Opened anew it would be written from its start, over what is
# there, and put aside it would be another file than the one that is open.
OPEN_FILE = re.compile(r"/dev/(?P<name>stdout|stderr)|(?:/dev|/proc/self)/fd/(?P<number>\d+)")
STANDARD = {"stdout": 1, "stderr": 2}


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def head(command: str) -> dict[str, str]:
    """What every document begins with: which command made it, in which version, when."""
    return {
        "made_by": f"hakmem {command}",
        "version": version("hakmem"),
        "date": now(),
        "host": platform.node(),
        "command_line": shlex.join(["hakmem", *sys.argv[1:]]),
    }


def write_json(path: Path, command: str, document: Mapping) -> None:
    write_text(path, json.dumps(head(command) | dict(document), indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    # A file's name on a command line need not be text.
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Takes the file's place at once: an interrupt or a full disk leaves the old one."""
    try:
        if (descriptor := open_descriptor(path)) is not None:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(data)
            return
        target = Path(os.path.realpath(path))
        if not is_replaceable(target):
            target.write_bytes(data)
            return
        fresh = beside(target)
        try:
            fresh.write_bytes(data)
            take_place(fresh, target)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def open_descriptor(path: Path) -> int | None:
    """The descriptor that a name such as /dev/stdout stands for."""
    found = OPEN_FILE.fullmatch(str(path))
    if found is None:
        return None
    return STANDARD[found["name"]] if found["name"] else int(found["number"])


def is_replaceable(target: Path) -> bool:
    """False for a pipe or a device, and in a folder that takes no new file."""
    if target.exists() and not target.is_file():
        return False
    return not target.exists() or os.access(target.parent, os.W_OK)


def beside(target: Path) -> Path:
    """A name that no other process uses, in the same folder; short, for the longest of names."""
    return target.with_name(f".hakmem-{os.getpid()}.new")


def take_place(fresh: Path, target: Path) -> None:
    """Puts a file that is whole where another may lie, with that one's rights."""
    with suppress(FileNotFoundError):
        fresh.chmod(stat.S_IMODE(target.stat().st_mode))
    fresh.replace(target)


class Growing:
    """A text file that is written piece by piece; the old one stays until the first is whole."""

    def __init__(self, path: Path) -> None:
        self.target = Path(os.path.realpath(path))
        in_place = open_descriptor(path) is not None or not is_replaceable(self.target)
        self.fresh = None if in_place else beside(self.target)
        try:
            if (descriptor := open_descriptor(path)) is not None:
                self.file: TextIO = os.fdopen(os.dup(descriptor), "w", errors="backslashreplace")
            else:
                self.file = (self.fresh or self.target).open("w", errors="backslashreplace")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error

    def publish(self) -> None:
        """What has been written is whole: from now on it is the file of that name."""
        self.file.flush()
        if self.fresh is not None:
            take_place(self.fresh, self.target)
            self.fresh = None


@contextmanager
def growing(path: Path) -> Iterator[Growing]:
    document = Growing(path)
    try:
        yield document
        document.file.close()
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            document.file.close()
        if document.fresh is not None:
            document.fresh.unlink(missing_ok=True)


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
