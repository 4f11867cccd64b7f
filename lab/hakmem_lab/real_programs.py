"""Real programs as loads: what each needs, its input, and the command to run under an allocator.

A load is prepared once, in a folder of its caller's; then it gives a contender for each allocator.
Every run must print what the first one under glibc printed: one that does not is a failed run.
Clients of the servers do not run under the allocator, and their costs are not counted.
"""

import hashlib
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hakmem.allocators.peers import DEBIAN_LIBRARIES, Allocator, find
from hakmem.errors import UserError
from hakmem.measuring.rotation import Contender
from hakmem.plain_text import with_last_words
from hakmem.running.launching import Outcome
from hakmem.running.proof import PROOF_SETTINGS, counted, parse_stats, peer_served

from hakmem_lab.workloads import postgres_load
from hakmem_lab.workloads.server import PRELOAD_VARIABLE

WORKLOADS = Path(__file__).parent / "workloads"
SYSTEM_PYTHON = "/usr/bin/python3"
# By default Python serves small objects from arenas of its own, past malloc.
PYTHON_SETTINGS = {"PYTHONMALLOC": "malloc", "PYTHONHASHSEED": "0"}
CHECKSUM = re.compile(r"^Checksum = (\S+)$", re.MULTILINE)
SERVER_COST = re.compile(
    r"^Server: peak_rss_kb=(\d+) cpu_s=([\d.]+) minor_faults=(\d+) major_faults=(\d+)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Needed:
    """A program and its Debian package; `find` says where it lies, if it is there."""

    program: str
    package: str
    find: Callable[[str], str | None] = shutil.which


@dataclass(frozen=True)
class RealContender(Contender):
    """A run that also compares what was printed, and counts the server alone where there is one."""

    is_server: bool = False
    expected: str = ""

    def run(self, cpus: str | None = None) -> Outcome:
        outcome = super().run(cpus)
        if outcome.problem:
            return outcome
        if self.is_server:
            outcome = with_server_cost(outcome)
        if self.expected and output_digest(outcome, self.is_server) != self.expected:
            return replace(outcome, start_error="its output differs from that of the run by glibc")
        return outcome


@dataclass
class RealLoad:
    """One real program. `folder` and `expected` are known once it is prepared."""

    name: str
    title: str
    needs: tuple[Needed, ...]
    # The command line for a prepared folder and a size.
    command: Callable[[Path, int], tuple[str, ...]]
    make_input: Callable[[Path, int], None] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    # A driver runs without the allocator, and starts the server with it.
    is_server: bool = False
    # Linked with an allocator of its own: glibc's must be preloaded like any other.
    brings_malloc: bool = False
    folder: Path | None = None
    size: int = 0
    expected: str = ""

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
        self.expected = output_digest(outcome, self.is_server)

    def contender(
        self, allocator: Allocator, settings: Mapping[str, str] | None = None, name: str = ""
    ) -> RealContender:
        """A row for a rotation; its outcomes tell the cost of the program under test alone."""
        if self.folder is None:
            raise UserError(f"{self.name} is not prepared")
        library = allocator.library
        if library is None and self.brings_malloc:
            library = DEBIAN_LIBRARIES / "libc.so.6"
        given = {**self.settings, **(settings or {}), **allocator.settings}
        if self.is_server:
            given[PRELOAD_VARIABLE] = str(library or "")
        return RealContender(
            name or allocator.name,
            self.command(self.folder, self.size),
            None if self.is_server else library,
            given,
            is_server=self.is_server,
            expected=self.expected,
        )

    def served(self, allocator: Allocator) -> str:
        """One cell that says whether the allocator served the program, from a run of its own."""
        row = self.contender(allocator)
        if allocator.name == "hakmem":
            spans, processes = parse_stats(self.contender(allocator, PROOF_SETTINGS).run().stderr)
            if not spans:
                return "NOT SERVED"
            return f"yes, {counted(spans, processes)}"
        if self.is_server:
            if row.settings[PRELOAD_VARIABLE] == "":
                return "nothing preloaded"
            # The driver ends with an error when the library is not in the server's memory.
            outcome = row.run()
            return f"NOT SERVED ({outcome.last_words(1)})" if outcome.problem else "loaded"
        return peer_served(row.command, replace(allocator, library=row.preload), row.settings)


def output_digest(outcome: Outcome, is_server: bool) -> str:
    """What must be the same under every allocator: the output, or a server's checksum line."""
    if not is_server:
        return hashlib.sha256(outcome.stdout.encode()).hexdigest()
    found = CHECKSUM.search(outcome.stdout)
    return found[1] if found else "none"


def with_server_cost(outcome: Outcome) -> Outcome:
    """The outcome with the server's CPU time, memory and faults in place of the driver's."""
    found = SERVER_COST.search(outcome.stdout)
    if found is None:
        return replace(outcome, start_error="the driver told no costs of the server")
    return replace(
        outcome,
        peak_rss_kb=int(found[1]),
        cpu_s=float(found[2]),
        minor_faults=int(found[3]),
        major_faults=int(found[4]),
    )


def driver(name: str, with_folder: bool = False) -> Callable[[Path, int], tuple[str, ...]]:
    """A driver of the workloads, in the interpreter that runs the lab."""

    def command(folder: Path, size: int) -> tuple[str, ...]:
        where = ("--folder", str(folder)) if with_folder else ()
        return (sys.executable, "-m", f"hakmem_lab.workloads.{name}", *where, "--size", str(size))

    return command


def make_database(folder: Path, _size: int) -> None:
    """The database of the PostgreSQL load, by its driver."""
    outcome = Contender("prepare", driver("postgres_load", with_folder=True)(folder, 0)).run()
    if outcome.problem:
        raise UserError(with_last_words(f"postgres: {outcome.problem}", outcome.last_words()))


SERVERS = {
    load.name: load
    for load in (
        RealLoad(
            "redis",
            "redis-server, seven kinds of requests from redis-benchmark",
            (Needed("redis-server", "redis-server"), Needed("redis-benchmark", "redis-tools")),
            driver("redis_load"),
            is_server=True,
            # Debian links it with jemalloc.
            brings_malloc=True,
        ),
        RealLoad(
            "postgres",
            "PostgreSQL, transactions from pgbench",
            (
                *(Needed(name, "postgresql", postgres_load.tool) for name in postgres_load.TOOLS),
                Needed("setpriv", "util-linux"),
            ),
            driver("postgres_load", with_folder=True),
            make_database,
            is_server=True,
        ),
    )
}
