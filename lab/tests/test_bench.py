import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from hakmem.cli import main
from hakmem.measuring import journal

SCENARIO_HEAD = "allocator,scenario,iterations,avg_ns,soft_pf,hard_pf,rss_kb,ops_per_sec"
HEAD = """
title = "two rows"
rounds = 5
slice_s = 0.01
limit_minutes = 1
allocators = ["glibc", "nosuch-yet|rpmalloc"]
modes = ["preload"]
"""
TWO_ROWS = """
[[row]]
name = "first"
title = "first <row>"
group = "core"
program = "bench_random_mixed"
arguments = ["{work}", 40]
work = 20000

[[row]]
name = "second"
group = "scenarios"
program = "/bin/sh"
arguments = ["-c", "echo 'Throughput = 2000000 ops/s [values=10] time=0.001s'"]
scenario = "json"
operations = "values"
"""


def run(*arguments: str):
    return CliRunner().invoke(main, ["bench", *arguments])


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path / "peers"))


@pytest.fixture
def suite(tmp_path) -> str:
    return write_suite(tmp_path, HEAD.replace("nosuch-yet|", "") + TWO_ROWS)


def write_suite(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


def results() -> Path:
    found = list(journal.results_folder().glob("bench-*"))
    assert len(found) == 1
    return found[0]


def document() -> dict:
    return json.loads((results() / "results.json").read_text())


@pytest.mark.turns
def test_a_suite_leaves_tables_and_all_files(suite):
    found = run(suite, "--seed", "5")
    assert found.exit_code == 0, found.output
    assert "note: not compared: rpmalloc: not built" in " ".join(found.output.split())
    assert "One binary under LD_PRELOAD: speed" in " ".join(found.output.split())
    assert "2.0 M" in found.output
    written = document()
    assert written["finished"] is True
    assert [row["name"] for row in written["rows"]] == ["first", "second"]
    entry = written["rows"][1]["entries"][0]
    assert (entry["allocator"], entry["rounds"], entry["median"]) == ("glibc", 5, 2e6)
    assert (entry["cv"], entry["cv_low"], entry["cv_high"]) == (0, 0, 0)
    entry = written["rows"][0]["entries"][0]
    assert 0 <= entry["cv_low"] <= entry["cv_high"]
    assert (results() / "scenarios.csv").stat().st_size


def test_head_of_the_csv_is_exact(suite):
    assert run(suite).exit_code == 0
    scenarios = (results() / "scenarios.csv").read_text().splitlines()
    assert scenarios[0] == SCENARIO_HEAD
    name, scenario, iterations, average, *_, speed = scenarios[1].split(",")
    assert (name, scenario, iterations, average) == ("glibc", "json", "10", "500.00")
    assert speed == "2000000"


def test_rows_run_as_many_rounds_as_they_have_of_their_own(tmp_path):
    text = HEAD.replace("nosuch-yet|", "") + TWO_ROWS + "rounds = 2\n"
    found = run(write_suite(tmp_path, text))
    assert found.exit_code == 0, found.output
    assert [row["rounds"] for row in document()["rows"]] == [5, 2]
    again = run("--resume", str(results()))
    assert again.exit_code == 0, again.output
    assert [row["rounds"] for row in document()["rows"]] == [5, 2]


def test_a_row_that_does_not_fit_into_memory_is_passed_over(tmp_path, monkeypatch):
    free = psutil.virtual_memory()._replace(available=64 << 20)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    text = HEAD.replace("nosuch-yet|", "") + TWO_ROWS + "needed_mb = 65\n"
    found = run(write_suite(tmp_path, text))
    assert found.exit_code == 0, found.output
    assert "second: passed over: it needs about 65 MB, and 64 MB are free" in found.output
    assert [row["name"] for row in document()["rows"]] == ["first"]


def test_hakmem_is_proved_row_by_row(suite, build):
    found = run(suite, "--with", "hakmem,glibc", "--rows", "first")
    assert found.exit_code == 0, found.output
    row = document()["rows"][0]
    assert row["served"].startswith("yes, 7 spans handed out")
    facts = document()["facts"]
    assert facts["effective settings"] == "HAKMEM_PROFILE=balanced"
    assert document()["served"]["glibc"] == "yes"


def test_hakmem_that_did_not_serve_is_a_problem_and_a_status(suite, build, monkeypatch):
    monkeypatch.setenv("HAKLAB_LIB", str(build / "bench" / "libfloor.so"))
    found = run(suite, "--with", "hakmem,glibc", "--rows", "second")
    assert found.exit_code == 1
    assert "second (preload), hakmem: NOT SERVED" in found.output


def test_missing_peer_asked_for_is_said_before_anything_runs(suite):
    found = run(suite, "--with", "glibc,rpmalloc", "--rows", "second")
    assert found.exit_code == 2
    assert "rpmalloc: not built (hakmem peers build rpmalloc)" in found.output


@pytest.mark.turns
def test_crash_under_one_allocator_leaves_the_rest(tmp_path, build):
    floor = build / "bench" / "libfloor.so"
    script = "case $LD_PRELOAD in *floor*) echo oops >&2; kill -SEGV $$;; esac"
    row = f'[[row]]\nname = "crash"\nprogram = "/bin/sh"\narguments = ["-c", "{script}"]\n'
    suite = write_suite(tmp_path, HEAD.replace("nosuch-yet|", "") + row + TWO_ROWS)
    found = run(suite, "--with", "glibc", "--lib", f"new={floor}")
    assert found.exit_code == 1, found.output
    assert "crash (preload), new: killed by SIGSEGV; it last said: oops" in found.output
    written = document()
    assert [row["rounds"] for row in written["rows"]] == [5, 5, 5]
    assert written["rows"][1]["entries"][1]["problem"] == ""
    assert written["tallies"][0]["without"] == 1


def test_missing_program_is_a_row_and_the_rest_goes_on(tmp_path):
    row = '[[row]]\nname = "gone"\nprogram = "bench_gone"\n'
    found = run(write_suite(tmp_path, HEAD.replace("nosuch-yet|", "") + row + TWO_ROWS))
    assert found.exit_code == 1
    assert "bench_gone is missing: build first" in found.output
    assert [row["rounds"] for row in document()["rows"]] == [0, 5, 5]


def test_environment_is_clean_but_for_what_is_set(tmp_path, monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    script = "test -z $MALLOC_ARENA_MAX && test $LOOK = lean"
    row = f'[[row]]\nname = "look"\nprogram = "/bin/sh"\narguments = ["-c", "{script}"]\n'
    suite = write_suite(tmp_path, HEAD.replace("nosuch-yet|", "") + row)
    found = run(suite, "--set", "LOOK=lean")
    assert found.exit_code == 0, found.output
    assert re.search(r"taken out of the environment +MALLOC_ARENA_MAX=1", found.output)
    assert document()["settings"] == {"LOOK": "lean"}
    assert os.environ["MALLOC_ARENA_MAX"] == "1"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("nosuch",), "unknown suite 'nosuch' (known: quick, full,"),
        (("nosuch.toml",), "cannot read nosuch.toml"),
        (("quick", "--rows", "nosuch"), "--rows: no row fits 'nosuch' (known: random-mixed-400,"),
        (("threads", "--mode", "static"), "no row of suite 'threads' has this mode"),
        (("quick", "--set", "novalue"), "--set: 'novalue' is not NAME=VALUE"),
        (("quick", "--with", "nosuch"), "unknown allocator 'nosuch'"),
        (("--resume", "nowhere"), "cannot read nowhere/plan.json"),
        (("quick", "--rounds", "0"), "--rounds"),
    ],
)
def test_wrong_command_lines_end_with_status_2(arguments, complaint):
    found = run(*arguments)
    assert found.exit_code == 2
    assert complaint in found.output
    assert not list(journal.results_folder().glob("bench-*"))


def test_broken_suite_is_named(tmp_path):
    found = run(write_suite(tmp_path, "rounds = ["))
    assert found.exit_code == 2
    assert "mine.toml is no TOML" in found.output


def test_lists_say_what_there_is():
    found = run("--list")
    assert found.exit_code == 0
    assert "quick" in found.output
    assert run("quick", "--list", "--rounds", "3").exit_code == 2
    rows = run("--list", "quick")
    assert "bench_random_mixed 10000000 400" in rows.output


def test_resume_takes_everything_from_its_folder(suite):
    assert run(suite, "--rows", "second").exit_code == 0
    before = (results() / "second.preload.jsonl").read_text()
    found = run("--resume", str(results()))
    assert found.exit_code == 0, found.output
    assert (results() / "second.preload.jsonl").read_text() == before
    refused = run("--resume", str(results()), "--rounds", "7")
    assert refused.exit_code == 2
    assert "--resume takes all from its folder: --rounds cannot be given" in refused.output


def test_resume_refuses_a_changed_library(suite, build, tmp_path):
    library = tmp_path / "libnew.so"
    library.write_bytes((build / "bench" / "libfloor.so").read_bytes())
    assert run(suite, "--rows", "second", "--lib", f"new={library}").exit_code == 0
    with library.open("ab") as file:
        file.write(b"x")
    found = run("--resume", str(results()))
    assert found.exit_code == 2
    assert "libnew.so has changed since" in found.output


def test_cut_journal_is_continued(suite):
    assert run(suite, "--rows", "second", "--seed", "1").exit_code == 0
    path = results() / "second.preload.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]) + lines[3][:20])
    found = run("--resume", str(results()))
    assert found.exit_code == 0, found.output
    again = path.read_text().splitlines(keepends=True)
    assert again[:3] == lines[:3]
    assert [json.loads(line).get("round") for line in again] == [None, 1, 2, 3, 4, 5]
    assert document()["rows"][0]["entries"][0]["rounds"] == 5


SLOW_ROW = """
[[row]]
name = "slow"
program = "/bin/sh"
arguments = ["-c", "sleep 0.15; echo Throughput = 5"]
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_finished_rounds_and_a_report_to_go_on_from(tmp_path, number):
    head = HEAD.replace("nosuch-yet|", "").replace("rounds = 5", "rounds = 12")
    suite = write_suite(tmp_path, head + TWO_ROWS + SLOW_ROW)
    command = [sys.executable, "-c", "from hakmem.cli import main; main()", "bench", suite]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    path = wait_for_rounds(journal.results_folder(), "slow.preload.jsonl", 2)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert re.search(r"interrupted after \d of \d rows; go on with hakmem bench --resume", output)
    kept = path.read_text().splitlines(keepends=True)
    written = document()
    assert written["finished"] is False
    rounds = [row["rounds"] for row in written["rows"]]
    assert rounds[:2] == [12, 12]
    assert 2 <= rounds[2] < 12
    assert len(kept) == 1 + rounds[2]
    first = (results() / "first.preload.jsonl").read_text()

    resumed = run("--resume", str(results()))
    assert resumed.exit_code == 0, resumed.output
    assert path.read_text().splitlines(keepends=True)[: len(kept)] == kept
    assert (results() / "first.preload.jsonl").read_text() == first
    assert [row["rounds"] for row in document()["rows"]] == [12, 12, 12]
    assert document()["finished"] is True


def wait_for_rounds(folder: Path, name: str, rounds: int) -> Path:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for path in folder.glob(f"bench-*/{name}"):
            if len(path.read_text().splitlines()) > rounds:
                return path
        time.sleep(0.02)
    raise AssertionError(f"{name} has no {rounds} rounds")
