"""Runs every `sh` fence of README.md and docs/*.md that is not marked `<!-- not run: reason -->` above it.

    commands.py [--root ROOT] [--build BUILD] [--list] [PAGE...]

Each page gets a temporary folder: the fences of a page run there in turn, so that a later one may use the files of an
earlier one. The folder looks like the source tree (links to what is in it, and `build/release` is BUILD), `hakmem` is
on the PATH, and HOME lies inside. A fence fails by a status that is not zero, or after 60 seconds. Commands that are
neither in a fence nor marked are faults too: nobody would notice when they stop working.

Status 77, which CTest counts as skipped, where no `hakmem` is installed.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pages import REPO, command_documents, is_generated, split

SHELL = {"sh", "bash", "shell", "console", "zsh"}
# How a line begins that a reader would type, in a block of code that is not an `sh` fence.
COMMAND = re.compile(
    r"^\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(?:(?:\.venv/bin/)?hakmem (?!run: |top: |ran |used |held |took )[a-z-]+\b|make [a-z]+$|make [a-z]+ |cmake -|ctest "
    r"|LD_PRELOAD=\S+ \S|pip install |build/release/\S+ )"
)
SECONDS = 60


def unmarked_commands(page, prose, fences):
    """Commands in indented blocks, and in fences of no language or another."""
    for number, line in prose:
        if line.startswith("    ") and COMMAND.match(line):
            yield f"{page}:{number}: a command outside of an sh fence: {line.strip()}"
    for fence in fences:
        if fence.language in SHELL - {"sh"}:
            yield f"{page}:{fence.line}: shell is written as `sh` here, not as `{fence.language}`"
        elif fence.language != "sh":
            for line in fence.text.splitlines():
                if line.startswith("$ ") or COMMAND.match(line):
                    yield f"{page}:{fence.line}: a command outside of an sh fence: {line.strip()}"


def tree(folder, root, build):
    """Makes `folder` look like the source tree, without letting a command write to it by a relative path."""
    for entry in root.iterdir():
        if entry.name not in (".git", "build"):
            (folder / entry.name).symlink_to(entry)
    (folder / "build").mkdir()
    (folder / "build/release").symlink_to(build)


def environment(folder, hakmem):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("HAKMEM_", "HAKLAB_")) and name not in ("LD_PRELOAD", "MAKEFLAGS")}
    home = folder / "home"
    home.mkdir()
    return kept | {"PATH": f"{hakmem.parent}:{kept.get('PATH', os.defpath)}", "HOME": str(home), "TMPDIR": str(home),
                   "HAKLAB_RESULTS": str(home / "results"), "COLUMNS": "160"}


def run(fence, folder, variables):
    """None, or what went wrong. What the fence has started and left behind is ended with it."""
    output = folder / "home/output"
    with output.open("wb") as sink:
        shell = subprocess.Popen(["/bin/sh", "-e", "-c", fence.text], cwd=folder, env=variables, stdin=subprocess.DEVNULL,
                                 stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = shell.wait(SECONDS)
            fault = f"status {status}" if status else None
        except subprocess.TimeoutExpired:
            fault = f"still running after {SECONDS} seconds"
        try:
            os.killpg(shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        shell.wait()
    if not fault:
        return None
    tail = output.read_text(errors="replace").splitlines()[-20:]
    return "\n".join([fault, *("    " + line for line in fence.text.splitlines()), "  printed:", *("    " + line for line in tail)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=REPO)
    parser.add_argument("--build", type=Path)
    parser.add_argument("--list", action="store_true", help="print the fences, run nothing")
    parser.add_argument("pages", nargs="*", type=Path)
    given = parser.parse_args()
    root = given.root.resolve()
    build = (given.build or root / "build/release").resolve()
    found = [path for path in (root / ".venv/bin/hakmem", shutil.which("hakmem")) if path and Path(path).exists()]
    if not found:
        print("no hakmem command: run scripts/setup.sh test")
        return 77
    hakmem = Path(found[0])

    faults, ran, marked = [], 0, 0
    for page in [path.resolve() for path in given.pages] or command_documents(root):
        prose, fences = split(page)
        name = page.relative_to(root)
        if not is_generated(page):  # what a program writes is not mended here
            faults += unmarked_commands(name, prose, fences)
        shell = [fence for fence in fences if fence.language == "sh"]
        marked += sum(bool(fence.mark) for fence in shell)
        wanted = [fence for fence in shell if not fence.mark]
        if not wanted:
            continue
        with tempfile.TemporaryDirectory(prefix="hakmem-docs-") as folder:
            folder = Path(folder)
            tree(folder, root, build)
            variables = environment(folder, hakmem)
            for fence in wanted:
                ran += 1
                if given.list:
                    print(f"{name}:{fence.line}:\n{fence.text}")
                    continue
                start = time.monotonic()
                fault = run(fence, folder, variables)
                print(f"{name}:{fence.line}: {'FAILED' if fault else 'ok'} ({time.monotonic() - start:.1f} s)", flush=True)
                if fault:
                    faults.append(f"{name}:{fence.line}: {fault}")
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"{ran} fences run, {marked} marked as not run, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
