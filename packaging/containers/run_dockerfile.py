#!/usr/bin/env python3
"""run_dockerfile.py DOCKERFILE CONTEXT CHROOT: executes its COPY, ENV and RUN lines in a chroot, in their order.

The chroot stands for the image of FROM. Instructions that it does not know end it with status 2: none is passed over. Ends with
the status of the RUN line that failed.
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ENTER = Path(__file__).resolve().parents[1] / "chroots/enter.sh"


def instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", "", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def copy(arguments: str, context: Path, root: Path) -> None:
    *patterns, target = shlex.split(arguments)
    assert target.endswith("/"), f"COPY to a folder ends with a slash: {arguments}"
    folder = root / target.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in patterns:
        found = sorted(context.glob(pattern))
        if not found:
            sys.exit(f"COPY: nothing in {context} is {pattern}")
        for file in found:
            shutil.copy(file, folder)


def main(dockerfile: Path, context: Path, root: Path) -> int:
    # The image's own environment; a package manager of pip's kind is told by ours where its index is.
    variables = {name: value for name, value in os.environ.items() if name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")}
    known = instructions(dockerfile.read_text())
    if not known or known[0][0] != "FROM" or not any(name == "RUN" for name, _ in known):
        sys.exit(f"{dockerfile}: no FROM or no RUN")
    for name, arguments in known[1:]:
        print(f"--- {name} {arguments}", flush=True)
        if name == "COPY":
            copy(arguments, context, root)
        elif name == "ENV":
            variables.update(word.split("=", 1) for word in shlex.split(arguments))
        elif name == "RUN":
            given = [f"{key}={value}" for key, value in variables.items()]
            status = subprocess.run([ENTER, root, "--", "env", *given, "/bin/sh", "-c", arguments], check=False).returncode
            if status:
                print(f"{dockerfile.name}: RUN ended with status {status}")
                return status
        else:
            print(f"{dockerfile}: {name} is not known here")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:4])))
