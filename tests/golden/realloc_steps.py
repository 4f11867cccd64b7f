"""realloc_steps.py DEFAULT HARDENED: an element that an array grows by takes the hardened build at most five times the default's instructions."""
import sys

from callgrind import instructions, need_valgrind

FEW, MANY = 2_000, 30_000
BOUND = 5


def of_element(program: str) -> float:
    return (instructions(program, MANY) - instructions(program, FEW)) / (MANY - FEW)


need_valgrind()
default, hardened = map(of_element, sys.argv[1:3])
print(f"default build {default:.0f} instructions an element, hardened {hardened:.0f}")
sys.exit(hardened > BOUND * default)
