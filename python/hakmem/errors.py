"""Errors meant for the user: one clear message and an exit status."""

from __future__ import annotations

import click

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
