import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from hakmem.allocators.peers import Allocator
from hakmem.cli import main
from hakmem.errors import UserError
from hakmem.measuring import journal
from hakmem.measuring.rotation import OPS_PER_SECOND, Contender, new_rotation
from hakmem.output.tables import make_console
from hakmem.running.launching import Outcome
from small_build import BENCH, assert_in_order, compile_c

from hakmem_lab import drawn_report, drawn_results
from hakmem_lab.drawn_results import CHOSEN, NET, NET_CHOSEN, SPEED
from hakmem_lab.drawn_run import Measured, Session, parse_seeds
from hakmem_lab.shell import PLAN
from hakmem_lab.spreads import costs_chosen_elsewhere

# glibc's malloc under a library's name: the loader can say that it served.
FORWARDING = """
#include <stddef.h>
void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void __libc_free(void *);
void *malloc(size_t n) { return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { return __libc_realloc(p, n); }
void free(void *p) { __libc_free(p); }
"""
SMALL = ("--scale", "1", "--rounds", "2", "--rest", "0")


@pytest.fixture(autouse=True)
def own_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path / "peers"))


@pytest.fixture(scope="module")
def program(build: Path) -> Path:
    sources = [BENCH / name for name in ("bench_drawn.c", "drawn_load.c", "bench.c")]
    return compile_c(build / "bench" / "bench_drawn", sources, "-pthread", "-ldl")


@pytest.fixture(scope="module")
def forwarding(build: Path) -> Path:
    source = build / "forwarding.c"
    source.write_text(FORWARDING)
    return compile_c(build / "forwarding.so", [source], "-shared", "-fPIC", "-fno-builtin")


def run(*arguments: str):
    return CliRunner().invoke(main, ["drawn", *arguments])


def folder_of_run() -> Path:
    (folder,) = journal.results_folder().glob("drawn-*")
    return folder


def test_seeds_are_ranges_and_single_ones():
    assert parse_seeds("7") == [7]
    assert parse_seeds("1..3,9,4..5") == [1, 2, 3, 9, 4, 5]
    wrong = {
        "": "no list",
        "1..": "no list",
        "-1": "no list",
        "5..4": "ends before",
        "1,1": "1 is given twice",
    }
    for text, why in (wrong | {"1..200000": "too many"}).items():
        with pytest.raises(UserError, match=why):
            parse_seeds(text)


@pytest.mark.turns
def test_every_seed_has_figures_files_and_words(program):
    found = run(
        "--seeds", "1..3", "--scale", "1", "--rounds", "2", "--rest", "0.05", "--floor",
        "--with", "hakmem,glibc",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    document = json.loads((folder_of_run() / "drawn.json").read_text())
    assert document["made_by"] == "hakmem drawn"
    assert [one["seed"] for one in document["seeds"]] == [1, 2, 3]
    assert document["served"]["hakmem"].startswith("yes")
    for one in document["seeds"]:
        assert "live blocks" in one["load"] and one["load"] in found.output
        assert (one["rounds"], one["best_peer"]) == (2, "glibc")
        assert {"hakmem", "glibc", "floor"} == set(one["figures"])
        for name in ("hakmem", "glibc"):
            figures = one["figures"][name]
            assert figures["speed"] > 0 and figures["peak_kb"] > 0 and figures["rest_kb"] > 0
        assert one["over_best"]["median"] == one["figures"]["glibc"]["ratio"]["median"]
        # A single peer is the choice of all rounds and of the others. Net of the floor there may be
        # nothing left of loads this short on a busy machine.
        assert one["over_chosen"] == one["over_best"]
        assert one["net_over_chosen"] == one["net_over_best"]
    titles = [one["title"] for one in document["summary"]]
    assert titles[:2] == ["speed over the best peer", "the same, the peer chosen by other rounds"]
    assert "the peer chosen by other rounds" in found.output
    assert_in_order(
        found.output, "hakmem ran the loads ", "on 3 drawn loads", "How it was measured"
    )


@pytest.mark.turns
def test_picture_has_a_line_for_each_peer(program, tmp_path):
    path = tmp_path / "peers.svg"
    found = run("--seeds", "1..2", "--scale", "1", "--rounds", "1", "--rest", "0",
                "--with", "hakmem,glibc", "--picture", str(path))  # fmt: skip
    assert found.exit_code == 0, found.output
    drawing = path.read_text()
    # Text stays text, for who reads it aloud.
    for words in ("glibc", "speed of hakmem ÷ speed of the peer", "peak memory"):
        assert words in drawing
    alone = run("--seeds", "1", "--scale", "1", "--rounds", "1", "--rest", "0", "--with", "hakmem",
                "--picture", str(tmp_path / "alone.svg"))  # fmt: skip
    assert "no peer has figures" in alone.output and not (tmp_path / "alone.svg").exists()


@pytest.mark.turns
def test_two_builds_get_a_verdict(program, forwarding):
    names = f"new={forwarding},old={forwarding}"
    found = run("--seeds", "1..5", *SMALL, "--with", names)
    assert found.exit_code == 0, found.output
    document = json.loads((folder_of_run() / "drawn.json").read_text())
    (beside,) = document["beside"]
    assert (document["baseline"], beside["peer"], beside["seeds"]) == ("new", "old", 5)
    assert beside["speed"]["low"] <= beside["speed"]["median"] <= beside["speed"]["high"]
    assert beside["verdict"] in ("faster", "slower", "no difference seen")
    assert set(document["served"].values()) == {"yes"}


@pytest.mark.turns
def test_stopped_run_goes_on(program):
    begun = run("--seeds", "1..2", *SMALL[:4], "--rest", "0.01", "--with", "hakmem,glibc")
    assert begun.exit_code == 0, begun.output
    folder = folder_of_run()
    done = (folder / "seed-1.jsonl").read_text()
    second = folder / "seed-2.jsonl"
    # The first round and the beginning of the next line.
    head, first, _ = second.read_text().split("\n", 2)
    second.write_text(f"{head}\n{first}\n" + '{"round": 2, "sli')
    found = run("--resume", str(folder))
    assert found.exit_code == 0, found.output
    assert (folder / "seed-1.jsonl").read_text() == done
    assert second.read_text().startswith(f"{head}\n{first}\n")
    for one in json.loads((folder / "drawn.json").read_text())["seeds"]:
        assert one["rounds"] == 2
        assert one["over_chosen"]["median"] > 0
        assert all(figures["rest_kb"] for figures in one["figures"].values())
    assert "seed 1:" not in found.output and "seed 2:" in found.output


def test_resume_refuses_other_libraries_and_options(program, forwarding, tmp_path):
    library = tmp_path / "own.so"
    library.write_bytes(forwarding.read_bytes())
    assert run("--seeds", "1", *SMALL, "--with", f"own={library},glibc").exit_code == 0
    folder = folder_of_run()
    with_option = run("--resume", str(folder), "--rounds", "3")
    assert with_option.exit_code == 2
    assert "--resume takes all from its folder: --rounds cannot be given" in with_option.output
    library.write_bytes(library.read_bytes() + b"x")
    changed = run("--resume", str(folder))
    assert changed.exit_code == 2
    assert "has changed since" in changed.output
    nothing = run("--resume", str(tmp_path))
    assert nothing.exit_code == 2 and "cannot read" in nothing.output


def test_plan_that_was_changed_or_is_anothers_is_refused(tmp_path):
    session = replace(session_of(["glibc"], [1]), folder=tmp_path)
    session.save()
    assert Session.load(tmp_path) == session
    path = tmp_path / PLAN
    document = json.loads(path.read_text())
    for wrong in (
        {**document, "plan": {**document["plan"], "rounds": "x"}},
        {**document, "made_by": "hakmem programs"},
        {"plan": {}},
        [document],
        "x",
    ):
        path.write_text(json.dumps(wrong))
        found = run("--resume", str(tmp_path))
        assert found.exit_code == 2, found.output
        assert f"{path} is no plan of hakmem drawn: " in found.output


def test_picture_of_another_kind_is_refused_before_anything_runs(tmp_path):
    found = run("--seeds", "1", "--picture", str(tmp_path / "x.png"))
    assert found.exit_code == 2
    assert "does not end in .svg" in found.output
    assert not list(tmp_path.iterdir())


def broken_library(folder: Path) -> Path:
    source = folder / "broken.c"
    source.write_text("#include <stdlib.h>\nvoid *malloc(size_t n) { (void)n; abort(); }\n")
    return compile_c(folder / "broken.so", [source], "-shared", "-fPIC", "-fno-builtin")


@pytest.mark.turns
def test_failing_peer_is_named_and_the_rest_goes_on(program, tmp_path):
    library = broken_library(tmp_path)
    # A thread's first allocation in the program, or what comes before its main: both abort.
    found = run("--seeds", "1,5", *SMALL, "--with", f"glibc,hakmem,broken={library}")
    assert "broken" in found.output and "killed by SIGABRT" in found.output
    document = json.loads((folder_of_run() / "drawn.json").read_text())
    assert [one["best_peer"] for one in document["seeds"]] == ["hakmem", "hakmem"]


def test_failing_baseline_is_a_status(program, tmp_path):
    found = run("--seeds", "1", *SMALL, "--with", f"broken={broken_library(tmp_path)},glibc")
    assert found.exit_code == 1, found.output
    found = run("--seeds", "1", *SMALL, "--with", "absent=/nowhere/lib.so,glibc")
    assert found.exit_code == 2
    assert "absent: no library at /nowhere/lib.so" in found.output


def test_hakmem_that_did_not_serve_is_a_status(program, monkeypatch, tmp_path, forwarding):
    monkeypatch.setenv("HAKLAB_LIB", str(forwarding))
    found = run("--seeds", "1", *SMALL, "--with", "hakmem,glibc")
    assert found.exit_code == 1
    assert "hakmem: NOT SERVED" in found.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--seeds", "x"), "--seeds: 'x' is no list of seeds"),
        (("--with", "nosuch"), "unknown allocator 'nosuch'"),
        (("--with", "glibc,glibc"), "two rows are named 'glibc'"),
        (("--rounds", "0"), "--rounds"),
    ],
)
def test_wrong_command_lines(arguments, complaint):
    found = run(*arguments)
    assert found.exit_code == 2
    assert complaint in found.output


@pytest.mark.turns
def test_interrupt_keeps_finished_seeds(program, build):
    command = [sys.executable, "-c", "from hakmem.cli import main; main()", "drawn"]
    command += ["--seeds", "1..500", *SMALL, "--with", "glibc,hakmem"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        wait_for(lambda: list(journal.results_folder().glob("drawn-*/seed-3.jsonl")))
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert re.search(r"interrupted after \d+ of 500 seeds", output)
    document = json.loads((folder_of_run() / "drawn.json").read_text())
    assert [one["seed"] for one in document["seeds"]][:2] == [1, 2]
    left = [p for p in psutil.process_iter(["cmdline"]) if str(build) in str(p.info["cmdline"])]
    assert not left


def wait_for(found) -> None:
    for _ in range(6000):
        if found():
            return
        time.sleep(0.05)
    raise AssertionError("the command did not get so far")


def session_of(names: list[str], seeds: list[int]) -> Session:
    allocators = [Allocator(name) for name in names]
    return Session(folder=Path("/nowhere"), seeds=seeds, rounds=3, scale=100, rest_s=2.0, seed=1,
                   floor=False, allocators=allocators, facts={"seeds": "1,2"})  # fmt: skip


def measured(seed: int, figures: dict[str, tuple[float, int, int]], problem: str = "") -> Measured:
    """Three equal rounds: speed, peak and rest of each allocator; `problem` names one without."""
    found = measured_rounds(seed, {name: [speed] * 3 for name, (speed, _, _) in figures.items()})
    for name, (_, peak, rest) in figures.items():
        series = found.rotation.series[name]
        text = f"Load: words of {seed}\nMemory: peak_kb={peak}\n"
        series.outcomes = [Outcome(0, 0, 0.1, 0.1, 1, 0, 0, text, "")] * 3
        if name == problem:
            series.problem = "exit status 1"
        found.rest_kb[name] = rest
    return found


def measured_rounds(seed: int, speeds: dict[str, list[float]]) -> Measured:
    """The speeds of each allocator, a value a round."""
    rows = [Contender(name, ("bench_drawn",)) for name in speeds]
    rotation = new_rotation(rows, OPS_PER_SECOND, seed)
    for name, values in speeds.items():
        rotation.series[name].values = list(values)
        rotation.series[name].outcomes = [Outcome(0, 0, 0.1, 0.1, 1, 0, 0, "", "")] * len(values)
    rotation.rounds_done = max(map(len, speeds.values()))
    return Measured(seed, rotation)


def test_each_seed_counts_against_its_own_best_peer():
    session = session_of(["ours", "mimalloc3", "jemalloc5", "glibc"], [1, 2])
    found = drawn_results.collect(
        session,
        [
            measured(1, {"ours": (100, 50, 20), "mimalloc3": (50, 100, 10),
                         "jemalloc5": (80, 200, 40), "glibc": (125, 25, 80)}),
            measured(2, {"ours": (100, 60, 5), "mimalloc3": (25, 30, 10),
                         "jemalloc5": (50, 40, 40), "glibc": (1, 60, 80)}),
        ],
    )  # fmt: skip
    assert [one.best_peer for one in found.seeds] == ["glibc", "jemalloc5"]
    assert [one.over_best.median for one in found.seeds] == pytest.approx([0.8, 2.0])
    assert found.shares[SPEED].mean.median == pytest.approx((0.8 * 2.0) ** 0.5)
    assert (found.shares[SPEED].first, found.shares[SPEED].nearly, found.shares[SPEED].lowest) == (
        0.5,
        0.5,
        0.8,
    )
    assert [one.peak_over_best for one in found.seeds] == [2, 2]
    assert [one.rest_over_best for one in found.seeds] == [2, 0.5]
    assert [one.seed for one in found.worst] == [1, 2]
    besides = {one.peer: one for one in found.beside}
    assert besides["mimalloc3"].speed.median == pytest.approx(8**0.5)
    assert besides["mimalloc3"].verdict == drawn_results.TOO_FEW
    assert found.seeds[0].load == "words of 1"


COPIES = [f"copy{i}" for i in range(9)]


def noisy_seeds(factors: dict[str, float]) -> list[Measured]:
    """Copies of one library on a shared machine: one run in two is slower by two fifths."""
    noise = random.Random(20)

    def speed(name: str) -> float:
        return factors.get(name, 1) * noise.choice([60, 100]) * noise.uniform(0.97, 1.03)

    return [
        measured_rounds(seed, {name: [speed(name) for _ in range(5)] for name in COPIES})
        for seed in range(40)
    ]


@pytest.mark.turns
def test_peer_chosen_by_other_rounds_is_not_the_luckiest():
    session = session_of(COPIES, list(range(40)))
    equal = drawn_results.collect(session, noisy_seeds({}))
    assert equal.shares[SPEED].mean.median < 0.9
    assert equal.shares[CHOSEN].mean.median == pytest.approx(1, abs=0.05)
    assert equal.shares[CHOSEN].seeds == 40
    assert not {NET, NET_CHOSEN} & set(equal.shares)
    faster = drawn_results.collect(session, noisy_seeds({"copy5": 2}))
    assert faster.shares[CHOSEN].mean.median == pytest.approx(0.5, rel=0.05)


def test_net_is_what_is_left_of_both_without_the_floor():
    # In seconds an operation. Nothing is left of b in the second load.
    speeds = {"a": [1 / 0.4] * 3, "b": [1 / 0.5] * 3, "floor": [1 / 0.3] * 3}
    short = {"a": [1 / 0.4] * 3, "b": [1 / 0.3] * 3, "floor": [1 / 0.4] * 3}
    session = session_of(["a", "b"], [1, 2])
    found = drawn_results.collect(session, [measured_rounds(1, speeds), measured_rounds(2, short)])
    assert found.seeds[0].net_over_best.median == pytest.approx(2)
    assert found.seeds[1].net_over_best is None
    titles = ("speed over the best peer, net of the floor",
              "the same, net, the peer chosen by other rounds")  # fmt: skip
    for share, title in zip((found.shares[NET], found.shares[NET_CHOSEN]), titles, strict=True):
        assert (share.title, share.seeds, share.mean.median) == (title, 1, pytest.approx(2))


def test_peer_that_is_twice_as_fast_is_chosen_by_all_rounds():
    speeds = {"a": [10, 20, 30], "b": [20, 40, 60], "c": [9, 18, 27]}
    found = drawn_results.collect(session_of(list(speeds), [1]), [measured_rounds(1, speeds)])
    assert found.shares[SPEED].mean.median == pytest.approx(0.5)
    assert found.shares[CHOSEN].mean.median == pytest.approx(0.5)


def test_no_round_takes_part_in_its_own_choice():
    b, c = [90, 10, 20], [15, 20, 14]
    # b is ahead by its first round alone, so the other two choose c to be compared in it.
    chosen = costs_chosen_elsewhere([[1 / speed for speed in row] for row in (b, c)])
    assert [1 / cost for cost in chosen] == pytest.approx([15, 10, 20])
    speeds = {"a": [10, 10, 10], "b": b, "c": c}
    session = session_of(list(speeds), [1])
    (found,) = drawn_results.collect(session, [measured_rounds(1, speeds)]).seeds
    assert (found.best_peer, found.over_best.median) == ("b", pytest.approx(10 / 20))
    assert found.over_chosen.median == pytest.approx(10 / 15)


def shown(found: drawn_results.Results) -> str:
    out = io.StringIO()
    drawn_report.show(make_console(out), found)
    return out.getvalue()


def test_seed_with_one_round_has_no_other_rounds():
    session = session_of(["a", "b"], [1, 2])
    found = drawn_results.collect(
        session,
        [
            measured_rounds(1, {"a": [10], "b": [20]}),
            measured_rounds(2, {"a": [9, 9], "b": [8, 8]}),
        ],
    )
    assert (found.shares[SPEED].seeds, found.shares[CHOSEN].seeds) == (2, 1)
    assert [one.over_chosen is None for one in found.seeds] == [True, False]
    assert "by other rounds" in shown(found)
    assert drawn_results.collect(session, []).shares == {}


def test_round_that_a_peer_lacks_has_another_choice():
    session = session_of(["a", "b", "c"], [1])

    def chosen(speeds: dict[str, list[float]]) -> float:
        return (
            drawn_results.collect(session, [measured_rounds(1, speeds)]).shares[CHOSEN].mean.median
        )

    # b is the choice of the first two rounds, c of the last two.
    assert chosen({"a": [10] * 4, "b": [40, 40], "c": [20] * 4}) == pytest.approx(0.375)
    # A single round chooses nothing, and the baseline's last rounds are missing.
    assert chosen({"a": [10] * 2, "b": [40], "c": [20] * 4}) == pytest.approx(0.5)


def test_verdict_needs_an_interval_on_one_side():
    session = session_of(["a", "b"], list(range(6)))
    speeds = [1.02, 1.03, 1.05, 1.02, 1.04, 1.06]

    def verdict(ratios: list[float]) -> str:
        found = [
            measured(i, {"a": (100 * r, 10, 10), "b": (100, 10, 10)}) for i, r in enumerate(ratios)
        ]
        return drawn_results.collect(session, found).beside[0].verdict

    assert verdict(speeds) == "faster"
    assert verdict([1 / r for r in speeds]) == "slower"
    assert verdict([1.05, 0.95, 1.02, 0.97, 1.01, 1.0]) == "no difference seen"


def test_who_failed_is_no_peer_of_that_seed():
    session = session_of(["a", "b", "c"], [1])
    one = {"a": (100, 10, 10), "b": (400, 1, 1), "c": (50, 10, 10)}
    found = drawn_results.collect(session, [measured(1, one, "b")])
    assert found.seeds[0].best_peer == "c"
    assert "\nseed 1: b: exit status 1\n" in shown(found)
    ours = drawn_results.collect(session, [measured(1, one, "a")])
    assert SPEED not in ours.shares and ours.seeds[0].problems == {"a": "exit status 1"}
    # It can be shown nevertheless.
    assert "exit status 1" in shown(ours)


@pytest.mark.turns
def test_pictures_are_the_same_for_the_same_figures():
    session = session_of(["a", "b"], [1])
    found = drawn_results.collect(session, [measured(1, {"a": (100, 10, 10), "b": (40, 1, 1)})])
    picture = drawn_report.picture_of_peers(session, found)
    assert "<svg" in picture and picture == drawn_report.picture_of_peers(session, found)
