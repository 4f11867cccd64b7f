"""first_blocks.py PROGRAM: instructions of the first eight blocks of a class, where each slab is new: what is looked for
before memory is added, and at the exit, counts too."""
import sys

from callgrind import instructions, need_valgrind

SIZES = 40
BOUND = 4_000

need_valgrind()
program = sys.argv[1]
each = (instructions(program, SIZES) - instructions(program, 0)) / SIZES
print(f"{each:.0f} instructions a class")
sys.exit(each > BOUND)
