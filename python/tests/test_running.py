from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_build import run_rotation

from hakmem.allocators.peers import Allocator
from hakmem.errors import UserError
from hakmem.measuring import journal
from hakmem.measuring.journal import Journal
from hakmem.measuring.measures import speed_and_net
from hakmem.measuring.rotation import (
    Contender,
    custom_metric,
    new_rotation,
    run_rounds,
)
from hakmem.plain_text import with_last_words
from hakmem.running.interruption import put_back
from hakmem.running.launching import count_system_calls, own_session, run_once, wait_or_end
from hakmem.running.proof import hakmem_served, load_checked, peer_served

ONE_HEAP = Path(__file__).resolve().parents[2] / "build" / "release" / "bench" / "libone_heap.so"
ANSWER = custom_metric(r"answer (\d+)", lower_is_better=False)


def shell(name: str, script: str) -> Contender:
    return Contender(name, ("/bin/sh", "-c", script))


def test_peak_memory_is_the_programs_own():
    ours_kb = int(Path("/proc/self/statm").read_text().split()[1]) * 4
    found = run_once(["/bin/true"])
    assert found.problem == ""
    assert 100 < found.peak_rss_kb < ours_kb / 2


def test_settings_reach_the_program_alone(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "")
    found = run_once(["/bin/sh", "-c", "echo $COLOUR"], settings={"COLOUR": "green"})
    assert found.stdout == "green\n"


def test_failures_are_told_apart():
    assert run_once(["/bin/sh", "-c", "exit 3"]).problem == "exit status 3"
    assert run_once(["/bin/sh", "-c", "kill -SEGV $$"]).problem == "killed by SIGSEGV"
    assert "cannot start 'no-such-program'" in run_once(["no-such-program"]).problem
    assert "cannot pin to CPU 1000" in run_once(["/bin/true"], cpus="1000").problem


def test_last_words_come_from_stderr():
    found = run_once(["/bin/sh", "-c", "echo ignored; echo why >&2; exit 1"])
    assert found.last_words() == "why"


def test_last_words_are_short_whatever_a_program_writes():
    lines = run_once(["/bin/sh", "-c", "seq 100 >&2; exit 1"])
    assert lines.last_words().split() == ["96", "97", "98", "99", "100"]
    line = run_once(["/bin/sh", "-c", "printf '%09999d' 0 >&2; echo end >&2; exit 1"])
    told = with_last_words(line.problem, line.stderr)
    assert 2000 < len(told) < 2100
    assert told.startswith("exit status 1; it last said: …000") and told.endswith("0end")


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("echo why >&2; exit 3", "ended with status 3 and .*; it last said: why"),
        ("kill -KILL $$", "was killed by SIGKILL and "),
    ],
)
def test_launcher_that_tells_nothing_is_told_with_what_to_do(script, how, tmp_path, monkeypatch):
    launcher = tmp_path / "launch"
    launcher.write_text(f"#!/bin/sh\n{script}\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("HAKLAB_LAUNCH", str(launcher))
    with pytest.raises(UserError, match=f"^{launcher}, which starts each run, {how}") as found:
        run_once(["/bin/true"])
    assert "'/bin/true' cost: this run is lost (HAKLAB_LAUNCH names it)" in found.value.message
    assert found.value.exit_code == 125


WATCHED = "witness.run_watched(['/bin/sleep', '30'], os.environ, Path('/none')).exit_status"
OPENED = "opened(handing_over)"


@pytest.mark.turns
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("side", ["ours", "its"])
@pytest.mark.parametrize("way", [WATCHED, OPENED])
def test_a_signal_while_a_program_is_started_ends_it(way, side, name):
    """Sent between the beginning and the fork, or by the copy of us that is not the program yet."""
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from hakmem.running import interruption, witness\n"
        "from hakmem.running.handover import Handover, handing_over\n"
        f"send = lambda: os.kill(os.getpid(), signal.{name})\n"
        "fork, begin = os.fork, Handover.begin\n"
        "def forked():\n"
        "    if sys.argv[1] == 'ours': send()\n"
        "    return fork()\n"
        "def begun(self):\n"
        "    if sys.argv[1] == 'its': send()\n"
        "    begin(self)\n"
        "def opened(handing_over):\n"
        "    with handing_over() as signals:\n"
        "        if sys.argv[1] == 'ours': send()\n"
        "        return 128 - signals.popen(['/bin/sleep', '30'], os.environ).wait()\n"
        "os.fork, Handover.begin = forked, begun\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "interruption.be_raised()\n"
        f"print({way})\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, side], capture_output=True, text=True, timeout=20, check=False
    )
    assert (found.stdout, found.stderr) == (f"{128 + signal.Signals[name]}\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_round_is_written_comes_behind_it(number, tmp_path):
    class Log(Journal):
        def write(self, document: dict) -> None:
            if document.get("round") == 2:
                os.kill(os.getpid(), number)
            super().write(document)

    rows = [shell("a", "echo answer 2"), shell("b", "echo answer 4")]
    rotation = new_rotation(rows, ANSWER, 1)
    log = Log(tmp_path / "log.jsonl")
    log.begin("test", rotation, {})
    with put_back():
        signal.signal(number, signal.default_int_handler)
        run_rounds(rotation, 9, log=log)
    assert (rotation.rounds_done, rotation.interrupted) == (2, True)
    assert journal.read(tmp_path / "log.jsonl")[1].rounds_done == 2


def test_library_that_does_not_load_is_never_glibc_in_disguise(tmp_path):
    missing = run_once(["/bin/true"], tmp_path / "libnone.so")
    assert missing.problem.startswith("not loaded")
    broken = tmp_path / "libbroken.so"
    broken.write_text("not a library")
    assert "not loaded" in load_checked(Allocator("broken", broken)).problem


def test_rotation_runs_every_contender_once_a_round():
    rows = [shell("a", "echo answer 2"), shell("b", "echo answer 4")]
    found = run_rotation(rows, ANSWER, rounds=6, seed=5)
    assert found.series["a"].values == [2.0] * 6
    assert found.series["b"].values == [4.0] * 6
    assert speed_and_net(found, "a", found.costs("b"), "floor")[0].median == 0.5


def test_order_is_shuffled_and_repeats_with_the_seed():
    rows = [shell(name, "echo answer 1") for name in "abcd"]

    def order(seed: int) -> list[str]:
        seen: list[str] = []
        run_rotation(rows, ANSWER, rounds=3, seed=seed, progress=seen.append)
        return seen

    first = order(1)
    assert first == order(1)
    assert first[:4] != first[4:8] or first[4:8] != first[8:]
    assert sorted(first[:4]) == list("abcd")


def test_contender_that_crashes_leaves_the_rotation():
    rows = [shell("good", "echo answer 1"), shell("bad", "echo oops >&2; kill -ABRT $$")]
    seen: list[str] = []
    found = run_rotation(rows, ANSWER, rounds=4, seed=1, progress=seen.append)
    assert seen.count("bad") == 1
    assert seen.count("good") == 4
    assert (len(found.series["good"].values), found.has_figures("good")) == (4, True)
    assert (found.series["bad"].problem, found.has_figures("bad")) == ("killed by SIGABRT", False)
    assert found.series["bad"].last_words == "oops"


def test_output_without_the_figure_is_a_problem():
    found = run_rotation([shell("a", "echo nothing")], ANSWER, rounds=3, seed=1)
    assert "nothing in its output fits 'answer" in found.series["a"].problem


def test_interrupt_keeps_whole_rounds_only():
    calls = []

    def interrupt_in_third_round(name: str) -> None:
        calls.append(name)
        if len(calls) == 6:
            raise KeyboardInterrupt

    rows = [shell("a", "echo answer 1"), shell("b", "echo answer 3")]
    found = run_rotation(rows, ANSWER, 9, seed=1, progress=interrupt_in_third_round)
    assert found.interrupted
    assert found.rounds_done == 2
    assert [len(found.costs(name)) for name in "ab"] == [2, 2]


def test_counter_line_proves_service(build):
    served = hakmem_served(["/bin/true"], build / "libhakmem.so")
    assert served
    assert str(served) == "yes, 7 spans handed out"
    assert served.settings == ("HAKMEM_PROFILE=balanced",)


def test_library_without_the_counter_line_did_not_serve(build):
    served = hakmem_served(["/bin/true"], build / "bench" / "libfloor.so")
    assert not served
    assert str(served) == "NOT SERVED"


def test_loader_proves_service_of_the_others(build):
    floor = Allocator("floor", build / "bench" / "libfloor.so")
    program = [str(build / "bench" / "bench_random_mixed"), "10"]
    assert peer_served(program, floor) == "yes"
    assert peer_served(program, Allocator("glibc")) == "yes"
    serves_nothing = Allocator("other", build / "libhakmem.so")
    assert peer_served(program, serves_nothing).startswith("NOT SERVED (libc.so")
    assert peer_served([str(build / "bench" / "missing")], floor).startswith("unknown")


@pytest.mark.skipif(not ONE_HEAP.is_file(), reason="the library is not built")
def test_a_library_that_serves_from_hakmem_serves():
    assert peer_served(["/usr/bin/env"], Allocator("heap", ONE_HEAP)) == "yes"


def test_system_calls_without_strace(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    found = count_system_calls(["/bin/true"], None)
    assert str(found) == "n/a"
    assert "not installed" in found.note


def test_system_calls_are_a_count_or_a_reason():
    found = count_system_calls(["/bin/true"], None)
    assert (found.total or 0) > 3 or found.note


def test_program_that_hangs_is_ended_with_its_children():
    script = "sleep 60 & echo $!; wait"
    found = run_once(["/bin/sh", "-c", script], limit_s=0.3)
    assert found.problem == "did not end within 0.3 s"
    assert found.wall_s < 30
    child = int(found.stdout)
    # It is told to end, and does a moment later.
    deadline = time.monotonic() + 20
    while not has_ended(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert has_ended(child)


def has_ended(process: int) -> bool:
    try:
        return "(zombie)" in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return True


def interrupt_within(process: subprocess.Popen) -> None:
    """Its wait() is interrupted where its lock has been taken and will not be dropped."""

    def wait(*_):
        assert process._waitpid_lock.acquire(timeout=10)
        raise KeyboardInterrupt

    process.wait = wait


def test_ctrl_c_in_the_middle_of_a_wait_ends_the_program():
    process = subprocess.Popen(["/bin/sleep", "100"])
    interrupt_within(process)
    with pytest.raises(KeyboardInterrupt):
        wait_or_end(process, 0)
    assert process.returncode == -signal.SIGTERM


def test_ctrl_c_in_the_middle_of_a_wait_ends_a_session():
    with pytest.raises(KeyboardInterrupt), own_session(["/bin/sleep", "100"]) as process:
        interrupt_within(process)
        process.wait()
    assert process.returncode == -signal.SIGKILL
