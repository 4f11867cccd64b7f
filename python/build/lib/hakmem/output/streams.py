"""Where tables are written: a terminal, a pipe or a file, in UTF-8 or in ASCII.

No name or path in a table reaches a terminal as something that the terminal obeys.

Outside a terminal a line has no blanks at its end. Where UTF-8 cannot be shown, a sign of one
column stands for a sign of one column: tables stay aligned.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

from rich.console import Console
from rich.text import Text

from hakmem.plain_text import LAYOUT, printable

# Wide enough for every table here when there is no terminal to ask. COLUMNS does not count: what
# uses readline leaves 80 in it for its children.
PLAIN_WIDTH = 150
BLANKS_AT_END = re.compile(r"[ \t]+(?=\n)")
# By number where a sign looks like one of ASCII: en and em dash, quotation marks, blank, times.
IN_ASCII = str.maketrans({
    "÷": "/", "±": "~", "≈": "~", "≤": "<", "≥": ">", "←": "<", "→": ">", "…": "~", "─": "-",
    "━": "-", "╸": "-", "╺": "-", "│": "|", "█": "@", "▓": "%", "▒": "+", "░": ":", "·": ".",
    0x2013: "-", 0x2014: "-", 0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0xA0: " ",
    0xD7: "x",
})  # fmt: skip


class PlainStream:
    """A text file as rich sees it: the same but for the blanks and signs above."""

    encoding = "utf-8"

    def __init__(self, file: TextIO, ascii_only: bool) -> None:
        self._file, self._ascii_only, self._strips = file, ascii_only, not file.isatty()

    def write(self, text: str) -> int:
        if self._strips:
            text = BLANKS_AT_END.sub("", text)
        if self._ascii_only:
            text = text.translate(IN_ASCII).encode("ascii", "backslashreplace").decode()
        return self._file.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


class PlainConsole(Console):
    """Every string that is printed, also in a cell of a table, becomes a text here."""

    def render_str(self, text: str, **how: object) -> Text:
        return super().render_str(printable(text, LAYOUT), **how)


def shows_unicode(file: TextIO) -> bool:
    encoding = getattr(file, "encoding", None) or "utf-8"
    if encoding.lower().replace("-", "").replace("_", "") != "utf8":
        return False
    # With LC_ALL=C Python writes UTF-8, to a terminal that was told to be of ASCII.
    given = (os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    locale = next((value for value in given if value), "")
    return not locale or "utf" in locale.lower()


def make_console(file: TextIO | None = None) -> Console:
    """For stdout, or for a file."""
    file = sys.stdout if file is None else file
    is_terminal, unicode = file.isatty(), shows_unicode(file)
    # Paths and command lines may hold brackets and colons: nothing in them is markup.
    return PlainConsole(
        file=file if is_terminal and unicode else PlainStream(file, not unicode),  # type: ignore[arg-type]
        width=None if is_terminal else PLAIN_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )
