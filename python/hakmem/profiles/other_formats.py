"""Heap profiles in the other formats that the library writes (src/report/heap_profile.c, pprof.c):
as far as they tell it, the JSON document that it would have written.

What a format does not tell is 0 there, and `lacks` says so. pprof's message is read here without a
library for it: a file after a kill must be readable where nothing else is installed.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hakmem.processes.process_memory import MAPPING

PPROF_TEXT, JEMALLOC_TEXT, GZIP, PROTO = (
    b"heap profile: ",
    b"heap_v2/",
    b"\x1f\x8b",
    b"2\x002\x05label",
)
# The head of a text, and a stack of pprof's and of jemalloc's.
COUNTS = rb"(\d+): (\d+) \[(\d+): (\d+)\]"
STACK = re.compile(rb" *" + COUNTS + rb" @((?: 0x[0-9a-f]+)*)$")
ADDRESSES, SUMS = re.compile(rb"@((?: 0x[0-9a-f]+)*)$"), re.compile(rb" *t\*: " + COUNTS + rb"$")
JSON_HEAD = re.compile(rb'\s*\{\s*"hakmem_heap_profile"')
SINCE = re.compile(rb"since (\d+)(?: and until (\d+))? \(ms, Unix time\)")
# A comment of a message that is a difference, which may have no figure below 0, or none at all.
DIFFERENCE = "the difference of two profiles"
NUMBERED = re.compile(r"\.(\d+)\.\d+\.[a-z]+$")
MAPPINGS = b"MAPPED_LIBRARIES:"
LIFETIME_BOUNDS_MS = (1, 10, 100, 1000, 10_000, 100_000)
# In the order of a document's `freed`.
FREED = ("freed_1ms", "freed_10ms", "freed_100ms", "freed_1s", "freed_10s", "freed_100s",
         "freed_later")  # fmt: skip
MESSAGE_LACKS = "the file's format has no ages, and not the moment of the peak"
TEXT_LACKS = "the file's format has no peaks, pinned bytes, ages, labels and heaps"
USUAL_RATE, NO_RATE = 512 << 10, "; its rate is taken to be the default, 512 KB"
VARINT_BYTES, DIGITS_MOST = 10, 19
# What a few bytes become: of an unpacked file, of its fields, of a sample's stack, and of all
# stacks, by what one and its addresses take. The library's largest profiles keep well below
# (heap_profile.py).
BYTES_MOST, FIELDS_MOST, NUMBERS_BYTES_MOST = 128 << 20, 2 << 20, 1 << 14
STACKS_BYTES_MOST, STACK_BYTES, ADDRESS_BYTES = 256 << 20, 3000, 40
LINES_MOST = 1 << 18
# Of the characters of mappings, heaps and labels: a long name is one in the file, and one for each
# of whatever refers to it in the document.
NAMES_MOST = 32 << 20


@dataclass
class Told:
    """What a file tells. A stack: addresses, live and total count and bytes, the rest by name."""

    rate: int = 0
    since_ms: int = 0
    until_ms: int = 0
    taken_ms: int = 0
    program: str = ""
    lacks: str = ""
    stacks: list[Stack] = field(default_factory=list)
    maps: list[str] = field(default_factory=list)
    labels: dict[int, str] = field(default_factory=dict)
    stacks_bytes: int = 0
    names_room: int = NAMES_MOST

    def name(self, text: str) -> str:
        self.names_room -= len(text)
        if self.names_room < 0:
            raise ValueError(f"its names would take more than {NAMES_MOST >> 20} MB")
        return text

    def add(self, stack: Stack) -> None:
        self.stacks.append(stack)
        self.stacks_bytes += STACK_BYTES + ADDRESS_BYTES * len(stack.pcs)
        if self.stacks_bytes > STACKS_BYTES_MOST:
            raise ValueError(f"its stacks would take more than {STACKS_BYTES_MOST >> 20} MB")


@dataclass
class Stack:
    pcs: list[int]
    live: tuple[int, int]
    total: tuple[int, int]
    peak: tuple[int, int] = (0, 0)
    pinned: int = 0
    freed: tuple[int, ...] = (0,) * len(FREED)
    label: int = 0
    heap: str | None = None


def is_profile(head: bytes) -> bool:
    """Whether a file that begins so can be one of these, or the JSON that has all."""
    marks = (PPROF_TEXT, JEMALLOC_TEXT, GZIP, PROTO)
    return head.startswith(marks) or JSON_HEAD.match(head) is not None


def document_of(data: bytes, path: Path, written_ms: int) -> dict | None:
    """None for another format; ValueError says what is wrong with one of these."""
    if data.startswith(GZIP):
        data = unpacked(data)
    if JSON_HEAD.match(data):
        return None
    if data.startswith(PPROF_TEXT):
        told = of_text(data, jemalloc=False)
    elif data.startswith(JEMALLOC_TEXT):
        told = of_text(data, jemalloc=True)
    elif data.startswith((PROTO, b"\n")):
        told = of_message(data)
    else:
        return None
    number = NUMBERED.search(path.name)
    return document(told, int(number[1]) if number else 0, written_ms)


def unpacked(data: bytes) -> bytes:
    try:
        inflate = zlib.decompressobj(wbits=31)
        found = inflate.decompress(data, BYTES_MOST)
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked: {error}") from error
    if inflate.unconsumed_tail:
        raise ValueError(f"it is larger than {BYTES_MOST >> 20} MB")
    if not inflate.eof:
        raise ValueError("it ends in the middle")
    return found


def of_text(data: bytes, jemalloc: bool) -> Told:
    # Not all at once: an empty line takes eight bytes of a list.
    lines = (line.removesuffix(b"\n") for line in io.BytesIO(data))
    head = next(lines)
    rate = head.removeprefix(JEMALLOC_TEXT) if jemalloc else b"0"
    if not rate.isdigit() or len(rate) > DIGITS_MOST:
        raise ValueError("its first line has no rate")
    told = Told(rate=int(rate) or USUAL_RATE, lacks=TEXT_LACKS + ("" if jemalloc else NO_RATE))
    pcs: list[int] | None = None
    for line in filter(None, lines):
        if line == MAPPINGS:
            found_maps = itertools.islice((text for text in lines if text), LINES_MOST)
            told.maps = [told.name(text.decode(errors="replace")) for text in found_maps]
            break
        if since := SINCE.search(line):
            told.since_ms, told.until_ms = (int(ms[-DIGITS_MOST:] or 0) for ms in since.groups(b""))
        elif jemalloc and (found := ADDRESSES.match(line)):
            pcs = addresses(found[1])
        elif jemalloc and pcs is not None and (found := SUMS.match(line)):
            told.add(Stack(pcs, *unscaled(pair(found, 1), pair(found, 3), told.rate)))
            pcs = None
        elif not jemalloc and (found := STACK.match(line)):
            told.add(Stack(addresses(found[5]), pair(found, 1), pair(found, 3)))
        elif not jemalloc:
            raise ValueError(f"'{line[:40].decode(errors='replace')}' is no stack")
    else:
        raise ValueError("it ends in the middle")
    return told


def pair(found: re.Match, first: int) -> tuple[int, int]:
    if max(len(found[first]), len(found[first + 1])) > DIGITS_MOST:
        raise ValueError("a figure is out of range")
    return int(found[first]), int(found[first + 1])


def addresses(text: bytes) -> list[int]:
    found = [int(word, 16) for word in text.split()]
    if max(found, default=0) >> 64:
        raise ValueError("an address is out of range")
    return found


def share_of(count: int, size: int, rate: int) -> float:
    """Of blocks of that mean size, those that are sampled."""
    return -math.expm1(-size / count / rate) if count and size and rate else 1.0


def unscaled(*pairs_and_rate) -> Iterator[tuple[int, int]]:
    """jemalloc's counts are of samples (src/report/heap_profile.c, counts)."""
    *pairs, rate = pairs_and_rate
    for count, size in pairs:
        share = share_of(count, size, rate)
        yield round(count / share), round(size / share)


# --- pprof's message ---


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The number of each field, and its number or its bytes."""
    place = 0
    while place < len(data):
        key, place = varint(data, place)
        if key & 7 == 0:
            value, place = varint(data, place)
        elif key & 7 == 2:
            size, place = varint(data, place)
            value = data[place : place + size]
            place += size
            if place > len(data):
                raise ValueError("it ends in the middle")
        else:
            raise ValueError("it has a field that no heap profile has")
        yield key >> 3, value


def varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(VARINT_BYTES):
        if place >= len(data):
            raise ValueError("it ends in the middle")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value & (1 << 64) - 1, place
    raise ValueError("it has a number without an end")


def numbers(value: int | bytes) -> list[int]:
    """A list of them, packed or one of several fields."""
    if isinstance(value, int):
        return [value]
    if len(value) > NUMBERS_BYTES_MOST:
        raise ValueError("one of its lists is too long")
    found, place = [], 0
    while place < len(value):
        number, place = varint(value, place)
        found.append(number)
    return found


def gathered(value: int | bytes) -> dict[int, list[int | bytes]]:
    found: dict[int, list] = {}
    if isinstance(value, bytes):
        for count, (number, each) in enumerate(fields(value)):
            if count > FIELDS_MOST:
                raise ValueError(f"it has more than {FIELDS_MOST} fields")
            found.setdefault(number, []).append(each)
    return found


def first(message: dict[int, list], number: int) -> int:
    value = message.get(number, [0])[0]
    return value if isinstance(value, int) else 0


def of_message(data: bytes) -> Told:
    whole = gathered(data)
    strings = [s.decode(errors="replace") if isinstance(s, bytes) else "" for s in whole.get(6, [])]

    def text(number: int) -> str:
        return strings[number] if number < len(strings) else ""

    types = [text(first(gathered(each), 1)) for each in whole.get(1, [])]
    if "inuse_space" not in types and "alloc_space" not in types:
        raise ValueError("it has neither inuse_space nor alloc_space")
    maps = map(gathered, itertools.islice(whole.get(3, []), LINES_MOST))
    places = {first(one, 1): first(one, 3) for one in map(gathered, whole.get(4, []))}
    taken_ms, took_ms = first(whole, 9) // 1_000_000, first(whole, 10) // 1_000_000
    told = Told(rate=first(whole, 12), taken_ms=taken_ms, since_ms=max(0, taken_ms - took_ms),
                lacks=MESSAGE_LACKS)  # fmt: skip
    for comment in (text(number) for value in whole.get(13, []) for number in numbers(value)):
        if DIFFERENCE in comment:
            raise ValueError(f"it is {DIFFERENCE}")
        if since := SINCE.search(comment.encode()):
            told.since_ms, told.until_ms = (int(ms[-DIGITS_MOST:] or 0) for ms in since.groups(b""))
    for one in maps:
        path = text(first(one, 5))
        told.program = told.program if told.maps else path
        begin = f"{first(one, 2):x}-{first(one, 3):x} r-xp {first(one, 4):08x} 00:00 0 "
        told.maps.append(told.name(begin + path))
    for sample in map(gathered, whole.get(2, [])):
        told.add(stack_of(sample, types, places, text, told))
    return told


def stack_of(sample: dict, types: list[str], places: dict[int, int], text, told: Told) -> Stack:
    """The address of a place is in the call, one before where it returns to."""
    ids = [number for value in sample.get(1, []) for number in numbers(value)]
    figures = dict(zip(types, (n for value in sample.get(2, []) for n in numbers(value))))
    pcs = [places.get(one, 0) + 1 for one in ids]
    if pcs and max(pcs) == 1:
        raise ValueError("its places have no addresses")
    if any(value >> 63 for value in figures.values()):
        raise ValueError("its figures are below 0")
    known = {text(first(one, 1)): one for one in map(gathered, sample.get(3, []))}
    label = first(known["label"], 3) if "label" in known else 0
    if "label_name" in known and label not in told.labels:
        told.labels[label] = told.name(text(first(known["label_name"], 2)))
    heap = told.name(text(first(known["heap"], 2))) if "heap" in known else None

    def both(name: str) -> tuple[int, int]:
        return figures.get(f"{name}_objects", 0), figures.get(f"{name}_space", 0)

    return Stack(
        pcs, both("inuse"), both("alloc"), both("peak"), figures.get("pinned_space", 0),
        tuple(figures.get(name, 0) for name in FREED), label, "" if heap == "unnamed" else heap,
    )  # fmt: skip


# --- the document ---


def amount(counted: tuple[int, int], rate: int) -> list[int]:
    """Bytes, blocks, and the variances of both as far as the mean size of the blocks tells them."""
    count, size = counted
    share = share_of(count, size, rate)
    of_count = count * (1 - share) / share
    mean = size / count if count else 0
    return [size, count, round(of_count * mean * mean), round(of_count)]


def document(told: Told, pid: int, written_ms: int) -> dict:
    mapped = (found for line in told.maps if (found := MAPPING.match(line)))
    programs = (m["path"] for m in mapped if "x" in m["rights"] and m["path"].startswith("/"))
    program = told.program or next(programs, "")
    stacks = []
    for one in told.stacks:
        made = {
            "pcs": one.pcs, "live": amount(one.live, told.rate),
            "total": amount(one.total, told.rate), "peak": [one.peak[1], one.peak[0]],
            "pinned": one.pinned, "age_ms": [0, 0], "freed": list(one.freed), "label": one.label,
        }  # fmt: skip
        stacks.append(made if one.heap is None else made | {"heap": one.heap})
    names = ("bytes", "count", "bytes_variance", "count_variance")
    sums = {
        name: dict(zip(names, map(sum, zip(*(each[name] for each in stacks)))))
        if stacks else dict.fromkeys(names, 0)
        for name in ("live", "total")
    }  # fmt: skip
    sampled = sum(n * share_of(n, size, told.rate) for n, size in (s.total for s in told.stacks))
    return {
        "hakmem_heap_profile": 1,
        "version": "",
        "pid": pid,
        "program": program,
        "rate": told.rate,
        "started_ms": told.since_ms,
        "stopped_ms": told.until_ms,
        "taken_ms": max(told.taken_ms or written_ms, told.since_ms),
        "samples": {"taken": round(sampled), "live": 0, "dropped": 0, "stacks_dropped": 0,
                    "own_bytes": 0},
        **sums,
        "peak": {"bytes": sum(s["peak"][0] for s in stacks),
                 "count": sum(s["peak"][1] for s in stacks), "at_ms": 0},
        "timeline": [],
        "lifetime_bounds_ms": list(LIFETIME_BOUNDS_MS),
        "stacks": stacks,
        "labels": [[number, name] for number, name in told.labels.items()],
        "maps": told.maps,
        **({"lacks": told.lacks} if told.lacks else {}),
    }  # fmt: skip
