"""examples.py SOURCE LIBRARY HARDENED CC: the programs of docs/heaps.md compile without a warning, and run to their ends under both libraries.
What the page shows of a program is in the program."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = 3
LINKED = re.compile(r"\(\.\./examples/(heap_\w+\.c)\)")
SHOWN = re.compile(r"^```c\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"\s*/\*.*?\*/")


def run(*command: str | Path, **options) -> None:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    print(done.stdout, end="")


def main(source: Path, libraries: list[Path], cc: str) -> None:
    page = (source / "docs/heaps.md").read_text(encoding="utf-8")
    programs = {name: (source / "examples" / name).read_text(encoding="utf-8") for name in LINKED.findall(page)}
    if len(programs) != EXAMPLES:
        raise SystemExit(f"docs/heaps.md links {len(programs)} programs, not {EXAMPLES}")
    code = {COMMENT.sub("", line).strip() for text in programs.values() for line in text.splitlines()}
    for line in (line for text in SHOWN.findall(page) for line in text.splitlines()):
        if COMMENT.sub("", line).strip() not in code:
            raise SystemExit(f"docs/heaps.md shows a line that no program has: {line}")
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("HAKMEM_")}
    with tempfile.TemporaryDirectory() as folder:
        for name in programs:
            file, program = source / "examples" / name, Path(folder) / Path(name).stem
            for library in libraries:
                run(cc, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", f"-I{source / 'include'}", file, "-o", program, library,
                    f"-Wl,-rpath,{library.parent}")
                run(program, env=environment)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(sys.argv[2]), Path(sys.argv[3])], sys.argv[4])
