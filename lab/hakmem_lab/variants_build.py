"""Builds variants of the allocator from a commit and a patch, each in a folder of the cache.

The tree comes from `git archive`: neither the checkout nor its list of worktrees is touched. A
library is kept under a digest of all it was made from, and not built again.
"""

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hakmem.allocators import cache
from hakmem.allocators.peers import Allocator
from hakmem.documents import write_text
from hakmem.environment import allowed_cpus
from hakmem.errors import UserError

from hakmem_lab.building import UNWANTED, UNWANTED_PREFIXES, BuildError
from hakmem_lab.variants import Variant

PRESET = "release"
# Only the shared library is wanted.
ALWAYS = ("-DHAKMEM_BUILD_TESTS=OFF", "-DHAKMEM_BUILD_BENCH=OFF")
LIBRARY = "libhakmem.so"
SHORT = 12


@dataclass(frozen=True)
class Source:
    """The commit that variants are made of."""

    repository: Path
    commit: str

    @property
    def short(self) -> str:
        return self.commit[:SHORT]


def source_of(folder: Path, base: str) -> Source:
    """The commit that `base` names in the repository of `folder`."""
    if shutil.which("git") is None:
        raise UserError("git is not installed (Debian package git)", 2)
    repository = git(folder, "rev-parse", "--show-toplevel")
    if not repository:
        raise UserError(f"{folder} lies in no git repository: there is no base to build", 2)
    commit = git(folder, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    if not commit:
        raise UserError(f"base '{base}' is no commit of {repository}", 2)
    return Source(Path(repository), commit)


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def build(variant: Variant, source: Source) -> tuple[Allocator, bool]:
    """The variant as an allocator, and whether it was in the cache; why not is its problem."""
    folder = folder_of(variant, source)
    version = f"{source.short} {variant.patch.name if variant.patch else ''}".strip()
    version = " ".join([version, *variant.cmake])
    library, known = folder / LIBRARY, is_current(folder)
    try:
        if not known:
            make(variant, source, folder)
    except BuildError as error:
        return Allocator(variant.name, None, version, str(error), variant.title), False
    return Allocator(variant.name, library, version, source=variant.title), known


def folder_of(variant: Variant, source: Source) -> Path:
    parts = [
        source.commit,
        hashlib.sha256(variant.patch.read_bytes()).hexdigest() if variant.patch else "",
        *variant.cmake,
        compiler(),
    ]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return cache.cache_folder() / "variants" / digest[:SHORT]


def compiler() -> str:
    """The first line of what CMake's default compiler says of itself."""
    command = [*shlex.split(os.environ.get("CC", "cc")), "--version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
    return answer.partition("\n")[0]


def is_current(folder: Path) -> bool:
    try:
        known = json.loads((folder / "built.json").read_text())["sha256"]
        return cache.checksum(folder / LIBRARY) == known
    except (OSError, ValueError, KeyError, TypeError):
        return False


def make(variant: Variant, source: Source, folder: Path) -> None:
    """From the commit to the library; all steps in build.log, the tree is gone afterwards."""
    tree, output = folder / "tree", folder / "build"
    with only_one(folder) as log:
        clear(tree, output)
        try:
            unpack(source, tree, log)
            if variant.patch is not None:
                apply(variant.patch, source, tree, log)
            configure = ["cmake", "--preset", PRESET, "-B", str(output), *ALWAYS, *variant.cmake]
            step("cmake refuses it", configure, tree, log)
            jobs = f"-j{len(allowed_cpus())}"
            compiling = ["cmake", "--build", str(output), "--target", "hakmem", jobs]
            step("it does not compile", compiling, tree, log)
            shutil.copy2(output / LIBRARY, folder / LIBRARY)
        except OSError as error:
            raise BuildError(f"not built: {error} (log: {log.name})") from error
        finally:
            clear(tree, output)
        made = {"sha256": cache.checksum(folder / LIBRARY), "commit": source.commit}
        made |= {"variant": variant.name, "cmake": list(variant.cmake), "compiler": compiler()}
        write_text(folder / "built.json", json.dumps(made, indent=1) + "\n")


def clear(*folders: Path) -> None:
    """Takes away trees; one of a build that was killed may still be there."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def only_one(folder: Path) -> Iterator[IO[str]]:
    """The log of a build, held so that no other process makes the same one meanwhile."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(f"not built: cannot make {folder}: {error.strerror}") from error
    with (folder / "build.log").open("a", errors="replace") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BuildError("another process is building it") from None
        log.truncate(0)
        (folder / "built.json").unlink(missing_ok=True)
        yield log


def unpack(source: Source, tree: Path, log: IO[str]) -> None:
    archive, what = tree.with_suffix(".tar"), "its base cannot be unpacked"
    packing = ["git", "archive", "--format=tar", "-o", str(archive), source.commit]
    tree.mkdir()
    try:
        step(what, packing, source.repository, log)
        step(what, ["tar", "-xf", str(archive)], tree, log)
    finally:
        archive.unlink(missing_ok=True)


def apply(patch: Path, source: Source, tree: Path, log: IO[str]) -> None:
    """git would take the tree for a folder of any repository around it, and apply nothing."""
    what = f"{patch.name} does not apply to {source.short}"
    step(what, ["git", "apply", str(patch)], tree, log, ceiling=tree.parent)


def step(
    what: str, command: Sequence[str], folder: Path, log: IO[str], ceiling: Path | None = None
) -> None:
    """Runs one command to its end, its output in the log; BuildError says `what` where it fails."""
    log.write(f"== {shlex.join(command)}\n")
    log.flush()
    begin = Path(log.name).stat().st_size
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in UNWANTED and not name.startswith((*UNWANTED_PREFIXES, "GIT_"))
    }
    if ceiling is not None:
        environment["GIT_CEILING_DIRECTORIES"] = str(ceiling.resolve())
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except FileNotFoundError as error:
        raise BuildError(f"{what}: {command[0]} is not installed (log: {log.name})") from error
    if done.returncode:
        text = Path(log.name).read_bytes()[begin:].decode(errors="replace")
        raise BuildError(f"{what}: {telling_line(text)} (log: {log.name})")


def telling_line(text: str) -> str:
    """The line of a tool's output that says most about its failure."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()]
    return (telling[0] if telling else lines[-1] if lines else "no message")[:200]
