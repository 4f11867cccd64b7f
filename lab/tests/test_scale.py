import csv
import os
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
from small_build import BENCH, assert_in_order, compile_c

from hakmem_lab import scale_points, scale_report
from hakmem_lab.scale_points import AXES, BLOCKS, GIB, HEAP, LOADS, MIB, THREADS, Point
from hakmem_lab.suite_results import Entry

NAMES = {load.name: load for load in LOADS}


@pytest.fixture(autouse=True)
def small_work(monkeypatch, tmp_path):
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path / "peers"))
    for name in ("THREAD_STEPS", "CROSS_STEPS", "PRODCONS_BLOCKS", "MIXED_STEPS", "BULK_STEPS"):
        monkeypatch.setattr(scale_points, name, 20_000)
    monkeypatch.setattr(scale_points, "LARSON_ROUND", 1000)


@pytest.fixture
def few_points(monkeypatch):
    """The first two of each axis."""
    for axis in (THREADS, HEAP, BLOCKS):
        monkeypatch.setitem(vars(axis), "values", axis.values[:2])


@pytest.fixture(scope="module")
def programs(build: Path) -> Path:
    """Every bench program that the axes run."""
    for name in dict.fromkeys(load.program for load in LOADS):
        target = build / "bench" / name
        if not target.exists():
            compile_c(target, [BENCH / f"{name}.c", BENCH / "bench.c"], "-pthread")
    return build


def run(*arguments: str):
    return CliRunner().invoke(main, ["scale", *arguments])


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_axes_are_those_of_the_bars():
    assert THREADS.values == (1, 2, 4, 8, 16, 64, 256)
    assert [HEAP.text(value) for value in HEAP.values] == [
        "1 MiB", "8 MiB", "64 MiB", "512 MiB", "4 GiB", "8 GiB",
    ]  # fmt: skip
    assert (BLOCKS.values[0], BLOCKS.values[-1]) == (10, 100_000_000)
    assert {load.axis.name for load in LOADS} == set(AXES)


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_work_is_constant_in_total(load):
    for value in load.axis.values:
        arguments = Point(load, value).row.filled(load.work(value))
        assert all(int(argument) >= 1 for argument in arguments), (value, arguments)
    if load.axis is not THREADS:
        return
    # Threads, or producers and consumers, times the work of each.
    works = [load.work(n) * n for n in load.axis.values]
    assert max(works) <= 20_000 < min(works) * 1.05


def test_each_thread_keeps_as_many_blocks_at_every_point():
    places = {"larson": 2, "local": 4}
    for name, place in places.items():
        assert {NAMES[name].arguments(n)[place] for n in THREADS.values} == {scale_points.OWN_SLOTS}


def test_live_heap_is_what_the_slots_hold():
    steps, slots = map(int, Point(NAMES["mixed"], 8 * GIB).row.filled(NAMES["mixed"].work(8 * GIB)))
    assert slots / 2 * 527.5 == pytest.approx(8 * GIB, rel=1e-6)
    # A slot that was picked twice on average is full or empty as chance has it.
    assert steps == 2 * slots
    assert NAMES["mixed"].work(MIB) == 20_000
    assert Point(NAMES["mixed"], 8 * GIB).needed_bytes > 8 * GIB


def test_every_axis_leaves_tables_files_and_plots(programs, few_points, tmp_path):
    for axis in AXES:
        out = tmp_path / axis
        found = run(
            "--axis", axis, "--rounds", "2", "--with", "hakmem,glibc", "--out", str(out),
            "--seed", "5",
        )  # fmt: skip
        assert found.exit_code == 0, found.output
        loads = [load for load in LOADS if load.axis.name == axis]
        rows = rows_of(out / "results.csv")
        assert [(row["row"], row["allocator"]) for row in rows] == [
            (Point(load, value).name, name)
            for load in loads
            for value in load.axis.values
            for name in ("hakmem", "glibc")
        ]
        for row in rows:
            assert 0 < float(row["min"]) <= float(row["median"]) <= float(row["max"])
            assert (int(row["peak_rss_kb"]) > 0, row["rounds"]) == (True, "2")
        for load in loads:
            took = f"{load.name}: an operation takes hakmem "
            assert_in_order(found.output, took, "Median ns", "How it was measured", "host ")
            assert (out / f"{axis}-{load.name}.svg").read_text().count("<svg") == 1
            (first, *_) = sorted(out.glob(f"{load.name}-*.jsonl"))
            head, rotation = journal.read(first)
            assert (head["served"][:4], rotation.rounds_done) == ("yes,", 2)


def test_finished_run_makes_its_tables_and_plots_again(programs, few_points, tmp_path):
    out = tmp_path / "out"
    assert run("--axis", "heap", "--with", "glibc", "--out", str(out)).exit_code == 0
    before = rows_of(out / "results.csv")
    (out / "heap-mixed.svg").unlink()
    again = run("--resume", str(out))
    assert again.exit_code == 0, again.output
    assert rows_of(out / "results.csv") == before
    assert (out / "heap-mixed.svg").exists()
    assert run("--resume", str(out), "--rounds", "7").exit_code == 2


def test_a_point_that_does_not_fit_is_skipped(programs, few_points, tmp_path, monkeypatch):
    free = psutil.virtual_memory()._replace(available=3 * MIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    found = run("--axis", "heap", "--with", "glibc", "--out", str(tmp_path / "out"))
    assert found.exit_code == 0, found.output
    assert "mixed, 8 MiB: skipped: it needs about 0.0 GiB, and 0.0 GiB are" in found.output
    assert [row["row"] for row in rows_of(tmp_path / "out" / "results.csv")] == [f"mixed-{MIB}"]


def test_failing_allocator_is_named_and_the_rest_goes_on(programs, few_points, tmp_path, build):
    broken = tmp_path / "broken.c"
    broken.write_text("#include <stdlib.h>\nvoid *malloc(size_t n) { (void)n; abort(); }\n")
    library = compile_c(tmp_path / "broken.so", [broken], "-shared", "-fPIC")
    found = run("--axis", "blocks", "--with", "glibc", "--lib", f"broken={library}",
                "--out", str(tmp_path / "out"))  # fmt: skip
    assert found.exit_code == 1, found.output
    assert "bulk-10 (preload), broken: " in found.output
    rows = {row["allocator"]: row for row in rows_of(tmp_path / "out" / "results.csv")[:2]}
    assert (rows["glibc"]["rounds"], rows["broken"]["rounds"]) == ("3", "0")


def test_hakmem_that_did_not_serve_is_a_status(programs, few_points, monkeypatch):
    monkeypatch.setenv("HAKLAB_LIB", str(programs / "bench" / "libfloor.so"))
    found = run("--axis", "blocks", "--with", "hakmem,glibc", "--rounds", "1")
    assert found.exit_code == 1
    assert "bulk-10 (preload), hakmem: NOT SERVED" in found.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--with", "nosuch"), "unknown allocator 'nosuch'"),
        (("--axis", "size"), "'size' is not one of"),
    ],
)
def test_wrong_command_lines(arguments, complaint):
    found = run(*arguments)
    assert found.exit_code == 2
    assert complaint in found.output


def test_folder_that_cannot_be_made(programs, few_points, tmp_path):
    (tmp_path / "file").write_text("")
    found = run("--axis", "heap", "--out", str(tmp_path / "file" / "x"))
    assert found.exit_code == 2
    assert "cannot make the folder" in found.output


def test_interrupt_keeps_finished_points(programs, tmp_path):
    """With the real amounts of work: the small ones are set in this process alone."""
    out = tmp_path / "out"
    command = [sys.executable, "-c", "from hakmem.cli import main; main()", "scale"]
    command += ["--axis", "heap", "--rounds", "2", "--with", "glibc", "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        wait_for(lambda: list(out.glob(f"mixed-{8 * MIB}.preload.jsonl")))
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert f"go on with hakmem scale --resume {out}" in output
    row = rows_of(out / "results.csv")[0]
    assert (row["row"], row["rounds"]) == (f"mixed-{MIB}", "2")
    assert (out / "heap-mixed.svg").exists()
    left = [p for p in psutil.process_iter(["cmdline"]) if str(programs) in str(p.info["cmdline"])]
    assert not left


def wait_for(found) -> None:
    for _ in range(6000):
        if found():
            return
        time.sleep(0.05)
    raise AssertionError("the command did not get so far")


def test_plot_is_the_same_for_the_same_figures():
    def entry(name: str, ns: float) -> Entry:
        return Entry(name, "", 1, 1e9 / ns, 1e9 / ns, 0.9e9 / ns, 1.2e9 / ns)

    costs = zip(THREADS.values, ({"a": 10, "b": 5}, {"a": 12}), strict=False)
    line = [
        (Point(NAMES["local"], value), {name: entry(name, ns) for name, ns in cost.items()})
        for value, cost in costs
    ]
    text = scale_report.draw(NAMES["local"], line, ["a", "b"])
    assert text == scale_report.draw(NAMES["local"], line, ["a", "b"])
    # A point alone for the one, a line with its band for the other.
    assert text.count('id="FillBetweenPolyCollection') + text.count('id="PolyCollection') == 2
