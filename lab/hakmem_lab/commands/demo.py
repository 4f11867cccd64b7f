"""`hakmem demo`: real work under hakmem beside the allocators a Debian user can install.

Two parts: the random-mixed benchmark in rounds, and one real program. Each part proves that
hakmem served the program before its figures count.
"""

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import click
from hakmem import environment
from hakmem.allocators.peers import Allocator, bench_program, find
from hakmem.documents import write_json
from hakmem.errors import NOT_STARTED, UserError
from hakmem.measuring.measures import PEAK_RSS, WALL
from hakmem.measuring.rotation import (
    OPS_PER_SECOND,
    WALL_TIME,
    Contender,
    Metric,
    Rotation,
    contenders,
    run_rotation,
)
from hakmem.measuring.summary import summarise
from hakmem.options import (
    INTERRUPTED,
    chosen_allocators,
    json_option,
    resolve_cpus,
    resolve_seed,
    seed_option,
    split_command,
)
from hakmem.output import sentences, tables
from hakmem.plain_text import with_last_words
from hakmem.running import programs
from hakmem.running.proof import Served, hakmem_served, load_checked, malloc_providers, peer_served
from hakmem.running.syscalls import count_system_calls
from rich.console import Console

BASELINE = "hakmem"
SPEED = replace(WALL, told="did this {x} times as fast as {b}")
BENCH_ROUNDS = 15
BENCH_SLICE_S = 0.15
BENCH_SLOTS = 400
TRIAL_STEPS = 2_000_000
# The real program is run in as many rounds as fit, within these bounds.
APP_BUDGET_S = 40.0
APP_ROUNDS_MIN, APP_ROUNDS_MAX = 3, 9


@dataclass(frozen=True)
class Work:
    """One part of the demo: a command line and how it is measured."""

    title: str
    command: tuple[str, ...]
    metric: Metric
    rounds: int
    cpus: str | None
    settings: Mapping[str, str] = field(default_factory=dict)
    same_output: bool = False


@dataclass
class Findings:
    """What is known about one part so far; an interrupt leaves the rest empty."""

    served: dict[str, str] = field(default_factory=dict)
    proof: Served | None = None
    rotation: Rotation | None = None
    calls: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def failed(self) -> bool:
        """hakmem's row does not stand: not served, or not run to the end."""
        stands = self.proof and self.rotation and not self.rotation.series[BASELINE].problem
        return not stands


@click.command(short_help="Show hakmem beside other allocators in 90 s.")
@click.option("--app", help="Command line of the real program (default: a workload).")
@click.option("--cpu", help="CPU or list to pin to, or none (default: one CPU; --app not pinned).")
@seed_option()
@json_option()
def demo(app: str | None, cpu: str | None, seed: int | None, json_path: Path | None) -> None:
    """Show the random-mixed benchmark and one real program under each allocator."""
    console = tables.make_console()
    seed = resolve_seed(seed)
    app_command = tuple(split_command("--app", app)) if app is not None else None
    notes: list[str] = []
    peers = chosen_allocators(None, (), notes)
    floor = load_checked(find("floor"))
    if app_command is not None:
        programs.require_servable(app_command)

    known = facts(peers, seed)
    try:
        # The user's program first: if it cannot run, that is said at once.
        program = real_program(app_command, cpu, peers)
        bench = random_mixed(resolve_cpus(cpu, environment.default_cpu()))
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    failed = False
    parts: list[dict] = []
    for work, allocators in ((bench, [*peers, floor]), (program, peers)):
        findings = measure(console, work, allocators, seed)
        show(console, work, allocators, findings)
        parts.append(document(work, allocators, findings))
        if json_path is not None:
            write_json(json_path, "demo", {"facts": known, "seed": seed, "parts": parts})
        failed = failed or findings.failed
        if findings.interrupted:
            break
    tables.print_notes(console, notes)
    tables.print_facts(console, known)
    if findings.interrupted:
        raise SystemExit(INTERRUPTED)
    if failed:
        raise SystemExit(1)


def facts(allocators: Sequence[Allocator], seed: int) -> dict[str, str]:
    """What was measured and where: printed below the figures."""
    hakmem = allocators[0]
    lines = environment.describe()
    lines["compiler"] = environment.compiler_of(hakmem.library) if hakmem.library else "unknown"
    lines["seed"] = str(seed)
    for allocator in allocators:
        lines[allocator.name] = allocator.problem or str(allocator)
    return lines


def random_mixed(cpus: str | None) -> Work:
    """The headline benchmark, with as many steps as make a slice of the wanted length."""
    program = str(bench_program("bench_random_mixed"))
    trial = Contender("trial", (program, str(TRIAL_STEPS), str(BENCH_SLOTS))).run(cpus)
    speed = OPS_PER_SECOND.read(trial)
    if trial.problem or not speed:
        raise UserError(f"{program} fails without any preload: {trial.problem or 'no figure'}")
    steps = max(TRIAL_STEPS, round(speed * BENCH_SLICE_S, -5))
    return Work(
        title=f"Random mixed, 16 to 1039 bytes, {BENCH_SLOTS} slots, {steps:,.0f} steps a run",
        command=(program, str(int(steps)), str(BENCH_SLOTS)),
        metric=OPS_PER_SECOND,
        rounds=BENCH_ROUNDS,
        cpus=cpus,
    )


def real_program(
    command: tuple[str, ...] | None, cpu: str | None, allocators: Sequence[Allocator]
) -> Work:
    """The user's command line, or a workload in Python and SQLite."""
    settings: dict[str, str] = {}
    if command is not None:
        title, cpus = f"Your program: {shlex.join(command)}", resolve_cpus(cpu, None)
    else:
        script = Path(__file__).parent.parent / "workloads" / "records.py"
        command = (system_python(), str(script))
        title = "Python and SQLite: an order book through JSON, text, sorting and a database"
        cpus = resolve_cpus(cpu, environment.default_cpu())
        # By default Python serves small objects from arenas of its own, past malloc.
        settings = {"PYTHONMALLOC": "malloc", "PYTHONHASHSEED": "0"}
        title += " (PYTHONMALLOC=malloc)"
    trial = Contender("trial", command, None, settings).run(cpus)
    if trial.start_error:
        raise UserError(trial.start_error, NOT_STARTED)
    if trial.problem:
        told = f"'{shlex.join(command)}' fails without any preload: {trial.problem}"
        raise UserError(with_last_words(told, trial.last_words()))
    usable = sum(a.usable for a in allocators)
    fitting = int(APP_BUDGET_S / (max(trial.wall_s, 1e-3) * usable))
    rounds = min(max(fitting, APP_ROUNDS_MIN), APP_ROUNDS_MAX)
    return Work(title, command, WALL_TIME, rounds, cpus, settings, same_output=bool(settings))


def system_python() -> str:
    """Debian's own interpreter: the one in a virtual environment may be built differently."""
    system = Path("/usr/bin/python3")
    return str(system) if system.exists() else shutil.which("python3") or sys.executable


def measure(console: Console, work: Work, allocators: Sequence[Allocator], seed: int) -> Findings:
    """Proofs, then the rounds, then system calls in runs of their own."""
    findings = Findings()
    rows = contenders(allocators, work.command, work.settings)
    usable = [a for a in allocators if a.usable]
    console.print(f"\n{work.title}")
    try:
        with tables.progress_line(console, "measuring", len(rows) * (work.rounds + 2)) as progress:

            def tick(what: str) -> None:
                progress.update(progress.task_ids[0], advance=1, now=what)

            for allocator in usable:
                tick(f"proof: {allocator.name}")
                findings.served[allocator.name] = prove(work, allocator, findings)
            findings.rotation = run_rotation(rows, work.metric, work.rounds, seed, work.cpus, tick)
            if findings.rotation.interrupted:
                raise KeyboardInterrupt
            for row in rows:
                if findings.rotation.series[row.name].problem:
                    continue
                tick(f"strace: {row.name}")
                counted = count_system_calls(row.command, row.preload, row.settings)
                findings.calls[row.name] = str(counted)
                if counted.note:
                    findings.notes.append(f"system calls of {row.name}: {counted.note}")
    except KeyboardInterrupt:
        findings.interrupted = True
    return findings


def prove(work: Work, allocator: Allocator, findings: Findings) -> str:
    if allocator.name != BASELINE or allocator.library is None:
        return peer_served(work.command, allocator, work.settings)
    findings.proof = hakmem_served(work.command, allocator.library, work.settings)
    findings.notes += findings.proof.warnings
    if not findings.proof:
        findings.notes.append(why_not_served(work, allocator.library, findings.proof))
    return str(findings.proof)


def why_not_served(work: Work, library: Path, proof: Served) -> str:
    """What is known when the counter is missing; the loader's word explains, it does not prove."""
    if proof.outcome.problem:
        return f"the run that was to prove hakmem served failed: {proof.outcome.problem}"
    if proof.processes:
        return "hakmem's counter is zero: it was loaded and served nothing"
    if str(library) in malloc_providers(work.command, library, work.settings):
        return (
            "malloc was bound to hakmem, yet the program printed no counter line: "
            "it may have ended without exit handlers, or with stderr closed"
        )
    return "no counter line, and malloc was not bound to hakmem: the program has its own malloc"


def show(console: Console, work: Work, allocators: Sequence[Allocator], findings: Findings) -> None:
    """The table, complete or partial, and what is to be said about it."""
    rotation = findings.rotation
    if rotation is None or rotation.rounds_done == 0:
        console.print("interrupted before the first whole round")
        return
    if work.same_output:
        mark_other_outputs(rotation)
    rows = summarise(rotation, BASELINE, allocators)
    with_net = "floor" in rotation.series
    real = [row for row in rows if row.name != "floor"]
    tables.print_summary(console, sentences.of_rows(real, BASELINE, SPEED, PEAK_RSS))
    extra = {"system\ncalls": findings.calls, "served": findings.served}
    console.print(
        tables.comparison_table(rows, work.metric, BASELINE, with_net, extra, console.width)
    )
    pinned = f"pinned to CPU {rotation.cpus}" if rotation.cpus else "not pinned"
    console.print(f"{rotation.rounds_done} rounds, {pinned}.")
    if with_net:
        console.print(
            "floor: an allocator that does nothing, the cost of the benchmark itself; net costs "
            "below 1 % of it count as 1 %."
        )
    if findings.proof and findings.proof.settings:
        console.print(f"effective settings: {' '.join(findings.proof.settings)}")
    for series in rotation.series.values():
        if series.problem:
            told = with_last_words(series.problem, series.last_words)
            findings.notes.append(f"{series.contender.name}: {told}")
    for note in dict.fromkeys(findings.notes):
        console.print(f"note: {note.strip()}")
    if findings.interrupted:
        console.print(f"interrupted after {rotation.rounds_done} of {work.rounds} rounds")


def document(work: Work, allocators: Sequence[Allocator], findings: Findings) -> dict:
    """One part as JSON: what the table shows, and every slice."""
    rotation = findings.rotation
    done = rotation.rounds_done if rotation else 0
    return {
        "title": work.title,
        "command": list(work.command),
        "settings": dict(work.settings),
        "cpus": work.cpus,
        "unit": work.metric.unit,
        "higher_is_better": work.metric.higher_is_better,
        "baseline": BASELINE,
        "rounds": done,
        "interrupted": findings.interrupted,
        "served": findings.served,
        "system_calls": findings.calls,
        "notes": list(dict.fromkeys(findings.notes)),
        "summary": [asdict(r) for r in summarise(rotation, BASELINE, allocators)] if done else [],
        "slices": {name: row.values[:done] for name, row in rotation.series.items()}
        if done
        else {},
    }


def mark_other_outputs(rotation: Rotation) -> None:
    """A run whose output differs from glibc's does not count."""
    reference = rotation.series.get("glibc")
    if reference is None or not reference.outcomes:
        return
    for series in rotation.running():
        if any(o.stdout != reference.outcomes[0].stdout for o in series.outcomes):
            series.problem = "OUTPUT DIFFERS from glibc's"
