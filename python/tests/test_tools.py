"""Programs that a tool checks keep the tool's malloc: `hakmem run` starts them without hakmem."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_build import compile_c

from hakmem.errors import REFUSED
from hakmem.running.programs import examine

USE_AFTER_FREE = """
#include <stdlib.h>
int main(void) {
    char *volatile block = malloc(100);
    free(block);
    volatile char seen = block[3];
    return seen * 0;
}
"""
BUILDS = {
    "asan": ("AddressSanitizer", "-fsanitize=address"),
    "asan_static": ("a sanitizer", "-fsanitize=address", "-static-libasan"),
    "tsan": ("ThreadSanitizer", "-fsanitize=thread"),
    "tsan_static": ("a sanitizer", "-fsanitize=thread", "-static-libtsan"),
    "lsan": ("LeakSanitizer", "-fsanitize=leak"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tools")
    (folder / "bug.c").write_text(USE_AFTER_FREE)
    return folder


def built(folder: Path, name: str, *flags: str) -> str:
    try:
        return str(compile_c(folder / name, [folder / "bug.c"], *flags))
    except subprocess.CalledProcessError:
        pytest.skip(f"no {flags[0]} here")


def run(build: Path, *command: str) -> subprocess.CompletedProcess:
    start = [sys.executable, "-c", "from hakmem.cli import main; main()", "run", *command]
    return subprocess.run(start, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("name", BUILDS)
def test_a_sanitizer_is_told_by_the_program(folder, name):
    sanitizer, *flags = BUILDS[name]
    path = built(folder, name, *flags)
    found = examine([path])
    assert found.keeps_malloc
    said = f"{path} is built with {sanitizer}, which has a malloc of its own: hakmem is not loaded"
    assert found.obstacle == said


def test_a_sanitizer_without_a_malloc_is_served(folder):
    found = examine([built(folder, "ubsan", "-fsanitize=undefined")])
    assert (found.obstacle, found.keeps_malloc) == ("", False)


@pytest.mark.turns
@pytest.mark.parametrize("name", ["asan", "asan_static"])
def test_the_sanitizer_works(folder, build, name):
    path = built(folder, name, *BUILDS[name][1:])
    found = run(build, "--", path)
    assert "heap-use-after-free" in found.stderr
    assert found.stderr.count("hakmem run:") == 1
    assert found.stderr.startswith("hakmem run: it cannot be served: ")
    assert run(build, "--strict", "--", path).returncode == REFUSED


@pytest.mark.turns
@pytest.mark.skipif(not shutil.which("valgrind"), reason="no valgrind")
def test_valgrind_works(folder, build):
    path = built(folder, "plain", "-g")
    found = run(build, "--", "valgrind", "--error-exitcode=9", path)
    assert found.returncode == 9
    assert "inside a block of size 100 free'd" in found.stderr
    said = "checks it by memcheck, which has a malloc of its own: hakmem is not loaded"
    assert [said in line for line in found.stderr.splitlines() if "hakmem" in line] == [True]


@pytest.mark.skipif(not shutil.which("valgrind"), reason="no valgrind")
@pytest.mark.parametrize(
    ("options", "keeps"),
    [
        (["--tool=massif"], True),
        (["-q", "--tool=callgrind"], False),
        (["--tool=callgrind", "--tool=dhat"], True),
        (["-q"], True),
    ],
)
def test_the_tool_of_valgrind_counts(options, keeps):
    # What stands behind the program is its own.
    assert examine(["valgrind", *options, "true", "--tool=callgrind"]).keeps_malloc == keeps
