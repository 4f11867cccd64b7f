"""PostgreSQL under an allocator, pgbench as its client, over a Unix socket.

`prepare` makes a database once and packs it; each run unpacks it, so that all begin alike. The
server never runs as root: it is given to the user postgres, or nobody.
"""

import os
import pwd
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import click

from hakmem_lab.workloads.server import (
    DriverError,
    client,
    given_library,
    print_results,
    run_driver,
    scratch,
    started,
)

TOOLS = ("postgres", "initdb", "pg_ctl", "pgbench", "psql")
PACKED = "postgres.tar"
DATABASE_USER = "bench"
CLIENTS = 2
SEED = 42
# One script, so that each client's random numbers, and with them the sums, follow from the seed.
TRANSACTION = """\
\\set aid random(1, 100000)
\\set delta random(-5000, 5000)
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance % 7 AS rest, count(*), string_agg(aid::text, ',' ORDER BY aid DESC)
  FROM pgbench_accounts WHERE aid BETWEEN :aid AND :aid + 200 GROUP BY rest ORDER BY 2, 1;
"""
UNPRIVILEGED = ("postgres", "nobody")
DEBIAN_FOLDERS = Path("/usr/lib/postgresql")
# Durability is not what is measured; no work of its own that falls into some runs only.
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "jit": "off",
    "log_min_messages": "fatal",
    "shared_buffers": "32MB",
}


def tool(name: str) -> str | None:
    """A program of PostgreSQL's: the newest that Debian has, or the one in PATH."""
    versions = [p for p in DEBIAN_FOLDERS.glob("*/bin") if (p / name).exists()]
    if versions:
        return str(max(versions, key=lambda p: float(p.parent.name)) / name)
    return shutil.which(name)


def account() -> pwd.struct_passwd | None:
    """Who the server runs as when we are root."""
    if os.geteuid() != 0:
        return None
    for name in UNPRIVILEGED:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise DriverError(f"root may not run the server, and there is no user {UNPRIVILEGED[0]}")


def as_account(command: list[str]) -> list[str]:
    user = account()
    if user is None:
        return command
    change = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    # Changing the user takes the signal away that a parent's end sends.
    return [*change, "--pdeathsig=KILL", "--", *command]


def owned_scratch() -> AbstractContextManager[Path]:
    user = account()
    return scratch("postgres", (user.pw_uid, user.pw_gid) if user else None)


def server_command(folder: Path) -> list[str]:
    settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
    socket = f"--unix_socket_directories={folder}"
    return as_account([str(tool("postgres")), "-D", str(folder / "data"), socket, *settings])


def reachable(library: Path | None, folder: Path) -> Path | None:
    """A copy of the library: the server's user may not be able to read where it lies."""
    if library is None:
        return None
    copy = folder / library.name
    shutil.copyfile(library, copy)
    copy.chmod(0o755)
    return copy


def connection(folder: Path) -> list[str]:
    return ["-h", str(folder), "-U", DATABASE_USER]


def query(folder: Path, text: str) -> str:
    command = [str(tool("psql")), *connection(folder), "-d", "postgres", "-XAtc", text]
    return client(command).strip()


def answers(folder: Path) -> bool:
    try:
        return query(folder, "SELECT 1") == "1"
    except DriverError:
        return False


@contextmanager
def running(folder: Path, library: Path | None) -> Iterator:
    """A server on the folder's data; it is asked to end after the body."""
    with started(server_command(folder), library, folder / "log") as server:
        server.wait_ready(partial(answers, folder))
        yield server
        # Its fast shutdown: clients are gone, so it ends at once.
        stop = [str(tool("pg_ctl")), "stop", "-D", str(folder / "data"), "-m", "fast", "-w"]
        client(as_account(stop))
        server.wait_stopped()


def prepare(target: Path) -> None:
    with owned_scratch() as folder:
        make = [str(tool("initdb")), "-D", str(folder / "data"), "-U", DATABASE_USER]
        make += ["-A", "trust", "-E", "UTF8", "--no-locale", "--wal-segsize=1", "--no-sync"]
        client(as_account(make))
        with running(folder, None):
            fill = [str(tool("pgbench")), *connection(folder), "-i", "-q", "-n", "-s", "1"]
            client([*fill, "postgres"])
        with tarfile.open(target / PACKED, "w") as packed:
            packed.add(folder / "data", "data")


def unpack(source: Path, folder: Path) -> None:
    packed = source / PACKED
    if not packed.is_file():
        raise DriverError(f"{packed} is missing: prepare first")
    # As root, tar gives the files back to the server's user.
    subprocess.run(["tar", "-xf", str(packed), "-C", str(folder)], check=True)


def run(source: Path, size: int) -> None:
    with owned_scratch() as folder:
        unpack(source, folder)
        library = reachable(given_library(), folder)
        with running(folder, library) as server:
            script = folder / "transaction.sql"
            script.write_text(TRANSACTION)
            load = [str(tool("pgbench")), *connection(folder), "-n", "-t", str(size)]
            load += ["-c", str(CLIENTS), "-j", "1", f"--random-seed={SEED}", "-f", str(script)]
            said = client([*load, "postgres"])
            found = re.search(r"^tps = ([0-9.]+)", said, re.MULTILINE)
            if found is None:
                raise DriverError("pgbench printed no rate")
            # A sum does not depend on which client came first.
            checksum = query(
                folder,
                "SELECT md5(string_agg(aid || ':' || abalance, ',' ORDER BY aid)) "
                "FROM pgbench_accounts",
            )
        print_results(float(found[1]), checksum, server)


@click.command()
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), required=True)
@click.option("--size", type=click.IntRange(0), required=True, help="Transactions of each client.")
def main(folder: Path, size: int) -> None:
    """Run PostgreSQL once under the allocator that HAKLAB_PRELOAD names; size 0: only prepare."""
    run_driver(partial(prepare, folder) if size == 0 else partial(run, folder, size))


if __name__ == "__main__":
    main()
