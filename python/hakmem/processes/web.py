"""The one HTTP server of the commands: for tools of this machine, and for whom the user lets in.

A client may send nothing, take nothing, or go: each connection has a moment at which it ends, and
there are not more than so many. A page of another site in a browser here is refused by the name it
asks for, and where only some users may ask, the kernel says whose connection it is.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from hakmem.errors import UserError

LOOPBACK = "127.0.0.1"
TEXT_TYPE = "text/plain; charset=utf-8"
# Until a request is there, and until its answer is taken; a report of megabytes over a slow tunnel
# takes less.
HEAD_S, SEND_S = 10.0, 60.0
# To make an answer: a process that is stopped is waited for half of that.
MAKE_S = 60.0
# At the end, for answers that are on their way.
GRACE_S = 5.0
# A browser opens six, Prometheus and pprof one each.
CONNECTIONS_MOST = 32
POLL_S = 0.1
EVERYONE = "all"
BUSY = (
    b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 1\r\n\r\n"
    b"too many connections\n"
)


class Refused(Exception):
    """A request that is answered with one line."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class Gone(Exception):
    """Nobody is there to be answered."""


@dataclass(frozen=True)
class Answer:
    body: bytes
    kind: str
    # To save it under.
    file_name: str = ""


@dataclass
class Request:
    path: str
    headers: object
    connection: socket.socket
    server: Server

    @property
    def host(self) -> str:
        return self.headers.get("Host", "")

    @property
    def accept(self) -> str:
        return self.headers.get("Accept", "")

    def wait(self, seconds: float, *others: int) -> int | None:
        """The first of these descriptors that can be read within that time. Gone where the client
        has."""
        self.server.allow(self.connection, seconds + MAKE_S)
        poll = select.poll()
        for each in (*others, self.server.stopped):
            poll.register(each, select.POLLIN)
        poll.register(self.connection, select.POLLRDHUP)
        ready = {number for number, _ in poll.poll(seconds * 1000)}
        if self.connection.fileno() in ready:
            raise Gone
        if found := [each for each in others if each in ready]:
            return found[0]
        if ready:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the server was stopped")
        return None


def users_named(names: Collection[str]) -> frozenset[int] | None:
    """Their numbers, with our own and root's; None for everyone."""
    if EVERYONE in names:
        return None
    found = {0, os.geteuid()}
    for name in names:
        try:
            found.add(int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid)
        except KeyError as error:
            raise UserError(f"--allow: there is no user '{name}'", 2) from error
    return frozenset(found)


def packed(address: str, port: int) -> str:
    """As /proc/net/tcp has it: words in the machine's own order."""
    word = struct.unpack("=I", socket.inet_aton(address))[0]
    return f"{word:08X}:{port:04X}"


def user_of(connection: socket.socket) -> int | None:
    """The user of the program at the other end, on this machine; None where the kernel does not
    tell."""
    own, other = packed(*connection.getsockname()[:2]), packed(*connection.getpeername()[:2])
    # Of a client whose sockets are for both kinds of addresses.
    prefix = "0" * 16 + f"{int.from_bytes(bytes((0, 0, 255, 255)), sys.byteorder):08X}"
    for path, before in (("/proc/net/tcp", ""), ("/proc/net/tcp6", prefix)):
        with suppress(OSError), Path(path).open() as lines:
            # Addresses, user, inode; a socket that was closed has no inode, and user 0.
            for line in lines:
                fields = line.split()
                if fields[1:3] == [before + other, before + own] and fields[9] != "0":
                    return int(fields[7])
    return None


def is_own_name(host: str, names: Collection[str]) -> bool:
    """Whether a request's Host is a name of this server: another site's name, which may lead here
    too, is none. An address is nobody's name."""
    name = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.rpartition(":")[0]
    name = (name or host).lower()
    return name in names


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.reply(True)

    def do_HEAD(self) -> None:
        self.reply(False)

    def reply(self, with_body: bool) -> None:
        try:
            answer, status = self.answer(), HTTPStatus.OK
        except Refused as refused:
            answer, status = Answer(f"{refused}\n".encode(), TEXT_TYPE), refused.status
        except Gone:
            return
        self.server.allow(self.connection, SEND_S)
        self.send_response(status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        if answer.file_name:
            self.send_header("Content-Disposition", f'attachment; filename="{answer.file_name}"')
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)

    def answer(self) -> Answer:
        self.server.allow(self.connection, MAKE_S)
        request = Request(self.path, self.headers, self.connection, self.server)
        self.server.require_allowed(request)
        return self.server.answer(request)

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal for each request."""


class Server(ThreadingHTTPServer):
    """`answer` makes what a request gets. `users`: who may ask, None for all; `names` by which."""

    # Whoever keeps a connection open does not keep the command from its end.
    daemon_threads, block_on_close = True, False
    request_queue_size = CONNECTIONS_MOST

    def __init__(
        self,
        address: str,
        port: int,
        answer: Callable[[Request], Answer],
        users: frozenset[int] | None = None,
    ) -> None:
        self.answer, self.users = answer, users
        self.names = {LOOPBACK, "localhost", "::1", address.lower(), *own_names()}
        self.is_bound_to_all = False
        with suppress(ValueError):
            self.is_bound_to_all = ipaddress.ip_address(address).is_unspecified
        self.ends: dict[socket.socket, float] = {}
        self.lock = threading.Lock()
        self.stopped, self.stopping = os.pipe()
        if ":" in address:
            self.address_family = socket.AF_INET6
        super().__init__((address, port), Handler)

    def allow(self, connection: socket.socket, seconds: float) -> None:
        """Its end, from now."""
        with self.lock:
            if connection in self.ends:
                self.ends[connection] = time.monotonic() + seconds

    def require_allowed(self, request: Request) -> None:
        if not is_own_name(request.host, self.names) and not self.is_address(request.host):
            known = [LOOPBACK, "localhost", *sorted(own_names())]
            known += ["any address of this machine"] if self.is_bound_to_all else []
            told = f"{', '.join(known[:-1])} or {known[-1]}"
            raise Refused(HTTPStatus.FORBIDDEN, f"no name of this server: ask for it as {told}")
        if self.users is not None and user_of(request.connection) not in self.users:
            told = "this is another user's: --allow USER lets one in, --allow all everyone"
            raise Refused(HTTPStatus.FORBIDDEN, told)

    def is_address(self, host: str) -> bool:
        """Where all addresses of the machine lead here: any of them."""
        if not self.is_bound_to_all:
            return False
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        with suppress(ValueError):
            ipaddress.ip_address(name)
            return True
        return False

    def process_request(self, request: socket.socket, client_address: object) -> None:
        with self.lock:
            is_full = len(self.ends) >= CONNECTIONS_MOST
            if not is_full:
                self.ends[request] = time.monotonic() + HEAD_S
        if is_full:
            with suppress(OSError):
                request.setblocking(False)
                request.send(BUSY)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:
        with self.lock:
            self.ends.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        self.end_all_before(time.monotonic())

    def end_all_before(self, moment: float) -> None:
        """Whoever waits for such a client goes on, and finds that it has gone."""
        with self.lock:
            for connection, end in self.ends.items():
                if end < moment:
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """Requests that wait are answered; connections without one end at once."""
        os.write(self.stopping, b".")
        self.shutdown()
        self.server_close()
        begun = time.monotonic()
        self.end_all_before(begun + HEAD_S)
        while self.ends and time.monotonic() < begun + GRACE_S:
            time.sleep(POLL_S / 10)
        self.end_all_before(float("inf"))

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asked has gone: nothing to tell."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def own_names() -> set[str]:
    name = socket.gethostname().lower()
    return {name, name.partition(".")[0]} if name else set()
