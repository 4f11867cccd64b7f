"""Errors meant for the user: one clear message and an exit status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from hakmem.plain_text import printable

# As env, nice and nohup, and the same in every command (docs/comparing.md): 125 for what this
# command lacks or cannot do, 126 for a program that cannot be started, 127 for none of that name.
WRONG_USE, REFUSED, NOT_STARTED, NOT_FOUND = 2, 125, 126, 127

# Stopped by Ctrl-C, as shells report it.
INTERRUPTED = 130


class UserError(click.ClickException):
    """Something the user can put right: a missing build, a bad option, a program that fails."""

    def __init__(self, message: str, exit_status: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_status

    def format_message(self) -> str:
        """In one line, whatever names and paths hold."""
        return printable(self.message)


def warn(command: str, text: str) -> None:
    """One line on stderr; the command goes on."""
    click.echo(f"hakmem {command}: {printable(text)}", err=True)


@contextmanager
def in_one_line() -> Iterator[None]:
    """What click refuses of a command line, in one line as what we refuse of it."""
    # `hakmem` alone is answered with its help.
    is_help = getattr(click.exceptions, "NoArgsIsHelpError", ())
    try:
        yield
    except click.UsageError as error:
        if isinstance(error, is_help):
            raise
        said = error.format_message().rstrip(".")
        end = "" if said.endswith("?") else "."
        hint = f"{end} Try '{error.ctx.command_path} --help'" if error.ctx else ""
        raise UserError(f"{said}{hint}", WRONG_USE) from error
