"""`hakmem serve`: heap profiles of a running process, for pprof and Prometheus."""

from __future__ import annotations

import os
import select
import sys
import threading
from typing import TYPE_CHECKING

import click

from hakmem.errors import UserError, warn
from hakmem.extras import PROMETHEUS, PROTOBUF, require
from hakmem.options import complete_pids, number_option, process_of
from hakmem.processes.web import LOOPBACK, POLL_S, Server, users_named
from hakmem.running import interruption
from hakmem.streams import is_lost

if TYPE_CHECKING:
    from hakmem.profiles.profile_server import Source

PORT = 6060


@click.command()
@number_option("--port", "On 127.0.0.1; 0: one that is free.", PORT, 0, 65535, metavar="N")
@click.option(
    "--allow", "users", multiple=True, metavar="USER",
    help="Answers this user too, by name or number, as Prometheus's; all: every user. Repeatable.",
)  # fmt: skip
@click.argument("pid", type=process_of, shell_complete=complete_pids)
def serve(port: int, users: tuple[str, ...], pid: int) -> None:
    """Serve the heap profiles of PID, over HTTP.

    \b
    /debug/pprof/heap      what is live, in the format of pprof
    /debug/pprof/allocs    the same, what was allocated shown first
    ...?seconds=N          how both change within N seconds
    /metrics               figures for Prometheus (with HAKMEM_STATS_PAGE=1 those of `hakmem top`)
    /report                the page that `hakmem profile` writes

    \b
    hakmem serve $(pidof server) &
    pprof -http=: http://127.0.0.1:6060/debug/pprof/heap
    curl -o growth.pb.gz 'http://127.0.0.1:6060/debug/pprof/heap?seconds=60'

    pprof: go install github.com/google/pprof@latest

    If PID keeps no profile itself, it is sampled while this command runs.

    Only programs of yours and of root on this machine get answers. The process itself opens no
    port; it is asked for a profile at each request. The command ends with the process. Needs
    hakmem[report].
    """
    allowed = users_named(users)
    require("serve", PROTOBUF, PROMETHEUS)
    # Slow to import, and --help needs none of it.
    from hakmem.profiles import outside
    from hakmem.profiles.profile_server import Source

    with outside.source(pid) as asked:
        serve_at(port, pid, Source(pid, asked), allowed)


def serve_at(port: int, pid: int, source: Source, users: frozenset[int] | None) -> None:
    from hakmem.profiles.profile_server import Site

    try:
        server = Server(LOOPBACK, port, Site(source).answer, users)
    except OSError as error:
        raise UserError(f"--port: {LOOPBACK}:{port}: {error.strerror}") from error
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": POLL_S})
    read_end, write_end = os.pipe()
    interruption.call(lambda: os.write(write_end, b"."))
    # It listens already. If this cannot be written, nothing runs yet that would have to be ended.
    click.echo(f"http://{LOOPBACK}:{server.server_port}/ serves {source.name} ({pid})", err=True)
    if is_lost(sys.stderr):
        server.server_close()
        raise SystemExit(1)
    thread.start()
    select.select([source.until_end, read_end], [], [])
    has_ended = source.has_ended
    server.stop()
    thread.join()
    if has_ended:
        warn("serve", f"process {pid} has ended")
