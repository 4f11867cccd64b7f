"""The programs of `hakmem programs`: read from programs.toml, each a RealLoad with its input.

Inputs lie in the cache, at paths that depend on program, size and seed alone: a path is part of
what a program does, and counts must repeat. The last run that uses a seed removes its inputs.
"""

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path

from hakmem.allocators import cache
from hakmem.errors import UserError
from hakmem.inputs import read_whole
from hakmem.plain_text import with_last_words

from hakmem_lab.flavours import PYTHON_SETTINGS
from hakmem_lab.real_programs import LOADS, WORKLOADS, Needed, RealLoad

CATALOGUE = Path(__file__).parent / "programs.toml"
FOLDER = WORKLOADS / "programs"
CAUSES, JUDGING, ALL = "causes", "judging", "all"
SETS = (CAUSES, JUDGING, ALL)
# Debian's own programs, whatever else is installed: another one may bring its own malloc.
PATH = "/usr/bin:/bin"
# What else would change from run to run, or from user to user.
SETTINGS = {
    **PYTHON_SETTINGS, "PATH": PATH, "LC_ALL": "C", "TZ": "UTC", "PERL_HASH_SEED": "0",
    "PERL_PERTURB_KEYS": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    "MAGICK_THREAD_LIMIT": "1", "PYTHONDONTWRITEBYTECODE": "1", "GIT_CONFIG_GLOBAL": "/dev/null",
}  # fmt: skip
READY = "ready"


@dataclass(frozen=True)
class Program:
    """One entry of the catalogue; see programs.toml for the fields."""

    name: str
    title: str
    set: str
    size: int
    count: int
    command: str = ""
    prepare: Sequence[str] = ()
    needs: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    server: str = ""
    brings_malloc: bool = False

    def scaled(self, percent: int, counted: bool) -> int:
        return max(1, (self.count if counted else self.size) * percent // 100)

    def load(self, seed: int) -> RealLoad:
        """With the seed in its command line and its input."""
        needs = tuple(needed(text) for text in self.needs)
        shown = (self.name, self.title, needs, self.size, "")
        if self.server:
            of_suite = LOADS[self.server]
            return replace(of_suite, name=self.name, default_size=self.size)
        return RealLoad(
            *shown,
            partial(self.words, seed),
            partial(self.make_input, seed),
            SETTINGS | dict(self.settings),
            brings_malloc=self.brings_malloc,
            is_pinned=self.threads == 1,
        )

    def filled(self, text: str, seed: int, folder: Path, size: int) -> str:
        known = {"{n}": size, "{seed}": seed, "{in}": folder, "{work}": FOLDER}
        for name, value in known.items():
            text = text.replace(name, str(value))
        return text

    def words(self, seed: int, folder: Path, size: int) -> tuple[str, ...]:
        first, *rest = shlex.split(self.filled(self.command, seed, folder, size))
        return (shutil.which(first, path=PATH) or first, *rest)

    def make_input(self, seed: int, folder: Path, size: int) -> None:
        """Once for a size and seed, and again when a generator or the catalogue has changed."""
        with (folder.parent / f"{self.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            digest = digest_of(self)
            if (ready := folder / READY).exists() and ready.read_text() == digest:
                return
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for text in self.prepare:
                self.shell(self.filled(text, seed, folder, size))
            ready.write_text(digest)

    def shell(self, line: str) -> None:
        if line.startswith("inputs "):
            line = f"{sys.executable} {FOLDER / 'inputs.py'} {line.removeprefix('inputs ')}"
        environment = os.environ | SETTINGS
        environment.pop("PYTHONMALLOC")
        ran = subprocess.run(["/bin/sh", "-c", line], env=environment, stdin=subprocess.DEVNULL,
                             capture_output=True, text=True, errors="replace")  # fmt: skip
        if ran.returncode:
            told = f"{self.name}: cannot make its input: {line}"
            raise UserError(with_last_words(told, ran.stderr.strip()[-300:]))


def needed(text: str) -> Needed:
    program, package = text.split()
    return Needed(program, package, partial(shutil.which, path=PATH))


def digest_of(program: Program) -> str:
    digest = hashlib.sha256(repr(program).encode())
    for path in sorted(FOLDER.iterdir()):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def read_catalogue(path: Path) -> list[Program]:
    """All programs of a file; one line about the first that is not as it must be."""
    try:
        entries = tomllib.loads(read_whole(path).decode())["program"]
        found = [read_program(entry) for entry in entries]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", 2) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no catalogue of programs: {error}", 2) from error
    names = [one.name for one in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{path} has '{twice}' twice", 2)
    return found


def read_program(entry: Mapping) -> Program:
    if unknown := set(entry) - {one.name for one in fields(Program)}:
        raise ValueError(f"{entry.get('name', 'a program')} has {sorted(unknown)[0]}, which is no field")
    found = Program(**entry)
    if not found.name.replace("-", "").replace("+", "").isalnum():
        raise ValueError(f"'{found.name}' is no name")
    if found.set not in (CAUSES, JUDGING):
        raise ValueError(f"{found.name} is of the set '{found.set}', not {CAUSES} or {JUDGING}")
    if not isinstance(found.size, int) or found.size < 1 or found.count < 0:
        raise ValueError(f"{found.name} has no size")
    if bool(found.command) == bool(found.server) or found.server not in ("", *LOADS):
        raise ValueError(f"{found.name} needs a command or a server, not both")
    return found


def chosen(catalogue: Sequence[Program], which: str, names: str | None) -> list[Program]:
    """Of a set, or by name: commas between."""
    if names is None:
        return [one for one in catalogue if which in (ALL, one.set)]
    wanted = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    known = {one.name: one for one in catalogue}
    if missing := [name for name in wanted if name not in known]:
        raise UserError(f"--programs: there is no program '{missing[0]}' (--list shows all)", 2)
    if not wanted:
        raise UserError("--programs: no program named", 2)
    return [known[name] for name in wanted]


@contextmanager
def inputs_of(seed: int) -> Iterator[Path]:
    """The folder of a seed's inputs; removed when nobody else uses it."""
    folder = cache.cache_folder() / "programs" / f"seed-{seed}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = (folder.parent / f"seed-{seed}.lock").open("w")
    except OSError as error:
        raise UserError(f"cannot make {folder}: {error.strerror}") from error
    with held:
        fcntl.flock(held, fcntl.LOCK_SH)
        try:
            yield folder
        finally:
            with suppress(BlockingIOError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
