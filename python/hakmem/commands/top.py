"""`hakmem top`: live figures of processes under hakmem, for eyes, scripts and Prometheus."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live

from hakmem.destinations import output_option
from hakmem.documents import kind, write_json, write_text
from hakmem.errors import UserError, warn
from hakmem.extras import NEEDED, PROMETHEUS, needing, require_asked
from hakmem.options import WholeRange, json_option, number_option, option, pid_of, refuse
from hakmem.output import live_view
from hakmem.output.tables import make_console
from hakmem.plain_text import some
from hakmem.processes.live_figures import (
    ClassRow,
    HeapRow,
    Look,
    Row,
    Unseen,
    class_rows,
    heap_count,
    heap_rows,
    look_around,
    row,
)
from hakmem.processes.process_memory import how_permitted
from hakmem.running import interruption
from hakmem.running.threads import has_ended, seen_by
from hakmem.streams import is_lost

PROCESSES_NAMED = 10
NOTHING_UNSEEN = Unseen()
NO_HEAPS = "no heaps (hakmem/heap.h)"
NO_PAGE = "no process has a statistics page: start one with HAKMEM_STATS_PAGE=1"


METRICS = kind("metrics file", rb"# (HELP hakmem|TYPE hakmem|EOF)")


@click.command(short_help="Live figures of processes; metrics for Prometheus.")
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
@click.argument("pid", required=False, type=pid_of)
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
    asked of the processes: what is shown is read from their statistics pages.
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
    from prometheus_client import start_http_server

    from hakmem.processes import metrics

    if pid is not None:
        look_around(pid)
    try:
        server, thread = start_http_server(port, address, metrics.registry(pid))
    except OSError as error:
        raise UserError(f"--serve: {address}:{port}: {error.strerror}") from error
    click.echo(f"http://{address}:{port}/metrics", err=True)
    stop = threading.Event()
    interruption.call(stop.set)
    stop.wait()
    server.shutdown()
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
    document = live_view.document(found.rows, found.classes, found.heaps)
    write_json(json_path, "top", document)


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
    rows = [row(look, before.get(each)) for each, look in now.items()]
    rows.sort(key=lambda each: -each.rss)
    if heaps:
        found = [one for each, look in now.items() for one in heap_rows(look, before.get(each))]
        return Found(rows, heaps=found, heap_count=sum(map(heap_count, now.values())))
    return Found(rows, class_rows(now[pid], before.get(pid)) if pid is not None else [])


def picture(found: Found, width: int, unseen: Unseen = NOTHING_UNSEEN) -> RenderableType:
    rows = found.rows
    parts: list[RenderableType] = [live_view.process_table(rows, width)] if rows else []
    if found.classes:
        parts.append(live_view.class_table(found.classes, rows[0].front_metrics))
    if found.heaps:
        parts.append(live_view.heap_table(found.heaps, found.heap_count))
    elif found.heaps is not None and rows:
        parts.append(NO_HEAPS)
    parts += remarks(unseen)
    return Group(*parts) if parts else no_page(unseen)


def watch(pid: int | None, interval_s: float, heaps: bool) -> None:
    """Until Ctrl-C, or the end of the one process."""
    console = make_console()
    before: dict[int, Look] = {}
    try:
        now, unseen = look_around(pid)
        with Live(console=console, screen=console.is_terminal, auto_refresh=False) as view:
            while True:
                found = compared(now, before, pid, heaps)
                show(console, view, picture(found, console.width, unseen))
                if is_lost(sys.stdout):
                    return
                time.sleep(interval_s)
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
