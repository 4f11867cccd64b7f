"""`hakmem misuse`: programs that misuse memory, and which allocators stop them."""

from dataclasses import asdict
from pathlib import Path

import click
from hakmem import options
from hakmem.allocators.peers import HARDENED_NAMES, USUAL_NAMES, build_folder
from hakmem.documents import write_json
from hakmem.errors import INTERRUPTED, REFUSED, UserError
from hakmem.output import tables
from hakmem.running.interruption import only_once
from hakmem.running.proof import peer_served
from rich.console import Console
from rich.table import Table

from hakmem_lab import misuse_cases
from hakmem_lab.misuse_cases import IMPOSSIBLE, Ending, Tally
from hakmem_lab.shell import clean_environment, facts_of

# Ours first, then those that are for this.
NAMES = ("hakmem", *HARDENED_NAMES, *(name for name in USUAL_NAMES if name != "hakmem"))
ALL, REFUSED_SIZES = "all misuse", "impossible sizes refused"
Found = dict[str, list[Ending]]


@click.command()
@options.allocator_options(
    usual="hakmem's two builds, hardened allocators, and all others that are there"
)
@options.json_option()
def misuse(
    names: str | None,
    libraries: tuple[str, ...],
    json_path: Path | None,
) -> None:
    """Run programs that misuse memory under each allocator, and count those that are stopped.

    Each case of tests/misuse is a program of its own. It is stopped when a signal ends it, and
    reported when the allocator also says why; a request for an impossible size is refused, and
    counted apart. Correct programs run too: an allocator that stops one, or says something, fails.
    Ends with status 1 then.
    """
    console = tables.make_console()
    program = program_path()
    cases = misuse_cases.listed(program)
    found: Found = {}
    interrupted = False
    with clean_environment() as removed, only_once():
        notes: list[str] = []
        allocators = options.chosen_allocators(names, libraries, notes, usual=NAMES)
        tables.print_notes(console, notes)
        control = next(case for case in cases if misuse_cases.is_control(case))
        for allocator in allocators:
            if (word := peer_served((str(program), control), allocator)) != "yes":
                raise UserError(f"{allocator.name} does not serve {program}: {word}")
        facts = facts_of(None, allocators, removed, served="every allocator, by the loader's log")
        try:
            with tables.progress_line(console, "cases", len(cases) * len(allocators)) as progress:
                for allocator in allocators:
                    found[allocator.name] = misuse_cases.run_cases(
                        program, cases, allocator.library, allocator.settings, progress.tick
                    )
        except KeyboardInterrupt:
            interrupted = True
    problems = show(console, found)
    tables.print_facts(console, facts)
    write_json(json_path, "misuse", as_json(found, facts))
    if interrupted:
        console.print(f"interrupted after {len(found)} of {len(allocators)} allocators")
        raise SystemExit(INTERRUPTED)
    if problems:
        raise SystemExit(1)


def program_path() -> Path:
    path = build_folder() / "tests" / "misuse" / "misuse"
    if not path.exists():
        how = "build it first (make test, or cmake --build --preset release --target misuse)"
        raise UserError(f"{path} is missing: {how}", REFUSED)
    return path


def show(console: Console, found: Found) -> list[str]:
    """The verdict and the table by family; gives what has failed."""
    by_name = {name: misuse_cases.tallies(endings) for name, endings in found.items()}
    if any(by_name.values()):
        console.print(verdict(by_name), soft_wrap=True)
        console.print(families_table(by_name))
    # Controls that were not silent.
    problems = [
        f"{name}: {one.case} is correct, and was {one.outcome}: {one.words or one.status}"
        for name, endings in found.items()
        for one in endings
        if misuse_cases.is_control(one.case) and not one.is_silent
    ]
    for text in problems:
        console.print(text, soft_wrap=True, markup=False)
    return problems


def verdict(by_name: dict[str, dict[str, Tally]]) -> str:
    """One sentence: each allocator's share, the largest first."""
    totals = {name: misuse_cases.total(tallies) for name, tallies in by_name.items()}
    cases = max(one.cases for one in totals.values())
    told = [
        f"{name} stops {one.stopped}"
        + (f" of {one.cases}" if one.cases != cases else "")
        + f" ({one.reported} with a report)"
        for name, one in sorted(totals.items(), key=lambda pair: -pair[1].stopped)
    ]
    return f"Of {cases} misuses {', '.join(told)}."


def families_table(by_name: dict[str, dict[str, Tally]]) -> Table:
    """Allocators down, families across: stopped, and how many of them with a report."""
    every = {name: {**found, ALL: misuse_cases.total(found)} for name, found in by_name.items()}
    families = dict.fromkeys(family for found in by_name.values() for family in found)
    titles = [*(family for family in families if family != IMPOSSIBLE), ALL]
    titles += [IMPOSSIBLE] if IMPOSSIBLE in families else []
    columns = {title: [found.get(title, Tally()) for found in every.values()] for title in titles}
    counts = {title: max(one.cases for one in column) for title, column in columns.items()}
    lines = [["cases", *map(str, counts.values())]]
    for place, name in enumerate(by_name):
        lines.append([name, *(cell(t, columns[t][place], counts[t]) for t in titles)])
    # Words below each other: the cells are narrow.
    shown = (REFUSED_SIZES if title == IMPOSSIBLE else title for title in titles)
    heads = ("", *(title.replace("-", "-\n").replace(" ", "\n") for title in shown))
    return tables.figures_table("stopped / of these with a report", heads, lines, ("",))


def cell(title: str, tally: Tally, cases: int) -> str:
    """Where a misuse could not be done under one allocator, its own number stands beside."""
    if title == IMPOSSIBLE:
        return str(tally.refused)
    own = f" of {tally.cases}" if tally.cases != cases else ""
    return f"{tally.stopped}/{tally.reported}{own}"


def as_json(found: Found, facts: dict[str, str]) -> dict:
    return {
        "facts": facts,
        "allocators": [
            {
                "name": name,
                "families": {k: asdict(v) for k, v in misuse_cases.tallies(endings).items()},
                "total": asdict(misuse_cases.total(misuse_cases.tallies(endings))),
                "cases": [asdict(one) for one in endings],
            }
            for name, endings in found.items()
        ],
    }
