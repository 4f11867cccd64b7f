"""The comparison itself must be able to fail, in each way it promises to."""

import re
from pathlib import Path

import pytest

from preload import Session, WorkloadFailed, compare_transcripts, run_both, served_allocs, strip_stats

# A library that every process can preload and that is no allocator.
NO_ALLOCATOR = "libm.so.6"
REPORT = "[SS_OS_STATS] alloc=%d free=0 madvise=0"


def shell(script):
    return lambda session: session.run("sh", "-c", script)


def test_harness_wants_proof(tmp_path):
    with pytest.raises(WorkloadFailed, match="not served by hakmem"):
        run_both(shell("echo equal"), tmp_path, NO_ALLOCATOR)


def test_harness_wants_allocations(tmp_path):
    with pytest.raises(WorkloadFailed, match="not served by hakmem"):
        run_both(shell(f"echo '{REPORT % 0}' >&2"), tmp_path, NO_ALLOCATOR)


def test_harness_accepts_equal_runs(tmp_path):
    run_both(shell(f"echo equal; pwd; echo '{REPORT % 7}' >&2"), tmp_path, NO_ALLOCATOR)


@pytest.mark.parametrize("stream", ["1", "2"])
def test_harness_sees_other_output(tmp_path, stream):
    with pytest.raises(WorkloadFailed, match="differs from the run under glibc"):
        run_both(shell(f'echo "${{LD_PRELOAD-none}}" >&{stream}; echo "{REPORT % 7}" >&2'), tmp_path, NO_ALLOCATOR)


def test_harness_sees_other_files(tmp_path):
    def workload(session):
        session.run("sh", "-c", f"echo ${{LD_PRELOAD-none}} >file; echo '{REPORT % 7}' >&2")
        session.record_file("file")

    with pytest.raises(WorkloadFailed, match="file file differs"):
        run_both(workload, tmp_path, NO_ALLOCATOR)


def test_harness_sees_a_crash(tmp_path):
    with pytest.raises(WorkloadFailed, match="signal SIGABRT"):
        run_both(shell("test -z $LD_PRELOAD || kill -ABRT $$"), tmp_path, NO_ALLOCATOR)


def test_harness_sees_a_hang(tmp_path):
    with pytest.raises(WorkloadFailed, match="no end after 1 s"):
        Session("glibc", tmp_path / "work").run("sleep", "30", timeout_s=1)


def test_harness_sees_a_server_die(tmp_path):
    session = Session("glibc", tmp_path / "work")
    with pytest.raises(WorkloadFailed, match="signal SIGSEGV"):
        with session.beside("sh", "-c", "kill -SEGV $$") as process:
            process.wait(10)
            raise WorkloadFailed("the client lost its connection")


def test_harness_sees_nothing_compared(tmp_path):
    with pytest.raises(WorkloadFailed, match="nothing to compare"):
        compare_transcripts([], [])


def test_harness_keeps_its_settings_to_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("HAKMEM_SO", "library")
    monkeypatch.setenv("HAKMEM_PROFILE", "lean")
    for needs_proof, expected in ((False, b""), (True, b"HAKMEM_PROFILE=lean\nHAKMEM_SS_OS_STATS=1\n")):
        session = Session("any", tmp_path / str(needs_proof), needs_proof=needs_proof)
        script = f"env | grep '^HAKMEM_' | sort; echo '{REPORT % 7}' >&2"
        assert session.run("sh", "-c", script) == expected


def test_harness_takes_out_only_the_counters():
    stderr = b"warning: a[SS_OS_STATS] alloc=12 free=3\nwarning: b\n[SS_OS_STATS] alloc=0 free=0\n"
    assert served_allocs(stderr) == [12, 0]
    assert strip_stats(stderr) == b"warning: awarning: b\n"


def test_harness_names_the_missing_package(needs, monkeypatch):
    monkeypatch.delenv("HAKMEM_PRELOAD_ALLOW_SKIP", raising=False)
    with pytest.raises(pytest.fail.Exception, match="Debian package no-such-package"):
        needs("no-such-package", "no-such-program")
    monkeypatch.setenv("HAKMEM_PRELOAD_ALLOW_SKIP", "1")
    with pytest.raises(pytest.skip.Exception, match="Debian package no-such-package"):
        needs("no-such-package", "no-such-program")


def test_harness_lists_every_package():
    here = Path(__file__).resolve().parent
    sources = [path.read_text() for path in here.glob("test_*.py") if path.name != Path(__file__).name]
    named = {package for source in sources for package in re.findall(r'needs\("([^"]+)"', source)}
    assert named == set((here / "packages.txt").read_text().split())
