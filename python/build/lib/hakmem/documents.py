"""The files that commands leave: JSON with one kind of head, written whole or not at all."""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import shlex
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from hakmem import files
from hakmem.errors import UserError

# An open file of ours by its name. Opened anew it would be written from its start, over what is
# there, and put aside it would be another file than the one that is open.
OPEN_FILE = re.compile(r"/dev/(?P<name>stdout|stderr)|(?:/dev|/proc/self)/fd/(?P<number>\d+)")
STANDARD = {"stdout": 1, "stderr": 2}
# Of a file that is there, as much as shows its kind.
HEAD_BYTES = 1 << 16


@dataclass(frozen=True)
class Kind:
    """A kind of file that hakmem writes; `mark` fits how each of them begins."""

    name: str
    mark: re.Pattern[bytes]


def kind(name: str, mark: bytes) -> Kind:
    return Kind(name, re.compile(mark, re.DOTALL))


# The line of a page's head, and the name in a picture's, that `mark` looks for.
GENERATOR = '<meta name="generator" content="hakmem">'
PICTURE_MAKER = {"svg": {"Date": None, "Creator": "hakmem"}, "png": {"Software": "hakmem"}}
# It would tell of its caches, which it puts into another folder where HOME takes none.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
JSON = kind("JSON file", rb'\{\s*"made_by": "hakmem ')
HTML = kind("report", rb"<!doctype html>.{,300}?" + GENERATOR.encode())
PICTURE = kind("picture", rb"(<\?xml.{,1500}?<dc:title>hakmem<|\x89PNG.{,200}?Software\0hakmem)")
PICTURE_ENDINGS = (".svg", ".png")
MARKDOWN = kind("Markdown file", rb"(# [^\n]*\n+)?<!-- Written by `hakmem ")


def written_by(command: str) -> str:
    """A line of Markdown that nobody sees in the page."""
    return f"<!-- Written by `hakmem {command}`. -->"


def table_kind(columns: Sequence[str], comment: str = "") -> Kind:
    """A CSV file is known by its columns, behind the comment that may begin it."""
    before = rb"(" + re.escape(comment).encode() + rb"[^\n]*\n)?"
    return kind("CSV file", before + re.escape(",".join(columns)).encode() + rb"\r?\n")


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


def write_json(path: Path | None, command: str, document: Mapping) -> None:
    """Nothing where no file was asked for."""
    if path is not None:
        write_text(path, json.dumps(head(command) | dict(document), indent=1) + "\n", JSON)


def write_text(path: Path, text: str, kind: Kind | None = None) -> None:
    # A file's name on a command line need not be text.
    write_bytes(path, text.encode(errors="backslashreplace"), kind)


def write_bytes(path: Path, data: bytes, kind: Kind | None = None) -> None:
    """Takes the file's place at once: an interrupt or a full disk leaves the old one.

    With a kind, a file of another one stays: the program that ran may have written it.
    """
    if kind is not None:
        require_kind(path, kind)
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if (descriptor := open_descriptor(path)) is not None:
            files.write_to(os.dup(descriptor), data)
        else:
            files.replace(path, data)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def require_kind(path: Path, kind: Kind, option: str = "", exit_status: int = 1) -> None:
    """Refuses to replace a file that is evidently not one of ours, and of this kind."""
    if open_descriptor(path) is not None:
        return
    try:
        begin = files.begin_of(path, HEAD_BYTES)
    except OSError as error:
        raise UserError(f"cannot read {path}, to be replaced: {error.strerror}", 2) from error
    if begin and not kind.mark.match(begin):
        raise UserError(
            f"{option}{': ' if option else ''}{path} is there and is no {kind.name} of hakmem: not "
            "replaced (remove it, or give another name)",
            exit_status,
        )


def open_descriptor(path: Path) -> int | None:
    """The descriptor that a name such as /dev/stdout stands for."""
    found = OPEN_FILE.fullmatch(str(path))
    if found is None:
        return None
    return STANDARD[found["name"]] if found["name"] else int(found["number"])


def is_named_pipe(path: Path) -> bool:
    """To open one waits for whoever opens the other end; that of a shell's <(…) is open."""
    mode = path.stat().st_mode
    return stat.S_ISFIFO(mode) and os.path.lexists(os.path.realpath(path))
