from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner
from small_build import assert_in_order, run_rotation

from hakmem.cli import main
from hakmem.measuring.deciding import (
    CPU_TIME,
    OPS_PER_CPU_SECOND,
    Decision,
    MirroredOrder,
    Plan,
    Verdict,
    decide,
    judge,
    pairs_needed,
)
from hakmem.measuring.rotation import OPS_PER_SECOND, Contender
from hakmem.measuring.statistics import Interval
from hakmem.running.launching import Outcome

PLAN = Plan(first=20, most=640, min_effect=0.01, confidence=0.99)
# A program that prints a figure which its environment chooses.
PRINTS = ("/bin/sh", "-c", "echo Throughput = ${SPEED:-100}")
FIGURE = ("--metric", r"Throughput = ([0-9.]+)")


def run(*arguments: str):
    return CliRunner().invoke(main, ["ab", *arguments])


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))


def bursts(generator: np.random.Generator, effect: float) -> np.ndarray:
    """Speed ratios as on a shared machine: mostly 3 % of noise, now and then a burst of 20 %."""
    noise = generator.normal(0, 0.03, PLAN.most)
    hit = generator.random(PLAN.most) < 0.15
    noise[hit] += generator.normal(0, 0.2, hit.sum())
    return np.exp(noise + np.log(effect))


def sequential(ratios: np.ndarray, plan: Plan = PLAN) -> Verdict:
    for look in plan.looks:
        verdict = decide(list(ratios[:look]), plan).verdict
        if verdict is not Verdict.UNDECIDED:
            break
    return verdict


def trials(effect: float, count: int = 200) -> Counter:
    generator = np.random.default_rng(7)
    return Counter(sequential(bursts(generator, effect)) for _ in range(count))


@pytest.mark.turns
def test_noise_alone_is_not_called_a_difference():
    found = trials(1.0)
    assert found[Verdict.GO] + found[Verdict.NO_GO] <= 2
    assert found[Verdict.NO_DIFFERENCE] >= 190


def test_three_percent_are_told_apart_in_both_directions():
    assert trials(0.97)[Verdict.NO_GO] >= 196
    assert trials(1.03)[Verdict.GO] >= 196


def test_looking_often_is_paid_for():
    assert PLAN.looks == [20, 40, 80, 160, 320, 640]
    assert PLAN.confidence_per_look == pytest.approx(1 - 0.01 / 6)
    assert Plan(20, 50, 0.01, 0.99).looks == [20, 40, 50]
    assert Plan(20, 20, 0.01, 0.99).looks == [20]


def test_verdicts_by_interval():
    least = 0.01
    assert judge(Interval(0.03, 0.01, 0.05), least) is Verdict.GO
    assert judge(Interval(-0.03, -0.05, -0.01), least) is Verdict.NO_GO
    assert judge(Interval(0.003, -0.002, 0.008), least) is Verdict.NO_DIFFERENCE
    # A difference for sure, and too small to matter for sure.
    assert judge(Interval(0.005, 0.002, 0.008), least) is Verdict.NO_DIFFERENCE
    assert judge(Interval(0.03, -0.01, 0.07), least) is Verdict.UNDECIDED
    assert judge(Interval(0.009, 0.001, 0.02), least) is Verdict.UNDECIDED
    assert judge(Interval(0.5), least) is Verdict.UNDECIDED


def test_swapping_the_sides_mirrors_the_decision():
    ratios = bursts(np.random.default_rng(3), 0.96)
    ours, theirs = decide(list(ratios), PLAN), decide(list(1 / ratios), PLAN)
    assert (ours.verdict, theirs.verdict) == (Verdict.NO_GO, Verdict.GO)
    assert ours.ratio.low == pytest.approx(1 / theirs.ratio.high)


def test_pairs_needed_grow_with_the_square_of_the_noise():
    assert pairs_needed(Interval(0.02, -0.02, 0.06), 20, PLAN) == 80
    assert pairs_needed(Interval(0.0, -0.02, 0.02), 20, PLAN) == pytest.approx(81, abs=1)
    assert pairs_needed(Interval(0.00995, 0.0, 0.1), 20, PLAN) is None
    # Too few for any interval: as many as the confidence takes.
    needed = pairs_needed(Interval(0.0), 2, PLAN)
    assert decide([1.0] * needed, PLAN).ratio.low is not None
    assert decide([1.0] * (needed - 1), PLAN).ratio.low is None


def test_every_second_round_mirrors_the_one_before():
    rows = [Contender(name, ("/bin/sh", "-c", "echo Throughput = 1")) for name in "AB"]
    series = list(run_rotation(rows, OPS_PER_SECOND, 1, seed=1).series.values())
    order = MirroredOrder(seed=5)
    rounds = ["".join(row.contender.name for row in order(series)) for _ in range(40)]
    assert all(rounds[i] == rounds[i + 1][::-1] for i in range(0, 40, 2))
    assert set(rounds[::2]) == {"AB", "BA"}


def test_cpu_metric_takes_out_what_others_took():
    busy = Outcome(0, 0, 2.0, 1.0, 1, 0, 0, "Throughput = 50 ops/s", "")
    assert OPS_PER_CPU_SECOND.read(busy) == 100
    assert CPU_TIME.read(busy) == 1.0
    silent = Outcome(0, 0, 2.0, 1.0, 1, 0, 0, "", "")
    assert OPS_PER_CPU_SECOND.read(silent) is None


@pytest.mark.parametrize(
    ("speed", "verdict", "status"),
    [("110", "go", 0), ("90", "no-go", 3), ("100.2", "no difference", 0)],
)
def test_settings_are_compared(tmp_path, speed, verdict, status):
    path = tmp_path / "out.json"
    found = run("--a-lib", "glibc", "--b-lib", "glibc", "--b", f"SPEED={speed}", *FIGURE,
                "--json", str(path), "--", *PRINTS)  # fmt: skip
    assert found.exit_code == status, found.output
    document = json.loads(path.read_text())
    assert (document["verdict"], document["pairs"]) == (verdict, 20)
    assert document["speed_of_b_over_a"]["median"] == pytest.approx(float(speed) / 100)
    assert found.output.splitlines()[0].startswith(verdict.upper())
    assert_in_order(found.output, "median", "How it was measured", "host ", "command line ")


@pytest.mark.turns
def test_lower_is_better_turns_the_verdict():
    found = run("--a-lib", "glibc", "--b-lib", "glibc", "--b", "SPEED=90", *FIGURE,
                "--lower-is-better", "--", *PRINTS)  # fmt: skip
    assert "GO: B is faster by 11.1 %" in found.output


def test_undecided_says_how_many_pairs_it_needs():
    # Two pairs have no interval at any confidence.
    found = run("--a-lib", "glibc", "--b-lib", "glibc", "--b", "X=1", *FIGURE, "--pairs", "2",
                "--max-pairs", "4", "--", *PRINTS)  # fmt: skip
    assert found.exit_code == 4, found.output
    assert "UNDECIDED" in found.output
    assert "about 9 pairs would decide" in found.output


def test_side_that_fails_is_named():
    script = "test -z $BROKEN || { echo oops >&2; exit 3; }"
    found = run("--a-lib", "glibc", "--b-lib", "glibc", "--b", "BROKEN=1", "--", "/bin/sh", "-c",
                script)  # fmt: skip
    assert found.exit_code == 1
    assert "B: exit status 3; it last said: oops" in found.output


def test_side_that_fails_later_ends_the_comparison(tmp_path):
    # The trial and the proof are the first runs under B; the next one fails.
    count = tmp_path / "count"
    script = 'test -n "$BROKEN" && echo x >>$0 && test $(wc -l <$0) -gt 3 && exit 9; exit 0'
    found = run("--a-lib", "glibc", "--b-lib", "glibc", "--b", "BROKEN=1", "--metric", "wall",
                "--", "/bin/sh", "-c", script, str(count))  # fmt: skip
    assert found.exit_code == 1, found.output
    assert "B: exit status 9" in found.output


def test_hakmem_that_does_not_serve_is_refused(build, monkeypatch):
    monkeypatch.setenv("HAKLAB_LIB", str(build / "bench" / "libfloor.so"))
    found = run("--b", "X=1", "--", "/bin/true")
    assert found.exit_code == 1
    assert "NOT SERVED" in found.output


def test_counter_proves_a_library_by_its_path(build):
    library, program = str(build / "libhakmem.so"), str(build / "bench" / "bench_random_mixed")
    found = run("--a-lib", library, "--b-lib", library, "--b", "X=1", "--pairs", "2",
                "--max-pairs", "2", "--", program, "1000")  # fmt: skip
    assert found.exit_code == 4, found.output
    assert re.search(r"served B +yes, \d+ spans handed out", found.output)
    assert "ops/CPU s" in found.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "A and B are the same"),
        (("--b", "NOVALUE"), "--b: 'NOVALUE' is not NAME=VALUE"),
        (("--b", "X=1", "--a-lib", "nonesuch"), "unknown allocator 'nonesuch'"),
        (("--b-lib", "/nowhere/lib.so"), "no library at /nowhere/lib.so"),
        (("--b", "X=1", "--pairs", "9", "--max-pairs", "8"), "--max-pairs: 8 is below --pairs 9"),
        (("--b", "X=1", "--min-effect", "0"), "'0' is no share"),
        (("--b", "X=1", "--metric", "("), "no regular expression"),
    ],
)
def test_bad_options_are_refused(arguments, said):
    found = run(*arguments, "--", "/bin/sh", "-c", "exit 0")
    assert found.exit_code == 2
    assert said in found.output


@pytest.mark.turns
def test_interrupt_leaves_a_verdict_on_what_there_is(build, tmp_path):
    path = tmp_path / "out.json"
    journals = tmp_path / "results"
    command = [sys.executable, "-c", "from hakmem.cli import main; main()", "ab",
               "--a-lib", "glibc", "--b-lib", "glibc", "--b", "X=1", "--pairs", "500",
               "--json", str(path), "--metric", "wall",
               "--", "/bin/sh", "-c", "sleep 0.01"]  # fmt: skip
    environment = {**os.environ, "HAKLAB_RESULTS": str(journals)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not any(
            file.read_text().count('"round"') > 12 for file in journals.glob("*.jsonl")
        ):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    document = json.loads(path.read_text())
    assert document["interrupted"] is True
    assert 12 <= document["pairs"] < 500
    assert f"interrupted after {document['pairs']} pairs" in said


def test_decision_carries_what_it_rests_on():
    found = decide([1.1] * 20, PLAN)
    assert found == Decision(Verdict.GO, found.ratio, 20)
    assert found.ratio.median == pytest.approx(1.1)


def test_old_journals_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path))
    for second in range(25):
        (tmp_path / f"ab-20200101-0000{second:02}-1.jsonl").touch()
    found = run("--a-lib", "glibc", "--b-lib", "glibc", "--b", "SPEED=101", "--pairs", "2",
                "--max-pairs", "2", *FIGURE, "--", *PRINTS)  # fmt: skip
    assert len(list(tmp_path.glob("ab-*.jsonl"))) == 20, found.output
