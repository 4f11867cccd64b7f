"""Proof that an allocator served a program: a program may bring its own malloc.

hakmem proves itself by its own counter: the one it prints at exit, or for a program that skips exit
handlers the one in its memory. For the others, the dynamic loader's log names the file
that each object's calls to malloc were bound to.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hakmem import files
from hakmem.allocators import settings as allocator_settings
from hakmem.allocators.peers import Allocator
from hakmem.running import programs
from hakmem.running.launching import Outcome, Start, run_once
from hakmem.running.witness import BY_ITSELF, Runner

STATS_LINE = re.compile(r"^\[SS_OS_STATS\] alloc=(\d+) free=(\d+)", re.MULTILINE)
COUNTER_MARK, LINKED_MARK = b"[SS_OS_STATS]", b"\0libhakmem.so"
# What the run that proves it sets by itself.
PROOF_SETTINGS = {"HAKMEM_SS_OS_STATS": "1", "HAKMEM_VERBOSE": "1"}
SETTING = re.compile(r"\bHAKMEM_[A-Z0-9_]+=\S*")
BINDING = re.compile(r"binding file \S+ \[\d+\] to (\S+) \[\d+\]: normal symbol `malloc'")

IDLE = "the program allocates nothing, or by a malloc of its own"
LIMIT = "HAKMEM_LIMIT"
# What a cell says of a proof begins with, where there is none.
NOT_SERVED, FAILED = "NOT SERVED", "PROGRAM FAILED"
# As the library reads one; it says of any other that it uses none.
LIMIT_IN_EFFECT = re.compile(r"0*[1-9][0-9]*[KMGTkmgt]?")
# Said with HAKMEM_VERBOSE alone: no warnings.
PLAIN_LINE = re.compile(r"hakmem: (version \S+|HAKMEM_\w+=(?!.*: ).*)$")


def idle_words(settings: Mapping[str, str] | None = None) -> str:
    """Why hakmem may have handed out nothing: a limit can refuse all that a program asks for."""
    own = (settings or {}).get(LIMIT, os.environ.get(LIMIT, ""))
    limits = [f"{LIMIT}={own}"] if LIMIT_IN_EFFECT.fullmatch(own) else []
    if (most := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        limits.append(f"ulimit -v {most >> 10}")
    return f"{IDLE}, or {' and '.join(limits)} refused it everything" if limits else IDLE


def why_unproven(said: str) -> str:
    """What a row's figures lack where its proof says that; nothing where another cell stands."""
    if said.startswith(NOT_SERVED):
        return f"{NOT_SERVED}, its figures are another malloc's"
    return said if said.startswith(FAILED) else ""


def counted(spans: int, processes: int = 1) -> str:
    """What hakmem's counter counts are spans and large blocks, not calls of malloc."""
    many = f" in {processes:,} processes" if processes > 1 else ""
    return f"{spans:,} span{'' if spans == 1 else 's'} handed out{many}"


@dataclass(frozen=True)
class Served:
    """Whether hakmem served a program: spans it took, summed over all processes that took some.

    `was_seen`: the counter was there to be read, at 0 too. `warnings` is what hakmem said else.
    """

    spans: int
    processes: int
    settings: tuple[str, ...]
    outcome: Outcome
    was_seen: bool = False
    warnings: tuple[str, ...] = ()
    why_idle: str = IDLE

    def __bool__(self) -> bool:
        return self.spans > 0

    @property
    def is_idle(self) -> bool:
        """hakmem was loaded, and nothing was asked of it."""
        return self.was_seen and not self.spans and not self.outcome.problem

    @property
    def failure(self) -> str:
        """How the program ended, where that was too early to tell whose malloc served it."""
        return "" if self or self.outcome.preload_problem else self.outcome.problem

    def __str__(self) -> str:
        if self.is_idle:
            return f"{NOT_SERVED} ({self.why_idle})"
        if self.failure:
            return f"{FAILED} ({self.failure})"
        if not self:
            return NOT_SERVED
        return f"yes, {counted(self.spans, self.processes)}"


def parse_stats(text: str) -> tuple[int, int]:
    """Spans taken, and the number of processes that took some, from hakmem's exit lines.

    A process can hold hakmem twice, linked and preloaded: one of both takes nothing.
    """
    taken = [int(found[1]) for found in STATS_LINE.finditer(text)]
    return sum(taken), sum(spans > 0 for spans in taken)


def hakmem_served(
    command: Sequence[str],
    library: Path,
    settings: Mapping[str, str] | None = None,
    limit_s: float = 0.0,
    runner: Runner = BY_ITSELF,
) -> Served:
    """A separate run that prints hakmem's counters and effective settings.

    Where none are printed, as by programs that end with _exit, another run is looked at.
    """
    asked = {**(settings or {}), **PROOF_SETTINGS}
    outcome, counted = runner.run_counted(Start(command, library, None, asked, 0.0, limit_s))
    spans, processes = counted or parse_stats(outcome.stderr)
    was_seen = counted is not None or STATS_LINE.search(outcome.stderr) is not None
    if not was_seen and not outcome.problem:
        seen = runner.spans_seen(Start(command, library, None, settings, 0.0, limit_s))
        spans, was_seen = seen or 0, seen is not None
    said = outcome.stderr
    return Served(
        spans,
        processes,
        effective_settings(said),
        outcome,
        was_seen,
        warnings(said),
        idle_words(settings),
    )


def warnings(text: str) -> tuple[str, ...]:
    """What hakmem says in a run whose stderr nobody sees, without the settings it lists."""
    lines = (line for line in text.splitlines() if line.startswith("hakmem: "))
    return tuple(dict.fromkeys(line for line in lines if not PLAIN_LINE.match(line)))


def effective_settings(text: str) -> tuple[str, ...]:
    """What hakmem says it runs with; a family of classes with one value becomes one entry."""
    values = dict(found.split("=", 1) for found in SETTING.findall(text))
    families: dict[tuple[str, str], list[str]] = {}
    for name, value in values.items():
        if name not in PROOF_SETTINGS:
            family = re.sub(r"_C\d+$", "_C", name)
            families.setdefault((family, value), []).append(name)
    return tuple(
        f"{names[0]}={value}" if len(names) == 1 else f"{family}<{len(names)} classes>={value}"
        for (family, value), names in families.items()
    )


def malloc_providers(start: Start, runner: Runner) -> tuple[list[str], int]:
    """The files that served malloc in a run of a program, most bindings first; and what hakmem
    handed out in it, which a program may hold under other names than malloc.

    No files for a statically linked program, and for one the loader tells nothing about.
    """
    with files.scratch_folder() as folder:
        log = {"LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": str(Path(folder) / "bindings")}
        asked = {**start.settings, **PROOF_SETTINGS, **log}
        spans, _ = parse_stats(runner.run(replace(start, settings=asked)).stderr)
        counts: dict[str, int] = {}
        for path in Path(folder).iterdir():
            with path.open(errors="replace") as lines:
                for line in lines:
                    if found := BINDING.search(line):
                        counts[found[1]] = counts.get(found[1], 0) + 1
    return sorted(counts, key=lambda name: -counts[name]), spans


def load_checked(allocator: Allocator) -> Allocator:
    """The allocator again, with a problem where the loader refuses its library.

    A setting in our environment that hakmem refuses is an error: the default would be measured.
    """
    if allocator.library is None or not allocator.usable:
        return allocator
    allocator_settings.check([allocator], {})
    outcome = run_once(["/bin/true"], allocator.library, settings=allocator.settings)
    return replace(allocator, problem=outcome.problem) if outcome.problem else allocator


def peer_served(
    command: Sequence[str],
    allocator: Allocator,
    settings: Mapping[str, str] | None = None,
    limit_s: float = 0.0,
    runner: Runner = BY_ITSELF,
) -> str:
    """One cell that says whether this allocator, and no other, served a run of `command`."""
    asked = {**(settings or {}), **allocator.settings}
    start = Start(command, allocator.library, None, asked, 0.0, limit_s)
    providers, spans = malloc_providers(start, runner)
    # The library itself may be a hakmem, or serve from one, which has handed out what was counted.
    library = allocator.library
    found = b"" if library is None else library.read_bytes()
    of_library = COUNTER_MARK in found or LINKED_MARK in found
    if programs.examine(command).holds_hakmem or (spans and not of_library):
        return f"{NOT_SERVED} (hakmem, which the program holds)"
    if not providers:
        return "unknown (static?)"
    if allocator.library is not None:
        own = str(allocator.library)
        return "yes" if own in providers else f"{NOT_SERVED} ({Path(providers[0]).name})"
    # An executable can stand in the log for libc's malloc, when it takes the function's address.
    names = [Path(provider).name for provider in providers]
    from_libc = any(name.startswith("libc.so") for name in names)
    return "yes" if from_libc else f"{NOT_SERVED} ({names[0]})"
