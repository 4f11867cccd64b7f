"""Heap profiles of one running process over HTTP, as programs in Go serve theirs.

Only on the loopback address, and only to the user who serves them, to root, and to whom that user
lets in (web.py). When the process ends, requests are answered with 503.
"""

from __future__ import annotations

import math
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import suppress
from html import escape
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from hakmem.errors import UserError
from hakmem.output import report
from hakmem.plain_text import printable
from hakmem.processes import metrics, stats_page
from hakmem.processes.web import Answer, Refused, Request
from hakmem.profiles import outside, profile_html, profile_page, profile_pprof
from hakmem.profiles.heap_profile import HeapProfile
from hakmem.profiles.profile_sites import Named, named
from hakmem.profiles.symbols import Symboliser

# Each holds a thread and what it compares with.
WAITING_MOST = 8
SECONDS_MOST = 3600.0
PPROF_TYPE, HTML_TYPE = "application/octet-stream", "text/html; charset=utf-8"
ICON_TYPE = "image/svg+xml"
KINDS = {
    "/debug/pprof/heap": profile_pprof.IN_USE,
    "/debug/pprof/allocs": profile_pprof.ALLOCATED,
}
INDEX_STYLE = """
ul.links { list-style: none; padding: 0; }
ul.links li { margin: .6rem 0; }
ul.links code { display: table; }
"""
INDEX = (
    ("/report", "Report", "flame graph and tables of now"),
    ("/debug/pprof/heap", "Live memory", "for pprof"),
    ("/debug/pprof/heap?seconds=10", "Live memory, 10 seconds", "how it changes"),
    ("/debug/pprof/allocs", "Allocations", "all since the start, for pprof"),
    ("/debug/pprof/allocs?seconds=10", "Allocations, 10 seconds", "what is allocated meanwhile"),
    ("/metrics", "Metrics", "figures for Prometheus"),
)


class Source:
    """One process: its profile, with names. Several requests may come at once."""

    def __init__(self, pid: int, asked: outside.Source) -> None:
        self.pid, self.asked = pid, asked
        first = asked.first(profile_page.PATIENCE_S, False)
        self.name = first.name
        self.until_end = profile_page.end_of(pid)
        self.symboliser = Symboliser(first, pid)
        self.lock = threading.Lock()
        # Of requests that wait for seconds to pass.
        self.waiting = threading.Semaphore(WAITING_MOST)
        # The figures of the statistics page, where the process has one.
        self.page = None
        with suppress(OSError, UserError):
            if stats_page.page_file(pid) is not None:
                self.page = metrics.Collector(pid)

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

    def wait(self, seconds: float, request: Request) -> None:
        if not self.waiting.acquire(blocking=False):
            told = f"{WAITING_MOST} requests wait already"
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, told)
        try:
            if request.wait(seconds, self.until_end) is not None:
                raise self.ended()
        finally:
            self.waiting.release()

    def ended(self) -> Refused:
        return Refused(HTTPStatus.SERVICE_UNAVAILABLE, f"process {self.pid} has ended")

    def refused(self, error: UserError) -> Refused:
        if self.has_ended:
            return self.ended()
        return Refused(HTTPStatus.SERVICE_UNAVAILABLE, error.format_message())

    def pprof(self, default: str, seconds: float | None, request: Request) -> bytes:
        before = self.take() if seconds is not None else None
        if before is None:
            return profile_pprof.of_profile(self.name_all(self.take()), default)
        first = self.name_all(before)
        self.wait(seconds, request)
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
            (
                "labels_evicted",
                "Stacks that lost their label for lack of room.",
                samples["labels_evicted"] or 0,
            ),
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


class Site:
    """What each path has."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def answer(self, request: Request) -> Answer:
        source = self.source
        parts = urllib.parse.urlsplit(request.path)
        path = parts.path.rstrip("/") or "/"
        given = values_of(parts.query, ("seconds",) if path in KINDS else ())
        if path in KINDS:
            data = source.pprof(KINDS[path], seconds_of(given.get("seconds")), request)
            return Answer(data, PPROF_TYPE, f"{path.rpartition('/')[2]}.pb.gz")
        if path == "/metrics":
            return Answer(*source.metrics(request.accept))
        if path == "/report":
            return Answer(source.report(), HTML_TYPE)
        if path == "/favicon.ico":
            # Browsers ask for it beside an answer that is no page.
            return Answer(report.ICON.encode(), ICON_TYPE)
        if path in ("/", "/debug/pprof"):
            if source.has_ended:
                raise source.ended()
            return Answer(index(source, request.host), HTML_TYPE)
        raise Refused(HTTPStatus.NOT_FOUND, "there is / , /debug/pprof/heap, /debug/pprof/allocs, "
                      "/metrics and /report")  # fmt: skip


def index(source: Source, host: str) -> bytes:
    rows = "".join(
        f'<li><a href="{path}">{title}</a>: {text} <code>{path}</code></li>'
        for path, title, text in INDEX
    )
    command = escape(f"pprof -http=: http://{host}/debug/pprof/heap")
    page = report.document(
        f"Heap of {source.name} ({source.pid})",
        [f'<ul class="links">{rows}</ul>', f"<p><code>{command}</code></p>"],
        style=INDEX_STYLE,
    )
    return page.encode()
