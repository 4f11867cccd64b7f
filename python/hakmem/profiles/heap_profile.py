"""The JSON heap profile that the library writes, as values that can be trusted to be whole.

A file can come from anywhere, and a process can answer anything: what has passed `parse` has every
member that the commands read, of its type and not negative.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from hakmem.errors import WRONG_USE, UserError
from hakmem.inputs import read_with_status
from hakmem.plain_text import parse_json, printable
from hakmem.processes.page_shape import (
    COUNT,
    NEWER,
    TEXT,
    TEXT_MOST,
    Shape,
    check,
    counts,
    many,
    refuse,
)
from hakmem.processes.process_memory import MAPPING
from hakmem.profiles import other_formats

VERSION = 1
# Of a file or an answer: the library's profile takes 1/128 of live memory at most, and stacks of
# 128 frames; of ten gigabytes it wrote less.
BYTES_MOST = 128 << 20
# Of what the text becomes when it is parsed: a list or an object takes so much more than the two
# characters that make one.
PARSED_MOST, LIST_BYTES, OBJECT_BYTES, ITEM_BYTES, TEXT_BYTES = 256 << 20, 64, 232, 16, 2
# Unix time until the year 2248: in nanoseconds it fits pprof's 64 bits.
MS_MOST, FIGURE_MOST = 1 << 43, (1 << 64) - 1
# A sentence.
LACKS_MOST = 500
STACKS_MOST, FRAMES_MOST, POINTS_MOST, MAPS_MOST = 1 << 20, 1024, 1 << 20, 1 << 20
LABELS_MOST = 1 << 20
AMOUNT = counts("bytes count bytes_variance count_variance")
LIFETIMES = 7
DOCUMENT = Shape({
    **counts("hakmem_heap_profile pid rate started_ms taken_ms"),
    "stopped_ms": NEWER,
    **dict.fromkeys(("version", "program"), TEXT),
    "samples": Shape(
        {**counts("taken live dropped stacks_dropped own_bytes"), "labels_evicted": NEWER}
    ),
    "live": Shape(AMOUNT),
    "total": Shape(AMOUNT),
    "peak": Shape(counts("bytes count at_ms")),
    "timeline": many(many(COUNT, 2), POINTS_MOST),
    "lifetime_bounds_ms": many(COUNT, LIFETIMES - 1),
    "maps": many(TEXT, MAPS_MOST),
})  # fmt: skip
STACK = Shape({
    "pcs": many(COUNT, FRAMES_MOST),
    "live": many(COUNT, 4),
    "total": many(COUNT, 4),
    "peak": many(COUNT, 2),
    "pinned": COUNT,
    "age_ms": many(COUNT, 2),
    "freed": many(COUNT, LIFETIMES),
    "label": NEWER,
    "heap": Shape(str, optional=True, newer=True),
})  # fmt: skip
WHOLE = {"live": 4, "total": 4, "peak": 2, "age_ms": 2, "freed": LIFETIMES}


@dataclass(frozen=True)
class Amount:
    """An estimate of bytes and objects, with the variances of both."""

    bytes: int = 0
    count: int = 0
    bytes_variance: int = 0
    count_variance: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.bytes + other.bytes,
            self.count + other.count,
            self.bytes_variance + other.bytes_variance,
            self.count_variance + other.count_variance,
        )


@dataclass(frozen=True)
class Mapped:
    """A range of addresses of the process, and the file that it was mapped from."""

    start: int
    end: int
    rights: str
    offset: int
    path: str


@dataclass(frozen=True)
class Figures:
    """All that is known of the blocks of one stack."""

    live: Amount
    total: Amount
    peak_bytes: int
    peak_count: int
    pinned: int
    age_ms: int
    oldest_ms: int
    freed: tuple[int, ...]

    def __add__(self, other: Figures) -> Figures:
        count = self.live.count + other.live.count
        ages = self.age_ms * self.live.count + other.age_ms * other.live.count
        return Figures(
            self.live + other.live,
            self.total + other.total,
            self.peak_bytes + other.peak_bytes,
            self.peak_count + other.peak_count,
            self.pinned + other.pinned,
            round(ages / count) if count else 0,
            max(self.oldest_ms, other.oldest_ms),
            tuple(a + b for a, b in zip(self.freed, other.freed)),
        )


@dataclass(frozen=True)
class Stack:
    """Return addresses, the innermost first; the label of the threads that allocated, 0: none; the
    name of the heaps that the blocks are in, None: the main heap."""

    pcs: tuple[int, ...]
    figures: Figures
    label: int = 0
    heap: str | None = None


@dataclass(frozen=True)
class HeapProfile:
    pid: int
    program: str
    version: str
    rate: int
    started_ms: int
    taken_ms: int
    stopped_ms: int
    samples: Mapping[str, int]
    live: Amount
    total: Amount
    peak_bytes: int
    peak_count: int
    peak_ms: int
    timeline: tuple[tuple[int, int], ...]
    bounds_ms: tuple[int, ...]
    stacks: tuple[Stack, ...]
    maps: tuple[Mapped, ...]
    text: bytes
    labels: Mapping[int, str] = field(default_factory=dict)
    # What the format of the file that it was read from does not tell.
    lacks: str = ""
    # Of the process, where that is known: its file may be one that several names lead to.
    title: str = ""
    # The user who wrote the file, who chose what it names; None for a process's answer.
    owner: int | None = None

    @property
    def name(self) -> str:
        return self.title or Path(self.program).name or "program"

    @property
    def milliseconds(self) -> int:
        return max(0, (self.stopped_ms or self.taken_ms) - self.started_ms)

    @property
    def seconds(self) -> float:
        return self.milliseconds / 1000

    @property
    def since(self) -> str:
        """Of what time the figures are: of what was allocated then."""
        begun, ended = (
            datetime.fromtimestamp(min(ms, 1 << 47) / 1000 % (1 << 37), timezone.utc)
            for ms in (self.started_ms, self.stopped_ms)
        )
        until = f" until {ended:%Y-%m-%d %H:%M:%S}" if self.stopped_ms else ""
        return f"{begun:%Y-%m-%d %H:%M:%S}{until} UTC"

    @property
    def known(self) -> str:
        return f"of what was allocated since {self.since}"


def known_of_both(before: HeapProfile, after: HeapProfile) -> str:
    if before.since == after.since:
        return after.known
    return f"before: {before.known}; after: {after.known}"


def read_file(path: Path) -> HeapProfile:
    """Of any format that the library writes: its contents tell which."""
    data, status = read_with_status(path, BYTES_MOST)
    try:
        other = other_formats.document_of(data, path, round(status.st_mtime * 1000))
        found = parse(data if other is None else json.dumps(other).encode())
        return replace(found, owner=status.st_uid)
    except ValueError as error:
        told = f"{path} is no heap profile of hakmem: {printable(str(error))}"
        raise UserError(told, WRONG_USE) from error


def parse(text: bytes) -> HeapProfile:
    """ValueError says what is wrong."""
    return of_document(load(text), text)


def of_document(document: dict, text: bytes) -> HeapProfile:
    check(document, DOCUMENT, "it")
    if document["hakmem_heap_profile"] != VERSION:
        raise ValueError(
            f"it is of version {document['hakmem_heap_profile']}, this command reads {VERSION}"
        )
    if not isinstance(document.get("stacks"), list) or len(document["stacks"]) > STACKS_MOST:
        raise ValueError(f"stacks is no list of at most {STACKS_MOST}")
    check_figures(document)
    peak = document["peak"]
    return HeapProfile(
        **{name: document[name] for name in ("pid", "rate", "started_ms", "taken_ms", "samples")},
        program=printable(document["program"]),
        version=printable(document["version"]),
        stopped_ms=document["stopped_ms"] or 0,
        live=amount_of(document["live"]),
        total=amount_of(document["total"]),
        peak_bytes=peak["bytes"],
        peak_count=peak["count"],
        peak_ms=peak["at_ms"],
        timeline=tuple(pair(point) for point in document["timeline"]),
        bounds_ms=tuple(document["lifetime_bounds_ms"]),
        stacks=tuple(stack_of(one) for one in document["stacks"]),
        maps=tuple(found for line in document["maps"] if (found := mapped(line))),
        text=text,
        labels=labels_of(document.get("labels", [])),
        lacks=printable(lacks[:LACKS_MOST])
        if isinstance(lacks := document.get("lacks"), str)
        else "",
    )


def check_figures(document: Mapping) -> None:
    """What is of the profile as a whole fits what it is written to."""
    peak, bounds = document["peak"], document["lifetime_bounds_ms"]
    times = [document[name] or 0 for name in ("started_ms", "taken_ms", "stopped_ms")]
    times += [peak["at_ms"], *bounds, *(point[0] for point in document["timeline"] if point)]
    if max(times) > MS_MOST:
        raise ValueError("a time is out of range")
    figures = [document["pid"], document["rate"], peak["bytes"], peak["count"]]
    figures += document["samples"].values()
    figures += [point[-1] for point in document["timeline"] if point]
    figures += [document[name][part] for name in ("live", "total") for part in ("bytes", "count")]
    require_figures(figures)


def require_figures(figures: Sequence[object]) -> None:
    if any(isinstance(one, int) and one > FIGURE_MOST for one in figures):
        raise ValueError("a figure is out of range")


def labels_of(given: object) -> dict[int, str]:
    if not isinstance(given, list) or len(given) > LABELS_MOST:
        raise ValueError(f"labels is no list of at most {LABELS_MOST}")
    for one in given:
        if not isinstance(one, list) or [type(each) for each in one] != [int, str]:
            raise ValueError("one of labels is no number with a name")
        if len(one[1]) > TEXT_MOST:
            raise ValueError(f"one of labels is longer than {TEXT_MOST} characters")
    return {number: printable(name) for number, name in given}


def load(text: bytes) -> dict:
    if len(text) > BYTES_MOST:
        raise ValueError(f"it is larger than {BYTES_MOST >> 20} MB")
    parsed = (
        TEXT_BYTES * len(text) + LIST_BYTES * text.count(b"[") + OBJECT_BYTES * text.count(b"{")
        + ITEM_BYTES * text.count(b",")
    )  # fmt: skip
    if parsed > PARSED_MOST:
        raise ValueError(f"it would take more than {PARSED_MOST >> 20} MB to read")
    document = parse_json(text, parse_constant=refuse, parse_int=natural)
    if not isinstance(document, dict) or "hakmem_heap_profile" not in document:
        raise ValueError("it has no hakmem_heap_profile")
    return document


def natural(text: str) -> int:
    """A number as C can count: a variance may pass 64 bits, nothing is negative."""
    if len(text) > 40 or text.startswith("-"):
        raise ValueError("a figure is out of range")
    return int(text)


def amount_of(figures: Mapping[str, int]) -> Amount:
    return Amount(**{name: figures[name] for name in AMOUNT})


def pair(point: Sequence[int]) -> tuple[int, int]:
    if len(point) != 2:
        raise ValueError("a point of the timeline is no pair")
    return point[0], point[1]


def stack_of(one: Mapping) -> Stack:
    check(one, STACK, "one of stacks")
    for name, length in WHOLE.items():
        if len(one[name]) != length:
            raise ValueError(f"{name} of a stack has {len(one[name])} figures, not {length}")
    require_figures((*one["pcs"], *one["live"][:2], *one["total"][:2], *one["peak"], one["pinned"],
                     *one["freed"], one["label"]))  # fmt: skip
    if max(one["age_ms"]) > MS_MOST:
        raise ValueError("a time is out of range")
    live, total = Amount(*one["live"]), Amount(*one["total"])
    times = (*one["age_ms"], tuple(one["freed"]))
    figures = Figures(live, total, *one["peak"], one["pinned"], *times)
    heap = one["heap"] if one["heap"] is None else printable(one["heap"])
    return Stack(tuple(one["pcs"]), figures, one["label"] or 0, heap)


def mapped(line: str) -> Mapped | None:
    found = MAPPING.match(line)
    if found is None:
        return None
    start, end, offset = (int(found[name], 16) for name in ("start", "end", "offset"))
    if max(start, end, offset) > FIGURE_MOST:
        return None
    return Mapped(start, end, found["rights"], offset, printable(found["path"]))
