"""Suites of `hakmem bench` as data: rows of programs, read from TOML and checked.

A suite picks rows of the catalogue (suites/rows.toml) by name, pattern or group, and can bring rows
of its own. The suites of the project lie in suites/; a path names one of the user's.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar, get_origin, get_type_hints

from hakmem.allocators.peers import USUAL_NAMES
from hakmem.errors import UserError
from hakmem.inputs import read_whole

T = TypeVar("T")
FOLDER = Path(__file__).parent / "suites"
CATALOGUE = FOLDER / "rows.toml"
WORK = "{work}"
PRELOAD, STATIC = "preload", "static"
MODES = (PRELOAD, STATIC)
GROUP_MARK = "group:"
# How far a row's work may be scaled when it names no bounds.
WORK_RANGE = 100


@dataclass(frozen=True)
class Row:
    """One program with one set of arguments; see suites/rows.toml for the fields."""

    name: str
    program: str
    title: str = ""
    group: str = "other"
    arguments: tuple[str | int, ...] = ()
    work: int = 0
    work_min: int = 0
    work_max: int = 0
    cpu: str = "one"
    static: bool = False
    steady: bool = False
    scenario: str = ""
    operations: str = ""
    operations_times: int = 1
    figure: str = ""
    rounds: int = 0
    needed_mb: int = 0

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
    """Rows with the number of rounds, the length of a slice and the allocators to run, as a file
    of suites/ has them: `pick` names rows of the catalogue, `row` are the suite's own."""

    title: str
    rounds: int
    slice_s: float
    limit_minutes: float
    allocators: tuple[str, ...] = USUAL_NAMES
    modes: tuple[str, ...] = MODES
    pick: tuple[str, ...] = ()
    row: tuple[dict, ...] = ()
    name: str = ""
    rows: tuple[Row, ...] = ()


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
    found = from_table(Suite, str(path), read_toml(path))
    rows = pick(catalogue(), found.pick, f"{path}: pick") if found.pick else []
    rows += read_rows(path, found.row)
    if not rows:
        raise UserError(f"{path}: no rows: neither pick nor [[row]]", 2)
    require_distinct(path, rows)
    for mode in found.modes:
        if mode not in MODES:
            raise UserError(f"{path}: modes: '{mode}' is none of {', '.join(MODES)}", 2)
    return replace(found, name=path.stem, rows=tuple(rows))


def catalogue() -> list[Row]:
    rows = read_rows(CATALOGUE, read_toml(CATALOGUE)["row"])
    require_distinct(CATALOGUE, rows)
    return rows


def read_rows(path: Path, entries: Sequence[Mapping]) -> list[Row]:
    return [read_row(f"{path}: row {i}", entry) for i, entry in enumerate(entries, 1)]


def read_row(where: str, entry: Mapping) -> Row:
    row = from_table(Row, where, entry)
    where = f"{where} ({row.name})"
    if row.cpu not in ("one", "any"):
        raise UserError(f"{where}: cpu: '{row.cpu}' is neither 'one' nor 'any'", 2)
    has_place = any(WORK in str(part) for part in row.arguments)
    if has_place != row.scales:
        raise UserError(f"{where}: work and {WORK} in arguments belong together", 2)
    lowest, highest = row.bounds
    if row.scales and not lowest <= row.work <= highest:
        raise UserError(f"{where}: work {row.work} is not within {lowest} to {highest}", 2)
    return replace(row, title=row.title or row.name)


def require_distinct(path: Path, rows: Sequence) -> None:
    names = [row.name for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{path}: '{name}' is there twice", 2)


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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no TOML: {error}", 2) from error


def from_table(kind: type[T], where: str, entries: Mapping) -> T:
    """A dataclass made of a table of a TOML file; what is wrong there becomes one clear line."""
    values = {n: tuple(v) if isinstance(v, list) else v for n, v in entries.items()}
    try:
        made = kind(**values)
    except TypeError as error:
        raise UserError(f"{where}: {error}", 2) from error
    hints = get_type_hints(kind)
    for name, value in values.items():
        wanted = get_origin(hints[name]) or hints[name]
        is_number = wanted in (int, float)
        fits = type(value) in (int, wanted) and value > 0 if is_number else type(value) is wanted
        if not fits:
            raise UserError(f"{where}: {name}: {value!r} is not what belongs there", 2)
    return made
