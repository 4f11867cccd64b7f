"""How processes are shown by `hakmem top`: a line each, and one process's size classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from rich.table import Table
from rich.text import Text

from hakmem.output.tables import ABSENT, plain_table
from hakmem.processes.live_figures import NO_BUDGET, ClassRow, HeapRow, Row

CLASSES_SHOWN = HEAPS_SHOWN = 20
# What the table of processes takes with all its columns.
WIDE = 170


def megabytes(count: int | None) -> str:
    return ABSENT if count is None else f"{count / (1 << 20):,.1f}"


def rate(value: float | None) -> str:
    if value is None:
        return ABSENT
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f}"


def absent(front_metrics: bool) -> str:
    """What stands for a figure of the thread caches that there is not."""
    return ABSENT if front_metrics else "off"


def share(value: float | None, none: str) -> str:
    return none if value is None else f"{100 * value:.2f} %"


@dataclass(frozen=True)
class Column:
    """`wide`: only where the table has room."""

    title: str
    cell: Callable[[Row], str]
    wide: bool = False


COLUMNS = (
    Column("RSS", lambda r: megabytes(r.rss)),
    Column("RSS\npeak", lambda r: megabytes(r.rss_peak), True),
    Column("used", lambda r: megabytes(r.used), True),
    Column("used\npeak", lambda r: megabytes(r.used_peak), True),
    Column("live", lambda r: megabytes(r.live)),
    Column("thread\ncaches", lambda r: megabytes(r.cached)),
    Column("depots", lambda r: megabytes(r.depots), True),
    Column("kept", lambda r: megabytes(r.kept), True),
    Column("free in\nslabs", lambda r: megabytes(r.slab_free)),
    Column("dirty", lambda r: megabytes(r.dirty)),
    Column("own", lambda r: megabytes(r.own), True),
    Column("refills\n/s", lambda r: rate(r.rates and r.rates.slow_paths)),
    Column("taken\n/s", lambda r: rate(r.rates and r.rates.taken), True),
    Column("returned\n/s", lambda r: rate(r.rates and r.rates.returned), True),
    Column("hits", lambda r: share(r.rates and r.rates.hit_rate, absent(r.front_metrics))),
    Column("purges", lambda r: f"{r.purges:,}", True),
    Column("page\nage s", lambda r: f"{r.age_s:.1f}", True),
)


def process_table(rows: Sequence[Row], width: int) -> Table:
    """A narrow terminal shows less: the others are in --once --json anyway."""
    table = plain_table("")
    table.caption = (
        "MB; rates of refills and flushes, and of spans and large blocks taken and returned. Hits "
        "of thread caches need HAKMEM_TINY_FRONT_METRICS=1."
    )
    table.collapse_padding = True
    table.add_column("PID", justify="right", no_wrap=True)
    table.add_column("program", no_wrap=True)
    columns = [c for c in COLUMNS if width >= WIDE or not c.wide]
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    has_budget = any(row.budget != NO_BUDGET for row in rows)
    if has_budget:
        table.add_column("budget")
    for row in rows:
        cells = [column.cell(row) for column in columns]
        table.add_row(str(row.pid), row.name, *cells, *([row.budget] if has_budget else []))
    return table


def class_table(rows: Sequence[ClassRow], front_metrics: bool, most: int = CLASSES_SHOWN) -> Table:
    """The classes that hold most."""
    none = absent(front_metrics)
    shown = sorted(rows, key=lambda row: -row.slab_bytes)[:most]
    table = plain_table("")
    if len(rows) > len(shown):
        table.caption = f"The {len(shown)} classes with most slabs of {len(rows)}"
    for title in ("block", "slabs\nMB", "live\nMB", "caches\nMB", "depots\nMB", "free\nMB",
                  "hits\n/s", "misses\n/s", "hits"):  # fmt: skip
        table.add_column(title, justify="right", no_wrap=True)
    for row in shown:
        sizes = (row.slab_bytes, row.live, row.cached, row.depots, row.free)
        table.add_row(
            f"{row.block_size:,}{' aligned' if row.aligned else ''}",
            *map(megabytes, sizes),
            none if row.hits is None else rate(row.hits),
            none if row.misses is None else rate(row.misses),
            share(row.hit_rate, none),
        )
    return table


def heap_table(rows: Sequence[HeapRow], count: int, most: int = HEAPS_SHOWN) -> Table:
    """The largest of all that are on the pages, with the heaps below them; `count`: how many there
    are."""
    shown = sorted(rows, key=lambda row: -row.total)[:most]
    table = plain_table("")
    if count > len(shown):
        table.caption = f"The {len(shown)} largest heaps of {count:,}; total: with the heaps below"
    several = len({row.pid for row in rows}) > 1
    if several:
        table.add_column("PID", justify="right", no_wrap=True)
    table.add_column("heap", justify="right", no_wrap=True)
    table.add_column("name", no_wrap=True)
    for title in ("total\nMB", "live\nMB", "peak\nMB", "blocks", "held\nMB", "limit\nMB",
                  "of\nlimit", "refused", "requests\n/s"):  # fmt: skip
        table.add_column(title, justify="right", no_wrap=True)
    for row in shown:
        table.add_row(
            *([str(row.pid)] if several else []),
            str(row.id),
            Text(row.name),
            *map(megabytes, (row.total, row.live, row.peak)),
            f"{row.blocks:,}",
            megabytes(row.held),
            megabytes(row.limit or None),
            share(row.used, ABSENT),
            f"{row.refused:,}",
            rate(row.request_rate),
        )
    return table


def document(
    rows: Sequence[Row], classes: Sequence[ClassRow], heaps: Sequence[HeapRow] | None = None
) -> dict:
    found: dict = {"processes": [asdict(row) for row in rows]}
    if classes:
        found["classes"] = [asdict(row) for row in classes]
    if heaps is not None:
        found["heaps"] = [asdict(row) for row in heaps]
    return found
