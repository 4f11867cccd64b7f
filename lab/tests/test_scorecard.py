import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hakmem.cli import main
from hakmem.errors import UserError
from hakmem.measuring.statistics import Interval

from hakmem_lab import soak_file
from hakmem_lab.commands import scorecard
from hakmem_lab.commands.scorecard import (
    CALLS_FILE,
    MISSED,
    PATH,
    REACHED,
    UNMEASURED,
    Evidence,
    Milestone,
    compose,
    judge,
    load_milestones,
    read_calls,
    rows_of,
    soak_figures,
    without_folders,
)
from hakmem_lab.soak_file import Epoch
from hakmem_lab.steady_run import Calls
from hakmem_lab.suite_results import (
    BASELINE,
    LOST,
    RESULTS,
    SAME,
    WON,
    Entry,
    Results,
    RowResult,
    read,
    tally,
)

FOLDER = Path(__file__).parent / "scorecard"
GOLDEN = FOLDER / "expected.md"
BARS = FOLDER / "milestones.toml"


def entry(name: str, ratio: tuple | None, verdict: str, rss: int, rss_verdict: str) -> Entry:
    interval = Interval(*ratio) if ratio else None
    memory = None if verdict == BASELINE else Interval(rss / 2048, rss / 2048, rss / 2048)
    speed = 1e8 / (interval.median if interval else 1)
    return Entry(name, "", 10, speed, speed, speed, speed, 0.02, interval, verdict, rss,
                 memory, rss_verdict, 200, 0)  # fmt: skip


def row(name: str, title: str, *entries: Entry, mode: str = "preload", **more) -> RowResult:
    values = {"served": "yes, 7 spans handed out", "rounds": 10, "entries": entries}
    command = f"bench_swing 1000 {name.rpartition('-')[2]} 256"
    return RowResult(name, title, "core", mode, "", command, "1", "ops/s", True,
                     **(values | more))  # fmt: skip


def sample() -> Results:
    results = Results(
        "full",
        "Every row",
        "2026-01-02T03:04:05+00:00",
        "hakmem",
        {"hakmem": "/somewhere/libhakmem.so 1.0", "glibc": "2.36", "jemalloc5": "5.3.1"},
        10,
        True,
        1234.5,
        42,
        {"hakmem": "1.0", "glibc": "2.36", "jemalloc5": "5.3.1"},
        facts={"kernel": "Linux 6", "CPU": "a | b", "rounds": "10, seed 42"},
    )
    ours = entry("hakmem", None, BASELINE, 2048, BASELINE)
    results.rows = [
        row(
            "swing-25",
            "swings of 25",
            ours,
            entry("glibc", (1.5, 1.4, 1.6), WON, 1536, LOST),
            entry("jemalloc5", (1.01, 0.95, 1.05), SAME, 3072, WON),
        ),
        row(
            "swing-100",
            "swings of 100",
            ours,
            entry("glibc", (0.8, 0.75, 0.9), LOST, 2048, SAME),
            Entry("jemalloc5", "killed by SIGSEGV; it last said: in /opt/lib/x.so"),
        ),
        row("swing-400", "swings of 400", rounds=0, problem="not run", served="", entries=()),
        row(
            "swing-25",
            "swings of 25",
            ours,
            entry("glibc", (1.2, 1.1, 1.3), WON, 2048, SAME),
            Entry("jemalloc5", "no static archive"),
            mode="static",
        ),
    ]
    modes = dict.fromkeys(row.mode for row in results.rows)
    results.tallies = [tally(results, n, mode) for mode in modes for n in results.peers()]
    return results


CALLS = [Calls("swing-25", "swings of 25", 96_000_000, 0)]


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "bench-1"
    path.mkdir()
    (path / RESULTS).write_text(json.dumps(asdict(sample())))
    (path / CALLS_FILE).write_text(json.dumps({"rows": [asdict(one) for one in CALLS]}))
    return path


@pytest.fixture
def soak(tmp_path) -> Path:
    path = tmp_path / "soak.csv"
    soak_file.begin(path, {})
    for number in range(1, 41):
        for name, speed in (("hakmem", 1e8), ("glibc", 7e7)):
            soak_file.append(path, epoch(number, name, speed * (1 + 0.01 * (number % 2))))
    return path


def epoch(number: int, name: str, speed: float) -> Epoch:
    return Epoch("2026-01-01T00:00:00+00:00", float(number), number, "long", name, 1, number,
                 1000, 0.1, speed, 51_200, 51_200, 1000, 10.0, 100.0, 900.0, 5000.0)  # fmt: skip


def test_document_is_the_golden_one(folder, soak):
    assert compose(folder, [soak], BARS) == GOLDEN.read_text()


@pytest.mark.turns
def test_the_same_files_give_the_same_text(folder, soak, tmp_path):
    other = tmp_path / "elsewhere" / "bench-2"
    shutil.copytree(folder, other)
    assert compose(folder, [soak]) == compose(other, [soak])


def test_results_survive_their_file(folder):
    assert read(folder) == sample()


def test_results_that_are_none_are_refused(tmp_path):
    (tmp_path / RESULTS).write_text('{"rows": []}')
    with pytest.raises(UserError, match="holds no results of a suite"):
        read(tmp_path)


def test_rows_lost_to_a_peer_are_listed(folder):
    text = compose(folder, bars=BARS)
    assert "| swings of 100 | preload | glibc | 0.800 [0.750, 0.900] |" in text
    assert "| swings of 25 | preload | 100.0 M | 2.0 % | 1.01 (jemalloc5) | 2.0 | 1.33 |" in text


def test_nothing_is_invented(folder):
    (folder / CALLS_FILE).unlink()
    text = compose(folder, bars=BARS)
    assert "## System calls per operation\n\nNot measured.\n" in text
    assert "Not measured: there is no soak" in text
    assert "| System calls | **not measured** |" in text
    assert "| RSS drift | **not measured** |" in text
    assert "served every row" in text


def test_document_names_no_folders_of_the_machine(folder, soak):
    text = compose(folder, [soak], BARS)
    assert "/somewhere" not in text
    assert "in x.so" in text
    assert without_folders("/a/b/bench_x is missing: build") == "bench_x is missing: build"
    assert without_folders("1/2 of it, minor/major") == "1/2 of it, minor/major"


def test_the_projects_milestones_are_sound():
    found = load_milestones(PATH)
    assert {m.kind for m in found} >= {"speed", "memory", "system calls", "rss drift"}
    for milestone in found:
        assert not milestone.rows or rows_of(milestone)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('title = "t"\nkind = "weight"\nat_most = 1.0', "kind: 'weight' is none of"),
        ('title = "t"\nkind = "speed"\nat_least = 1.0', "it needs rows and against"),
        ('title = "t"\nkind = "rss drift"', "at_most is missing"),
        (
            'title = "t"\nkind = "rss drift"\nat_most = "1"',
            "at_most: '1' is not what belongs there",
        ),
        ('title = "t"\nkind = "rss drift"\ncolour = 1', "unexpected keyword argument 'colour'"),
    ],
)
def test_broken_milestones_are_named(tmp_path, text, complaint):
    path = tmp_path / "m.toml"
    path.write_text(f"[[milestone]]\n{text}\n")
    with pytest.raises(UserError) as error:
        load_milestones(path)
    assert complaint in error.value.message
    assert error.value.exit_code == 2


def judged(**more) -> tuple[str, str]:
    evidence = {"results": sample(), "calls": CALLS, "soak": {}}
    given = {k: more.pop(k) for k in list(more) if k in evidence}
    found = judge(Milestone("t", **more), Evidence(**(evidence | given)))
    return found.state, found.value


SPEED = {"kind": "speed", "against": ("best",)}


def test_speed_takes_the_worst_row_and_peer():
    assert judged(**SPEED, rows=("swing-25",), at_least=1.0) == (REACHED, "1.010")
    assert judged(**SPEED, rows=("swing-25",), at_least=1.05) == (MISSED, "1.010")
    assert judged(**SPEED, rows=("swing-25", "swing-100"), at_least=1.0) == (MISSED, "0.800")
    glibc = SPEED | {"against": ("glibc",)}
    assert judged(**glibc, rows=("swing-25",), at_least=1.05) == (REACHED, "1.500")


def test_a_bar_can_be_met_within_the_interval():
    bar = SPEED | {"against": ("glibc",), "mode": "preload", "rows": ("swing-100",)}
    assert judged(**bar, at_least=0.85) == (MISSED, "0.800")
    assert judged(**bar, at_least=0.85, within_interval=True) == (REACHED, "0.800")
    assert judged(**bar, at_least=0.95, within_interval=True) == (MISSED, "0.800")


def test_a_row_without_figures_leaves_a_bar_unmeasured():
    assert judged(**SPEED, rows=("swing-25", "swing-400"), at_least=1.0) == (UNMEASURED, "")
    absent = SPEED | {"against": ("rpmalloc",)}
    assert judged(**absent, rows=("swing-25",), at_least=1.0) == (UNMEASURED, "")


def test_memory_is_judged_beside_the_lowest_of_those_named():
    bar = {"kind": "memory", "rows": ("swing-25",), "at_most": 1.1}
    assert judged(**bar, against=("jemalloc5",)) == (REACHED, "0.667")
    assert judged(**bar, against=("jemalloc5", "glibc")) == (MISSED, "1.333")
    assert judged(**bar, against=("mimalloc|jemalloc5",)) == (REACHED, "0.667")


def test_spread_is_judged_by_the_lower_end_of_its_interval():
    results = sample()
    first = results.rows[0]
    spreads = {"hakmem": 0.05, "glibc": 0.01, "jemalloc5": 0.03}

    def with_low(low: float | None) -> Results:
        entries = tuple(
            replace(e, cv=spreads[e.allocator], cv_low=low, cv_high=0.08) for e in first.entries
        )
        results.rows[0] = replace(first, entries=entries)
        return results

    bar = {"kind": "spread", "rows": ("swing-25",), "against": ("best",), "at_most": 1.0}
    assert judged(**bar, results=with_low(0.018)) == (REACHED, "0.900")
    assert judged(**bar, results=with_low(0.022)) == (MISSED, "1.100")
    assert judged(**bar, results=with_low(None)) == (UNMEASURED, "")


def test_system_calls_are_those_of_a_warm_program():
    assert judged(kind="system calls", at_most=1e-8) == (REACHED, "0")
    busy = [Calls("r", "r", 100, 10)]
    assert judged(kind="system calls", at_most=1e-8, calls=busy) == (MISSED, "1.0e-01")
    lost = [*CALLS, Calls("r", "r", note="status 1")]
    assert judged(kind="system calls", at_most=1e-8, calls=lost) == (UNMEASURED, "")
    assert judged(kind="system calls", at_most=1e-8, calls=()) == (UNMEASURED, "")


def test_soak_bars():
    figures = {"rss drift": -1.5, "throughput drift": 8.0, "variation": 3.0}
    assert judged(kind="rss drift", at_most=1.0, soak=figures) == (MISSED, "-1.50 %")
    assert judged(kind="throughput drift", at_most=5.0, soak=figures) == (REACHED, "+8.00 %")
    assert judged(kind="variation", at_most=2.0, soak=figures) == (MISSED, "3.00 %")
    steadiest = figures | {"best peer's variation": 4.0}
    assert judged(kind="variation", at_most=2.0, soak=steadiest) == (REACHED, "3.00 %")


def test_short_soak_is_said_to_be(tmp_path):
    path = tmp_path / "short.csv"
    soak_file.begin(path, {})
    soak_file.append(path, epoch(1, "hakmem", 1e8))
    assert soak_figures(path, "hakmem") == {}
    assert "too few to judge" in scorecard.soak_part([path], "hakmem")


def test_every_soak_is_told_with_its_settings(folder, soak, tmp_path):
    lean = tmp_path / "lean.csv"
    soak_file.begin(
        lean, {"allocators": {"hakmem": {"version": "v9", "settings": {"HAKMEM_PROFILE": "lean"}}}}
    )
    for number in range(1, 41):
        soak_file.append(lean, epoch(number, "hakmem", 9e7))
    short = tmp_path / "short.csv"
    soak_file.begin(short, {})
    soak_file.append(short, epoch(1, "hakmem", 1e8))
    text = compose(folder, [soak, lean, short], BARS)
    over_time = text[text.index("## Over time") :]
    assert "| `soak.csv` | unknown | none | 1 | long |" in over_time
    assert (
        "| `lean.csv` | v9 | `HAKMEM_PROFILE=lean` | 1 | long | 36 | 90.0 M/s | +0.00 %"
        in over_time
    )
    assert "| `short.csv` | unknown | none | hakmem, long: 0 epochs after the warm-up" in over_time
    assert "glibc" not in over_time[: over_time.index("## Where and how")]


def run(*arguments: str):
    return CliRunner().invoke(main, ["scorecard", *arguments])


@pytest.mark.turns
def test_command_writes_the_document(folder, soak, tmp_path):
    out = tmp_path / "card.md"
    found = run("--from", str(folder), "--soak", str(soak), "--out", str(out))
    assert found.exit_code == 0, found.output
    assert out.read_text() == compose(folder, [soak])
    for one in load_milestones(PATH):
        assert one.title in out.read_text()


@pytest.mark.turns
def test_system_calls_are_counted_once(build, tmp_path, monkeypatch):
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(scorecard, "count_row", lambda row, *_: Calls(row.name, "t", 100_000, 0))
    suite = tmp_path / "mine.toml"
    suite.write_text(
        'title = "t"\nrounds = 2\nslice_s = 0.01\nlimit_minutes = 1\nallocators = ["hakmem"]\n'
        '[[row]]\nname = "r"\nprogram = "bench_random_mixed"\narguments = ["{work}", 40]\n'
        "work = 20000\nsteady = true\n"
    )
    out = tmp_path / "card.md"
    assert CliRunner().invoke(main, ["bench", str(suite)]).exit_code == 0
    (folder,) = (tmp_path / "results").glob("bench-*")
    found = run("--from", str(folder), "--out", str(out))
    assert found.exit_code == 0, found.output
    assert "suite `mine`, 2 rounds" in out.read_text()
    (counted,) = read_calls(folder)
    assert (counted.row, counted.calls, counted.operations) == ("r", 0, 100_000)
