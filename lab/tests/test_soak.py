import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from hakmem.allocators.peers import Allocator
from hakmem.cli import main
from hakmem.errors import UserError
from hakmem.inputs import BYTES_MOST
from small_build import BENCH, assert_in_order, compile_c

from hakmem_lab import soak_file
from hakmem_lab.shell import allocator_json
from hakmem_lab.soak_file import COLUMNS, Epoch
from hakmem_lab.soak_judging import LONG, Thresholds, judge
from hakmem_lab.spreads import Trend

EPOCHS = 40


@pytest.fixture(scope="module", autouse=True)
def soak_program(build: Path) -> None:
    sources = [BENCH / "bench_soak.c", BENCH / "bench.c"]
    compile_c(build / "bench" / "bench_soak", sources, "-pthread")


def run(*arguments: str):
    return CliRunner().invoke(main, ["soak", *arguments])


def epoch(number: int, name: str, speed: float = 1e7, rss: float = 50_000, **more) -> Epoch:
    values = {
        "time": "2026-01-01T00:00:00+00:00",
        "elapsed_s": float(number),
        "round": number,
        "load": LONG,
        "allocator": name,
        "process": 1,
        "epoch": number,
        "ops": 1_000_000,
        "seconds": 0.1,
        "ops_per_sec": speed,
        "rss_kb": round(rss),
        "peak_rss_kb": round(rss),
        "live_kb": 1000,
        "p50_ns": 10.0,
        "p99_ns": 100.0,
        "p999_ns": 900.0,
        "max_ns": 5000.0,
    }
    return Epoch(**(values | more))


def series(name: str, speed_rise=0.0, rss_rise=0.0, noise=0.005, count=EPOCHS, machine=0.0, **more):
    """Epochs whose speed and memory rise by these shares from the first to the last."""
    generator = np.random.default_rng(len(name))
    steps = np.linspace(0, 1, count)
    speed = 1e7 * (1 + speed_rise * steps) * (1 + machine * steps)
    speed = speed * (1 + generator.normal(0, noise, count))
    return [
        epoch(i + 1, name, speed[i], 50_000 * (1 + rss_rise * steps[i]), **more)
        for i in range(count)
    ]


def write(path: Path, epochs: list[Epoch], head: dict | None = None) -> Path:
    soak_file.begin(path, head or {})
    for one in epochs:
        soak_file.append(path, one)
    return path


def failures(epochs: list[Epoch], **thresholds) -> tuple[str, ...]:
    return judge(epochs, Thresholds(**thresholds))[0].failures


@pytest.mark.turns
def test_file_gives_back_what_was_written(tmp_path):
    rows = [epoch(1, "a"), replace(epoch(2, "b"), live_kb=None, ops=None, p50_ns=None)]
    found = soak_file.read(write(tmp_path / "s.csv", rows, {"cpus": None}))
    assert found.epochs == rows
    assert found.head == {"cpus": None}


def test_line_cut_in_its_middle_is_dropped_and_the_file_can_grow(tmp_path):
    path = write(tmp_path / "s.csv", series("a", count=3))
    whole = path.read_text()
    # Cut inside the last line, where what is left still looks like a line of numbers.
    path.write_text(whole[:-4])
    assert len(soak_file.read(path).epochs) == 2
    soak_file.drop_cut_line(path)
    soak_file.append(path, epoch(3, "a"))
    assert [e.round for e in soak_file.read(path).epochs] == [1, 2, 3]


def test_damage_names_line_and_column(tmp_path):
    path = write(tmp_path / "s.csv", series("a", count=3))
    path.write_text(path.read_text().replace("50000", "fifty", 1))
    with pytest.raises(UserError, match=r"line 3: column rss_kb: 'fifty'"):
        soak_file.read(path)
    path.write_text("time,load\n1,2\n")
    with pytest.raises(UserError, match="no column elapsed_s"):
        soak_file.read(path)


IMPOSSIBLE = [
    *(("rss_kb", text) for text in ("-5", "0", "nan", "1" * 40, "")),
    *(("ops_per_sec", text) for text in ("nan", "1e999", "-inf", "0", "-1")),
    ("ops", "0"), ("seconds", "0.0"), ("round", "0"), ("p50_ns", "-1"), ("load", ""),
]  # fmt: skip


@pytest.mark.parametrize(("column", "text"), IMPOSSIBLE)
def test_impossible_figures_are_damage(tmp_path, column, text):
    path = write(tmp_path / "s.csv", series("hakmem"))
    lines = path.read_text().splitlines()
    cells = lines[7].split(",")
    cells[COLUMNS.index(column)] = text
    lines[7] = ",".join(cells)
    path.write_text("\n".join(lines) + "\n")
    for arguments in (("analyse", str(path)), ("--resume", str(path))):
        found = run(*arguments)
        assert found.exit_code == 2, found.output
        assert f"{path}, line 8: column {column}: '{text}'" in found.output


def test_round_that_occurs_twice_is_damage(tmp_path):
    """In place of another, which would be told as missing, and besides."""
    for replaced in (True, False):
        path = write(tmp_path / f"{replaced}.csv", series("hakmem"))
        lines = path.read_text().splitlines()
        lines[12 : 12 + replaced] = [lines[11]]
        path.write_text("\n".join(lines) + "\n")
        for arguments in (("analyse", str(path)), ("--resume", str(path))):
            found = run(*arguments)
            assert found.exit_code == 2, found.output
            assert found.output.count("\n") == 1
            assert f"{path}, line 13: round 10 of hakmem, long is in line 12 too" in found.output


def test_what_is_missing_is_told_in_one_note(tmp_path):
    path, out = write(tmp_path / "s.csv", series("hakmem")), tmp_path / "o.json"
    whole = run("analyse", str(path))
    assert (whole.exit_code, "note:" in whole.output) == (0, False)
    lines = path.read_text().splitlines()
    del lines[20:22]
    path.write_text("\n".join(lines)[:-3])
    found = run("analyse", str(path), "--json", str(out))
    assert found.exit_code == 0, found.output
    note = f"line 40 of {path} was cut short, and is left out; 2 epochs are missing in {path}: "
    assert json.loads(out.read_text())["notes"] == [note + "these are the other 37 epochs"]
    assert f"note: {note}" in found.output


@pytest.mark.parametrize("text", ["[]", '{"allocators": 1}', '{"facts": null}'])
def test_head_of_another_shape_is_refused(tmp_path, text):
    path = write(tmp_path / "s.csv", series("hakmem"))
    path.write_text(path.read_text().replace("{}", text, 1))
    found = run("analyse", str(path))
    assert (found.exit_code, f"{path}, line 1: its description: it" in found.output) == (2, True)


def test_drift_without_a_start_is_no_verdict(tmp_path):
    rows = [replace(e, rss_kb=1 + 10 * max(0, e.round - 20)) for e in series("hakmem")]
    found = run("analyse", str(write(tmp_path / "s.csv", rows)))
    assert found.exit_code == 2
    assert "hakmem, long: no drift can be told" in found.output


def test_inputs_without_an_end_are_refused(tmp_path):
    large = tmp_path / "large.csv"
    with large.open("wb") as file:
        file.truncate(BYTES_MOST + 1)
    os.mkfifo(tmp_path / "pipe")
    said = {"/dev/zero": "no plain file", str(large): "larger than 512 MB",
            str(tmp_path / "pipe"): "no plain file"}  # fmt: skip
    for path, told in said.items():
        for arguments in (("soak", "analyse"), ("soak", "--resume")):
            found = CliRunner().invoke(main, [*arguments, path])
            assert (found.exit_code, told in found.output) == (2, True), found.output


def test_steady_run_passes():
    assert failures(series("hakmem")) == ()


def test_growing_memory_fails():
    assert "RSS drift +1" in failures(series("hakmem", rss_rise=0.15))[0]
    assert failures(series("hakmem", rss_rise=-0.15))
    assert failures(series("hakmem", rss_rise=0.03)) == ()
    assert failures(series("hakmem", rss_rise=0.15), rss_drift=0.3) == ()


def test_growth_of_each_process_does_not_hide_behind_a_resume():
    first = series("hakmem", rss_rise=0.2)
    later = [replace(e, process=2, round=e.round + EPOCHS) for e in first]
    assert any("RSS drift" in failure for failure in failures(first + later))


def test_slowing_down_fails_alone_and_beside_others():
    alone = failures(series("hakmem", speed_rise=-0.1), variation=0.5)
    assert alone[0].startswith("throughput drift -")
    beside = failures(series("hakmem", speed_rise=-0.1) + series("glibc"), variation=0.5)
    assert "beside the others" in beside[0]


def test_machine_that_slows_down_for_all_is_not_ours():
    rows = series("hakmem", machine=-0.3) + series("glibc", machine=-0.3)
    first = judge(rows, Thresholds(variation=0.5))[0]
    assert first.failures == ()
    assert first.throughput_drift.change < -0.2
    assert abs(first.beside_others.change) < 0.02


def test_machine_that_speeds_up_does_not_hide_our_loss():
    rows = series("hakmem", speed_rise=-0.15, machine=0.3) + series("glibc", machine=0.3)
    assert "beside the others" in failures(rows, variation=0.5)[0]


def test_variation_may_be_that_of_the_best_other():
    noisy = series("hakmem", noise=0.05)
    assert "CV" in failures(noisy)[0]
    assert "CV" in failures(noisy + series("glibc", noise=0.01))[0]
    assert failures(noisy + series("glibc", noise=0.2)) == ()


def test_warm_up_does_not_count():
    rows = series("hakmem")
    rows[:4] = [replace(e, ops_per_sec=1e5, rss_kb=100) for e in rows[:4]]
    first = judge(rows, Thresholds())[0]
    assert (first.epochs, first.failures) == (36, ())


def test_programs_are_judged_by_their_peaks_as_one_series():
    rows = [
        replace(
            e,
            load="larson",
            process=e.round,
            epoch=1,
            p50_ns=None,
            p99_ns=None,
            p999_ns=None,
            max_ns=None,
        )
        for e in series("hakmem")
    ]
    first = judge(rows, Thresholds())[0]
    assert (first.epochs, first.processes, first.p50_ns) == (36, 36, None)


def test_too_few_epochs_are_refused():
    with pytest.raises(UserError, match="9 epochs after the warm-up are too few"):
        judge(series("hakmem", count=11), Thresholds())
    with pytest.raises(UserError, match="no epoch"):
        judge([], Thresholds())


def test_analyse_writes_its_file_and_only_hakmem_decides(tmp_path):
    path = write(tmp_path / "s.csv", series("glibc", rss_rise=0.5) + series("hakmem"))
    out = tmp_path / "o.json"
    found = run("analyse", str(path), "--json", str(out))
    assert found.exit_code == 0, found.output
    assert "hakmem, long: PASS" in found.output
    assert "glibc, long: FAIL: RSS drift" in found.output
    document = json.loads(out.read_text())
    assert document["passed"] is True
    assert [row["passed"] for row in document["rows"]] == [False, True]


def test_analyse_without_a_verdict_writes_what_was_measured(tmp_path):
    path = write(tmp_path / "s.csv", series("hakmem", count=5))
    out = tmp_path / "o.json"
    found = run("analyse", str(path), "--json", str(out))
    assert found.exit_code == 2
    assert json.loads(out.read_text())["passed"] is None


def test_run_too_short_for_a_verdict_names_how_to_go_on(tmp_path):
    path = tmp_path / "s.csv"
    arguments = soak_arguments(path, 0.005)
    arguments[arguments.index("--program") + 1] = "slow=/bin/sleep 0.2"
    found = run(*arguments)
    assert found.exit_code == 2, found.output
    assert "no verdict: glibc" in found.output
    assert f"hakmem soak --resume {path} --minutes MINUTES" in found.output.replace("\n", "")


def test_analyse_of_a_failed_run_has_status_1(tmp_path):
    path = write(tmp_path / "s.csv", series("hakmem", rss_rise=0.5) + series("glibc"))
    assert run("analyse", str(path)).exit_code == 1
    assert run("analyse", str(path), "--max-rss-drift", "60%").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--minutes", "0"), "--minutes"),
        (("--program", "long=/bin/true", "--with", "glibc"), "the name 'long' is taken"),
        (("--with", "nonesuch"), "unknown allocator"),
        (("--max-cv", "-1%"), "'-1%' is no share"),
        (
            ("--resume", __file__, "--seed", "1"),
            "the file of --resume says how the run is made: --seed cannot be given",
        ),
        (("--resume", __file__), "is no soak CSV"),
        (("--with", "glibc", "--csv", __file__), "is there and is no CSV file of hakmem"),
        (("--with", "glibc", "--csv", os.devnull), "is there already"),
    ],
)
def test_bad_options_are_refused(arguments, said):
    found = run(*arguments)
    assert found.exit_code == 2
    assert said in found.output


def soak_arguments(path: Path, minutes: float) -> list[str]:
    program = f"tiny={os.environ['HAKLAB_BUILD']}/bench/bench_random_mixed 1000"
    return ["--minutes", str(minutes), "--with", "glibc", "--epoch", "0.01",
            "--program", program, "--csv", str(path)]  # fmt: skip


@pytest.fixture
def even_clock(monkeypatch):
    """A round takes a fifth of a second by the soak's clock, and no speed drifts, whatever this
    machine does: from a line that begins at 0, as a busy one's may, no drift could be told."""
    looks = itertools.count(1)
    clock = SimpleNamespace(monotonic=lambda: next(looks) / 10)
    monkeypatch.setattr("hakmem_lab.soaking.time", clock)
    monkeypatch.setattr("hakmem_lab.soak_judging.trend", lambda _: Trend(0.0, 0.0, 0.0))


@pytest.mark.turns
@pytest.mark.usefixtures("even_clock")
def test_run_gives_whole_rounds_and_its_own_program_lines(tmp_path):
    path = tmp_path / "s.csv"
    found = run(*soak_arguments(path, 0.05), "--max-cv", "99%")
    assert found.exit_code in (0, 1), found.output
    assert_in_order(found.output, "epochs go to", "glibc, long: ", "Drift", "How it was", "host ")
    rows = soak_file.read(path).epochs
    rounds = max(e.round for e in rows)
    assert [(e.round, e.load) for e in rows] == [
        (number, load) for number in range(1, rounds + 1) for load in (LONG, "tiny")
    ]
    long = [e for e in rows if e.load == LONG]
    assert [e.epoch for e in long] == list(range(1, rounds + 1))
    assert all(e.p50_ns <= e.p99_ns <= e.p999_ns <= e.max_ns for e in long)
    assert all(e.rss_kb > 0 and e.live_kb >= 0 for e in long)
    assert all(e.ops_per_sec == pytest.approx(e.ops / e.seconds, rel=1e-3) for e in long)
    with path.open() as lines:
        assert next(lines).startswith("# hakmem soak {")
        assert tuple(next(csv.reader(lines))) == COLUMNS


@pytest.mark.turns
@pytest.mark.usefixtures("even_clock")
def test_settings_reach_programs_and_are_told(tmp_path):
    path, seen = tmp_path / "s.csv", tmp_path / "seen"
    arguments = soak_arguments(path, 0.05)
    bench = f"{os.environ['HAKLAB_BUILD']}/bench/bench_random_mixed"
    arguments[arguments.index("--program") + 1] = (
        f"tiny=/bin/sh -c 'echo $GIVEN >> {seen}; exec {bench} 1000'"
    )
    found = run(*arguments, "--set", "GIVEN=lean", "--max-cv", "99%")
    assert found.exit_code in (0, 1), found.output
    assert set(seen.read_text().split()) == {"lean"}
    assert soak_file.read(path).head["allocators"]["glibc"]["settings"] == {"GIVEN": "lean"}
    wrong = run(*soak_arguments(tmp_path / "t.csv", 0.02), "--set", "GIVEN")
    assert wrong.exit_code == 2
    assert "--set: 'GIVEN' is not NAME=VALUE" in wrong.output
    assert run("--resume", str(path), "--set", "GIVEN=x").exit_code == 2


@pytest.mark.turns
@pytest.mark.usefixtures("even_clock")
def test_interrupted_run_goes_on_where_it_stopped(build, tmp_path):
    path = tmp_path / "s.csv"
    command = [sys.executable, "-c", "from hakmem.cli import main; main()", "soak"]
    with subprocess.Popen(
        [*command, *soak_arguments(path, 60)], stdout=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and (
            not path.exists() or path.read_text().count("\n") < 12
        ):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert f"hakmem soak --resume {path} --minutes 60" in said
    before = soak_file.read(path).epochs
    assert len(before) >= 10
    with path.open("a") as file:
        file.write("2026-01-01T00:00:00+00:00,9,9,lo")
    # 30.5 looks at the clock: no rounding decides whether the time is over.
    total = before[-1].elapsed_s / 60 + 3.05 / 60
    found = run("--resume", str(path), "--minutes", str(total))
    assert found.exit_code in (0, 1), found.output
    after = soak_file.read(path).epochs
    assert after[: len(before)] == before
    added = after[len(before) :]
    assert {e.process for e in added if e.load == LONG} == {2}
    assert added[0].round == before[-1].round + 1
    assert added[0].elapsed_s > before[-1].elapsed_s
    assert run("--resume", str(path), "--minutes", str(total)).exit_code == 2


def test_resume_refuses_another_build(build, tmp_path):
    library = tmp_path / "lib.so"
    library.write_bytes((build / "bench" / "libfloor.so").read_bytes())
    row = allocator_json(Allocator("x", library)) | {"checksum": "0"}
    head = {"allocators": {"x": row}, "long": {"steps": 1, "threads": 1, "slots": 4, "seed": 1},
            "programs": {}}  # fmt: skip
    path = write(tmp_path / "s.csv", series("x"), head)
    found = run("--resume", str(path))
    assert found.exit_code == 2
    assert f"has changed since {path} was begun" in found.output


def test_first_allocator_that_fails_ends_the_run(tmp_path):
    arguments = soak_arguments(tmp_path / "s.csv", 1)
    arguments[arguments.index("--program") + 1] = "bad=/bin/sh -c 'echo oops >&2; exit 4'"
    found = run(*arguments)
    assert found.exit_code == 1
    assert "glibc: bad, round 1: exit status 4; it last said: oops" in found.output
    # What had been measured before is kept.
    assert len(soak_file.read(tmp_path / "s.csv").epochs) == 1
