import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner
from hakmem.cli import main
from hakmem.measuring.journal import results_folder
from small_build import assert_in_order

from hakmem_lab.programs import (
    CATALOGUE,
    CAUSES,
    FOLDER,
    JUDGING,
    SERVERS,
    inputs_of,
    read_catalogue,
)
from hakmem_lab.programs_run import Counted, within
from hakmem_lab.workloads.programs.inputs import KINDS

SORT = """
[[program]]
name = "sort"
title = "a log sorted"
set = "causes"
prepare = ["inputs text {n} {seed} {in}/log"]
command = "perl -e 'print sort <>' {in}/log"
size = 1
count = 1
needs = ["perl perl"]
"""
ECHO = """
[[program]]
name = "echo"
title = "what was given"
set = "judging"
command = "perl -e 'print {n} + {seed}'"
size = 50
count = 1
needs = ["perl perl"]
"""
OTHER = """
[[program]]
name = "other"
title = "says whose malloc it has"
set = "judging"
command = "sh -c 'echo own ${LD_PRELOAD:+no more}'"
size = 1
"""
# At SIGTERM it ends by itself: the stand-in for the library prints its counter then.
SERVER = """
[[program]]
name = "server"
title = "answers"
set = "servers"
command = '''
python3 -c "import signal, sys, http.server as s; signal.signal(15, lambda *_: sys.exit());
s.HTTPServer(('127.0.0.1', int(sys.argv[1])), s.SimpleHTTPRequestHandler).serve_forever()" {port}'''
load = '''
python3 -c "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).status)"
http://127.0.0.1:{port}/'''
idle = 1
size = 1
"""
CRASH = OTHER.replace("other", "crash").replace("echo own ${LD_PRELOAD:+no more}", "{kill}")
CRASH = CRASH.replace("{kill}", "echo lost >&2; test -z $LD_PRELOAD || kill -SEGV $$")


@pytest.fixture(autouse=True)
def own_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path / "cache"))


def run(tmp_path: Path, text: str, *arguments: str):
    path = tmp_path / "some.toml"
    path.write_text(text)
    words = ["programs", "--catalogue", str(path), "--seed", "3", *arguments]
    return CliRunner().invoke(main, words)


def folder_of_run() -> Path:
    (folder,) = results_folder().glob("programs-*")
    return folder


def test_every_program_of_the_project_is_sound():
    found = read_catalogue(CATALOGUE)
    assert len(found) >= 30
    halves = [sum(one.set == which for one in found) for which in (CAUSES, JUDGING)]
    assert abs(halves[0] - halves[1]) <= 2
    assert sum(one.set == SERVERS for one in found) >= 15
    assert sum(one.count > 0 for one in found) >= 20
    for one in found:
        # A server rests before its memory is read; a program that does its work and ends does not.
        assert bool(one.idle) == (one.set == SERVERS and bool(one.load)), one.name
        for text in (*one.prepare, one.command, one.load, one.fresh):
            if text.startswith("inputs "):
                assert text.split()[1] in KINDS, one.name
            for word in text.replace("'", " ").split():
                if word.startswith("{work}/"):
                    assert (FOLDER / word.removeprefix("{work}/")).is_file(), word


def test_inputs_are_of_their_seed():
    for kind, make in KINDS.items():
        size = 9 if kind == "cpp" else 1
        one, same, other = ("\n".join(make(size, random.Random(seed))) for seed in (1, 1, 2))
        assert one == same != other, kind


def written(tmp_path, catalogue, rounds):
    """What a run prints, its JSON and its picture."""
    outputs = {name: tmp_path / name for name in ("a.json", "a.svg")}
    found = run(
        tmp_path, catalogue, "--with", "hakmem,glibc", "--rounds", rounds,
        "--json", str(outputs["a.json"]), "--picture", str(outputs["a.svg"]),
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    return found.output, json.loads(outputs["a.json"].read_text()), outputs["a.svg"].read_text()


@pytest.mark.turns
def test_programs_have_figures_files_and_a_picture(tmp_path):
    output, document, picture = written(tmp_path, SORT + ECHO, "2")
    assert_in_order(
        output,
        "CPU time of the best peer ÷ hakmem's, all",
        "hakmem on 2 programs",
        "hakmem beside each",
        "CPU seconds",
        "Peak RSS",
        "Page faults",
        "System calls",
        "How it was measured",
    )
    assert [(one["name"], one["set"]) for one in document["programs"]] == [
        ("sort", "causes"),
        ("echo", "judging"),
    ]
    for one in document["programs"]:
        assert (one["rounds"], one["best_peer"]) == (2, "glibc")
        assert one["served"]["hakmem"].startswith("yes") and one["served"]["glibc"] == "yes"
        for figures in one["figures"].values():
            assert 0 < figures["cpu_min_s"] <= figures["cpu_median_s"]
            assert min(figures[kind] for kind in ("peak_kb", "faults", "calls")) > 0
    assert len(document["summary"]) == 6
    assert "glibc" in picture
    assert not list((tmp_path / "cache" / "programs").glob("3-*/*"))
    # The same of the folder, with nothing run again.
    folder = folder_of_run()
    journal = (folder / "sort.jsonl").read_text()
    again = CliRunner().invoke(main, ["programs", "--resume", str(folder)])
    assert again.exit_code == 0, again.output
    assert (folder / "sort.jsonl").read_text() == journal


@pytest.mark.turns
def test_servers_have_a_figure_of_their_memory_after_idle(tmp_path):
    output, document, picture = written(tmp_path, SERVER + ECHO, "1")
    assert_in_order(
        output,
        "RSS after idle ÷ the lowest peer's, servers",
        "idle RSS",
        "Peak RSS",
        "RSS after idle, MB",
    )
    server, echo = document["programs"]
    assert (server["set"], server["served"]["glibc"]) == ("servers", "yes")
    assert server["served"]["hakmem"].startswith("yes, ")
    assert server["idle_over_lowest"] > 0 and echo["idle_over_lowest"] is None
    for figures in server["figures"].values():
        assert 5 << 10 < figures["idle_kb"] < 500 << 10
    assert all(figures["idle_kb"] is None for figures in echo["figures"].values())
    assert "memory after idle" in picture
    (row,) = document["beside"]
    assert row["rest"]["median"] == pytest.approx(server["idle_over_lowest"])


def test_sets_are_chosen_by_name(tmp_path):
    text = SORT + ECHO + SERVER
    for words, names in (
        (("--set", "servers"), {"server"}),
        (("--set", "causes"), {"sort"}),
        ((), {"sort", "echo", "server"}),
    ):
        found = run(tmp_path, text, *words, "--list")
        assert found.exit_code == 0, found.output
        listed = {line.split()[0] for line in found.output.splitlines() if line.strip()}
        assert listed & {"sort", "echo", "server"} == names, found.output


@pytest.mark.turns
def test_stopped_run_goes_on(tmp_path):
    found = run(tmp_path, SORT + ECHO, "--with", "glibc", "--rounds", "3")
    assert found.exit_code == 0, found.output
    folder = folder_of_run()
    lines = (folder / "sort.jsonl").read_text().splitlines(keepends=True)
    # A head, a round, and one that was cut short.
    (folder / "sort.jsonl").write_text("".join(lines[:2]) + lines[2][:40])
    (folder / "echo.jsonl").unlink()
    found = CliRunner().invoke(main, ["programs", "--resume", str(folder)])
    assert found.exit_code == 0, found.output
    document = json.loads((folder / "programs.json").read_text())
    assert [one["rounds"] for one in document["programs"]] == [3, 3]
    assert (folder / "sort.jsonl").read_text().startswith("".join(lines[:2]))


def test_wrong_output_and_crash_are_told(tmp_path):
    found = run(tmp_path, OTHER + CRASH, "--with", "glibc,hakmem", "--rounds", "1")
    assert found.exit_code == 0, found.output
    assert "other: hakmem: its output differs from that of the run by glibc" in found.output
    assert "crash: hakmem: killed by SIGSEGV: lost" in found.output
    assert "failed" in found.output
    # Of the baseline it is an error.
    found = run(tmp_path, OTHER, "--with", "hakmem,glibc", "--rounds", "1")
    assert found.exit_code == 1


def test_program_whose_input_cannot_be_made_does_not_stop_the_others(tmp_path):
    broken = SORT.replace("inputs text", "false")
    found = run(tmp_path, broken + ECHO, "--with", "glibc", "--rounds", "1")
    assert found.exit_code == 1
    assert "sort: its input: false" in found.output
    assert "echo: no ratio" in found.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--programs", "sort,no"), "--programs: there is no program 'no' (--list shows all)"),
        (("--set", "some"), "'some' is not one of"),
        (("--rounds", "0"), "--rounds"),
        (("--scale", "0"), "--scale"),
        (("--count", "--rounds", "2"), "--count runs each once: --rounds cannot be given"),
        (("--programs", "sort", "--set", "all"), "--programs names them: --set cannot be given"),
        (("--picture", "a.png"), "--picture: 'a.png' does not end in .svg"),
        (("--count", "--set", "judging"), "nothing can be run: other: it cannot be counted"),
        (("--with", "nobody"), "nobody"),
    ],
)
def test_wrong_words_are_refused_in_a_line(tmp_path, words, told):
    found = run(tmp_path, SORT + OTHER, *words)
    assert (found.exit_code, told in found.output) == (2, True), found.output
    assert not list((tmp_path / "results").glob("*/plan.json"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[program]]\nname = 'a'", "missing"),
        (SORT.replace("causes", "both"), "set: 'both' is no causes, judging or servers"),
        (SORT.replace("causes", "all"), "set: 'all' is no causes, judging or servers"),
        (SORT + "idle = 1", "idle: only a server, which has a load, has it"),
        (SERVER.replace("idle = 1", "idle = -1"), "idle: -1 is not what belongs there"),
        (SERVER.replace("idle = 1", "idle = 'long'"), "idle: 'long' is not what belongs there"),
        (SORT + SORT, "is there twice"),
        (SORT.replace("size = 1", "size = 0"), "size: 0 is not what belongs there"),
        (SORT + "colour = 1", "colour"),
        ("other = 1", "is no catalogue"),
    ],
)
def test_wrong_catalogue_is_refused_in_a_line(tmp_path, text, told):
    found = run(tmp_path, text)
    assert (found.exit_code, told in found.output) == (2, True), found.output
    assert len(found.output.strip().splitlines()) == 1


def test_folder_of_no_run_is_refused(tmp_path):
    (tmp_path / "plan.json").write_text('{"seed": 1}')
    for folder, told in (
        (tmp_path, "is no plan of hakmem programs: "),
        (tmp_path / "no", "cannot read"),
    ):
        found = CliRunner().invoke(main, ["programs", "--resume", str(folder)])
        assert (found.exit_code, told in found.output) == (2, True), found.output


def test_list_says_what_is_lacking(tmp_path):
    found = run(tmp_path, SORT + ECHO.replace("perl perl", "no-such none"), "--list")
    assert found.exit_code == 0
    assert "no-such is not installed (Debian package none)" in " ".join(found.output.split())


def test_two_runs_of_a_seed_have_inputs_of_their_own():
    with inputs_of(1) as one, inputs_of(1) as other:
        assert one != other and len(str(one)) == len(str(other))


@pytest.mark.turns
def test_counts_are_the_same_in_two_runs(tmp_path, monkeypatch):
    counts = []
    for name in ("one", "two"):
        monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / name))
        words = ("--count", "--with", "glibc")
        found = run(
            tmp_path, ECHO.replace("perl -e 'print {n} + {seed}'", "expr {n} + {seed}"), *words
        )
        assert found.exit_code == 0, found.output
        counts.append(json.loads((folder_of_run() / "echo.jsonl").read_text())["counts"]["glibc"])
    assert counts[0] == counts[1]
    assert counts[0]["instructions"] > 10_000 < 10 * counts[0]["l1"]
    assert_in_order(found.output, "Estimate", "Instructions", "L2 misses", "Second TLB")


def test_estimate_weighs_misses_and_a_pair_is_two_calls():
    found = Counted(3000, 10, 5, 20, 4, 600, 20)
    assert found.estimate == 1000 + 100 + 200 + 120 + 100
    assert found.per_pair == 60
    assert Counted(3000, 10, 5, 20, 4).per_pair is None


def test_instructions_and_calls_of_a_library(tmp_path):
    library, profile = tmp_path / "libown.so", tmp_path / "profile"
    library.touch()
    profile.write_text(
        f"version: 1\nevents: Ir\nob=(1) /bin/program\nfl=(1) a.c\nfn=(1) main\n16 100\n"
        f"cob=(2) {library}\ncfi=(2) ???\ncfn=(2) malloc\ncalls=3 0\n+1 70\n"
        "cfn=(3) other\ncalls=5 0\n* 50\n+2 7\n\n"
        "ob=(2)\nfl=(2)\nfn=(2)\n0 40\n-1 2\ncfn=(4) inner\ncalls=9 0\n* 28\n"
        "cob=(1)\ncfn=(1)\ncalls=1 0\n* 11\nfn=(4)\n0 28\n"
    )
    assert within(profile, library) == (70, 3)
