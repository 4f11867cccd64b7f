"""Reads statistics pages, by the protocol of docs/figures.md. As a program: page.py PID SECONDS, as often as it can."""
import json
import mmap
import os
import random
import struct
import sys
import time
from pathlib import Path

import sums

HEADER = struct.Struct("<8sIIQQQQQII")


def descriptors(pid: int) -> list[str]:
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(link) == "/memfd:hakmem-stats (deleted)":
                found.append(str(link))
        except FileNotFoundError:
            pass
    return found


class Page:
    """The protocol of docs/figures.md."""

    def __init__(self, path: str, slow_ms: float = 0) -> None:
        with open(path, "rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self.again, self.slow_ms = 0, slow_ms

    def dawdle(self) -> None:
        """A reader that is slow enough for the writer to come in between."""
        if self.slow_ms:
            time.sleep(random.uniform(0, self.slow_ms / 1000))

    def header(self) -> tuple:
        return HEADER.unpack_from(self.map)

    def read(self) -> tuple[dict, bytes, int]:
        """JSON, a copy of the span map's area, and where in the file that begins."""
        for _ in range(1000):
            magic, version, sequence, _, json_at, json_bytes, map_at, entries, pid, zero = \
                self.header()
            assert (magic, version, zero) == (b"hakmemS1", 1, 0)
            text = self.map[json_at:json_at + json_bytes // 2]
            self.dawdle()
            text += self.map[json_at + json_bytes // 2:json_at + json_bytes]
            self.dawdle()
            spans = self.map[map_at:map_at + entries]
            if sequence != 0 and sequence % 2 == 0 and self.header()[2] == sequence:
                d = json.loads(text)
                assert d["pid"] == pid
                return d, spans, map_at
            self.again += 1
        raise AssertionError("never whole")


def check(page: Page) -> dict:
    d, spans, map_at = page.read()
    assert sums.check(d) == []
    assert sums.check_map(d, lambda at, count: spans[at - map_at:at - map_at + count]) == []
    return d


def main() -> None:
    page, reads, seen = Page(descriptors(int(sys.argv[1]))[0], slow_ms=4), 0, set()
    until = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < until or reads < 100:
        seen.add(check(page)["monotonic_ms"])
        reads += 1
    print(f"{reads} reads, {len(seen)} snapshots, {page.again} again", file=sys.stderr)
    print("all whole")


if __name__ == "__main__":
    main()
