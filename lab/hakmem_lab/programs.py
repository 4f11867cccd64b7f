"""The programs of `hakmem programs`, as programs.toml has them, and where their inputs lie."""

import fcntl
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hakmem.allocators import cache
from hakmem.errors import UserError

from hakmem_lab.suite import from_table, read_toml, require_distinct

WORKLOADS = Path(__file__).parent / "workloads"
CATALOGUE = Path(__file__).parent / "programs.toml"
FOLDER = WORKLOADS / "programs"
CAUSES, JUDGING, ALL = "causes", "judging", "all"
SETS = (CAUSES, JUDGING, ALL)
# Debian's own programs, whatever else is installed: another one may bring its own malloc.
PATH = "/usr/bin:/bin"
# Runs at the same time with the same seed; each has a folder whose name is as long.
PLACES = 100


@dataclass(frozen=True)
class Program:
    """One entry of the catalogue; see programs.toml for the fields."""

    name: str
    title: str
    set: str
    size: int
    command: str
    count: int = 0
    prepare: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    threads: int = 1
    load: str = ""
    fresh: str = ""
    own_malloc: bool = False

    def scaled(self, percent: int, counted: bool) -> int:
        return max(1, (self.count if counted else self.size) * percent // 100)

    def problem(self) -> str:
        """The first thing that is missing, in one line, or an empty string."""
        for program, package in (text.split() for text in self.needs):
            if not shutil.which(program, path=PATH):
                return f"{program} is not installed (Debian package {package})"
        return ""


def read_catalogue(path: Path) -> list[Program]:
    """All programs of a file; one line about the first that is not as it must be."""
    entries = read_toml(path).get("program")
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise UserError(f"{path} is no catalogue of programs", 2)
    found = [from_table(Program, f"{path}: program {i}", e) for i, e in enumerate(entries, 1)]
    require_distinct(path, found)
    for one in found:
        if not one.name.replace("-", "").replace("+", "").isalnum():
            raise UserError(f"{path}: '{one.name}' is no name", 2)
        if one.set not in (CAUSES, JUDGING):
            raise UserError(f"{path}: {one.name}: set: '{one.set}' is no {CAUSES} or {JUDGING}", 2)
    return found


def chosen(catalogue: Sequence[Program], which: str, names: str | None) -> list[Program]:
    """Of a set, or by name: commas between."""
    if names is None:
        return [one for one in catalogue if which in (ALL, one.set)]
    known = {one.name: one for one in catalogue}
    wanted = dict.fromkeys(name.strip() for name in names.split(","))
    if missing := [name for name in wanted if name not in known]:
        raise UserError(f"--programs: there is no program '{missing[0]}' (--list shows all)", 2)
    return [known[name] for name in wanted]


@contextmanager
def inputs_of(seed: int) -> Iterator[Path]:
    """A folder for a run's inputs, gone at its end; programs see its path, and counts repeat."""
    above = cache.cache_folder() / "programs"
    try:
        above.mkdir(parents=True, exist_ok=True)
        for place in range(PLACES):
            folder = above / f"{seed}-{place:02}"
            with folder.with_suffix(".lock").open("w") as held:
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                shutil.rmtree(folder, ignore_errors=True)
                try:
                    yield folder
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                return
    except OSError as error:
        raise UserError(f"cannot make {above}: {error.strerror}") from error
    raise UserError(f"{PLACES} other runs use seed {seed}")
