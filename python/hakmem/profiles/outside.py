"""Heap profiles of a process that keeps none: it samples for as long as somebody asks.

The library has words in its data that its slow paths look at (src/watch/outside.h); a note in its
ELF file says where. They are written and read through /proc/PID/mem. Such a descriptor belongs to
one address space: once the process executes another program, nothing is read or written any more.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from hakmem.errors import UserError, warn
from hakmem.plain_text import printable
from hakmem.processes.process_memory import plain_errors
from hakmem.processes.stats_page import name_of, title_of
from hakmem.profiles import profile_page
from hakmem.profiles.heap_profile import BYTES_MOST, HeapProfile, Mapped, load, mapped, of_document
from hakmem.running.process_words import ALL_MAPS_MOST, MAPS_MOST, lines_of
from hakmem.running.threads import is_stopped, program_of, seen_by

# Magic, beat, nothing, rate; sequence, error, address, bytes, milliseconds, nothing.
WORDS = struct.Struct("<8sIIQIIQQII")
MAGIC, BEAT_OFFSET, RATE_OFFSET = b"hakmemA1", 8, 16
NOTE_NAME, NOTE_TYPE = b"hakmem\0", 1
# Of a module: a linker makes twenty parts, and notes of some hundred bytes. And of modules.
PARTS_MOST, NOTES_MOST, MODULES_MOST = 256, 1 << 14, 4096
HEAD, PART, NOTE = (
    struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ"), struct.Struct("<III"),
)  # fmt: skip
LOAD_PART, NOTE_PART = 1, 4
# The process goes on for 5 s after a beat. Answers, which cost it time, are asked for meanwhile
# too: it may come to rest, and nobody answers then.
BEAT_S, ANSWERS_PART, WAKE_EACH_S, PAUSE_S, REST_S = 0.5, 50, 0.05, 0.005, 1.0
LOADED_WITHIN_S = 0.3
# Between two looks while it is sampled: an answer is kept in case that the process ends.
LOOK_EACH_S = 0.25
ABSENT = "there is no hakmem in it"
ENDS = "it runs another program now, or ends"
STOPPED = "it is stopped (kill -CONT lets it go on)"
Tick = Callable[[float], None]


def untold(_seconds_left: float) -> None:
    """For who shows no countdown."""


class Source:
    """A process that keeps a profile. `cut_short` says why sampling did not last so long as asked;
    `interrupted`: it was the user."""

    cut_short = ""
    interrupted = False

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def first(self, seconds: float, wait: bool = True, tick: Tick = untold) -> HeapProfile:
        return self.ask()

    def ask(self) -> HeapProfile:
        return replace(profile_page.ask(self.pid), title=title_of(self.pid))


@contextmanager
def source(pid: int, rate: int | None = None) -> Iterator[Source]:
    """What can be asked for profiles; what it has switched on it switches off."""
    try:
        profile_page.require_page(pid)
    except profile_page.NotProfiled as why:
        switched = Switched(pid, rate, str(why))
        try:
            yield switched
        finally:
            switched.close()
        return
    if rate is not None:
        warn("profile", f"process {pid} keeps a profile already: its rate stays")
    yield Source(pid)


class Switched(Source):
    """Sampling in a process, from here on until it is closed."""

    def __init__(self, pid: int, rate: int | None, why: str) -> None:
        self.pid, self.stopped, self.lock = pid, threading.Event(), threading.Lock()
        self.kept: tuple[int, Answer] | None = None
        with plain_errors(pid):
            self.name = name_of(pid)
            self.memory = os.open(f"/proc/{seen_by(pid)}/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            with plain_errors(pid):
                self.words = self.found_words()
            if self.words is None:
                raise UserError(why if ABSENT in why else f"{why} (or an older one is in it)")
            self.begin(rate)
        except BaseException:
            os.close(self.memory)
            raise
        self.keeper = threading.Thread(target=self.keep, daemon=True)
        self.keeper.start()

    def found_words(self) -> int | None:
        """A program that has just been started may be without its libraries yet."""
        end = time.monotonic() + LOADED_WITHIN_S
        while True:
            found = find_words(self.memory, mappings_of(self.pid))
            if found is not None or time.monotonic() > end:
                return found
            time.sleep(PAUSE_S)

    def begin(self, rate: int | None) -> None:
        """Whoever asks shares a lock on the file, so that the last one switches off."""
        self.begun = self.read()[4]
        alone = self.lock_file(fcntl.LOCK_EX | fcntl.LOCK_NB)
        if alone or rate is not None:
            self.write(RATE_OFFSET, struct.pack("<Q", rate or 0))
        self.lock_file(fcntl.LOCK_SH)
        self.beat(True)

    def lock_file(self, how: int) -> bool:
        try:
            fcntl.flock(self.memory, how)
        except OSError:
            return False
        return True

    def close(self) -> None:
        self.stopped.set()
        self.keeper.join()
        with suppress(UserError):
            if self.lock_file(fcntl.LOCK_EX | fcntl.LOCK_NB):
                self.write(BEAT_OFFSET, bytes(4))
        os.close(self.memory)

    def failed(self, why: str) -> UserError:
        return UserError(f"process {self.pid} ({self.name}): {why}")

    def read(self) -> tuple:
        data = at(self.memory, self.words, WORDS.size)
        if len(data) < WORDS.size or data[: len(MAGIC)] != MAGIC:
            if not Path(f"/proc/{self.pid}").exists():
                raise UserError(f"there is no process {self.pid} (any more)")
            raise self.failed(ENDS)
        return WORDS.unpack(data)

    def write(self, offset: int, data: bytes) -> None:
        # The library may have been unloaded.
        self.read()
        with suppress(OSError):
            os.pwrite(self.memory, data, self.words + offset)

    def beat(self, asks: bool) -> None:
        """Any other number than before: one that is torn is one as well."""
        with self.lock:
            self.write(BEAT_OFFSET, struct.pack("<I", random.getrandbits(30) * 2 + 2 - asks))

    def keep(self) -> None:
        asked_at = time.monotonic()
        with suppress(UserError):
            while not self.stopped.wait(BEAT_S):
                asks = time.monotonic() > asked_at + ANSWERS_PART * self.read()[8] / 1000
                asked_at = time.monotonic() if asks else asked_at
                self.beat(asks)

    def first(self, seconds: float, wait: bool = True, tick: Tick = untold) -> HeapProfile:
        """After so many seconds of sampling; without `wait` as soon as it has begun. What there is
        until then, where the user interrupts it or the process ends."""
        if not self.answered(self.begun, seconds, tick):
            raise self.failed(
                STOPPED if is_stopped(self.pid)
                else f"it has not allocated within {seconds:g} s: there is nothing to show"
            )  # fmt: skip
        begun_at = time.monotonic()
        try:
            if wait:
                self.wait(begun_at + seconds, tick)
            found = self.ask()
            if wait and is_stopped(self.pid):
                self.cut_short = f"{STOPPED}, after {found.seconds:.1f} of {seconds:g} s"
            return found
        except KeyboardInterrupt:
            self.interrupted, why = True, "interrupted"
        except UserError as error:
            if self.kept is None:
                raise
            why = error.message
        self.cut_short = f"{why}, after {time.monotonic() - begun_at:.1f} of {seconds:g} s"
        return self.ask() if self.interrupted else self.kept[1].profile()

    def wait(self, end: float, tick: Tick) -> None:
        while (left := end - time.monotonic()) > 0:
            tick(left)
            self.keep_answer()
            time.sleep(min(left, LOOK_EACH_S))

    def keep_answer(self) -> None:
        """The newest one: of a process that has ended nothing can be read."""
        sequence = self.read()[4]
        if sequence % 2 == 0 and (self.kept is None or self.kept[0] != sequence):
            with suppress(OSError):
                if (found := self.whole_answer()) is not None:
                    self.kept = sequence, found

    def answered(self, begun: int, seconds: float, tick: Tick = untold) -> bool:
        """Another answer than that one is there, and whole. Who is stopped gives none."""
        end, asked_at, halted_at = time.monotonic() + seconds, 0.0, 0.0
        while True:
            sequence, now = self.read()[4], time.monotonic()
            if sequence != begun and sequence % 2 == 0:
                return True
            halted_at = (halted_at or now) if is_stopped(self.pid) else 0.0
            if now > end or (halted_at and now > halted_at + profile_page.HALTED_S):
                return False
            tick(end - now)
            if time.monotonic() > asked_at + WAKE_EACH_S and sequence == begun:
                self.beat(True)
                asked_at = time.monotonic()
            time.sleep(PAUSE_S)

    def ask(self) -> HeapProfile:
        """As of now; of a process that is at rest, as of its latest answer."""
        self.answered(self.read()[4], REST_S)
        end = time.monotonic() + profile_page.PATIENCE_S
        while time.monotonic() < end:
            if (found := self.whole_answer()) is not None:
                return found.profile()
            if is_stopped(self.pid):
                raise self.failed(f"{STOPPED} in the middle of an answer")
            time.sleep(PAUSE_S)
        raise self.failed("it has not answered")

    def whole_answer(self) -> Answer | None:
        """None for one that is being written. What the command adds is read before the last look at
        the sequence: where the process executes another program, that is the other one's."""
        *_, sequence, error, address, size, _, _ = self.read()
        if sequence % 2 != 0:
            return None
        data = b"" if error or size > BYTES_MOST else at(self.memory, address, size)
        with plain_errors(self.pid):
            program, title = program_of(self.pid) or self.name, title_of(self.pid)
            maps = mapping_lines(self.pid)
        if self.read()[4] != sequence:
            return None
        if error:
            raise self.failed(f"it could not write its profile: {os.strerror(error)}")
        if not data or len(data) < size:
            raise self.failed("its answer is cut short")
        # Its first thread has ended, others end: the memory is still there.
        if not maps:
            raise self.failed(ENDS)
        return Answer(self, data, program, maps, title)


@dataclass(frozen=True)
class Answer:
    """What a process has answered, and what the command adds."""

    source: Switched
    data: bytes
    program: str
    maps: list[str]
    title: str

    def profile(self) -> HeapProfile:
        try:
            document = load(self.data) | {"program": self.program, "maps": self.maps}
            found = of_document(document, json.dumps(document).encode())
            return replace(found, title=self.title)
        except ValueError as error:
            told = f"its answer cannot be read: {printable(str(error))}"
            raise self.source.failed(told) from error


def mapping_lines(pid: int) -> list[str]:
    """Those that have code or a file, as the library's own answers."""
    found, left = [], MAPS_MOST
    for line in lines_of(seen_by(pid), "maps", ALL_MAPS_MOST):
        if "/" in line or "[vdso]" in line or line.split()[1][2] == "x":
            left -= len(line)
            if left < 0:
                break
            found.append(line)
    return found


def mappings_of(pid: int) -> list[Mapped]:
    return [found for line in mapping_lines(pid) if (found := mapped(line))]


def at(memory: int, address: int, count: int) -> bytes:
    try:
        return os.pread(memory, count, address)
    except (OSError, OverflowError):
        return b""


def find_words(memory: int, mappings: list[Mapped]) -> int | None:
    """Their address: of the program itself, where it has them, else of the first library."""
    begins = (one.start for one in mappings if one.offset == 0 and one.path.startswith("/"))
    for start in islice(begins, MODULES_MOST):
        for address in noted(memory, start):
            if at(memory, address, len(MAGIC)) == MAGIC:
                return address
    return None


def noted(memory: int, start: int) -> Iterator[int]:
    """What the notes of the module that is mapped there say."""
    data = at(memory, start, HEAD.size)
    if len(data) < HEAD.size or data[:6] != b"\x7fELF\x02\x01":
        return
    _, _, _, _, _, offset, _, _, _, size, count, *_ = HEAD.unpack(data)
    count = min(count, PARTS_MOST)
    table = at(memory, start + offset, count * PART.size) if size == PART.size else b""
    parts = list(PART.iter_unpack(table[: len(table) // PART.size * PART.size]))
    bias = next((start - p[3] for p in parts if p[0] == LOAD_PART and p[2] == 0), start)
    left = NOTES_MOST
    for kind, _, _, address, _, length, _, _ in parts:
        left -= length if kind == NOTE_PART else 0
        if left < 0:
            return
        if kind == NOTE_PART:
            yield from of_notes(at(memory, bias + address, length), bias + address)


def of_notes(data: bytes, address: int) -> Iterator[int]:
    place = 0
    while place + NOTE.size <= len(data):
        name_size, size, kind = NOTE.unpack_from(data, place)
        name, content = place + NOTE.size, place + NOTE.size + (name_size + 3) // 4 * 4
        found = data[name : name + name_size] == NOTE_NAME and (size, kind) == (8, NOTE_TYPE)
        if found and content + 8 <= len(data):
            yield address + content + struct.unpack_from("<q", data, content)[0]
        place = content + (size + 3) // 4 * 4
