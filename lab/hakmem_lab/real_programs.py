"""Real programs as loads: what each needs, its input, and the command to run under an allocator.

A load is prepared once, in a folder of its caller's; then it gives a contender for each allocator.
Every run must print what the first one under glibc printed: one that does not is a failed run.
Clients of a server do not run under the allocator, and their costs are not counted.
"""

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hakmem.allocators.peers import DEBIAN_LIBRARIES, Allocator, find
from hakmem.errors import UserError
from hakmem.measuring.rotation import Contender
from hakmem.plain_text import with_last_words
from hakmem.running.launching import Outcome
from hakmem.running.proof import PROOF_SETTINGS, counted, parse_stats, peer_served
from hakmem.running.runners import BY_ITSELF
from hakmem.running.serving import ServerRunner

WORKLOADS = Path(__file__).parent / "workloads"
SYSTEM_PYTHON = "/usr/bin/python3"
# By default Python serves small objects from arenas of its own, past malloc.
PYTHON_SETTINGS = {"PYTHONMALLOC": "malloc", "PYTHONHASHSEED": "0"}
Words = tuple[str, ...]
# What a server and its clients say is compared, and a socket's path has room for some 100 bytes.
SCRATCH = Path("/tmp")


@dataclass(frozen=True)
class Needed:
    """A program and its Debian package; `find` says where it lies, if it is there."""

    program: str
    package: str
    find: Callable[[str], str | None] = shutil.which


@dataclass(frozen=True)
class RealContender(Contender):
    """A run that also compares what was printed; `fresh` is run before it, by itself."""

    expected: str = ""
    fresh: Words = ()

    def run(self, cpus: str | None = None) -> Outcome:
        if self.fresh:
            subprocess.run(self.fresh, stdin=subprocess.DEVNULL, check=True)
        outcome = super().run(cpus)
        if outcome.problem or not self.expected or output_digest(outcome) == self.expected:
            return outcome
        return replace(outcome, start_error="its output differs from that of the run by glibc")


@dataclass
class RealLoad:
    """One real program. `folder` and `expected` are known once it is prepared."""

    name: str
    title: str
    needs: tuple[Needed, ...]
    # Words for a prepared folder and a size: of the program; for a server of what uses it, and of
    # what is run before each run.
    command: Callable[[Path, int], Words]
    load: Callable[[Path, int], Words] | None = None
    fresh: Callable[[Path, int], Words] | None = None
    make_input: Callable[[Path, int], None] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    # Linked with an allocator of its own: glibc's must be preloaded like any other.
    brings_malloc: bool = False
    folder: Path | None = None
    size: int = 0
    expected: str = ""
    # Of a server, whose user may be another one; gone with the load.
    scratch: TemporaryDirectory | None = None

    @property
    def is_server(self) -> bool:
        return self.load is not None

    def problem(self) -> str:
        """The first thing that is missing, in one line, or an empty string."""
        for needed in self.needs:
            if not needed.find(needed.program):
                return f"{needed.program} is not installed (Debian package {needed.package})"
        return ""

    def prepare(self, folder: Path, size: int) -> None:
        """Makes the input, and runs once under glibc for the output that all runs must have."""
        if problem := self.problem():
            raise UserError(f"{self.name}: {problem}")
        self.size = size
        if self.is_server:
            self.scratch = TemporaryDirectory(prefix=f"hakmem-{self.name}-", dir=SCRATCH)
            folder = Path(self.scratch.name)
            folder.chmod(0o755)
        self.folder = folder / self.name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.expected = ""
        if self.make_input is not None:
            self.make_input(self.folder, self.size)
        first = self.contender(find("glibc"))
        outcome = first.run()
        if outcome.problem:
            told = f"{self.name} fails under glibc: {outcome.problem}"
            raise UserError(with_last_words(told, outcome.last_words()))
        self.expected = output_digest(outcome)

    def contender(
        self, allocator: Allocator, settings: Mapping[str, str] | None = None
    ) -> RealContender:
        """A row for a rotation; its outcomes tell the cost of the program under test alone."""
        if self.folder is None:
            raise UserError(f"{self.name} is not prepared")
        library = allocator.library
        if library is None and self.brings_malloc:
            library = DEBIAN_LIBRARIES / "libc.so.6"
        where = (self.folder, self.size)
        runner = ServerRunner(load=self.load(*where)) if self.load else BY_ITSELF
        return RealContender(
            allocator.name,
            self.command(*where),
            self.reachable(library, allocator.name) if self.is_server else library,
            {**self.settings, **(settings or {}), **allocator.settings},
            runner=runner,
            expected=self.expected,
            fresh=self.fresh(*where) if self.fresh else (),
        )

    def reachable(self, library: Path | None, name: str) -> Path | None:
        """A copy of the library: the server's user may not be able to read where it lies."""
        if library is None or library.is_relative_to(DEBIAN_LIBRARIES) or not library.is_file():
            return library
        copy = self.folder / f"{name}-{library.name}"
        if not copy.exists():
            shutil.copyfile(library, copy)
            copy.chmod(0o755)
        return copy

    def served(self, allocator: Allocator) -> str:
        """One cell that says whether the allocator served the program, from a run of its own."""
        row = self.contender(allocator)
        if allocator.name == "hakmem":
            spans, processes = parse_stats(self.contender(allocator, PROOF_SETTINGS).run().stderr)
            return f"yes, {counted(spans, processes)}" if spans else "NOT SERVED"
        if row.fresh:
            subprocess.run(row.fresh, stdin=subprocess.DEVNULL, check=True)
        own = replace(allocator, library=row.preload)
        return peer_served(row.command, own, row.settings, runner=row.runner)


def output_digest(outcome: Outcome) -> str:
    """What must be the same under every allocator."""
    return hashlib.sha256(outcome.stdout.encode()).hexdigest()
