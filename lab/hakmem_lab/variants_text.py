"""A comparison of variants as tables for the terminal, and as Markdown for a decision."""

from collections.abc import Callable, Sequence

from hakmem.documents import written_by
from hakmem.measuring.measures import NO_DIFFERENCE, TOO_FEW
from hakmem.measuring.rotation import OPS_PER_SECOND, WALL_TIME
from hakmem.measuring.statistics import Interval
from hakmem.output import tables
from rich.console import Console
from rich.table import Table

from hakmem_lab.suite_session import Session
from hakmem_lab.variants import BASE
from hakmem_lab.variants_results import (
    FASTER,
    SLOWER,
    Figures,
    RowFigures,
    Total,
    intervals,
    totals,
)

MARKS = {NO_DIFFERENCE: "~", TOO_FEW: "?"}
MEAN = "geometric mean"
SPEED = "Speed: of the base, and each variant's as a multiple of it"
MEMORY = "Peak resident memory: of the base, and each variant's as a multiple of it"
Cell = Callable[[Figures], str]


def show(console: Console, session: Session, rows: Sequence[RowFigures]) -> None:
    """The verdict on each variant, then both matrices; the first explains the marks."""
    tables.print_summary(console, sentences(session, rows))
    for title, head, lines, caption in matrices(session, rows, "\n", plain):
        table: Table = tables.plain_table(title)
        table.caption = caption
        for number, text in enumerate(head):
            table.add_column(text, justify="right" if number else "left", no_wrap=number == 1)
        for line in lines:
            table.add_row(*line)
        console.print(table)


def sentences(session: Session, rows: Sequence[RowFigures]) -> list[str]:
    """One for each variant: over all rows, beside the base."""
    return [sentence(one) for one in totals(session, rows)]


def sentence(one: Total) -> str:
    if one.speed is None:
        return f"{one.variant} has no figures."
    kinds = (FASTER, SLOWER, NO_DIFFERENCE, TOO_FEW)
    told = ", ".join(f"{kind} in {one.counts[kind]}" for kind in kinds if one.counts[kind])
    memory = f", with {mean_text(one.rss)} of its memory" if one.rss is not None else ""
    return f"{one.variant} ran at {one.speed:.3f} of the base's speed{memory} (means): {told}."


def markdown(session: Session, rows: Sequence[RowFigures]) -> str:
    parts = [written_by("variants"), "", f"## {session.title}", "", *described(session), ""]
    for title, head, lines, caption in matrices(session, rows, " ", bold):
        parts += [f"### {title}", ""]
        parts += [line_of(head), line_of(["---", *["---:"] * (len(head) - 1)])]
        parts += [*map(line_of, lines), "", caption, ""]
    problems = [line for row in rows for line in problems_of(row)]
    parts += ["Without figures:", "", *problems, ""] if problems else []
    return "\n".join(parts).rstrip() + "\n"


def described(session: Session) -> list[str]:
    """What was compared, on which machine, and how to repeat it."""
    lines = [f"- `{a.name}`: {a.source or a.version}" for a in session.allocators]
    facts = session.facts
    shown = ("kernel", "CPU", "THP", "compiler", "rounds", "settings")
    machine = "; ".join(f"{name}: {facts[name]}" for name in shown if facts.get(name))
    return [*lines, "", f"Base commit {facts['base']}. {machine}.", "", f"    {facts['repeat']}"]


def line_of(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def problems_of(row: RowFigures) -> list[str]:
    if row.problem:
        return [f"- {row.name}: {row.problem}"]
    return [f"- {row.name}, {e.variant}: {e.problem}" for e in row.entries if e.problem]


def matrices(
    session: Session,
    rows: Sequence[RowFigures],
    separator: str,
    emphasise: Callable[[str, str], str],
) -> list[tuple[str, list[str], list[list[str]], str]]:
    """Title, head, lines and explanation of the matrices of speed and of memory."""
    names = [a.name for a in session.allocators if a.name != BASE]
    sums = {one.variant: one for one in totals(session, rows)}

    def lines(own: Callable, cell: Cell) -> list[list[str]]:
        found = []
        for row in rows:
            base, entries = row.of(BASE), [row.of(name) for name in names]
            shown = [tables.ABSENT if e is None else cell(e) for e in entries]
            found.append([row.title, own(row, base) if base else tables.ABSENT, *shown])
        return found

    def speed(entry: Figures) -> str:
        return ratio_text(entry.speed, entry.verdict, separator, emphasise)

    def memory(entry: Figures) -> str:
        shown = ratio_text(entry.rss, entry.rss_verdict, separator, emphasise)
        return f"{shown}{separator}{tables.megabytes(entry.peak_rss_kb)} MB"

    speed_lines = lines(speed_text, speed)
    speed_lines.append([MEAN, "", *(mean_text(sums[name].speed) for name in names)])
    counted = f"{FASTER}/{SLOWER}/{MARKS[NO_DIFFERENCE]}/{MARKS[TOO_FEW]}"
    speed_lines.append([counted, "", *(counts_text(sums[name]) for name in names)])
    memory_lines = lines(lambda _row, e: f"{tables.megabytes(e.peak_rss_kb)} MB", memory)
    memory_lines.append([MEAN, "", *(mean_text(sums[name].rss) for name in names)])
    head = ["row", BASE, *names]
    return [
        (SPEED, head, speed_lines, speed_caption(rows)),
        (MEMORY, head, memory_lines, "Medians; below 1 the variant holds less."),
    ]


def speed_caption(rows: Sequence[RowFigures]) -> str:
    count = intervals(rows)
    marks = f"{MARKS[NO_DIFFERENCE]}: no difference seen; {MARKS[TOO_FEW]}: too few rounds to say."
    return (
        f"Medians over pairs, [95 % interval]; above 1 the variant is faster. {marks} One interval "
        f"in 20 lies beside 1 by chance: about {count / 20:.0f} of these {count}."
    )


def ratio_text(
    ratio: Interval | None, verdict: str, separator: str, emphasise: Callable[[str, str], str]
) -> str:
    if ratio is None:
        return tables.ABSENT
    first = emphasise(f"{ratio.median:.3f}", verdict)
    shown = f"{first} {MARKS.get(verdict, verdict)}"
    if ratio.low is None:
        return shown
    return f"{shown}{separator}[{ratio.low:.3f}, {ratio.high:.3f}]"


def plain(text: str, _verdict: str) -> str:
    return text


def bold(text: str, verdict: str) -> str:
    return text if verdict in MARKS else f"**{text}**"


def mean_text(value: float | None) -> str:
    return tables.ABSENT if value is None else f"{value:.3f}"


def counts_text(one: Total) -> str:
    kinds = (FASTER, SLOWER, NO_DIFFERENCE, TOO_FEW)
    return "/".join(str(one.counts[kind]) for kind in kinds)


def speed_text(row: RowFigures, entry: Figures) -> str:
    metric = OPS_PER_SECOND if row.unit == OPS_PER_SECOND.unit else WALL_TIME
    return f"{tables.figure(entry.median, metric)} {row.unit}"
