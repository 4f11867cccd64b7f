"""far.py PROGRAM: a pair of free and malloc beyond the first region takes at most one and a half times the instructions of one in it."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

BLOCKS, FEW, MANY = 40_000, 10_000, 30_000
BOUND = 1.5


def instructions(program: str, reserve_mb: int, times: int) -> int:
    # Not into /dev/null: callgrind puts a file in place of what is there.
    with tempfile.NamedTemporaryFile() as counts:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={counts.name}", program, str(BLOCKS), str(times)],
            env={**os.environ, "HAKMEM_RESERVE_MB": str(reserve_mb)}, check=True, timeout=100, capture_output=True, text=True,
        )
    return int(re.search(r"Collected : (\d+)", done.stderr)[1])


def of_pair(program: str, reserve_mb: int) -> float:
    # The clock may bring a look at all blocks (hardened) into one run, which another one has not.
    few, many = (min(instructions(program, reserve_mb, times) for _ in range(2)) for times in (FEW, MANY))
    return (many - few) / (MANY - FEW)


if shutil.which("valgrind") is None:
    print("SKIPPED: no valgrind")
    sys.exit(77)
near, far = of_pair(sys.argv[1], 4096), of_pair(sys.argv[1], 16)
print(f"in the first region {near:.1f} instructions, beyond it {far:.1f}")
sys.exit(far > BOUND * near)
