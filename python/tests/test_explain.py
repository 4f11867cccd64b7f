from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from fake_process import (
    ASKED,
    CLASS,
    HUGE_PAGES,
    KEPT_PAGES,
    LAYOUT,
    METADATA_PAGES,
    PAGE,
    PURGES,
    SPAN,
    TABLE_PAGES,
    Fake,
    fake_process,
)
from small_build import compile_c

from hakmem.cli import main
from hakmem.commands.explain import Series, remarks
from hakmem.errors import UserError
from hakmem.processes import page_shape, process_memory, stats_page
from hakmem.processes.accounting import (
    CLASSES,
    GROUPS,
    OTHERS,
    Account,
    divide,
    explain_process,
    ranges_of,
    split_classes,
)
from hakmem.processes.process_memory import Pagemap, mappings, parse_smaps

REPOSITORY = Path(__file__).resolve().parents[2]
# Before the tests' own build takes its place.
BUILD = Path(os.environ.get("HAKLAB_BUILD", REPOSITORY / "build/release")).resolve()
LIBRARY = BUILD / "libhakmem.so"

SLAB_BYTES = PAGE * sum(pages for code, pages in LAYOUT if code == CLASS)

# Holds memory of every kind, the program's own figure of it on its first line, and rests.
RESTING = """
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { BLOCKS = 20000, THREADS = 3, LARGE = 40 };
static void *kept[THREADS][BLOCKS];
static size_t asked[THREADS];
static pthread_barrier_t met;
static void *work(void *argument) {
    size_t number = (size_t)argument;
    unsigned seed = (unsigned)number + 1;
    for (int i = 0; i < BLOCKS; i++) {
        size_t bytes = 20 + (size_t)rand_r(&seed) % 1000;
        kept[number][i] = memset(malloc(bytes), 1, bytes);
        asked[number] += bytes;
    }
    pthread_barrier_wait(&met);
    /* Each third block, by the next thread. */
    for (int i = 0; i < BLOCKS; i += 3) {
        void *block = kept[(number + 1) % THREADS][i];
        free(block);
    }
    pthread_barrier_wait(&met);
    pause();
    return NULL;
}
int main(void) {
    pthread_barrier_init(&met, NULL, THREADS + 1);
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    pthread_barrier_wait(&met);
    pthread_barrier_wait(&met);
    size_t total = 0, seeds = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        unsigned seed = i + 1;
        for (int k = 0; k < BLOCKS; k++) {
            size_t bytes = 20 + (size_t)rand_r(&seed) % 1000;
            if (k % 3 != 0) seeds += bytes;
        }
    }
    total = seeds;
    for (int i = 0; i < LARGE; i++) {
        size_t bytes = 100000 + 1000 * (size_t)i;
        char *block = memset(malloc(bytes), 2, bytes);
        if (i % 4 == 0) free(block);
        else total += bytes;
    }
    memset(malloc(40 << 20), 3, 40 << 20);
    total += 40 << 20;
    /* The page is written from slow paths, at most each 250 ms. */
    for (int round = 0; round < 3; round++) {
        usleep(300000);
        void *more[400];
        for (int i = 0; i < 400; i++) more[i] = malloc(30000);
        for (int i = 0; i < 400; i++) free(more[i]);
    }
    printf("%zu\\n", total);
    fflush(stdout);
    pause();
    return 0;
}
"""


def run(*arguments: str):
    return CliRunner().invoke(main, ["explain", *arguments])


def by_key(account) -> dict[str, int]:
    return {part.key: part.bytes for part in account.parts}


def test_every_page_is_where_the_map_says():
    with fake_process() as fake:
        account = explain_process(fake.pid)
    found = by_key(account)
    extents = 3 * 16 * PAGE
    assert found["huge"] == HUGE_PAGES * PAGE
    assert found["huge_kept"] == KEPT_PAGES * PAGE
    assert found["tables"] == TABLE_PAGES * PAGE
    assert found["metadata"] == METADATA_PAGES * PAGE
    assert found["extents_cached"] == 16 * PAGE
    assert (found["heaps"], found["heaps_free"]) == (150_000, 42 * PAGE - 150_000)
    assert found["dirty"] == 5 * PAGE
    # In a span that is clean by the map; not the page of zeros that was read behind it.
    assert (found["clean"], found["taken_since"]) == (0, PAGE)
    assert (found["extents"], found["extent_tails"]) == (ASKED, extents - ASKED)
    assert [(c.code, c.resident) for c in account.classes] == [(CLASS, SLAB_BYTES)]
    one = account.classes[0]
    assert (
        one.live + one.cached + one.depots + one.free + one.never_allocated + one.rest == SLAB_BYTES
    )
    # 262,144 bytes of slabs, 142,044 never allocated, 163,840 resident.
    assert one.never_allocated == SLAB_BYTES - (262_144 - 142_044)
    assert (one.live, one.requested, one.rounding) == (60_000, 56_250, 3_750)
    assert found["page"] > 0
    assert found["program"] > found["stacks"] > 0


def test_clean_spans_are_filled_by_huge_pages():
    mode = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    if "[never]" in mode:
        pytest.skip("the system has no huge pages")
    with fake_process("huge") as fake:
        account = explain_process(fake.pid)
    if not account.huge_pages:
        pytest.skip("the system gave no huge page")
    found = by_key(account)
    # 2 MiB pages of which the map says that one span is a slab and all others are clean.
    assert found["clean"] == account.huge_pages - SPAN
    assert found["taken_since"] == 0
    assert sum(c.resident for c in account.classes) == SPAN


def test_sum_is_the_kernels():
    with fake_process() as fake:
        account = explain_process(fake.pid)
        assert account.rss == process_memory.rollup(fake.pid)["Rss"]
    assert account.explained == sum(account.by_group().values())
    assert abs(account.difference) <= account.rss / 50
    assert account.difference == 0 or not account.can_see_zero_pages


def test_kernel_that_cannot_tell_pages_of_zeros_makes_a_difference(monkeypatch):
    monkeypatch.setattr(process_memory, "SCAN_REQUEST", 0)
    with fake_process() as fake:
        account = explain_process(fake.pid)
    assert not account.can_see_zero_pages
    assert by_key(account)["clean"] == 2 * PAGE
    assert account.difference >= PAGE
    assert any("before Linux 6.7" in line for line in remarks(account))


def test_old_page_is_told():
    with fake_process() as fake:
        account = explain_process(fake.pid)
    assert not any("has not written" in line for line in remarks(replace(account, age_s=0.5)))
    assert any("page for 7.0 s" in line for line in remarks(replace(account, age_s=7)))


def test_what_the_process_frees_moves():
    with fake_process() as fake:
        fake.tell("free")
        found = by_key(explain_process(fake.pid))
    assert (found["extents"], found["extent_tails"]) == (0, 0)
    assert found["dirty"] == (5 + 48) * PAGE


def test_page_is_found_when_its_descriptor_is_closed():
    with fake_process("closed") as fake:
        if not os.access(f"/proc/{fake.pid}/map_files", os.R_OK) or os.geteuid() != 0:
            pytest.skip("only root can open what a process has mapped")
        assert stats_page.page_file(fake.pid).parent.name == "map_files"
        assert stats_page.read(fake.pid).figures["pid"] == fake.pid


def rounds_of(snapshot: stats_page.Snapshot) -> int:
    """How often the stand-in has written: each time it counts one purge more."""
    return snapshot.figures["purge"]["count"] - PURGES


def test_every_figure_of_the_library_is_kept():
    written = Fake().figures(0)
    assert page_shape.parse(json.dumps(written).encode()) == written


@pytest.mark.turns
def test_copies_are_whole_while_the_page_is_written():
    with fake_process() as fake:
        fake.tell("write 3000", wait=False)
        seen = set()
        end = time.monotonic() + 60
        while max(seen, default=0) < 3000:
            snapshot = stats_page.read(fake.pid)
            rounds = rounds_of(snapshot)
            seen.add(rounds)
            # Figures of one row that grow together, and the map of the same area.
            assert snapshot.figures["classes"][0]["hits"] == 900 + 100 * rounds
            assert snapshot.figures["counters"]["alloc"] == 100 + 7 * rounds
            region = snapshot.figures["regions"][0]
            assert region["map_offset"] == snapshot.map_offset
            assert time.monotonic() < end
        assert len(seen) > 5


def test_copy_is_dropped_when_the_page_moved_on(monkeypatch):
    real, reads = os.pread, []

    def slow(*arguments: int) -> bytes:
        reads.append(arguments)
        # Behind the header, which is looked at once before, and the text; before the map.
        if len(reads) == 4:
            fake.tell("write 3")
        return real(*arguments)

    with fake_process() as fake:
        monkeypatch.setattr(stats_page.os, "pread", slow)
        assert rounds_of(stats_page.read(fake.pid)) == 3
    assert len(reads) == 9


def test_page_left_in_the_middle_of_a_write_is_an_error(monkeypatch):
    monkeypatch.setattr(stats_page, "PATIENCE_S", 0.05)
    with fake_process() as fake:
        fake.tell("odd")
        with pytest.raises(UserError, match=r"not whole for 0\.05 s"):
            stats_page.read(fake.pid)


def test_other_versions_and_other_files_are_refused(tmp_path):
    page = tmp_path / "page"
    head = stats_page.HEADER.pack(b"hakmemS1", 2, 2, 0, 64, 0, 64, 0, 1, 0)
    page.write_bytes(head)
    with page.open("rb") as file:
        with pytest.raises(UserError, match="version 2, this command reads 1"):
            stats_page.header(1, file.fileno())
        page.write_bytes(head.replace(b"hakmem", b"Hakmem"))
        with pytest.raises(UserError, match="no page of hakmem"):
            stats_page.header(1, file.fileno())


def test_child_of_a_fork_is_not_taken_for_its_parent():
    program = (
        "import fake_process, os, time\n"
        "fake = fake_process.Fake()\nfake.write()\n"
        "pid = os.fork()\n"
        "if pid: print(os.getpid(), pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
                               cwd=Path(__file__).parent, start_new_session=True)  # fmt: skip
    try:
        parent, child = map(int, process.stdout.readline().split())
        assert stats_page.read(parent).figures["pid"] == parent
        found = list(stats_page.processes())
        assert parent in found
        assert child not in found
        with pytest.raises(UserError, match="has no page"):
            stats_page.read(child)
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        process.stdout.close()


def test_threads_stacks_are_told(tmp_path):
    program = (
        "import threading, time\n"
        "def deep(n): return deep(n - 1) if n else (print('ready', flush=True), time.sleep(60))\n"
        "threading.Thread(target=deep, args=(200,)).start()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        process.stdout.readline()
        inside, end = [], time.monotonic() + 30
        while len(inside) < 2 and time.monotonic() < end:
            pointers, _ = process_memory.stack_pointers(process.pid)
            found = mappings(process.pid)
            inside = [m for m in found if any(m.start <= p < m.end for p in pointers)]
        assert len(inside) == 2
        assert [m.name for m in inside].count("[stack]") == 1
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_pages_are_counted_as_smaps_counts_them():
    mapped = [m for m in mappings(os.getpid()) if m.rss]
    with closing(Pagemap(os.getpid())) as pages:
        counts = {m.start: PAGE * int(pages.look(m.start, m.end).resident.sum()) for m in mapped}
        if not pages.can_scan:
            pytest.skip("this kernel does not tell pages of zeros")
    # Reading them takes memory itself, but not in the files.
    files = [m for m in mapped if m.name.startswith("/")]
    assert len(files) > 10
    assert all(counts[m.start] == m.rss for m in files)


def test_little_in_much_is_found_at_once():
    # MAP_NORESERVE has no name in Python 3.11.
    size, flags = 64 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
    with mmap.mmap(-1, size, flags=flags) as memory, closing(Pagemap(os.getpid())) as pages:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for offset in (0, PAGE, 40 << 20, (50 << 30) + PAGE, size - PAGE):
            memory[offset] = 1
        # A page of zeros.
        assert memory[30 << 30] == 0
        one = max(mappings(os.getpid()), key=lambda m: m.end - m.start)
        assert one.rss == 5 * PAGE
        windows = list(pages.windows(one))
        if not pages.can_scan:
            pytest.skip("this kernel does not tell where pages are")
        assert len(windows) == 5
        assert sum(int(pages.look(*window).resident.sum()) for window in windows) == 5
        pages.can_scan = False
        assert list(pages.windows(one))[-1][1] == one.end
        assert sum(high - low for low, high in pages.windows(one)) == one.end - one.start


def test_smaps_is_read():
    text = """7f0000000000-7f0000200000 rw-p 00000000 00:00 0
Size:               2048 kB
Rss:                 512 kB
AnonHugePages:       256 kB
Swap:                 64 kB
Locked:                4 kB
VmFlags: rd wr mr
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
Rss:                  12 kB
7ffd00000000-7ffd00001000 r--p 00000000 00:00 0    /with a blank (deleted)
"""
    # The kernel leaves a blank where there is no name.
    first, second, third = parse_smaps(text.replace("00:00 0\n", "00:00 0 \n").splitlines())
    assert (first.end - first.start, first.rss, first.swap, first.huge) == (
        2 << 20, 512 << 10, 64 << 10, 256 << 10)  # fmt: skip
    assert (first.locked, second.locked) == (4 << 10, 0)
    assert (second.name, second.rss) == ("[stack]", 12 << 10)
    assert third.name == "/with a blank (deleted)"


def test_each_region_has_its_part_of_the_map():
    regions = [
        {"base": base, "limit": 64 << 16, "first_span": first, "spans": spans, "map_offset": at}
        for base, first, spans, at in ((0x7000_0000, 4, 3, 4096), (0x1000_0000, 8, 2, 4099))
    ]
    figures = {"regions": regions, "huge_blocks": [], "own_memory": [], "sampled_slots": None}
    codes = np.array([0x80, 0x81, 0xFF, 7, 0xFE], dtype=np.uint8)
    found = ranges_of(stats_page.Snapshot(1, "x", 0, figures, codes, 4096))
    assert [(r.start, r.end, r.kind) for r in found] == [
        (0x1000_0000, 0x1008_0000, "tables"),
        (0x1008_0000, 0x1040_0000, "spans"),
        (0x7000_0000, 0x7004_0000, "tables"),
        (0x7004_0000, 0x7040_0000, "spans"),
    ]
    assert [list(r.spans) for r in found if r.kind == "spans"] == [[7, 0xFE], [0x80, 0x80, 0xFF]]


def test_shares_are_whole_and_add_up():
    assert divide(10, [1, 1, 1]) == [3, 3, 4]
    assert divide(7, [0, 0]) == [7, 0]
    assert sum(divide(1_000_003, [7, 11, 13, 17])) == 1_000_003


def test_never_allocated_blocks_are_missing_first():
    row = {
        "class": 0, "size": 16, "aligned": False, "slab_bytes": 1000, "live": 400, "cached": 100,
        "depots": 0, "free": 100, "never_allocated": 400, "rest": 0, "estimated_requested": None,
        "estimated_rounding": None,
    }  # fmt: skip
    one = split_classes([row], [600])[0]
    assert (one.live, one.cached, one.free, one.never_allocated) == (400, 100, 100, 0)
    assert one.requested is None
    # Less than what was ever allocated: live blocks too were not written to.
    assert split_classes([row], [300])[0].live == 200
    assert split_classes([row], [1000])[0].never_allocated == 400
    assert split_classes([row], [0]) == []


def test_groups_and_codes_fit():
    assert CLASSES == 0x80
    assert len(set(GROUPS)) == 7
    assert not set(OTHERS) & set(GROUPS)


def test_command_prints_draws_and_writes(tmp_path):
    picture, figures = tmp_path / "a.svg", tmp_path / "a.json"
    with fake_process() as fake:
        found = run("--plot", str(picture), "--json", str(figures), str(fake.pid))
    assert found.exit_code == 0, found.output
    for text in ("KB resident", "what the program asked for", "thread caches", "smaps_rollup Rss",
                 "dirty: freed", "Slabs by class", "hakmem's own"):  # fmt: skip
        assert text in found.stdout
    assert "\x1b" not in found.stdout
    assert "live" in picture.read_text()
    document = json.loads(figures.read_text())
    assert document["made_by"] == "hakmem explain"
    one = document["explanations"][0]
    assert one["explained"] == sum(part["bytes"] for part in one["parts"])
    assert one["difference"] == one["explained"] - one["rss"]
    assert {part["group"] for part in one["parts"]} == set(GROUPS)
    assert one["figures"]["stats_version"] == 3


def test_bar_is_as_long_as_the_parts():
    with fake_process() as fake:
        found = run(str(fake.pid))
    line = found.stdout.splitlines()[1]
    assert len(line) == 100
    assert 0.6 < line.count("·") / 100 < 0.95


def test_tables_go_to_a_file(tmp_path):
    out = tmp_path / "out.txt"
    with fake_process() as fake:
        found = run("--output", str(out), "--classes", "0", str(fake.pid))
    assert (found.exit_code, found.stdout) == (0, "")
    assert "KB resident" in out.read_text()
    assert "Slabs by class" not in out.read_text()


@pytest.mark.turns
def test_series_ends_with_the_process(tmp_path):
    figures, picture = tmp_path / "a.json", tmp_path / "a.svg"
    with fake_process() as fake:
        command = [sys.executable, "-c", "from hakmem.cli import main; main()", "explain"]
        command += ["--every", "0.2", "--json", str(figures), "--plot", str(picture), str(fake.pid)]
        ours = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        shown = 0
        for line in ours.stdout:
            shown += "resident, explained" in line
            if shown == 3:
                break
        fake.process.kill()
        fake.process.wait()
        _, said = ours.communicate(timeout=60)
    assert (ours.returncode, said) == (0, "")
    assert len(json.loads(figures.read_text())["explanations"]) >= 3
    assert picture.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("999999999",), 1, "there is no process 999999999"),
        (
            (str(os.getpid()),),
            1,
            "has no page (there is no hakmem in it): start it with HAKMEM_STATS_PAGE=1: HAKMEM_S",
        ),
        (("--plot", "a.txt", "1"), 2, "does not end in .svg or .png"),
        (("--set", "VERBOSE=1", "1"), 2, "a PID is of a process that runs: --set cannot be given"),
        (("1", "other"), 2, "one PID, and no more: other"),
        (("--every", "0", "1"), 2, "--every"),
        (("--json", "/nowhere/a.json", "1"), 2, "there is no folder /nowhere"),
        ((), 2, "PID|PROGRAM"),
        (("--", "no-such-program"), 127, "there is no program 'no-such-program'"),
    ],
)
def test_errors_are_one_line(arguments, status, told):
    found = run(*arguments)
    assert found.exit_code == status, found.output
    assert told in found.output
    assert "Traceback" not in found.output


@pytest.mark.turns
def test_other_users_process_is_not_permitted():
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    program = (
        "import os\nfrom hakmem.commands import explain\nos.setgid(65534); os.setuid(65534)\n"
        "explain.explain()"
    )
    with fake_process() as fake:
        command = [sys.executable, "-c", program, str(fake.pid)]
        ours = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ours.returncode == 1
    assert "not permitted" in ours.stderr
    assert "Traceback" not in ours.stderr


def lab(*arguments: str, **more) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from hakmem.cli import main; main()", "explain"]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, **more
    )


@pytest.mark.turns
def test_program_without_a_page_keeps_its_output():
    # The tests' stand-in library has no page.
    found = lab("--after", "0.2", "--", "/bin/sh", "-c", "echo out; sleep 4; echo more; exit 7")
    assert (found.returncode, found.stdout) == (7, "out\nmore\n")
    assert "has no page" in found.stderr
    assert lab("--after", "0.1", "--", "/bin/sleep", "0.5").returncode == 1


@pytest.mark.turns
def test_program_that_a_signal_ended_is_told_as_such():
    found = lab("--after", "20", "--", "/bin/sh", "-c", "kill -KILL $$")
    assert found.returncode == 128 + 9
    assert found.stderr.endswith("the program was killed by SIGKILL within 20 s\n")


@pytest.mark.turns
def test_program_that_is_too_fast_is_told():
    found = lab("--after", "20", "--", "/bin/cat", input="through")
    assert (found.returncode, found.stdout) == (1, "through")
    assert "ended within 20 s" in found.stderr
    assert "ended before it was explained: " in lab("--after", "0", "--", "/bin/true").stderr


def test_name_of_a_process_is_read_once_it_has_its_page(monkeypatch):
    """A child has the name of its parent until it becomes another program."""
    order = []
    for name in ("open_page", "name_of"):
        real = getattr(stats_page, name)
        monkeypatch.setattr(
            stats_page, name, lambda pid, n=name, r=real: (order.append(n), r(pid))[1]
        )
    with fake_process() as fake:
        stats_page.read(fake.pid)
    assert order == ["open_page", "name_of"]


def test_page_of_a_program_is_waited_for(monkeypatch, tmp_path):
    with fake_process() as fake:
        account = explain_process(fake.pid)
    answers = [UserError("it has no page"), UserError("its page is empty"), account]

    def answer(_pid: int) -> Account:
        told = answers.pop(0)
        if isinstance(told, UserError):
            raise told
        return told

    monkeypatch.setattr("hakmem.commands.explain.explain_process", answer)
    series = Series(tmp_path / "out", False, 0, None)
    with subprocess.Popen(["/bin/sleep", "20"]) as process:
        series.take_first(process)
        process.kill()
    assert series.accounts == [account]


@pytest.fixture(scope="module")
def resting(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("resting")
    (folder / "resting.c").write_text(RESTING)
    return compile_c(folder / "resting", [folder / "resting.c"], "-pthread", "-fno-builtin")


needs_library = pytest.mark.skipif(not LIBRARY.exists(), reason=f"no {LIBRARY}")


@needs_library
def test_real_program_at_rest_is_explained_within_two_percent(resting):
    environment = {**os.environ, "LD_PRELOAD": str(LIBRARY), "HAKMEM_STATS_PAGE": "1"}
    process = subprocess.Popen([resting], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        asked = int(process.stdout.readline())
        account = explain_process(process.pid)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert account.rss == pytest.approx(account.explained, rel=0.02)
    found = by_key(account)
    assert asked > 60 << 20
    live = found["requested"] + found["live_unknown"] + found["extents"] + found["huge"]
    assert live == pytest.approx(asked, rel=0.05)
    assert all(part.bytes >= 0 for part in account.parts)
    # The threads' stacks, the freed third, and what the threads' frees left on the way.
    assert found["stacks"] > 0
    assert found["slab_free"] + found["cached"] + found["depots"] + found["dirty"] > 1 << 20


@pytest.mark.turns
@needs_library
def test_real_program_is_started_and_explained(monkeypatch, resting, tmp_path):
    monkeypatch.setenv("HAKLAB_LIB", str(LIBRARY))
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    figures = tmp_path / "a.json"
    program = "import time\nx = [bytes(1000) for _ in range(10000)]\nprint('told'); time.sleep(2)"
    found = lab("--after", "0.5", "--every", "0.5", "--json", str(figures), "--", sys.executable,
                "-c", program)  # fmt: skip
    assert (found.returncode, found.stdout) == (0, "told\n"), found.stderr
    assert found.stderr.count("resident, explained") >= 2
    for one in json.loads(figures.read_text())["explanations"]:
        assert abs(one["difference"]) <= one["rss"] / 50


@pytest.mark.turns
@needs_library
def test_children_are_named(monkeypatch):
    monkeypatch.setenv("HAKLAB_LIB", str(LIBRARY))
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    found = lab("--after", "1", "--", "/usr/bin/timeout", "20", "/bin/sleep", "3")
    assert found.returncode == 0
    assert found.stderr.startswith("timeout (")
    assert "It has started others, to be explained by their PID: sleep (" in found.stderr


def test_span_is_what_the_helper_says():
    assert stats_page.SPAN == SPAN
