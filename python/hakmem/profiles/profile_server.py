"""Heap profiles of one running process over HTTP, as programs in Go serve theirs.

Only on the loopback address, and only to who asks for it by that name: a page of another site, in a
browser here, gets nothing. When the process ends, requests are answered with 503.
"""

from __future__ import annotations

import math
import os
import select
import sys
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import suppress
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from hakmem.errors import UserError
from hakmem.plain_text import printable
from hakmem.processes import metrics, stats_page
from hakmem.profiles import outside, profile_html, profile_page, profile_pprof
from hakmem.profiles.heap_profile import HeapProfile
from hakmem.profiles.profile_sites import Named, named
from hakmem.profiles.symbols import Symboliser

ADDRESS = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost")
SECONDS_MOST = 3600.0
PPROF_TYPE, HTML_TYPE, TEXT_TYPE = (
    "application/octet-stream", "text/html; charset=utf-8", "text/plain; charset=utf-8",
)  # fmt: skip
KINDS = {
    "/debug/pprof/heap": profile_pprof.IN_USE,
    "/debug/pprof/allocs": profile_pprof.ALLOCATED,
}
INDEX = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<h1>{title}</h1><ul>
<li><a href="/report">Report</a>: flame graph and tables of now</li>
<li><a href="/debug/pprof/heap">/debug/pprof/heap</a>: what is live, for pprof;
<a href="/debug/pprof/heap?seconds=10">?seconds=10</a>: how it changes in 10 seconds</li>
<li><a href="/debug/pprof/allocs">/debug/pprof/allocs</a>: what was allocated;
<a href="/debug/pprof/allocs?seconds=10">?seconds=10</a>: in 10 seconds</li>
<li><a href="/metrics">/metrics</a>: figures for Prometheus</li></ul>
<p>go tool pprof http://{host}/debug/pprof/heap</p></html>
"""


class Refused(Exception):
    """A request that is answered with one line."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class Source:
    """One process: its profile, with names. Several requests may come at once."""

    def __init__(self, pid: int, asked: outside.Source) -> None:
        self.pid, self.asked = pid, asked
        first = asked.first(profile_page.PATIENCE_S, False)
        self.name = first.name
        self.until_end = profile_page.end_of(pid)
        self.symboliser = Symboliser(first, pid)
        self.lock = threading.Lock()
        self.stopped, self.stopping = os.pipe()
        # The figures of the statistics page, where the process has one.
        self.page = None
        with suppress(OSError, UserError):
            if stats_page.page_file(pid) is not None:
                self.page = metrics.Collector(pid)

    def stop(self) -> None:
        """Requests that wait are answered at once."""
        os.write(self.stopping, b".")

    @property
    def has_ended(self) -> bool:
        return profile_page.has_ended(self.until_end)

    def take(self) -> HeapProfile:
        if self.has_ended:
            raise self.ended()
        try:
            return self.asked.ask()
        except UserError as error:
            raise self.refused(error) from error

    def name_all(self, profile: HeapProfile) -> Named:
        with self.lock:
            self.symboliser.renew(profile)
            return named(profile, self.symboliser)

    def wait(self, seconds: float) -> None:
        if ready := select.select([self.until_end, self.stopped], [], [], seconds)[0]:
            stopped = Refused(HTTPStatus.SERVICE_UNAVAILABLE, "hakmem serve was stopped")
            raise self.ended() if self.until_end in ready else stopped

    def ended(self) -> Refused:
        return Refused(HTTPStatus.SERVICE_UNAVAILABLE, f"process {self.pid} has ended")

    def refused(self, error: UserError) -> Refused:
        if self.has_ended:
            return self.ended()
        return Refused(HTTPStatus.SERVICE_UNAVAILABLE, error.format_message())

    def pprof(self, default: str, seconds: float | None) -> bytes:
        before = self.take() if seconds is not None else None
        if before is None:
            return profile_pprof.of_profile(self.name_all(self.take()), default)
        first = self.name_all(before)
        self.wait(seconds)
        return profile_pprof.of_interval(first, self.name_all(self.take()), default)

    def report(self) -> bytes:
        return profile_html.of_profile(self.name_all(self.take())).encode()

    def metrics(self, accept: str) -> tuple[bytes, str]:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(ProfileCollector(self.take(), self.pid))
        if self.page is not None:
            registry.register(self.page)
        encode, kind = choose_encoder(accept)
        try:
            return encode(registry), kind
        except UserError as error:
            raise self.refused(error) from error


class ProfileCollector:
    """The profile's own figures."""

    def __init__(self, profile: HeapProfile, pid: int) -> None:
        self.profile, self.who = profile, [str(pid), profile.name]

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        profile, samples = self.profile, self.profile.samples
        gauges = (
            ("live_bytes", "Live bytes, estimated from samples.", profile.live.bytes),
            ("live_objects", "Live objects, estimated from samples.", profile.live.count),
            ("live_error_bytes", "Standard error of the live bytes.",
             math.sqrt(profile.live.bytes_variance)),
            ("peak_bytes", "Live bytes when they were highest.", profile.peak_bytes),
            ("rate_bytes", "Mean distance of the samples.", profile.rate),
            ("start_time_seconds", "Unix time since when blocks are known.",
             profile.started_ms / 1000),
            ("stop_time_seconds", "Unix time until when; 0: the profile is on.",
             profile.stopped_ms / 1000),
            ("samples_live", "Sampled blocks that are live.", samples["live"]),
            ("own_bytes", "Memory of the profiler.", samples["own_bytes"]),
        )  # fmt: skip
        counters = (
            ("allocated_bytes", "Bytes allocated, estimated.", profile.total.bytes),
            ("allocated_objects", "Objects allocated, estimated.", profile.total.count),
            ("samples", "Blocks sampled.", samples["taken"]),
            ("samples_dropped", "Samples dropped for lack of room.", samples["dropped"]),
            ("stacks_dropped", "Stacks dropped for lack of room.", samples["stacks_dropped"]),
            ("labels_evicted", "Stacks that lost their label for lack of room.",
             samples["labels_evicted"] or 0),
        )
        labels = list(metrics.PROCESS_LABELS)
        for family, figures in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, text, value in figures:
                one = family(f"hakmem_heap_profile_{name}", text, labels=labels)
                one.add_metric(self.who, value)
                yield one


def values_of(query: str, keys: Sequence[str]) -> dict[str, str]:
    """Of a request: whoever mistypes a key would take the answer for that to another question."""
    found: dict[str, str] = {}
    for key, value in urllib.parse.parse_qsl(query, keep_blank_values=True):
        if key not in keys:
            there = f"there is {', '.join(keys)}" if keys else "there are none here"
            raise Refused(HTTPStatus.BAD_REQUEST, f"no key '{printable(key)}': {there}")
        if key in found:
            raise Refused(HTTPStatus.BAD_REQUEST, f"{key} is given twice")
        found[key] = value
    return found


def seconds_of(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found <= SECONDS_MOST:
        raise Refused(
            HTTPStatus.BAD_REQUEST, f"seconds must be above 0 and at most {SECONDS_MOST:g}"
        )
    return found


class Handler(BaseHTTPRequestHandler):
    server: Server
    # Of a connection that says nothing.
    timeout = 10

    def do_GET(self) -> None:
        try:
            body, kind, file_name = self.answer()
            status = HTTPStatus.OK
        except Refused as refused:
            status, kind, file_name = refused.status, TEXT_TYPE, ""
            body = f"{refused}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        if file_name:
            self.send_header("Content-Disposition", f'attachment; filename="{file_name}"')
        self.end_headers()
        self.wfile.write(body)

    def answer(self) -> tuple[bytes, str, str]:
        """Body, type, and the name to save it under."""
        host = self.headers.get("Host", "")
        if host.rpartition(":")[0] not in NAMES and host not in NAMES:
            raise Refused(HTTPStatus.FORBIDDEN, f"ask for it as {' or '.join(NAMES)}")
        source = self.server.source
        parts = urllib.parse.urlsplit(self.path)
        path = parts.path.rstrip("/") or "/"
        given = values_of(parts.query, ("seconds",) if path in KINDS else ())
        if path in KINDS:
            data = source.pprof(KINDS[path], seconds_of(given.get("seconds")))
            return data, PPROF_TYPE, f"{path.rpartition('/')[2]}.pb.gz"
        if path == "/metrics":
            return *source.metrics(self.headers.get("Accept", "")), ""
        if path == "/report":
            return source.report(), HTML_TYPE, ""
        if path in ("/", "/debug/pprof"):
            if source.has_ended:
                raise source.ended()
            return index(source, host), HTML_TYPE, ""
        raise Refused(HTTPStatus.NOT_FOUND, "there is / , /debug/pprof/heap, /debug/pprof/allocs, "
                      "/metrics and /report")  # fmt: skip

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal for each request."""


def index(source: Source, host: str) -> bytes:
    title = escape(f"Heap of {source.name} ({source.pid})")
    return INDEX.format(title=title, host=escape(host)).encode()


class Server(ThreadingHTTPServer):
    # The end waits for answers that are on their way.
    daemon_threads = False

    def __init__(self, port: int, source: Source) -> None:
        self.source = source
        super().__init__((ADDRESS, port), Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asked has gone: nothing to tell."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)
