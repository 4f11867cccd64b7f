import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hakmem.allocators.peers import PEERS
from hakmem.errors import UserError
from small_build import BENCH

from hakmem_lab import static_peers
from hakmem_lab.static_peers import ARCHIVE_ONLY, definition_of, link, program_sources

# A whole allocator in one object: blocks come one after the other and are not used again.
BUMP = """
#include <stddef.h>
#include <stdint.h>
#include <string.h>
static _Alignas(4096) unsigned char memory[1u << 28];
static size_t used;
void *aligned_alloc(size_t alignment, size_t size) {
    size_t begin, end;
    do {
        begin = __atomic_load_n(&used, __ATOMIC_RELAXED);
        end = (begin + 16 + alignment - 1) / alignment * alignment + size;
    } while (end < sizeof memory && !__atomic_compare_exchange_n(&used, &begin, end, 0, 0, 0));
    if (end >= sizeof memory) return NULL;
    memcpy(&memory[end - size] - sizeof size, &size, sizeof size);
    return &memory[end - size];
}
void *memalign(size_t alignment, size_t size) { return aligned_alloc(alignment, size); }
void *malloc(size_t size) { return aligned_alloc(16, size); }
void free(void *p) { (void)p; }
void *calloc(size_t n, size_t size) { return malloc(n * size); }
void *realloc(void *p, size_t size) {
    void *fresh = malloc(size);
    size_t old = 0;
    if (p != NULL) memcpy(&old, (unsigned char *)p - sizeof old, sizeof old);
    if (fresh != NULL && p != NULL) memcpy(fresh, p, old < size ? old : size);
    return fresh;
}
"""
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    char *volatile p = malloc(100);
    puts(p != NULL ? "Throughput = 5 ops/s" : "none");
    free(p);
    return 0;
}
"""

pytestmark = pytest.mark.skipif(
    not Path("/usr/lib/x86_64-linux-gnu/libc.a").exists(), reason="no static C library"
)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path / "peers"))
    return tmp_path


@pytest.fixture
def program(tmp_path) -> tuple[Path, ...]:
    source = tmp_path / "small.c"
    source.write_text(PROGRAM)
    return (source,)


@pytest.fixture
def own_build(tmp_path, build, monkeypatch) -> Path:
    """A build folder whose hakmem is the allocator of the text it is given."""
    monkeypatch.setenv("HAKLAB_LAUNCH", str(build / "bench" / "launch"))
    monkeypatch.setenv("HAKLAB_BUILD", str(tmp_path))
    return tmp_path


def make_archive(folder: Path, text: str) -> Path:
    source, archive = folder / "allocator.c", folder / "libhakmem.a"
    source.write_text(text)
    command = ["gcc", "-O1", "-fno-builtin", "-c", str(source)]
    subprocess.run([*command, "-o", str(folder / "allocator.o")], check=True)
    archive.unlink(missing_ok=True)
    subprocess.run(["ar", "rcs", str(archive), str(folder / "allocator.o")], check=True)
    return archive


@pytest.mark.turns
def test_glibc_is_linked_statically_and_found_again(folder, program):
    first = link(program, "glibc")
    assert first.problem == ""
    read = ["readelf", "-l", str(first.path)]
    told = subprocess.run(read, capture_output=True, text=True, check=True).stdout
    assert "INTERP" not in told
    assert first.contender(()).run().stdout == "Throughput = 5 ops/s\n"
    before = first.path.stat().st_mtime_ns
    assert link(program, "glibc") == first
    assert first.path.stat().st_mtime_ns == before
    program[0].write_text(PROGRAM.replace("= 5", "= 6"))
    second = link(program, "glibc")
    assert second.path != first.path
    assert second.contender(()).run().stdout == "Throughput = 6 ops/s\n"


@pytest.mark.turns
def test_allocator_in_an_archive_is_the_programs_own(folder, program, own_build):
    make_archive(own_build, BUMP)
    found = link(program, "hakmem")
    assert found.problem == ""
    names = subprocess.run(["nm", str(found.path)], capture_output=True, text=True, check=True)
    assert re.search(r"^\w+ [bB] memory$", names.stdout, re.MULTILINE)
    ran = subprocess.run([str(found.path)], capture_output=True, text=True, check=True)
    assert ran.stdout == "Throughput = 5 ops/s\n"


@pytest.mark.turns
def test_archive_without_malloc_is_refused(folder, program, own_build):
    make_archive(own_build, "int nothing(void) { return 0; }")
    found = link(program, "hakmem")
    assert found.path is None
    assert "static: malloc comes from libc.a" in found.problem
    assert f"{ARCHIVE_ONLY}: malloc comes from libc.so.6" in found.problem
    with pytest.raises(UserError, match="hakmem is not linked"):
        found.contender(())


@pytest.mark.turns
def test_archive_with_some_functions_only_is_refused(folder, program, own_build):
    make_archive(own_build, BUMP.replace("void free(", "void other_free("))
    assert "free comes from" in link(program, "hakmem").problem


@pytest.mark.turns
def test_allocator_that_fails_the_trial_is_not_linked(folder, program, own_build):
    make_archive(own_build, BUMP.replace("malloc(n * size)", "memset(malloc(n * size), 1, 1)"))
    assert "calloc gave memory that is not zero" in link(program, "hakmem").problem
    make_archive(own_build, BUMP.replace("aligned_alloc(16, size)", "(void *)16"))
    assert "killed by SIGSEGV" in link(program, "hakmem").problem


def test_program_that_does_not_compile_says_why(folder, program):
    program[0].write_text("int main(void) { return missing_name; }")
    assert "missing_name" in link(program, "glibc").problem


def test_what_is_missing_is_told_without_linking(folder, program, own_build):
    assert link(program, "hakmem").problem == f"{own_build}/libhakmem.a is missing: build first"
    assert link(program, "mimalloc3").problem == "not built (hakmem peers build mimalloc3)"
    assert link(program, "mimalloc").problem == "Debian's libmimalloc-dev has no static archive"


def test_packaged_archive_that_is_not_there_names_its_package(monkeypatch, tmp_path):
    monkeypatch.setattr(static_peers, "DEBIAN_LIBRARIES", tmp_path)
    archive = static_peers.find_archive("jemalloc")
    assert archive.problem == "not installed (package libjemalloc-dev)"
    assert set(static_peers.PACKAGED) == set(PEERS)


def test_definition_is_the_first_that_the_linker_names():
    said = (
        "/usr/bin/ld: /tmp/a.o: reference to malloc\n"
        "/usr/bin/ld: /x/libown.a(own.o): definition of malloc\n"
        "/usr/bin/ld: /lib/libc.so.6: definition of malloc\n"
    )
    assert definition_of(said, "malloc") == Path("/x/libown.a")
    assert definition_of(said, "free") is None


def test_sources_follow_the_build(tmp_path, monkeypatch):
    assert program_sources("bench_larson") == (BENCH / "bench_larson.c", BENCH / "bench.c")
    if shutil.which("ninja") is None:
        pytest.skip("ninja is not installed")
    (tmp_path / "build.ninja").write_text(
        "rule LINK\n  command = true\n"
        "build bench/bench_larson: LINK bench/CMakeFiles/common.dir/bench.c.o "
        "bench/CMakeFiles/bench_larson.dir/bench_larson.c.o bench/CMakeFiles/more.dir/more.c.o\n"
    )
    monkeypatch.setenv("HAKLAB_BUILD", str(tmp_path))
    names = [path.name for path in program_sources("bench_larson")]
    assert names[0] == "bench_larson.c"
    assert sorted(names[1:]) == ["bench.c", "more.c"]
    with pytest.raises(UserError, match="does not know bench_swing: build first"):
        program_sources("bench_swing")
    with pytest.raises(UserError, match="no bench program 'launch'"):
        program_sources("launch")


def test_flags_are_those_of_the_bench_build():
    text = (BENCH / "CMakeLists.txt").read_text()
    given = " ".join(re.findall(r"set\(BENCH_(?:NO_BUILTIN|OPTIONS)\s([^)]*)\)", text))
    wanted = {word for word in given.split() if word.startswith("-")}
    assert wanted == set(static_peers.BENCH_FLAGS)
