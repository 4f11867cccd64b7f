import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hakmem.allocators.peers import find
from hakmem.cli import main
from hakmem.errors import UserError
from hakmem.running.launching import Outcome
from small_build import BENCH, compile_c

from hakmem_lab import control_group, memory_bars, memory_loads, memory_run
from hakmem_lab.control_group import ControlGroup, open_group
from hakmem_lab.memory_bars import BARS, MET, MISSED, NO_FIGURE, SHOWN, UNDECIDED, Bar, judge
from hakmem_lab.memory_loads import END, LOADS, PEAK, SPEED, Load, Variant, said
from hakmem_lab.memory_run import Measured, Series

PROGRAMS = ("spike", "sleepers", "phases", "idle_threads", "first", "budget")
NAMES = {load.name: load for load in LOADS}


@pytest.fixture(scope="module")
def programs(build: Path) -> Path:
    """The programs that look at their own memory."""
    for name in PROGRAMS:
        target = build / "bench" / f"bench_{name}"
        if not target.exists():
            source = BENCH / f"bench_{name}.c"
            compile_c(target, [source, BENCH / "bench.c"], "-pthread", "-fno-builtin")
    return build


@pytest.fixture(autouse=True)
def no_peers(monkeypatch, tmp_path):
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path / "peers"))
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))


def run(*arguments: str):
    return CliRunner().invoke(main, ["memory", *arguments])


def outcome(stdout: str = "", stderr: str = "", signal: int = 0) -> Outcome:
    return Outcome(0, signal, 1.0, 1.0, 2048, 0, 0, stdout, stderr)


def measured(load: str, **values: list[dict[str, float]]) -> Measured:
    series = {name.replace("_", " "): rounds for name, rounds in values.items()}
    return Measured(NAMES[load], {name: Series(name, r) for name, r in series.items()})


def bar_of(load: str, figure: str) -> Bar:
    return next(bar for bar in BARS if (bar.load, bar.figure) == (load, figure))


def verdict_of(load: str, figure: str, **values: list[dict[str, float]]) -> str:
    return judge(bar_of(load, figure), measured(load, **values)).verdict


def test_every_bar_names_a_load_and_a_figure_of_it():
    for bar in BARS:
        load = NAMES[bar.load]
        assert bar.figure in {figure.name for figure in load.figures}, bar
        names = {variant.name for variant in (*load.variants, *load.extra)}
        assert not load.variants or bar.ours in names, bar
        # One of the two, or neither where the figure is only shown.
        assert not (bar.met and bar.least), bar
        assert not bar.least or bar.beside in names, bar
    assert len({load.name for load in LOADS}) == len(LOADS)


@pytest.mark.parametrize("load", [x for x in LOADS if x.command[0][6:] in PROGRAMS], ids=str)
def test_programs_print_what_the_loads_read(programs, load):
    command = memory_run.command_of(load, is_quick=True)
    if load.name.startswith("sleepers"):
        command = (command[0], "20", "2", command[3], "64", "4096", "50")
    found = memory_loads.MEMORY_LINE.search(
        (done := memory_run.contender(glibc(), command).run()).stdout
    )
    assert not done.problem, done.stderr
    assert found, done.stdout
    words = said(done)
    # What depends on a goal that may not be reached has no word then.
    wanted = [figure for figure in load.figures if figure.name != "reached"]
    assert all(figure.read(done, words) is not None for figure in wanted), words
    assert words["peak_kb"] * 1024 > 100_000


def glibc():
    return find("glibc")


def test_spike_returns_to_its_base_where_memory_goes_back(programs):
    """With glibc: blocks of 256 KiB are mappings of their own, gone with the last free."""
    path = str(programs / "bench" / "bench_spike")
    done = memory_run.contender(glibc(), (path, "64", "262144", "1048576", "3000")).run()
    words = said(done)
    assert words["spike_kb"] > 60 * 1024
    assert words["after_2s_kb"] < words["asked_kb"] / 20
    assert words["reached_us"] < 2_000_000


def test_phases_count_what_lives(programs):
    path = str(programs / "bench" / "bench_phases")
    done = memory_run.contender(glibc(), (path, "2", "20", "50", "0", "0")).run()
    words = said(done)
    # Half of two times 20 MB survives.
    assert words["live_kb"] == pytest.approx(20 * 1024, rel=0.05)
    assert 1000 < words["end_permille"] < 4000


def test_idle_threads_that_keep_a_block_cost_that(programs, tmp_path):
    """A library that never reuses memory keeps all of it; the figure must say so."""
    path = str(programs / "bench" / "bench_idle_threads")
    command = (path, "50", "100", "1000", "1000", "64", "0")
    plain = said(memory_run.contender(glibc(), command).run())
    source = tmp_path / "keeper.c"
    source.write_text(
        "#include <stddef.h>\n#include <string.h>\n#include <sys/mman.h>\n"
        "void *malloc(size_t n) { n = (n + 4095) & ~4095ul;\n"
        " return mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }\n"
        "void free(void *p) { (void)p; }\n"
    )
    keeper = compile_c(tmp_path / "keeper.so", [source], "-shared", "-fPIC", "-fno-builtin")
    row = memory_run.contender(glibc(), command)
    worse = said(replace(row, preload=keeper).run())
    assert worse["thread_bytes"] == pytest.approx(100 * 4096, rel=0.05)
    assert plain["thread_bytes"] < worse["thread_bytes"] / 2


def test_table_files_and_journal(programs, tmp_path):
    paths = {name: tmp_path / f"out.{name}" for name in ("csv", "json", "markdown")}
    options = [part for name, path in paths.items() for part in (f"--{name}", str(path))]
    found = run("--quick", "--rows", "phases", "--rows", "random-400",
                "--with", "glibc", "--seed", "3", *options)  # fmt: skip
    assert found.exit_code == 0, found.output
    with paths["csv"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["verdict"] for row in rows] == [
        "no figure" for bar in BARS if bar.load in ("phases", "random-400")
    ]
    document = json.loads(paths["json"].read_text())
    assert document["made_by"] == "hakmem memory"
    rounds = {one["load"]: one["series"][0]["rounds"] for one in document["loads"]}
    assert rounds["phases"][0]["end"] >= 1
    assert rounds["random-400"][0]["peak"] > 0.5
    text = paths["markdown"].read_text()
    assert text.count("\n| ") >= 3
    assert "glibc 2." in text
    assert str(programs) not in text
    again = run("--from", str(paths["json"]))
    assert again.exit_code == 0
    assert "RSS over live, at the end" in again.output
    (journal,) = (tmp_path / "results").glob("memory-*.jsonl")
    assert len(journal.read_text().splitlines()) == 3


def test_variant_of_an_unknown_option_has_no_figure(programs, monkeypatch, tmp_path):
    source = tmp_path / "old.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n"
        "__attribute__((constructor)) static void start(void) {\n"
        ' if (getenv("HAKMEM_RSS_TARGET"))\n'
        '  fputs("hakmem: HAKMEM_RSS_TARGET is not an option of this version: ignored\\n",'
        " stderr);\n}\n"
    )
    library = compile_c(tmp_path / "libold.so", [source], "-shared", "-fPIC")
    ours = replace(glibc(), name="hakmem", library=library)
    log = memory_run.Journal(tmp_path / "log")
    one = memory_run.run_load(NAMES["target"], [ours], 1, 1, True, log, lambda _name: None)
    plain, with_target = one.series.values()
    assert plain.rounds and not plain.problem
    assert with_target.problem == "HAKMEM_RSS_TARGET is not an option of this version"
    line = judge(bar_of("target", "highest"), one)
    assert (line.verdict, line.note) == (NO_FIGURE, with_target.problem)


def test_interrupt_leaves_whole_rounds(programs, tmp_path, monkeypatch):
    """In the second round, after one of two contenders."""
    left = iter([outcome("Throughput = 5 ops/s [x=1] time=0.1s\n")] * 3)

    def run_or_stop(_row, _cpus):
        try:
            return next(left)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(memory_run.Contender, "run", run_or_stop)
    two = [glibc(), replace(glibc(), name="other")]
    log = memory_run.Journal(tmp_path / "log")
    one = memory_run.run_load(NAMES["random-400"], two, 5, 1, True, log, lambda _name: None)
    assert one.interrupted
    assert [len(series.rounds) for series in one.series.values()] == [1, 1]
    assert len((tmp_path / "log").read_text().splitlines()) == 3


def test_interrupt_is_a_status(programs, monkeypatch):
    def stop(_row, _cpus):
        raise KeyboardInterrupt

    monkeypatch.setattr(memory_run.Contender, "run", stop)
    found = run("--quick", "--with", "glibc")
    assert (found.exit_code, "interrupted in load 1 of" in found.output) == (130, True)


def test_failure_of_one_allocator_leaves_the_others(programs, tmp_path):
    source = tmp_path / "broken.c"
    source.write_text("#include <stdlib.h>\nvoid *malloc(size_t n) { (void)n; abort(); }\n")
    library = compile_c(tmp_path / "broken.so", [source], "-shared", "-fPIC")
    found = run("--quick", "--rows", "random-400", "--with", "glibc", "--lib", f"b={library}")
    assert found.exit_code == 1, found.output
    assert "random-400, b: killed by SIGABRT" in found.output
    assert "M ops/s" in found.output


def test_memory_is_judged_by_the_median_and_by_every_round():
    low, high = {"end": 30.0}, {"end": 50.0}
    assert verdict_of("sleepers", "end", hakmem=[low, low, high]) == MET
    assert verdict_of("sleepers", "end", hakmem=[low, high, high]) == UNDECIDED
    assert verdict_of("sleepers", "end", hakmem=[high, high]) == MISSED


def test_lowest_of_all_needs_others():
    one, two = [{"thread": 20000.0}], [{"thread": 30000.0}]
    assert verdict_of("idle-threads", "thread", hakmem=one, glibc=two) == MET
    assert verdict_of("idle-threads", "thread", hakmem=two, glibc=one) == MISSED
    assert verdict_of("idle-threads", "thread", hakmem=one) == UNDECIDED
    # Lower than every peer, and still above 32 KiB.
    worse, worst = [{"thread": 40000.0}], [{"thread": 50000.0}]
    assert verdict_of("idle-threads", "thread", hakmem=worse, glibc=worst) == MISSED


def test_goal_that_was_not_reached():
    reached = {"reached": 10.0, "after-2s": 1.0}
    never = {"after-2s": 90.0}
    line = judge(bar_of("spike", "reached"), measured("spike", hakmem=[never], glibc=[never]))
    assert (line.verdict, line.best) == (MISSED, "none reached it")
    assert verdict_of("spike", "reached", hakmem=[reached, never]) == UNDECIDED
    assert verdict_of("spike", "reached", hakmem=[reached, reached]) == MET


def test_speed_is_judged_in_pairs():
    def lean(ratio: float, rounds: int) -> str:
        # The machine halves its speed in between: pairs do not see it.
        paces = [1e6 / (1 + n % 2) for n in range(rounds)]
        balanced = [{"speed": pace} for pace in paces]
        ours = [{"speed": pace * ratio} for pace in paces]
        return verdict_of("lean-random-400", "speed", balanced=balanced, lean=ours)

    assert lean(0.98, 5) == MET
    assert lean(0.90, 5) == MISSED
    # Too few rounds for an interval.
    assert lean(0.90, 3) == UNDECIDED


def test_speed_that_may_be_above_the_bar_is_undecided():
    ratios = (0.80, 0.85, 0.96, 1.10, 1.20)
    balanced = [{"speed": 1e6} for _ in ratios]
    ours = [{"speed": 1e6 * ratio} for ratio in ratios]
    assert verdict_of("lean-random-400", "speed", balanced=balanced, lean=ours) == UNDECIDED


def test_figures_without_a_bar_are_shown():
    times = [{"p50": 30.0}]
    assert verdict_of("first", "p50", balanced=times, speed=times) == SHOWN


def test_killed_in_a_group_is_a_figure():
    alive = next(figure for figure in memory_loads.CGROUP if figure.name == "alive")
    assert alive.read(outcome(signal=9), {}) == 0
    assert alive.read(outcome(), {}) == 1
    assert verdict_of("cgroup", "alive", hakmem=[{"alive": 0.0}], glibc=[{"alive": 1.0}]) == MISSED


def test_group_enters_before_the_program_starts(tmp_path):
    group = ControlGroup(tmp_path)
    done = memory_run.contender(glibc(), group.command(("/bin/echo", "in $0"))).run()
    assert done.stdout == "in $0\n"
    assert int((tmp_path / "cgroup.procs").read_text()) > 1
    (tmp_path / "memory.events").write_text("low 0\noom 2\noom_kill 3\n")
    assert group.kills() == 3


def test_no_groups_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(control_group, "ROOT", tmp_path / "absent")
    with pytest.raises(UserError, match="no control groups"), open_group(64):
        pass
    log = memory_run.Journal(tmp_path / "log")
    load = Load("x", "x", ("/bin/true",), (PEAK,), cgroup_mb=64)
    one = memory_run.run_load(load, [glibc()], 1, 1, False, log, lambda _name: None)
    assert one.skipped == "no control groups for memory are mounted here"
    line = judge(bar_of("cgroup", "alive"), replace(one, load=NAMES["cgroup"]))
    assert (line.verdict, line.note) == ("skipped", one.skipped)


def test_first_version_of_groups_is_limited_and_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(control_group, "ROOT", tmp_path)
    (tmp_path / "memory").mkdir()
    with open_group(64) as group:
        limit = group.folder / "memory.limit_in_bytes"
        assert limit.read_text() == str(64 << 20)
        # The kernel's files go with their folder; these ones do not.
        for path in group.folder.iterdir():
            path.unlink()
    assert not list((tmp_path / "memory").iterdir())


def test_kernel_mode_is_put_back(tmp_path, monkeypatch):
    mode = tmp_path / "enabled"
    mode.write_text("madvise")
    monkeypatch.setattr(memory_run, "KERNEL_THP", mode)
    monkeypatch.setattr(memory_run.environment, "thp_mode", mode.read_text)
    with pytest.raises(RuntimeError), memory_run.kernel_mode("always"):
        assert mode.read_text() == "always"
        raise RuntimeError
    assert mode.read_text() == "madvise"
    monkeypatch.setattr(memory_run, "KERNEL_THP", tmp_path / "absent" / "enabled")
    load = Load("x", "x", ("/bin/true",), (PEAK,), variants=(Variant("a", {}, "always"),))
    ours = replace(glibc(), name="hakmem")
    log = memory_run.Journal(tmp_path / "log")
    one = memory_run.run_load(load, [ours], 1, 1, False, log, lambda _name: None)
    assert one.series["a"].problem.startswith("cannot set ")


def test_peaks_of_a_suite(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(
        "row,mode,allocator,peak_rss_kb\n"
        "a,preload,hakmem,2048\na,preload,mimalloc3,4096\na,preload,jemalloc5,1024\n"
        "b,preload,hakmem,1024\nb,preload,mimalloc3,2048\n"
        "c,preload,hakmem,\nc,preload,mimalloc3,1\n"
    )
    found = run("--peaks", str(path), "--csv", str(tmp_path / "out.csv"))
    assert found.exit_code == 0, found.output
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = [
            (r["measure"], r["best peer"], r["verdict"], r["note"]) for r in csv.DictReader(file)
        ]
    assert rows == [
        ("a (preload): peak RSS", "1.0 MB (jemalloc5)", MISSED, "2.00 times"),
        ("b (preload): peak RSS", "2.0 MB (mimalloc3)", MET, "0.50 times"),
    ]
    path.write_text("row,mode,allocator,peak_rss_kb\n")
    assert "has no row with hakmem" in run("--peaks", str(path)).output


def test_wrong_command_lines(tmp_path):
    wrong = run("--rows", "nosuch")
    assert (wrong.exit_code, "no load fits 'nosuch'" in wrong.output) == (2, True)
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    wrong = run("--from", str(bad))
    assert (wrong.exit_code, "has no figures of hakmem memory" in wrong.output) == (2, True)


def test_wrong_inputs_are_told_in_words(tmp_path):
    bad = tmp_path / "bad"
    series = {"name": "a", "rounds": [{"x": 1}], "problem": ""}
    good = {"load": LOADS[0].name, "skipped": "", "series": [series]}
    for document, told in (
        ([], "it has no list of loads"),
        ({"facts": {}}, "it has no list of loads"),
        ({"loads": [good, {}]}, "load 2 of it has no series"),
        ({"loads": [{**good, "series": None}]}, "load 1 of it has another shape"),
        ({"loads": [{**good, "series": [{**series, "rounds": [1]}]}]}, "load 1 of it has another"),
        ({"loads": [{**good, "series": [{**series, "rounds": [{"x": "y"}]}]}]}, "another shape"),
    ):
        bad.write_text(json.dumps(document))
        found = run("--from", str(bad))
        assert found.exit_code == 2, found.output
        assert told in " ".join(found.output.split())
    columns = "row,mode,allocator,peak_rss_kb\n"
    for text, told in (
        ("row,mode,allocator\n", "it has no column peak_rss_kb"),
        (f"{columns}a,p,hakmem,12\na,p,jemalloc,0\n", "line 3: peak_rss_kb: '0' is no peak"),
        (f"{columns}a,p,hakmem,1e999\n", "line 2: peak_rss_kb: '1e999' is no peak"),
    ):
        bad.write_text(text)
        found = run("--peaks", str(bad))
        assert (found.exit_code, told in found.output) == (2, True), found.output


def test_words_of_a_line():
    done = outcome("Throughput = 5 ops/s [x=1] time=0.1s\nMemory: end_kb=2048 peak_kb=4096\n")
    assert said(done) == {"end_kb": 2048, "peak_kb": 4096}
    assert END.read(done, said(done)) == 2
    assert SPEED.read(done, {}) == 5
    assert memory_bars.text(1234567.0, SPEED) == "1.23 M ops/s"


def test_list_refuses_what_means_nothing_beside_it():
    found = run("--list", "--quick")
    assert found.exit_code == 2
    assert found.output == "Error: --list runs nothing: --quick cannot be given\n"
