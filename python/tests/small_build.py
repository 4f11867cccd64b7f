"""A small build for the tests: the launcher, one benchmark, the floor, and a stand-in library.

The stand-in serves no memory. It prints hakmem's counter line at exit, so that everything around
the proof can be tested without the allocator.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

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


def compile_c(output: Path, sources: list[Path], *flags: str) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "the tests need a C compiler"
    output.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-O1", "-o", str(output), *map(str, sources), *flags]
    subprocess.run(command, check=True)
    return output


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build")
    stand_in = folder / "stand_in.c"
    stand_in.write_text(STAND_IN)
    compile_c(folder / "libhakmem.so", [stand_in], "-shared", "-fPIC")
    compile_c(folder / "bench" / "launch", [BENCH / "launch.c"])
    compile_c(folder / "bench" / "libfloor.so", [BENCH / "floor.c"], "-shared", "-fPIC")
    compile_c(
        folder / "bench" / "bench_random_mixed", [BENCH / "bench_random_mixed.c", BENCH / "bench.c"]
    )
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
