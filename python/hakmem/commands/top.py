"""`hakmem top`: live figures of processes under hakmem, for eyes, scripts and Prometheus."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hakmem.destinations import output_option
from hakmem.documents import kind, write_json, write_text
from hakmem.errors import UserError, warn
from hakmem.extras import NEEDED, PROMETHEUS, needing, require_asked
from hakmem.options import (
    WholeRange,
    complete_pids,
    json_option,
    number_option,
    option,
    process_of,
    refuse,
)
from hakmem.output.tables import ABSENT, make_console, plain_table
from hakmem.plain_text import some
from hakmem.processes import live_figures
from hakmem.processes.live_figures import (
    NO_BUDGET,
    ClassRow,
    HeapRow,
    Look,
    Row,
    Unseen,
    class_rows,
    heap_count,
    heap_rows,
    look_around,
)
from hakmem.processes.process_memory import how_permitted
from hakmem.processes.web import POLL_S, Server
from hakmem.running import interruption
from hakmem.running.threads import has_ended, seen_by
from hakmem.streams import is_lost

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


PROCESSES_NAMED = 10
NOTHING_UNSEEN = Unseen()
NO_HEAPS = "no heaps (hakmem/heap.h)"
NO_PAGE = (
    "no process has a statistics page: start one with HAKMEM_STATS_PAGE=1: HAKMEM_STATS_PAGE=1 "
    "hakmem run -- PROGRAM"
)


METRICS = kind("metrics file", rb"# (HELP hakmem|TYPE hakmem|EOF)")


@click.command()
@click.option("--once", is_flag=True, help="One table of two looks, --interval apart, and end.")
@click.option("--heaps", is_flag=True, help="Show the largest heaps (hakmem/heap.h).")
@number_option("--interval interval_s", "Between two looks.", 1.0, 0.1, metavar="SECONDS")
@json_option()
@output_option(
    "--prometheus",
    "metrics_path",
    text=f"Write one look as OpenMetrics text, to stdout with -, and end. {NEEDED}",
    kind=METRICS,
    callback=needing(PROMETHEUS),
)
@click.option(
    "--serve", "port", type=WholeRange(1, 65535), metavar="PORT", callback=needing(PROMETHEUS),
    help=f"Serve metrics to Prometheus at http://ADDRESS:PORT/metrics, until stopped. {NEEDED}",
)  # fmt: skip
@option("--address", "Of --serve.", "127.0.0.1")
@click.argument("pid", required=False, type=process_of, shell_complete=complete_pids)
def top(
    once: bool,
    heaps: bool,
    interval_s: float,
    json_path: Path | None,
    metrics_path: Path | None,
    port: int | None,
    address: str,
    pid: int | None,
) -> None:
    """Show processes that were started with HAKMEM_STATS_PAGE=1: all, or PID.

    Memory by what it holds, rates, hit rates by size class, heaps, purges and budgets. Nothing is
    asked of the processes: what is shown is read from their statistics pages. It goes on until q or
    Ctrl-C.
    """
    if heaps and (metrics_path is not None or port is not None):
        raise UserError("--heaps is for tables: metrics have the heaps anyway", 2)
    modes = {"--once": once, "--prometheus": metrics_path, "--serve": port}
    chosen = [name for name, given in modes.items() if given]
    if len(chosen) > 1:
        raise UserError(f"{chosen[0]} and {chosen[1]} exclude each other", 2)
    if json_path is not None and not once:
        raise UserError("--json is for --once", 2)
    if port is None:
        refuse("without --serve no port is opened", {"address"})
    if metrics_path is not None or port is not None:
        refuse(f"{chosen[0]} looks once at each request", {"interval_s"})
    require_asked()
    if metrics_path is not None:
        from hakmem.processes import metrics

        write_text(metrics_path, metrics.text(pid), METRICS)
    elif port is not None:
        serve(address, port, pid)
    elif once:
        show_once(pid, interval_s, json_path, heaps)
    else:
        watch(pid, interval_s, heaps)


def serve(address: str, port: int, pid: int | None) -> None:
    from hakmem.processes import metrics

    if pid is not None:
        look_around(pid)
    try:
        server = Server(address, port, metrics.site(pid))
    except OSError as error:
        raise UserError(f"--serve: {address}:{port}: {error.strerror}") from error
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": POLL_S})
    stop = threading.Event()
    interruption.call(stop.set)  # before there is a thread that would outlive an interrupt
    click.echo(f"http://{address}:{port}/metrics", err=True)
    thread.start()
    stop.wait()
    server.stop()
    thread.join()


def show_once(pid: int | None, interval_s: float, json_path: Path | None, heaps: bool) -> None:
    before, unseen = look_around(pid)
    if before:
        time.sleep(interval_s)
        now, unseen = look_around(pid)
    if not before or not now:
        raise UserError("; ".join(remarks(unseen)) or no_page(unseen))
    found = compared(now, before, pid, heaps)
    console = make_console()
    console.print(picture(found, console.width, unseen))
    write_json(json_path, "top", document(found.rows, found.classes, found.heaps))


def remarks(unseen: Unseen) -> list[str]:
    """Of processes that have a page and no figures: it is not as the library writes it, or it has
    not been written yet."""
    return [
        f"{what}: process {some(pids, PROCESSES_NAMED)}"
        for what, pids in (
            ("page cannot be read", unseen.unreadable),
            ("page is still empty", unseen.empty),
        )
        if pids
    ]


def no_page(unseen: Unseen) -> str:
    """Why there is nothing to show."""
    if not unseen.barred:
        return NO_PAGE
    count = len(unseen.barred)
    told = f"{count} process{'' if count == 1 else 'es'} may not be read"
    way = how_permitted() if os.geteuid() == 0 else "be their user, or root"
    return f"{NO_PAGE}; {told}, with a page or without: {way}"


@dataclass(frozen=True)
class Found:
    """What two looks tell. Heaps take the place of size classes where they are asked for."""

    rows: list[Row]
    classes: list[ClassRow] = field(default_factory=list)
    heaps: list[HeapRow] | None = None
    heap_count: int = 0


def compared(now: dict[int, Look], before: dict[int, Look], pid: int | None, heaps: bool) -> Found:
    """Most resident memory first."""
    rows = [live_figures.row(look, before.get(each)) for each, look in now.items()]
    rows.sort(key=lambda each: -each.rss)
    if heaps:
        found = [one for each, look in now.items() for one in heap_rows(look, before.get(each))]
        return Found(rows, heaps=found, heap_count=sum(map(heap_count, now.values())))
    return Found(rows, class_rows(now[pid], before.get(pid)) if pid is not None else [])


def picture(found: Found, width: int, unseen: Unseen = NOTHING_UNSEEN) -> RenderableType:
    rows = found.rows
    parts: list[RenderableType] = [process_table(rows, width)] if rows else []
    if found.classes:
        parts.append(class_table(found.classes, rows[0].front_metrics))
    if found.heaps:
        parts.append(heap_table(found.heaps, found.heap_count))
    elif found.heaps is not None and rows:
        parts.append(NO_HEAPS)
    parts += remarks(unseen)
    return Group(*parts) if parts else no_page(unseen)


@contextmanager
def keyboard(is_shown: bool) -> Iterator[Callable[[float], bool]]:
    """A wait that q ends, and that tells so. Without a terminal, or in the background, where its
    input is somebody else's, a plain one."""
    terminal = sys.stdin.fileno() if is_shown and sys.stdin and sys.stdin.isatty() else -1
    before = termios.tcgetattr(terminal) if terminal >= 0 else []

    def ends_within(seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not is_ours(terminal):
                time.sleep(left)
                continue
            # Anew each time: a shell that has put us aside has its own way in between.
            tty.setcbreak(terminal, termios.TCSANOW)
            if select.select([terminal], [], [], left)[0] and ended_by(os.read(terminal, 64)):
                return True
        return False

    try:
        yield ends_within
    finally:
        if is_ours(terminal):
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def is_ours(terminal: int) -> bool:
    """Whether what is typed is for this process."""
    try:
        return terminal >= 0 and os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False


def ended_by(keys: bytes) -> bool:
    """q, or the end of the input, at which nobody is there any more."""
    return keys in (b"", b"\x04") or b"q" in keys.lower()


def watch(pid: int | None, interval_s: float, heaps: bool) -> None:
    """Until Ctrl-C or q, or the end of the one process."""
    console = make_console()
    before: dict[int, Look] = {}
    try:
        now, unseen = look_around(pid)
        with (
            Live(console=console, screen=console.is_terminal, auto_refresh=False) as view,
            keyboard(console.is_terminal) as ends_within,
        ):
            while True:
                found = compared(now, before, pid, heaps)
                show(console, view, picture(found, console.width, unseen))
                if is_lost(sys.stdout):
                    return
                if ends_within(interval_s):
                    return
                before = now
                now, unseen = look_around(pid)
    except KeyboardInterrupt:
        return
    except UserError:
        if pid is None or not before or not has_ended(seen_by(pid)):
            raise
        warn("top", f"process {pid} has ended")


def show(console: Console, view: Live, shown: RenderableType) -> None:
    if console.is_terminal:
        view.update(shown, refresh=True)
    else:
        console.print(shown)
