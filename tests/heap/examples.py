"""examples.py SOURCE LIBRARY HARDENED CC: the examples of docs/heaps.md compile without a warning, and run to their ends under both libraries."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = 3


def run(*command: str | Path, **options) -> None:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    print(done.stdout, end="")


def main(source: Path, libraries: list[Path], cc: str) -> None:
    examples = re.findall(r"^```c\n(.*?)^```$", (source / "docs/heaps.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if len(examples) != EXAMPLES:
        raise SystemExit(f"docs/heaps.md has {len(examples)} examples, not {EXAMPLES}")
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("HAKMEM_")}
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(examples):
            file, program = Path(folder) / f"{number}.c", Path(folder) / f"{number}"
            file.write_text(text, encoding="utf-8")
            for library in libraries:
                run(cc, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", f"-I{source / 'include'}", file, "-o", program, library,
                    f"-Wl,-rpath,{library.parent}")
                run(program, env=environment)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(sys.argv[2]), Path(sys.argv[3])], sys.argv[4])
