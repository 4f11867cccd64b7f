"""entries.py PROGRAM: instructions of a call of an entry beside malloc, with its free where it has one, and its loop."""
import sys

from callgrind import instructions, need_valgrind

FEW, MANY = 10_000, 30_000
# As they are, and two more. The memset of 40 bytes and posix_memalign's look at errno, libc's, are among them.
BOUNDS = {"realloc_null": 60, "realloc_stays": 40, "calloc": 67, "usable_size": 27, "new_sized_delete": 46, "new_aligned": 76, "posix_memalign": 108}


def of_call(program: str, name: str) -> float:
    return (instructions(program, name, MANY) - instructions(program, name, FEW)) / (MANY - FEW)


need_valgrind()
problems = []
for name, most in BOUNDS.items():
    each = of_call(sys.argv[1], name)
    print(f"{name}: {each:.1f} instructions")
    if each > most:
        problems.append(f"{name}: {each:.1f} instructions, at most {most}")
sys.exit("\n".join(problems) or 0)
