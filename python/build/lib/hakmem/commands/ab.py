"""`hakmem ab`: two settings or two libraries, one program: go, no-go, no difference, undecided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from hakmem import environment, options
from hakmem.allocators.peers import Allocator, find, from_path, require_usable
from hakmem.allocators.settings import hakmem_libraries, in_effect, settings_for, without_effect
from hakmem.destinations import WORD
from hakmem.documents import write_json
from hakmem.errors import INTERRUPTED, WRONG_USE, UserError
from hakmem.experiments.workload import chosen_workload, workload_options
from hakmem.measuring import journal
from hakmem.measuring.deciding import (
    CPU_TIME,
    OPS_PER_CPU_SECOND,
    Decision,
    MirroredOrder,
    Plan,
    Verdict,
    decide,
)
from hakmem.measuring.rotation import (
    OPS_PER_SECOND,
    WALL_METRIC_NAME,
    WALL_TIME,
    Contender,
    Metric,
    Rotation,
    Series,
    custom_metric,
    new_rotation,
    require_metric,
    run_rounds,
)
from hakmem.measuring.statistics import variation
from hakmem.options import PERCENT
from hakmem.output import tables
from hakmem.plain_text import with_last_words
from hakmem.running import interruption, programs
from hakmem.running.launching import Outcome
from hakmem.running.proof import NOT_SERVED, hakmem_served, load_checked, peer_served

CPU_METRIC_NAME = "cpu"
OR_A_PATH = "a path of a library is one too"
EXIT_STATUS = {
    Verdict.GO: 0,
    Verdict.NO_DIFFERENCE: 0,
    Verdict.NO_GO: 3,
    Verdict.UNDECIDED: 4,
}


def side_options(letter: str, role: str) -> options.Decorator:
    """--a and --a-lib, or --b and --b-lib."""
    return options.stacked(
        options.several(
            f"--{letter} {letter}_settings",
            f"Setting of {letter.upper()}, {role}: hakmem's, or a variable of the program; "
            "may be repeated.",
            "NAME=VALUE",
        ),
        options.option(
            f"--{letter}-lib {letter}_library",
            f"Allocator of {letter.upper()}: a name as for --with, or a library's path.",
            "hakmem",
            metavar="NAME|PATH",
        ),
    )


@click.command(context_settings=options.PROGRAM_LAST)
@side_options("a", "what stands")
@side_options("b", "the candidate")
@options.option(
    "--min-effect", "The smallest difference of speed that matters, as 1% or 0.01.", "1%", PERCENT
)
@options.option(
    "--confidence",
    "How sure a verdict is, over all the times it is tried, as 99% or 0.99.",
    "99%",
    PERCENT,
)
@options.number_option(
    "--pairs",
    "A pair is one run of A and one of B. A verdict is tried after so many pairs, and again "
    "each time their number has doubled.",
    20,
    2,
)
@options.number_option(
    "--max-pairs", "After so many pairs without a verdict the answer is UNDECIDED.", 640, 2
)
@options.cpu_option("auto")
@options.option(
    "--metric",
    "'cpu', 'wall' or a regular expression whose first group is the figure. By default 'cpu' "
    "where --cpu is one CPU, else the `Throughput =` line or wall time.",
    kind=WORD,
)
@click.option("--lower-is-better", is_flag=True, help="Direction of a regular expression's figure.")
@workload_options()
@options.seed_option()
@options.json_option()
@click.argument("program", nargs=-1)
def ab(
    a_settings: tuple[str, ...],
    a_library: str,
    b_settings: tuple[str, ...],
    b_library: str,
    min_effect: float,
    confidence: float,
    pairs: int,
    max_pairs: int,
    cpu: str,
    metric: str | None,
    lower_is_better: bool,
    seed: int | None,
    json_path: Path | None,
    program: tuple[str, ...],
    **of_workload,
) -> None:
    """Decide whether B runs PROGRAM faster than A, and stop as soon as that is clear.

    GO: B is faster, by about --min-effect or more. NO-GO: slower by as much. NO DIFFERENCE: any
    difference is smaller than that. UNDECIDED: the noise hides it. Ends with status 0 for GO and
    NO DIFFERENCE, 3 for NO-GO, 4 for UNDECIDED, 1 when a side fails, 130 after Ctrl-C. Finished
    pairs are kept in a journal in HAKLAB_RESULTS or ~/.local/state/hakmem; the newest 20 runs stay.
    """
    if not any(map(options.is_given, ("a_settings", "b_settings", "a_library", "b_library"))):
        raise UserError("A and B are the same: give --a, --b, --a-lib or --b-lib", 2)
    if max_pairs < pairs:
        raise UserError(f"--max-pairs: {max_pairs} is below --pairs {pairs}", 2)
    work = chosen_workload(program, **of_workload)
    console = tables.make_console()
    plan = Plan(pairs, max_pairs, min_effect, confidence)
    cpus, seed = options.resolve_cpus(cpu), options.resolve_seed(seed)
    require_metric(metric, lower_is_better, (WALL_METRIC_NAME, CPU_METRIC_NAME))
    notes: list[str] = []
    sides = {}
    for name, library, texts in (("A", a_library, a_settings), ("B", b_library, b_settings)):
        side = allocator(library)
        sides[name] = (side, settings_for(f"--{name.lower()}", texts, [side], notes))
    rows = [
        Contender(name, work.command, side.library, {**side.settings, **asked}, runner=work.runner)
        for name, (side, asked) in sides.items()
    ]
    require_difference(rows, {name: side for name, (side, _) in sides.items()})
    work.require_working()
    trials = [trial(row, cpus) for row in rows]
    chosen = choose_metric(metric, lower_is_better, trials, cpus, work.is_server)
    facts = environment.describe(seed) | {
        **work.facts,
        "figure": f"{chosen.unit or chosen.pattern.pattern}, {chosen.direction}",
        "plan": describe_plan(plan, seed, cpus),
        **{name: describe_side(side, asked) for name, (side, asked) in sides.items()},
        **served(rows, {name: side for name, (side, _) in sides.items()}, notes),
    }
    tables.print_notes(console, notes)
    rotation = new_rotation(rows, chosen, seed, cpus)
    log = StoppingJournal(journal.new_path("ab"), goes_on=True)
    log.begin("ab", rotation, facts, plan=asdict(plan))
    journal.prune("ab")
    with interruption.only_once():
        decision = measure(console, rotation, plan, log)
    notes = [log.incomplete] if log.incomplete else []
    with journal.named_in_errors("" if log.incomplete else f"; the pairs are in {log.path}"):
        conclude(console, rotation, decision, plan, facts, notes, json_path)
    status = INTERRUPTED if decision is None or rotation.interrupted else 0
    status = status or EXIT_STATUS[decision.verdict]
    raise SystemExit(status or (1 if log.incomplete else 0))


def require_difference(rows: Sequence[Contender], sides: Mapping[str, Allocator]) -> None:
    """Refuses two sides that run the same library with the same settings in effect, however they
    were given: any verdict on them would be chance."""
    same = {row.preload and row.preload.resolve() for row in rows}
    settings = [dict(row.settings) for row in rows]
    if len(same) == 1 and settings[0] != settings[1] and hakmem_libraries([*sides.values()]):
        settings = [in_effect(row.preload, row.settings) for row in rows]
        require_effect(settings)
    if len(same) == 1 and settings[0] == settings[1]:
        asked = {name for row in rows for name in row.settings}
        told = ", ".join(f"{n}={v}" for n, v in settings[0].items() if n in asked)
        why = f"both have {told}" if told else "no setting tells them apart"
        raise UserError(f"A and B are the same: {why}; nothing was started", WRONG_USE)


def require_effect(settings: Sequence[Mapping[str, str]]) -> None:
    """Refuses sides that differ in nothing but options that are without effect in both."""
    a, b = settings
    differ = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    idle = [without_effect(each) for each in settings]
    if differ and all(name in idle[0] and name in idle[1] for name in differ):
        why = f"{differ[0]} has no effect without {idle[0][differ[0]]}"
        raise UserError(f"A and B are the same: {why}; nothing was started", WRONG_USE)


def allocator(text: str) -> Allocator:
    """By its path where there is a slash or an ending, else by its name."""
    named = "/" not in text and ".so" not in text
    return require_usable(
        load_checked(find(text, OR_A_PATH) if named else from_path(text, Path(text)))
    )


def trial(row: Contender, cpus: str | None) -> Outcome:
    """One run that does not count: it warms the caches of files and shows what is wrong."""
    outcome = row.run(cpus)
    if outcome.start_error:
        raise UserError(outcome.start_error, outcome.start_status)
    if outcome.problem:
        raise side_failed(row.name, outcome.problem, outcome.last_words())
    return outcome


def side_failed(name: str, problem: str, last_words: str) -> UserError:
    return UserError(f"{name}: {with_last_words(problem, last_words)}")


def choose_metric(
    asked: str | None,
    lower_is_better: bool,
    trials: Sequence[Outcome],
    cpus: str | None,
    is_server: bool = False,
) -> Metric:
    """CPU time where the program has one CPU: then nothing in it can run beside the rest.

    Of a server the load's time is what counts.
    """
    if asked not in (None, WALL_METRIC_NAME, CPU_METRIC_NAME):
        return custom_metric(asked, lower_is_better)
    if asked == WALL_METRIC_NAME:
        return WALL_TIME
    prints = all(OPS_PER_SECOND.read(outcome) is not None for outcome in trials)
    one_cpu = cpus is not None and len(options.parse_cpu_list(cpus)) == 1 and not is_server
    if asked == CPU_METRIC_NAME or one_cpu:
        return OPS_PER_CPU_SECOND if prints else CPU_TIME
    return OPS_PER_SECOND if prints else WALL_TIME


def describe_plan(plan: Plan, seed: int, cpus: str | None) -> str:
    looks = ", ".join(map(str, plan.looks))
    sure = (
        f"{100 * plan.confidence_per_look:.2f} % confidence ({100 * plan.confidence:g} % over all)"
    )
    return (
        f"smallest effect {100 * plan.min_effect:g} %, looks after {looks} pairs, each at {sure}, "
        f"seed {seed}, pinned to {cpus or 'nothing'}"
    )


def describe_side(side: Allocator, asked: Mapping[str, str]) -> str:
    given_settings = " ".join(f"{name}={value}" for name, value in asked.items())
    path = "" if side.library is None or side.name == str(side.library) else f"{side.name}: "
    return f"{path}{side}  {given_settings}".rstrip()


def served(
    rows: Sequence[Contender], sides: Mapping[str, Allocator], notes: list[str]
) -> dict[str, str]:
    """What proves that each side's allocator served, and the effective settings that differ."""
    proofs = {row.name: proof_of(row, sides[row.name], notes) for row in rows}
    said = {f"served {name}": text for name, (text, _) in proofs.items()}
    in_all = set.intersection(*(set(effective) for _, effective in proofs.values()))
    for name, (_, effective) in proofs.items():
        if own := [setting for setting in effective if setting not in in_all]:
            said[f"only in {name}"] = " ".join(own)
    return said


def proof_of(row: Contender, side: Allocator, notes: list[str]) -> tuple[str, tuple[str, ...]]:
    """By hakmem's own counter; by the loader's log for a library that is not hakmem."""
    holder = programs.examine(row.command).hakmem
    if side.library is not None and not (holder and side.name != "hakmem"):
        proof = hakmem_served(row.command, side.library, row.settings, runner=row.runner)
        notes += [f"{row.name}: {line}" for line in proof.warnings]
        if proof:
            return str(proof), proof.settings
        if proof.is_idle:
            raise UserError(f"{proof.why_idle}: nothing to compare")
        if proof.failure:
            raise side_failed(row.name, proof.failure, proof.outcome.last_words())
    said = NOT_SERVED
    if side.name != "hakmem":
        said = peer_served(row.command, side, row.settings, runner=row.runner)
    if said.startswith(NOT_SERVED):
        raise UserError(f"{row.name}: {said}: its figures would be another malloc's")
    return said, ()


class StoppingJournal(journal.Journal):
    """A side that fails ends the comparison: there is nothing to pair any more."""

    def add_problem(self, series: Series) -> None:
        super().add_problem(series)
        raise side_failed(series.contender.name, series.problem, series.last_words)


def measure(
    console: Console, rotation: Rotation, plan: Plan, log: StoppingJournal
) -> Decision | None:
    """Pairs until a look decides, the plan ends, or Ctrl-C; None when there is no pair."""
    order = MirroredOrder(rotation.seed)
    with tables.progress_line(console, "runs", 2 * plan.most) as progress:
        for look in plan.looks:
            run_rounds(
                rotation,
                look - rotation.rounds_done,
                progress.tick,
                log,
                order,
            )
            if rotation.rounds_done == 0:
                return None
            decision = decide(ratios(rotation), plan)
            if rotation.interrupted or decision.verdict is not Verdict.UNDECIDED:
                break
            progress.say(f"undecided after {look} pairs")
    return decision


def ratios(rotation: Rotation) -> list[float]:
    """The speed of B over that of A in each pair."""
    return [a / b for a, b in zip(rotation.costs("A"), rotation.costs("B"))]


def conclude(
    console: Console,
    rotation: Rotation,
    decision: Decision | None,
    plan: Plan,
    facts: Mapping[str, str],
    notes: Sequence[str],
    json_path: Path | None,
) -> None:
    if decision is not None:
        console.print(sentence(decision, plan), soft_wrap=True)
        console.print()
        console.print(sides_table(rotation))
    if rotation.interrupted:
        console.print(f"interrupted after {rotation.rounds_done} pairs")
    tables.print_notes(console, notes)
    tables.print_facts(console, facts)
    if not rotation.is_void:
        write_json(json_path, "ab", document(rotation, decision, plan, facts))


def sentence(decision: Decision, plan: Plan) -> str:
    """The verdict and what it rests on, in one line."""
    found = decision.ratio
    low, high = (f"{v:.4f}" if v is not None else "?" for v in (found.low, found.high))
    rest = f"speed of B over A {found.median:.4f} [{low}, {high}], {decision.pairs} pairs"
    change = 100 * (found.median - 1)
    smallest = f"{100 * plan.min_effect:g} %"
    # The sign test has no interval below a number of pairs.
    doubt = " is inside the noise" if None not in (found.low, found.high) else ", of too few pairs"
    said = {
        Verdict.GO: f"GO: B is faster by {change:.1f} %",
        Verdict.NO_GO: f"NO-GO: B is slower by {-change:.1f} %",
        Verdict.NO_DIFFERENCE: f"NO DIFFERENCE of {smallest} or more ({change:+.1f} %)",
        Verdict.UNDECIDED: f"UNDECIDED: {change:+.1f} %{doubt}",
    }[decision.verdict]
    return f"{said}: {rest}{advice(decision)}"


def sides_table(rotation: Rotation) -> Table:
    metric, rows = rotation.metric, []
    for name, series in rotation.series.items():
        values = series.values[: rotation.rounds_done]
        peak = median(o.peak_rss_kb for o in series.outcomes[: rotation.rounds_done])
        cells = (tables.figure(median(values), metric), f"{100 * variation(values):.1f} %")
        rows.append([name, *cells, tables.megabytes(peak)])
    caption = "Medians of all pairs; the verdict rests on the ratios within the pairs."
    heads = ("side", "median", "CV", "peak RSS MB")
    title = f"{metric.unit or 'figure'}: {metric.direction}"
    return tables.figures_table(title, heads, rows, heads[:1], caption)


def advice(decision: Decision) -> str:
    if decision.verdict is not Verdict.UNDECIDED:
        return ""
    if decision.pairs_needed is None:
        return "; no number of pairs within reach would decide: change --min-effect"
    return f"; about {decision.pairs_needed:,} pairs would decide (--max-pairs)"


def document(
    rotation: Rotation, decision: Decision | None, plan: Plan, facts: Mapping[str, str]
) -> dict:
    return {
        "facts": dict(facts),
        "plan": asdict(plan) | {"confidence_per_look": plan.confidence_per_look},
        "unit": rotation.metric.unit,
        "higher_is_better": rotation.metric.higher_is_better,
        "seed": rotation.seed,
        "interrupted": rotation.interrupted,
        "verdict": decision.verdict.value if decision else None,
        "pairs": rotation.rounds_done,
        "speed_of_b_over_a": asdict(decision.ratio) if decision else None,
        "pairs_needed": decision.pairs_needed if decision else None,
        "values": {
            name: series.values[: rotation.rounds_done] for name, series in rotation.series.items()
        },
    }
