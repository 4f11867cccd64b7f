"""entries.py PROGRAM: instructions of a call of an entry beside malloc, with its free where it has one, and its loop."""
import re
import shutil
import subprocess
import sys
import tempfile

FEW, MANY = 10_000, 30_000
# As they are, and two more. The memset of 40 bytes and posix_memalign's look at errno, libc's, are among them.
BOUNDS = {"realloc_null": 60, "realloc_stays": 40, "calloc": 67, "usable_size": 27, "new_sized_delete": 46, "new_aligned": 76, "posix_memalign": 108}


def instructions(program: str, name: str, times: int) -> int:
    with tempfile.NamedTemporaryFile() as counts:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={counts.name}", program, name, str(times)],
            check=True, timeout=60, capture_output=True, text=True,
        )
    return int(re.search(r"Collected : (\d+)", done.stderr)[1])


def of_call(program: str, name: str) -> float:
    return (instructions(program, name, MANY) - instructions(program, name, FEW)) / (MANY - FEW)


if shutil.which("valgrind") is None:
    print("SKIPPED: no valgrind")
    sys.exit(77)
problems = []
for name, most in BOUNDS.items():
    each = of_call(sys.argv[1], name)
    print(f"{name}: {each:.1f} instructions")
    if each > most:
        problems.append(f"{name}: {each:.1f} instructions, at most {most}")
sys.exit("\n".join(problems) or 0)
