"""Instructions of a whole run, counted by callgrind."""
import os
import re
import shutil
import subprocess
import sys
import tempfile


def instructions(program: str, *words: object, **settings: object) -> int:
    # Not into /dev/null: callgrind puts a file in place of what is there.
    with tempfile.NamedTemporaryFile() as counts:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={counts.name}", program, *map(str, words)],
            env={**os.environ, **{name: str(value) for name, value in settings.items()}},
            check=True, timeout=100, capture_output=True, text=True,
        )
    return int(re.search(r"Collected : (\d+)", done.stderr)[1])


def need_valgrind() -> None:
    if shutil.which("valgrind") is None:
        print("SKIPPED: no valgrind")
        sys.exit(77)
