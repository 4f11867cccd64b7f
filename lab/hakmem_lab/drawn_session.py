"""One run of `hakmem drawn`: its plan and a journal for each seed, in a folder.

A stopped run goes on from the folder. Libraries are remembered by checksum: rounds of two builds
must not end up in one figure.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hakmem.allocators.peers import Allocator, bench_program
from hakmem.documents import write_json
from hakmem.errors import UserError
from hakmem.inputs import read_whole
from hakmem.plain_text import parse_json

from hakmem_lab import drawn_plan
from hakmem_lab.suite_session import PLAN, allocator_json, read_allocator

PROGRAM = "bench_drawn"
SEEDS = re.compile(r"(\d+)(?:\.\.(\d+))?")
# More is a typing error.
SEEDS_MAX = 100_000
FIELDS = ("seeds", "rounds", "scale", "rest_s", "order_seed", "limit_s", "cpus", "floor", "facts",
          "served")  # fmt: skip


@dataclass
class Session:
    """What is run, and all that a stopped run needs to go on."""

    folder: Path
    seeds: list[int]
    rounds: int
    scale: int
    rest_s: float
    order_seed: int
    limit_s: float
    cpus: str | None
    floor: bool
    allocators: list[Allocator]
    facts: dict[str, str] = field(default_factory=dict)
    served: dict[str, str] = field(default_factory=dict)

    @property
    def baseline(self) -> str:
        return self.allocators[0].name

    @property
    def usable(self) -> list[Allocator]:
        return [a for a in self.allocators if a.usable]

    def journal_path(self, seed: int) -> Path:
        return self.folder / f"seed-{seed}.jsonl"

    def command(self, seed: int, *, scale: int = 0, check: bool = True, rest_ms: int = 0):
        """The arguments of the program; the floor's blocks overlap, so that it needs no check."""
        arguments = (seed, scale or self.scale, int(check), rest_ms)
        return (str(bench_program(PROGRAM)), *map(str, arguments))

    def save(self) -> None:
        plan = {name: getattr(self, name) for name in FIELDS}
        plan["allocators"] = [allocator_json(a) for a in self.allocators]
        write_json(self.folder / PLAN, "drawn", plan)


def load(folder: Path) -> Session:
    """The session of a folder, with the allocators as they were."""
    plan, allocators = read_plan(folder, drawn_plan.PLAN_SHAPE, "drawn loads")
    return Session(folder, allocators=allocators, **{name: plan[name] for name in FIELDS})


def read_plan(folder: Path, shape: drawn_plan.Shape, what: str) -> tuple[dict, list[Allocator]]:
    """The plan of a run's folder and its allocators, if it is one of `what`."""
    path = folder / PLAN
    try:
        plan = parse_json(read_whole(path))
        drawn_plan.require_sound(plan, shape)
        return plan, [read_allocator(entry) for entry in plan["allocators"]]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", 2) from error
    except ValueError as error:
        raise UserError(f"{path} is no plan of {what}: {error}", 2) from error


def parse_seeds(text: str) -> list[int]:
    """The seeds of a list such as 7 or 1..50 or 1..20,90, none of them twice."""
    seeds: dict[int, None] = {}
    for part in text.split(","):
        found = SEEDS.fullmatch(part.strip())
        if found is None:
            raise UserError(f"--seeds: '{text}' is no list of seeds (such as 1..50 or 7,9)", 2)
        first = int(found[1])
        last = int(found[2] or first)
        if last < first:
            raise UserError(f"--seeds: {first}..{last} ends before it begins", 2)
        if last - first >= SEEDS_MAX or last >= 1 << 64:
            raise UserError(f"--seeds: {first}..{last} are too many, or too large", 2)
        if (twice := next((s for s in seeds if first <= s <= last), None)) is not None:
            raise UserError(f"--seeds: {twice} is given twice", 2)
        seeds |= dict.fromkeys(range(first, last + 1))
    return list(seeds)


def seeds_text(seeds: Sequence[int]) -> str:
    """The list again, with ranges for neighbours."""
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}..{r[-1]}" for r in runs)
