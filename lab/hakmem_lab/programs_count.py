"""The counted judge: instructions, cache misses and TLB misses of a program under valgrind.

Nothing varies between two runs: addresses, environment, folder, hash seeds and CPU are the same.
valgrind has no rseq, and runs one thread at a time.
"""

import re
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hakmem.allocators.peers import Allocator
from hakmem.errors import UserError

from hakmem_lab.real_programs import RealLoad

# Of one run of about a second, or under valgrind of a tenth: no more than what hangs.
LIMIT_S = 900.0
# First level and last level: size, ways, line. As TLBs a line is a page.
CACHES = ("--D1=32768,8,64", "--LL=1048576,8,64")
TLBS = ("--D1=262144,64,4096", "--LL=8388608,16,4096")
# 50 times slower means 50 times as many decays a step.
SETTINGS = {"HAKMEM_DECAY_MS": "600000", "HOME": "/nonexistent"}
# Of the caller nothing reaches the program: a longer environment or folder is more work.
STILL = ("/usr/bin/setarch", "-R", "/usr/bin/taskset", "-c", "0")
FIGURES = [
    re.compile(rf"{words}\s*([\d,]+)") for words in (r"I\s+refs:", r"D1\s+misses:", "LLd misses:")
]
NAMED = re.compile(r"(c?)ob=\((\d+)\)(?: (.*))?")
CALLS = re.compile(r"calls=(\d+)")


@dataclass(frozen=True)
class Counted:
    """One program under one allocator. Two calls into the library are a pair: what glibc's own
    malloc executes is not told apart from the C library's other work."""

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


def count_program(load: RealLoad, allocator: Allocator) -> dict:
    """A line for the journal: the counts, or why there are none."""
    try:
        instructions, l1, l2 = cachegrind(load, allocator, CACHES)
        _, tlb1, tlb2 = cachegrind(load, allocator, TLBS)
        own = of_library(load, allocator) if allocator.library else (None, None)
    except UserError as error:
        return {"problems": {allocator.name: error.message}}
    if own[0] == 0:
        return {"problems": {allocator.name: "NOT SERVED: its library was not executed"}}
    counted = Counted(instructions, l1, l2, tlb1, tlb2, *own)
    return {"counts": {allocator.name: asdict(counted)}}


def run(load: RealLoad, allocator: Allocator, *tool: str) -> None:
    row = load.contender(allocator, SETTINGS)
    given = dict(row.settings) | ({"LD_PRELOAD": str(row.preload)} if row.preload else {})
    words = (f"{name}={value}" for name, value in sorted(given.items()))
    valgrind = ("/usr/bin/valgrind", "--trace-children=yes", *tool)
    command = ("/usr/bin/env", "-i", "-C", "/", *words, *STILL, *valgrind, *row.command)
    outcome = replace(row, command=command, preload=None, settings={}, limit_s=LIMIT_S).run()
    if outcome.problem:
        raise UserError(f"under valgrind: {outcome.problem}")


def cachegrind(load: RealLoad, allocator: Allocator, caches: tuple[str, str]) -> list[int]:
    """Instructions, misses of the first and of the last level: sums over all processes."""
    with tempfile.TemporaryDirectory() as folder:
        files = ("--cachegrind-out-file=/dev/null", f"--log-file={folder}/%p")
        run(load, allocator, "--tool=cachegrind", "--cache-sim=yes", *caches, *files)
        log = "\n".join(path.read_text(errors="replace") for path in Path(folder).iterdir())
    found = [
        sum(int(text.replace(",", "")) for text in pattern.findall(log)) for pattern in FIGURES
    ]
    if not found[0]:
        raise UserError("valgrind told no count")
    return found


def of_library(load: RealLoad, allocator: Allocator) -> tuple[int, int]:
    """Instructions within the allocator's library, and calls into it, of all processes."""
    with tempfile.TemporaryDirectory() as folder:
        files = (f"--callgrind-out-file={folder}/%p.out", f"--log-file={folder}/%p.log")
        run(load, allocator, "--tool=callgrind", *files)
        parts = [within(path, allocator.library.resolve()) for path in Path(folder).glob("*.out")]
    return sum(part[0] for part in parts), sum(part[1] for part in parts)


def within(profile: Path, library: Path) -> tuple[int, int]:
    """Of one profile of callgrind: costs of lines in the library, calls to it from elsewhere."""
    objects: dict[str, bool] = {}
    own = callee = is_callees = False
    instructions = calls = 0
    with profile.open(errors="replace") as lines:
        for line in lines:
            if found := NAMED.match(line):
                called, number, name = found.groups()
                if name is not None:
                    objects[number] = Path(name.strip()).resolve() == library
                if called:
                    callee = objects[number]
                else:
                    own = objects[number]
            elif found := CALLS.match(line):
                # A callee without an object is in the caller's.
                calls += int(found[1]) if callee and not own else 0
                callee, is_callees = False, True
            elif line[0] in "0123456789+-*":
                # The line after calls= is the callee's cost.
                instructions += int(line.split()[1]) if own and not is_callees else 0
                is_callees = False
    return instructions, calls
