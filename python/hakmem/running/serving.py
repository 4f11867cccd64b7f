"""Runs a server under an allocator, and a load against it.

The server is started through the launcher, whose report covers the server and none of the load.
Whatever happens in between, no process of the server's is left when its run ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hakmem import files
from hakmem.plain_text import last_lines, with_last_words
from hakmem.running.launching import (
    Outcome,
    Start,
    costs_of,
    end_of,
    launcher_arguments,
    reap,
    run_once,
    signal_name,
)
from hakmem.running.process_words import MAPS_MOST, lines_of
from hakmem.running.threads import children_of, descendants, resident_kb, seen_by
from hakmem.running.witness import Counter, Runner

READY_LIMIT_S = 30.0
STOP_LIMIT_S = 30.0
POLL_S = 0.005
# The launcher looks at the memory every 50 ms: a rest is a little longer than asked for.
REST_MARGIN_S = 0.2
PORT_MARK = "{port}"
# From <linux/prctl.h>.
PR_SET_CHILD_SUBREAPER = 36
HOSTS = ("127.0.0.1", "::1")


class ServerError(Exception):
    """Why a run does not count, in one line."""


@contextmanager
def nothing_left() -> Iterator[None]:
    """Ends the processes that a server leaves behind: the kernel makes them our children."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = children_of(os.getpid())
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        # The children of one that is ended are ours next.
        while left := children_of(os.getpid()) - before:
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class Server:
    """A started server. `cost` is the launcher's report, after its end."""

    def __init__(self, start: Start, log: Path) -> None:
        self.command, self.library, self.log = start.command, start.preload, log
        self.cost: dict[str, int] = {}
        # The first process of its session, once it is known.
        self.pid = 0
        report_read, report_write = os.pipe()
        arguments = launcher_arguments(report_write, start)
        try:
            with files.open_to_append(log) as output:
                self.launcher = subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[report_write],
                )
        except BaseException:
            os.close(report_read)
            raise
        finally:
            os.close(report_write)
        self.report = os.fdopen(report_read, encoding="ascii")

    def wait_ready(self, is_ready: Callable[[], bool], limit_s: float = READY_LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not is_ready():
            if self.launcher.poll() is not None:
                raise ServerError(f"the server ended at its start: {self.how_it_ended()}")
            if time.monotonic() > deadline:
                raise ServerError(f"the server does not answer after {limit_s:g} s")
            time.sleep(POLL_S)
        # The launcher's child: a signal to it is a signal to the server.
        self.pid = next(iter(children_of(self.launcher.pid)), 0)
        self.require_library()

    def require_library(self) -> None:
        """The loader goes on without a library that it cannot load: look whether it is there."""
        if self.library is None or not self.pid:
            return
        try:
            maps = list(lines_of(seen_by(self.pid), "maps", MAPS_MOST))
        except OSError:
            return
        real = str(self.library.resolve())
        if maps and not any(line.endswith(f" {real}") for line in maps):
            raise ServerError(f"the server runs without {self.library}")

    def has_ended(self) -> bool:
        return self.launcher.poll() is not None

    def stop(self, number: int, limit_s: float = STOP_LIMIT_S) -> None:
        """Ends it by a signal. Any exit status is right then, no other signal is."""
        if self.has_ended():
            raise ServerError(f"the server ended before it was stopped: {self.how_it_ended()}")
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
        try:
            self.launcher.wait(limit_s)
        except subprocess.TimeoutExpired:
            name = signal_name(number)
            raise ServerError(f"the server did not end within {limit_s:g} s of {name}") from None
        self.read_cost()
        if self.cost.get("signal") not in (0, number):
            raise ServerError(f"the server ended badly: {self.how_it_ended()}")

    def read_cost(self) -> None:
        if not self.cost:
            self.cost = json.loads(self.report.read() or "{}")

    def how_it_ended(self) -> str:
        self.read_cost()
        if number := self.cost.get("exec_errno"):
            return f"cannot start '{self.command[0]}': {os.strerror(number)}"
        if number := self.cost.get("signal"):
            how = f"killed by {signal_name(number)}"
        else:
            how = f"exit status {self.cost.get('exit', 'unknown')}"
            if self.cost.get("exit") == 0:
                how += " (it has to stay in the foreground)"
        return f"{how}; it last said: {self.last_words()}"

    def said(self) -> str:
        with self.log.open("rb") as file:
            return end_of(file)

    def last_words(self) -> str:
        return last_lines(self.said(), 1) or "nothing"

    def kill(self) -> None:
        """Ends what still runs, after a failure or an interrupt."""
        # The launcher ends the server first.
        self.launcher.terminate()
        reap(self.launcher)
        self.report.close()


@contextmanager
def started(start: Start, log: Path) -> Iterator[Server]:
    with nothing_left():
        server = Server(start, log)
        try:
            yield server
        finally:
            server.kill()


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HOSTS[0], 0))
        return one.getsockname()[1]


def accepts(port: int) -> bool:
    """Whether a port of this machine takes a connection; the one made here is closed at once."""
    for host in HOSTS:
        with suppress(OSError), socket.create_connection((host, port), timeout=1):
            return True
    return False


@dataclass(frozen=True)
class ServerRunner(Runner):
    """Runs a server, and a load against it. The time and the words are the load's, memory, CPU
    time and faults the server's."""

    load: tuple[str, ...] = ()
    # None: another free one for each run.
    port: int | None = None
    stop: int = signal.SIGTERM
    ready_s: float = READY_LIMIT_S

    def run(self, start: Start) -> Outcome:
        return self.serve(start)[0]

    def run_counted(self, start: Start) -> tuple[Outcome, tuple[int, int] | None]:
        """The counters of the server at the end of the load, without what its start script took."""
        return self.serve(start, Counter(start.preload))

    def spans_seen(self, start: Start) -> int | None:
        """What run_counted() could not read cannot be read in another run."""
        return None

    def serve(
        self, start: Start, counter: Counter | None = None
    ) -> tuple[Outcome, tuple[int, int] | None]:
        """One run, and what the counters were after the load in all processes of the server."""
        port = free_port() if self.port is None else self.port
        if self.port is not None and accepts(port):
            return failed(f"port {port} is in use already"), None
        with files.scratch_folder("hakmem-server-") as folder:
            log = Path(folder) / "log"
            words = [word.replace(PORT_MARK, str(port)) for word in start.command]
            with started(replace(start, command=words), log) as server:
                try:
                    return self.use(server, port, start.idle_s, start.limit_s, counter)
                except ServerError as error:
                    return failed(str(error), server.said()), None

    def use(
        self, server: Server, port: int, idle_s: float, limit_s: float, counter: Counter | None
    ) -> tuple[Outcome, tuple[int, int] | None]:
        begun_at = time.monotonic()
        try:
            server.wait_ready(lambda: accepts(port), least(self.ready_s, limit_s))
        except ServerError as error:
            raise ServerError(f"{error} (port {port} was waited for)") from None
        # The start and the load have the limit together; the launcher takes 0 for none.
        left_s = max(limit_s - (time.monotonic() - begun_at), POLL_S) if limit_s else 0.0
        loaded = run_once(
            [word.replace(PORT_MARK, str(port)) for word in self.load], limit_s=left_s
        )
        if loaded.problem and not server.has_ended():
            why = f"did not end within {limit_s:g} s" if loaded.too_late else loaded.problem
            told = f"the load failed: {why}"
            raise ServerError(with_last_words(told, loaded.last_words(1)))
        counted = None
        if counter is not None and counter.offset is not None:
            seen = [counter.read(pid) or 0 for pid in descendants(server.launcher.pid)]
            counted = sum(seen), sum(spans > 0 for spans in seen)
        rest = {}
        if idle_s:
            time.sleep(idle_s + REST_MARGIN_S)
            # The launcher waits for a span without any CPU time, and sees one session: many servers
            # wake up by the clock, and some begin a session for each process.
            rest["idle_rss_kb"] = resident_kb(descendants(server.launcher.pid))
        server.stop(self.stop, least(STOP_LIMIT_S, limit_s))
        # The loader's complaints and hakmem's counters are the server's.
        said = f"{loaded.stderr}\n{server.said()}"
        return replace(loaded, stderr=said, **costs_of(server.cost) | rest), counted


def least(own_s: float, limit_s: float) -> float:
    """A wait's own limit, or the run's where there is one that is shorter."""
    return min(own_s, limit_s) if limit_s else own_s


def failed(why: str, said: str = "") -> Outcome:
    # What the loader complained of: the reason has the server's last words already.
    kept = "\n".join(line for line in said.splitlines() if "ld.so: object" in line)
    return Outcome(0, 0, 0.0, 0.0, 0, 0, 0, stdout="", stderr=kept, failure=why)
