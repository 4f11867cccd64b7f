"""realloc_steps.py DEFAULT HARDENED: an element that an array grows by takes the hardened build at most five times the default's instructions."""
import re
import shutil
import subprocess
import sys
import tempfile

FEW, MANY = 2_000, 30_000
BOUND = 5


def instructions(program: str, elements: int) -> int:
    # Not into /dev/null: callgrind puts a file in place of what is there.
    with tempfile.NamedTemporaryFile() as counts:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={counts.name}", program, str(elements)],
            check=True, timeout=100, capture_output=True, text=True,
        )
    return int(re.search(r"Collected : (\d+)", done.stderr)[1])


def of_element(program: str) -> float:
    return (instructions(program, MANY) - instructions(program, FEW)) / (MANY - FEW)


if shutil.which("valgrind") is None:
    print("SKIPPED: no valgrind")
    sys.exit(77)
default, hardened = map(of_element, sys.argv[1:3])
print(f"default build {default:.0f} instructions an element, hardened {hardened:.0f}")
sys.exit(hardened > BOUND * default)
