import csv
import json
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
from hakmem.errors import UserError
from hakmem.measuring import journal
from small_build import BENCH, assert_in_order, compile_c

from hakmem_lab import scale_points, scale_report
from hakmem_lab.scale_points import AXES, BLOCKS, GIB, HEAP, LOADS, MIB, THREADS, Point, points_of
from hakmem_lab.scale_run import Figures, Measured, largest_step, largest_steps

NAMES = {load.name: load for load in LOADS}


@pytest.fixture(autouse=True)
def small_work(monkeypatch, tmp_path):
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path / "peers"))
    for name in ("THREAD_STEPS", "CROSS_STEPS", "PRODCONS_BLOCKS", "MIXED_STEPS", "BULK_STEPS"):
        monkeypatch.setattr(scale_points, name, 20_000)
    monkeypatch.setattr(scale_points, "LARSON_ROUND", 1000)


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
        arguments = load.arguments(value)
        assert all(argument >= 1 for argument in arguments), (value, arguments)
    if load.axis is not THREADS:
        return
    # Threads, or producers and consumers, times the work of each.
    works = [load.arguments(n)[3 if load.name == "prodcons" else 1] * n for n in load.axis.values]
    assert max(works) <= 20_000 < min(works) * 1.05


def test_each_thread_keeps_as_many_blocks_at_every_point():
    places = {"larson": 2, "local": 4}
    for name, place in places.items():
        assert {NAMES[name].arguments(n)[place] for n in THREADS.values} == {scale_points.OWN_SLOTS}


def test_live_heap_is_what_the_slots_hold():
    steps, slots = NAMES["mixed"].arguments(8 * GIB)
    assert slots / 2 * 527.5 == pytest.approx(8 * GIB, rel=1e-6)
    # A slot that was picked twice on average is full or empty as chance has it.
    assert steps == 2 * slots
    assert NAMES["mixed"].arguments(MIB)[0] == 20_000
    assert Point(NAMES["mixed"], 8 * GIB).needed_bytes > 8 * GIB


def test_bounds_are_read_in_the_axis_own_unit():
    assert [HEAP.parse(text) for text in ("8M", "4G", "4096")] == [8 * MIB, 4 * GIB, 4096]
    assert [BLOCKS.parse(text) for text in ("10", "100k", "1M")] == [10, 100_000, 1_000_000]
    for text in ("", "M", "-1", "1.5M", "1T"):
        with pytest.raises(UserError, match="is no number"):
            HEAP.parse(text)
    assert {point.value for point in points_of([THREADS], 2)} == {1, 2}
    with pytest.raises(UserError, match=r"no point is so small \(blocks begins at 10\)"):
        points_of([BLOCKS], 9)


def test_every_axis_leaves_tables_files_and_plots(programs, tmp_path, monkeypatch):
    small = {"threads": "2", "heap": "1M", "blocks": "1k"}
    for axis, most in small.items():
        out = tmp_path / axis
        found = run(
            "--axis", axis, "--most", most, "--rounds", "2", "--with", "hakmem,glibc",
            "--out", str(out), "--seed", "5",
        )  # fmt: skip
        assert found.exit_code == 0, found.output
        loads = [load for load in LOADS if load.axis.name == axis]
        rows = rows_of(out / "scale.csv")
        points = points_of([AXES[axis]], AXES[axis].parse(most))
        assert [(row["load"], int(row["value"]), row["allocator"]) for row in rows] == [
            (p.load.name, p.value, name) for p in points for name in ("hakmem", "glibc")
        ]
        for row in rows:
            assert 0 < float(row["ns_min"]) <= float(row["ns_per_op"]) <= float(row["ns_max"])
            assert float(row["ns_per_op"]) * float(row["ops_per_sec"]) == pytest.approx(1e9, 1e-4)
            assert int(row["peak_rss_kb"]) > 0
            assert row["rounds"] == "2"
        for load in loads:
            assert f"served by hakmem, {load.name}" in found.output
            took = f"{load.name}: an operation takes hakmem "
            assert_in_order(found.output, took, "Median ns", "How it was measured", "host ")
            assert (out / f"{axis}-{load.name}.svg").read_text().count("<svg") == 1
        document = json.loads((out / "scale.json").read_text())
        assert document["made_by"] == "hakmem scale"
        assert len(document["points"]) == len(points)


def test_journals_hold_the_rounds(programs, tmp_path):
    outputs = tmp_path / "a.csv", tmp_path / "a.json"
    found = run(
        "--axis", "heap", "--most", "1M", "--with", "glibc",
        "--csv", str(outputs[0]), "--json", str(outputs[1]),
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    (folder,) = journal.results_folder().glob("scale-*")
    head, rotation = journal.read(folder / f"mixed-{MIB}.jsonl")
    assert (head["axis"], head["value"], rotation.rounds_done) == ("heap", MIB, 3)
    # Without --out everything lies beside the journals, and what was asked for elsewhere too.
    assert outputs[0].read_text() == (folder / "scale.csv").read_text()
    assert json.loads(outputs[1].read_text())["points"]
    assert (folder / "heap-mixed.svg").exists()


def test_a_point_that_does_not_fit_is_skipped(programs, tmp_path, monkeypatch):
    free = psutil.virtual_memory()._replace(available=3 * MIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    found = run("--axis", "heap", "--most", "8M", "--with", "glibc", "--out", str(tmp_path))
    assert found.exit_code == 0, found.output
    assert "2/2 mixed, 8 MiB: skipped: it needs about 0.0 GiB, and 0.0 GiB are" in found.output
    document = json.loads((tmp_path / "scale.json").read_text())
    assert list(document["skipped"]) == [f"mixed-{8 * MIB}"]
    assert len(document["points"]) == 1


def test_failing_allocator_is_named_and_the_rest_goes_on(programs, tmp_path, build):
    broken = tmp_path / "broken.c"
    broken.write_text("#include <stdlib.h>\nvoid *malloc(size_t n) { (void)n; abort(); }\n")
    library = compile_c(tmp_path / "broken.so", [broken], "-shared", "-fPIC")
    found = run(
        "--axis", "blocks", "--most", "10", "--with", "glibc", "--lib", f"broken={library}",
        "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert found.exit_code == 1, found.output
    assert "bulk, 10, broken: " in found.output
    rows = {row["allocator"]: row for row in rows_of(tmp_path / "out" / "scale.csv")}
    assert rows["glibc"]["rounds"] == "3"
    assert (rows["broken"]["rounds"], rows["broken"]["ns_per_op"]) == ("0", "")


def test_hakmem_that_did_not_serve_is_a_status(programs, monkeypatch, tmp_path):
    monkeypatch.setenv("HAKLAB_LIB", str(programs / "bench" / "libfloor.so"))
    found = run("--axis", "blocks", "--most", "10", "--with", "hakmem,glibc", "--rounds", "1")
    assert found.exit_code == 1
    assert "served by hakmem, bulk: NOT SERVED" in found.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--most", "4"), "--most: 4 is of one axis: give --axis threads, heap, blocks"),
        (("--axis", "threads", "--most", "many"), "--most: 'many' is no number"),
        (("--axis", "threads", "--most", "0"), "threads begins at 1"),
        (("--with", "nosuch"), "unknown allocator 'nosuch'"),
        (("--axis", "size"), "'size' is not one of"),
    ],
)
def test_wrong_command_lines(arguments, complaint):
    found = run(*arguments)
    assert found.exit_code == 2
    assert complaint in found.output


def test_folder_that_cannot_be_made(programs, tmp_path):
    (tmp_path / "file").write_text("")
    found = run("--axis", "heap", "--most", "1M", "--out", str(tmp_path / "file" / "x"))
    assert found.exit_code == 2
    assert "cannot make the folder" in found.output


def test_interrupt_keeps_finished_points(programs, tmp_path):
    """With the real amounts of work: the small ones are set in this process alone."""
    out = tmp_path / "out"
    command = [sys.executable, "-c", "from hakmem.cli import main; main()", "scale"]
    command += ["--axis", "heap", "--rounds", "2", "--with", "glibc", "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        wait_for(lambda: list(journal.results_folder().glob(f"scale-*/mixed-{8 * MIB}.jsonl")))
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "interrupted after" in output
    rows = rows_of(out / "scale.csv")
    assert (rows[0]["value"], rows[0]["rounds"]) == (str(MIB), "2")
    assert (out / "heap-mixed.svg").exists()
    left = [p for p in psutil.process_iter(["cmdline"]) if str(programs) in str(p.info["cmdline"])]
    assert not left


def wait_for(found) -> None:
    for _ in range(6000):
        if found():
            return
        time.sleep(0.05)
    raise AssertionError("the command did not get so far")


def line(*costs: dict[str, float]) -> list[Measured]:
    load = NAMES["local"]
    return [
        Measured(
            Point(load, value),
            ("bench_mid_large_mt",),
            tuple(Figures(name, "", 1, ns, ns * 0.9, ns * 1.2, 10) for name, ns in cost.items()),
        )
        for value, cost in zip(THREADS.values, costs, strict=False)
    ]


def test_largest_step_is_the_steepest_rise():
    measured = line({"a": 10, "b": 5}, {"a": 12, "b": 50}, {"a": 60}, {"a": 6, "b": 60})
    step = largest_step(measured, "local", "a")
    assert (step.ratio, step.before.value, step.after.value) == (5, 2, 4)
    # Where figures are missing in between, there are no neighbours to compare.
    assert [step.ratio for step in largest_steps(measured, ["a", "b"])] == [5, 10]
    assert largest_step(line({"a": 1}), "local", "a") is None
    assert largest_step(line({"a": 9}, {"a": 3}), "local", "a").ratio == pytest.approx(1 / 3)


def test_plot_is_the_same_for_the_same_figures():
    measured = line({"a": 10, "b": 5}, {"a": 12})
    text = scale_report.draw(NAMES["local"], measured)
    assert text == scale_report.draw(NAMES["local"], measured)
    # A point alone for the one, a line with its band for the other.
    assert text.count('id="FillBetweenPolyCollection') + text.count('id="PolyCollection') == 2
    nothing = [Measured(Point(NAMES["local"], 1), ("x",), (Figures("a", "failed"),))]
    assert "<svg" in scale_report.draw(NAMES["local"], nothing)
