"""Runs a server with an allocator preloaded, from a driver that runs without it.

The lab tells the driver in HAKLAB_PRELOAD which library the server gets. The server is started
through the launcher, whose report covers its whole process tree and none of the clients. Drivers
print `Throughput =`, `Checksum =` and the server's line, which real_programs.py reads.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from hakmem.running.launching import launcher_path

PRELOAD_VARIABLE = "HAKLAB_PRELOAD"
START_LIMIT_S = 30
STOP_LIMIT_S = 30
POLL_S = 0.005
# Short: the path of a Unix socket has room for some 100 bytes.
SCRATCH = Path("/tmp")


class DriverError(Exception):
    """Why a run does not count, in one line."""


def given_library() -> Path | None:
    given = os.environ.get(PRELOAD_VARIABLE)
    return Path(given) if given else None


@contextmanager
def scratch(kind: str, owner: tuple[int, int] | None = None) -> Iterator[Path]:
    """A folder for one run, given to the server's user. Not below ours: it could not enter those.

    A driver that was killed could not clear up: the next one does.
    """
    for path in SCRATCH.glob(f"hakmem-{kind}-*-*"):
        pid = path.name.split("-")[-2]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"hakmem-{kind}-{os.getpid()}-", dir=SCRATCH) as name:
        if owner is not None:
            os.chown(name, *owner)
        yield Path(name)


class Server:
    """A started server; `process` is its first process, `cost` its report after the end."""

    def __init__(self, command: Sequence[str], library: Path | None, log: Path) -> None:
        self.log = log
        self.library = library
        self.cost: dict[str, int] = {}
        report_read, report_write = os.pipe()
        arguments = [str(launcher_path()), "--fd", str(report_write)]
        if library is not None:
            arguments += ["--preload", str(library)]
        with log.open("wb") as output:
            self.launcher = subprocess.Popen(
                [*arguments, "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                pass_fds=[report_write],
            )
        os.close(report_write)
        self.report = os.fdopen(report_read, encoding="ascii")

    @property
    def process(self) -> psutil.Process | None:
        children = psutil.Process(self.launcher.pid).children()
        return children[0] if children else None

    def wait_ready(self, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not is_ready():
            if self.launcher.poll() is not None:
                raise DriverError(f"the server ended at its start: {self.last_words()}")
            if time.monotonic() > deadline:
                raise DriverError(f"the server does not answer after {START_LIMIT_S} s")
            time.sleep(POLL_S)
        self.require_library()

    def require_library(self) -> None:
        """The loader goes on without a library that it cannot load: look whether it is there."""
        process = self.process
        if self.library is None or process is None:
            return
        real = str(self.library.resolve())
        if real not in {mapping.path for mapping in process.memory_maps()}:
            raise DriverError(f"the server runs without {self.library}")

    def wait_stopped(self) -> None:
        try:
            self.launcher.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise DriverError(f"the server does not end within {STOP_LIMIT_S} s") from None
        self.cost = json.loads(self.report.read() or "{}")
        if self.cost.get("exit") != 0:
            raise DriverError(f"the server ended badly ({self.cost}): {self.last_words()}")

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def kill(self) -> None:
        """Ends what still runs, after a failure or an interrupt."""
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.launcher.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.launcher.wait()
        self.report.close()


@contextmanager
def started(command: Sequence[str], library: Path | None, log: Path) -> Iterator[Server]:
    server = Server(command, library, log)
    try:
        yield server
    finally:
        server.kill()


def client(command: Sequence[str], text: str | None = None) -> str:
    """Runs a client to its end, without any preload, and returns what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    ran = subprocess.run(
        command,
        env=environment,
        input=text,
        stdin=None if text is not None else subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if ran.returncode:
        words = (ran.stderr or ran.stdout).strip().splitlines() or ["no message"]
        raise DriverError(f"{Path(command[0]).name} failed: {words[-1]}")
    return ran.stdout


def print_results(throughput: float, checksum: str, server: Server) -> None:
    cost = server.cost
    cpu_s = (cost["user_us"] + cost["system_us"]) / 1e6
    print(f"Throughput = {throughput:.1f} ops/s")
    print(f"Checksum = {checksum}")
    print(
        f"Server: peak_rss_kb={cost['peak_rss_kb']} cpu_s={cpu_s:.6f} "
        f"minor_faults={cost['minor_faults']} major_faults={cost['major_faults']}"
    )


def run_driver(main: Callable[[], None]) -> None:
    """A failure becomes one line and status 1: that slice does not count."""
    try:
        main()
    except DriverError as error:
        print(f"{Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        raise SystemExit(1) from None
