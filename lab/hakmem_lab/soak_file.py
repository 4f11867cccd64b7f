"""The CSV of a soak: one line an epoch, written as it ends, so that a stop loses nothing.

The first line is a comment that holds what the run is made of, as JSON; a run is continued from
it. A last line that was cut short is dropped.
"""

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from hakmem.documents import write_text
from hakmem.errors import UserError
from hakmem.plain_text import parse_json

MARK = "# hakmem soak "


@dataclass(frozen=True)
class Epoch:
    """One epoch of a long process, or one process of a repeated program.

    `process` counts the long process's starts; what a repeated program does not tell is empty.
    """

    time: str
    elapsed_s: float
    round: int
    load: str
    allocator: str
    process: int
    epoch: int
    ops: int | None
    seconds: float
    ops_per_sec: float
    rss_kb: int
    peak_rss_kb: int
    live_kb: int | None
    p50_ns: float | None
    p99_ns: float | None
    p999_ns: float | None
    max_ns: float | None


COLUMNS = tuple(field.name for field in fields(Epoch))


@dataclass(frozen=True)
class Record:
    """A whole file: the comment at its head (empty in a file of other origin) and its epochs."""

    head: dict
    epochs: list[Epoch]


def begin(path: Path, head: Mapping) -> None:
    write_text(path, f"{MARK}{json.dumps(head)}\n{','.join(COLUMNS)}\n")


def append(path: Path, epoch: Epoch) -> None:
    """Adds one line; it is with the system when this returns."""
    values = ["" if (v := getattr(epoch, name)) is None else v for name in COLUMNS]
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    try:
        with path.open("a") as file:
            file.write(line.getvalue())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def read(path: Path) -> Record:
    """What whole lines say; a line that ends without a newline was cut and does not count."""
    lines = whole_lines(path)
    head: dict = {}
    first = 2
    if lines and lines[0].startswith(MARK):
        head = parse_head(path, lines.pop(0))
        first = 3
    table = csv.DictReader(lines)
    missing = [name for name in COLUMNS if name not in (table.fieldnames or ())]
    if missing:
        raise UserError(f"{path} is no soak CSV: it has no column {', '.join(missing)}", 2)
    return Record(head, [parse(path, at, row) for at, row in enumerate(table, start=first)])


def drop_cut_line(path: Path) -> None:
    """Makes the file ready for more lines."""
    kept = whole_lines(path)
    write_text(path, "".join(line + "\n" for line in kept))


def whole_lines(path: Path) -> list[str]:
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", 2) from error
    return text.rpartition("\n")[0].split("\n") if "\n" in text else []


def parse_head(path: Path, line: str) -> dict:
    try:
        return parse_json(line.removeprefix(MARK), "it")
    except ValueError as error:
        raise UserError(f"{path}, line 1: its description: {error}", 2) from error


def parse(path: Path, number: int, row: Mapping[str, str]) -> Epoch:
    values = {}
    for field in fields(Epoch):
        text = row[field.name]
        try:
            values[field.name] = convert(field.type, text)
        except (TypeError, ValueError):
            why = f"column {field.name}: '{text}' is not what belongs there"
            raise UserError(f"{path}, line {number}: {why}", 2) from None
    return Epoch(**values)


def convert(kind: object, text: str) -> str | int | float | None:
    if text == "" and kind in (int | None, float | None):
        return None
    if kind is str:
        return text
    return int(text) if kind in (int, int | None) else float(text)
