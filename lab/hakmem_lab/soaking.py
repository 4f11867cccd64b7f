"""Runs a soak: allocators in turn, epoch by epoch, for minutes to hours.

The long process of every allocator stays alive for the whole run, but only one works at a time: it
runs an epoch when it is told to (bench/bench_soak.c). In the same rounds small programs are started
afresh. Every figure goes to the CSV as it comes.
"""

import contextlib
import random
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hakmem import documents, files
from hakmem.allocators.peers import Allocator, bench_program
from hakmem.errors import UserError
from hakmem.measuring.rotation import OPS_PER_SECOND
from hakmem.plain_text import last_lines, with_last_words
from hakmem.running import interruption
from hakmem.running.launching import NOT_PRELOADED, Start, launcher_arguments, reap, run_once

from hakmem_lab import soak_file
from hakmem_lab.shell import allocator_json
from hakmem_lab.soak_file import Epoch
from hakmem_lab.soak_judging import LONG

PAIR = re.compile(r"(\w+)=([-0-9.e+]+)")
EPOCHS_WITHOUT_END = 1 << 40
TRIAL_STEPS = 100_000
TRIAL_FACTOR = 4
TRIAL_LEAST_S = 0.5
END_LIMIT_S = 60
LATENCIES = ("p50_ns", "p99_ns", "p999_ns", "max_ns")


@dataclass(frozen=True)
class LongLoad:
    """Arguments of bench_soak: how much it does in an epoch, and on how much."""

    steps: int
    seed: int
    threads: int = 2
    # Blocks that a thread may hold.
    slots: int = 4000

    def command(self) -> list[str]:
        numbers = (EPOCHS_WITHOUT_END, self.steps, self.threads, self.slots, 1, self.seed)
        return [str(bench_program("bench_soak")), *map(str, numbers)]


class ProgramFailed(Exception):
    """Why an allocator cannot go on, with what its program said last."""


class LongProcess:
    """One bench_soak under one allocator, at rest between its epochs."""

    def __init__(self, allocator: Allocator, load: LongLoad, number: int) -> None:
        self.number = number
        self.epochs = 0
        # Closed by kill(); it lives as long as the process does.
        self._errors = files.scratch_file("w+", errors="replace")
        with files.open_null() as nowhere:
            start = Start(load.command(), allocator.library, settings=allocator.settings)
            self._process = subprocess.Popen(
                launcher_arguments(nowhere.fileno(), start),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                pass_fds=[nowhere.fileno()],
                # Ctrl-C is for us: the epoch under way must not be the process's last.
                start_new_session=True,
            )

    def run_epoch(self) -> dict[str, float]:
        """Lets it work for one epoch; the figures of its line by name."""
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line.startswith("Epoch = "):
            raise ProgramFailed(f"its long process ended: {self.last_words()}")
        if self.epochs == 0 and NOT_PRELOADED.search(words := self.last_words()):
            raise ProgramFailed(f"its library was not loaded: {words}")
        self.epochs += 1
        return {name: float(value) for name, value in PAIR.findall(line)}

    def end(self) -> None:
        """The end of its input makes it free everything and exit."""
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(END_LIMIT_S)

    def kill(self) -> None:
        """Ends it where it stands, if it still runs; the launcher ends the program."""
        self._process.terminate()
        try:
            self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            reap(self._process)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()

    def last_words(self) -> str:
        self._errors.seek(0)
        return last_lines(self._errors.read()) or "no message"


@dataclass
class Soak:
    """What is run, where it is written, and how far it is."""

    path: Path
    allocators: list[Allocator]
    long_load: LongLoad
    programs: Mapping[str, Sequence[str]]
    limit_s: float
    elapsed_s: float = 0.0
    rounds_done: int = 0
    first_process: int = 1
    problems: dict[str, str] = field(default_factory=dict)

    def head(self, facts: Mapping[str, str]) -> dict:
        """All that a resumed run needs."""
        return documents.head("soak") | {
            "allocators": {a.name: allocator_json(a) for a in self.allocators},
            "long": vars(self.long_load),
            "programs": {name: list(command) for name, command in self.programs.items()},
            "facts": dict(facts),
        }


def steps_for(epoch_s: float, load: LongLoad, allocator: Allocator) -> int:
    """How many steps take this allocator about so long, from trials long enough to be warm."""
    steps = TRIAL_STEPS
    while (seconds := trial_seconds(replace(load, steps=steps), allocator)) < min(
        epoch_s / 2, TRIAL_LEAST_S
    ):
        steps *= TRIAL_FACTOR
    return max(1000, round(steps * epoch_s / seconds))


def trial_seconds(load: LongLoad, allocator: Allocator) -> float:
    """What the second epoch of a new process takes."""
    process = LongProcess(allocator, load, 0)
    try:
        process.run_epoch()
        return max(process.run_epoch()["seconds"], 1e-6)
    except ProgramFailed as failed:
        raise UserError(f"{allocator.name}: {failed}") from failed
    finally:
        process.kill()


def run(soak: Soak, say: Callable[[str], None]) -> None:
    """Whole rounds until the time is over; KeyboardInterrupt passes through, with all kept.

    An allocator that fails is taken out. The first one's failure ends the run.
    """
    shuffler = random.Random(soak.long_load.seed + soak.rounds_done)
    start = time.monotonic() - soak.elapsed_s
    processes: dict[str, LongProcess] = {}
    try:
        for allocator in soak.allocators:
            processes[allocator.name] = LongProcess(allocator, soak.long_load, soak.first_process)
        while soak.elapsed_s < soak.limit_s:
            for load in (LONG, *soak.programs):
                order = [a for a in soak.allocators if a.name not in soak.problems]
                shuffler.shuffle(order)
                for allocator in order:
                    say(f"round {soak.rounds_done + 1}, {load}: {allocator.name}")
                    step(soak, load, allocator, processes[allocator.name], start)
            soak.rounds_done += 1
        for process in processes.values():
            process.end()
    finally:
        for process in processes.values():
            process.kill()


def step(soak: Soak, load: str, allocator: Allocator, process: LongProcess, start: float) -> None:
    try:
        long = load == LONG
        figures = long_figures(process) if long else program_figures(soak, load, allocator)
    except ProgramFailed as failed:
        soak.problems[allocator.name] = f"{load}, round {soak.rounds_done + 1}: {failed}"
        if allocator is soak.allocators[0]:
            problem = soak.problems[allocator.name]
            raise UserError(
                f"{allocator.name}: {problem}; {soak.path} has what was measured"
            ) from failed
        return
    with interruption.held():
        soak.elapsed_s = time.monotonic() - start
        epoch = Epoch(
            time=documents.now(),
            elapsed_s=round(soak.elapsed_s, 3),
            round=soak.rounds_done + 1,
            load=load,
            allocator=allocator.name,
            **figures,
        )
        soak_file.append(soak.path, epoch)


def long_figures(process: LongProcess) -> dict:
    said = process.run_epoch()
    return {
        "process": process.number,
        "epoch": process.epochs,
        "ops": int(said["ops"]),
        "seconds": said["seconds"],
        "ops_per_sec": round(said["ops"] / said["seconds"], 1),
        "rss_kb": int(said["rss_kb"]),
        "peak_rss_kb": int(said["peak_rss_kb"]),
        "live_kb": int(said["live_kb"]),
        **{name: said[name] for name in LATENCIES},
    }


def program_figures(soak: Soak, load: str, allocator: Allocator) -> dict:
    """One run: its own throughput line, else runs per second of its wall time."""
    outcome = run_once(soak.programs[load], allocator.library, None, allocator.settings)
    if outcome.problem:
        raise ProgramFailed(with_last_words(outcome.problem, outcome.last_words()))
    speed = OPS_PER_SECOND.read(outcome) or 1 / outcome.wall_s
    return {
        "process": soak.rounds_done + 1,
        "epoch": 1,
        "seconds": round(outcome.wall_s, 6),
        "ops_per_sec": round(speed, 3),
        "rss_kb": outcome.peak_rss_kb,
        "peak_rss_kb": outcome.peak_rss_kb,
        **dict.fromkeys(("ops", "live_kb", *LATENCIES)),
    }
