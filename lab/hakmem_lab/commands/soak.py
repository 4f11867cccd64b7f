"""`hakmem soak`: memory, speed and latency over an hour; `hakmem soak analyse` judges its CSV."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import click
from hakmem import environment, options
from hakmem.allocators.peers import bench_program
from hakmem.allocators.settings import check, settings_for, split_pair
from hakmem.destinations import output_option
from hakmem.documents import write_json
from hakmem.errors import INTERRUPTED, UserError
from hakmem.measuring import journal
from hakmem.options import PERCENT
from hakmem.output import tables
from hakmem.running import interruption
from hakmem.running import programs as program_files
from hakmem.running.proof import hakmem_served
from rich.console import Console
from rich.table import Table

from hakmem_lab import shell, soak_file, soaking
from hakmem_lab.soak_file import Epoch
from hakmem_lab.soak_judging import (
    LONG,
    Judgement,
    Thresholds,
    judge,
    percent,
    share,
)
from hakmem_lab.soaking import LongLoad, Soak

# What a run is made of cannot change in its middle.
BESIDE_RESUME = {"resume", "minutes", "rss_drift", "throughput_loss", "variation", "json_path"}


@dataclass(frozen=True, kw_only=True)
class Wanted(Thresholds):
    """What to judge by, and the file to write."""

    json_path: Path | None


def judging_options() -> options.Decorator:
    """The fields of Wanted."""
    option, variation = options.option, "Variation of throughput that passes, or the best other's."
    memory, speed = (
        "Rise or fall of resident memory that passes.",
        "Fall of throughput that passes.",
    )
    return options.stacked(
        option("--max-rss-drift rss_drift", memory, "5%", PERCENT),
        option("--max-throughput-loss throughput_loss", speed, "5%", PERCENT),
        option("--max-cv variation", variation, "2%", PERCENT),
        options.json_option(),
    )


@click.group(invoke_without_command=True)
@options.number_option("--minutes", "How long; with --resume, in all.", 60.0, 0.001)
@options.allocator_options()
@options.number_option(
    "--epoch epoch_s",
    "Seconds of an epoch under the first allocator; all do the same work.",
    2.0,
    0.01,
    600,
)
@options.several(
    "--program programs",
    "A program to start afresh each round, instead of random_mixed and larson.",
    "NAME=COMMAND",
)
@options.set_option("A variable for every program, such as HAKMEM_PROFILE=lean; told in the file.")
@options.seed_option()
@output_option("--csv", "csv_path", text="Write the figures as CSV.", kind=soak_file.KIND)
@options.option(
    "--resume",
    "Continue the run of this CSV, with what it was started with.",
    kind=options.InputFile(),
    metavar="FILE",
)
@judging_options()
@click.pass_context
def soak(
    context: click.Context,
    minutes: float,
    names: str | None,
    libraries: tuple[str, ...],
    epoch_s: float,
    programs: tuple[str, ...],
    settings: tuple[str, ...],
    seed: int | None,
    csv_path: Path | None,
    resume: Path | None,
    **judging,
) -> None:
    """Run allocators for a long time, in epochs and in turn, and judge how they hold.

    In each round every allocator's long process works for one epoch, then small programs run once.
    Figures go to a CSV as they come; a stopped run goes on with --resume FILE. Ends with status 0
    when hakmem passes, 1 when it fails, 2 when the time is too short to judge, 130 after Ctrl-C.
    """
    if context.invoked_subcommand is not None:
        return
    wanted = Wanted(**judging)
    console = tables.make_console()
    if resume is not None:
        options.refuse_beside("the file of --resume says how the run is made", BESIDE_RESUME)
        run = resumed(console, resume, 60 * minutes)
    else:
        if csv_path is not None and csv_path.exists():
            raise UserError(f"--csv: {csv_path} is there already: --resume continues it", 2)
        load = LongLoad(soaking.TRIAL_STEPS, options.resolve_seed(seed))
        notes: list[str] = []
        chosen = options.chosen_allocators(names, libraries, notes)
        given = settings_for("--set", settings, chosen, notes)
        chosen = [replace(a, settings={**a.settings, **given}) for a in chosen]
        loads = repeated_programs(programs)
        tables.print_notes(console, notes)
        path = csv_path or journal.new_path("soak", ".csv")
        run = Soak(path, chosen, load, loads, 60 * minutes)
        begin(run, epoch_s)
    console.print(f"epochs go to {run.path}", soft_wrap=True)
    interrupted = go(console, run)
    finish(console, run, wanted, interrupted)


@soak.command()
@click.argument("file", type=options.InputFile())
@judging_options()
def analyse(file: Path, **judging) -> None:
    """Judge the epochs in FILE, a CSV of an earlier soak.

    Ends with status 0 when hakmem passes, 1 when it fails, 2 when there are too few epochs.
    """
    raise SystemExit(0 if conclude(tables.make_console(), file, Wanted(**judging)) else 1)


def repeated_programs(texts: Sequence[str]) -> dict[str, list[str]]:
    """The programs started afresh each round, by name."""
    given = [split_pair("--program", text) for text in texts]
    names = [LONG, *(name for name, _ in given)]
    for name, _ in given:
        if names.count(name) > 1:
            raise UserError(f"--program: the name '{name}' is taken", 2)
    commands = {name: options.split_command("--program", command) for name, command in given}
    for command in commands.values():
        program_files.require_servable(command)
    return commands or {
        "random_mixed": [str(bench_program("bench_random_mixed")), "10000000", "400"],
        "larson": [str(bench_program("bench_larson")), "2", "1500000"],
    }


def begin(run: Soak, epoch_s: float) -> None:
    """Proves that hakmem serves, finds the length of an epoch, and writes the file's head."""
    proof = prove(run)
    steps = soaking.steps_for(epoch_s, run.long_load, run.allocators[0])
    run.long_load = replace(run.long_load, steps=steps)
    facts = environment.describe(run.long_load.seed) | {
        "soak": f"{run.limit_s / 60:g} minutes, {steps} steps of each thread an epoch, "
        f"seed {run.long_load.seed}",
        **{a.name: str(a) for a in run.allocators},
        **{name: shlex.join(command) for name, command in run.programs.items()},
        **proof,
    }
    soak_file.begin(run.path, run.head(facts))


def prove(run: Soak) -> dict[str, str]:
    """By hakmem's own counter, for each load."""
    ours = next((a for a in run.allocators if a.name == "hakmem"), None)
    if ours is None or ours.library is None:
        return {}
    short, said = [str(bench_program("bench_soak")), "1", "10000"], {}
    for load, command in {LONG: short, **run.programs}.items():
        proof = hakmem_served(command, ours.library, ours.settings)
        if not proof:
            raise UserError(f"hakmem did not serve {load}: {proof.outcome.problem or 'no counter'}")
        said[f"hakmem served {load}"] = str(proof)
    return said


def resumed(console: Console, path: Path, limit_s: float) -> Soak:
    """The run of a CSV, ready to go on where it stopped."""
    record = soak_file.read(path)
    tables.print_notes(console, record.notes)
    head = record.head
    try:
        allocators = [shell.read_allocator(row) for row in head["allocators"].values()]
        for row in head["allocators"].values():
            shell.require_unchanged(path, row)
        load, programs = LongLoad(**head["long"]), head["programs"]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"--resume: {path} does not say how it was made: {error!r}", 2) from error
    elapsed = max((e.elapsed_s for e in record.epochs), default=0.0)
    if elapsed >= limit_s:
        done = f"{elapsed / 60:.1f} minutes are in {path}"
        raise UserError(f"--minutes: {done}: a resumed run needs more than that", 2)
    check(allocators, {"--resume": {k: v for a in allocators for k, v in a.settings.items()}})
    run = Soak(
        path,
        allocators,
        load,
        programs,
        limit_s,
        elapsed_s=elapsed,
        rounds_done=max((e.round for e in record.epochs), default=0),
        first_process=1 + max((e.process for e in record.epochs if e.load == LONG), default=0),
    )
    soak_file.drop_cut_line(path)
    return run


def go(console: Console, run: Soak) -> bool:
    """Runs until the time is over or Ctrl-C, which is told by True."""
    minutes = max(1, round(run.limit_s / 60))
    try:
        with interruption.only_once(), tables.progress_line(console, "minutes", minutes) as bar:
            soaking.run(
                run,
                lambda now: bar.update(bar.task_ids[0], completed=int(run.elapsed_s / 60), now=now),
            )
    except KeyboardInterrupt:
        return True
    return False


def finish(console: Console, run: Soak, wanted: Wanted, interrupted: bool) -> None:
    for name, problem in run.problems.items():
        console.print(f"{name} had to leave: {problem}", soft_wrap=True)
    if interrupted:
        minutes = run.elapsed_s / 60
        console.print(f"interrupted after {minutes:.1f} minutes; go on with", soft_wrap=True)
        name_resume(console, run, f"{run.limit_s / 60:g}")
    try:
        passed = conclude(console, run.path, wanted)
    except UserError as error:
        console.print(f"no verdict: {error.message}", soft_wrap=True)
        if interrupted:
            raise SystemExit(INTERRUPTED) from None
        console.print("the time was too short; go on with", soft_wrap=True)
        name_resume(console, run, "MINUTES")
        raise SystemExit(2) from None
    if interrupted:
        raise SystemExit(INTERRUPTED)
    raise SystemExit(0 if passed else 1)


def name_resume(console: Console, run: Soak, minutes: str) -> None:
    path = shlex.quote(str(run.path))
    console.print(f"    hakmem soak --resume {path} --minutes {minutes}", soft_wrap=True)


def conclude(console: Console, path: Path, wanted: Wanted) -> bool:
    """Judges a file, shows and writes what was asked for; True when the one in question passes."""
    record = soak_file.read(path)
    try:
        judged = judge(in_order(record), wanted)
    except UserError:
        tables.print_notes(console, record.notes)
        if record.epochs:
            write_file(record, [], None, path, wanted)
        raise
    tables.print_summary(console, summary(judged))
    tables.print_notes(console, record.notes)
    console.print(verdict_table(judged))
    latency = [row for row in judged if row.p50_ns is not None]
    if latency:
        console.print(latency_table(latency))
    ours = in_question(judged)
    tables.print_facts(console, record.head.get("facts", {}))
    passed = all(row.passed for row in judged if row.allocator == ours)
    write_file(record, judged, passed, path, wanted)
    return passed


def in_order(record: soak_file.Record) -> list[Epoch]:
    """The epochs by load, and by allocator in the order of --with, not in that of the dice."""
    loads = list(dict.fromkeys(e.load for e in record.epochs))
    names = list(record.head.get("allocators") or dict.fromkeys(e.allocator for e in record.epochs))
    names += [e.allocator for e in record.epochs if e.allocator not in names]
    return sorted(record.epochs, key=lambda e: (loads.index(e.load), names.index(e.allocator)))


def summary(judged: Sequence[Judgement]) -> list[str]:
    """The verdict on each allocator under each load, the one in question first."""
    ours = in_question(judged)
    told = []
    for row in sorted(judged, key=lambda one: one.allocator != ours):
        drift = f"memory {percent(row.rss_drift.change)}, speed "
        drift += f"{percent(row.throughput_drift.change)} from start to end"
        said = f"PASS: {drift}" if row.passed else "FAIL: " + "; ".join(row.failures)
        mark = "" if row.allocator == ours else " (does not decide)"
        told.append(f"{row.allocator}, {row.load}: {said}{mark}")
    return told


def in_question(judged: Sequence[Judgement]) -> str:
    """hakmem where it takes part, else the first."""
    names = [row.allocator for row in judged]
    return "hakmem" if "hakmem" in names else names[0]


def write_file(
    record: soak_file.Record,
    judged: Sequence[Judgement],
    passed: bool | None,
    path: Path,
    wanted: Wanted,
) -> None:
    document = {
        "facts": dict(record.head.get("facts", {})),
        "file": str(path),
        "thresholds": {one.name: getattr(wanted, one.name) for one in fields(Thresholds)},
        "in_question": in_question(judged) if judged else None,
        "passed": passed,
        "notes": record.notes,
        "rows": [asdict(row) | {"passed": row.passed} for row in judged],
    }
    write_json(wanted.json_path, "soak", document)


def verdict_table(judged: Sequence[Judgement]) -> Table:
    heads = ("load", "allocator", "epochs", "processes", "RSS MB", "RSS drift", "ops/s",
             "speed drift", "beside others", "CV", "best other's CV")  # fmt: skip
    rows = [
        [
            *(row.load, row.allocator, str(row.epochs), str(row.processes)),
            f"{row.rss_kb / 1024:.1f}",
            percent(row.rss_drift.change),
            f"{row.ops_per_sec:,.0f}",
            percent(row.throughput_drift.change),
            percent(row.beside_others.change) if row.beside_others else tables.ABSENT,
            share(row.variation),
            tables.ABSENT if row.best_other_variation is None else share(row.best_other_variation),
        ]
        for row in judged
    ]
    caption = (
        "Robust straight lines (Theil and Sen). Beside others: speed over the median of the "
        "others' in the same rounds; it is judged where there are others."
    )
    title = "Drift from the start to the end of the run, without warm-up"
    return tables.figures_table(title, heads, rows, heads[:2], caption)


def latency_table(judged: Sequence[Judgement]) -> Table:
    heads = ("allocator", "p50", "p99", "p99.9", "longest")
    rows = [
        [row.allocator, *(f"{ns:,.0f}" for ns in (row.p50_ns, row.p99_ns, row.p999_ns, row.max_ns))]
        for row in judged
    ]
    caption = "Medians of the epochs' percentiles; the longest call of all epochs."
    title = "Latency of sampled single calls, ns: lower is better"
    return tables.figures_table(title, heads, rows, heads[:1], caption)
