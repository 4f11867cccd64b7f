"""`hakmem pgo`: a profile-guided build, and what it is worth beside the release build."""

from pathlib import Path

import click
from hakmem import environment
from hakmem.allocators.settings import check
from hakmem.documents import write_json
from hakmem.options import INTERRUPTED, json_option, pairs_option, resolve_seed, seed_option
from hakmem.output import tables
from rich.console import Console

from hakmem_lab import flavours, instructions
from hakmem_lab.pgo import TRAINING, build_and_train, profile_folder, smoke


@click.command()
@pairs_option(15)
@seed_option()
@json_option()
def pgo(pairs: int, seed: int | None, json_path: Path | None) -> None:
    """Build with a profile into build/pgo, and compare with the release build in rounds.

    Trained on the bench programs and one real program; measured on other seeds and sizes of them.
    Covers libhakmem.so; the static archive in build/pgo is built without the profile.
    """
    console = tables.make_console()
    seed = resolve_seed(seed)
    try:
        with tables.progress_line(console, "training", len(TRAINING)) as progress:
            task = progress.task_ids[0]
            library = build_and_train(lambda what: progress.update(task, advance=1, now=what))
        with console.status("trying the build"):
            passed = smoke(library)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    facts = environment.describe() | {
        "profile": f"{len(TRAINING)} training runs, in {profile_folder()}",
        "passed": ", ".join(passed.passed),
    }
    if passed.not_tried:
        facts["not tried"] = ", ".join(passed.not_tried)
    show_comparison(console, library, "pgo", facts, pairs, seed, json_path)


def show_comparison(
    console: Console,
    library: Path,
    name: str,
    facts: dict[str, str],
    pairs: int,
    seed: int,
    json_path: Path | None,
) -> None:
    """The paired comparison with the release build: its verdict, its table, and the facts."""
    check([flavours.find("hakmem")], {})
    facts = facts | {
        "compiler": environment.compiler_of(library),
        "release": str(flavours.find("hakmem").library),
        name: str(library),
        "rounds": f"{pairs}, seed {seed}; one CPU, threads where the kernel puts them",
    }
    steps = sum(pairs * (3 if load.has_floor else 2) for load in flavours.CORE_LOADS)
    with tables.progress_line(console, "runs", steps) as progress:
        task = progress.task_ids[0]
        results = flavours.compare_builds(
            library, name, pairs, seed, lambda what: progress.update(task, advance=1, now=what)
        )
    tables.print_summary(console, [flavours.sentence(results, name)])
    console.print(flavours.results_table(results, name))
    counts = count_instructions(library)
    for title, (of_release, of_other) in counts.items():
        console.print(
            f"Instructions a step, {title}: release {of_release:.2f}, {name} {of_other:.2f} "
            f"({of_other - of_release:+.2f})"
        )
    if problem := instructions.problem():
        console.print(f"Instructions are not counted: {problem}")
    tables.print_facts(console, facts)
    if json_path is not None:
        document = {"facts": facts, "pairs": pairs, "seed": seed, "instructions": counts}
        command = click.get_current_context().info_name
        write_json(json_path, command, document | {"loads": flavours.as_json(results)})
    last = results[-1]
    if len(results) < len(flavours.CORE_LOADS) or (last.rounds < pairs and not last.problem):
        console.print(f"interrupted in the load '{last.title}'")
        raise SystemExit(INTERRUPTED)
    if any(result.problem for result in results):
        raise SystemExit(1)


def count_instructions(library: Path) -> dict[str, tuple[float, float]]:
    """Of one step under the release build and under `library`, where valgrind is there."""
    release = flavours.find("hakmem").library
    if release is None or instructions.problem():
        return {}
    return {
        load.title: (
            instructions.per_step(load, release),
            instructions.per_step(load, library),
        )
        for load in instructions.STEP_LOADS
    }
