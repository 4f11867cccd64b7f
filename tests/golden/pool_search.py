"""pool_search.py PROGRAM: what a search of the pool takes, be it for a request or for a purge, does not grow with the heap. Instructions
of the library for each block, counted by callgrind, with few blocks and with six times as many."""
import os
import subprocess
import sys
import tempfile

from instructions import self_costs

FEW, TIMES = 500, 6
# Levels of an index, and steps of growth that become larger.
MOST = 1.15
LOADS = {"aligned to 512 KiB": (1 << 19, 300), "aligned to 4 MiB": (1 << 22, 9000), "larger than each hole": (0, 700_000),
         "purged, smaller than a huge page": (1, 1_850_000)}


def count(program: str, align: int, size: int, blocks: int) -> float:
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(
            ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out.name}", program, str(align), str(size), str(blocks)],
            check=True, timeout=60, env=os.environ | {"HAKMEM_DECAY_MS": "600000"})  # valgrind's seconds are no load's
        with open(out.name) as f:
            costs, _ = self_costs(f.read(), "libhakmem.so")
    return sum(costs.values()) / blocks


def main(program: str) -> list[str]:
    problems = []
    for name, (align, size) in LOADS.items():
        few, many = count(program, align, size, FEW), count(program, align, size, FEW * TIMES)
        print(f"{name}: {few:.0f} instructions a block with {FEW} blocks, {many:.0f} with {FEW * TIMES}")
        if many > few * MOST:
            problems.append(f"{name}: {many:.0f} instructions a block instead of {few:.0f} where there are {TIMES} times as many")
    return problems


if __name__ == "__main__":
    sys.exit("\n".join(main(*sys.argv[1:])) or 0)
