"""examples.py SOURCE LIBRARY HARDENED CC CXX: the programs in C and C++ that docs/heaps.md and docs/cpp.md link compile without a warning, and run to
their ends under both libraries. What these pages and docs/rust.md show of a program is in one that the page links (cargo builds those in Rust:
packaging/rust/test.sh)."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# How many programs each page links.
PAGES = {"heaps.md": 4, "cpp.md": 3, "rust.md": 1}
LINKED = re.compile(r"\(\.\./((?:packaging/rust/hakmem/)?examples/\w+\.(?:cc?|rs))\)")
SHOWN = re.compile(r"^```(?:c|cpp|rust)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"\s*(/\*.*?\*/|//.*)")


def run(*command: str | Path, **options) -> None:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    print(done.stdout, end="")


def programs_of(source: Path, page: str, count: int) -> set[Path]:
    """Those that the page links; each line that it shows is in one of them."""
    text = (source / "docs" / page).read_text(encoding="utf-8")
    found = {source / path for path in LINKED.findall(text)}
    if len(found) != count:
        raise SystemExit(f"docs/{page} links {len(found)} programs, not {count}")
    code = {COMMENT.sub("", line).strip() for file in found for line in file.read_text(encoding="utf-8").splitlines()}
    for line in (line for part in SHOWN.findall(text) for line in part.splitlines()):
        if COMMENT.sub("", line).strip() not in code:
            raise SystemExit(f"docs/{page} shows a line that no program has: {line}")
    return found


def main(source: Path, libraries: list[Path], cc: str, cxx: str) -> None:
    programs = set().union(*(programs_of(source, page, count) for page, count in PAGES.items()))
    compilers = {".c": (cc, "-std=c11"), ".cc": (cxx, "-std=c++17")}
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("HAKMEM_")}
    with tempfile.TemporaryDirectory() as folder:
        for file in sorted(one for one in programs if one.suffix in compilers):
            program = Path(folder) / file.name.replace(".", "_")
            for library in libraries:
                run(*compilers[file.suffix], "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", f"-I{source / 'include'}", file, "-o", program,
                    library, f"-Wl,-rpath,{library.parent}")
                run(program, env=environment)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(sys.argv[2]), Path(sys.argv[3])], *sys.argv[4:6])
