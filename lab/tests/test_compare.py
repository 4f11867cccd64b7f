import base64
import json
import re

import pytest
from click.testing import CliRunner

from hakmem_lab.cli import main
from hakmem_lab.measures import (
    FAULTS,
    NO_DIFFERENCE,
    PEAK_RSS,
    TOO_FEW,
    WALL,
    Cell,
    evaluate,
    measures_for,
    scale_of,
    verdict,
)
from hakmem_lab.recipes import RECIPES
from hakmem_lab.report import page
from hakmem_lab.rotation import OPS_PER_SECOND, WALL_TIME, Contender, custom_metric, run_rotation
from hakmem_lab.statistics import Interval

PRINTS = ("/bin/sh", "-c", "echo Throughput = 5000000 ops/s")


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def says(name: str, text: str) -> Contender:
    return Contender(name, ("/bin/sh", "-c", f"echo {text}"))


def cell(name: str, *values: float, verdict: str = "slower") -> Cell:
    middle = Interval(values[0], values[0] * 0.9, values[0] * 1.1)
    return Cell(name, values, middle, 0.01, 1.5, Interval(1.5, 1.4, 1.6), verdict)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path / "peers"))


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
    assert text.count("data:image/svg+xml;base64,") == 2
    assert not re.search(r"(?:src|href)=\"(?!data:)", text)
    assert "<i>" not in text
    assert "prog &lt;x&gt;" in text
    assert "crash &amp; burn" in text
    assert "lower is better" in text
    image = re.search(r"base64,([^\"]+)", text)[1]
    assert b"<svg" in base64.b64decode(image)


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


def test_compare_names_what_is_not_there_by_default(monkeypatch):
    monkeypatch.setenv("MIMALLOC_SO", "/nowhere/libmimalloc.so")
    found = run("compare", "--pairs", "1", "--", "/bin/true")
    plain = " ".join(found.output.split())
    for name in RECIPES:
        assert f"not compared: {name}: not built (hakmem peers build {name})" in plain
    assert "not compared: mimalloc: no library at /nowhere/libmimalloc.so" in plain


def test_peer_asked_for_and_missing_is_a_row_and_a_status():
    found = run("compare", "--pairs", "1", "--with", "glibc,rpmalloc", "--", "/bin/true")
    assert found.exit_code == 1
    assert "rpmalloc: not built" in found.output
    assert "no figures, see below" in found.output


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


def test_hakmem_that_did_not_serve_is_said(build):
    found = run(
        "compare", "--pairs", "1", "--with", "glibc,hakmem", "--", "/bin/sh", "-c", "exit 0"
    )
    assert found.exit_code == 1
    assert "hakmem: NOT SERVED" in found.output


def test_interrupt_reports_whole_rounds(monkeypatch, tmp_path):
    from hakmem_lab.commands import compare as module

    real = module.run_rotation

    def interrupted(rows, metric, rounds, seed, cpus, tick):
        def tick_twice(name):
            tick(name)
            tick_twice.count += 1
            if tick_twice.count == 3:
                raise KeyboardInterrupt

        tick_twice.count = 0
        return real(rows, metric, rounds, seed, cpus, tick_twice)

    monkeypatch.setattr(module, "run_rotation", interrupted)
    out = tmp_path / "out.json"
    found = run("compare", "--with", "glibc", "--pairs", "9", "--json", str(out), "--", *PRINTS)
    assert found.exit_code == 130
    assert "interrupted after 2 of 9 rounds" in found.output
    assert json.loads(out.read_text())["interrupted"] is True


def test_system_calls_are_counted_on_request():
    found = run("compare", "--with", "glibc", "--pairs", "1", "--syscalls", "--", "/bin/true")
    assert found.exit_code == 0, found.output
    assert "system calls" in found.output
