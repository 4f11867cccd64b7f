import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hakmem.allocators.peers import find
from hakmem.cli import main
from small_build import assert_in_order, compile_c

from hakmem_lab.steady_run import Calls, Counted, calls_of, count, count_row, late_calls
from hakmem_lab.suite import Row, catalogue

REPOSITORY = Path(__file__).resolve().parents[2]
# Before the tests' own build takes its place.
LIBRARY = Path(os.environ.get("HAKLAB_BUILD", REPOSITORY / "build/release")) / "libhakmem.so"
ROW = Row("mixed", "bench_random_mixed", "mixed", "core", ("{work}", 400), work=100_000)
# Counts as hakmem does: a call of mmap for every so many of malloc.
COUNTING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static unsigned long calls, maps;
void *malloc(size_t n) {
    static void *(*next)(size_t);
    if (next == NULL) next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    if (EVERY && ++calls % EVERY == 0) { maps++; getppid(); }
    return next(n);
}
__attribute__((destructor)) static void report(void) {
    if (getenv("HAKMEM_SS_OS_STATS") != NULL)
        fprintf(stderr, "[SS_OS_STATS] alloc=1 free=0 madvise=%lu mmap_total=%lu\\n", maps, 3ul);
}
"""


def library(tmp_path: Path, every: int) -> Path:
    source = tmp_path / "counting.c"
    source.write_text(COUNTING)
    return compile_c(
        tmp_path / "libcounting.so",
        [source],
        "-shared",
        "-fPIC",
        f"-DEVERY={every}",
        "-fno-builtin",
    )


def counted(tmp_path: Path, every: int) -> Calls:
    ours = replace(find("glibc"), name="hakmem", library=library(tmp_path, every))
    return count_row(ROW, ours, 0.1)


def run(*arguments: str):
    return CliRunner().invoke(main, ["steady", *arguments])


def test_calls_of_warm_up_do_not_count(tmp_path):
    one = counted(tmp_path, 0)
    assert (one.note, one.calls, one.rate, one.verdict) == ("", 0, 0, "met")
    assert one.operations >= ROW.work * 0.99


def test_steady_calls_are_seen(tmp_path):
    one = counted(tmp_path, 1000)
    # About half of the operations are mallocs.
    assert one.rate == pytest.approx(1 / 2000, rel=0.1)
    assert one.verdict == "MISSED"


def test_one_call_in_a_short_run_decides_nothing():
    short, long = Counted(1e6, 1, 3), Counted(3e6, 3, 4)
    assert calls_of(ROW, short, long).verdict == "undecided: too short"
    assert calls_of(ROW, short, replace(long, own=40)).verdict == "MISSED"
    assert calls_of(ROW, short, Counted(1e9, 60, 4)).verdict == "met"
    assert calls_of(ROW, short, replace(short, own=9)).verdict.startswith("no figure: ")


def test_the_second_half_is_judged_where_it_is_known():
    short, long = Counted(1e6, 1, 3), Counted(1e9, 60, 5000)
    assert calls_of(ROW, short, replace(long, late=0)).verdict == "met"
    assert calls_of(ROW, short, replace(long, late=100)).verdict == "MISSED"
    assert calls_of(ROW, short, replace(long, late=4)).rate == pytest.approx(8.3e-9, rel=0.01)


def test_late_calls_are_between_looks():
    looks = [(0.1, 7), (4.9, 50), (5.1, 52), (9.7, 60), (9.9, 900)]
    assert late_calls(looks, 10) == 10
    assert late_calls(looks, 0.2) is None
    assert late_calls([], 10) is None


@pytest.mark.turns
@pytest.mark.skipif(not LIBRARY.exists(), reason="there is no build")
def test_hakmem_is_looked_at_while_it_runs():
    ours = replace(find("glibc"), name="hakmem", library=LIBRARY)
    # Long enough for the first run to say how long the second one takes.
    one = count(ROW, 50_000_000, ours, 60)
    assert one.late is not None and one.late <= one.own


def test_program_that_was_not_served_has_no_figure():
    one = count_row(ROW, replace(find("floor"), name="hakmem"), 0.02)
    assert one.note == "hakmem printed no counters: it did not serve the program"
    assert one.verdict.startswith("no figure: ")


def test_failing_program_has_no_figure(tmp_path):
    wrong = replace(ROW, arguments=("{work}", 0))
    ours = replace(find("glibc"), name="hakmem", library=library(tmp_path, 0))
    assert "argument ws" in count_row(wrong, ours, 0.02).note


@pytest.mark.turns
def test_command_tells_of_each_row(tmp_path, monkeypatch):
    monkeypatch.setenv("HAKLAB_LIB", str(library(tmp_path, 0)))
    found = run("--rows", "random-mixed-400", "--rows", "random-mixed-4000", "--seconds", "0.01")
    assert found.exit_code == 0, found.output
    told = "Once warm, 2 of 2 rows make less than 1e-08 system calls an operation."
    assert " ".join(found.output.split()).startswith(told), found.output
    assert_in_order(found.output, "Once warm", "per op", "How it was measured", "kernel")
    rows = [line.split() for line in found.output.splitlines() if "random-mixed" in line]
    assert [(row[0], row[-1]) for row in rows[-2:]] == [
        ("random-mixed-400", "met"), ("random-mixed-4000", "met"),
    ]  # fmt: skip


@pytest.mark.turns
def test_a_missed_row_is_a_status(tmp_path, monkeypatch):
    monkeypatch.setenv("HAKLAB_LIB", str(library(tmp_path, 1000)))
    found = run("--rows", "random-mixed-400", "--seconds", "0.01")
    assert (found.exit_code, "MISSED" in found.output) == (1, True)
    assert "0 of 1 rows make" in found.output
    assert "above it: random-mixed-400." in " ".join(found.output.split())


def test_rows_are_those_of_the_suites():
    assert "no row fits 'nosuch'" in run("--rows", "nosuch").output
    assert any(row.scales and row.program for row in catalogue())
