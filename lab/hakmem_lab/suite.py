"""Suites of `hakmem bench` as data: rows of programs, read from TOML and checked.

A suite picks rows of the catalogue (suites/rows.toml) by name, pattern or group, and can bring rows
of its own. The suites of the project lie in suites/; a path names one of the user's.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path

from hakmem.allocators.peers import USUAL_NAMES
from hakmem.errors import UserError
from hakmem.inputs import read_whole

FOLDER = Path(__file__).parent / "suites"
CATALOGUE = FOLDER / "rows.toml"
WORK = "{work}"
PRELOAD, STATIC = "preload", "static"
MODES = (PRELOAD, STATIC)
GROUP_MARK = "group:"
# How far a row's work may be scaled when it names no bounds.
WORK_RANGE = 100
# What rows.toml leaves open: titles of the groups, in the order tables show them.
GROUPS = {
    "core": "Mixed sizes, one thread",
    "fixed": "One size, one thread",
    "threads": "Several threads",
    "patterns": "Patterns",
    "memory": "Fragmentation",
    "scenarios": "Scenarios",
    "held": "Memory held",
    "bars": "More sizes, threads and orders",
}


@dataclass(frozen=True)
class Row:
    """One program with one set of arguments; see suites/rows.toml for the fields."""

    name: str
    title: str
    group: str
    program: str
    arguments: tuple[str | int, ...] = ()
    work: int = 0
    work_min: int = 0
    work_max: int = 0
    cpu: str = "one"
    floor: bool = False
    static: bool = False
    steady: bool = False
    scenario: str = ""
    operations: str = ""
    operations_times: int = 1
    figure: str = ""
    rounds: int = 0

    @property
    def scales(self) -> bool:
        return bool(self.work)

    @property
    def bounds(self) -> tuple[int, int]:
        lowest = self.work_min or max(1, self.work // WORK_RANGE)
        return lowest, self.work_max or self.work * WORK_RANGE

    def rounds_of(self, wanted: int) -> int:
        """How many of the rounds wanted it runs: its own number where that is smaller."""
        return min(wanted, self.rounds) if self.rounds else wanted

    def filled(self, work: int) -> tuple[str, ...]:
        """The arguments with the work in its place."""
        return tuple(str(part).replace(WORK, str(work)) for part in self.arguments)


@dataclass(frozen=True)
class Suite:
    """Rows with the number of rounds, the length of a slice and the allocators to run."""

    name: str
    title: str
    rounds: int
    slice_s: float
    limit_minutes: float
    allocators: tuple[str, ...]
    modes: tuple[str, ...]
    rows: tuple[Row, ...]


def suite_names() -> list[str]:
    """The project's suites, the quickest first."""
    found = sorted(path.stem for path in FOLDER.glob("*.toml") if path != CATALOGUE)
    return sorted(found, key=lambda name: {"quick": 0, "full": 1}.get(name, 2))


def load_suite(name: str) -> Suite:
    """A suite of the project by name, or of the user by the path of its file."""
    if name in suite_names():
        return read_suite(FOLDER / f"{name}.toml")
    path = Path(name)
    if path.suffix == ".toml":
        return read_suite(path)
    known = ", ".join(suite_names())
    raise UserError(f"unknown suite '{name}' (known: {known}; or the path of a .toml file)", 2)


def read_suite(path: Path) -> Suite:
    table = Table(str(path), read_toml(path))
    table.refuse_others(
        ("title", "rounds", "slice_s", "limit_minutes", "allocators", "modes", "pick", "row")
    )
    own = read_rows(path, table.rows("row"))
    wanted = table.texts("pick", ())
    picked = pick(catalogue(), wanted, f"{path}: pick") if wanted else []
    rows = [*picked, *own]
    if not rows:
        raise UserError(f"{path}: no rows: neither pick nor [[row]]", 2)
    require_distinct(path, rows)
    modes = table.texts("modes", MODES)
    for mode in modes:
        if mode not in MODES:
            raise UserError(f"{path}: modes: '{mode}' is none of {', '.join(MODES)}", 2)
    return Suite(
        path.stem,
        table.text("title"),
        table.number("rounds", int, 1),
        table.number("slice_s", float, 0.001),
        table.number("limit_minutes", float, 0.01),
        table.texts("allocators", USUAL_NAMES),
        modes,
        tuple(rows),
    )


def catalogue() -> list[Row]:
    table = Table(str(CATALOGUE), read_toml(CATALOGUE))
    rows = read_rows(CATALOGUE, table.rows("row"))
    require_distinct(CATALOGUE, rows)
    return rows


def read_rows(path: Path, entries: Sequence[Mapping]) -> list[Row]:
    return [read_row(Table(f"{path}: row {i}", entry)) for i, entry in enumerate(entries, 1)]


def read_row(table: "Table") -> Row:
    table.refuse_others([field.name for field in fields(Row)])
    name = table.text("name")
    table.where = f"{table.where} ({name})"
    row = Row(
        name,
        table.text("title", name),
        table.text("group", "other"),
        table.text("program"),
        table.parts("arguments"),
        table.number("work", int, 1, 0),
        table.number("work_min", int, 1, 0),
        table.number("work_max", int, 1, 0),
        table.text("cpu", "one"),
        table.flag("floor"),
        table.flag("static"),
        table.flag("steady"),
        table.text("scenario", ""),
        table.text("operations", ""),
        table.number("operations_times", int, 1, 1),
        table.text("figure", ""),
        table.number("rounds", int, 1, 0),
    )
    check_row(table.where, row)
    return row


def check_row(where: str, row: Row) -> None:
    if row.cpu not in ("one", "any"):
        raise UserError(f"{where}: cpu: '{row.cpu}' is neither 'one' nor 'any'", 2)
    has_place = any(WORK in str(part) for part in row.arguments)
    if has_place != row.scales:
        raise UserError(f"{where}: work and {WORK} in arguments belong together", 2)
    lowest, highest = row.bounds
    if row.scales and not lowest <= row.work <= highest:
        raise UserError(f"{where}: work {row.work} is not within {lowest} to {highest}", 2)


def require_distinct(path: Path, rows: Sequence[Row]) -> None:
    names = [row.name for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{path}: two rows are named '{name}'", 2)


def pick(rows: Sequence[Row], wanted: Iterable[str], what: str) -> list[Row]:
    """The rows that fit a name, a pattern such as larson*, or group:NAME, in the rows' order."""
    chosen: set[str] = set()
    for text in wanted:
        fitting = [row.name for row in rows if fits(row, text)]
        if not fitting:
            groups = dict.fromkeys(f"{GROUP_MARK}{row.group}" for row in rows)
            known = ", ".join([*(row.name for row in rows), *groups])
            raise UserError(f"{what}: no row fits '{text}' (known: {known})", 2)
        chosen.update(fitting)
    return [row for row in rows if row.name in chosen]


def fits(row: Row, text: str) -> bool:
    if text.startswith(GROUP_MARK):
        return row.group == text.removeprefix(GROUP_MARK)
    return fnmatchcase(row.name, text)


def read_toml(path: Path) -> dict:
    try:
        return tomllib.loads(read_whole(path).decode())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", 2) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no TOML: {error}", 2) from error


class Table:
    """A table of a TOML file whose wrong values become one clear line."""

    def __init__(self, where: str, entries: Mapping) -> None:
        self.where = where
        self.entries = entries

    def refuse_others(self, known: Sequence[str]) -> None:
        for key in self.entries:
            if key not in known:
                raise UserError(f"{self.where}: unknown key '{key}' (known: {', '.join(known)})", 2)

    def text(self, key: str, default: str | None = None) -> str:
        return self._value(key, str, "a text", default)

    def flag(self, key: str) -> bool:
        return self._value(key, bool, "true or false", False)

    def number(self, key: str, kind: type, least: float, default: float | None = None):
        kinds = (int, float) if kind is float else int
        value = self._value(key, kinds, "a number", default)
        if key in self.entries and (isinstance(value, bool) or value < least):
            raise UserError(f"{self.where}: {key}: {value} is not a number of at least {least}", 2)
        return kind(value)

    def texts(self, key: str, default: Sequence[str] | None = None) -> tuple[str, ...]:
        found = self._value(key, list | tuple, "a list of texts", default)
        if not all(isinstance(part, str) and part for part in found):
            raise UserError(f"{self.where}: {key} is not a list of texts", 2)
        return tuple(found)

    def parts(self, key: str) -> tuple[str | int, ...]:
        found = self._value(key, list | tuple, "a list", ())
        if not all(isinstance(part, str | int) and not isinstance(part, bool) for part in found):
            raise UserError(f"{self.where}: {key} is not a list of texts and whole numbers", 2)
        return tuple(found)

    def rows(self, key: str) -> Sequence[Mapping]:
        found = self._value(key, list, "a list of tables", [])
        if not all(isinstance(part, dict) for part in found):
            raise UserError(f"{self.where}: {key} is not a list of tables ([[{key}]])", 2)
        return found

    def _value(self, key: str, kind, what: str, default):
        if key not in self.entries:
            if default is None:
                raise UserError(f"{self.where}: {key} is missing", 2)
            return default
        value = self.entries[key]
        if not isinstance(value, kind):
            raise UserError(f"{self.where}: {key}: {value!r} is not {what}", 2)
        return value
