"""far.py PROGRAM: a pair of free and malloc beyond the first region takes at most one and a half times the instructions of one in it."""
import sys

from callgrind import instructions, need_valgrind

BLOCKS, FEW, MANY = 40_000, 10_000, 30_000
BOUND = 1.5


def of_pair(program: str, reserve_mb: int) -> float:
    # The clock may bring a look at all blocks (hardened) into one run, which another one has not.
    few, many = (
        min(instructions(program, BLOCKS, times, HAKMEM_RESERVE_MB=reserve_mb) for _ in range(2)) for times in (FEW, MANY)
    )
    return (many - few) / (MANY - FEW)


need_valgrind()
near, far = of_pair(sys.argv[1], 4096), of_pair(sys.argv[1], 16)
print(f"in the first region {near:.1f} instructions, beyond it {far:.1f}")
sys.exit(far > BOUND * near)
