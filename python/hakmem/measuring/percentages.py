"""Shares on the command line: 1% and 0.01 mean the same."""

from __future__ import annotations

import click


class Percentage(click.ParamType):
    """A share above 0 and below 1, from a percentage or a fraction."""

    name = "percent"

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        except ValueError:
            share = -1.0
        if not 0 < share < 1:
            self.fail(
                f"'{text}' is no share above 0 and below 100%{hint(text)}", parameter, context
            )
        return share


def hint(text: str) -> str:
    """A number without a sign of percent may be meant as one."""
    if text.isdecimal() and 0 < int(text[:4]) < 100:
        return f": write {text}% or {int(text) / 100:g}"
    return " (such as 1% or 0.01)"


PERCENT = Percentage()
