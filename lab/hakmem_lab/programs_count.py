"""The counted judge: instructions, cache misses and TLB misses of a program under valgrind.

Nothing varies between two runs: addresses, environment, hash seeds and the CPU are the same. So
one run is enough, and 0.1 % is a difference. valgrind has no rseq and runs one thread at a time.
"""

import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hakmem.allocators.peers import Allocator

from hakmem_lab.real_programs import RealLoad

# First level and last level: size, ways, line. As TLBs a line is a page.
CACHES = ("--D1=32768,8,64", "--LL=1048576,8,64")
TLBS = ("--D1=262144,64,4096", "--LL=8388608,16,4096")
# 50 times slower means 50 times as many decays a step.
SETTINGS = {"HAKMEM_DECAY_MS": "600000", "HOME": "/nonexistent"}
FIGURES = {
    "instructions": re.compile(r"I\s+refs:\s+([\d,]+)"),
    "first": re.compile(r"D1\s+misses:\s+([\d,]+)"),
    "last": re.compile(r"LLd misses:\s+([\d,]+)"),
}
NAMED = re.compile(r"(c?)(ob|fn)=\((\d+)\)(?: (.*))?")
CALLS = re.compile(r"calls=(\d+)")


@dataclass(frozen=True)
class Counted:
    """One program under one allocator. Two calls into the library are a pair: what an allocator
    without a library of its own executes is not told apart from the C library's other work."""

    instructions: int
    l1: int
    l2: int
    tlb1: int
    tlb2: int
    library_instructions: int | None = None
    library_calls: int | None = None

    @property
    def estimate(self) -> float:
        """Cycles."""
        misses = 10 * self.l1 + 40 * self.l2 + 6 * self.tlb1 + 25 * self.tlb2
        return self.instructions / 3 + misses

    @property
    def per_pair(self) -> float | None:
        return 2 * self.library_instructions / self.library_calls if self.library_calls else None


class NotCountedError(Exception):
    """Why there is no count, in one line."""


def count_program(load: RealLoad, allocator: Allocator, limit_s: float) -> dict:
    """A line for the journal."""
    try:
        counted = count(load, allocator, limit_s)
    except NotCountedError as error:
        return {"problems": {allocator.name: str(error)}}
    return {"counts": {allocator.name: asdict(counted)}}


def count(load: RealLoad, allocator: Allocator, limit_s: float) -> Counted:
    caches = cachegrind(load, allocator, limit_s, CACHES)
    tlbs = cachegrind(load, allocator, limit_s, TLBS)
    own = of_library(load, allocator, limit_s) if allocator.library else (None, None)
    if own == (0, 0):
        raise NotCountedError("NOT SERVED: no instruction of the library was executed")
    return Counted(caches["instructions"], caches["first"], caches["last"], tlbs["first"],
                   tlbs["last"], *own)  # fmt: skip


def run(load: RealLoad, allocator: Allocator, limit_s: float, tool: list[str]) -> None:
    """Only what is named here is in the environment, so that the stack begins at one place."""
    row = load.contender(allocator, SETTINGS)
    given = dict(row.settings)
    if row.preload:
        given["LD_PRELOAD"] = str(row.preload)
    words = [f"{name}={value}" for name, value in sorted(given.items())]
    still = ["/usr/bin/env", "-i", *words, "/usr/bin/setarch", "-R", "/usr/bin/taskset", "-c", "0"]
    command = (*still, "/usr/bin/valgrind", "--trace-children=yes", *tool, *row.command)
    outcome = replace(row, command=command, preload=None, settings={}, limit_s=limit_s).run()
    if outcome.problem:
        raise NotCountedError(f"under valgrind: {outcome.problem}")


def cachegrind(
    load: RealLoad, allocator: Allocator, limit_s: float, caches: tuple[str, str]
) -> Mapping[str, int]:
    """Sums over all processes."""
    with tempfile.TemporaryDirectory() as folder:
        tool = ["--tool=cachegrind", "--cache-sim=yes", *caches, "--cachegrind-out-file=/dev/null"]
        run(load, allocator, limit_s, [*tool, f"--log-file={folder}/%p"])
        logs = [path.read_text(errors="replace") for path in Path(folder).iterdir()]
    found = {name: 0 for name in FIGURES}
    for log in logs:
        for name, pattern in FIGURES.items():
            if (figure := pattern.search(log)) is not None:
                found[name] += int(figure[1].replace(",", ""))
    if not found["instructions"]:
        raise NotCountedError("valgrind told no count")
    return found


def of_library(load: RealLoad, allocator: Allocator, limit_s: float) -> tuple[int, int]:
    """Instructions within the allocator's library, and calls into it, of all processes."""
    with tempfile.TemporaryDirectory() as folder:
        tool = ["--tool=callgrind", f"--callgrind-out-file={folder}/%p.out"]
        run(load, allocator, limit_s, [*tool, f"--log-file={folder}/%p.log"])
        parts = [within(path, allocator.library.resolve()) for path in Path(folder).glob("*.out")]
    return sum(part[0] for part in parts), sum(part[1] for part in parts)


def within(profile: Path, library: Path) -> tuple[int, int]:
    """Of one profile of callgrind: costs of lines in the library, calls to it from elsewhere."""
    objects: dict[str, bool] = {}
    own = callee = None
    instructions = calls = 0
    skipped = False
    with profile.open(errors="replace") as lines:
        for line in lines:
            if found := NAMED.match(line):
                called, kind, number, name = found.groups()
                if kind == "fn":
                    continue
                if name is not None:
                    objects[number] = Path(name.strip()).resolve() == library
                if called:
                    callee = objects[number]
                else:
                    own = objects[number]
            elif found := CALLS.match(line):
                # Without an object of its own the callee is in the caller's.
                if callee and not own:
                    calls += int(found[1])
                callee, skipped = None, True
            elif line[0] in "0123456789+-*" and own is not None:
                # The line after calls= is the callee's cost.
                if own and not skipped:
                    instructions += int(line.split()[1])
                skipped = False
    return instructions, calls
