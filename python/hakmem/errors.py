"""Errors meant for the user: one clear message and an exit status."""

from __future__ import annotations

import click


class UserError(click.ClickException):
    """Something the user can put right: a missing build, a bad option, a program that fails."""

    def __init__(self, message: str, exit_status: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_status
