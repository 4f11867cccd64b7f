"""One run of `hakmem drawn`: a journal for each seed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hakmem.allocators.peers import bench_program
from hakmem.errors import UserError

from hakmem_lab import shell

PROGRAM = "bench_drawn"
SEEDS = re.compile(r"(\d+)(?:\.\.(\d+))?")
# More is a typing error.
SEEDS_MAX = 100_000


@dataclass(kw_only=True)
class Session(shell.Session):
    """One run of `hakmem drawn`; its seed is that of the order in the rounds."""

    seeds: list[int]
    scale: int
    rest_s: float
    floor: bool
    command = "drawn"

    def words(self, seed: int, *, scale: int = 0, check: bool = True, rest_ms: int = 0):
        """The arguments of the program; the floor's blocks overlap, so that it needs no check."""
        arguments = (seed, scale or self.scale, int(check), rest_ms)
        return (str(bench_program(PROGRAM)), *map(str, arguments))


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
