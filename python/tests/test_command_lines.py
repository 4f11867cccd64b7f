"""What a clumsy command line is told: one line, and nothing is started, ignored or lost."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from small_build import compile_c, run_rotation

from hakmem.allocators.settings import without_effect
from hakmem.cli import COMMANDS, OF_THE_SOURCES, absent, main
from hakmem.commands.ab import require_effect
from hakmem.commands.tail import parse_sizes
from hakmem.errors import UserError
from hakmem.measuring.latency_histogram import Histogram
from hakmem.measuring.rotation import Contender as Row
from hakmem.measuring.rotation import custom_metric
from hakmem.options import PERCENT
from hakmem.running import proof
from hakmem.running.launching import run_once
from hakmem.traces.trace_summary import FUNCTIONS, TraceSummary

TOLD = ("lanes", "process", "threads", "forked", "frees", "event_bytes", "peak_bytes", "truncated",
        "peak_blocks", "total_bytes", "allocations", "left_blocks", "left_bytes", "unknown_frees",
        "other_thread_frees", "unknown_reallocs", "missing_frees")  # fmt: skip
HISTOGRAMS = (Histogram(), Histogram())
# Before the tests' own build takes its place.
BUILD = Path(os.environ.get("HAKLAB_BUILD", Path(__file__).resolve().parents[2] / "build/release"))
REAL_LIBRARY = BUILD.resolve() / "libhakmem.so"
ALLOCATES = ("/bin/sh", "-c", "sed -n 1p /proc/version >/dev/null")


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path / "peers"))
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))
    for name in [name for name in os.environ if name.startswith("HAKMEM_")]:
        monkeypatch.delenv(name)
    return tmp_path / "results"


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments), prog_name="hakmem")


def refused(*arguments: str, status: int = 2) -> str:
    """The one line that a command line is refused with."""
    found = run(*arguments)
    assert found.exit_code == status, found.output
    assert re.fullmatch(r"Error: [^\n]+\n", found.output), found.output
    return found.output.removeprefix("Error: ").removesuffix("\n")


def journal(results: Path, rounds: int = 5) -> Path:
    found = run("compare", "--with", "glibc", "--rounds", str(rounds), "--", "/bin/true")
    assert found.exit_code == 0, found.output
    [path] = results.glob("*.jsonl")
    for page in results.glob("*.html"):
        page.unlink()
    return path


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("compare", "--proff", "--", "ls"), "No such option '--proff'"),
        (("compare",), "Missing argument 'PROGRAM...'. Try 'hakmem compare --help'"),
        (("compare", "--rounds", "many", "--", "ls"), "'many' is no whole number"),
        (("compare", "--rounds", "1.5", "--", "ls"), "'1.5' is no whole number"),
        (("compare", "--timeout", "soon", "--", "ls"), "'soon' is no number"),
        (("compare", "--timeout", "nan", "--", "ls"), "'nan' is no number"),
        (("compare", "--from", "nothing"), "File 'nothing' does not exist"),
        (("serve", "abc"), "'abc' is no PID, which is a number such as 1234"),
        (("serve", "0"), "'0' is no PID"),
        (("top", "1" * 50), "is no PID"),
        (("nothing",), "No such command 'nothing'. Try 'hakmem --help'"),
        (("comprae",), "No such command 'comprae'. Did you mean compare? Try 'hakmem --help'"),
        (("tail", "--seed", "9" * 30), "is not in the range"),
        (("tail", "--steps", "9" * 30), "is not in the range"),
    ],
)
def test_every_refusal_is_one_line(arguments, told):
    assert told in refused(*arguments)


def test_hakmem_alone_shows_its_help():
    assert "Commands:" in run().output


@pytest.mark.parametrize(
    "given",
    [
        ("--with", "glibc"),
        ("--rounds", "3"),
        ("--seed", "1"),
        ("--metric", "wall"),
        ("--timeout", "3"),
        ("--idle", "1"),
        ("--syscalls",),
        ("--cpu", "none"),
        ("--stop", "INT"),
        ("--stdin", "/dev/null"),
    ],
)
def test_options_of_a_measurement_are_refused_beside_from(given):
    told = refused("compare", "--from", "/dev/null", *given)
    assert told == f"--from measures nothing: {given[0]} cannot be given"


def test_all_that_is_refused_beside_from_is_named():
    told = refused("compare", "--from", "/dev/null", "--rounds", "3", "--seed", "1", "--", "ls")
    assert told == "--from measures nothing: --rounds, --seed, PROGRAM cannot be given"


@pytest.mark.turns
def test_from_writes_only_what_is_asked_for(results, tmp_path):
    path = journal(results)
    assert run("compare", "--from", str(path)).exit_code == 0
    assert list(results.iterdir()) == [path]
    found = run("compare", "--from", str(path), "--html", "page.html")
    assert (found.exit_code, Path("page.html").exists()) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("explain", "--after", "2", "1"), "a PID is of a process that runs: --after cannot be"),
        (("explain", "--profile", "lean", "1"), "--profile cannot be given"),
        (("profile", "--set", "A=1", "1"), "a PID or FILE starts nothing: --set cannot be given"),
        (("compare", "--stop", "INT", "ls"), "there is no --server: --stop cannot be given"),
        (("ab", "--ready-timeout", "1", "ls"), "no --server: --ready-timeout cannot"),
        (("top", "--address", "::1"), "--address cannot be given"),
        (("top", "--prometheus", "-", "--interval", "2"), "--interval cannot be given"),
        (("replay", "--summary", "--rounds", "3", "/dev/null"), "--rounds cannot be given"),
        (
            ("compare", "--metric", "wall", "--lower-is-better", "ls"),
            "--metric wall that is always",
        ),
        (
            ("ab", "--b", "X=1", "--metric", "cpu", "--lower-is-better", "ls"),
            "--metric cpu that is",
        ),
    ],
)
def test_what_means_nothing_beside_another_option_is_refused(arguments, told):
    if "ab" in arguments and "--b" not in arguments:
        arguments = ("ab", "--b", "X=1", *arguments[1:])
    assert told in refused(*arguments)


def test_two_sides_that_are_the_same_are_refused(knowing):
    same = ("--a", "PROFILE=lean", "--b", "HAKMEM_PROFILE=lean")
    assert refused_ab(*same).startswith("A and B are the same: both have HAKMEM_PROFILE=lean; ")
    assert refused_ab("--a", "X=1", "--b", "X=1").startswith("A and B are the same: both have X=1")
    by_path = ("--a-lib", "hakmem", "--b-lib", str(knowing))
    assert "no setting tells them apart" in refused_ab(*by_path)
    assert "no setting tells them apart" in refused_ab("--a-lib", "glibc", "--b-lib", "glibc")
    assert not Path("started").exists()


def refused_ab(*sides: str) -> str:
    found = run("ab", *sides, "--pairs", "2", "--max-pairs", "2", "--", "/usr/bin/touch", "started")
    assert found.exit_code == 2, found.output
    return found.output.splitlines()[-1].removeprefix("Error: ")


def test_setting_that_is_in_effect_anyway_makes_no_difference(knowing, monkeypatch):
    monkeypatch.setenv("HAKMEM_PROFILE", "lean")
    assert "both have HAKMEM_PROFILE=lean" in refused_ab("--b", "PROFILE=lean")
    found = run("ab", "--b", "PROFILE=speed", "--pairs", "2", "--max-pairs", "2", "--", *ALLOCATES)
    assert found.exit_code in (0, 3, 4), found.output


# A journal that was damaged on its way.


def damaged(path: Path, change) -> Path:
    lines = path.read_text().splitlines(keepends=True)
    other = path.with_name("damaged.jsonl")
    other.write_text("".join(change(lines)))
    return other


def spoil(*places: int, by: str = "garbage\n"):
    return lambda lines: [by if at in places else line for at, line in enumerate(lines)]


def without(name: str):
    def change(lines: list[str]) -> list[str]:
        entry = json.loads(lines[3])
        del entry["slices"]["glibc"][name]
        return [*lines[:3], json.dumps(entry) + "\n", *lines[4:]]

    return change


def with_cost(name: str, value: object):
    def change(lines: list[str]) -> list[str]:
        entry = json.loads(lines[3])
        entry["slices"]["glibc"]["outcome"][name] = value
        return [*lines[:3], json.dumps(entry) + "\n", *lines[4:]]

    return change


def with_value(value: object):
    def change(lines: list[str]) -> list[str]:
        entry = json.loads(lines[3])
        entry["slices"]["glibc"]["value"] = value
        return [*lines[:3], json.dumps(entry) + "\n", *lines[4:]]

    return change


@pytest.mark.turns
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (spoil(3), "line 4 of "),
        (spoil(2, 4), "lines 3, 5 of "),
        (spoil(3, by="[]\n"), "line 4 of "),
        (spoil(3, by='{"round": 2, "slices": {}}\n'), "line 4 of "),
        (spoil(3, by='{"round": 2, "slices": {"other": {}}}\n'), "line 4 of "),
        (spoil(3, by='{"served": {"glibc": 1}, "effective": []}\n'), "line 4 of "),
        (without("outcome"), "line 4 of "),
        (with_value("fast"), "line 4 of "),
        (with_value(None), "line 4 of "),
        (with_value(-1), "line 4 of "),
        (with_value(float("inf")), "line 4 of "),
        (with_cost("cpu_s", -5), "line 4 of "),
        (with_cost("peak_rss_kb", -1), "line 4 of "),
        (lambda lines: [*lines[:4], lines[3], *lines[4:]], "line 5 of "),
    ],
)
def test_damaged_lines_of_a_journal_are_named_and_left_out(results, change, told):
    path = damaged(journal(results), change)
    found = run("compare", "--from", str(path))
    assert found.exit_code == 1, found.output
    plain = " ".join(found.output.split())
    assert f"note: {told}" in plain
    assert "damaged and left out: these are the other" in plain
    assert "interrupted" not in plain
    assert "Wall time" in plain


@pytest.mark.turns
@pytest.mark.parametrize(("gone", "count"), [((3,), 1), ((2, 4), 2), ((6,), 1)])
def test_rounds_without_a_line_are_told_as_missing(results, gone, count):
    path = damaged(
        journal(results), lambda lines: [line for at, line in enumerate(lines) if at not in gone]
    )
    found = run("compare", "--from", str(path))
    assert found.exit_code == 1, found.output
    told = f"note: {count} of the rounds are missing in {path}: these are the other {5 - count}\n"
    assert told in found.output
    assert "left out: these are" not in found.output


@pytest.mark.turns
def test_last_line_that_was_cut_short_is_of_a_killed_run(results):
    path = damaged(journal(results), lambda lines: [*lines[:-2], lines[-2][:20]])
    found = run("compare", "--from", str(path))
    assert found.exit_code == 130, found.output
    assert re.search(r"note: line 7 of \S+ was cut short when its command ended", found.output)
    assert "interrupted after 4 of 5 rounds" in found.output


@pytest.mark.turns
def test_nobody_knows_what_a_damaged_last_line_said(results):
    path = damaged(journal(results), lambda lines: [*lines[:-1], "garbage\n"])
    found = run("compare", "--from", str(path))
    assert (found.exit_code, "interrupted" in found.output) == (1, False)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is no journal of rounds"),
        ("{}\n", "is no journal of rounds"),
        ('{"contenders": 3}\n', "line 1, which says what was measured, is damaged"),
        ("HAKTRACE" + "\0" * 5000, "is no journal of rounds: it is a trace"),
        ('{\n "made_by": "hakmem compare",\n', "it is what --json wrote; the journal ends in"),
    ],
)
def test_wrong_file_for_from_is_one_line(tmp_path, text, told):
    Path("file").write_text(text)
    assert told in refused("compare", "--from", "file")


@pytest.mark.turns
def test_head_that_does_not_tell_what_was_measured_is_one_line(results):
    path = journal(results)
    for name, value in (("facts", {"a": 1}), ("pairs", "x"), ("program", [1]), ("notes", None)):
        head = json.loads(path.read_text().splitlines()[0]) | {name: value}
        other = damaged(path, spoil(0, by=json.dumps(head) + "\n"))
        assert "is no journal of hakmem compare" in refused("compare", "--from", str(other))


@pytest.mark.turns
@pytest.mark.parametrize("seed", [-1, "x", {}])
def test_seed_of_a_journal_that_is_none_is_damage(results, seed):
    path = journal(results)
    head = json.loads(path.read_text().splitlines()[0]) | {"seed": seed}
    other = damaged(path, spoil(0, by=json.dumps(head) + "\n"))
    assert "line 1, which says what was measured, is damaged" in refused(
        "compare", "--from", str(other)
    )


@pytest.mark.turns
def test_journal_without_its_contenders_is_not_called_a_report(results):
    path = journal(results)
    head = json.loads(path.read_text().splitlines()[0])
    del head["contenders"]
    told = refused("compare", "--from", str(damaged(path, spoil(0, by=json.dumps(head) + "\n"))))
    assert told.endswith("is no journal of rounds")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("ab", "--b", "LD_PRELOAD=/nosuch.so"), "--b: LD_PRELOAD is set by this command"),
        (("compare", "--lib", "x=/a.so", "--lib", "x=/b.so"), "--lib: x is given twice"),
        (
            ("compare", "--lib", "hakmem=/a.so"),
            "--lib: 'hakmem' is the name of an allocator that this command knows: give the library",
        ),
        (("explain", "--set", "STATS_PAGE=0"), "--set: HAKMEM_STATS_PAGE is set by this command"),
    ],
)
def test_what_a_command_sets_itself_is_not_taken(arguments, told):
    assert refused(*arguments, "--", "/bin/true").startswith(told)


@pytest.mark.turns
@pytest.mark.parametrize(
    ("kept", "why"),
    [
        (lambda lines: lines[:1], "its command ended before the first was done"),
        (lambda lines: [lines[0], "garbage\n", "more\n"], "lines 2, 3 of "),
    ],
)
def test_journal_without_a_round_is_refused_in_one_line(results, kept, why):
    path = damaged(journal(results), kept)
    told = refused("compare", "--from", str(path), "--json", "new.json")
    assert told.startswith(f"--from: {path} holds no whole round: {why}")
    assert not Path("new.json").exists()


# Figures, limits, times.


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("x=(.*)", "'x=(.*)' finds '0', which is not from 1e-30 to 1e+30"),
        ("y=(.*)", "'y=(.*)' finds 'fast', which is no number"),
        ("x=(z)?", "'x=(z)?' fits 'x=', but its first group is not part of that"),
        ("z=(.*)", "nothing in its output fits 'z=(.*)'"),
    ],
)
def test_run_without_a_figure_says_what_is_wrong_with_it(expression, told):
    row = Row("a", ("/bin/sh", "-c", "echo x=0; echo y=fast"))
    rotation = run_rotation([row], custom_metric(expression, False), 1, seed=1)
    assert rotation.series["a"].problem == f"no figure: {told}"


def test_comparison_that_fails_is_one_line_and_its_json(results):
    words = "echo bad luck >&2; echo twice >&2; exit 3"
    told = refused("compare", "--with", "glibc", "--rounds", "3", "--json", "out.json", "--",
                   "/bin/sh", "-c", words, status=1)  # fmt: skip
    assert told == (
        "no allocator has figures: glibc: exit status 3; it last said: bad luck / twice"
    )
    assert "exit status 3" in json.loads(Path("out.json").read_text())["problems"]["glibc"]
    assert not list(results.glob("*.html"))


def test_what_fails_alike_is_told_once(knowing):
    told = refused("compare", "--with", "hakmem,glibc", "--", "/bin/sh", "-c", "exit 3", status=1)
    assert told == "no allocator has figures: hakmem, glibc: exit status 3"


@pytest.mark.parametrize("command", ["tail", "replay"])
def test_benchmark_that_fails_is_one_line(build, tmp_path, command, monkeypatch):
    folder = tmp_path / "build"
    (folder / "bench").mkdir(parents=True)
    for name in ("libhakmem.so", "bench/launch", "bench/libfloor.so"):
        (folder / name).symlink_to(build / name)
    for name in ("bench_latency", "bench_replay"):
        (folder / "bench" / name).write_text("#!/bin/sh\necho bad luck >&2\nexit 3\n")
        (folder / "bench" / name).chmod(0o755)
    monkeypatch.setenv("HAKLAB_BUILD", str(folder))
    figures = dict.fromkeys([*FUNCTIONS, *TOLD], 1)
    held = TraceSummary(tmp_path, "x", "x", figures, *HISTOGRAMS)
    monkeypatch.setattr("hakmem.traces.trace_summary.summarise_trace", lambda _path: held)
    (tmp_path / "trace").write_text("")
    more = ("--rounds", "5") if command == "tail" else ("trace",)
    told = refused(command, "--with", "glibc", *more, status=1)
    assert told == "no allocator has figures: glibc: exit status 3; it last said: bad luck"


def test_trace_without_a_call_holds_no_events(tmp_path, monkeypatch):
    held = TraceSummary(tmp_path, "x", "x", dict.fromkeys([*FUNCTIONS, *TOLD], 0), *HISTOGRAMS)
    monkeypatch.setattr("hakmem.traces.trace_summary.summarise_trace", lambda _path: held)
    (tmp_path / "trace").write_text("")
    for more in ((), ("--summary",)):
        assert refused("replay", *more, "trace").startswith("trace holds no events")


def test_time_limit_that_is_over_before_anything_starts(build):
    found = run_once(["/bin/sleep", "60"], limit_s=1e-9)
    assert found.problem == "did not end within 1e-09 s"


def test_limit_that_refuses_everything_is_not_a_program_that_allocates_nothing(monkeypatch):
    assert "refused" not in proof.idle_words({})
    assert "refused" not in proof.idle_words({"HAKMEM_LIMIT": "0"})
    told = proof.idle_words({"HAKMEM_LIMIT": "1"})
    assert told.endswith(", or HAKMEM_LIMIT=1 refused it everything")
    monkeypatch.setenv("HAKMEM_LIMIT", "2")
    assert "HAKMEM_LIMIT=2" in proof.idle_words()
    for none in ("1X", "-1", "00", "K"):
        assert "refused" not in proof.idle_words({"HAKMEM_LIMIT": none})
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20_000 << 10, resource.RLIM_INFINITY))
    assert "HAKMEM_LIMIT=2 and ulimit -v 20000 refused it everything" in proof.idle_words()


@pytest.mark.turns
def test_settings_of_hakmem_decide_nothing_where_it_takes_no_part(knowing, monkeypatch):
    """It is loaded to see whether the program allocates at all."""
    for value in ("1", "1X"):
        monkeypatch.setenv("HAKMEM_LIMIT", value)
        found = run("compare", "--with", "glibc", "--rounds", "1", "--", *ALLOCATES)
        assert found.exit_code == 0, found.output


@pytest.mark.turns
def test_run_and_record_name_the_limit(build, tmp_path):
    (tmp_path / "idle.c").write_text("int main(void) { return 0; }\n")
    idle = compile_c(tmp_path / "idle", [tmp_path / "idle.c"])
    (tmp_path / "hakmem.c").write_text(
        "#include <stdint.h>\nstruct { uint64_t alloc, free; } hak_os_stats;\n"
        "int hakmem_option_set(void) { return 0; }\n"
    )
    library = compile_c(tmp_path / "libhakmem.so", [tmp_path / "hakmem.c"], "-shared", "-fPIC")
    for given, told in (((), False), (("--set", "LIMIT=1"), True)):
        found = subprocess.run(
            [sys.executable, "-c", "from hakmem.cli import main; main()", "run", *given, str(idle)],
            env={**os.environ, "HAKLAB_LIB": str(library)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "it was loaded and served nothing" in found.stderr, found.stderr
        assert ("HAKMEM_LIMIT=1 refused it everything" in found.stderr) is told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "'' is no size"),
        ("16,,32", "'' is no size"),
        ("abc", "'abc' is no size"),
        ("0", "'0' is no size from 1 to 1G"),
        ("2G", "'2G' is no size from 1 to 1G"),
        ("1k,64,1024", "1024 bytes are given twice"),
        (",".join(map(str, range(1, 14))), "13 sizes, and 12 are the most"),
    ],
)
def test_each_wrong_size_is_told_by_what_is_wrong(text, told):
    with pytest.raises(click.ClickException, match=f"--sizes: {re.escape(told)}"):
        parse_sizes(text)


def test_sizes_in_every_unit():
    assert parse_sizes("1, 2k,3KiB,4M,1G") == [1, 2048, 3072, 4 << 20, 1 << 30]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("99", "'99' is no share above 0 and below 100%: write 99% or 0.99"),
        ("1", "write 1% or 0.01"),
        ("100%", "(such as 1% or 0.01)"),
        ("nan", "(such as 1% or 0.01)"),
    ],
)
def test_share_is_a_percentage_or_a_fraction(text, told):
    assert PERCENT.convert("0.99", None, None) == PERCENT.convert("99%", None, None) == 0.99
    with pytest.raises(click.BadParameter, match=re.escape(told)):
        PERCENT.convert(text, None, None)


# Names and settings.


@pytest.mark.parametrize("command", ["run", "explain", "profile"])
@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("profile=lean", "HAKMEM_profile is not an option of this version (near: HAKMEM_PROFILE)"),
        ("hakmem_PROFLE=x", "HAKMEM_PROFLE is not an option of this version (near: HAKMEM_PROFILE"),
        ("X=", "'X=' is not NAME=VALUE: it has no value"),
        ("=", "'=' is not NAME=VALUE: it has no name"),
        ("X", "'X' is not NAME=VALUE: it has no ="),
    ],
)
def test_setting_that_is_none_says_why_and_what_is_near(knowing, command, setting, told):
    found = refused(command, "--set", setting, "--", "/usr/bin/touch", "started")
    assert told in found
    assert not Path("started").exists()


def test_ab_names_what_is_near_in_any_case_of_letters(knowing):
    found = run("ab", "--b", "profile=lean", "--pairs", "2", "--max-pairs", "2", "--", *ALLOCATES)
    assert "hakmem has no HAKMEM_profile (near: HAKMEM_PROFILE)" in " ".join(found.output.split())


@pytest.mark.parametrize(
    ("arguments", "others"),
    [
        (("compare", "--with", "nosuch", "--", "/bin/true"), "; others with --lib NAME=PATH)"),
        (("ab", "--b-lib", "nosuch", "--", "/bin/true"), "; a path of a library is one too)"),
        (("record", "--on", "nosuch", "--", "/bin/true"), "malloc)"),
    ],
)
def test_unknown_allocator_tells_what_this_command_takes(arguments, others):
    told = refused(*arguments)
    assert told.startswith("unknown allocator 'nosuch' (known: hakmem, glibc, ")
    assert told.endswith(others)
    assert "floor" not in told


def test_unknown_allocator_names_what_is_near():
    assert "(near: jemalloc" in refused("record", "--on", "Jemaloc", "--", "/bin/true")


@pytest.mark.parametrize("command", ["explain", "profile"])
def test_number_behind_dashes_is_a_program(command):
    mine = str(os.getpid())
    assert refused(command, "--", mine, status=127) == f"there is no program '{mine}'"
    assert f"process {mine}" in refused(command, mine, status=1)


@pytest.mark.parametrize("name", OF_THE_SOURCES)
def test_help_of_a_command_that_is_not_installed(name):
    found = CliRunner().invoke(absent(name), ["--help"])
    assert found.exit_code == 0
    assert COMMANDS[name] in found.output
    assert "needs the source tree" in " ".join(found.output.split())
    assert CliRunner().invoke(absent(name), ["--seed", "3"]).exit_code == 2


@pytest.mark.parametrize(
    ("command", "option", "words"),
    [
        ("compare", "--timeout", "0: no limit"),
        ("compare", "--stop", "30 s"),
        ("ab", "--confidence", "99% or 0.99"),
        ("ab", "--pairs", "one run of A and one of B"),
    ],
)
def test_help_says_what_was_asked_about(command, option, words):
    [found] = [p for p in main.get_command(click.Context(main), command).params if option in p.opts]
    assert words in found.help


def test_signals_are_named_in_the_message():
    told = refused("compare", "--server", "sleep 9", "--load", "true", "--port", "9", "--stop", "X")
    assert "'X' is no signal" in told
    assert signal.SIGTERM.name in told


@pytest.mark.parametrize("said", ["", ": : ", "trace_summary: : "])
def test_trace_reader_without_words_is_not_an_empty_message(build, tmp_path, monkeypatch, said):
    (tmp_path / "bench").mkdir()
    reader = tmp_path / "bench" / "trace_summary"
    reader.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 2\n")
    reader.chmod(0o755)
    monkeypatch.setenv("HAKLAB_BUILD", str(tmp_path))
    (tmp_path / "j1.json").write_text("{}")
    assert refused("replay", "j1.json").endswith(
        "j1.json: cannot be read as a trace of 'hakmem record'"
    )


NO_FIGURE = """#!/bin/sh
sed -n 1p /proc/version >/dev/null
echo "Throughput = {} ops/s"
"""


@pytest.mark.parametrize("figure", ["nan", "-nan", "inf", "INF", "-Infinity", "NaN"])
@pytest.mark.parametrize("command", ["compare", "ab"])
def test_throughput_that_is_no_number_is_not_left_out(knowing, tmp_path, command, figure):
    script = tmp_path / "prints"
    script.write_text(NO_FIGURE.format(figure))
    script.chmod(0o755)
    own = {
        "compare": ("--rounds", "1", "--with", "glibc"),
        "ab": ("--b-lib", "glibc", "--pairs", "2", "--max-pairs", "2", "--cpu", "none"),
    }
    found = run(command, *own[command], "--", str(script))
    assert found.exit_code == 1, found.output
    assert f"'Throughput =' finds '{figure}', which is not from 1e-30 to 1e+30" in found.output


@pytest.mark.parametrize("out", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("command", ["run", "record", "explain"])
def test_figures_are_not_mixed_with_the_output_of_the_program(knowing, command, out):
    program = ("--", "/usr/bin/touch", "started")
    told = refused(command, "--json", out, *program)
    assert told == "--json: the standard output is PROGRAM's: name a file"
    assert not Path("started").exists()


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "\x1b[1m", "b\x7f"])
def test_name_that_is_no_word_of_a_line_is_refused(knowing, name):
    told = refused("compare", "--with", "glibc", "--lib", f"{name}={knowing}", "--", "ls")
    assert "holds what cannot be shown in a line of a table" in told


def test_setting_without_effect_is_not_measured(knowing):
    for name, switch in (("HEAP_PROFILE_RATE", "HEAP_PROFILE"),
                         ("SS_MEM_LEAN_TARGET_MB", "SS_MEM_LEAN")):  # fmt: skip
        off = {f"HAKMEM_{switch}": "0", f"HAKMEM_{name}": "8", "HAKMEM_STATS": "off",
               "HAKMEM_STATS_PAGE": "1", "X": "0", "X_Y": "1"}  # fmt: skip
        other = off | {f"HAKMEM_{name}": "9"}
        assert without_effect(off) == {f"HAKMEM_{name}": f"HAKMEM_{switch}"}
        with pytest.raises(UserError, match=f"HAKMEM_{name} has no effect without HAKMEM_{switch}"):
            require_effect([off, other])
        # What is on in one of the two, and what has an effect besides.
        require_effect([off, other | {f"HAKMEM_{switch}": "1"}])
        require_effect([off, other | {"HAKMEM_STATS_PAGE": "0"}])


def test_setting_without_effect_is_refused_by_the_library_s_own_list(monkeypatch):
    if not REAL_LIBRARY.is_file():
        pytest.skip("the library is not built")
    monkeypatch.setenv("HAKLAB_LIB", str(REAL_LIBRARY))
    told = refused_ab("--b", "HEAP_PROFILE_RATE=64K")
    assert "HAKMEM_HEAP_PROFILE_RATE has no effect without HAKMEM_HEAP_PROFILE" in told
    assert not Path("started").exists()
