"""How the figures of `hakmem programs` are shown: tables and JSON."""

from dataclasses import asdict

from hakmem.output import tables
from rich.console import Console
from rich.table import Table

from hakmem_lab.drawn_report import percent, share_table, table_beside
from hakmem_lab.programs_results import COUNTED, TIMED, ProgramResult, Results
from hakmem_lab.programs_run import Session


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
        titles = ("programs", cost, "", "better on", *(() if results.counted else ("peak RSS", "")))
        caption = f"Geometric means: {cost} of the row ÷ {name}'s; memory of {name} ÷ the row's."
        console.print(table_beside(name, caption, titles, results.beside))
    for kind, shown in (COUNTED if results.counted else TIMED).items():
        console.print(matrix(results, kind, *shown))
    for name, why in session.broken.items():
        console.print(f"{name}: {why}", soft_wrap=True)
    for one in results.programs:
        for name, why in one.problems.items():
            console.print(f"{one.name}: {name}: {why}", soft_wrap=True)


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
