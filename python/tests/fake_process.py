"""A process with a statistics page, and memory to fit it, but without hakmem.

Run as a program it prints a line when its page is ready, and obeys the words on its input: `free`
frees a run, `grow` counts on, `write N` rewrites the page N times as fast as it can, `odd` leaves
it as in the middle of a write, `empty` without figures, `unset` with size classes of no size,
`spoil KIND` writes a page as nobody but a stranger would. Its layout is
docs/figures.md's, written down once more.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import struct
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # it is started without site-packages
from hakmem.processes.figures_table import FIGURES

PAGE, SPAN, HUGE_PAGE = 4096, 65536, 2 << 20
AREAS = (4096, 1 << 20)
MAP_BYTES = 64
CLASS, BLOCK = 5, 96
STATES = ("live", "cached", "depots", "free", "rest", "never_allocated")
TABLE_SPANS, SPANS = 2, 62
# What the map says of the first spans, and how many pages of each are written to.
LAYOUT = [(CLASS, 10)] * 4 + [
    (0x80, 16),
    (0x81, 16),
    (0x81, 16),
    (0x82, 16),
    (0xFE, 5),
    (0xFF, 1),
    (0x83, 16),
    (0x83, 16),
    (0x83, 10),
]
TABLE_PAGES, HUGE_PAGES, KEPT_PAGES, METADATA_PAGES = 3, 700, 20, 7
ASKED = 2 * SPAN + 100


HEAPS_LIVE = 150_000
# Before its first page.
PURGES = 3
# A name is any text.
HEAP_NAME = 'a "b"\\ \x1b[2J[red]\né'


def heap(number: int, name: str, live: int, **more) -> dict:
    return {
        "name": name, "id": number, "parent": 0, "live": live, "peak": 2 * live,
        "blocks": live // 100, "held": SPAN, "limit": 0, "total": live, "refused": 0,
        "requests": 100,
    } | more  # fmt: skip


class Memory:
    """Private memory whose first pages are written to."""

    def __init__(self, size: int) -> None:
        self.map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.map.madvise(mmap.MADV_NOHUGEPAGE)
        self.size = size
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def touch(self, offset: int, pages: int) -> None:
        for page in range(pages):
            self.map[offset + page * PAGE] = 1


class Fake:
    def __init__(self) -> None:
        self.region, self.huge = Memory((TABLE_SPANS + SPANS) * SPAN), Memory(3 << 20)
        self.kept, self.metadata = Memory(1 << 20), Memory(SPAN)
        self.region.touch(0, TABLE_PAGES)
        for number, (_, pages) in enumerate(LAYOUT):
            self.region.touch((TABLE_SPANS + number) * SPAN, pages)
        # Read and never written to: a page of zeros that is not resident.
        assert self.region.map[(TABLE_SPANS + SPANS - 1) * SPAN] == 0
        self.huge.touch(0, HUGE_PAGES)
        self.kept.touch(0, KEPT_PAGES)
        self.metadata.touch(0, METADATA_PAGES)
        self.codes = bytearray([code for code, _ in LAYOUT] + [0xFF] * (SPANS - len(LAYOUT)))
        self.descriptor = os.memfd_create("hakmem-stats", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, 4 << 20)
        self.page = mmap.mmap(self.descriptor, 4 << 20)
        self.written, self.rounds, self.is_older = 0, 0, False
        self.is_unset = False

    def fill_huge_pages(self) -> None:
        """Another region, of huge pages, all but one span of them clean."""
        self.region = Memory((TABLE_SPANS + SPANS) * SPAN)
        self.region.map.madvise(mmap.MADV_HUGEPAGE)
        # The first whole huge page behind the tables.
        behind = self.region.address + TABLE_SPANS * SPAN
        inside = -(-behind // HUGE_PAGE) * HUGE_PAGE - self.region.address
        self.region.touch(inside, 1)
        self.codes = bytearray([0xFF] * SPANS)
        self.codes[-(-inside // SPAN) - TABLE_SPANS] = CLASS

    def figures(self, area: int) -> dict:
        """Sums that hold, as the library's do."""
        slab_bytes = 4 * SPAN
        live, cached, depots, free, rest = 60_000, 20_000, 4_000, 36_000, 100
        row = {
            "class": CLASS, "size": BLOCK, "aligned": False, "group": 4, "slabs": 4,
            "slab_bytes": slab_bytes, "handed_out": live + cached + depots, "live": live,
            "cached": cached, "depots": depots, "free": free, "rest": rest,
            "never_allocated": slab_bytes - live - cached - depots - free - rest,
            "requests": 10, "requested": 900, "estimated_requested": 56_250,
            "estimated_rounding": 3_750, "hits": 900 + 100 * self.rounds,
            "misses": 100 + 10 * self.rounds, "refills": 50, "flushes": 40,
        }  # fmt: skip
        unset = [row | dict.fromkeys(("size", "slab_bytes", *STATES), 0) | {"class": code}
                 for code in range(3)]  # fmt: skip
        extents = self.codes.count(0x80) + self.codes.count(0x81)
        spans = {
            "accessible": SPANS * SPAN, "slabs": slab_bytes, "extents": extents * SPAN,
            "extents_cached": self.codes.count(0x82) * SPAN,
            "heaps": self.codes.count(0x83) * SPAN,
            "free_dirty": self.codes.count(0xFE) * SPAN,
            "free_clean": self.codes.count(0xFF) * SPAN, "claimed": 0, "guards": 0,
        }  # fmt: skip
        asked = ASKED if extents else 0
        sums = ("handed_out", "live", "cached", "depots", "free", "never_allocated", "rest")
        live_all = live + extents * SPAN + self.huge.size + HEAPS_LIVE
        own = self.metadata.size + TABLE_SPANS * SPAN
        # Version 3; as from a kernel that tells all.
        process = {"process": {"used": 9 << 20, "used_peak": 11 << 20, "resident": 5 << 20,
                               "resident_peak": 1 << 33}}  # fmt: skip
        if self.is_older:
            process = {}
        found = {
            "hakmem": "0.0.0", "stats_version": 2 if self.is_older else 3, "pid": os.getpid(),
            "monotonic_ms": int(time.monotonic() * 1000),
            "settings": {"profile": "balanced", "hardened": False, "front_metrics": True,
                         "requests": True, "thp": "auto"},
            "total": {"accessible": SPANS * SPAN + self.huge.size + self.kept.size + own,
                      "live": live_all},
            "spans": spans,
            "slabs": {"bytes": slab_bytes, **{name: row[name] for name in sums}},
            "extents": {"count": int(extents > 0), "requested": asked,
                        "tail": extents * SPAN - asked},
            "huge": {"live": self.huge.size, "count": 1, "heaps": 0, "kept": self.kept.size,
                     "kept_count": 1},
            "sampled": {"live": 0, "count": 0, "accessible": 0},
            "heaps_total": {"count": 300, "held": 3 * SPAN, "live": HEAPS_LIVE,
                            "free": 3 * SPAN - HEAPS_LIVE, "blocks": 1500, "refused": 5},
            "heaps": [heap(1, "tenant", 20_000, limit=50_000, total=150_000, refused=5),
                      heap(7, "query", 40_000, parent=1, requests=700 + 70 * self.rounds),
                      heap(9, HEAP_NAME, 90_000, parent=1)],
            "heaps_left_out": 297,
            "own": {"metadata": self.metadata.size, "tables": TABLE_SPANS * SPAN, "other": 0,
                    "total": own},
            "caches": {"arenas": 1, "used": 2, "unused": 1},
            "regions_total": {"count": 1, "reserved": 1 << 40},
            "estimate": {"kind": "estimated", "requested": 56_250, "rounding": 3_750,
                         "unknown": 0},
            "counters": {"alloc": 100 + 7 * self.rounds, "free": 90 + 6 * self.rounds,
                         "madvise": 3, "madvise_enomem": 0, "madvise_other": 0,
                         "madvise_disabled": 0, "mmap_total": 9, "fallback_mmap": 0,
                         "huge_alloc": 2, "huge_fail": 0, "lean_decommit": 0, "lean_retire": 0,
                         "munmap": 1, "mprotect": 4, "mremap": 0,
                         "prctl": 0, "membarrier": 0,
                         "slow_paths": (1 << 32) - 1000 + 500 * self.rounds},
            "purge": {"count": PURGES + self.rounds, "bytes": 1 << 20},
            "budget": {"target": 64 << 20, "limit": 0, "used": 6 << 20, "resident": 5 << 20,
                       "level": 1, "pressure": 0, "entered": [1, 1, 0, 0, 0], "refused": 0,
                       "callbacks": 0},
            **process,
            "guard": {"frees": 1, "reallocs": 0, "usable_sizes": 0},
            "classes": unset if self.is_unset else [row],
            "regions": [{"base": self.region.address, "limit": self.region.size,
                         "reserved": self.region.size, "first_span": TABLE_SPANS, "spans": SPANS,
                         "map_offset": area}],
            "huge_blocks": [
                {"address": self.huge.address, "bytes": self.huge.size, "kept": False},
                {"address": self.kept.address, "bytes": self.kept.size, "kept": True}],
            "huge_blocks_left_out": 0,
            "own_memory": [{"kind": "metadata", "address": self.metadata.address,
                            "bytes": self.metadata.size}],
            "sampled_slots": None,
        }  # fmt: skip
        if self.is_older:
            del found["spans"]["heaps"], found["huge"]["heaps"]
            for name in ("heaps", "heaps_total", "heaps_left_out"):
                del found[name]
        # Of the other figures none is read: all are there.
        for name, member, *_ in FIGURES:
            if name in found:
                found[name].setdefault(member, 0)
        return found

    def write(self) -> None:
        """Into the area that is not in use, the header last."""
        area = AREAS[self.written % 2]
        self.written += 1
        text = self.text = json.dumps(self.figures(area)).encode()
        self.page[area : area + SPANS] = bytes(self.codes)
        start = area + MAP_BYTES
        self.page[start : start + len(text)] = text
        self.page[12:16] = struct.pack("<I", 2 * self.written - 1)
        self.page[0:12] = struct.pack("<8sI", b"hakmemS1", 1)
        self.page[16:64] = struct.pack("<QQQQQII", int(time.monotonic() * 1000), start, len(text),
                                       area, SPANS, os.getpid(), 0)  # fmt: skip
        self.page[12:16] = struct.pack("<I", 2 * self.written)

    def spoil(self, kind: str) -> None:
        """A page whose header, or whose JSON, is not to be believed."""
        start, count = 8192, len(self.text)
        text = self.text
        if kind == "over":
            count = 1 << 63
        elif kind == "large":
            count = 1 << 46
            os.ftruncate(self.descriptor, count + start)
        elif kind == "beyond":
            start = 4 << 20
        elif kind == "deep":
            text = b"[" * 100_000
        elif kind == "deeper":
            text = text[:-1] + b', "more": ' + b"[" * 200 + b"]" * 200 + b"}"
        elif kind == "digits":
            text = text[:-1] + b', "more": ' + b"9" * 30 + b"}"
        elif kind == "nan":
            text = text[:-1] + b', "more": NaN}'
        elif kind == "infinite":
            text = text[:-1] + b', "more": 1e999}'
        elif kind == "negative":
            text = text.replace(b'"alloc": ', b'"alloc": -')
        elif kind == "text":
            text = text.replace(b'"alloc": ', b'"alloc": "x", "ignored": ')
        elif kind == "list":
            text = b"[]"
        elif kind == "class":
            text = text.replace(b'"class": 5', b'"class": 300')
        elif kind == "half":
            text = text.replace(b'"tail": ', b'"tail": null, "ignored": ')
        elif kind == "binary":
            text = bytes(range(256))
        if text is not self.text:
            count = len(text)
        if kind != "beyond":
            self.page[start : start + len(text)] = text
        self.written += 1
        self.page[24:40] = struct.pack("<QQ", start, count)
        self.page[12:16] = struct.pack("<I", 2 * self.written)

    def obey(self, word: str, *numbers: str) -> None:
        if word == "spoil":
            self.spoil(*numbers)
            return
        if word == "free":
            for span in (4, 5, 6):
                self.codes[span] = 0xFE
        elif word == "empty":
            self.page[32:40] = struct.pack("<Q", 0)
            return
        elif word == "unset":
            self.is_unset = True
        elif word == "odd":
            self.page[12:16] = struct.pack("<I", 2 * self.written + 1)
            return
        for _ in range(int(numbers[0]) if numbers else 1):
            self.rounds += 1
            self.write()


def main() -> None:
    fake = Fake()
    fake.is_older = "older" in sys.argv
    fake.write()
    if "huge" in sys.argv:
        fake.fill_huge_pages()
        fake.write()
    if "closed" in sys.argv:
        # Python's mmap has one of its own.
        for path in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                if "hakmem-stats" in str(path.readlink()):
                    os.close(int(path.name))
    if "escape" in sys.argv:
        pr_set_name = 15
        ctypes.CDLL(None).prctl(pr_set_name, b'\x1b[31m\n\x07$\\"Z')
    print("ready", flush=True)
    for line in sys.stdin:
        fake.obey(*line.split())
        print("done", flush=True)


class Handle:
    def __init__(self, process: subprocess.Popen) -> None:
        self.process, self.pid = process, process.pid

    def tell(self, words: str, wait: bool = True) -> None:
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        if wait:
            self.answer()

    def answer(self) -> str:
        assert select.select([self.process.stdout], [], [], 60)[0], "no answer"
        return self.process.stdout.readline()


@contextmanager
def fake_process(*arguments: str):
    with running(__file__, *arguments) as handle:
        yield handle


@contextmanager
def running(program: str, *arguments: str):
    """A program that says when it is ready, and obeys."""
    process = subprocess.Popen([sys.executable, "-S", program, *arguments], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    try:
        handle = Handle(process)
        assert handle.answer() == "ready\n"
        yield handle
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


if __name__ == "__main__":
    main()
