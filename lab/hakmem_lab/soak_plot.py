"""Pictures of a soak: memory, speed and latency of the allocators over time, and a page."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from hakmem_lab.documents import write_text
from hakmem_lab.errors import LabError
from hakmem_lab.report import STYLE
from hakmem_lab.report import facts_table as facts_html
from hakmem_lab.soak_file import Epoch
from hakmem_lab.soak_judging import Judgement, percent, share

FORMATS = (".svg", ".png")


@dataclass(frozen=True)
class Curve:
    """One row of panels: what it shows, of which column, divided by what."""

    title: str
    column: str
    unit: float
    logarithmic: bool = False


CURVES = (
    Curve("RSS, MB", "rss_kb", 1024),
    Curve("M ops/s", "ops_per_sec", 1e6),
    Curve("p99 of a call, ns", "p99_ns", 1, logarithmic=True),
    Curve("longest call, ns", "max_ns", 1, logarithmic=True),
)


def draw(epochs: Sequence[Epoch], picture_format: str) -> bytes:
    """A column of panels for each load; one line an allocator."""
    # Slow to import, and only this needs it.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    loads = list(dict.fromkeys(e.load for e in epochs))
    names = list(dict.fromkeys(e.allocator for e in epochs))
    with rc_context({"font.size": 10, "svg.hashsalt": "hakmem", "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(5.2 * len(loads), 11), layout="constrained")
        grid = figure.subplots(len(CURVES), len(loads), squeeze=False, sharex=True)
        for column, load in enumerate(loads):
            for line, curve in enumerate(CURVES):
                panel(grid[line][column], curve, load, names, epochs)
            grid[0][column].set_title(load)
        figure.supxlabel("minutes")
        grid[0][0].legend(loc="lower left", fontsize=8)
        out = io.BytesIO()
        metadata = {"Date": None} if picture_format == "svg" else None
        figure.savefig(out, format=picture_format, metadata=metadata)
    return out.getvalue()


def panel(axes, curve: Curve, load: str, names: Sequence[str], epochs: Sequence[Epoch]) -> None:
    drawn = False
    for number, name in enumerate(names):
        points = [
            (e.elapsed_s / 60, value / curve.unit)
            for e in epochs
            if e.load == load and e.allocator == name
            if (value := getattr(e, curve.column)) is not None
        ]
        if points:
            drawn = True
            axes.plot(*zip(*points, strict=True), label=name, color=f"C{number}", linewidth=1)
    axes.set_visible(drawn)
    axes.set_ylabel(curve.title)
    axes.grid(color="#dde1e8")
    axes.tick_params(labelbottom=True)
    if drawn and curve.logarithmic:
        axes.set_yscale("log")
    elif drawn:
        axes.set_ylim(bottom=0)


def write_picture(path: Path, epochs: Sequence[Epoch]) -> None:
    try:
        path.write_bytes(draw(epochs, path.suffix.removeprefix(".")))
    except OSError as error:
        raise LabError(f"cannot write {path}: {error.strerror}") from error


def write_page(
    path: Path, epochs: Sequence[Epoch], judged: Sequence[Judgement], facts: Mapping[str, str]
) -> None:
    image = base64.b64encode(draw(epochs, "svg")).decode()
    titles = ("allocator", "load", "epochs", "RSS drift", "speed drift", "beside the others", "CV")
    head = "".join(f"<th>{title}</th>" for title in (*titles, "verdict"))
    body = "".join(page_row(judgement) for judgement in judged)
    write_text(
        path,
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>Soak</title><style>{STYLE}</style></head><body><h1>Soak</h1>"
        f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
        f'<img alt="Memory, speed and latency over time" src="data:image/svg+xml;base64,{image}">'
        f"<h2>How it was measured</h2>{facts_html(facts)}</body></html>\n",
    )


def page_row(judgement: Judgement) -> str:
    kind, said = "good", "pass"
    if judgement.failures:
        kind, said = "bad", "; ".join(judgement.failures)
    beside = judgement.beside_others
    cells = (
        judgement.load,
        str(judgement.epochs),
        percent(judgement.rss_drift.change),
        percent(judgement.throughput_drift.change),
        "" if beside is None else percent(beside.change),
        share(judgement.variation),
    )
    middle = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    name = escape(judgement.allocator)
    return f'<tr><td>{name}</td>{middle}<td class="text {kind}">{escape(said)}</td></tr>'
