"""random_mixed.py LIBRARY BENCH: instructions of all of malloc and free, their slow paths included, for a pair of random
mixed, preloaded; and of a program with the allocator linked in: random_mixed.py --static LINKED FLOOR prints the same as
what the whole program takes more than under an allocator that does nothing. Differences of two lengths, counted by
callgrind."""
import os
import shutil
import subprocess
import sys
import tempfile

from instructions import self_costs

FEW, MANY = 400_000, 1_200_000
# The bar of the project, and for 4,000 slots two more, of malloc's countdown: to see that it is no matter of one working set.
PAIR_MOST = {400: 40, 4000: 42}


def count(command: list[str], library: str | None, objects: str) -> tuple[int, int]:
    """Self costs in the objects, and of the whole program."""
    with tempfile.NamedTemporaryFile() as out:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HAKMEM_") and k != "LD_PRELOAD"}
        if library:
            environment["LD_PRELOAD"] = library
        subprocess.run(
            ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out.name}", *command],
            check=True, timeout=100, env=environment, stdout=subprocess.DEVNULL,
        )
        with open(out.name) as f:
            costs, total = self_costs(f.read(), objects)
    return sum(costs.values()), total


def a_pair(bench: str, slots: int, library: str | None, objects: str) -> tuple[float, float]:
    """A step is one malloc or one free, so two of them make a pair."""
    few, many = (count([bench, str(n), str(slots)], library, objects) for n in (FEW, MANY))
    pairs = (MANY - FEW) / 2
    return (many[0] - few[0]) / pairs, (many[1] - few[1]) / pairs


def check_preloaded(library: str, bench: str) -> list[str]:
    found = []
    for slots, most in PAIR_MOST.items():
        own, _ = a_pair(bench, slots, library, os.path.basename(os.path.realpath(library)))
        print(f"random mixed, {slots} slots: {own:.2f} instructions a pair in the library")
        if own < 20:
            found.append(f"{slots} slots: only {own:.2f} instructions: the library did not serve the program")
        if own > most:
            found.append(f"{slots} slots: {own:.2f} instructions a pair, at most {most} allowed")
    return found


def print_linked(linked: str, floor: str) -> None:
    for slots in PAIR_MOST:
        _, with_it = a_pair(linked, slots, None, "")
        _, without = a_pair(floor, slots, None, "")
        print(f"random mixed, {slots} slots, linked in: {with_it - without:.2f} instructions a pair beyond the floor's "
              f"({with_it:.2f} and {without:.2f} in all)")


if __name__ == "__main__":
    if shutil.which("valgrind") is None:
        print("valgrind is not installed")
        sys.exit(77)
    if sys.argv[1] == "--static":
        print_linked(*sys.argv[2:])
        sys.exit(0)
    sys.exit("\n".join(check_preloaded(*sys.argv[1:])) or 0)
