"""Pictures of a soak: memory, speed and latency of the allocators over time, and a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hakmem.documents import write_bytes
from hakmem.output import report

from hakmem_lab.soak_file import Epoch


@dataclass(frozen=True)
class Curve:
    """One kind of panel: what it shows, of which column, divided by what."""

    title: str
    column: str
    unit: float
    direction: str = "lower is better"
    logarithmic: bool = False


CURVES = (
    Curve("resident, MB", "rss_kb", 1024),
    Curve("M ops/s", "ops_per_sec", 1e6, "higher is better"),
    Curve("p99 of a call, ns", "p99_ns", 1, logarithmic=True),
    Curve("longest call, ns", "max_ns", 1, logarithmic=True),
)
PANEL_INCHES = (4.7, 2.5)
COLUMNS = 2


def draw(epochs: Sequence[Epoch], picture_format: str) -> bytes:
    """Panels of every load for all that it recorded; one line an allocator."""
    names = list(dict.fromkeys(e.allocator for e in epochs))
    shown = [
        (load, curve)
        for load in dict.fromkeys(e.load for e in epochs)
        for curve in CURVES
        if any(e.load == load and getattr(e, curve.column) is not None for e in epochs)
    ]
    lines = -(-len(shown) // COLUMNS)
    size = (PANEL_INCHES[0] * COLUMNS, PANEL_INCHES[1] * lines + 0.5)
    with report.new_figure(size) as figure:
        grid = figure.subplots(lines, COLUMNS, squeeze=False).flat
        for axes, (load, curve) in zip(grid, shown, strict=False):
            panel(axes, curve, load, names, epochs)
        for axes in figure.axes[len(shown) :]:
            axes.set_visible(False)
        lines_of_first = figure.axes[0].get_lines()
        figure.legend(handles=lines_of_first, loc="outside upper center", ncols=len(names))
        return report.picture_of(figure, picture_format)


def panel(axes, curve: Curve, load: str, names: Sequence[str], epochs: Sequence[Epoch]) -> None:
    for number, name in enumerate(names):
        points = [
            (e.elapsed_s / 60, value / curve.unit)
            for e in epochs
            if e.load == load and e.allocator == name
            if (value := getattr(e, curve.column)) is not None
        ]
        # An empty line too: every panel has the same ones, for the legend.
        times, values = zip(*points, strict=True) if points else ((), ())
        axes.plot(times, values, label=name, color=f"C{number}", linewidth=1)
    axes.set_title(f"{load}: {curve.direction}", fontsize=10)
    axes.set_ylabel(curve.title)
    axes.set_xlabel("minutes")
    axes.grid(color=report.LINE)
    if curve.logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)


def write_picture(path: Path, epochs: Sequence[Epoch]) -> None:
    write_bytes(path, draw(epochs, path.suffix.removeprefix(".")))
