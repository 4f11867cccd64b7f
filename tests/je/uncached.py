"""uncached.py PROGRAM: a block that is allocated and freed without a cache takes at most 680 instructions, 641 when this was written: what is due by the clock is not looked at in each
of the two calls, which takes 1,072, and a block that is taken leaves its slab on its list without a look at where it belongs (721 with one)."""
import re
import shutil
import subprocess
import sys
import tempfile

FEW, MANY = 2_000, 30_000
BOUND = 680


def instructions(program: str, pairs: int) -> int:
    # Not into /dev/null: callgrind puts a file in place of what is there.
    with tempfile.NamedTemporaryFile() as counts:
        done = subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={counts.name}", program, str(pairs)],
                              check=True, timeout=100, capture_output=True, text=True)
    return int(re.search(r"Collected : (\d+)", done.stderr)[1])


if shutil.which("valgrind") is None:
    print("SKIPPED: no valgrind")
    sys.exit(77)
pair = (instructions(sys.argv[1], MANY) - instructions(sys.argv[1], FEW)) / (MANY - FEW)
print(f"{pair:.0f} instructions a pair, at most {BOUND}")
sys.exit(pair > BOUND)
