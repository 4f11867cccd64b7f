"""Real programs as loads, as programs.toml has them: the input, and the command under an allocator.

A load is prepared once, in a folder of its caller's; then it gives a contender for each allocator.
Every run must print what the first one under glibc printed: one that does not is a failed run.
Clients of a server do not run under the allocator, and their costs are not counted.
"""

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hakmem import files
from hakmem.allocators import cache
from hakmem.allocators.peers import DEBIAN_LIBRARIES, Allocator, find
from hakmem.errors import UserError
from hakmem.measuring.rotation import Contender
from hakmem.plain_text import with_last_words
from hakmem.running.launching import Outcome, Start
from hakmem.running.proof import PROOF_SETTINGS, counted, parse_stats, peer_served
from hakmem.running.serving import ServerRunner
from hakmem.running.witness import BY_ITSELF

from hakmem_lab.suite import from_table, read_toml, require_distinct

WORKLOADS = Path(__file__).parent / "workloads"
CATALOGUE = Path(__file__).parent / "programs.toml"
FOLDER = WORKLOADS / "programs"
CAUSES, JUDGING, SERVERS, ALL = "causes", "judging", "servers", "all"
SETS = (CAUSES, JUDGING, SERVERS, ALL)
# Debian's own programs, whatever else is installed: another one may bring its own malloc.
PATH = "/usr/bin:/bin"
# Runs at the same time with the same seed; each has a folder whose name is as long.
PLACES = 100


@dataclass(frozen=True)
class Program:
    """One entry of the catalogue; see programs.toml for the fields."""

    name: str
    title: str
    set: str
    size: int
    command: str
    count: int = 0
    prepare: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    threads: int = 1
    load: str = ""
    idle: int = 0
    fresh: str = ""
    own_malloc: bool = False

    def scaled(self, percent: int, counted: bool) -> int:
        return max(1, (self.count if counted else self.size) * percent // 100)

    def problem(self) -> str:
        """The first thing that is missing, in one line, or an empty string."""
        for program, package in (text.split() for text in self.needs):
            if not shutil.which(program, path=PATH):
                return f"{program} is not installed (Debian package {package})"
        return ""


def read_catalogue(path: Path) -> list[Program]:
    """All programs of a file; one line about the first that is not as it must be."""
    entries = read_toml(path).get("program")
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise UserError(f"{path} is no catalogue of programs", 2)
    found = [from_table(Program, f"{path}: program {i}", e) for i, e in enumerate(entries, 1)]
    require_distinct(path, found)
    for one in found:
        if not one.name.replace("-", "").replace("+", "").isalnum():
            raise UserError(f"{path}: '{one.name}' is no name", 2)
        if one.set not in SETS or one.set == ALL:
            known = f"{CAUSES}, {JUDGING} or {SERVERS}"
            raise UserError(f"{path}: {one.name}: set: '{one.set}' is no {known}", 2)
        if one.idle and not one.load:
            raise UserError(f"{path}: {one.name}: idle: only a server, which has a load, has it", 2)
    return found


def chosen(catalogue: Sequence[Program], which: str, names: str | None) -> list[Program]:
    """Of a set, or by name: commas between."""
    if names is None:
        return [one for one in catalogue if which in (ALL, one.set)]
    known = {one.name: one for one in catalogue}
    wanted = dict.fromkeys(name.strip() for name in names.split(","))
    if missing := [name for name in wanted if name not in known]:
        raise UserError(f"--programs: there is no program '{missing[0]}' (--list shows all)", 2)
    return [known[name] for name in wanted]


@contextmanager
def inputs_of(seed: int) -> Iterator[Path]:
    """A folder for a run's inputs, gone at its end; programs see its path, and counts repeat."""
    above = cache.own_folder("programs")
    try:
        for place in range(PLACES):
            folder = above / f"{seed}-{place:02}"
            with files.open_to_append(folder.with_suffix(".lock")) as held:
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                shutil.rmtree(folder, ignore_errors=True)
                try:
                    yield folder
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                return
    except OSError as error:
        raise UserError(f"cannot make {above}: {error.strerror}") from error
    raise UserError(f"{PLACES} other runs use seed {seed}")


# By default Python serves small objects from arenas of its own, past malloc.
PYTHON_SETTINGS = {"PYTHONMALLOC": "malloc", "PYTHONHASHSEED": "0"}
# What else would change from run to run, or from user to user.
SETTINGS = {
    "PATH": PATH, "LC_ALL": "C", "TZ": "UTC", "PERL_HASH_SEED": "0", "PERL_PERTURB_KEYS": "0",
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MAGICK_THREAD_LIMIT": "1",
    "PYTHONDONTWRITEBYTECODE": "1", "GIT_CONFIG_GLOBAL": "/dev/null",
}  # fmt: skip
Words = tuple[str, ...]
# What a server and its clients say is compared, and a socket's path has room for some 100 bytes.
SCRATCH = Path("/tmp")


@dataclass(frozen=True)
class RealContender(Contender):
    """A run that also compares what was printed; `fresh` is run before it, by itself."""

    expected: str = ""
    fresh: Words = ()

    def begin_anew(self) -> None:
        if self.fresh:
            subprocess.run(self.fresh, stdin=subprocess.DEVNULL, check=True)

    def run(self, cpus: str | None = None) -> Outcome:
        self.begin_anew()
        outcome = super().run(cpus)
        if outcome.problem or not self.expected or output_digest(outcome) == self.expected:
            return outcome
        return replace(outcome, start_error="its output differs from that of the run by glibc")


@dataclass
class RealLoad:
    """One program with the inputs of a seed. `folder` and `expected` are known once it is prepared.
    A server has a load, which uses it."""

    program: Program
    seed: int
    folder: Path | None = None
    size: int = 0
    expected: str = ""
    # Of a server, whose user may be another one; gone with the load.
    scratch: TemporaryDirectory | None = None

    @property
    def is_server(self) -> bool:
        return bool(self.program.load)

    def filled(self, text: str) -> str:
        text = text.replace("{n}", str(self.size)).replace("{seed}", str(self.seed))
        return text.replace("{in}", str(self.folder)).replace("{work}", str(FOLDER))

    def words(self, text: str) -> Words:
        first, *rest = shlex.split(self.filled(text))
        return (shutil.which(first, path=PATH) or first, *rest)

    def prepare(self, folder: Path, size: int) -> None:
        """Makes the input, and runs once under glibc for the output that all runs must have."""
        if problem := self.program.problem():
            raise UserError(f"{self.program.name}: {problem}")
        self.size = size
        if self.is_server:
            self.scratch = files.scratch_folder(f"hakmem-{self.program.name}-", SCRATCH)
            folder = Path(self.scratch.name)
            files.set_mode(folder, 0o755)
        self.folder = folder / self.program.name
        files.make_folder(self.folder)
        self.expected = ""
        for text in self.program.prepare:
            self.make_input(self.filled(text))
        outcome = replace(self.contender(find("glibc")), idle_s=0.0).run()
        if outcome.problem:
            told = f"{self.program.name} fails under glibc: {outcome.problem}"
            raise UserError(with_last_words(told, outcome.last_words()))
        self.expected = output_digest(outcome)

    def make_input(self, line: str) -> None:
        if line.startswith("inputs "):
            line = f"{sys.executable} {FOLDER / 'inputs.py'} {line.removeprefix('inputs ')}"
        shell, own = ["/bin/sh", "-c", line], os.environ | SETTINGS
        ran = subprocess.run(shell, env=own, capture_output=True, text=True, errors="replace")
        if ran.returncode:
            raise UserError(with_last_words(f"its input: {line} failed", ran.stderr[-300:]))

    def contender(
        self, allocator: Allocator, settings: Mapping[str, str] | None = None
    ) -> RealContender:
        """A row for a rotation; its outcomes tell the cost of the program under test alone."""
        one, library = self.program, allocator.library
        if library is None and one.own_malloc:
            library = DEBIAN_LIBRARIES / "libc.so.6"
        own = SETTINGS | PYTHON_SETTINGS | dict(one.settings)
        return RealContender(
            allocator.name,
            self.words(one.command),
            self.reachable(library, allocator.name) if self.is_server else library,
            {**own, **(settings or {}), **allocator.settings},
            idle_s=float(one.idle),
            runner=ServerRunner(load=self.words(one.load)) if one.load else BY_ITSELF,
            expected=self.expected,
            fresh=self.words(one.fresh) if one.fresh else (),
        )

    def reachable(self, library: Path | None, name: str) -> Path | None:
        """A copy of the library: the server's user may not be able to read where it lies."""
        if library is None or library.is_relative_to(DEBIAN_LIBRARIES) or not library.is_file():
            return library
        copy = self.folder / f"{name}-{library.name}"
        if not copy.exists():
            files.copy(library, copy, 0o755)
        return copy

    def served(self, allocator: Allocator) -> str:
        """One cell that says whether the allocator served the program, from a run of its own."""
        is_own = allocator.name == "hakmem"
        row = self.contender(allocator, PROOF_SETTINGS if is_own else None)
        row.begin_anew()
        if is_own:
            start = Start(row.command, row.preload, None, row.settings)
            outcome, seen = row.runner.run_counted(start)
            # In memory after the load, or printed at the end: not every server has one.
            spans, processes = max(seen or (0, 0), parse_stats(outcome.stderr))
            return f"yes, {counted(spans, processes)}" if spans else "NOT SERVED"
        own = replace(allocator, library=row.preload)
        return peer_served(row.command, own, row.settings, runner=row.runner)


def output_digest(outcome: Outcome) -> str:
    """What must be the same under every allocator."""
    return hashlib.sha256(outcome.stdout.encode()).hexdigest()
