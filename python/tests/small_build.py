"""A small build for the tests: the launcher, one benchmark, the floor, and a stand-in library.

The stand-in serves no memory. It prints hakmem's counter line at exit, so that everything around
the proof can be tested without the allocator.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from hakmem.measuring.rotation import Contender, Metric, Rotation, new_rotation, run_rounds
from hakmem.running import in_place

BENCH = Path(__file__).resolve().parents[2] / "bench"

STAND_IN = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((destructor)) static void report(void) {
    if (getenv("HAKMEM_SS_OS_STATS") != NULL)
        fputs("[SS_OS_STATS] alloc=7 free=1 madvise=0\\n", stderr);
    if (getenv("HAKMEM_VERBOSE") != NULL)
        fputs("hakmem: HAKMEM_PROFILE=balanced\\n", stderr);
}
"""

# 40 MB in 400 blocks of one place, and then a rest of so many milliseconds as are named.
KEEPS = """\
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void *volatile kept[400];
__attribute__((noinline)) void *keeps_it(void) {
    void *p = malloc(100000);
    memset(p, 1, 100000);
    __asm__ volatile("" ::: "memory");
    return p;
}
int main(int argc, char **argv) {
    for (int i = 0; i < 400; i++) kept[i] = keeps_it();
    if (argc > 1) usleep(1000 * atoi(argv[1]));
    return 0;
}
"""


SHARE = 8  # as ROTATION_SHARE of tests/support/rotation.h


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """A folder for each session. Sessions run beside each other, and at its start each gives the
    folder that pytest shares among them back to its owner alone: another user, let in by
    `strangers`, would be shut out in the middle of a test."""
    if config.option.basetemp is None:
        folder = Path(tempfile.mkdtemp(prefix="hakmem-tests-"))
        config.option.basetemp = str(folder / "of")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With TEST_DAY (`make test`) all quick ones, and one in SHARE of those marked `turns`, others
    each day."""
    day = os.environ.get("TEST_DAY")
    if not day:
        return
    in_turn = [item for item in items if item.get_closest_marker("turns")]
    left = [item for turn, item in enumerate(in_turn, int(day)) if turn % SHARE != 0]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def compile_c(output: Path, sources: list[Path], *flags: str) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "the tests need a C compiler"
    output.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-O1", "-o", str(output), *map(str, sources), *flags]
    subprocess.run(command, check=True)
    return output


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """SIGINT as a terminal leaves it: what a shell starts in the background ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def outlives_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`hakmem run` becomes its program: where it is called in this process, a child of this one."""

    def in_a_child(*arguments: object) -> None:
        pid = os.fork()
        if pid == 0:
            in_place.become(*arguments)
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    monkeypatch.setattr("hakmem.commands.run.become", in_a_child)


def compile_build(folder: Path) -> None:
    stand_in = folder / "stand_in.c"
    stand_in.write_text(STAND_IN)
    compile_c(folder / "libhakmem.so", [stand_in], "-shared", "-fPIC")
    compile_c(folder / "bench" / "launch", [BENCH / "launch.c"])
    compile_c(folder / "bench" / "libfloor.so", [BENCH / "floor.c"], "-shared", "-fPIC")
    compile_c(
        folder / "bench" / "bench_random_mixed", [BENCH / "bench_random_mixed.c", BENCH / "bench.c"]
    )


def kept_build() -> Path | None:
    """Where the build of these sources is kept for other sessions; None: in no tree of ours."""
    if not (BENCH.parent / "build").is_dir():
        return None
    sources = [Path(__file__), *sorted(BENCH.glob("*.[ch]"))]
    made_of = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources))
    made_of.update(Path(shutil.which("gcc") or shutil.which("cc") or "/").read_bytes())
    return BENCH.parent / "build" / f"small-{made_of.hexdigest()[:16]}"


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, kept = tmp_path_factory.mktemp("build"), kept_build()
    if kept is None or not kept.is_dir():
        compile_build(folder)
        if kept is not None:
            with suppress(OSError), tempfile.TemporaryDirectory(dir=kept.parent) as beside:
                Path(shutil.copytree(folder, f"{beside}/small")).rename(kept)
    else:
        shutil.copytree(kept, folder, dirs_exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def use_build(
    build: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every test measures the small build, whatever is set outside, and keeps its files there."""
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path_factory.getbasetemp() / "results"))
    for name in ("HAKLAB_LIB", "HAKLAB_LAUNCH", "MIMALLOC_SO", "JEMALLOC_SO", "TCMALLOC_SO"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HAKLAB_BUILD", str(build))


# Counts calls as hakmem counts spans, knows a few options, and says of settings what hakmem says.
KNOWING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct { uint64_t alloc, free; } hak_os_stats;
int hakmem_option_set(const char *name, int64_t value) { return name == NULL || value < 0; }
void *malloc(size_t bytes) {
    static void *(*next)(size_t);
    if (next == NULL) *(void **)&next = dlsym(RTLD_NEXT, "malloc");
    hak_os_stats.alloc++;
    return next(bytes);
}
extern char **environ;
static const char *const known[] = {"HAKMEM_PROFILE", "HAKMEM_RSS_TARGET", "HAKMEM_VERBOSE",
                                    "HAKMEM_SS_OS_STATS"};
static void judge(const char *entry) {
    int length = (int)strcspn(entry, "=");
    const char *value = entry + length + 1;
    char pair[256];
    snprintf(pair, sizeof pair, "%.*s%s", length + 1 + 64, entry, strlen(value) > 64 ? "…" : "");
    int found = strncmp(entry, "HAKMEM_HEAP_PROFILE", 19) == 0;
    for (int i = 0; i < 4; i++)
        found |= strlen(known[i]) == (size_t)length && strncmp(known[i], entry, length) == 0;
    if (strncmp(entry, "HAKMEM_OLD=", 11) == 0)
        fprintf(stderr, "hakmem: %.*s is retired; in its place: nothing\n", length, entry);
    else if (!found)
        fprintf(stderr, "hakmem: %.*s is not an option of this version: ignored\n", length, entry);
    else if (length == 14 && strcmp(value, "hardened") == 0)
        fprintf(stderr, "hakmem: %s needs libhakmem-hardened.so: "
                "this library behaves as balanced\n", entry);
    else if (length == 14 && strcmp(value, "lean") != 0 && strcmp(value, "speed") != 0)
        fprintf(stderr, "hakmem: %s is not one of speed, lean: using speed\n", pair);
    else if (length == 17 && strcmp(value, "64M") != 0)
        fprintf(stderr, "hakmem: %s is not a size such as 64M: using auto\n", pair);
}
__attribute__((constructor)) static void start(void) {
    for (char **e = environ; *e != NULL; e++)
        if (strncmp(*e, "HAKMEM_", 7) == 0) judge(*e);
    if (getenv("HAKMEM_VERBOSE") != NULL)
        for (int i = 0; i < 4; i++)
            fprintf(stderr, "hakmem: %s=%s\n", known[i], getenv(known[i]) ? getenv(known[i]) : "0");
    if (getenv("TROUBLED") != NULL) fputs("hakmem: HAKMEM_STATS: not written\n", stderr);
}
__attribute__((destructor)) static void report(void) {
    if (getenv("HAKMEM_SS_OS_STATS") != NULL)
        fprintf(stderr, "[SS_OS_STATS] alloc=%d free=0 madvise=0\n", (int)hak_os_stats.alloc);
}
"""


@pytest.fixture
def knowing(build: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that judges its settings as hakmem does, taken for hakmem."""
    library = build / "libknowing.so"
    if not library.exists():
        source = build / "knowing.c"
        source.write_text(KNOWING)
        compile_c(library, [source], "-shared", "-fPIC")
    monkeypatch.setenv("HAKLAB_LIB", str(library))
    return library


def assert_in_order(text: str, *parts: str) -> None:
    """Each part stands behind the one before it."""
    at = 0
    for part in parts:
        at = text.find(part, at)
        assert at >= 0, f"'{part}' is not in it, or not after the parts before"


def run_rotation(
    rows: Sequence[Contender],
    metric: Metric,
    rounds: int,
    seed: int,
    cpus: str | None = None,
    progress: Callable[[str], None] = lambda _name: None,
) -> Rotation:
    """A rotation run to its end, with no log of its rounds."""
    rotation = new_rotation(rows, metric, seed, cpus)
    run_rounds(rotation, rounds, progress)
    return rotation
