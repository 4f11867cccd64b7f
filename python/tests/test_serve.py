from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_profile import fake_profiled
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from test_profile import decoded
from test_top import COMMAND as TOP

from hakmem.cli import main
from hakmem.processes import stats_page
from hakmem.profiles import profile_page

pytestmark = pytest.mark.turns

COMMAND = [*TOP[:-1], "serve"]
GO = shutil.which("go")


@contextmanager
def served(pid: int, *arguments: str, name: str = "server"):
    """The address it says it has, and the process."""
    process = subprocess.Popen([*COMMAND, "--port", "0", *arguments, str(pid)], text=True,
                               stderr=subprocess.PIPE)  # fmt: skip
    try:
        assert select.select([process.stderr], [], [], 60)[0]
        line = process.stderr.readline()
        assert f" serves {name} ({pid})" in line, line
        yield line.split()[0].rstrip("/"), process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture
def fake():
    with fake_profiled() as process:
        yield process


@pytest.fixture
def server(fake):
    with served(fake.pid) as (address, process):
        yield address
        process.terminate()
        assert process.wait(60) == 0


def get(address: str, **headers: str) -> tuple[int, bytes, str]:
    request = urllib.request.Request(address, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read(), answer.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers["Content-Type"]


def answers_of(pid: int) -> int:
    """How many times the process has been asked, doubled."""
    path = stats_page.page_file(pid, profile_page.NAME, profile_page.HEADER, 1)
    with path.open("rb") as file:
        return profile_page.HEADER.unpack(file.read(profile_page.HEADER.size))[2]


def wait_for_more(pid: int, before: int) -> None:
    end = time.monotonic() + 60
    while answers_of(pid) < before + 2:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_heap_and_allocs_are_of_now(fake, server):
    status, data, kind = get(f"{server}/debug/pprof/heap")
    assert (status, kind) == (200, "application/octet-stream")
    message, samples = decoded(data)
    assert message.string_table[message.default_sample_type] == "inuse_space"
    key = ("server+0x1100", "server+0x1500")
    assert samples[key][:2] == [64, 64 << 20]
    since = "hakmem: of what was allocated since 2023-11-14 22:13:20 UTC"
    assert [message.string_table[comment] for comment in message.comment] == [since]
    fake.tell("grow")
    message, samples = decoded(get(f"{server}/debug/pprof/allocs")[1])
    assert message.string_table[message.default_sample_type] == "alloc_space"
    assert samples[key][:2] == [72, 72 << 20]


def test_seconds_give_the_difference(fake, server):
    fake.tell("growing")
    status, data, _ = get(f"{server}/debug/pprof/heap?seconds=0.3")
    assert status == 200
    message, samples = decoded(data)
    since = "hakmem: of what was allocated since 2023-11-14 22:13:20 UTC"
    assert [message.string_table[comment] for comment in message.comment] == [since]
    assert {names: values[:2] for names, values in samples.items()} == {
        ("server+0x1100", "server+0x1500"): [8, 8 << 20]
    }


@pytest.mark.parametrize("seconds", ["0", "-1", "many", "nan", "1e9"])
def test_seconds_that_are_none_are_refused(server, seconds):
    status, text, _ = get(f"{server}/debug/pprof/heap?seconds={seconds}")
    assert (status, text) == (400, b"seconds must be above 0 and at most 3600\n")


@pytest.mark.parametrize(
    ("request_path", "told"),
    [
        ("/debug/pprof/heap?second=10", b"no key 'second': there is seconds\n"),
        ("/debug/pprof/allocs?seconds=1&debug=1", b"no key 'debug': there is seconds\n"),
        ("/debug/pprof/heap?seconds=1&seconds=2", b"seconds is given twice\n"),
        ("/debug/pprof/heap?seconds=", b"seconds must be above 0 and at most 3600\n"),
        ("/report?seconds=1", b"no key 'seconds': there are none here\n"),
        ("/metrics?x", b"no key 'x': there are none here\n"),
    ],
)
def test_mistyped_key_is_refused_by_its_name(server, request_path, told):
    assert get(f"{server}{request_path}")[:2] == (400, told)


@pytest.mark.parametrize(
    "path",
    ["/", "/favicon.ico", "/report", "/metrics", "/debug/pprof/heap", "/debug/pprof/allocs",
     "/debug/pprof/heap?seconds=0.1", "/debug/pprof/heap?seconds=x", "/other"],
)  # fmt: skip
def test_head_is_answered_as_get_without_a_body(server, path):
    host = server.removeprefix("http://")
    answers = {}
    for method in ("GET", "HEAD"):
        with socket.create_connection(host.split(":"), 60) as one:
            one.sendall(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            head, _, body = one.makefile("rb").read().partition(b"\r\n\r\n")
        lines = head.decode().splitlines()
        fields = dict(line.split(": ", 1) for line in lines[1:])
        # What was sampled meanwhile is in the length.
        length = int(fields.pop("Content-Length"))
        assert len(body) == (length if method == "GET" else 0)
        assert length > 0
        answers[method] = (lines[0], fields | {"Date": ""})
    assert answers["GET"] == answers["HEAD"]


def test_an_icon_is_there(server):
    status, data, kind = get(f"{server}/favicon.ico")
    assert (status, kind) == (200, "image/svg+xml")
    assert data.startswith(b"<svg ")


def test_index_and_report(fake, server):
    status, text, kind = get(server)
    assert (status, kind) == (200, "text/html; charset=utf-8")
    for path in ("/debug/pprof/heap", "/debug/pprof/allocs", "/metrics", "/report"):
        assert f'href="{path}"'.encode() in text
        assert get(server + path)[0] == 200
    assert b"Flame graph" in get(f"{server}/report")[1]
    assert get(f"{server}/other")[0] == 404


def test_metrics_of_the_profile(fake, server):
    _, text, kind = get(f"{server}/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    families = {f.name: f for f in text_string_to_metric_families(text.decode())}
    [live] = families["hakmem_heap_profile_live_bytes"].samples
    assert (live.labels, live.value) == ({"pid": str(fake.pid), "comm": "server"}, 65 << 20)
    assert families["hakmem_heap_profile_samples"].samples[0].value == 700
    assert families["hakmem_heap_profile_start_time_seconds"].samples[0].value == 1.7e9
    assert families["hakmem_heap_profile_stop_time_seconds"].samples[0].value == 0
    assert "hakmem_resident_bytes" not in families
    assert b"hakmem_heap_profile_samples_total" in get(f"{server}/metrics")[1]


def test_metrics_of_the_statistics_page_too():
    with fake_profiled("stats") as fake, served(fake.pid) as (address, _):
        text = get(f"{address}/metrics")[1].decode()
    assert "hakmem_heap_profile_live_bytes" in text
    assert "hakmem_resident_bytes" in text
    assert "hakmem_processes 1.0" in text


def test_other_names_of_this_machine_are_refused(server):
    """A page of another site could have its name point here."""
    assert get(server, Host="evil.example:6060")[0] == 403
    assert get(server, Host="localhost:6060")[0] == 200


def test_it_listens_on_the_loopback_address_alone(server):
    port = int(server.rpartition(":")[2])
    with socket.socket() as one:
        one.settimeout(10)
        # Another address of the same interface: nobody is there.
        assert one.connect_ex(("127.0.0.2", port)) != 0


def test_the_end_of_the_process_ends_it(fake):
    with served(fake.pid) as (address, process):
        answers = []
        asking = threading.Thread(
            target=lambda: answers.append(get(f"{address}/debug/pprof/heap?seconds=600"))
        )
        before = answers_of(fake.pid)
        asking.start()
        wait_for_more(fake.pid, before)
        fake.tell("end", wait=False)
        asking.join(60)
        assert process.wait(60) == 0
        assert process.stderr.read() == f"hakmem serve: process {fake.pid} has ended\n"
    status, text, _ = answers[0]
    assert (status, text) == (503, f"process {fake.pid} has ended\n".encode())


def test_an_interrupt_ends_it_whoever_waits(fake):
    with served(fake.pid) as (address, process):
        answers = []
        asking = threading.Thread(
            target=lambda: answers.append(get(f"{address}/debug/pprof/heap?seconds=600"))
        )
        before = answers_of(fake.pid)
        asking.start()
        wait_for_more(fake.pid, before)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        asking.join(60)
    assert answers[0][:2] == (503, b"the server was stopped\n")


def test_a_process_that_cannot_answer_is_503(fake, server):
    fake.tell("fail 12")
    status, text, _ = get(f"{server}/debug/pprof/heap")
    assert status == 503
    assert b"it could not write its profile: Cannot allocate memory" in text
    fake.tell("good")
    assert get(f"{server}/debug/pprof/heap")[0] == 200


def test_it_ends_where_its_address_cannot_be_told(fake):
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen([*COMMAND, "--port", "0", str(fake.pid)], stderr=full)
        try:
            assert process.wait(60) == 1
        finally:
            process.kill()
            process.wait()


def test_port_in_use_is_one_line(fake):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        found = CliRunner().invoke(main, ["serve", "--port", port, str(fake.pid)])
    assert (found.exit_code, found.output) == (
        1,
        f"Error: --port: 127.0.0.1:{port}: Address already in use\n",
    )


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("4194304",), 1, "there is no process 4194304"),
        (
            (str(os.getpid()),),
            1,
            "keeps no heap profile (there is no hakmem in it): start it with HAKMEM_HEAP_PROFILE=1",
        ),
        (("server",), 2, "'server' is no PID, which is a number such as 1234"),
        (("--port", "70000", "1"), 2, "70000 is not in the range"),
    ],
)
def test_mistakes_are_one_line(arguments, status, told):
    found = CliRunner().invoke(main, ["serve", *arguments])
    assert found.exit_code == status
    assert told in found.output


@pytest.mark.skipif(GO is None, reason="no go: Debian's golang-go")
def test_pprof_of_go_asks_it(server, tmp_path):
    said = subprocess.run([GO, "tool", "pprof", "-top", f"{server}/debug/pprof/heap"], text=True,
                          capture_output=True, check=False,
                          env={**os.environ, "PPROF_TMPDIR": str(tmp_path)})  # fmt: skip
    if "no such tool" in said.stderr:
        pytest.skip("this go has no pprof")
    assert "Type: inuse_space" in said.stdout, said.stderr
    assert "server+0x1100" in said.stdout
