"""The files that a command is asked to write, as options of its command line.

All are looked at before anything runs: each can be written, no two are one file, none is read by
the command or by the program that it runs, and what is there already was written by hakmem. An open
pipe or a device keeps nothing and is written as it is; a named pipe might never be read.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from functools import wraps
from pathlib import Path
from typing import NamedTuple

import click

from hakmem import files
from hakmem.documents import Kind, is_named_pipe, open_descriptor, require_kind
from hakmem.errors import UserError

STREAMS = ("input", "output", "error output")
STDOUT = Path("/dev/stdout")


class Destination(NamedTuple):
    option: str
    path: Path
    kind: Kind


class Word(click.types.StringParamType):
    """A text that is no file, whatever there may be of its name; behind an equals sign a file may
    stand."""


WORD = Word()


class OutputFile(click.Path):
    """A file to be written; `-` is the standard output."""

    def __init__(self, kind: Kind, endings: Sequence[str] = ()) -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self.kind, self.endings = kind, endings

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        option = name_of(param)
        require_name(option, str(value))
        if self.endings and not str(value).endswith(tuple(self.endings)):
            told = f"'{value}' does not end in {' or '.join(self.endings)}"
            raise UserError(f"{option}: {told}", 2)
        path = STDOUT if value == "-" else super().convert(value, param, ctx)
        require_writable(option, path)
        return path


class OutputPrefix(click.Path):
    """A folder, or the beginning of the names of files."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        option = name_of(param)
        require_name(option, str(value))
        path = super().convert(value, param, ctx)
        mode = mode_of(option, path)
        is_place = mode is None or stat.S_ISDIR(mode) or stat.S_ISREG(mode)
        if value == "-" or open_descriptor(path) is not None or not is_place:
            raise UserError(f"{option}: reports are files: '{value}' is no place for them", 2)
        require_folder(option, path if mode is not None and stat.S_ISDIR(mode) else path.parent)
        return path


def require_name(option: str, text: str) -> None:
    """A path forgets a slash at its end, and an empty one is the current folder."""
    if not text:
        raise UserError(f"{option}: no file is named", 2)
    if text.endswith("/") and not Path(text).is_dir():
        raise UserError(f"{option}: there is no folder {text}", 2)


def mode_of(option: str, path: Path) -> int | None:
    """What a path leads to; None where there is nothing yet."""
    try:
        found = files.look(path)
        return found and found.st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"{option}: {path}: {error.strerror}", 2) from error


def resolved(option: str, path: Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except OSError as error:
        raise UserError(f"{option}: the current folder was removed", 2) from error


def require_folder(option: str, folder: Path) -> None:
    mode_of(option, folder)
    folder = resolved(option, folder)
    if not folder.is_dir():
        raise UserError(f"{option}: there is no folder {folder}", 2)
    if not os.access(folder, os.W_OK):
        raise UserError(f"{option}: {folder} is not writable", 2)


def require_writable(option: str, path: Path) -> None:
    if (descriptor := open_descriptor(path)) is not None:
        with suppress(OSError):
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                return
        raise UserError(f"{option}: {path} is not open for writing", 2)
    mode = mode_of(option, path)
    if mode is None:
        # A link to nothing is followed: the file is made where it points.
        require_folder(option, resolved(option, path).parent)
    elif stat.S_ISDIR(mode):
        raise UserError(f"{option}: {path} is a folder", 2)
    elif is_named_pipe(path):
        raise UserError(f"{option}: {path} is no plain file", 2)
    elif not os.access(path, os.W_OK):
        raise UserError(f"{option}: {path} is not writable", 2)


def output_option(
    *names: str,
    text: str,
    kind: Kind,
    callback: Callable | None = None,
    default: str | None = None,
    endings: Sequence[str] = (),
) -> Callable:
    """An option that names a file to write."""
    option = click.option(
        *names, type=OutputFile(kind, endings), callback=callback, default=default,
        show_default=True, metavar="FILE", help=text,
    )  # fmt: skip
    return lambda function: option(separate(function))


def name_of(parameter: click.Parameter | None) -> str:
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return "an argument"


def separate(function: Callable) -> Callable:
    """The command, run only once its files are known to be free; its report makes way for a file
    that is the standard output."""
    if getattr(function, "has_separate_files", False):
        return function

    @wraps(function)
    def checked(*arguments: object, **given: object) -> object:
        context = click.get_current_context()
        wanted = [
            Destination(name_of(parameter), context.params[parameter.name], parameter.type.kind)
            for parameter in context.command.params
            if isinstance(parameter.type, OutputFile) and context.params.get(parameter.name)
        ]
        require_free(wanted, context)
        way = nullcontext()
        if any(one.path == STDOUT for one in wanted):
            sys.stdout.flush()
            way = redirect_stdout(sys.stderr)
        with way:
            return function(*arguments, **given)

    checked.has_separate_files = True
    return checked


def require_apart(path: Path | None, option: str) -> None:
    """Refuses, for what this command tells, the standard output that PROGRAM writes to."""
    if path is not None and open_descriptor(path) == 1:
        raise UserError(f"{option}: the standard output is PROGRAM's: name a file", 2)


def require_free(wanted: Sequence[Destination], context: click.Context) -> None:
    """Refuses a file that is another one of this command, and one that is not hakmem's."""
    taken: dict[tuple, str] = dict(open_streams())
    for name, word in words(context):
        with suppress(OSError, ValueError):
            if own := identity(Path(word)):
                taken.setdefault(own, f"what {name} names")
    for option, path, kind in wanted:
        if open_descriptor(path) is None and (own := identity(path)):
            if own in taken:
                raise UserError(f"{option}: {path} is also {taken[own]}; nothing was started", 2)
            taken[own] = f"what {option} names"
            require_kind(path, kind, option, 2)


def identity(path: Path) -> tuple | None:
    """The same for all names of a file, also of one that is yet to be made; None for a pipe, a
    device or a folder, of which nothing can be lost."""
    try:
        found = path.stat()
    except FileNotFoundError:
        target = Path(os.path.realpath(path))
        folder = target.parent.stat()
        return folder.st_dev, folder.st_ino, target.name
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def open_streams() -> Iterator[tuple[tuple, str]]:
    for number, name in enumerate(STREAMS):
        with suppress(OSError):
            found = os.fstat(number)
            if stat.S_ISREG(found.st_mode):
                yield (found.st_dev, found.st_ino), f"the standard {name}"


def words(context: click.Context) -> Iterator[tuple[str, str]]:
    """All words of the command line that may name a file which is read: arguments, values of
    options that are no mere Word, what stands behind an equals sign, and the words of a command
    that is one value."""
    for parameter in context.command.params:
        if isinstance(parameter.type, (OutputFile, OutputPrefix)):
            continue
        name = name_of(parameter)
        for text in texts(context.params.get(parameter.name)):
            parts = [text]
            with suppress(ValueError):
                parts += shlex.split(text)
            whole = [] if isinstance(parameter.type, Word) else parts
            for word in (*whole, *(part.partition("=")[2] for part in parts)):
                if word:
                    yield name, word


def texts(value: object) -> Iterator[str]:
    if isinstance(value, (str, Path)):
        yield str(value)
    elif isinstance(value, Iterable):
        for one in value:
            yield from texts(one)
