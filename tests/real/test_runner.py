"""The runner must see each way in which a program can go wrong. No real program is started."""

import re
import signal
import time
from pathlib import Path

import pytest
import run
from measured import WorkloadFailed, run_alone
from programs.database_suites import mtr_outcomes, not_passed, servers_served, sqlite_results
from programs.python import junit_outcomes, modules_without_result
from registry import PROGRAMS, Program
from table import BEGIN, END, NoPlace, Row, markdown, replace_table

REPO = Path(__file__).resolve().parents[2]
# A library that every process can preload and that is no allocator.
NO_ALLOCATOR = next(Path("/usr/lib").glob("*/libm.so.6"))
PROOF = "[SS_OS_STATS] alloc=7 free=0 madvise=0"


def fake(workload, limit_s=20, needs=None, fetched=()):
    version = ("sh", "-c", "echo fake 1.2.3")
    return Program("fake", "nothing", version, needs or {"sh": "dash"}, workload, limit_s, fetched)


def shell(script, proof=PROOF):
    """A step that behaves otherwise under the library where its script asks for LD_PRELOAD."""
    return lambda session: session.run("sh", "-c", f"{script}\n[ -z \"$LD_PRELOAD\" ] || echo '{proof}' >&2")


@pytest.fixture
def outcome(monkeypatch, capsys, tmp_path):
    """outcome(workload): the runner's exit status and what it printed, with this as the only program."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def check(workload, *arguments, **options):
        monkeypatch.setattr(run, "PROGRAMS", {"fake": fake(workload, **options)})
        status = run.main(["--library", str(NO_ALLOCATOR), *arguments])
        return status, capsys.readouterr().out

    return check


def test_equal_runs_pass(outcome, tmp_path):
    status, printed = outcome(shell("echo equal; pwd"))
    assert status == 0
    assert re.search(r"\| fake \| 1\.2\.3 \| nothing \| libm.so.6 \| equal \| .* \| alloc=7 in 1 process \|", printed)
    assert "1 passed, 0 failed" in printed
    assert not list(tmp_path.glob("hakmem-real-*"))


def test_other_output_fails(outcome, tmp_path):
    status, printed = outcome(shell('echo "${LD_PRELOAD-none}"'))
    assert status == 1
    assert "differs from the run under glibc" in printed and "| FAILED |" in printed
    assert list(tmp_path.glob("hakmem-real-*/fake-libm.so"))


def test_other_file_fails(outcome):
    def workload(session):
        shell('echo "${LD_PRELOAD-none}" >file')(session)
        session.record_tree("f*")

    assert outcome(workload)[0] == 1


def test_a_crash_fails(outcome):
    status, printed = outcome(shell('[ -z "$LD_PRELOAD" ] || kill -SEGV $$'))
    assert status == 1 and "signal SIGSEGV" in printed


def test_a_hang_fails(outcome):
    start = time.monotonic()
    status, printed = outcome(shell('[ -z "$LD_PRELOAD" ] || sleep 100'), limit_s=1)
    assert status == 1 and "no end after" in printed
    assert time.monotonic() - start < 50


def test_no_proof_fails(outcome):
    status, printed = outcome(shell("echo equal", proof=PROOF.replace("7", "0")))
    assert status == 1 and "not served by hakmem" in printed


def test_a_failed_comparison_run_fails(outcome):
    status, printed = outcome(shell("exit 3"))
    assert status == 1 and "| NO COMPARISON |" in printed and "status 3" in printed


def test_an_error_of_the_workload_fails(outcome):
    def workload(session):
        session.require(not session.preload, "only under the library")
        shell("echo equal")(session)

    status, printed = outcome(workload)
    assert status == 1 and "only under the library" in printed


def test_a_missing_program_fails(outcome):
    status, printed = outcome(shell("echo equal"), needs={"no-such-program": "no-such-package"})
    assert status == 1 and "| NOT RUN |" in printed and "Debian package no-such-package" in printed


def test_a_file_that_was_not_fetched_fails(outcome, tmp_path):
    status, printed = outcome(shell("echo equal"), fetched=(tmp_path / "none",))
    assert status == 1 and "| NOT RUN |" in printed and "scripts/setup.sh real" in printed


def test_what_is_left_running_is_ended(tmp_path):
    def workload(session):
        session.run("sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $! >pid")

    result = run_alone(fake(workload), "glibc", tmp_path / "work", ())
    assert not result.failure
    assert not Path("/proc", (tmp_path / "work/pid").read_text().strip()).exists()


def test_an_ignored_interrupt_is_not_passed_on(tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        result = run_alone(fake(shell("kill -INT $$")), "glibc", tmp_path / "work", ())
    finally:
        signal.signal(signal.SIGINT, before)
    assert "signal SIGINT" in result.failure


def test_memory_is_that_of_the_program(tmp_path):
    def workload(session):
        session.run("/usr/bin/python3", "-c", "x = bytearray(150_000_000)")

    small = run_alone(fake(shell("true")), "glibc", tmp_path / "small", ())
    large = run_alone(fake(workload), "glibc", tmp_path / "large", ())
    assert large.peak_rss_mb > 140 > small.peak_rss_mb


def test_a_report_is_put_in_its_place(outcome, tmp_path):
    document = tmp_path / "document.md"
    document.write_text(f"before\n{BEGIN}old\n{END}after\n")
    assert outcome(shell("echo equal"), "--report", str(document))[0] == 0
    text = document.read_text()
    assert text.startswith(f"before\n{BEGIN}") and text.endswith(f"{END}after\n")
    assert "| fake |" in text and "old" not in text


def test_a_document_without_a_place_is_refused():
    with pytest.raises(NoPlace):
        replace_table("no marks", "text")


def test_cells_do_not_break_the_table():
    (*_, line) = markdown([Row("a|b", "1", "c\nd", "lib", "equal")], "facts").splitlines()
    assert line.startswith(r"| a\|b | 1 | c d | lib | equal |")


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["--library", "/no/such/file"], "--library"),
        (["--library", __file__], "--library"),
        (["--library", str(NO_ALLOCATOR), "--library", str(NO_ALLOCATOR)], "--library"),
        (["--only", "no-such-program"], "no-such-program"),
        (["--library", str(NO_ALLOCATOR), "--report", "/no/such/document"], "/no/such/document"),
        (["--library", str(NO_ALLOCATOR), "--report", __file__], "test_runner.py"),
        (["--no-such-option"], "--no-such-option"),
        (["--library", str(NO_ALLOCATOR), "--only", "lua", "--without", "lua"], "--without"),
    ],
)
def test_bad_arguments_get_one_line(arguments, named, capsys):
    try:
        status = run.main(arguments)
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    assert status == 2 and said.out == ""
    assert len(said.err.splitlines()) == 1 and named in said.err


def test_test_reports_are_understood(tmp_path):
    report = tmp_path / "results.xml"
    report.write_text(
        "<testsuites><testsuite>"
        "<testcase name='good'/><testcase classname='C' name='bad'><failure/></testcase>"
        "<testcase name='left'><skipped/></testcase>"
        "<testcase name='late'><error/></testcase><testcase name='late'/>"
        "</testsuite></testsuites>"
    )
    assert junit_outcomes(report) == {"good": "passed", "C.bad": "failed", "left": "skipped", "late": "passed"}


def test_modules_that_tested_nothing_are_found():
    outcomes = {"test.test_json.T.t": "passed", "ctypes.test.test_x.T.t": "skipped", "test.test_io2.T.t": "passed"}
    assert modules_without_result(["test_json", "test_ctypes", "test_io"], outcomes) == ["test_io"]


def test_results_of_sqlite_are_understood():
    said = (
        "a-1.1... Ok\nround-2/5.5=>6...1... Ok\nc-1... (1.5ms)  Ok\n! b-1 expected: [1]\n"
        "Time: a.test 12 ms\n1 errors out of 4 tests on host Linux 64-bit little-endian\n"
        "!Failures on these tests: b-1\n.  vtab1 exceeds\n2 files were left open\n"
    )
    results, summary = sqlite_results(said)
    assert summary == (1, 4)
    assert results == {
        "tests that failed": ["b-1"],
        "what was left": ["2 files were left open"],
        "omitted": ["vtab1 exceeds"],
        "files": ["a.test"],
        "tests that passed": ["a-1.1", "round-2/5.5=>6...1", "c-1"],
    }
    assert sqlite_results("a-1.1... Ok\n")[1] is None


def test_results_of_mariadb_are_understood():
    said = (
        "main.a                                   w2 [ pass ]    591\n"
        "innodb.b '4k,row'                        w1 [ pass ]  40389\n"
        "innodb.b '8k'                            [ skipped ]  Requires debug build\n"
        "main.c                                   w1 [ pass ]    1\n"
        "main.c                                   w1 [ fail ]  Found warnings/errors in server log file!\n"
        "main.d                                   [ disabled ]  MDEV-1\n"
    )
    outcomes = mtr_outcomes(said)
    assert outcomes == {
        "main.a": {"pass"},
        "innodb.b,4k,row": {"pass"},
        "innodb.b,8k": {"skipped"},
        "main.c": {"pass", "fail"},
        "main.d": {"disabled"},
    }
    wrong = ["innodb.b,8k: skipped", "main.c: fail pass", "main.d: disabled"]
    assert not_passed(["main.a", "innodb.b", "innodb.b,4k"], outcomes) == wrong
    assert not_passed(["main.a", "innodb", "innodb.b,16k"], outcomes) == ["innodb", "innodb.b,16k", *wrong]


def test_a_server_that_was_not_served_is_found():
    ended = "2026-11-24 23:18:14 0 [Note] /usr/sbin/mariadbd: Shutdown complete\n"
    assert servers_served(f"{ended}{PROOF}\nkilled\n{ended}{PROOF}\n".encode())
    assert not servers_served(f"{ended}{PROOF}\n{ended}".encode())
    assert not servers_served(f"{ended}{PROOF.replace('7', '0')}\n".encode())
    assert not servers_served(b"killed\n")


def test_a_status_is_allowed_by_name_only(outcome):
    def workload(session):
        session.run("sh", "-c", f"echo equal; echo '{PROOF}' >&2; exit 3", statuses=(0, 3))

    assert outcome(workload)[0] == 0
    assert outcome(shell("exit 4"))[0] == 1


def test_require_raises(tmp_path):
    result = run_alone(fake(lambda session: session.require(False, "said so")), "glibc", tmp_path / "work", ())
    assert result.failure == "said so"
    assert issubclass(WorkloadFailed, AssertionError)


def test_every_package_is_listed():
    lists = ("scripts/packages-run.txt", "tests/preload/packages.txt", "scripts/packages-real.txt")
    lines = [line.partition("#")[0].strip() for name in lists for line in (REPO / name).read_text().splitlines()]
    named = {package for program in PROGRAMS.values() for package in program.needs.values()}
    assert named - set(lines) == set()
