"""What commands do with a PID: options behind it, completion, q, and one that lacks a page."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_process import fake_process
from fake_profile import document, fake_profiled
from test_completion import completed
from test_top import COMMAND as TOP

from hakmem.cli import main
from hakmem.processes import stats_page

LIBRARY = Path(__file__).resolve().parents[2] / "build" / "release" / "libhakmem.so"


def run(*arguments: object):
    return CliRunner().invoke(main, [str(each) for each in arguments])


def test_options_may_stand_behind_a_pid_and_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with fake_profiled() as fake:
        found = run("profile", fake.pid, "--format", "folded", "--output", tmp_path / "a")
        assert found.exit_code == 0, found.output
        assert (tmp_path / "a.folded").exists()
    (tmp_path / "p.json").write_text(json.dumps(document()))
    found = run("profile", "p.json", "--leaks", "--format", "folded")
    assert "Not freed, by stack" in found.output, found.output
    with fake_process() as fake:
        found = run("explain", fake.pid, "--json", tmp_path / "e.json", "--classes", "0")
        assert found.exit_code == 0, found.output
        assert (tmp_path / "e.json").exists()
    # Behind a program they are the program's, a number's name too.
    for words in (("echo", "--leaks"), ("--", "1", "--leaks")):
        assert "--leaks" not in run("profile", "--format", "folded", *words).stderr


@pytest.mark.turns
def test_processes_and_diff_are_completed():
    with subprocess.Popen(["sleep", "60"]) as process:
        begun = str(process.pid)
        try:
            assert begun in completed("hakmem profile ")
            assert begun in completed(f"hakmem profile {begun[:-1]}")
            for words in ("explain", "top", "serve", "profile diff a.json"):
                assert begun in completed(f"hakmem {words} {begun}"), words
            assert "diff" in completed("hakmem profile d")
            assert "diff" not in completed(f"hakmem profile {begun}")
            # A file's name is the shell's part.
            assert completed("hakmem profile hea") == ["hea"]
        finally:
            process.kill()


@pytest.mark.turns
@pytest.mark.parametrize(("keys", "ends"), [(b"q", True), (b"Q", True), (b"x\n", False)])
def test_q_leaves_top(keys, ends):
    with fake_process() as fake:
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(TOP[0], [*TOP, "--interval", "50", str(fake.pid)])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 40, 180, 0, 0))
        before = termios.tcgetattr(terminal)
        said, ended, end = b"", 0, time.monotonic() + 60
        while str(fake.pid).encode() not in said and time.monotonic() < end:
            if select.select([terminal], [], [], 1)[0]:
                said += os.read(terminal, 4096)
        # It reads keys by then, which it says by the terminal's way.
        while termios.tcgetattr(terminal)[3] & termios.ICANON and time.monotonic() < end:
            time.sleep(0.05)
        os.write(terminal, keys)
        end = time.monotonic() + (30 if ends else 1)
        while not ended and time.monotonic() < end:
            with suppress(OSError):
                if select.select([terminal], [], [], 0.05)[0]:
                    os.read(terminal, 4096)
            ended, status = os.waitpid(pid, os.WNOHANG)
        assert bool(ended) == ends
        if ends:
            assert status == 0
            assert termios.tcgetattr(terminal)[3] == before[3]
        else:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        os.close(terminal)


@pytest.mark.skipif(not LIBRARY.is_file(), reason="the library is not built")
@pytest.mark.turns
def test_a_process_without_a_page_is_told_of_with_the_command_that_gives_it_one(tmp_path):
    environment = {**os.environ, "LD_PRELOAD": str(LIBRARY)}
    words = [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()", "a b"]
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as process:  # fmt: skip
        process.stdout.readline()
        for command in (("explain",), ("top", "--once")):
            found = run(*command, process.pid)
            assert found.exit_code == 1
            told = found.output
            assert "has no page: start it with HAKMEM_STATS_PAGE=1: " in told
            again = f"HAKMEM_STATS_PAGE=1 hakmem run -- {sys.executable} -c "
            assert again in told and told.count("\n") == 1
            assert f"'a b'; without a restart, hakmem profile {process.pid} shows" in told
        process.stdin.close()
    with subprocess.Popen(["sleep", "60"]) as process:
        found = run("explain", process.pid)
        assert "has no page (there is no hakmem in it): start it" in found.output
        assert "without a restart" not in found.output
        assert re.search(r"hakmem run -- (sleep|\S*coreutils\S*) ", found.output)
        process.kill()


def test_a_command_line_that_is_long_or_gone_is_left_out():
    with subprocess.Popen([sys.executable, "-c", "input()", "x" * 5000],
                          stdin=subprocess.PIPE) as process:  # fmt: skip
        assert stats_page.command_line_of(process.pid) == "PROGRAM ARGUMENT…"
        process.stdin.close()
    assert stats_page.command_line_of(process.pid) == "PROGRAM ARGUMENT…"
