"""What a report says first, what it leaves out and why, and how it looks in 80 columns or ASCII."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console
from small_build import assert_in_order

from hakmem import environment
from hakmem.cli import main
from hakmem.measuring.measures import (
    BASELINE,
    CPU,
    END_RSS,
    IDLE_RSS,
    PEAK_RSS,
    WALL,
    Cell,
    evaluate,
    measures_for,
    verdict,
)
from hakmem.measuring.rotation import (
    OPS_PER_SECOND,
    WALL_TIME,
    Contender,
    Rotation,
    custom_metric,
    new_rotation,
)
from hakmem.measuring.statistics import Interval
from hakmem.output import sentences, tables
from hakmem.output.streams import make_console
from hakmem.running.launching import Outcome

FASTER = Interval(1.08, 1.05, 1.11)
PRINTS = ("/bin/sh", "-c", "echo Throughput = 5000000 ops/s")


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path / "peers"))
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def cell(name: str, ratio: Interval | None, measure=WALL, to_best: float | None = 1.0) -> Cell:
    said = BASELINE if ratio is None else verdict(measure, ratio)
    return Cell(name, (1.0, 1.0), Interval(1.0, 0.9, 1.1), 0.01, to_best, ratio, said)


def test_a_sentence_tells_the_baseline_beside_the_usual_and_the_best_other():
    wall = [cell("hakmem", None), cell("glibc", FASTER), cell("other", Interval(0.5, 0.4, 0.6))]
    memory = [cell("hakmem", None), cell("glibc", Interval(1.25, 1.0, 1.25), PEAK_RSS)]
    assert sentences.of_comparison([(WALL, wall), (PEAK_RSS, memory)], "hakmem") == [
        "hakmem ran your program 1.08 times as fast as glibc [1.05, 1.11]: faster; beside other, "
        "the best other, it took 2.00 times other's time for your program [1.67, 2.50]: slower.",
        "hakmem used 0.80 of glibc's memory at the peak [0.80, 1.00]: no difference seen.",
    ]
    assert sentences.of_comparison([(WALL, wall[:1])], "hakmem") == [
        "Only hakmem has figures: there is nothing to compare it with."
    ]


@pytest.mark.parametrize(
    ("metric", "ratio", "told"),
    [
        (WALL_TIME, FASTER, "hakmem ran your program 1.08 times as fast as glibc [1.05, 1.11]: "
         "faster."),
        (OPS_PER_SECOND, FASTER, "hakmem ran your program 1.08 times as fast as glibc"),
        (custom_metric("(x)", lower_is_better=True), Interval(2.0, 1.6, 2.5),
         "hakmem made the program's own figure 0.50 times that with glibc [0.40, 0.62]: better."),
        (custom_metric("(x)", lower_is_better=False), Interval(2.0, 1.6, 2.5),
         "hakmem made the program's own figure 2.00 times that with glibc [1.60, 2.50]: better."),
        (WALL_TIME, Interval(0.5), "took 2.00 times glibc's time for your program: too few rounds"),
    ],
)  # fmt: skip
def test_a_sentence_is_of_speed_or_of_cost_whatever_the_direction(metric, ratio, told):
    own = measures_for(metric)[0]
    (said,) = sentences.of_comparison(
        [(own, [cell("hakmem", None), cell("glibc", ratio)])], "hakmem"
    )
    assert told in said


def test_every_measure_has_a_sentence():
    for metric in (WALL_TIME, OPS_PER_SECOND, custom_metric("(x)", True)):
        for measure in measures_for(metric):
            assert "{x}" in measure.told and "{b}" in measure.told, measure.title


def test_measures_without_any_figure_say_why():
    told = sentences.of_absent([WALL, IDLE_RSS, END_RSS], [(WALL, [cell("a", None)])])
    assert told == [f"{m.title} is left out: {m.absent}" for m in (IDLE_RSS, END_RSS)]


@pytest.mark.turns
def test_comparison_says_method_then_tables_then_what_was_found(tmp_path, monkeypatch):
    monkeypatch.setattr(environment.platform, "node", lambda: "box")
    monkeypatch.setattr(sys, "argv", ["hakmem", "compare", "--", "x y"])
    page_path, out = tmp_path / "p.html", tmp_path / "p.json"
    # It runs the handlers at its exit, by which the stand-in proves itself.
    found = run("compare", "--with", "glibc,hakmem", "--pairs", "5", "--html", str(page_path),
                "--json", str(out), "--",
                "/usr/bin/python3", "-c", f"print('{PRINTS[2][5:]}')")  # fmt: skip
    said = "glibc ran your program 1.00 times as fast as hakmem [1.00, 1.00]: no difference"
    assert_in_order(found.output, "How it was measured", "box", "Throughput, M", "Costs of", said,
                    "report: ")  # fmt: skip
    # What was found is in the last lines, and what it depends on takes few.
    assert said in "\n".join(found.output.splitlines()[-9:])
    head = found.output.partition("Throughput, M")[0]
    assert len(head.splitlines()) <= 8, head
    assert out.read_text().count(said) == 1
    text = page_path.read_text()
    seed = json.loads(out.read_text())["seed"]
    for name in ("host", "measured", "kernel", "CPU", "version", "glibc"):
        assert f"<td>{name}</td>" in text, name
    assert f"hakmem compare --seed {seed} -- &#x27;x y&#x27;" in text
    assert_in_order(text, 'class="summary"', "<svg", "How it was measured")


def test_command_line_to_repeat_has_the_seed_once(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["hakmem", "tail", "--seed", "3"])
    assert environment.command_line(7) == "hakmem tail --seed 3"
    monkeypatch.setattr(sys, "argv", ["hakmem", "compare", "--", "p", "--seed", "3"])
    assert environment.command_line(7) == "hakmem compare --seed 7 -- p --seed 3"


class Stream(io.StringIO):
    def __init__(self, encoding: str, terminal: bool = False) -> None:
        super().__init__()
        self.named, self.terminal = encoding, terminal

    encoding = property(lambda self: self.named)

    def isatty(self) -> bool:
        return self.terminal


def shown(stream: Stream) -> str:
    cells = [cell("hakmem", None), cell("glibc", FASTER)]
    console = make_console(stream)
    console.print(tables.verdict_table(WALL, cells, "hakmem", (), console.width))
    console.print("8 ± 2 … █▓▒░#=· 日")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("encoding", "locale"), [("ascii", ""), ("iso8859-1", "en_US"), ("utf-8", "C")]
)
def test_where_utf_8_cannot_be_shown_all_is_ascii_and_aligned(encoding, locale, monkeypatch):
    monkeypatch.setenv("LC_ALL", locale)
    text = shown(Stream(encoding))
    assert text.isascii()
    assert "cost / best" in text
    assert "@%+:#=." in text
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    fine = shown(Stream("UTF-8"))
    assert "cost ÷ best" in fine and "─" in fine
    # But for the sign that has no stand-in, column stands under column as before.
    assert [len(line) for line in text.splitlines()[:-1]] == [
        len(line) for line in fine.splitlines()[:-1]
    ]


def test_pipes_get_no_colour_and_no_blanks_at_the_end(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    text = shown(Stream("utf-8"))
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    monkeypatch.setenv("COLUMNS", "80")
    assert make_console(Stream("utf-8")).width == 150


def test_tables_of_eighty_columns_break_no_figure():
    names = ("hakmem", "tcmalloc-google", "jemalloc5")
    figures = [
        (m, [cell(n, None if n == "hakmem" else FASTER, m) for n in names])
        for m in (CPU, PEAK_RSS, IDLE_RSS, END_RSS, WALL)
    ]
    calls = dict.fromkeys(names, "12,345")
    served = dict.fromkeys(names, "yes, 1,197 spans handed out in 39 processes")
    console = Console(width=80, file=io.StringIO())
    console.print(tables.verdict_table(WALL, figures[-1][1], "hakmem", ("gone",), 80))
    console.print(tables.cost_table(figures, {"system calls": calls, "served": served}, 80))
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "…" not in console.file.getvalue()
    # Every name has a line, and no line has the rest of a broken cell.
    bodies = [line for line in lines if line.startswith((" hakmem  ", " tcmalloc-g", " jemalloc5"))]
    assert len(bodies) == 6
    assert all(len(line.split()) >= 5 for line in bodies)


@pytest.mark.turns
def test_help_and_lists_are_ascii_where_the_terminal_is():
    found = subprocess.run(
        [sys.executable, "-c", "from hakmem.cli import main; main()", "compare", "--pairs", "1",
         "--with", "glibc", "--", "/bin/true"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )  # fmt: skip
    assert found.stdout.isascii()
    assert b"Traceback" not in found.stderr


def rotation_of(**walls: list[float]) -> Rotation:
    made = new_rotation([Contender(name, ["x"]) for name in walls], WALL_TIME, 1, None)
    for name, times in walls.items():
        made.series[name].outcomes += [
            Outcome(0, 0, wall, wall, 1000, 1, 0, stdout="", stderr="") for wall in times
        ]
    made.rounds_done = len(next(iter(walls.values())))
    return made


STEADY = [1.0, 1.01, 0.99, 1.0, 1.02, 1.0, 0.98, 1.01, 1.0, 0.99]
# As on a machine with load 24: single runs of one allocator meet a quiet moment.
RESTLESS = [1.0, 2.9, 1.1, 3.0, 1.9, 1.0, 2.2, 1.2, 2.8, 1.6]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ([0.9 * t for t in STEADY], "faster"),
        ([1.1 * t for t in STEADY], "slower"),
        # Below in every round, and less than single runs differ.
        ([0.85 * t for t in RESTLESS], "too noisy to say"),
        # Below in eight of ten.
        ([t * (0.5 if n not in (2, 6) else 1.3) for n, t in enumerate(RESTLESS)],
         "too noisy to say"),
        ([0.2 * t for t in RESTLESS], "faster"),
    ],
)  # fmt: skip
def test_noise_is_no_difference(other, said):
    base = RESTLESS if max(other) - min(other) > 0.5 * max(other) else STEADY
    cells = evaluate(rotation_of(base=base, other=other), WALL, "base")
    assert cells[1].verdict == said
    (told,) = sentences.of_comparison([(WALL, cells)], "base")
    seen = {"faster": "slower", "slower": "faster"}.get(said, said)
    assert told.endswith(f": {seen}."), told


def test_a_busy_machine_and_figures_that_vary_are_warned_of_first():
    quiet = {"load": "0.20 (1 min) 0.30 (5 min)", "CPU": "model 2 GHz, 2 usable"}
    busy = quiet | {"load": "24.03 (1 min) 20.00 (5 min)"}
    steady = evaluate(rotation_of(base=STEADY, other=STEADY), WALL, "base")
    restless = evaluate(rotation_of(base=RESTLESS, other=STEADY), WALL, "base")
    assert sentences.of_noise(quiet, [(WALL, steady)]) == []
    assert sentences.of_noise({}, ()) == []
    (load,) = sentences.of_noise(busy, [(WALL, steady)])
    assert load.startswith("Warning: the machine was busy (load 24.03, 2 CPUs)")
    (varies,) = sentences.of_noise(quiet, [(WALL, restless)])
    assert "Warning: wall time varies from run to run (CV of base 4" in varies
    assert len(sentences.of_noise(busy, [(WALL, restless)])) == 2


@pytest.mark.turns
def test_warnings_stand_before_all_else(tmp_path, monkeypatch):
    monkeypatch.setattr(environment.os, "getloadavg", lambda: (99.0, 99.0, 99.0))
    out, page_path = tmp_path / "p.json", tmp_path / "p.html"
    found = run("compare", "--with", "glibc,hakmem", "--pairs", "2", "--json", str(out), "--html",
                str(page_path), "--", "/usr/bin/python3", "-c", "print(1)")  # fmt: skip
    assert found.output.startswith("Warning: the machine was busy (load 99.00, ")
    assert_in_order(found.output, "Warning: the machine was busy", "How it was", "Wall time")
    assert "Warning: the machine was busy" in json.loads(out.read_text())["warnings"][0]
    assert_in_order(page_path.read_text(), 'class="summary"', "Warning: the machine was", "<svg")
