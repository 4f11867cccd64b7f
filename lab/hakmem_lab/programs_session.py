"""One run of `hakmem programs`: its plan and a journal for each program, in a folder."""

from dataclasses import dataclass, field
from pathlib import Path

from hakmem.allocators.peers import Allocator
from hakmem.documents import write_json
from hakmem.errors import UserError
from hakmem.inputs import read_whole
from hakmem.options import SEED_MOST
from hakmem.plain_text import parse_json

from hakmem_lab import drawn_plan
from hakmem_lab.drawn_plan import TEXT, TEXTS, seconds, whole
from hakmem_lab.programs import Program, read_catalogue
from hakmem_lab.suite_session import PLAN, allocator_json, read_allocator

FIELDS = ("catalogue", "names", "rounds", "scale", "seed", "limit_s", "counted", "facts")


def are_names(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


SHAPE: drawn_plan.Shape = {
    "catalogue": TEXT,
    "names": (are_names, "no list of programs"),
    "rounds": (whole(1, SEED_MOST), "no whole number from 1 on"),
    "scale": (whole(1, 100_000), "no whole number from 1 to 100000"),
    "seed": (whole(0, SEED_MOST), "no seed"),
    "limit_s": (seconds(1e9), "no number from 0 on"),
    "counted": (lambda value: type(value) is bool, "neither true nor false"),
    "facts": TEXTS,
    "allocators": (lambda value: isinstance(value, list) and bool(value), "no list of allocators"),
}


@dataclass
class Session:
    """What is run, and all that a stopped run needs to go on."""

    folder: Path
    catalogue: str
    names: list[str]
    rounds: int
    scale: int
    seed: int
    limit_s: float
    counted: bool
    allocators: list[Allocator]
    facts: dict[str, str] = field(default_factory=dict)
    # Programs that could not be run at all, and why: tried again by a run that goes on.
    broken: dict[str, str] = field(default_factory=dict)

    @property
    def baseline(self) -> str:
        return self.allocators[0].name

    @property
    def peers(self) -> list[str]:
        return [a.name for a in self.allocators[1:]]

    @property
    def programs(self) -> list[Program]:
        known = {one.name: one for one in read_catalogue(Path(self.catalogue))}
        if missing := [name for name in self.names if name not in known]:
            raise UserError(f"{self.catalogue} has no program '{missing[0]}' any more", 2)
        return [known[name] for name in self.names]

    def journal_path(self, program: str) -> Path:
        return self.folder / f"{program}.jsonl"

    def save(self) -> None:
        plan = {name: getattr(self, name) for name in FIELDS}
        plan["allocators"] = [allocator_json(a) for a in self.allocators]
        write_json(self.folder / PLAN, "programs", plan)


def load(folder: Path) -> Session:
    """The session of a folder, with the allocators as they were."""
    path = folder / PLAN
    try:
        plan = parse_json(read_whole(path))
        drawn_plan.require(plan, SHAPE, "")
        for number, entry in enumerate(plan["allocators"], 1):
            drawn_plan.require(entry, drawn_plan.ALLOCATOR_SHAPE, f" of allocator {number}")
        allocators = [read_allocator(entry) for entry in plan["allocators"]]
        return Session(folder, allocators=allocators, **{name: plan[name] for name in FIELDS})
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", 2) from error
    except ValueError as error:
        raise UserError(f"{path} is no plan of programs: {error}", 2) from error
