from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from rich.console import Console
from small_build import run_rotation

from hakmem import files
from hakmem.allocators.peers import (
    HARDENED_NAMES,
    USUAL_HELP,
    USUAL_NAMES,
    find,
    from_path,
    known_names,
)
from hakmem.allocators.recipes import RECIPES
from hakmem.cli import OF_THE_SOURCES, main
from hakmem.measuring.measures import (
    FAULTS,
    NO_DIFFERENCE,
    NOT_SERVED,
    PEAK_RSS,
    TOO_FEW,
    WALL,
    Cell,
    evaluate,
    measures_for,
    scale_of,
    verdict,
)
from hakmem.measuring.rotation import (
    OPS_PER_SECOND,
    WALL_TIME,
    Contender,
    custom_metric,
)
from hakmem.measuring.statistics import Interval
from hakmem.options import usual_names
from hakmem.output import sentences, tables
from hakmem.output.report import page
from hakmem.running.launching import run_once

PRINTS = ("/bin/sh", "-c", "echo Throughput = 5000000 ops/s")


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def says(name: str, text: str) -> Contender:
    return Contender(name, ("/bin/sh", "-c", f"echo {text}"))


def cell(name: str, *values: float, verdict: str = "slower") -> Cell:
    middle = Interval(values[0], values[0] * 0.9, values[0] * 1.1)
    return Cell(name, values, middle, 0.01, 1.5, Interval(1.5, 1.4, 1.6), verdict)


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch) -> Path:
    """No built peers, and a results folder of the test's own."""
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path / "peers"))
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"


def test_verdict_needs_an_interval_on_one_side_of_one():
    assert verdict(WALL, Interval(1.1, 1.05, 1.2)) == "slower"
    assert verdict(WALL, Interval(0.9, 0.85, 0.99)) == "faster"
    assert verdict(WALL, Interval(1.1, 0.99, 1.2)) == NO_DIFFERENCE
    assert verdict(WALL, Interval(2.0)) == TOO_FEW
    assert verdict(PEAK_RSS, Interval(2.0, 1.9, 2.1)) == "more"


def test_ratios_are_of_cost_whatever_the_direction():
    rows = [says("a", "Throughput = 100"), says("b", "Throughput = 50")]
    rotation = run_rotation(rows, OPS_PER_SECOND, 6, seed=1)
    own = measures_for(OPS_PER_SECOND)[0]
    a, b = evaluate(rotation, own, baseline="a")
    assert (a.to_best, a.verdict, a.to_baseline) == (1.0, "baseline", None)
    assert (b.to_best, b.verdict, b.to_baseline.median) == (2.0, "slower", 2.0)


def test_contender_with_a_problem_has_no_cell():
    rows = [says("a", "Throughput = 100"), says("b", "nothing")]
    rotation = run_rotation(rows, OPS_PER_SECOND, 2, seed=1)
    assert [c.name for c in evaluate(rotation, WALL, "a")] == ["a"]


def test_measures_begin_with_the_programs_own_figure():
    assert measures_for(WALL_TIME)[0].title == "Wall time"
    assert measures_for(OPS_PER_SECOND)[0].title == "Throughput"
    own = measures_for(custom_metric(r"took (\d+)", lower_is_better=True))[0]
    assert (own.title, own.direction, own.better) == ("Figure", "lower is better", "better")


def test_scales_are_readable():
    assert scale_of(WALL, [cell("a", 0.25)]).text(0.25) == "250.0"
    assert scale_of(WALL, [cell("a", 2.5)]).unit == "s"
    assert scale_of(FAULTS, [cell("a", 195.0)]).text(195.0) == "195"
    own = measures_for(OPS_PER_SECOND)[0]
    scale = scale_of(own, [cell("a", 59.2e6)])
    assert (scale.unit, scale.text(59.2e6)) == ("M ops/s", "59.2")


def test_page_holds_its_plots_and_refers_to_nothing_outside():
    figures = [(WALL, [cell("a", 1.0, 1.1), cell("b<i>", 1.5, 1.6)]), (PEAK_RSS, [cell("a", 5.0)])]
    text = page("prog <x>", {"kernel": "L<i>nux"}, figures, {"c": "crash & burn"}, ["a note"], "a")
    # Each for a desk and for a phone.
    assert text.count("<svg") == 4
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", text.replace("http://www.w3.org", ""))
    assert "<i>" not in text
    assert "prog &lt;x&gt;" in text
    assert "crash &amp; burn" in text
    assert "lower is better" in text
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))


@pytest.mark.turns
def test_compare_prints_tables_and_writes_both_files(tmp_path):
    table, page_path = tmp_path / "out.json", tmp_path / "out.html"
    found = run("compare", "--with", "glibc", "--pairs", "5", "--json", str(table),
                "--html", str(page_path), "--", *PRINTS)  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "Throughput, M ops/s: higher is better" in found.output
    assert "Costs of a run: lower is better" in found.output
    document = json.loads(table.read_text())
    assert (document["rounds"], document["baseline"]) == (5, "glibc")
    assert document["measures"][0]["rows"][0]["values"] == [5e6] * 5
    assert [m["title"] for m in document["measures"]][1:3] == ["Wall time", "CPU time"]
    assert page_path.read_text().startswith("<!doctype html>")


@pytest.mark.turns
def test_compare_names_what_is_not_there_by_default(monkeypatch):
    monkeypatch.setenv("MIMALLOC_SO", "/nowhere/libmimalloc.so")
    found = run("compare", "--pairs", "1", "--", "/bin/true")
    plain = " ".join(found.output.split())
    usual = [name for name in RECIPES if name not in HARDENED_NAMES]
    assert f"not compared: {', '.join(usual)}: not built (hakmem peers build" in plain
    assert "not compared: mimalloc: no library at /nowhere/libmimalloc.so" in plain


def test_every_command_has_the_same_peers(tmp_path, monkeypatch, build):
    """The first of two names for one allocator, where that is there; what is not is told."""
    there = build / "bench" / "libfloor.so"
    monkeypatch.setenv("MIMALLOC_SO", str(there))
    monkeypatch.setenv("JEMALLOC_SO", str(there))
    monkeypatch.setenv("TCMALLOC_SO", "/nowhere/libtcmalloc.so")
    notes: list[str] = []
    assert usual_names(notes) == "hakmem,glibc,mimalloc,jemalloc"
    assert "not compared: tcmalloc: no library at /nowhere/libtcmalloc.so" in notes
    assert [note.count("not built") for note in notes] == [1, 0]
    built = dict.fromkeys(("mimalloc3", "jemalloc5"), there)
    monkeypatch.setattr(
        "hakmem.allocators.peers.find",
        lambda name: from_path(name, built[name]) if name in built else find(name),
    )
    assert usual_names([]) == "hakmem,glibc,mimalloc3,jemalloc5"
    usual = {part for text in USUAL_NAMES for part in text.split("|")}
    assert usual | set(HARDENED_NAMES) == set(known_names())
    assert not usual & set(HARDENED_NAMES)


@pytest.mark.parametrize(
    "name",
    ["compare", "tail", "replay", "bench", "drawn", "soak"],
)
def test_help_of_every_command_names_the_same_peers(name):
    if find_spec("hakmem_lab") is None and name in OF_THE_SOURCES:
        pytest.skip("the source tree's commands are not installed")
    said = " ".join(run(name, "--help").output.split())
    assert f"default: {USUAL_HELP}" in said


def test_peer_asked_for_and_missing_is_said_before_anything_runs(tmp_path):
    mark = tmp_path / "started"
    found = run("compare", "--with", "glibc,rpmalloc", "--", "/usr/bin/touch", str(mark))
    assert (found.exit_code, found.output) == (
        2,
        "Error: rpmalloc: not built (hakmem peers build rpmalloc)\n",
    )
    assert not mark.exists()


@pytest.mark.turns
def test_program_that_crashes_under_one_leaves_the_others(build, tmp_path):
    floor = build / "bench" / "libfloor.so"
    script = "case $LD_PRELOAD in *floor*) echo oops >&2; kill -SEGV $$;; esac"
    found = run("compare", "--pairs", "2", "--with", "glibc", "--lib", f"new={floor}", "--json",
                str(tmp_path / "j"), "--", "/bin/sh", "-c", script)  # fmt: skip
    assert found.exit_code == 1, found.output
    assert "killed by SIGSEGV" in found.output
    document = json.loads((tmp_path / "j").read_text())
    assert document["rounds"] == 2
    assert "oops" in document["problems"]["new"]


@pytest.mark.turns
def test_hakmem_that_did_not_serve_is_said(build):
    found = run(
        "compare", "--pairs", "1", "--with", "glibc,hakmem", "--", "/bin/sh", "-c", "exit 0"
    )
    assert found.exit_code == 1
    assert "hakmem: NOT SERVED" in found.output


@pytest.mark.turns
def test_allocator_that_did_not_serve_has_no_rank_and_no_verdict(build, tmp_path):
    """Not even where its row is the best, and of its command the baseline."""
    floor, out, page_path = build / "bench" / "libfloor.so", tmp_path / "j", tmp_path / "p.html"
    # Without a counter in memory, and without handlers at its end: the shell proves nothing.
    script = "case $LD_PRELOAD in *libhakmem*) echo Throughput = 9 ops/s;; *floor*) echo "
    script += "Throughput = 4 ops/s;; *) echo Throughput = 5 ops/s;; esac"
    found = run("compare", "--pairs", "5", "--with", "hakmem,glibc,idle", "--lib", f"idle={floor}",
                "--json", str(out), "--html", str(page_path), "--",
                "/bin/sh", "-c", script)  # fmt: skip
    assert found.exit_code == 1, found.output
    lines, document = found.output.splitlines(), json.loads(out.read_text())
    first = document["summary"][0]
    # Among the last lines, which a terminal still shows.
    assert first in lines[-9:]
    served = {name: said.startswith("NOT") for name, said in document["served"].items()}
    assert served == {"hakmem": True, "glibc": False, "idle": False}
    assert (
        first == "hakmem did not serve the program: the figures of such a row are another malloc's."
    )
    assert "hakmem" not in " ".join(document["summary"][1:])
    assert "hakmem did not serve: glibc is the baseline" in document["notes"]
    (own,) = (m["rows"] for m in document["measures"] if m["title"] == "Throughput")
    row = next(row for row in own if row["name"] == "hakmem")
    assert (row["to_best"], row["to_baseline"], row["verdict"]) == (None, None, NOT_SERVED)
    assert next(row for row in own if row["name"] == "glibc")["to_best"] == 1.0
    names = [line.split()[0] for line in lines if re.search(r" 9\.00 | 5\.00 | 4\.00 ", line)]
    assert names == ["glibc", "idle", "hakmem"]
    text = page_path.read_text()
    assert NOT_SERVED in text and "(not served)" in text


def test_where_nobody_served_there_is_nothing_to_compare():
    alone = replace(cell("a", 1.0), to_baseline=None, verdict=NOT_SERVED)
    assert sentences.of_comparison([(WALL, [alone])], "a", ["a", "gone"]) == [
        "a did not serve the program: the figures of such a row are another malloc's.",
        "No allocator served the program: there is nothing to compare.",
    ]
    console = Console(width=80, file=io.StringIO())
    console.print(tables.cost_table([(WALL, [alone])], {"served": {"a": "NOT SERVED"}}, 80))
    console.print(tables.verdict_table(WALL, [alone], "a", (), 80))
    assert console.file.getvalue().count("not served") == 2


def start_compare(results: Path, *arguments: str) -> subprocess.Popen:
    """`hakmem compare` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", "from hakmem.cli import main; main()", "compare", *arguments],
        env={**os.environ, "HAKLAB_RESULTS": str(results)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def journal_lines(results: Path) -> list[str]:
    return [line for path in results.glob("*.jsonl") for line in path.read_text().splitlines()]


def sleepers(mark: str) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]


@pytest.mark.turns
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_rounds_report_and_no_child(results, number):
    program = ("/bin/sh", "-c", "sleep 0.2; sleep 0.0321 & wait")
    process = start_compare(results, "--with", "glibc", "--pairs", "500", "--", *program)
    until(lambda: any('"round": 2' in line for line in journal_lines(results)))
    process.send_signal(number)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert re.search(r"interrupted after \d+ of 500 rounds", said)
    assert '{"ended": "interrupted"}' in journal_lines(results)
    (page_path,) = results.glob("*.html")
    assert "interrupted after" in page_path.read_text()
    assert not sleepers("0.0321")


@pytest.mark.turns
def test_interrupt_in_the_first_round_leaves_the_files_of_before(results, tmp_path):
    out = tmp_path / "out.json"
    out.write_text('{"made_by": "hakmem compare"}')
    process = start_compare(results, "--with", "glibc", "--json", str(out), "--pairs", "3",
                            "--", "/bin/sh", "-c", "sleep 98.765 & sleep 98.765")  # fmt: skip
    until(lambda: len(sleepers("98.765")) >= 2)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "interrupted before the first whole round" in said
    assert out.read_text() == '{"made_by": "hakmem compare"}'
    assert not list(results.glob("*.html"))
    until(lambda: not sleepers("98.765"))


@pytest.mark.parametrize("command", ["compare", "ab"])
def test_full_disk_under_the_journal_ends_the_journal_alone(
    results, tmp_path, monkeypatch, command
):
    out, whole, appended = tmp_path / "out.json", files.open_to_append, []

    def filling(path: Path, **given):
        appended.append(path)
        if len(appended) > 3:
            raise OSError(28, "No space left on device")
        return whole(path, **given)

    monkeypatch.setattr(files, "open_to_append", filling)
    options = {
        "compare": ("--with", "glibc", "--pairs", "5"),
        "ab": ("--a-lib", "glibc", "--b-lib", "glibc", "--b", "X=1", "--pairs", "5",
               "--max-pairs", "5"),
    }[command]  # fmt: skip
    found = run(command, *options, "--json", str(out), "--", *PRINTS)
    (path,) = results.glob("*.jsonl")
    told = f"note: the journal {path} is incomplete: No space left on device"
    assert found.output.count(told) == 1, found.output
    assert found.exit_code == (1 if command == "compare" else 4)
    assert json.loads(out.read_text())["rounds" if command == "compare" else "pairs"] == 5
    assert "--from reads it" not in found.output
    assert not list(results.glob("*.html"))


@pytest.mark.turns
def test_killed_run_is_reported_from_its_journal(results, tmp_path):
    process = start_compare(
        results, "--with", "glibc", "--pairs", "500", "--", "/bin/sleep", "0.05"
    )
    until(lambda: any('"round": 3' in line for line in journal_lines(results)))
    process.kill()
    process.communicate(timeout=60)
    (path,) = results.glob("*.jsonl")
    with path.open("a") as file:
        file.write('{"round": 9999, "slic')
    out = tmp_path / "out.json"
    page_path = tmp_path / "out.html"
    found = run("compare", "--from", str(path), "--json", str(out), "--html", str(page_path))
    assert found.exit_code == 130, found.output
    document = json.loads(out.read_text())
    assert 3 <= document["rounds"] < 500
    assert document["measures"][0]["title"] == "Wall time"
    assert "interrupted after" in page_path.read_text()


@pytest.mark.turns
def test_a_finished_journal_gives_the_same_figures(results, tmp_path):
    first, again = tmp_path / "a.json", tmp_path / "b.json"
    assert run("compare", "--with", "glibc,hakmem", "--pairs", "5", "--syscalls", "--seed", "3",
               "--json", str(first), "--", *PRINTS).exit_code == 1  # fmt: skip
    (path,) = results.glob("*.jsonl")
    assert run("compare", "--from", str(path), "--json", str(again)).exit_code == 1
    one, other = (json.loads(p.read_text()) for p in (first, again))
    for key in ("measures", "served", "problems", "system_calls", "rounds", "baseline"):
        assert one[key] == other[key], key


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "Missing argument 'PROGRAM...'"),
        (("--proff", "--", "true"), "No such option"),
        (("--from", __file__), "is no journal"),
        (("--from", __file__, "true"), "--from measures nothing"),
        (("--idle", "-1", "true"), "--idle"),
    ],
)
def test_bad_command_lines_are_refused(arguments, told):
    found = run("compare", *arguments)
    assert found.exit_code == 2, found.output
    assert told in found.output


@pytest.mark.turns
def test_baseline_that_crashes_is_replaced(build):
    floor = build / "bench" / "libfloor.so"
    script = "case $LD_PRELOAD in *floor*) exit 4;; esac; echo Throughput = 7 ops/s"
    found = run("compare", "--pairs", "2", "--with", "first,other", "--lib", f"first={floor}",
                "--lib", f"other={build}/libhakmem.so", "--", "/bin/sh", "-c", script)  # fmt: skip
    assert found.exit_code == 1, found.output
    assert "first: exit status 4" in found.output
    assert "first has no figures: other is the baseline" in found.output
    assert "Throughput, ops/s: higher is better" in found.output


def test_memory_after_rest_is_that_of_all_processes():
    # On a busy machine a start looks like rest, but hardly for a second; and what Python does at
    # its end, without the 30 MiB, takes longer than two looks.
    code = "import os, time; x = bytearray(30 << 20); time.sleep(3); os._exit(0)"
    outcome = run_once(["/bin/sh", "-c", f"/usr/bin/python3 -c '{code}' & wait"], idle_s=1)
    assert outcome.problem == ""
    assert outcome.idle_rss_kb > 30 << 10
    assert outcome.end_rss_kb > 30 << 10
    assert run_once(["/bin/sleep", "0.2"]).end_rss_kb is None


@pytest.mark.turns
def test_busy_program_has_no_memory_after_rest():
    outcome = run_once(["/bin/sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"],
                       idle_s=30)  # fmt: skip
    assert outcome.idle_rss_kb is None


def test_old_runs_are_removed(results):
    results.mkdir()
    for second in range(25):
        for suffix in (".jsonl", ".html"):
            (results / f"compare-20200101-0000{second:02}-1{suffix}").touch()
    (results / "bench-20200101-000000-1.jsonl").touch()
    found = run("compare", "--pairs", "1", "--with", "glibc", "--", "/bin/true")
    assert found.exit_code == 0, found.output
    assert len(list(results.glob("compare-*.jsonl"))) == 20
    assert len(list(results.glob("compare-*.html"))) == 20
    assert list(results.glob("bench-*"))


def test_tables_fit_a_narrow_terminal():
    wide = [cell(name, 1.0, 1.1) for name in ("hakmem", "tcmalloc-google")]
    console = Console(width=80, file=io.StringIO())
    console.print(tables.verdict_table(WALL, wide, "hakmem", ("gone",), 80))
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert not any("…" in line for line in lines)


@pytest.mark.turns
def test_system_calls_are_counted_on_request():
    found = run("compare", "--with", "glibc", "--pairs", "1", "--syscalls", "--", "/bin/true")
    assert found.exit_code == 0, found.output
    assert "system calls" in found.output


@pytest.mark.turns
def test_allocator_under_which_the_program_hangs_leaves_the_others(build, tmp_path):
    floor = build / "bench" / "libfloor.so"
    script = "case $LD_PRELOAD in *floor*) sleep 60;; esac"
    out = tmp_path / "j"
    found = run("compare", "--pairs", "2", "--timeout", "0.5", "--with", "glibc", "--lib",
                f"slow={floor}", "--json", str(out), "--", "/bin/sh", "-c", script)  # fmt: skip
    assert found.exit_code == 1, found.output
    document = json.loads(out.read_text())
    assert document["rounds"] == 2
    assert "did not end within 0.5 s" in document["problems"]["slow"]


@pytest.mark.turns
@pytest.mark.parametrize("command", ["compare", "ab", "run"])
def test_each_run_reads_the_given_input_from_its_start(command, tmp_path):
    given, seen = tmp_path / "in", tmp_path / "seen"
    given.write_text("first\nsecond\n")
    options = {
        "compare": ("--pairs", "2", "--with", "glibc", "--syscalls"),
        "ab": ("--a-lib", "glibc", "--b-lib", "glibc", "--b", "A=1", "--pairs", "2",
               "--max-pairs", "2"),
        "run": (),
    }[command]  # fmt: skip
    script = f'read line; echo "$line" >> {seen}; test "$line" = first'
    found = run(command, *options, "--stdin", str(given), "--", "/bin/sh", "-c", script)
    assert found.exit_code in (0, 4), found.output
    lines = seen.read_text().splitlines()
    assert set(lines) == {"first"}
    assert len(lines) >= (1 if command == "run" else 4)
    assert run(command, *options, "--stdin", str(tmp_path), "--", "true").exit_code == 2
