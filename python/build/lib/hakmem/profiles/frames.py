"""One function of a stack."""

from __future__ import annotations

from dataclasses import dataclass

PYTHON, INTERPRETER = "Python", "CPython"


@dataclass(frozen=True)
class Frame:
    """One function of a stack; without a line where none is known."""

    function: str
    file: str = ""
    line: int = 0
    # PYTHON, INTERPRETER, or nothing that matters.
    part: str = ""

    @property
    def where(self) -> str:
        """The file's name and the line."""
        if not self.file:
            return ""
        name = self.file.rpartition("/")[2]
        return f"{name}:{self.line}" if self.line else name

    def __str__(self) -> str:
        return f"{self.function} ({self.where})" if self.file else self.function
