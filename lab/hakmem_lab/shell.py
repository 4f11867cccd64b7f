"""What every experiment of the lab has: a plan in a folder, journals of rounds, and how it goes on.

A stopped run goes on from its folder. Libraries are remembered by checksum, and the plan by one of
its own: rounds of two builds, or of two plans, must not end up in one figure.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import ClassVar, Self

from hakmem import environment, files
from hakmem.allocators import cache
from hakmem.allocators.peers import Allocator, repository_root
from hakmem.documents import write_json
from hakmem.errors import INTERRUPTED, UserError
from hakmem.inputs import read_whole
from hakmem.measuring import journal
from hakmem.measuring.journal import Journal
from hakmem.measuring.rotation import Contender, Metric, Rotation, new_rotation, run_rounds
from hakmem.options import chosen_allocators
from hakmem.output import tables
from hakmem.plain_text import parse_json
from rich.console import Console

PLAN = "plan.json"
FLOOR, HAKMEM = "floor", "hakmem"
# Beside environment.SETTING_PREFIXES: what else can change how a malloc behaves.
MORE_PREFIXES = ("_RJEM_", "SNMALLOC_", "RPMALLOC_", "PERFTOOLS_", "HEAPPROFILE", "HEAPCHECK")
LOADER_VARIABLES = ("LD_PRELOAD", "LD_AUDIT", "LD_BIND_NOW", "LD_DEBUG", "LD_DEBUG_OUTPUT")
Tick = Callable[[str], None]


@dataclass(kw_only=True)
class Session:
    """What is run, and all that a stopped run needs to go on."""

    folder: Path
    allocators: list[Allocator]
    rounds: int
    seed: int
    facts: dict[str, str] = field(default_factory=dict)
    served: dict[str, str] = field(default_factory=dict)
    command: ClassVar[str]
    # What is known anew after each start.
    unsaved: ClassVar[tuple[str, ...]] = ("folder", "allocators")

    @property
    def baseline(self) -> str:
        return self.allocators[0].name

    def plan(self) -> dict:
        names = [one.name for one in fields(self) if one.name not in self.unsaved]
        return {name: getattr(self, name) for name in names}

    def save(self) -> None:
        plan = self.plan() | {"allocators": [allocator_json(a) for a in self.allocators]}
        files.make_folder(self.folder)
        write_json(self.folder / PLAN, self.command, {"plan": plan, "digest": digest(plan)})

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The session of a folder, with the allocators as they were; refuses changed libraries."""
        path = folder / PLAN
        try:
            document = parse_json(read_whole(path))
            plan = document["plan"]
            if (document["made_by"], document["digest"]) != (f"hakmem {cls.command}", digest(plan)):
                raise ValueError("it is another command's, or was changed")
        except (ValueError, KeyError, TypeError) as error:
            why = error if isinstance(error, ValueError) else "it is none, or of another version"
            raise UserError(f"{path} is no plan of hakmem {cls.command}: {why}", 2) from error
        entries = plan.pop("allocators")
        for entry in entries:
            require_unchanged(folder, entry)
        return cls(folder=folder, allocators=[read_allocator(e) for e in entries], **plan)

    def journal_path(self, key: str) -> Path:
        return self.folder / f"{key}.jsonl"

    def read_rotation(self, key: str) -> tuple[dict, Rotation | None]:
        """The head of a part's journal and its rounds, as far as they went."""
        path = self.journal_path(key)
        if not path.exists() or not journal.whole_lines(path):
            return {}, None
        return journal.read(path)

    def run_rotation(
        self,
        key: str,
        rows: Sequence[Contender],
        metric: Metric,
        rounds: int,
        seed: int,
        cpus: str | None,
        tick: Tick,
        head: Callable[[], Mapping] = dict,
    ) -> tuple[Journal, Rotation]:
        """What is missing of a part's rounds; `head` adds to the first line of a new journal.

        KeyboardInterrupt leaves the whole rounds on disk.
        """
        log = Journal(self.journal_path(key))
        _, rotation = self.read_rotation(key)
        if rotation is None:
            files.remove(log.path)
            rotation = new_rotation(rows, metric, seed, cpus)
            log.begin(self.command, rotation, self.facts, **head())
        else:
            log.drop_cut_line()
            rotation.metric = metric
            for row in rows:
                # A journal does not tell the limit, nor what is done with the output.
                rotation.series[row.name].contender = row
        if rotation.lacks(rounds):
            run_rounds(rotation, rounds - rotation.rounds_done, tick, log)
        if rotation.interrupted:
            raise KeyboardInterrupt
        return log, rotation


def digest(plan: Mapping) -> str:
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


def allocator_json(allocator: Allocator) -> dict:
    library = allocator.library
    return asdict(allocator) | {
        "library": str(library) if library else None,
        "settings": dict(allocator.settings),
        "checksum": cache.checksum(library) if library else "",
    }


def read_allocator(entry: Mapping) -> Allocator:
    known = {name: entry[name] for name in ("name", "version", "problem", "source", "settings")}
    return Allocator(**known, library=Path(entry["library"]) if entry["library"] else None)


def require_unchanged(folder: Path, entry: Mapping) -> None:
    """The library must be the one that the rounds on disk were measured with."""
    if not entry["checksum"]:
        return
    path = Path(entry["library"])
    now = cache.checksum(path) if path.is_file() else "missing"
    if now != entry["checksum"]:
        what = "is not there any more" if now == "missing" else "has changed"
        raise UserError(f"{path} {what} since {folder} was begun: start anew", 2)


@contextmanager
def clean_environment() -> Iterator[dict[str, str]]:
    """Takes away what the user's environment would change in an allocator; gives what it was."""
    prefixes = (*environment.SETTING_PREFIXES, *MORE_PREFIXES)
    removed = {
        name: value
        for name, value in os.environ.items()
        if name in LOADER_VARIABLES
        or (name.startswith(prefixes) and name not in environment.OWN_VARIABLES)
    }
    for name in removed:
        del os.environ[name]
    try:
        yield removed
    finally:
        os.environ.update(removed)


def chosen(console: Console, names: str | None, libraries: Sequence[str]) -> list[Allocator]:
    """Those asked for; else the usual ones, without those that are not there."""
    paths: tuple[str, ...] = ()
    if names is not None:
        # A library among the names keeps its place there: the first is the baseline.
        parts = [part.strip() for part in names.split(",")]
        paths = tuple(part for part in parts if "=" in part)
        names = ",".join(part.partition("=")[0] for part in parts)
    notes: list[str] = []
    found = chosen_allocators(names, (*paths, *libraries), notes)
    tables.print_notes(console, notes)
    return found


def facts_of(
    seed: int | None, allocators: Sequence[Allocator], removed: Mapping[str, str], **more: str
) -> dict[str, str]:
    """The machine, the commit, what was asked for, and what was taken out of the environment."""
    taken = " ".join(f"{name}={value}" for name, value in removed.items())
    return environment.describe(seed) | {
        "commit": environment.revision_of(repository_root()) or "unknown",
        **{name.replace("_", " "): value for name, value in more.items()},
        "taken out of the environment": taken or "nothing",
        **{a.name: str(a) for a in allocators},
    }


def conclude(
    console: Console, session: Session, files: str, measured: Sequence, wanted: str, finished: bool
) -> None:
    """Where the files lie, and the exit status of a run that was stopped, or whose baseline failed;
    `measured` have problems, `wanted` is how many there should be of what."""
    console.print(f"journals{files}: {session.folder}", soft_wrap=True)
    if not finished:
        end_interrupted(console, session, f"{len(measured)} of {wanted}")
    if not measured or any(session.baseline in one.problems for one in measured):
        raise SystemExit(1)


def end_interrupted(console: Console, session: Session, done: str) -> None:
    told = f"interrupted after {done}; go on with hakmem {session.command}"
    console.print(f"{told} --resume {session.folder}", soft_wrap=True)
    raise SystemExit(INTERRUPTED)
