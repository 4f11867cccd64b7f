"""`hakmem drawn`: loads drawn from seeds, each beside the best peer of the seed."""

from pathlib import Path

import click
from hakmem import options
from hakmem.allocators.peers import USUAL_HELP
from hakmem.documents import write_json, write_text
from hakmem.extras import require_asked
from hakmem.measuring import journal
from hakmem.output import tables
from hakmem.running.interruption import only_once
from hakmem.running.proof import why_unproven
from rich.console import Console

from hakmem_lab import drawn_report, drawn_results, drawn_run
from hakmem_lab.shell import chosen, clean_environment, conclude, facts_of


def rounds_and_scale(where: str, what: str) -> options.Decorator:
    return options.stacked(
        options.number_option("--rounds", f"Runs of each allocator {where}.", 5, 1),
        options.number_option("--scale", f"{what} in percent.", 100, 1, 100_000),
    )


@click.command()
@options.option(
    "--seeds",
    "The loads: a range, or several with commas. Draw seeds that nobody has looked at.",
    "1..20",
    metavar="A..B",
)
@rounds_and_scale("at each seed", "Work of a load")
@options.number_option(
    "--rest rest_s",
    "Seconds after the load until resident memory is looked at, in a run of its own; 0: not.",
    2.0,
    0.0,
    3600,
)
@click.option(
    "--floor", is_flag=True, help="Add the allocator that does nothing; net figures where it can."
)
@options.allocator_options(f"{USUAL_HELP}; NAME=PATH for a library")
@options.seed_option()
@options.resume_folder_option("make tables and files of a finished one")
@options.plot_option(
    "--picture", "picture_path", "Draw speed and memory beside each peer.", (".svg",)
)
def drawn(
    seeds: str,
    rounds: int,
    scale: int,
    rest_s: float,
    floor: bool,
    names: str | None,
    libraries: tuple[str, ...],
    seed: int | None,
    resume: Path | None,
    picture_path: Path | None,
) -> None:
    """Measure allocators on loads drawn from seeds: fairer than rows one has tuned to.

    The first allocator is the baseline. Each seed counts against the best peer of that seed; every
    other allocator gets a verdict on the geometric mean over all seeds. To compare two builds:
    --with new=PATH,old=PATH. Rounds go to a folder as they finish: Ctrl-C leaves tables and files
    of what is finished, --resume goes on. Ends with status 1 when the baseline has failed
    somewhere or a library did not serve.
    """
    console = tables.make_console()
    with clean_environment() as removed, only_once():
        if resume is not None:
            options.require_resume_alone({"picture_path"})
            session = drawn_run.Session.load(resume)
            require_asked()
        else:
            session = drawn_run.Session(
                folder=journal.new_path("drawn", ""), seeds=drawn_run.parse_seeds(seeds),
                rounds=rounds, scale=scale, rest_s=rest_s, seed=options.resolve_seed(seed),
                floor=floor, allocators=chosen(console, names, libraries),
            )  # fmt: skip
            session.facts = facts_of(
                session.seed, session.allocators, removed,
                seeds=seeds,
                rounds=f"{rounds} at scale {scale} %, order {session.seed}, rest {rest_s:g} s",
            )  # fmt: skip
            require_asked()
            session.save()
        finished = run(console, session)
        results = drawn_results.collect(session, drawn_run.all_measured(session))
        drawn_report.show(console, results)
        tables.print_facts(console, session.facts)
        write_json(session.folder / "drawn.json", "drawn", drawn_report.document(session, results))
        if picture_path is not None:
            write_text(picture_path, drawn_report.picture_of_peers(session, results))
    wanted = f"{len(session.seeds)} seeds"
    unproven = {name: why for name, said in session.served.items() if (why := why_unproven(said))}
    if finished:
        tables.print_problems(console, unproven)
    conclude(console, session, " and drawn.json", results.seeds, wanted, finished)
    if unproven:
        raise SystemExit(1)


def run(console: Console, session: drawn_run.Session) -> bool:
    """Proof of whose malloc serves, then all seeds; False when it was interrupted."""
    slices = len(session.seeds) * session.rounds * (len(session.allocators) + session.floor)
    width = len(str(session.seeds[-1]))

    def told(measured: drawn_run.Measured, seconds: float) -> None:
        one = drawn_results.collect(session, [measured]).seeds
        if one:
            best = one[0].over_best
            speed = f"{best.median:.2f} of {one[0].best_peer}" if best else "no ratio"
            line = f"seed {one[0].seed:>{width}}: {speed}, {seconds:.1f} s: {one[0].load}"
            console.print(line, soft_wrap=True)

    with tables.progress_line(console, "runs", slices) as progress:
        if not session.served:
            try:
                drawn_run.prove(session, progress.say)
            except KeyboardInterrupt:
                return False
            session.save()
        return drawn_run.run_all(session, progress.tick, told)
