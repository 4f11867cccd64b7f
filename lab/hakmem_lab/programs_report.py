"""How the figures of `hakmem programs` are shown: tables, JSON, and a picture."""

import re
from dataclasses import asdict

from hakmem.errors import UserError
from hakmem.output import tables
from rich.console import Console
from rich.table import Table

from hakmem_lab.drawn_picture import beside_picture
from hakmem_lab.drawn_report import percent, ratio
from hakmem_lab.programs_results import ProgramResult, Results
from hakmem_lab.programs_session import Session


def show(console: Console, session: Session, results: Results) -> None:
    tables.print_summary(console, summary(results))
    if results.shares:
        console.print(share_table(results))
        console.print(beside_table(results))
    for kind in results.kinds:
        console.print(matrix(results, kind))
    for line in problem_lines(session, results):
        console.print(line, soft_wrap=True)


def summary(results: Results) -> list[str]:
    return [
        f"{one.title}: {tables.interval(one.mean, 2)} in the mean of {one.seeds} programs, "
        f"{'below' if less else 'above'} 1 is better; at least as good on {percent(one.first)}."
        for one, less in results.shares
    ]


def share_table(results: Results) -> Table:
    table = tables.plain_table(f"{results.baseline} on {len(results.programs)} programs")
    table.caption = (
        "Geometric means over the programs, [95 % interval]. First: at least as good as the best "
        "peer of the program; nearly: within 5 % of it."
    )
    for title in ("ratio", "programs", "geometric mean", "first", "nearly", "worst", "best"):
        table.add_column(title, justify="left" if title == "ratio" else "right")
    for one, less in results.shares:
        worst, best = (one.highest, one.lowest) if less else (one.lowest, one.highest)
        table.add_row(one.title, str(one.seeds), tables.interval(one.mean), percent(one.first),
                      percent(one.nearly), ratio(worst), ratio(best))  # fmt: skip
    return table


def beside_table(results: Results) -> Table:
    name = results.baseline
    table = tables.plain_table(f"{name} beside each")
    what = "estimate" if results.counted else "CPU time"
    table.caption = f"Geometric means: {what} of the row ÷ {name}'s; peak RSS of {name} ÷ the row's."
    titles = ("programs", what, "", "faster on", "peak RSS", "")
    columns = [("allocator", {"no_wrap": True}), *((title, {}) for title in titles)]
    rows = [
        [one.peer, str(one.seeds), tables.interval(one.speed), one.verdict, percent(one.faster),
         tables.ABSENT if one.peak is None else tables.interval(one.peak), one.peak_verdict]
        for one in results.beside
    ]  # fmt: skip
    tables.fill(table, columns, rows)
    return table


def matrix(results: Results, kind: str) -> Table:
    title, digits, scale = results.kinds[kind]
    table = tables.plain_table(title)
    table.add_column("program", no_wrap=True)
    table.add_column("set")
    names = (results.baseline, *results.peers)
    for name in names:
        table.add_column(name, justify="right")
    for one in results.programs:
        table.add_row(one.name, one.set, *(cell(one, name, kind, digits, scale) for name in names))
    return table


def cell(one: ProgramResult, name: str, kind: str, digits: int, scale: float) -> str:
    if name in one.problems:
        return "failed"
    value = one.figures.get(name, {}).get(kind)
    return tables.ABSENT if value is None else f"{value / scale:,.{digits}f}"


def problem_lines(session: Session, results: Results) -> list[str]:
    told = [f"{name}: {why}" for name, why in session.broken.items()]
    told += [
        f"{one.name}: {name}: {why}"
        for one in results.programs
        for name, why in one.problems.items()
    ]
    return told


def document(session: Session, results: Results) -> dict:
    return {
        "facts": session.facts,
        "baseline": results.baseline,
        "peers": list(results.peers),
        "counted": results.counted,
        "allocators": {a.name: str(a) for a in session.allocators},
        "wanted": {"programs": session.names, "rounds": session.rounds, "scale": session.scale,
                   "seed": session.seed},
        "summary": [asdict(one) for one, _ in results.shares],
        "beside": [asdict(one) for one in results.beside],
        "programs": [asdict(one) for one in results.programs],
        "broken": session.broken,
    }  # fmt: skip


def picture(session: Session, results: Results) -> str:
    if not results.beside:
        raise UserError("--picture: no peer has figures")
    numbers = {a.name: re.match(r"\d[\d.]*", a.version) for a in session.allocators}
    names = {name: f"{name} {found[0]}" for name, found in numbers.items() if found}
    return beside_picture(results.baseline, results.beside, names)
