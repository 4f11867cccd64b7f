"""costs.py PROGRAM: what heaps take, in instructions (callgrind) and system calls, counted.

A heap that is made, filled with 100 blocks and destroyed: as a difference of two runs, so that start and first use do not count.
The same of a malloc and its free by one thread, where caches serve: of small blocks, and of large ones; by turns in two heaps that were made so far apart; near a limit, with a refused request or without; and where another thread frees and does nothing else.
hakmem_heap_destroy of a heap with blocks of 64 bytes: for each span of 64 KiB, whatever the number of blocks.
"""

import re
import shutil
import subprocess
import sys
import tempfile

BRIEF_MOST = 23_500  # instructions
SPAN_MOST = 800  # instructions; 16,384 spans in 20 ms are 1,200 ns each
# Instructions: 89, of calloc 120, aligned 231, a realloc 218 (238, 672 and 769 by the long way), by turns 113 to 118, 243 near a limit, 700 to 763, as storms begin by the clock, with a request more that is refused (2,335 where that took the long way), 283, 1,632, 1,759 and 159; 2,467 of large blocks of 100,000 bytes (1,189 by the long way, 371 with a look at the clock) and 754 of handed ones where caches did not serve them; 2,979 and 3,209 of still larger ones off the quick lists.
PAIRS_MOST = {("pair", "100"): 92, ("calloc", "100"): 125, ("aligned", "100"): 240, ("resized", "100"): 228, ("turns", "8"): 122, ("turns", "32"): 127, ("turns", "1024"): 127, ("near", "100"): 255, ("refused", "100"): 800, ("pair", "100000"): 297, ("pair", "300000"): 1720, ("pair", "1000000"): 1850, ("handed", "100"): 175}
BY_THE_CLOCK = {"near", "refused"}  # what it asks for now and then is divided by more calls
BLOCKS_FACTOR = 1.5  # blocks of 64 bytes to blocks of 1,024, of which there are a sixteenth
CALLS_MOST = 16  # system calls of a destroy


def instructions(program: str, *words: str, only: str = "") -> int:
    with tempfile.NamedTemporaryFile() as counts:
        options = [f"--toggle-collect={only}"] if only else []
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", *options, f"--callgrind-out-file={counts.name}", program, *words],
            check=True, timeout=150, capture_output=True, text=True,
        )
    return int(re.search(r"Collected : (\d+)", done.stderr)[1])


def calls(program: str, *words: str) -> int:
    return int(subprocess.run([program, *words], check=True, timeout=60, capture_output=True, text=True).stdout)


def of_span(program: str, size: str) -> float:
    few, many = (instructions(program, "destroy", mib, size, only="hakmem_heap_destroy") for mib in ("16", "48"))
    return (many - few) / (32 * 16)


def of_pair(program: str, word: str, size: str) -> float:
    few = 100_000 if word in BY_THE_CLOCK else 10_000 if int(size) >= 100_000 else 30_000
    costs = [instructions(program, word, str(n), size) for n in (few, 3 * few)]
    return (costs[1] - costs[0]) / (2 * few)


def main(program: str) -> list[str]:
    few, many = (instructions(program, "brief", n) for n in ("50", "250"))
    brief = (many - few) / 200
    small, large = of_span(program, "64"), of_span(program, "1024")
    brief_calls, destroy_calls = calls(program, "brief", "1000"), calls(program, "destroy", "1024")
    print(f"new, 100 blocks and destroy: {brief:.0f} instructions, {brief_calls} system calls for 1,000")
    print(f"destroy of a span of blocks of 64 bytes: {small:.0f} instructions, of 1,024 bytes {large:.0f}; of 1 GiB {destroy_calls} system calls")
    problems = []
    for (word, size), most in PAIRS_MOST.items():
        pair = of_pair(program, word, size)
        print(f"{word}, {size}: {pair:.1f} instructions")
        if pair > most:
            problems.append(f"{word}, {size}: {pair:.1f} instructions, at most {most}")
    if brief > BRIEF_MOST:
        problems.append(f"new, 100 blocks and destroy: {brief:.0f} instructions, at most {BRIEF_MOST}")
    if small > SPAN_MOST:
        problems.append(f"destroy: {small:.0f} instructions a span, at most {SPAN_MOST}")
    if small > BLOCKS_FACTOR * large:
        problems.append(f"destroy depends on the number of blocks: {small:.0f} instructions a span with 1,000, {large:.0f} with 60")
    if brief_calls > CALLS_MOST or destroy_calls > CALLS_MOST:
        problems.append(f"{brief_calls} and {destroy_calls} system calls, at most {CALLS_MOST}")
    return problems


if __name__ == "__main__":
    if shutil.which("valgrind") is None:
        print("SKIPPED: no valgrind")
        sys.exit(77)
    sys.exit("\n".join(main(sys.argv[1])) or 0)
