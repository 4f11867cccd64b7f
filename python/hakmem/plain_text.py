"""Text that others have written, made fit to show: a name may hold what a terminal obeys."""

from __future__ import annotations


def printable(text: str) -> str:
    """Control characters, and those that turn the direction of writing, as \\x1b and the like."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
