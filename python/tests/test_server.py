"""`--server` and `--load`: a server under each allocator, and nothing of it left afterwards."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from small_build import compile_c

from hakmem.cli import main
from hakmem.running.launching import Start
from hakmem.running.serving import ServerRunner, accepts, free_port

# server PORT HOW: answers each connection with a line that says how often it has.
# touch: holds 50 MB. worker: a child in a session of its own. deaf: no signal ends it but SIGKILL.
# background: its first process ends at once. crash: SIGSEGV at the second connection but one.
SOURCE = """
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int argc, char **argv) {
    const char *how = argc > 2 ? argv[2] : "";
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    int yes = 1, s = socket(AF_INET, SOCK_STREAM, 0);
    char *held = strcmp(how, "touch") == 0 ? malloc(50 << 20) : NULL;
    if (held != NULL) memset(held, 1, 50 << 20);
    if (strcmp(how, "deaf") == 0) signal(SIGTERM, SIG_IGN);
    if (strcmp(how, "silent") == 0) for (;;) pause();
    if (strcmp(how, "early") == 0) { fprintf(stderr, "no such colour\\n"); return 3; }
    if (strcmp(how, "worker") == 0 && fork() == 0) { setsid(); for (;;) pause(); }
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(s, (struct sockaddr *)&at, sizeof at) != 0 || listen(s, 9) != 0) return 4;
    if (strcmp(how, "background") == 0 && fork() != 0) return 0;
    if (strcmp(how, "background") == 0) setsid();
    for (int n = 0;; n++) {
        int c = accept(s, NULL, NULL);
        if (n >= 1 && strcmp(how, "crash") == 0) raise(SIGSEGV);
        dprintf(c, "answer = %d\\n", 100 + n);
        close(c);
    }
}
"""
ASKS = """
import socket, sys
print(socket.create_connection(("127.0.0.1", int(sys.argv[1]))).makefile().read(), end="")
"""


@pytest.fixture(scope="module")
def server(build: Path) -> Path:
    source = build / "one_server.c"
    source.write_text(SOURCE)
    return compile_c(build / "one_server", [source])


@pytest.fixture
def load(tmp_path) -> str:
    script = tmp_path / "asks.py"
    script.write_text(ASKS)
    return f"{sys.executable} -S {script} {{port}}"


@pytest.fixture(autouse=True)
def nothing_of_it_stays(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))
    yield
    assert not running(server)


def running(server: Path) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["exe"]) if p.info["exe"] == str(server)]


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def compare(server: str, load: str, *more: str):
    return run("compare", "--with", "glibc", "--pairs", "2", "--idle", "0", "--server", server,
               "--load", load, *more)  # fmt: skip


@pytest.mark.turns
def test_memory_is_the_servers_and_the_figure_the_loads(server, load, tmp_path):
    out = tmp_path / "out.json"
    found = compare(f"{server} {{port}} touch", load, "--metric", r"answer = (\d+)",
                    "--lower-is-better", "--json", str(out))  # fmt: skip
    assert found.exit_code == 0, found.output
    document = json.loads(out.read_text())
    rows = {m["title"]: m["rows"][0]["values"] for m in document["measures"]}
    # The first connection is the one that shows that the port is open.
    assert rows["Figure"] == [101.0, 101.0]
    assert all(value > 50 for value in rows["Peak RSS"])
    assert document["facts"]["server's load"].endswith("'{port}'")
    assert document["rounds"] == 2


@pytest.mark.turns
def test_fixed_port_is_used_again_and_a_taken_one_refused(server, load):
    port = str(free_port())
    found = compare(f"{server} {port}", load, "--port", port)
    assert found.exit_code == 0, found.output
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(port)))
        taken.listen()
        found = compare(f"{server} {port}", load, "--port", port)
    assert found.exit_code == 1
    assert f"port {port} is in use already" in found.output


@pytest.mark.turns
def test_workers_in_sessions_of_their_own_end_too(server, load):
    found = compare(f"{server} {{port}} worker", load)
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("early", "the server ended at its start: exit status 3; it last said: no such colour"),
        ("silent", "the server does not answer after 0.5 s"),
        ("background", "it has to stay in the foreground"),
        ("crash", "killed by SIGSEGV"),
    ],
)
def test_server_that_fails_is_told_in_one_line(server, load, how, told):
    found = compare(f"{server} {{port}} {how}", load, "--ready-timeout", "0.5")
    assert found.exit_code == 1, found.output
    (line,) = [line for line in found.output.splitlines() if line.startswith("Error: ")]
    assert line.startswith("Error: with no allocator preloaded: ")
    assert told in line


def test_load_that_fails_is_told_in_one_line(server):
    found = compare(f"{server} {{port}}", "sh -c 'echo lost >&2; exit 5'")
    assert found.exit_code == 1
    assert "the load failed: exit status 5; it last said: lost" in found.output


def test_server_that_does_not_stop_is_ended(server, load, monkeypatch):
    runner = ServerRunner(load=tuple(load.split()), ready_s=10)
    with monkeypatch.context() as short:
        short.setattr("hakmem.running.serving.STOP_LIMIT_S", 0.2)
        outcome = runner.run(Start([str(server), "{port}", "deaf"]))
    assert outcome.problem == "the server did not end within 0.2 s of SIGTERM"
    stopped = ServerRunner(load=tuple(load.split()), stop=signal.SIGKILL)
    assert stopped.run(Start([str(server), "{port}", "deaf"])).problem == ""


@pytest.mark.turns
def test_allocator_that_breaks_the_server_leaves_the_others(server, load, build, tmp_path):
    floor = build / "bench" / "libfloor.so"
    script = tmp_path / "server.sh"
    script.write_text(f"case $LD_PRELOAD in *floor*) exit 7;; esac; exec {server} $1\n")
    out = tmp_path / "out.json"
    found = compare(f"/bin/sh {script} {{port}}", load, "--lib", f"new={floor}", "--json", str(out))
    assert found.exit_code == 1, found.output
    document = json.loads(out.read_text())
    assert document["rounds"] == 2
    assert "exit status 7" in document["problems"]["new"]


@pytest.mark.turns
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_server_outlives_the_command(server, load, number):
    arguments = ["compare", "--with", "glibc", "--pairs", "500", "--server", f"{server} {{port}}",
                 "--load", "sleep 0.3"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", "from hakmem.cli import main; main()", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 30
    while not running(server) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert running(server)
    process.send_signal(number)
    process.wait(60)
    while running(server) and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.turns
def test_ab_decides_between_two_servers(server, load, build):
    floor = build / "bench" / "libfloor.so"
    found = run("ab", "--a-lib", "glibc", "--b-lib", str(floor), "--pairs", "2", "--max-pairs",
                "2", "--metric", r"answer = (\d+)", "--server", f"{server} {{port}}",
                "--load", load)  # fmt: skip
    # The floor serves malloc; the loader's log proves it, and the figures are the same.
    assert found.exit_code in (0, 4), found.output
    assert "server's load" in found.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--server", "sleep {port}"), "--server needs --load"),
        (("--load", "true"), "there is no --server: --load cannot be given"),
        (("--port", "80", "--stop", "INT", "true"), "no --server: --port, --stop cannot be given"),
        (("--server", "sleep 1", "--load", "true"), "give --port N, or put {port}"),
        (("--server", "sleep '", "--load", "true"), "--server: cannot read"),
        (("--server", " ", "--load", "true"), "--server: ' ' names no program"),
        (("--server", "sleep {port}", "--load", "true", "true"), "exclude each other"),
        (("--server", "sleep {port}", "--load", "true", "--stop", "SIGX"), "--stop: 'SIGX' is no"),
        (("--server", "sleep {port}", "--load", "true", "--stdin", __file__), "--stdin is for"),
    ],
)
@pytest.mark.parametrize("command", ["compare", "ab"])
def test_bad_command_lines_are_refused(command, arguments, told):
    side = ("--b", "HAKMEM_PROFILE=lean") if command == "ab" else ()
    found = run(command, *side, *arguments)
    assert found.exit_code == 2, found.output
    assert told in found.output


def test_port_is_seen_on_either_protocol():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        assert accepts(one.getsockname()[1])
        port = one.getsockname()[1]
    assert not accepts(port)


@pytest.mark.turns
def test_redis_where_it_is_installed(tmp_path):
    if not (shutil.which("redis-server") and shutil.which("redis-benchmark")):
        pytest.skip("redis is not installed")
    out = tmp_path / "out.json"
    found = compare(f"redis-server --port {{port}} --save '' --dir {tmp_path}",
                    "redis-benchmark -p {port} -n 200 -t set -q", "--json", str(out))  # fmt: skip
    # Debian's is linked with jemalloc: then glibc does not serve it, and that is told.
    assert found.exit_code == ("NOT SERVED" in found.output), found.output
    rows = {m["title"]: m["rows"][0]["values"] for m in json.loads(out.read_text())["measures"]}
    assert all(value > 1 for value in rows["Peak RSS"])


def test_the_trial_run_ends_at_the_timeout_too(server):
    begun_at = time.monotonic()
    found = compare(f"{server} {{port}} plain", "sleep 40", "--timeout", "0.5")
    assert time.monotonic() - begun_at < 20
    assert found.exit_code == 1, found.output
    told = "with no allocator preloaded: the load failed: did not end within 0.5 s"
    assert told in found.output
