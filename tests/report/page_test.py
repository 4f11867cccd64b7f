"""The statistics page read by another process, and reports at exit and on a signal."""
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import sums  # noqa: E402
from page import Page, check, descriptors  # noqa: E402

LIBRARY = os.environ.get("HAKMEM_SO", "")
HARDENED = os.environ.get("HAKMEM_HARDENED_SO", "")
LOAD = os.environ.get("REPORT_LOAD", "")
PAGE = {"HAKMEM_STATS_PAGE": "1"}


def start(*arguments: str, limit: tuple | None = None, **settings: str) -> subprocess.Popen:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HAKMEM_")}
    return subprocess.Popen(
        [LOAD, *arguments], env=environment | {"LD_PRELOAD": LIBRARY} | settings, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=limit and (lambda: resource.setrlimit(limit[0], (limit[1], limit[1]))))


def go_on(program: subprocess.Popen) -> None:
    program.stdin.write("\n")
    program.stdin.flush()


def end(program: subprocess.Popen, code: int = 0) -> tuple[str, str]:
    out, err = program.communicate("\n", timeout=60)
    assert program.returncode == code, err
    return out, err


def page_of(program: subprocess.Popen) -> Page:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for path in descriptors(program.pid):
            if os.stat(path).st_size == 0:  # made, and not yet given its length
                continue
            page = Page(path)
            if page.header()[2] != 0:
                return page
        time.sleep(0.01)
    raise AssertionError("no page")


def test_sums_hold_in_another_process() -> None:
    """Four threads work, and every snapshot that is read is whole."""
    program = start("load", "100", **PAGE)
    page, seen, reads, last = page_of(program), set(), 0, None
    until = time.monotonic() + 2
    while time.monotonic() < until or reads < 200 or len(seen) < 8:
        last = check(page)
        seen.add(last["monotonic_ms"])
        reads += 1
    program.kill()
    program.wait()
    assert last["total"]["live"] > 1000000 and last["counters"]["alloc"] > 10
    assert last["huge_blocks_left_out"] == 0 and last["own_memory"][0]["kind"] == "metadata"


def test_figures_are_the_programs() -> None:
    program = start("quiet", "1000", "20000", **PAGE)
    assert program.stdout.readline() == "ready\n"
    d = check(page_of(program))
    end(program)
    row = next(r for r in d["classes"] if r["size"] == 1024)
    # The last snapshot is of a moment among the last few slow paths.
    assert 19800 * 1024 <= row["live"] <= 20100 * 1024
    assert row["estimated_rounding"] == pytest.approx(20000 * 24, rel=0.05)
    assert d["settings"]["requests"] is True


def test_the_largest_heaps_are_on_the_page() -> None:
    program = start("heaps", "300", HAKMEM_STATS="json", **PAGE)
    assert program.stdout.readline() == "ready\n"
    d = check(page_of(program))
    _, err = end(program)
    heaps = d["heaps"]
    assert d["heaps_total"]["count"] == 300 and d["heaps_total"]["blocks"] == 300
    # A block has the size of its class, in a heap's first pieces too.
    sizes = sorted(row["size"] for row in d["classes"])
    live = [next(size for size in sizes if size >= 64 * (i + 1)) for i in range(300)]
    assert d["heaps_total"]["live"] == sum(live)
    # Of those that have as much as the last one for which there is room the oldest.
    least = sorted(live)[200]
    ties = [i for i in range(300) if live[i] == least][: 100 - sum(size > least for size in live)]
    largest = [i for i in range(300) if live[i] > least or i in ties]
    assert [heap["live"] for heap in heaps] == [live[i] for i in largest]
    assert [heap["name"] for heap in heaps] == [f'heap "{i}"\n\xff' for i in largest]
    assert d["heaps_left_out"] == 200
    at_exit = json.loads(err)
    assert not sums.check(at_exit)
    assert at_exit["heaps_left_out"] == 0
    assert sum(heap["live"] for heap in at_exit["heaps"]) == at_exit["heaps_total"]["live"]
    assert len({heap["id"] for heap in at_exit["heaps"]}) == 300


def test_extents_have_their_exact_size() -> None:
    program = start("quiet", "300000", "50", **PAGE)
    assert program.stdout.readline() == "ready\n"
    d = check(page_of(program))
    end(program)
    assert d["extents"] == {"count": 50, "requested": 50 * 300000, "tail": 50 * (5 * 65536 - 300000)}


def test_prewarm_fills_the_groups_that_have_an_option() -> None:
    """C1 to C12; classes of whole spans are in none."""
    program = start("quiet", "300000", "1", HAKMEM_TINY_PREWARM_ALL="2", HAKMEM_TINY_FRONT_METRICS="1", **PAGE)
    assert program.stdout.readline() == "ready\n"
    rows = check(page_of(program))["classes"]
    end(program)
    plain = [r for r in rows if not r["aligned"]]
    assert [r["size"] for r in plain if r["slabs"] == 0] == [65536 * n - short for n in (1, 2, 3, 4) for short in (4096, 0)]


def test_process_that_has_not_allocated_has_its_classes() -> None:
    program = start("nothing", **PAGE)
    d = check(page_of(program))
    end(program)
    assert d["total"]["live"] == 0
    assert [row["size"] for row in d["classes"]][:3] == [16, 32, 48]


def test_a_burst_before_sleep_is_seen() -> None:
    """A refresh does not wait for its turn when much has changed."""
    program = start("burst", **PAGE)
    assert program.stdout.readline() == "ready\n"
    before = check(page_of(program))
    time.sleep(0.1)
    go_on(program)
    assert program.stdout.readline() == "ready\n"
    after = check(page_of(program))
    end(program)
    # All of it but for the last 1/32 and 1 MiB.
    assert after["total"]["live"] - before["total"]["live"] > 0.95 * 160e6


def test_fork_makes_a_new_page() -> None:
    program = start("fork", **PAGE)
    assert program.stdout.readline() == "parent\n"
    parents = page_of(program)
    go_on(program)
    child = int(program.stdout.readline().split()[1])
    before = parents.header()
    childs = [Page(path) for path in descriptors(child)]
    assert len(childs) == 1, "the parent's is closed"
    assert childs[0].header()[8] == child
    assert parents.header()[8] == program.pid
    d = check(childs[0])
    assert d["pid"] == child
    assert d["total"]["live"] > 5e6, "it has the parent's blocks"
    assert check(parents)["total"]["live"] < 20e6
    assert parents.header() == before, "the child left it alone"
    end(program)


def test_a_child_cannot_spoil_the_page() -> None:
    program = start("spoiled", **PAGE)
    assert program.stdout.readline() == "0 ways\n"
    assert program.stdout.readline() == "ready\n"
    assert check(page_of(program))["total"]["live"] > 100e6
    end(program)


def test_off_leaves_nothing() -> None:
    program = start("quiet", "1000", "2000")
    assert program.stdout.readline() == "ready\n"
    maps = Path(f"/proc/{program.pid}/maps").read_text()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{program.pid}/status").read_text().splitlines())
    assert descriptors(program.pid) == []
    assert "hakmem-stats" not in maps and "libhakmem" in maps
    assert int(status["SigCgt"], 16) == 0
    assert end(program) == ("", "")


def test_a_program_that_closes_everything() -> None:
    """The page lives in its mapping, and a number that has become the program's is not closed."""
    program = start("closed", **PAGE)
    assert end(program)[0] == "fine\n"


@pytest.mark.parametrize("name,limit", [
    ("files", (resource.RLIMIT_NOFILE, 20)), ("file size", (resource.RLIMIT_FSIZE, 4096)),
    ("addresses", (resource.RLIMIT_AS, 40 << 20))])
def test_limits(name: str, limit: tuple) -> None:
    program = start("quiet", "1000", "2000", limit=limit, **PAGE)
    assert program.stdout.readline() == "ready\n"
    on = descriptors(program.pid) != []
    err = end(program)[1]
    assert on == (name == "files")
    off = "hakmem: HAKMEM_STATS_PAGE: no shared memory for the page: switched off\n"
    assert err == ("" if on else off)


@pytest.mark.parametrize("library", [LIBRARY, HARDENED])
def test_threads_that_do_not_park(library: str) -> None:
    """Their memory is gone when the figures are taken: of a first allocation among the last destructors, or a bare exit."""
    program = start("unparked", HAKMEM_STATS="json", LD_PRELOAD=library, **PAGE)
    assert program.stdout.readline() == "ready\n"
    d = check(page_of(program))
    out, err = end(program)
    assert sums.check(json.loads(err)) == []
    # Of each as many may count as cached as its magazine held at its last slow path.
    assert d["slabs"]["live"] >= 5 * (300 - 63) * 112, "the blocks of all of them"


def test_json_at_exit() -> None:
    d = json.loads(end(start("load", "0.5", HAKMEM_STATS="json"))[1])
    assert sums.check(d) == []
    assert "regions" not in d


def test_text_at_exit() -> None:
    out, err = end(start("load", "0.5", HAKMEM_STATS="text"))
    lines = {name.strip(): int(value) for name, _, value in
             (line.rpartition(" ") for line in err.splitlines()[1:25])}
    assert lines["spans"] == sum(lines[n] for n in (
        "slabs", "extents", "extents, freed lately", "heaps", "free, dirty", "free, clean", "claimed by a purge"))
    blocks = ("free blocks", "never allocated blocks", "rest")
    assert lines["slabs"] == sum(
        v for n, v in lines.items() if n.startswith("handed out") or n in blocks)
    assert "(estimated)" in err and "estimated: asked_for=" in err


def test_signal_prints() -> None:
    program = start("load", "2", HAKMEM_STATS_SIGNAL=str(int(signal.SIGUSR1)))
    time.sleep(0.5)
    program.send_signal(signal.SIGUSR1)
    err = end(program)[1]
    assert err.startswith(f"hakmem 0.1.0: figures of process {program.pid}, bytes\n")
    assert err.count("accessible") == 1


def test_signal_prints_json_and_at_exit_too() -> None:
    program = start("load", "2", HAKMEM_STATS_SIGNAL=str(int(signal.SIGUSR1)), HAKMEM_STATS="json")
    time.sleep(0.5)
    program.send_signal(signal.SIGUSR1)
    documents = [json.loads(line) for line in end(program)[1].splitlines()]
    assert len(documents) == 2
    assert [sums.check(d) for d in documents] == [[], []]
    assert documents[1]["monotonic_ms"] > documents[0]["monotonic_ms"]


def test_signal_that_is_the_programs() -> None:
    usr1 = str(int(signal.SIGUSR1))
    program = start("catches", usr1, HAKMEM_STATS_SIGNAL=usr1)
    assert program.stdout.readline() == "ready\n"
    program.send_signal(signal.SIGUSR1)
    assert program.stdout.readline() == "the program's\n"
    assert end(program)[1] == ""


def test_signal_that_is_ignored_or_cannot_be_caught() -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        err = end(start("quiet", "100", "10", HAKMEM_STATS_SIGNAL=str(int(signal.SIGUSR2))))[1]
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert err == "hakmem: HAKMEM_STATS_SIGNAL=12: the program handles or ignores this signal: left alone\n"
    for number in 9, 11:
        err = end(start("quiet", "100", "10", HAKMEM_STATS_SIGNAL=str(number)))[1]
        assert err == f"hakmem: HAKMEM_STATS_SIGNAL={number}: this signal cannot be caught: not used\n"


def test_helper_thread_serves_an_idle_program() -> None:
    """Page and signal need no thread of the program to come by, asleep as the helper may be."""
    program = start("quiet", "1000", "300", HAKMEM_STATS_SIGNAL=str(int(signal.SIGUSR1)), HAKMEM_BACKGROUND="1", **PAGE)
    assert program.stdout.readline() == "ready\n"
    time.sleep(3)
    program.send_signal(signal.SIGUSR1)
    assert program.stderr.readline() == f"hakmem 0.1.0: figures of process {program.pid}, bytes\n"
    d = check(page_of(program))
    assert next(r for r in d["classes"] if r["size"] == 1024)["live"] == 300 * 1024
    end(program)
