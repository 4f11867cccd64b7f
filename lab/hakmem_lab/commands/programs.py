"""`hakmem programs`: real programs, by CPU time, memory, faults and calls, or by counts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import click
from hakmem import options
from hakmem.allocators.peers import USUAL_HELP
from hakmem.destinations import WORD
from hakmem.documents import write_json, write_text
from hakmem.errors import UserError
from hakmem.measuring import journal
from hakmem.output import tables
from hakmem.running.interruption import only_once
from hakmem.running.proof import why_unproven
from rich.console import Console
from rich.table import Table

from hakmem_lab.commands.drawn import rounds_and_scale
from hakmem_lab.drawn_report import percent, picture_of_peers, share_table, table_beside
from hakmem_lab.drawn_results import (
    Beside,
    Share,
    beside_of,
    memory_ratios,
    ratio_to_least,
    share,
)
from hakmem_lab.programs import (
    ALL,
    CATALOGUE,
    CAUSES,
    JUDGING,
    SERVERS,
    SETS,
    Program,
    inputs_of,
    read_catalogue,
)
from hakmem_lab.programs import chosen as chosen_programs
from hakmem_lab.programs_run import Measured, Session, all_measured, run_all
from hakmem_lab.shell import chosen, clean_environment, conclude, facts_of

CPU, PEAK, IDLE, ESTIMATE = "cpu_min_s", "peak_kb", "idle_kb", "estimate"
# Each a table: title, digits behind the point, scale. The first is the cost that is compared.
TIMED = {
    CPU: ("CPU seconds of the process tree, minimum", 2, 1),
    "cpu_median_s": ("CPU seconds of the process tree, median", 2, 1),
    PEAK: ("Peak RSS, MB", 1, 1024),
    IDLE: ("RSS after idle, MB", 1, 1024),
    "faults": ("Page faults, thousands", 1, 1000),
    "calls": ("System calls, thousands", 2, 1000),
}
COUNTED = {
    ESTIMATE: ("Estimate, million cycles", 0, 1e6),
    "instructions": ("Instructions, millions", 0, 1e6),
    "l1": ("L1 misses, thousands", 0, 1000),
    "l2": ("L2 misses, thousands", 0, 1000),
    "tlb1": ("First TLB's misses, thousands", 0, 1000),
    "tlb2": ("Second TLB's misses, thousands", 0, 1000),
    "library_instructions": ("Instructions in the allocator's library, millions", 1, 1e6),
    "per_pair": ("Instructions in the allocator's library of a pair of calls", 1, 1),
}


@dataclass(frozen=True)
class ProgramResult:
    """One program; `figures` by allocator, without those that failed or did not serve."""

    name: str
    title: str
    set: str
    rounds: int
    figures: Mapping[str, Mapping[str, float | None]]
    served: Mapping[str, str]
    problems: Mapping[str, str]
    best_peer: str = ""
    best_over_ours: float | None = None
    peak_over_lowest: float | None = None
    idle_over_lowest: float | None = None


@dataclass
class Results:
    """All programs that have figures."""

    baseline: str
    peers: Sequence[str]
    counted: bool
    programs: Sequence[ProgramResult]
    shares: list[Share] = field(default_factory=list)
    beside: list[Beside] = field(default_factory=list)


def collect(session: Session, measured: Iterable[Measured]) -> Results:
    programs = [result_of(session, one) for one in measured]
    peers = [a.name for a in session.allocators[1:]]
    found = Results(session.baseline, peers, session.counted, programs)
    for which in (ALL, CAUSES, JUDGING, SERVERS):
        found.shares += shares(found, which, session.seed)
    beside = (beside_one(found, peer, session.seed) for peer in peers)
    found.beside = [one for one in beside if one]
    return found


def result_of(session: Session, measured: Measured) -> ProgramResult:
    unproven = {name: why for name, said in measured.served.items() if (why := why_unproven(said))}
    problems = measured.problems | unproven
    names = [a.name for a in session.allocators if a.name not in problems]
    read, cost = (counted_figures, ESTIMATE) if session.counted else (timed_figures, CPU)
    figures = {name: found for name in names if (found := read(measured, name))}
    theirs = {name: found for name, found in figures.items() if name != session.baseline}
    best = min(theirs, key=lambda name: theirs[name][cost], default="")
    over = peak = idle = None
    if best and (ours := figures.get(session.baseline)):
        over = theirs[best][cost] / ours[cost]
        peak, idle = (over_lowest(ours, theirs.values(), kind) for kind in (PEAK, IDLE))
    one = measured.program
    return ProgramResult(one.name, one.title, one.set, measured.rounds, figures, measured.served,
                         problems, best, over, peak, idle)  # fmt: skip


def over_lowest(ours: Mapping, theirs: Iterable[Mapping], kind: str) -> float | None:
    """Of memory; absent where it was not looked at."""
    known = [value for found in theirs if (value := found.get(kind)) is not None]
    return None if ours.get(kind) is None else ratio_to_least(ours[kind], known)


def timed_figures(measured: Measured, name: str) -> dict[str, float | None]:
    rounds, series = measured.rounds, measured.rotation.series[name]
    if not rounds:
        return {}
    values, outcomes = series.values[:rounds], series.outcomes[:rounds]
    peak = median(o.peak_rss_kb for o in outcomes)
    faults = median(o.minor_faults + o.major_faults for o in outcomes)
    rests = [o.idle_rss_kb for o in outcomes]
    idle = median(rests) if measured.program.idle and None not in rests else None
    figures = (min(values), median(values), peak, idle, faults, measured.calls.get(name))
    return dict(zip(TIMED, figures, strict=True))


def counted_figures(measured: Measured, name: str) -> dict[str, float | None]:
    found = measured.counts.get(name)
    return {kind: getattr(found, kind) for kind in COUNTED} if found else {}


def shares(results: Results, which: str, seed: int) -> list[Share]:
    """Over all programs, or over those of a set."""
    rows = [one for one in results.programs if which in (ALL, one.set)]
    if which != ALL and len(rows) == len(results.programs):
        return []
    cost = "estimate" if results.counted else "CPU time"
    over = [one.best_over_ours for one in rows if one.best_over_ours is not None]
    peak = [one.peak_over_lowest for one in rows if one.peak_over_lowest is not None]
    idle = [one.idle_over_lowest for one in rows if one.idle_over_lowest is not None]
    found = (
        share(f"{cost} of the best peer ÷ {results.baseline}'s, {which}", over, seed),
        share(f"peak RSS ÷ the lowest peer's, {which}", peak, seed, less=True),
        share(f"RSS after idle ÷ the lowest peer's, {which}", idle, seed, less=True),
    )
    return [one for one in found if one]


def beside_one(results: Results, peer: str, seed: int) -> Beside | None:
    name, cost = results.baseline, ESTIMATE if results.counted else CPU
    both = [one.figures for one in results.programs if {name, peer} <= set(one.figures)]
    costs = [found[peer][cost] / found[name][cost] for found in both]
    peaks, rests = (
        memory_ratios((found[name].get(kind), found[peer].get(kind)) for found in both)
        for kind in (PEAK, IDLE)
    )
    return beside_of(peer, costs, ("worse", "better"), peaks, rests, seed)


@click.command()
@click.option("--programs", "wanted", type=WORD, help="These alone, comma-separated.")
@click.option("--set", "which", type=click.Choice(SETS), default=ALL, show_default=True,
              help="To find causes with, to judge by, servers under load, or all.")  # fmt: skip
@click.option("--count", "counted", is_flag=True, help="Count smaller inputs under valgrind, once.")
@rounds_and_scale("of each program", "Size of the inputs")
@options.allocator_options(f"{USUAL_HELP}; NAME=PATH for a library")
@options.seed_option()
@click.option("--catalogue", type=options.InputFile(), default=CATALOGUE,
              help="Programs of yours, as in lab/hakmem_lab/programs.toml.")  # fmt: skip
@click.option("--list", "listed", is_flag=True, help="List the programs and what they lack.")
@options.resume_folder_option("show a finished one")
@options.json_option()
@options.plot_option(
    "--picture", "picture_path", "Draw CPU time and memory beside each peer.", (".svg",)
)
def programs(
    wanted: str | None,
    which: str,
    counted: bool,
    rounds: int,
    scale: int,
    names: str | None,
    libraries: tuple[str, ...],
    seed: int | None,
    catalogue: Path,
    listed: bool,
    resume: Path | None,
    json_path: Path | None,
    picture_path: Path | None,
) -> None:
    """Measure allocators on real programs, with inputs made from --seed.

    The first allocator is the baseline. Rounds go to a folder as they finish: Ctrl-C leaves tables
    and files of what is finished, --resume goes on. Ends with status 1 when the baseline has failed
    somewhere, or a program could not be run.
    """
    console = tables.make_console()
    with clean_environment() as removed, only_once():
        if resume is not None:
            options.require_resume_alone({"json_path", "picture_path"})
            session = Session.load(resume)
        else:
            if wanted is not None:
                options.refuse("--programs names them", {"which"})
            if counted:
                options.refuse("--count runs each once", {"rounds"})
            found = chosen_programs(read_catalogue(catalogue), which, wanted)
            if listed:
                console.print(list_table(found, counted))
                return
            lacking = {one.name: why for one in found if (why := why_not(one, counted))}
            found = [one for one in found if one.name not in lacking]
            if not found:
                raise UserError(f"nothing can be run: {told(lacking)}", 2)
            session = Session(
                folder=journal.new_path("programs", ""), catalogue=str(catalogue.absolute()),
                names=",".join(one.name for one in found), rounds=1 if counted else rounds,
                scale=scale, seed=options.resolve_seed(seed), counted=counted,
                allocators=chosen(console, names, libraries),
            )  # fmt: skip
            how = "counted under valgrind" if counted else f"{rounds} rounds, pinned"
            of_seed = f"inputs and order of seed {session.seed}"
            session.facts = facts_of(
                session.seed, session.allocators, removed, not_run=told(lacking) or "nothing",
                programs=f"scale {scale} %, {of_seed}, {how}",
            )  # fmt: skip
            session.save()
        finished = run(console, session)
        results = collect(session, all_measured(session))
        show(console, session, results)
        tables.print_facts(console, session.facts)
        written = document(session, results)
        for target in (session.folder / "programs.json", json_path):
            write_json(target, "programs", written)
        if picture_path is not None:
            write_text(picture_path, picture_of_peers(session, results, "memory after idle"))
    wanted = f"{len(session.programs)} programs"
    conclude(console, session, " and programs.json", results.programs, wanted, finished)
    if session.broken:
        raise SystemExit(1)


def why_not(one: Program, counted: bool) -> str:
    """One line, or nothing where it can be run."""
    return one.problem() or ("it cannot be counted" if counted and not one.count else "")


def list_table(found: list[Program], counted: bool) -> Table:
    heads = ("program", "set", "what it does", "cannot be run")
    rows = ((one.name, one.set, one.title, why_not(one, counted)) for one in found)
    return tables.figures_table("Programs", heads, rows, heads)


def told(lacking: dict[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in lacking.items())


def run(console: Console, session: Session) -> bool:
    """All programs; False when it was interrupted."""
    # Each program's input, its rounds, and its proofs.
    each = len(session.allocators) * (session.rounds + (not session.counted)) + 1
    steps = len(session.programs) * each

    def tell(measured: Measured) -> None:
        (one,) = collect(session, [measured]).programs
        over = one.best_over_ours
        figure = f"{one.best_peer} ÷ {session.baseline} {over:.2f}" if over else "no ratio"
        console.print(f"{one.name}: {figure}", soft_wrap=True)

    bar = tables.progress_line(console, "runs", steps)
    with bar as progress, inputs_of(session.seed) as inputs:
        return run_all(session, inputs, progress.tick, tell)


def show(console: Console, session: Session, results: Results) -> None:
    name = results.baseline
    cost = "estimate" if results.counted else "CPU time"
    tables.print_summary(console, summary(results))
    if results.shares:
        title = f"{name} on {len(results.programs)} programs"
        caption = (
            "Geometric means over the programs, [95 % interval]. First: at least as good as the "
            "best peer of the program; nearly: within 5 % of it."
        )
        console.print(share_table(title, caption, "programs", results.shares))
        memory = [] if results.counted else ["peak RSS", ""]
        if any(one.rest for one in results.beside):
            memory += ["idle RSS", ""]
        titles = ("programs", cost, "", "better on", *memory)
        caption = f"Geometric means: {cost} of the row ÷ {name}'s; memory of {name} ÷ the row's."
        console.print(table_beside(name, caption, titles, results.beside))
    for kind, shown in (COUNTED if results.counted else TIMED).items():
        console.print(matrix(results, kind, *shown))
    tables.print_problems(console, session.broken)
    for one in results.programs:
        tables.print_problems(console, one.problems, f"{one.name}: ")


def summary(results: Results) -> list[str]:
    return [
        f"{one.title}: {tables.interval(one.mean, 2)} in the mean of {one.seeds} programs, "
        f"{'below' if one.less else 'above'} 1 is better; at least as good on {percent(one.first)}."
        for one in results.shares
    ]


def matrix(results: Results, kind: str, title: str, digits: int, scale: float) -> Table:
    names = (results.baseline, *results.peers)
    rows = [
        [one.name, one.set, *(cell(one, name, kind, digits, scale) for name in names)]
        for one in results.programs
    ]
    return tables.figures_table(title, ("program", "set", *names), rows, ("program", "set"))


def cell(one: ProgramResult, name: str, kind: str, digits: int, scale: float) -> str:
    if name in one.problems:
        return "failed"
    value = one.figures.get(name, {}).get(kind)
    return tables.ABSENT if value is None else f"{value / scale:,.{digits}f}"


def document(session: Session, results: Results) -> dict:
    wanted = ("names", "rounds", "scale", "seed", "counted")
    return {
        "facts": session.facts,
        "baseline": results.baseline,
        "allocators": {a.name: str(a) for a in session.allocators},
        "wanted": {name: getattr(session, name) for name in wanted},
        "summary": [asdict(one) for one in results.shares],
        "beside": [asdict(one) for one in results.beside],
        "programs": [asdict(one) for one in results.programs],
        "broken": session.broken,
    }
