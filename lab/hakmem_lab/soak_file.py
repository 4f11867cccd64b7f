"""The CSV of a soak: one line an epoch, written as it ends, so that a stop loses nothing.

The first line is a comment that holds what the run is made of, as JSON; a run is continued from
it. A last line that was cut short is dropped.
"""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from hakmem import files
from hakmem.documents import table_kind, write_text
from hakmem.errors import UserError
from hakmem.inputs import read_text
from hakmem.plain_text import parse_json, printable

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
KIND = table_kind(COLUMNS, MARK)
# Nothing that ran has none of these.
ABOVE_ZERO = {"round", "process", "epoch", "ops", "seconds", "ops_per_sec", "rss_kb",
              "peak_rss_kb"}  # fmt: skip
FIGURE_MOST = 1 << 63


@dataclass(frozen=True)
class Record:
    """A whole file: the comment at its head (empty in a file of other origin) and its epochs.

    The notes say what is not in it.
    """

    head: dict
    epochs: list[Epoch]
    notes: Sequence[str] = ()


def begin(path: Path, head: Mapping) -> None:
    write_text(path, f"{MARK}{json.dumps(head)}\n{','.join(COLUMNS)}\n")


def append(path: Path, epoch: Epoch) -> None:
    """Adds one line; it is with the system when this returns."""
    values = ["" if (v := getattr(epoch, name)) is None else v for name in COLUMNS]
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    try:
        with files.open_to_append(path) as file:
            file.write(line.getvalue())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def read(path: Path) -> Record:
    """What whole lines say; a line that ends without a newline was cut and does not count."""
    lines, cut = split(path)
    cut_number = len(lines) + 1 if cut else 0
    head: dict = {}
    before = 0
    if lines and lines[0].startswith(MARK):
        head = parse_head(path, lines.pop(0))
        before = 1
    table = csv.DictReader(lines)
    try:
        missing = [name for name in COLUMNS if name not in (table.fieldnames or ())]
        if missing:
            raise UserError(f"{path} is no soak CSV: it has no column {', '.join(missing)}", 2)
        epochs = []
        seen: dict[tuple[str, str, int], int] = {}
        for row in table:
            number = before + table.line_num
            epochs.append(parse(path, number, row))
            # Nobody can tell which of two epochs is the round's.
            load, name, turn = key = (epochs[-1].load, epochs[-1].allocator, epochs[-1].round)
            if (first := seen.setdefault(key, number)) != number:
                whose = f"round {turn} of {name}, {load}"
                raise UserError(f"{path}, line {number}: {whose} is in line {first} too", 2)
    except csv.Error as error:
        raise UserError(f"{path}, line {before + table.line_num + 1}: it is no CSV", 2) from error
    return Record(head, epochs, told_missing(path, cut_number, epochs))


def told_missing(path: Path, cut_number: int, epochs: Sequence[Epoch]) -> list[str]:
    """A last line that was cut, and rounds that are missing before an allocator's last."""
    rounds: dict[tuple[str, str], set[int]] = {}
    for epoch in epochs:
        rounds.setdefault((epoch.load, epoch.allocator), set()).add(epoch.round)
    missing = sum(max(found) - len(found) for found in rounds.values())
    told = []
    if cut_number:
        told.append(f"line {cut_number} of {path} was cut short, and is left out")
    if missing:
        epochs_are = "epoch is" if missing == 1 else "epochs are"
        told.append(f"{missing} {epochs_are} missing in {path}")
    return [f"{'; '.join(told)}: these are the other {len(epochs)} epochs"] if told else []


def drop_cut_line(path: Path) -> None:
    """Makes the file ready for more lines."""
    kept, _ = split(path)
    write_text(path, "".join(line + "\n" for line in kept))


def split(path: Path) -> tuple[list[str], str]:
    """The whole lines, and what follows the last of them."""
    whole, newline, cut = read_text(path).rpartition("\n")
    return whole.split("\n") if newline else [], cut


def parse_head(path: Path, line: str) -> dict:
    """Of a run that is only judged, names and facts are all that is needed."""
    try:
        head = parse_json(line.removeprefix(MARK), "it")
        if not isinstance(head, dict) or not isinstance(head.get("allocators", {}), dict):
            raise ValueError("it does not say which allocators ran")
        facts = head.get("facts", {})
        if not isinstance(facts, dict) or not all(isinstance(f, str) for f in facts.values()):
            raise ValueError("its facts are not told in words")
    except ValueError as error:
        raise UserError(f"{path}, line 1: its description: {error}", 2) from error
    return head


def parse(path: Path, number: int, row: Mapping[str, str]) -> Epoch:
    values = {}
    for field in fields(Epoch):
        text = row[field.name]
        try:
            values[field.name] = convert(field.type, text)
            require_possible(field.name, values[field.name])
        except (TypeError, ValueError):
            shown = printable(text or "")[:40]
            why = f"column {field.name}: '{shown}' is not what belongs there"
            raise UserError(f"{path}, line {number}: {why}", 2) from None
    return Epoch(**values)


def require_possible(name: str, value: str | float | None) -> None:
    """ValueError for a text that is missing and a figure that nothing could have."""
    if value is None:
        return
    if isinstance(value, str):
        possible = value != ""
    else:
        possible = math.isfinite(value) and 0 <= value < FIGURE_MOST
        possible = possible and (value > 0 or name not in ABOVE_ZERO)
    if not possible:
        raise ValueError(name)


def convert(kind: object, text: str) -> str | int | float | None:
    if text == "" and kind in (int | None, float | None):
        return None
    if kind is str:
        return text or ""
    return int(text) if kind in (int, int | None) else float(text)
