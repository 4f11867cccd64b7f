"""One run of a suite: its jobs, and who takes part in each.

The folder holds plan.json, a journal for each job, and the results made of them.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from hakmem import environment
from hakmem.allocators.peers import Allocator, bench_program, find
from hakmem.measuring.rotation import OPS_PER_SECOND, WALL_TIME, Contender, Metric

from hakmem_lab import shell, static_peers
from hakmem_lab.shell import FLOOR
from hakmem_lab.suite import STATIC, Row


@dataclass(frozen=True)
class Job:
    """One row in one mode, with its work scaled; `problem` says why it cannot run at all."""

    row: Row
    mode: str
    work: int = 0
    round_s: float = 0.0
    is_throughput: bool = True
    problem: str = ""

    @property
    def key(self) -> str:
        return f"{self.row.name}.{self.mode}"

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.row.filled(self.work)

    @property
    def metric(self) -> Metric:
        if self.row.figure:
            return Metric(re.compile(rf"\b{re.escape(self.row.figure)}=(\d+)"), False, "")
        return OPS_PER_SECOND if self.is_throughput else WALL_TIME

    @property
    def cpus(self) -> str | None:
        return environment.default_cpu() if self.row.cpu == "one" else None

    @property
    def command_line(self) -> str:
        return shlex.join([self.row.program, *self.arguments])


@dataclass(kw_only=True)
class Session(shell.Session):
    """One run of a suite."""

    suite: str
    title: str
    slice_s: float
    settings: dict[str, str] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    seconds: float = 0.0
    command = "bench"
    # 100,000,000 blocks take some allocators minutes; a program that hangs must not stop the suite.
    limit_s = 600.0

    def plan(self) -> dict:
        return super().plan() | {"jobs": [asdict(job) for job in self.jobs]}

    @classmethod
    def load(cls, folder: Path) -> Self:
        found = super().load(folder)
        found.jobs = [read_job(entry) for entry in found.jobs]
        return found


def read_job(entry: Mapping) -> Job:
    row = dict(entry["row"])
    return Job(**{**entry, "row": Row(**{**row, "arguments": tuple(row["arguments"])})})


def program_of(row: Row) -> str:
    """The path of a bench program; other programs are taken as they stand."""
    is_bench = row.program.startswith("bench_") and "/" not in row.program
    return str(bench_program(row.program)) if is_bench else row.program


def contenders_of(
    session: Session, row: Row, mode: str, work: int
) -> tuple[list[Contender], dict[str, str]]:
    """One for each allocator that can run this row, and why the others cannot."""
    floor = find(FLOOR)
    chosen = [*session.allocators, *([floor] if row.floor and floor.usable else [])]
    words, missing = row.filled(work), {}
    if mode == STATIC:
        linked = link_all(row, chosen)
        missing = {one.name: one.problem for one in linked if one.problem and one.name != FLOOR}
        rows = [one.contender(words) for one in linked if not one.problem]
    else:
        command = (program_of(row), *words)
        rows = [Contender(a.name, command, a.library, a.settings) for a in chosen]
    own = session.settings
    return [
        replace(r, settings={**own, **r.settings}, limit_s=session.limit_s) for r in rows
    ], missing


def with_work(contender: Contender, row: Row, work: int) -> Contender:
    """The same row with another amount of work; a row without one stays as it is."""
    if not row.scales:
        return contender
    return replace(contender, command=(contender.command[0], *row.filled(work)))


def link_all(row: Row, allocators: list[Allocator]) -> list[static_peers.Linked]:
    sources = static_peers.program_sources(row.program)
    known = static_peers.linkable_names()
    return [
        static_peers.link(sources, a.name)
        if a.name in known
        else static_peers.Linked(a.name, problem="only its shared library is known")
        for a in allocators
    ]
