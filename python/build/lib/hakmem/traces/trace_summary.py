"""What a recorded trace holds, as told by bench/trace/trace_summary.c."""

from __future__ import annotations

import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from hakmem.allocators.peers import bench_program
from hakmem.errors import UserError
from hakmem.measuring import latency_histogram
from hakmem.measuring.latency_histogram import Histogram
from hakmem.output.tables import figures_table
from hakmem.plain_text import printable

FUNCTIONS = ("malloc", "calloc", "aligned", "realloc", "free")
LIFETIME_SHARES = (0.25, 0.5, 0.75, 0.9, 0.99, 0.999)


@dataclass(frozen=True)
class TraceSummary:
    """Figures of one trace; counts are of calls, sizes in bytes."""

    path: Path
    executable: str
    command: str
    figures: dict[str, int]
    sizes: Histogram
    lifetimes: Histogram

    @property
    def calls(self) -> int:
        return sum(self.figures[name] for name in FUNCTIONS)

    @property
    def lanes(self) -> int:
        return self.figures["lanes"]

    @property
    def bytes_per_call(self) -> float:
        return self.figures["event_bytes"] / self.calls if self.calls else 0.0

    @property
    def other_thread_share(self) -> float:
        frees = self.figures["frees"]
        return self.figures["other_thread_frees"] / frees if frees else 0.0

    def remarks(self) -> list[str]:
        """What the trace lacks, one line each."""
        texts = {
            "truncated": "the file ends early: what it has of each thread is used",
            "unknown_frees": "frees of blocks whose allocation is not in the trace: left out",
            "unknown_reallocs": "reallocs of blocks not in the trace: taken as allocations",
            "missing_frees": "blocks whose address was given out again without a free: freed then",
        }
        counts = {name: self.figures[name] for name in texts}
        found = [f"{counts[name]:,} {text}" for name, text in list(texts.items())[1:]
                 if counts[name]]  # fmt: skip
        return [texts["truncated"], *found] if counts["truncated"] else found


def summarise_trace(path: Path) -> TraceSummary:
    """Raises an error with status 2 for a file that is no trace."""
    ran = subprocess.run(
        [str(bench_program("trace_summary")), str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if ran.returncode:
        said = ran.stderr.strip().removeprefix("trace_summary: ").strip(": ")
        told = said or f"{path}: cannot be read as a trace of 'hakmem record'"
        raise UserError(told, 2 if ran.returncode == 2 else 1)
    values, histograms = latency_histogram.parse(ran.stdout)
    figures = {name: int(text) for name, text in values.items() if text.isdecimal()}
    return TraceSummary(
        path,
        printable(values["executable"]),
        printable(values["command"]),
        figures,
        histograms.get("size", Histogram()),
        histograms.get("lifetime", Histogram()),
    )


def size_bands(sizes: Histogram) -> dict[int, int]:
    """Allocations by power of two: the key is the largest size of its band."""
    bands: dict[int, int] = {}
    for (_, high), count in sorted(sizes.counts.items()):
        top = 0 if high == 0 else 1 << (high - 1).bit_length()
        bands[top] = bands.get(top, 0) + count
    return bands


def lifetime_percentiles(summary: TraceSummary) -> dict[str, float]:
    if not summary.lifetimes.counts:
        return {}
    found = summary.lifetimes.percentiles(LIFETIME_SHARES)
    return {f"p{100 * share:g}": v for share, v in zip(LIFETIME_SHARES, found)}


def figure_rows(summary: TraceSummary) -> dict[str, str]:
    """The named lines above the table of sizes."""
    f = summary.figures
    calls = ", ".join(f"{name} {f[name]:,}" for name in FUNCTIONS)
    lives = ", ".join(f"{name} {value:,.0f}" for name, value in
                      lifetime_percentiles(summary).items())  # fmt: skip
    return {
        "trace": str(summary.path),
        "program": f"{summary.executable} (process {f['process']}"
        + (", forked: its parent's blocks are not in here)" if f["forked"] else ")"),
        "command": summary.command,
        "calls": f"{summary.calls:,}: {calls}",
        "file": f"{summary.bytes_per_call:.2f} bytes a call",
        "threads": f"{f['threads']:,}, at most {f['lanes']:,} at a time",
        "peak live": f"{f['peak_bytes']:,} bytes; {f['peak_blocks']:,} blocks",
        "allocated in all": f"{f['total_bytes']:,} bytes in {f['allocations']:,} blocks",
        "never freed": f"{f['left_blocks']:,} blocks, {f['left_bytes']:,} bytes",
        "freed by another thread": f"{100 * summary.other_thread_share:.2f} % of frees",
        "lifetime, in allocations": lives or "no block was freed",
    }


def sizes_table(summary: TraceSummary) -> Table:
    rows = (
        (f"{top:,}", f"{count:,}", f"{100 * count / summary.sizes.total:.2f} %")
        for top, count in size_bands(summary.sizes).items()
    )
    return figures_table("", ("size up to, bytes", "allocations", "share"), rows, ())


def summary_document(summary: TraceSummary) -> dict:
    def buckets(histogram: Histogram) -> list[list[int]]:
        return [[low, high, count] for (low, high), count in sorted(histogram.counts.items())]

    document = asdict(summary) | {
        "path": str(summary.path),
        "calls": summary.calls,
        "bytes_per_call": summary.bytes_per_call,
        "other_thread_share": summary.other_thread_share,
        "size_bands": {str(top): count for top, count in size_bands(summary.sizes).items()},
        "lifetime_percentiles": lifetime_percentiles(summary),
        "remarks": summary.remarks(),
    }
    return document | {
        "sizes": buckets(summary.sizes),
        "lifetimes": buckets(summary.lifetimes),
    }
