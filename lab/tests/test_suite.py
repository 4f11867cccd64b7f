from pathlib import Path

import pytest
from hakmem.errors import UserError
from hakmem.measuring.rotation import WALL_TIME, Contender, Series, new_rotation
from hakmem.measuring.statistics import Interval
from hakmem.running.launching import Outcome

from hakmem_lab import suite_results
from hakmem_lab.shell import clean_environment
from hakmem_lab.suite import (
    PRELOAD,
    STATIC,
    Row,
    catalogue,
    load_suite,
    pick,
    read_suite,
    suite_names,
)
from hakmem_lab.suite_results import LOST, SAME, TOO_FEW, WON, verdict
from hakmem_lab.suite_session import (
    SHORTEST_SLICE_S,
    Job,
    Trial,
    calibrate,
    fit,
    jobs_of,
    round_work,
    scaled,
)

GOOD = """
title = "t"
rounds = 3
slice_s = 0.05
limit_minutes = 1
allocators = ["glibc"]
"""
ROW = """
[[row]]
name = "one"
program = "/bin/sh"
arguments = ["-c", "exit 0"]
"""


def suite_file(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def outcome(wall_s: float, stdout: str = "", status: int = 0) -> Outcome:
    return Outcome(status, 0, wall_s, wall_s, 1000, 1, 0, stdout, "")


def test_the_projects_suites_are_sound():
    for name in suite_names():
        suite = load_suite(name)
        assert suite.rows
        assert jobs_of(suite, suite.rows, suite.modes)
        assert "hakmem" in suite.allocators
    assert suite_names()[:2] == ["quick", "full"]


def test_limits_of_quick_and_full():
    assert load_suite("quick").limit_minutes < 3
    full = load_suite("full")
    assert full.limit_minutes < 30
    assert full.rounds >= 10
    names = [row.name for row in catalogue() if row.group != "bars"]
    assert len(names) == 44
    assert [row.name for row in full.rows] == names


def test_bars_has_every_row_and_every_size_between():
    bars = load_suite("bars")
    assert bars.allocators == load_suite("full").allocators
    names = [row.name for row in bars.rows]
    assert names == [row.name for row in catalogue()]
    sizes = [size for power in range(4, 16) for size in (2**power, 3 * 2 ** (power - 1))]
    assert {f"fixed-{size}" for size in sizes if size <= 32_768} <= set(names)
    swings = [row for row in bars.rows if row.program == "bench_swing"]
    assert {row.arguments[1:] for row in swings} == {
        (count, size) for count in (25, 100, 400, 1600) for size in (16, 64, 256, 1024)
    }


def test_work_stays_the_same_as_threads_grow():
    work: dict[str, list[int]] = {}
    for row in pick(load_suite("scale").rows, ["group:threads"], "x"):
        threads, steps = row.arguments[0], row.arguments[3 if "prodcons" in row.program else 1]
        work.setdefault(row.program, []).append(threads * steps)
        assert row.needed_mb >= 4 * threads or row.needed_mb == 0 > threads - 8
    assert {name: len(totals) for name, totals in work.items()} == dict.fromkeys(work, 7)
    assert all(min(totals) > 0.99 * max(totals) for totals in work.values())


def test_every_bench_program_has_a_row():
    folder = Path(__file__).resolve().parents[2] / "bench"
    # Those of `hakmem soak` and `hakmem drawn` alone need none.
    programs = {path.stem for path in folder.glob("bench_*.c*")} - {"bench_soak", "bench_drawn"}
    rows = catalogue()
    held = {row.program for row in load_suite("held").rows if row.program.startswith("bench_")}
    with_row = {row.program for row in rows if row.program}
    assert with_row <= programs == with_row | held
    assert {row.scenario for row in rows} == {"", "json", "mir", "vm", "mixed"}


def test_rows_are_picked_by_name_pattern_and_group():
    rows = catalogue()
    assert [row.name for row in pick(rows, ["larson-*"], "x")] == [
        "larson-2",
        "larson-8",
        "larson-1",
        "larson-64",
    ]
    assert {row.group for row in pick(rows, ["group:threads"], "x")} == {"threads"}
    with pytest.raises(UserError, match=r"x: no row fits 'nosuch' \(known: random-mixed-400"):
        pick(rows, ["nosuch"], "x")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("title = ", "is no TOML"),
        (GOOD, "no rows"),
        (GOOD + "colour = 1\n" + ROW, "unexpected keyword argument 'colour'"),
        (GOOD.replace("rounds = 3", "rounds = 0") + ROW, "rounds: 0 is not what belongs there"),
        (GOOD.replace("rounds = 3", 'rounds = "3"') + ROW, "rounds: '3' is not what belongs"),
        (GOOD.replace('title = "t"', "") + ROW, "missing 1 required positional argument: 'title'"),
        (GOOD + 'modes = ["fast"]\n' + ROW, "modes: 'fast' is none of preload, static"),
        (GOOD + ROW + ROW, "'one' is there twice"),
        (GOOD + ROW + "work = 5\n", "work and {work} in arguments belong together"),
        (GOOD + ROW + 'cpu = "two"\n', "cpu: 'two' is neither 'one' nor 'any'"),
        (GOOD + '[[row]]\nname = "a"\n', "argument: 'program'"),
        (GOOD + 'pick = ["nosuch"]\n', "pick: no row fits 'nosuch'"),
        (GOOD + ROW + "static = 1\n", "static: 1 is not what belongs there"),
    ],
)
def test_broken_suite_is_refused_in_one_line(tmp_path, text, complaint):
    with pytest.raises(UserError) as error:
        read_suite(suite_file(tmp_path, text))
    assert error.value.exit_code == 2
    assert complaint in error.value.message
    assert "mine.toml" in error.value.message
    assert "\n" not in error.value.message.strip() or "TOML" in error.value.message


def test_rows_without_static_have_one_mode(tmp_path):
    suite = read_suite(suite_file(tmp_path, GOOD + 'pick = ["fixed-64", "larson-2"]\n'))
    found = [(job.row.name, job.mode) for job in jobs_of(suite, suite.rows, suite.modes)]
    assert found == [("fixed-64", PRELOAD), ("larson-2", PRELOAD), ("fixed-64", STATIC)]


def scaling_row(**more) -> Row:
    return Row("r", "/bin/x", "r", "core", ("{work}", 4), work=1000, **more)


def test_work_is_scaled_to_the_slice_within_its_bounds():
    # A program that takes 10 ms to start and 1 us a unit of work.
    def run(work: int) -> Outcome:
        return outcome(0.01 + work * 1e-6)

    work, last = calibrate(scaling_row(), run, 0.1)
    assert 0.075 < last.wall_s < 0.13
    assert work == round_work(work)
    assert calibrate(scaling_row(work_max=2000), run, 0.1)[0] == 2000
    assert calibrate(scaling_row(), lambda _work: outcome(1.0, status=9), 0.1)[0] == 1000


def test_round_work_keeps_two_digits():
    assert [round_work(x) for x in (0.2, 7, 94, 1234, 98_765)] == [1, 7, 94, 1200, 99_000]


def test_longest_rounds_are_cut_first_to_meet_the_limit():
    short, long = Trial(100, 1.0, 0.2, True), Trial(100, 9.0, 0.2, True)
    assert fit([short, None, long], 10, 1000) == [1.0, 1.0, 1.0]
    cuts = fit([short, None, long], 10, 60)
    assert cuts[0] == 1.0
    assert 10 * (cuts[0] * 1.0 + cuts[2] * 9.0) == pytest.approx(60, rel=0.01)
    # A slice never gets shorter than can be measured, whatever the limit.
    assert fit([long], 10, 1)[0] == pytest.approx(SHORTEST_SLICE_S / 0.2)


def test_rows_that_do_not_scale_are_not_cut():
    row = Row("r", "/bin/x")
    assert fit([Trial(0, 9.0, 1.0, False, scales=False)], 10, 1) == [1.0]
    job = scaled(Job(row, PRELOAD), Trial(0, 2.0, 1.0, False), 0.5)
    assert (job.work, job.round_s, job.is_throughput) == (0, 2.0, False)
    job = scaled(Job(scaling_row(), PRELOAD), Trial(1000, 2.0, 1.0, True), 0.5)
    assert (job.work, job.round_s) == (500, 1.0)


def test_a_row_with_rounds_of_its_own_runs_fewer_but_never_more():
    row = scaling_row(rounds=3)
    assert [row.rounds_of(10), row.rounds_of(2), scaling_row().rounds_of(10)] == [3, 2, 10]
    seldom = Trial(0, 20.0, 5.0, True, scales=False, rounds=3)
    often = Trial(100, 5.0, 1.0, True)
    # 60 s of the one leave 40 s for ten rounds of the other.
    assert fit([seldom, often], 10, 100) == pytest.approx([1.0, 0.8], rel=0.01)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (Interval(1.2, 1.1, 1.3), WON),
        (Interval(0.9, 0.8, 0.95), LOST),
        (Interval(0.9, 0.8, 1.05), SAME),
        (Interval(0.5), TOO_FEW),
        (None, "no figures"),
    ],
)
def test_verdict_needs_the_whole_interval_on_one_side(ratio, expected):
    assert verdict("peer", "hakmem", ratio) == expected
    assert verdict("hakmem", "hakmem", ratio) == "baseline"


def test_operations_are_those_the_program_names():
    rotation = new_rotation([Contender("a", ("x",))], WALL_TIME, 1)
    rotation.rounds_done = 1
    said = outcome(1.0, "Throughput = 1000 ops/s [values=77 check=5] time=0.500s")
    rotation.series["a"] = Series(Contender("a", ("x",)), [1000.0], [said])

    def counted(**more) -> int:
        job = Job(Row("r", "x", "r", "scenarios", scenario="json", **more), PRELOAD)
        return suite_results.operations(job, rotation, "a")

    assert counted(operations="values") == 77
    assert counted(operations="values", operations_times=2) == 154
    assert counted() == 500


def test_environment_is_cleaned_and_put_back(monkeypatch):
    import os

    monkeypatch.setenv("MALLOC_CONF", "junk:true")
    monkeypatch.setenv("HAKMEM_PROFILE", "speed")
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("KEPT", "yes")
    with clean_environment() as removed:
        assert removed.keys() >= {"MALLOC_CONF", "HAKMEM_PROFILE", "LD_PRELOAD"}
        assert not {"MALLOC_CONF", "HAKMEM_PROFILE", "LD_PRELOAD"} & os.environ.keys()
        assert os.environ["KEPT"] == "yes"
        assert "HAKLAB_BUILD" in os.environ
    assert os.environ["MALLOC_CONF"] == "junk:true"


def test_row_is_judged_by_a_word_of_the_memory_line():
    spike = next(row for row in load_suite("held").rows if row.name == "spike")
    metric = Job(spike, "preload").metric
    line = "Throughput = 5 ops/s\nMemory: spike_kb=9 after_2s_kb=77 end_after_2s_kb=1\n"
    assert metric.read(outcome(1.0, line)) == 77
    assert not metric.higher_is_better
