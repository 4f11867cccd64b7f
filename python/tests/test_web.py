"""The HTTP server of `serve` and `top --serve`: who is answered, and for how long anybody is."""

from __future__ import annotations

import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from threading import Thread

import pytest
import strangers
from fake_profile import fake_profiled
from strangers import as_root
from test_serve import served

from hakmem.errors import UserError
from hakmem.processes import web
from hakmem.processes.web import Answer, Server, users_named

GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).status)"


@contextmanager
def serving(answer=lambda _: Answer(b"hello\n", web.TEXT_TYPE), **more):
    server = Server("127.0.0.1", 0, answer, **more)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def connected(server: Server | int) -> socket.socket:
    port = server if isinstance(server, int) else server.server_port
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def asked(
    server: Server | int, path: str = "/", host: str = "localhost", method: str = "GET"
) -> bytes:
    with connected(server) as one:
        one.sendall(f"{method} {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        return b"".join(iter(lambda: one.recv(1 << 16), b""))


def status(answer: bytes) -> int:
    return int(answer.split()[1])


def until(condition, told: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, told
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("host", "found"),
    [("localhost", 200), ("127.0.0.1:80", 200), ("LOCALHOST:1", 200), (socket.gethostname(), 200),
     ("[::1]:80", 200), ("evil.example", 403), ("evil.example:6060", 403), ("", 403),
     ("localhost.evil.example", 403), ("192.0.2.7", 403), ("127.0.0.1.evil.example:80", 403)],
)  # fmt: skip
def test_names_of_other_sites_are_refused(host, found):
    with serving() as server:
        assert status(asked(server, host=host)) == found


def test_server_on_all_addresses_is_asked_by_any_of_them():
    server = Server("0.0.0.0", 0, lambda _: Answer(b"", web.TEXT_TYPE))
    server.server_close()
    for host in ("192.0.2.7:80", "192.0.2.7", "[2001:db8::1]:80"):
        assert server.is_address(host), host
    for host in ("evil.example", "192.0.2.7.evil.example:80", ""):
        assert not server.is_address(host), host


def test_head_is_the_answer_without_its_body():
    with serving() as server:
        found = asked(server, method="HEAD")
        assert status(found) == 200
        assert b"Content-Length: 6\r\n" in found
        assert found.endswith(b"\r\n\r\n")
        assert status(asked(server, method="POST")) == HTTPStatus.NOT_IMPLEMENTED


@as_root
def test_only_the_users_who_are_let_in_are_answered():
    for users, found in (((), 403), (("nobody",), 200), ((str(strangers.UID),), 200),
                         (("daemon",), 403), (("all",), 200)):  # fmt: skip
        with serving(users=users_named(users)) as server:
            assert status(asked(server)) == 200
            ran = subprocess.run(
                strangers.command(sys.executable, "-I", "-c", GET, f"http://127.0.0.1:{server.server_port}/"),
                capture_output=True, text=True, check=False, timeout=60)  # fmt: skip
            assert (ran.stdout == "200\n") == (found == 200)
            assert found == 200 or "HTTP Error 403" in ran.stderr


def test_user_of_a_socket_for_both_kinds_of_addresses_is_known():
    with serving(users=users_named(())) as server, socket.socket(socket.AF_INET6) as one:
        one.connect(("::ffff:127.0.0.1", server.server_port))
        one.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert status(one.recv(100)) == 200


def test_whoever_cannot_be_told_is_refused(monkeypatch):
    monkeypatch.setattr(web, "user_of", lambda _: None)
    with serving(users=users_named(())) as server:
        assert status(asked(server)) == 403


def test_unknown_user_is_told():
    with pytest.raises(UserError, match="--allow: there is no user 'nosuch'"):
        users_named(("nosuch",))


@as_root
def test_profile_of_a_process_is_for_its_servers_user():
    with fake_profiled() as fake, served(fake.pid) as (address, _):
        words = strangers.command(sys.executable, "-I", "-c", GET, f"{address}/debug/pprof/heap")
        ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        assert "HTTP Error 403" in ran.stderr
        with pytest.raises(urllib.error.HTTPError) as told:
            urllib.request.urlopen(urllib.request.Request(address, headers={"Host": "x"}))
        assert told.value.code == 403
    with fake_profiled() as fake, served(fake.pid, "--allow", "nobody") as (address, _):
        words[-1] = f"{address}/debug/pprof/heap"
        assert subprocess.run(words, capture_output=True, check=True, timeout=60).stdout == b"200\n"


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_clients_that_have_gone_are_noticed():
    """As many as there were, each asking for an hour."""
    with fake_profiled() as fake, served(fake.pid) as (address, process):
        port = int(address.rpartition(":")[2])
        # It serves by now, in a thread of its own.
        assert status(asked(port)) == 200
        before = threads_of(process.pid)
        with ExitStack() as clients:
            for _ in range(200):
                one = clients.enter_context(connected(port))
                one.sendall(
                    b"GET /debug/pprof/heap?seconds=3600 HTTP/1.0\r\nHost: localhost\r\n\r\n"
                )
            most = threads_of(process.pid)
            assert most <= before + web.CONNECTIONS_MOST
        until(lambda: threads_of(process.pid) <= before, "threads are left")


def test_requests_that_wait_have_a_bound():
    with fake_profiled() as fake, served(fake.pid) as (address, _):
        from hakmem.profiles.profile_server import WAITING_MOST

        port = int(address.rpartition(":")[2])
        with ExitStack() as clients:
            held = [clients.enter_context(connected(port)) for _ in range(WAITING_MOST + 3)]
            for one in held:
                one.sendall(
                    b"GET /debug/pprof/heap?seconds=600 HTTP/1.0\r\nHost: localhost\r\n\r\n"
                )
            # Those that were too many have their answer: the others wait.
            until(lambda: len(select.select(held, [], [], 1)[0]) == 3, "all of them wait")
            path = "/debug/pprof/heap?seconds=0.01"
            assert status(asked(port, path)) == 503
            assert f"{WAITING_MOST} requests wait already".encode() in asked(port, path)
            # Others are answered.
            assert status(asked(port, "/debug/pprof/heap")) == 200


def test_connections_have_a_bound():
    with serving() as server, ExitStack() as clients:
        held = [clients.enter_context(connected(server)) for _ in range(web.CONNECTIONS_MOST)]
        until(lambda: len(server.ends) == len(held), "all are accepted")
        assert b"too many connections" in asked(server)
        held[0].close()
        until(lambda: len(server.ends) < len(held), "it has gone")
        assert status(asked(server)) == 200


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(web, "HEAD_S", 0.5)
    monkeypatch.setattr(web, "SEND_S", 0.5)


def drips(one: socket.socket) -> bool:
    """Sends a byte now and then, until nobody takes them."""
    for _ in range(600):
        try:
            one.send(b"x")
        except OSError:
            return True
        time.sleep(0.1)
    return False


def test_request_that_comes_byte_by_byte_has_an_end(impatient):
    """Each byte comes in time; the whole does not."""
    with serving() as server, connected(server) as one:
        one.send(b"GET /")
        assert drips(one)
        until(lambda: not server.ends, "it is forgotten")


def test_answer_that_is_not_taken_has_an_end(impatient):
    with (
        serving(lambda _: Answer(b"x" * (64 << 20), web.TEXT_TYPE)) as server,
        connected(server) as one,
    ):
        one.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        until(lambda: server.ends, "it is there")
        until(lambda: not server.ends, "it is given up")


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.0\r\nX: "])
def test_slow_clients_do_not_keep_it_from_its_end(sent):
    with fake_profiled() as fake, served(fake.pid) as (address, process):
        port = int(address.rpartition(":")[2])
        with connected(port) as one, connected(port) as other:
            for each in (one, other):
                each.send(sent or b"G")
                Thread(target=drips, args=(each,), daemon=True).start()
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            assert process.wait(45) == 0


def test_top_has_the_same_server():
    from fake_process import fake_process
    from test_top import COMMAND, free_port

    with fake_process():
        port = free_port()
        process = subprocess.Popen(
            [*COMMAND, "--serve", str(port)], stderr=subprocess.PIPE, text=True
        )
        try:
            assert "/metrics" in process.stderr.readline()
            assert status(asked(port, "/metrics", "evil.example")) == 403
            assert status(asked(port, "/metrics", method="HEAD")) == 200
            with connected(port) as one:
                one.send(b"GET /")
                Thread(target=drips, args=(one,), daemon=True).start()
                assert b"hakmem_processes" in asked(port, "/metrics")
                process.send_signal(signal.SIGTERM)
                assert process.wait(45) == 0
        finally:
            process.kill()
            process.wait()
            process.stderr.close()
