"""Recorder, trace file and replay, on programs whose calls are known."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_build import BENCH, compile_c

from hakmem.allocators.peers import Allocator
from hakmem.cli import main
from hakmem.commands.record import recorded_traces, recording_environment, replacing
from hakmem.commands.replay import PASSES_MAX, enough_passes, heap_only
from hakmem.errors import UserError
from hakmem.running.launching import run_once
from hakmem.traces.trace_summary import size_bands, summarise_trace

HEADER_BYTES, CHUNK_BYTES = 4096, 65536
MALLOC, CALLOC, ALIGNED, FREE, REALLOC, THREAD = range(1, 7)

# Sizes that nothing else in the process asks for.
KNOWN = """
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static void *kept[50];
static void *other(void *unused) {
    for (int i = 0; i < 20; i++) free(kept[i]);
    return unused;
}
static void forked(void) {
    for (int i = 0; i < 7; i++) free(malloc(200001));
    free(kept[49]);
    _exit(0);
}
int main(int argc, char **argv) {
    void *p;
    pthread_t thread;
    for (int i = 0; i < 50; i++) memset(kept[i] = malloc(100001), 1, 100001);
    if (posix_memalign(&p, 4096, 50001) != 0 || (size_t)p % 4096 != 0) return 1;
    free(p);
    p = calloc(3, 70001);
    free(realloc(realloc(p, 30001), 60001));
    p = memalign(64, 40001);
    free(p);
    pthread_create(&thread, NULL, other, NULL);
    pthread_join(thread, NULL);
    if (argc > 1) {
        pid_t child = fork();
        if (child == 0) forked();
        waitpid(child, NULL, 0);
    }
    if (argc > 2) execv(argv[0], (char *[]){argv[0], NULL});
    if (getenv("WAIT_FOR_KILL") != NULL) {
        write(1, "ready", 5);
        pause();
    }
    _exit(0);
}
"""

# Says when it is asked for one of the sizes above.
BELOW = """
#include <stddef.h>
#include <unistd.h>
extern void *__libc_malloc(size_t);
void *malloc(size_t size) {
    if (size == 100001 && write(1, ".", 1) != 1) return NULL;
    return __libc_malloc(size);
}
"""


@pytest.fixture(scope="session")
def trace_build(build: Path) -> Path:
    """The small build, with recorder, replayer and summary in it."""
    trace, latency, bench = BENCH / "trace", BENCH / "latency", build / "bench"
    reader = [trace / "trace_read.c", trace / "trace_blocks.c", BENCH / "bench.c"]
    include = (f"-I{BENCH}", f"-I{latency}", "-pthread")
    parts = [trace / f"{name}.c" for name in ("record", "record_new", "record_lane", "record_file")]
    compile_c(bench / "librecord.so", parts, "-shared", "-fPIC", "-fvisibility=hidden",
              "-fno-builtin", "-std=gnu17")  # fmt: skip
    compile_c(bench / "bench_replay", [trace / "bench_replay.c", trace / "pace.c", *reader],
              "-fno-builtin", *include)  # fmt: skip
    compile_c(bench / "trace_summary",
              [trace / "trace_summary.c", latency / "histogram.c", *reader], *include)  # fmt: skip
    return build


@pytest.fixture(scope="session")
def known(trace_build: Path) -> Path:
    source = trace_build / "known.c"
    source.write_text(KNOWN)
    return compile_c(trace_build / "known", [source], "-pthread", "-fno-builtin")


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def recorded(path: Path, *command: str) -> None:
    ran = run("record", "-o", str(path), "--", *command)
    assert ran.exit_code == 0, ran.output


def allocations_of(summary, size: int) -> int:
    return sum(n for (low, high), n in summary.sizes.counts.items() if low <= size <= high)


def varint(value: int) -> bytes:
    found = b""
    while value >= 0x80:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def folded(difference: int) -> bytes:
    return varint(2 * difference if difference >= 0 else -2 * difference - 1)


def first(kind: int, step: int) -> bytes:
    return bytes([kind | (step - 1) << 3]) if step < 32 else bytes([kind | 31 << 3]) + varint(
        step - 32
    )  # fmt: skip


def header(version: int = 1, order: int = 0x01020304) -> bytes:
    head = struct.pack("=8sIIIIQQ", b"HAKTRACE", order, version, HEADER_BYTES, CHUNK_BYTES, 77, 0)
    text = b"/bin/known".ljust(1024, b"\0") + b"known\0-x\0".ljust(2048, b"\0")
    return (head + text).ljust(HEADER_BYTES, b"\0")


def chunk(lane: int, sequence: int, events: bytes, stamp: int = 0, address: int = 0) -> bytes:
    head = struct.pack("=IIIIQQ", 0x4B4E4843, lane, sequence, 0, stamp, address)
    return (head + events).ljust(CHUNK_BYTES, b"\0")


def two_lanes() -> bytes:
    """Lane 0 allocates, lane 1 frees what the first allocated, and more."""
    one = (
        bytes([THREAD]) + varint(1)
        + first(MALLOC, 1) + varint(100) + folded(1000)      # stamp 1, address 1000
        + first(ALIGNED, 1) + bytes([6]) + varint(64) + folded(-200)  # stamp 2, address 800
        + first(REALLOC, 38) + varint(2) + varint(5000) + folded(0) + folded(400)  # 40 and 43
        + first(MALLOC, 1) + varint(0) + folded(-200)        # stamp 44, address 1000 again
    )  # fmt: skip
    two = (
        bytes([THREAD]) + varint(2)
        + first(FREE, 3) + folded(1000)                      # stamp 3: lane 0's first block
        + first(CALLOC, 38) + varint(300) + folded(-200)     # stamp 41: address 800, left
        + first(FREE, 1) + folded(7777)                      # stamp 42: never allocated here
    )  # fmt: skip
    return header() + chunk(0, 0, one) + chunk(1, 0, two)


@pytest.mark.turns
def test_known_bytes_are_decoded_in_the_order_of_the_stamps(trace_build, tmp_path):
    path = tmp_path / "known.trace"
    path.write_bytes(two_lanes())
    found = summarise_trace(path)
    assert found.executable == "/bin/known"
    assert found.command == "known -x"
    expected = {"process": 77, "forked": 0, "malloc": 2, "aligned": 1, "calloc": 1, "realloc": 1,
                "free": 1, "allocations": 5, "frees": 2, "other_thread_frees": 1, "threads": 2,
                "lanes": 2, "unknown_frees": 1, "unknown_reallocs": 0, "missing_frees": 0,
                "truncated": 0, "left_blocks": 3, "left_bytes": 5300, "peak_bytes": 5300,
                "peak_blocks": 3, "total_bytes": 5464}  # fmt: skip
    assert {name: found.figures[name] for name in expected} == expected
    assert size_bands(found.sizes) == {0: 1, 64: 1, 128: 1, 512: 1, 8192: 1}
    # The first block saw one other allocation, the aligned one the calloc before its realloc.
    assert found.lifetimes.counts == {(1, 1): 2}
    assert "1 frees of blocks" in found.remarks()[0]


def test_replay_of_known_bytes(trace_build, tmp_path):
    path = tmp_path / "known.trace"
    path.write_bytes(two_lanes())
    found = run_once([str(trace_build / "bench" / "bench_replay"), str(path), "3"])
    assert found.problem == "", found.stderr
    assert "[events=6 threads=2 passes=3]" in found.stdout
    assert "left_blocks=3 " in found.stdout
    assert "unknown_frees=1 " in found.stdout


def test_lane_goes_on_in_its_next_chunk(trace_build, tmp_path):
    path = tmp_path / "long.trace"
    begin = chunk(0, 0, first(MALLOC, 1) + varint(10) + folded(500))
    path.write_bytes(header() + begin + chunk(0, 1, first(FREE, 1) + folded(0), 1, 500))
    found = summarise_trace(path)
    assert (found.figures["malloc"], found.figures["free"], found.figures["frees"]) == (1, 1, 1)


def test_address_given_out_again_without_a_free_was_freed(trace_build, tmp_path):
    path = tmp_path / "again.trace"
    event = first(MALLOC, 1) + varint(10)
    path.write_bytes(header() + chunk(0, 0, event + folded(500) + event + folded(0)))
    found = summarise_trace(path)
    assert (found.figures["missing_frees"], found.figures["peak_blocks"]) == (1, 1)


def test_replay_keeps_the_allocating_thread_near_the_freeing_one(trace_build, tmp_path):
    """60 MB in blocks that live for one call each, freed by another thread."""
    count = 15000
    allocating = (first(MALLOC, 2) + varint(4000) + folded(0)) * count
    freeing = (first(FREE, 2) + folded(0)) * count
    path = tmp_path / "far.trace"
    both = chunk(0, 0, bytes([THREAD, 1]) + allocating, 0, 500)
    path.write_bytes(header() + both + chunk(1, 0, bytes([THREAD, 2]) + freeing, 1, 500))
    summary = summarise_trace(path)
    assert (summary.figures["peak_blocks"], summary.figures["other_thread_frees"]) == (1, count)
    ran = run_once([str(trace_build / "bench" / "bench_replay"), str(path)])
    assert heap_only(ran).problem == "", ran.stderr
    assert heap_only(ran).peak_rss_kb < 12_000


def damaged(case: str) -> bytes:
    good = two_lanes()
    return {
        "no trace": b"\x7fELF" + bytes(5000),
        "short": good[:100],
        "empty": b"",
        "version": header(version=9),
        "order": header(order=0x04030201),
        "chunk": header() + b"junk" * (CHUNK_BYTES // 4),
        "event": header() + chunk(0, 0, bytes([7])),
        "number": header() + chunk(0, 0, first(MALLOC, 1) + b"\xff" * 20),
        "sequence": header() + chunk(0, 1, first(MALLOC, 1) + varint(1) + folded(5)),
        "null": header() + chunk(0, 0, first(MALLOC, 1) + varint(1) + folded(0)),
    }[case]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("no trace", "is no trace of 'hakmem record'"),
        ("short", "is no trace: 100 bytes"),
        ("empty", "is no trace: 0 bytes"),
        ("version", "format version 9"),
        ("order", "another byte order"),
        ("chunk", "chunk 0 is damaged"),
        ("event", "damaged event at byte 32"),
        ("number", "damaged event at byte 32"),
        ("sequence", "out of its lane's order"),
        ("null", "address 0"),
    ],
)
def test_what_is_no_trace_is_refused_with_one_line(trace_build, tmp_path, case, message):
    path = tmp_path / "bad.trace"
    path.write_bytes(damaged(case))
    for program in ("bench_replay", "trace_summary"):
        found = run_once([str(trace_build / "bench" / program), str(path)])
        assert found.exit_status == 2
        assert message in found.stderr
        assert found.stderr.count("\n") == 1
    ran = run("replay", str(path))
    assert (ran.exit_code, message in ran.output) == (2, True)


def test_file_that_ends_early_is_replayed_up_to_its_end(trace_build, tmp_path):
    good = two_lanes()
    path = tmp_path / "cut.trace"
    # Within the last event of lane 1, in the middle of its address.
    path.write_bytes(good[: good.index(folded(7777)) + 1])
    found = summarise_trace(path)
    assert (found.figures["truncated"], found.figures["unknown_frees"]) == (1, 0)
    assert found.figures["calloc"] == 1
    ran = run_once([str(trace_build / "bench" / "bench_replay"), str(path)])
    assert ran.problem == "", ran.stderr
    assert "events=6 " in ran.stdout
    assert "truncated=1" in ran.stdout


def test_trace_without_events_is_no_replay(trace_build, tmp_path):
    path = tmp_path / "empty.trace"
    path.write_bytes(header())
    ran = run("replay", str(path))
    assert (ran.exit_code, "holds no events" in ran.output) == (2, True)


def test_every_known_call_is_recorded_and_replayed(trace_build, known, tmp_path):
    path = tmp_path / "k.trace"
    recorded(path, str(known))
    found = summarise_trace(path)
    expected = {100001: 50, 50001: 1, 210003: 1, 30001: 1, 60001: 1, 40001: 1}
    assert {size: allocations_of(found, size) for size in expected} == expected
    figures = found.figures
    assert (figures["realloc"], figures["aligned"], figures["threads"]) == (2, 2, 2)
    assert figures["other_thread_frees"] >= 20
    assert figures["left_bytes"] >= 30 * 100001
    assert (figures["unknown_frees"], figures["missing_frees"]) == (0, 0)
    ran = run_once([str(trace_build / "bench" / "bench_replay"), str(path), "2", "16"])
    assert ran.problem == "", ran.stderr
    assert f"events={found.calls} threads={found.lanes} passes=2" in ran.stdout
    assert f"left_blocks={figures['left_blocks']} " in ran.stdout


def test_traces_are_listed_as_json(known, tmp_path):
    path, out = tmp_path / "j.trace", tmp_path / "j.json"
    ran = run("record", "-o", str(path), "--json", str(out), "--", str(known))
    assert ran.exit_code == 0, ran.output
    document = json.loads(out.read_text())
    assert [trace["trace"] for trace in document["traces"]] == [str(path)]
    assert document["traces"][0]["calls"] == summarise_trace(path).calls


def test_forked_and_executed_processes_have_their_own_files(known, tmp_path):
    path = tmp_path / "f.trace"
    recorded(path, str(known), "fork", "exec")
    others = [summarise_trace(p) for p in tmp_path.iterdir() if p != path]
    assert len(others) == 2
    (child,) = [s for s in others if s.figures["forked"]]
    assert allocations_of(child, 200001) == 7
    assert allocations_of(child, 100001) == 0
    assert child.figures["unknown_frees"] == 1
    (after_exec,) = [s for s in others if not s.figures["forked"]]
    assert allocations_of(after_exec, 100001) == 50
    assert allocations_of(summarise_trace(path), 200001) == 0


def test_what_was_recorded_survives_sigkill(known, tmp_path):
    path = tmp_path / "killed.trace"
    environment = recording_environment(path, Allocator("glibc"), 100) | {"WAIT_FOR_KILL": "1"}
    with subprocess.Popen([str(known)], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout.read(5) == b"ready"
        process.kill()
    found = summarise_trace(path)
    assert allocations_of(found, 100001) == 50
    assert found.figures["realloc"] == 2


def test_recorder_on_top_of_another_library(known, tmp_path):
    source = tmp_path / "below.c"
    source.write_text(BELOW)
    library = compile_c(tmp_path / "libbelow.so", [source], "-shared", "-fPIC", "-fno-builtin")
    path = tmp_path / "on.trace"
    environment = recording_environment(path, Allocator("below", library), 100)
    ran = subprocess.run([str(known)], env=environment, capture_output=True, check=True)
    assert ran.stdout == b"." * 50
    assert allocations_of(summarise_trace(path), 100001) == 50


def test_file_stops_at_its_limit(known, tmp_path):
    path = tmp_path / "small.trace"
    environment = recording_environment(path, Allocator("glibc"), 1)
    script = "print(sum(len(bytes(600 + i % 9)) for i in range(200000)))"
    program = [sys.executable, "-I", "-S", "-c", script]
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0
    biggest = max(p.stat().st_size for p in tmp_path.iterdir())
    assert biggest <= 1 << 20
    assert ran.stderr.count("has reached its limit") == 1


def test_operator_new_is_recorded(trace_build, tmp_path):
    source = tmp_path / "new.cc"
    source.write_text(
        "#include <new>\n#include <cstdio>\n"
        "int main() { for (int i = 0; i < 9; i++) delete[] new char[30001];\n"
        "struct alignas(128) wide { char c[50048]; }; delete new wide;\n"
        'try { new char[1ul << 60]; } catch (const std::bad_alloc &) { std::puts("caught"); }\n'
        "return new (std::nothrow) char[1ul << 60] != nullptr; }\n"
    )
    program = compile_c(tmp_path / "new", [source], "-std=c++17", "-lstdc++", "-O0", "-w")
    path = tmp_path / "new.trace"
    recorded(path, str(program))
    found = summarise_trace(path)
    assert (allocations_of(found, 30001), found.figures["aligned"]) == (9, 1)


def test_exit_status_of_the_program_is_kept(trace_build, tmp_path):
    path = tmp_path / "s.trace"
    assert run("record", "-o", str(path), "--", "/bin/sh", "-c", "exit 7").exit_code == 7
    ran = run("record", "-o", str(path), "--", "/bin/sh", "-c", "kill -TERM $$")
    assert ran.exit_code == 128 + signal.SIGTERM


def test_static_program_is_refused(trace_build, tmp_path):
    ran = run("record", "-o", str(tmp_path / "x"), "--", str(trace_build / "static"))
    assert ran.exit_code == 127
    source = tmp_path / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    program = compile_c(tmp_path / "static", [source], "-static")
    ran = run("record", "-o", str(tmp_path / "x"), "--", str(program))
    assert (ran.exit_code, "statically linked" in ran.output) == (125, True)
    assert not (tmp_path / "x").exists()


def test_program_that_asks_for_nothing_is_an_error(trace_build, tmp_path):
    source = tmp_path / "nothing.c"
    source.write_text("#include <unistd.h>\nint main(void) { _exit(0); }\n")
    program = compile_c(tmp_path / "nothing", [source])
    ran = run("record", "-o", str(tmp_path / "n.trace"), "--", str(program))
    assert (ran.exit_code, "saw no call" in ran.output) == (1, True)


def test_empty_file_is_no_trace_and_gives_way(tmp_path):
    path = tmp_path / "t"
    path.touch()
    with pytest.raises(UserError, match="t could not be written, the recorder says why"):
        recorded_traces(path)
    with pytest.raises(UserError, match=r"nothing was recorded: no .*was not loaded"):
        recorded_traces(tmp_path / "none")
    with replacing(path):
        # The recorder opens its file only where there is none.
        assert not path.exists()
        path.write_bytes(header())
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_two_commands_do_not_record_to_one_trace(trace_build, tmp_path):
    path, link = tmp_path / "t", tmp_path / "link"
    link.symlink_to(path)
    with replacing(path):
        path.write_bytes(header())
        ran = run("record", "-o", str(link), "--", "/bin/true")
        told = f"Error: --output: {path} is being recorded by another command; nothing was started"
        assert (ran.exit_code, ran.output) == (2, told + "\n")
    assert path.read_bytes() == header()
    recorded(path, "/bin/ls")


def test_only_traces_are_overwritten(tmp_path):
    path = tmp_path / "t"
    path.write_bytes(header())
    (tmp_path / "t.55").write_bytes(header())
    (tmp_path / "t.gz").write_text("mine")
    (tmp_path / "t.66").write_text("mine too")
    (tmp_path / "t.77").write_bytes(header())
    with replacing(path):
        kept = {p.name for p in tmp_path.iterdir() if ".old-" not in p.name}
        assert kept == {"t.66", "t.gz"}
        path.write_bytes(header())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t", "t.66", "t.gz"]
    path.write_text("a letter")
    (tmp_path / "t.55").write_bytes(header())
    with pytest.raises(UserError, match="is no trace of hakmem: not replaced"), replacing(path):
        pass
    assert path.read_text() == "a letter"
    assert (tmp_path / "t.55").exists()


@pytest.mark.parametrize("fails", ["allocates nothing", "cannot be started", "killed early"])
def test_a_recording_that_fails_leaves_the_old_trace(trace_build, tmp_path, fails):
    program = tmp_path / "program"
    if fails == "cannot be started":
        program.write_text("#!/no/such/interpreter\n")
        program.chmod(0o755)
    else:
        end = "_exit(0)" if fails == "allocates nothing" else "kill(getpid(), SIGKILL)"
        source = tmp_path / "program.c"
        source.write_text(
            f"#include <signal.h>\n#include <unistd.h>\nint main(void) {{ {end}; return 0; }}\n"
        )
        compile_c(program, [source])
    old = {"t": header() + b"first", "t.55": header() + b"another"}
    folder = tmp_path / "traces"
    folder.mkdir()
    for name, data in old.items():
        (folder / name).write_bytes(data)
    ran = run("record", "-o", str(folder / "t"), "--", str(program))
    assert ran.exit_code not in (0, None)
    assert "Traceback" not in ran.output
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == old


def test_recorded_program_reads_the_given_input(known, tmp_path):
    given = tmp_path / "in"
    given.write_text("seen\n")
    reads = 'read line; test "$line" = seen'
    ran = run("record", "--stdin", str(given), "-o", str(tmp_path / "t"), "--", "/bin/sh", "-c",
              reads)  # fmt: skip
    assert ran.exit_code == 0, ran.output


@pytest.mark.turns
def test_replay_command_prints_table_and_document(known, tmp_path):
    path, out = tmp_path / "k.trace", tmp_path / "k.json"
    recorded(path, str(known))
    ran = run(
        "replay", "--pairs", "5", "--with", "glibc", "--seed", "3", "--json", str(out), str(path)
    )
    assert ran.exit_code == 0, ran.output
    assert " passes a run" in ran.output
    document = json.loads(out.read_text())
    assert [one["title"] for one in document["measures"]] == [
        "Throughput",
        "Peak RSS",
        "Page faults",
    ]
    assert [len(row["values"]) for row in document["measures"][0]["rows"]] == [5]
    assert document["trace"]["figures"]["aligned"] == 2


@pytest.mark.turns
def test_replayed_peak_is_that_of_the_heap(trace_build, tmp_path):
    """500 blocks of 100,001 bytes are touched at both ends: 1,000 pages, or half where neighbours
    share one. The kernel counts resident pages by processor, and may be 32 off for each."""
    source, path, out = tmp_path / "many.c", tmp_path / "m.trace", tmp_path / "m.json"
    source.write_text(
        "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\nvoid *kept[500];\n"
        "int main(void) {\n"
        "    for (int i = 0; i < 500; i++) memset(kept[i] = malloc(100001), 1, 100001);\n"
        "    _exit(0);\n}\n"
    )
    recorded(path, str(compile_c(tmp_path / "many", [source])))
    ran = run("replay", "--pairs", "5", "--with", "glibc", "--json", str(out), str(path))
    assert ran.exit_code == 0, ran.output
    (peak,) = json.loads(out.read_text())["measures"][1]["rows"]
    assert 1.7 < peak["middle"]["median"] < 60


def test_summary_of_a_real_program(trace_build, tmp_path):
    path, out = tmp_path / "p.trace", tmp_path / "p.json"
    recorded(path, "/bin/sh", "-c", "x=$(echo a b c); for i in 1 2 3; do y=$i$x; done")
    ran = run("replay", "--summary", "--json", str(out), str(path))
    assert ran.exit_code == 0, ran.output
    document = json.loads(out.read_text())
    assert document["calls"] > 10
    assert sum(document["size_bands"].values()) == document["figures"]["allocations"]
    assert document["bytes_per_call"] < 12


def test_figures_are_the_heaps_own(build):
    text = "Throughput = 1 ops/s [x] time=0.004s\\nreplay: faults=12 left_blocks=0 heap_peak_kb=345"
    outcome = run_once(["/bin/sh", "-c", f"printf '{text}'"])
    assert (heap_only(outcome).peak_rss_kb, heap_only(outcome).minor_faults) == (345, 12)
    assert enough_passes(outcome) == 25
    unknown = run_once(["/bin/sh", "-c", "echo faults=12"])
    assert "peak" in heap_only(unknown).problem
    nothing = run_once(["/bin/sh", "-c", "echo time=0.000s"])
    assert enough_passes(nothing) <= PASSES_MAX


@pytest.mark.turns
def test_many_threads_and_forks_at_once(trace_build, tmp_path):
    """Every file of a program that forks while its threads allocate can be replayed."""
    source = tmp_path / "storm.c"
    source.write_text(
        "#include <pthread.h>\n#include <stdlib.h>\n#include <sys/wait.h>\n#include <unistd.h>\n"
        "static void *_Atomic slots[64];\n"
        "static void *work(void *seed) { unsigned s = (unsigned)(size_t)seed;\n"
        "  for (int i = 0; i < 20000; i++) { void *p = malloc(1 + rand_r(&s) % 999);\n"
        "    free(__atomic_exchange_n(&slots[rand_r(&s) % 64], p, __ATOMIC_ACQ_REL)); }\n"
        "  return NULL; }\n"
        "int main(void) { pthread_t t[4];\n"
        "  for (size_t i = 0; i < 4; i++) pthread_create(&t[i], NULL, work, (void *)(i + 1));\n"
        "  for (int i = 0; i < 8; i++) { if (fork() == 0) { work((void *)9); _exit(0); } }\n"
        "  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);\n"
        "  while (wait(NULL) > 0) { }\n  return 0; }\n"
    )
    program = compile_c(tmp_path / "storm", [source], "-pthread", "-fno-builtin")
    path = tmp_path / "storm.trace"
    recorded(path, str(program))
    traces = [summarise_trace(p) for p in tmp_path.glob("storm.trace*")]
    assert len(traces) == 9
    parent = next(s for s in traces if not s.figures["forked"])
    assert parent.figures["malloc"] >= 80000
    for summary in traces:
        assert summary.figures["missing_frees"] == 0
        ran = run_once([str(trace_build / "bench" / "bench_replay"), str(summary.path), "1", "64"])
        assert ran.problem == "", ran.stderr
    assert parent.figures["unknown_frees"] == 0
    assert path.stat().st_size % CHUNK_BYTES == HEADER_BYTES


SWAPPED = """
import os, sys
folder, other, how = sys.argv[1:]
def allocate():
    return sum(len(bytes(600 + i % 9)) for i in range(200_000))
allocate()
if how == "folder":
    os.rename(folder, folder + ".old")
    os.symlink(other, folder)
else:
    os.unlink(folder + "/a.trace")
    os.link(other + "/a.trace", folder + "/a.trace")
allocate()
"""


@pytest.mark.parametrize("how", ["folder", "file"])
def test_what_takes_the_traces_place_meanwhile_is_not_written(trace_build, tmp_path, how):
    """The folder may be another user's, who may put a link in its place at any moment."""
    folder, other = tmp_path / "folder", tmp_path / "other"
    for each in (folder, other):
        each.mkdir()
    (other / "a.trace").write_bytes(b"mine")
    environment = recording_environment(folder / "a.trace", Allocator("glibc"), 100)
    program = [sys.executable, "-I", "-S", "-c", SWAPPED, str(folder), str(other), how]
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    assert ran.stderr.count("recording stops here") == 1
    assert (other / "a.trace").read_bytes() == b"mine"


def test_trace_is_not_made_behind_a_link_in_its_path(trace_build, tmp_path):
    """`hakmem record` names a path without links: this one was put there since."""
    (tmp_path / "other").mkdir()
    (tmp_path / "folder").symlink_to(tmp_path / "other")
    environment = recording_environment(tmp_path / "folder" / "a.trace", Allocator("glibc"), 100)
    ran = subprocess.run(["/bin/ls", "/"], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0
    assert "hakmem record: process" in ran.stderr
    assert list((tmp_path / "other").iterdir()) == []
