"""Runs a server with an allocator preloaded, from a driver that runs without it.

The lab tells the driver in HAKLAB_PRELOAD which library the server gets. The server is started
through the launcher, whose report covers its whole process tree and none of the clients. Drivers
print `Throughput =`, `Checksum =` and the server's line, which real_programs.py reads.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from hakmem.running.serving import Server, started
from hakmem.running.serving import ServerError as DriverError

__all__ = [
    "DriverError", "Server", "client", "given_library", "print_results", "run_driver", "scratch",
    "started",
]  # fmt: skip

PRELOAD_VARIABLE = "HAKLAB_PRELOAD"
# Short: the path of a Unix socket has room for some 100 bytes.
SCRATCH = Path("/tmp")


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
