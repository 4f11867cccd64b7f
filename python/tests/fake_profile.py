"""A process that keeps a heap profile, but without hakmem; and profiles as the library writes them.

Run as a program it prints a line when it can be asked, sleeps on the sequence number as the
library's thread does, and obeys the words on its input: `grow` makes its live memory more, `mute`
leaves requests without an answer, `growing` grows with each, `fail N` answers with an error,
`spoil` with what is no JSON, `over` with more bytes than there are, `end` ends it.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import struct
import sys
import threading
from contextlib import contextmanager

HEADER = struct.Struct("<8sIIIIQ")
FUTEX_WAIT = 0
FUTEX_CALL = {"x86_64": 202, "aarch64": 98}[platform.machine()]
RATE = 512 << 10
PROGRAM = "/nowhere/bin/server"
MAPS = [
    "555500000000-555500010000 r-xp 00001000 08:01 11 /nowhere/bin/server",
    "7f0000000000-7f0000010000 r-xp 00000000 08:01 12 /nowhere/lib/libhakmem.so",
    "7f1000000000-7f1000010000 r-xp 00000000 00:00 0 ",
]
BASE, ALLOCATOR, COMPILED = 0x555500000000, 0x7F0000000100, 0x7F1000000000


def stack(pcs: list[int], live_bytes: int, count: int, **more) -> dict:
    """A stack of blocks of one size; a tenth of all was freed."""
    live = live_bytes
    variance = live * RATE
    total = live + live // 10
    return {
        "pcs": pcs,
        "live": [live, count, variance, count],
        "total": [total, count, variance, count],
        "peak": [live, count],
        "pinned": 2 * live,
        "age_ms": [1500, 9000],
        "freed": [0, 6, 3, 1, 0, 0, 0],
    } | more


def document(stacks: list[dict] | None = None, **more) -> dict:
    """Two places that allocate, told by offset; the larger is at 0x1100 of the program's file."""
    if stacks is None:
        stacks = [
            stack([ALLOCATOR, BASE + 0x101, BASE + 0x501], 64 << 20, 64),
            stack([ALLOCATOR, BASE + 0x201, BASE + 0x501], 1 << 20, 8),
            stack([ALLOCATOR, BASE + 0x301, BASE + 0x501], 0, 0, peak=[32 << 20, 32],
                  total=[512 << 20, 512, 1 << 40, 512], pinned=0),
        ]  # fmt: skip
    sums = {
        name: dict(zip(("bytes", "count", "bytes_variance", "count_variance"),
                       map(sum, zip(*(s[name] for s in stacks))) if stacks else
                       [0] * 4))
        for name in ("live", "total")
    }  # fmt: skip
    return {
        "hakmem_heap_profile": 1,
        "version": "0.1.0",
        "pid": 4711,
        "program": PROGRAM,
        "rate": RATE,
        "started_ms": 1_700_000_000_000,
        "taken_ms": 1_700_000_060_000,
        "samples": {"taken": 700, "live": 130, "dropped": 0, "stacks_dropped": 0,
                    "own_bytes": 65536},
        **sums,
        "peak": {"bytes": 97 << 20, "count": 100, "at_ms": 30_000},
        "timeline": [[0, 0], [10_000, 40 << 20], [30_000, 97 << 20], [60_000, 65 << 20]],
        "lifetime_bounds_ms": [1, 10, 100, 1000, 10_000, 100_000],
        "stacks": stacks,
        "maps": MAPS,
    } | more  # fmt: skip


class Fake:
    def __init__(self) -> None:
        self.descriptor = os.memfd_create("hakmem-profile", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, 1 << 20)
        self.page = mmap.mmap(self.descriptor, 1 << 20)
        self.page[0 : HEADER.size] = HEADER.pack(b"hakmemP1", os.getpid(), 0, 0, 0, 0)
        self.word = ctypes.c_uint32.from_buffer(self.page, 12)
        self.rounds = 0
        self.mode, self.number = "good", 0

    def serve(self) -> None:
        libc = ctypes.CDLL(None)
        call, address = ctypes.c_long(FUTEX_CALL), ctypes.c_void_p(ctypes.addressof(self.word))
        while True:
            woken = libc.syscall(call, address, FUTEX_WAIT, ctypes.c_uint32(self.word.value), None)
            if woken == 0 and self.mode != "mute":
                self.answer()

    def answer(self) -> None:
        self.word.value += 1
        stacks = [
            stack([ALLOCATOR, BASE + 0x101, BASE + 0x501], (64 + 8 * self.rounds) << 20,
                  64 + 8 * self.rounds),
            stack([ALLOCATOR, BASE + 0x201, BASE + 0x501], 1 << 20, 8),
        ]  # fmt: skip
        text = json.dumps(document(stacks, pid=os.getpid())).encode()
        size = len(text)
        if self.mode == "spoil":
            text = b"{" + text
        elif self.mode == "over":
            size = 1 << 40
        self.page[4096 : 4096 + len(text)] = text
        error = self.number if self.mode == "fail" else 0
        self.page[16:32] = struct.pack("<IIQ", error, 0, size)
        self.rounds += self.mode == "growing"
        self.word.value += 1

    def obey(self, word: str, *numbers: str) -> None:
        if word == "grow":
            self.rounds += 1
        elif word == "end":
            os._exit(0)
        else:
            self.mode, self.number = word, int(numbers[0]) if numbers else 0


def main() -> None:
    fakes = []
    # The name of a process is not that of its file.
    with open("/proc/self/comm", "w") as name:  # noqa: PTH123
        name.write("server")
    if "stats" in sys.argv:
        import fake_process

        fakes.append(fake_process.Fake())
        fakes[0].write()
    fake = Fake()
    threading.Thread(target=fake.serve, daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        fake.obey(*line.split())
        print("done", flush=True)
    os._exit(0)


@contextmanager
def fake_profiled(*arguments: str):
    from fake_process import running

    with running(__file__, *arguments) as handle:
        yield handle


if __name__ == "__main__":
    main()
