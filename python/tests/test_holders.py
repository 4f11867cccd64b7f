"""Programs that have a hakmem of their own, linked in or in a library: one to a process, and
figures under another allocator's name are that hakmem's."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from small_build import KEEPS, compile_c
from test_top import COMMAND as TOP

from hakmem.commands.run import preloading
from hakmem.profiles.heap_profile import read_file
from hakmem.profiles.symbols import Symboliser
from hakmem.running import programs

pytestmark = pytest.mark.turns

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
COMMAND = TOP[:-1]
NEEDED = ("libhakmem.so", "libhakmem-hardened.so", "libhakmem.a", "libhakmem_core.a")
pytestmark = [
    pytestmark,
    pytest.mark.skipif(
        not all((BUILD / name).is_file() for name in NEEDED), reason="the library is not built"
    ),
]
HELD_BYTES = 40_000_000
HOLDERS = ("linked", "own_names", "static", "by_library")


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("holders")
    source = folder / "keeps.c"
    source.write_text(KEEPS)
    flags = ("-g", "-fno-builtin")
    archive = ("-Wl,--undefined=malloc", str(BUILD / "libhakmem.a"), "-pthread")
    compile_c(folder / "plain", [source], *flags)
    compile_c(folder / "linked", [source], *flags, *archive)
    compile_c(folder / "static", [source], *flags, "-static", *archive)
    compile_c(folder / "walked", [source], *flags, "-static", "-Wl,--eh-frame-hdr", *archive)
    core = str(BUILD / "libhakmem_core.a")
    compile_c(folder / "own_names", [source], *flags, "-Dmalloc=hakmem_malloc", core, "-pthread")
    hardened = str(BUILD / "libhakmem-hardened.so")
    compile_c(folder / "by_library", [source], *flags, "-Wl,--no-as-needed", hardened,
              f"-Wl,-rpath,{BUILD}")  # fmt: skip
    return folder


@pytest.fixture
def hakmem(tmp_path, monkeypatch):
    monkeypatch.setenv("HAKLAB_LIB", str(BUILD / "libhakmem.so"))
    monkeypatch.chdir(tmp_path)

    def start(*arguments: object, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False,
            env={**os.environ, **environment}, timeout=120)  # fmt: skip

    return start


@pytest.mark.parametrize("name", ("plain", "walked", *HOLDERS))
def test_profile_of_a_program_shows_what_its_own_hakmem_holds(hakmem, made, tmp_path, name):
    found = hakmem("profile", "--format", "json", "--output", tmp_path / "p", "--", made / name)
    assert found.returncode == 0, found.stderr
    live = json.loads((tmp_path / "p.json").read_text())["live"]["bytes"]
    assert HELD_BYTES / 2 < live < HELD_BYTES * 2, found.stderr
    told = "(a static one has with -Wl,--eh-frame-hdr)" if name == "static" else "is of keeps_it"
    assert told in found.stderr


@pytest.mark.parametrize("name", HOLDERS)
def test_no_second_hakmem_is_preloaded(hakmem, made, name):
    examined = programs.examine([str(made / name)])
    assert examined.holds_hakmem
    assert preloading(examined, BUILD / "libhakmem.so") == {}
    served = hakmem("run", "--proof", "--strict", "--", made / name)
    assert served.returncode == 0, served.stderr
    assert "served" in served.stderr
    # What a shell preloads is none of this program's either.
    held = hakmem("profile", "--format", "folded", "--", made / name,
                  LD_PRELOAD=str(BUILD / "libhakmem.so"))  # fmt: skip
    assert "Nothing was sampled" not in held.stderr


def test_a_library_that_is_loaded_with_a_hakmem_of_its_own_is_told_of(hakmem, made, tmp_path):
    source = tmp_path / "plugin.c"
    source.write_text(
        "void *hakmem_malloc(unsigned long); void *f(void) { return hakmem_malloc(9); }"
    )
    plugin = compile_c(tmp_path / "plugin.so", [source], "-shared", "-fPIC",
                       str(BUILD / "libhakmem_core.a"), "-pthread")  # fmt: skip
    script = f"import ctypes; ctypes.CDLL({str(plugin)!r}).f()"
    found = hakmem("profile", "--format", "folded", "--", "/usr/bin/python3", "-c", script)
    told = f"the process has several hakmems ({(BUILD / 'libhakmem.so').resolve()}, {plugin})"
    assert told in found.stderr or f"({plugin}, " in found.stderr, found.stderr
    alone = hakmem("profile", "--format", "folded", "--", made / "plain")
    assert "several hakmems" not in alone.stderr


def test_a_script_that_becomes_a_program_with_a_hakmem_shows_what_that_holds(
    hakmem, made, tmp_path
):
    """The command sees the script's interpreter, and preloads one for it."""
    script = tmp_path / "start"
    script.write_text(f"#!/bin/sh\nexec {made / 'linked'}\n")
    script.chmod(0o755)
    found = hakmem("profile", "--format", "json", "--output", tmp_path / "p", "--", script)
    assert found.returncode == 0, found.stderr
    assert "the one that has allocated most is shown" in found.stderr
    assert "is of keeps_it" in found.stderr
    live = json.loads((tmp_path / "p.json").read_text())["live"]["bytes"]
    assert HELD_BYTES / 2 < live < HELD_BYTES * 2


def test_another_hakmem_of_the_shell_gives_way(hakmem, made, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", f"{BUILD / 'libhakmem-hardened.so'}")
    library = BUILD / "libhakmem.so"
    plain = programs.examine([str(made / "plain")])
    assert preloading(plain, library) == {"LD_PRELOAD": str(library)}
    held = hakmem("profile", "--format", "folded", "--", made / "plain")
    assert "is of keeps_it" in held.stderr, held.stderr


def test_explain_accounts_for_the_programs_own_hakmem(hakmem, made, tmp_path):
    out = tmp_path / "out.json"
    for name in ("linked", "own_names"):
        found = hakmem("explain", "--after", "0.3", "--json", out, "--", made / name, "1500")
        assert found.returncode == 0, found.stderr
        groups = json.loads(out.read_text())["explanations"][-1]["groups"]
        assert groups["live"] > HELD_BYTES / 2, groups


def test_hardened_profile_is_refused_where_the_program_has_another_build(hakmem, made):
    for command in (("run",), ("explain",)):
        found = hakmem(*command, "--profile", "hardened", "--", made / "own_names")
        assert (found.returncode, found.stdout) == (2, "")
        assert "holds hakmem" in found.stderr
    assert hakmem("run", "--profile", "hardened", "--", made / "by_library").returncode == 0


def test_rows_that_the_programs_own_hakmem_serves_say_so(hakmem, made, tmp_path, build):
    out = tmp_path / "compared.json"
    floor = build / "bench" / "libfloor.so"
    found = hakmem("compare", "--with", "hakmem,glibc", "--lib", f"other={floor}", "--rounds", "2",
                   "--json", out, "--", made / "own_names", HAKLAB_BUILD=str(build))  # fmt: skip
    document = json.loads(out.read_text())
    assert document["served"]["hakmem"].startswith("yes")
    assert "processes" not in document["served"]["hakmem"]
    for name in ("glibc", "other"):
        assert document["served"][name] == "NOT SERVED (hakmem, which the program holds)"
    assert "glibc and other did not serve the program" in document["summary"][0]
    assert "nothing to compare" in document["summary"][1]
    assert found.returncode == 1
    ab = hakmem(
        "ab", "--a-lib", "glibc", "--b-lib", floor, "--pairs", "2", "--", made / "own_names"
    )
    assert "NOT SERVED (hakmem, which the program holds)" in ab.stderr


def test_record_says_that_it_sees_malloc_alone(hakmem, made, build):
    recorder = build / "bench" / "librecord.so"
    if not recorder.exists():
        recorder.write_bytes((build / "bench" / "libfloor.so").read_bytes())
    found = hakmem("record", "--", made / "own_names")
    assert "holds hakmem under names of its own" in found.stderr


# Each way into the allocator, and sizes of each of its paths.
WAYS = r"""
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include "hakmem/heap.h"
#define WAY(name, call) \
  __attribute__((noinline)) void *name(size_t n) { \
    void *volatile p = call; \
    return p; \
  }
static hakmem_heap *heap;
static void *placed(size_t n) { void *p = 0; return posix_memalign(&p, 256, n) ? 0 : p; }
WAY(my_malloc, malloc(n)) WAY(my_calloc, calloc(1, n)) WAY(my_realloc, realloc(malloc(n / 2), n))
WAY(my_growing, realloc(realloc(malloc(n), n * 2), n * 4))
WAY(my_aligned, aligned_alloc(4096, n)) WAY(my_placed, placed(n)) WAY(my_pages, valloc(n))
WAY(my_array, reallocarray(0, 2, n)) WAY(my_heap, hakmem_heap_malloc(heap, n))
WAY(my_zeroed_heap, hakmem_heap_calloc(heap, 1, n)) WAY(my_own, hakmem_malloc(n))
WAY(my_aligned_heap, hakmem_heap_aligned_alloc(heap, 256, n))
WAY(my_grown_heap, hakmem_heap_realloc(heap, hakmem_heap_malloc(heap, n / 2), n))
int main(void) {
  void *(*ways[])(size_t) = {my_malloc, my_calloc, my_realloc, my_growing, my_aligned, my_placed,
    my_pages, my_array, my_heap, my_zeroed_heap, my_own, my_aligned_heap, my_grown_heap};
  size_t sizes[] = {16, 4096, 20480, 102400, 307200, 2097152, 8388608};
  heap = hakmem_heap_new(0);
  for (int round = 0; round < 8; round++)
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++)
      for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++)
        free(ways[way](sizes[size]));
}
"""


@pytest.mark.parametrize("archive", ["libhakmem.a", "libhakmem_core.a"])
def test_the_first_function_shown_is_the_programs_whatever_it_calls(hakmem, tmp_path, archive):
    """Functions of the allocator have other names now and then: here all are met."""
    (tmp_path / "ways.c").write_text(WAYS)
    names = "malloc calloc realloc aligned_alloc posix_memalign valloc reallocarray free"
    own = [f"-D{name}=hakmem_{name}" for name in names.split(" ")] if "core" in archive else []
    compile_c(tmp_path / "ways", [tmp_path / "ways.c"], "-g", "-O2", "-fno-builtin", "-w",
              "-include", "malloc.h", "-include", "stdlib.h", "-include", "hakmem/hakmem.h", *own,
              f"-I{ROOT / 'include'}", "-Wl,--undefined=malloc", str(BUILD / archive),
              "-pthread")  # fmt: skip
    found = hakmem("profile", "--rate", "64", "--set", "HAKMEM_HEAP_PROFILE_MOST=0", "--format",
                   "json", "--output", tmp_path / "p", "--", tmp_path / "ways")  # fmt: skip
    assert found.returncode == 0, found.stderr
    profile = read_file(tmp_path / "p.json")
    symboliser = Symboliser(profile)
    symboliser.prepare(pc for stack in profile.stacks for pc in stack.pcs)
    first, last = set(), set()
    for stack in profile.stacks:
        shown = [place.frames[-1].function for place in symboliser.stack(stack.pcs)]
        whole = [symboliser.place(pc).frames[-1].function for pc in stack.pcs]
        if "main" in shown[:3] and len(whole) > len(shown):
            first.add(shown[0])
            last.add(whole[len(whole) - len(shown) - 1])
    assert len(first) > 8
    assert {name for name in first if not name.startswith(("my_", "placed", "main"))} == set()
    # pprof cuts a stack at the last of the allocator's.
    text = (ROOT / "src/report/pprof.c").read_text()
    told = re.search(r"allocator\[\] =\n((?: *\".*\"[;\n]*)+)", text)[1]
    known = re.compile("".join(re.findall(r'"(.*)"', told)).replace("\\\\", "\\"))
    assert {name for name in last if not known.fullmatch(name)} == set()
