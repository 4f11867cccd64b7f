"""Text that others have written, made fit to show: a name may hold what a terminal obeys, and JSON
may be cut short."""

from __future__ import annotations

import json
from collections.abc import Sequence

# What lays out a text of several lines; the blank is the one that no line is broken at.
LAYOUT = "\n\t\xa0"
LAST_LINES, LAST_CHARACTERS = 5, 2000


def printable(text: str, kept: str = "") -> str:
    """Control characters, and those that turn the direction of writing, as \\x1b and the like."""
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text
    )


def parse_json(text: bytes | str, what: str = "the file", **hooks) -> object:
    """ValueError says in plain words why it is no JSON."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        return json.loads(text, **hooks)
    except UnicodeDecodeError as error:
        raise ValueError(f"{what} is no text") from error
    except json.JSONDecodeError as error:
        raise ValueError(how_it_fails(error, what)) from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def how_it_fails(error: json.JSONDecodeError, what: str) -> str:
    if not error.doc.strip():
        return f"{what} is empty"
    at_its_end = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated")
    if at_its_end and error.doc.lstrip()[0] in '{["':
        return f"{what} ends in the middle"
    return f"{what} is no JSON at line {error.lineno}, column {error.colno}"


def some(names: Sequence[object], most: int) -> str:
    """The first of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def last_lines(text: str, lines: int = LAST_LINES) -> str:
    """The end of what a program wrote, short enough to be repeated on a terminal."""
    text = text.strip()
    kept = "\n".join(text.splitlines()[-lines:])
    return kept if len(kept) <= LAST_CHARACTERS else f"…{kept[-LAST_CHARACTERS:]}"


def with_last_words(problem: str, said: str) -> str:
    """A problem and what a program last said, in one line."""
    lines = last_lines(said).splitlines()
    words = " / ".join(line.strip() for line in lines if line.strip())
    return f"{problem}; it last said: {printable(words)}" if words else problem
