from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_profile import (
    ALLOCATOR,
    BASE,
    COMPILED,
    RATE,
    document,
    fake_profiled,
    stack,
)
from small_build import compile_c
from test_top import COMMAND as TOP

from hakmem.cli import main
from hakmem.errors import UserError
from hakmem.profiles import profile_files, profile_page, profile_pprof, profile_view
from hakmem.profiles.frames import INTERPRETER, PYTHON, Frame
from hakmem.profiles.heap_profile import Amount, parse, read_file
from hakmem.profiles.profile_sites import (
    bare,
    compare,
    interval,
    interval_of_live,
    is_library,
    named,
    own_frame,
    python_remarks,
    sampled,
    size,
    usual_lifetime,
    without_lines,
)
from hakmem.profiles.symbol_files import CLOCK_STEP_MS, Module, PerfMap, demangled
from hakmem.profiles.symbols import CPYTHON, Place, Symboliser
from hakmem.running.threads import is_stopped

# Rust's names stay as they are where there is only libstdc++ to ask.
NEEDS_PYDEMUMBLE = pytest.mark.skipif(sys.version_info < (3, 10), reason="no pydemumble")
SOURCE = Path(__file__).with_name("stacks_of_itself.cpp")
COMMAND = [*TOP[:-1], "profile"]
GO = shutil.which("go")

# Stands for the library: writes what the real one would at the exit of a program, for a program
# whose name says so at once or never, and a child that it starts writes one of its own.
WRITES_PROFILE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct { uint64_t alloc, free; } hak_os_stats;
int hakmem_option_set(const char *name, int64_t value) { return name == NULL || value < 0; }
void *malloc(size_t bytes) {
    static void *(*next)(size_t);
    if (next == NULL) *(void **)&next = dlsym(RTLD_NEXT, "malloc");
    hak_os_stats.alloc++;
    return next(bytes);
}
__attribute__((destructor)) void write_profile(void) {
    const char *prefix = getenv("HAKMEM_HEAP_PROFILE_PREFIX");
    const char *at_exit = getenv("HAKMEM_HEAP_PROFILE_AT_EXIT");
    if (prefix == NULL || at_exit == NULL) return;
    int count = getenv("HAKMEM_HEAP_PROFILE_SECONDS") != NULL ? 2 : 1;
    for (int number = 1; number <= count; number++) {
        char path[4096];
        snprintf(path, sizeof path, "%s.%d.%d.json", prefix, (int)getpid(), number);
        FILE *file = fopen(path, "w");
        if (file == NULL) return;
        fprintf(file, "{\\"hakmem_heap_profile\\":1,\\"version\\":\\"0.1.0\\",\\"pid\\":%d,"
            "\\"program\\":\\"/bin/%s\\",\\"rate\\":%s,\\"started_ms\\":1000,\\"taken_ms\\":2000,"
            "\\"samples\\":{\\"taken\\":%s,\\"live\\":1,\\"dropped\\":0,\\"stacks_dropped\\":0,"
            "\\"own_bytes\\":0},\\"live\\":{\\"bytes\\":5242880,\\"count\\":5,"
            "\\"bytes_variance\\":0,\\"count_variance\\":0},\\"total\\":{\\"bytes\\":10485760,"
            "\\"count\\":10,\\"bytes_variance\\":0,\\"count_variance\\":0},\\"peak\\":"
            "{\\"bytes\\":5242880,\\"count\\":5,\\"at_ms\\":1},\\"timeline\\":[],"
            "\\"lifetime_bounds_ms\\":[1,10,100,1000,10000,100000],\\"stacks\\":[{\\"pcs\\":[1],"
            "\\"live\\":[5242880,5,0,0],\\"total\\":[10485760,10,0,0],\\"peak\\":[5242880,5],"
            "\\"pinned\\":0,\\"age_ms\\":[0,0],\\"freed\\":[0,0,0,0,0,0,0]}],\\"maps\\":[]}",
            (int)getpid(), program_invocation_short_name,
            getenv("HAKMEM_HEAP_PROFILE_RATE") ? "65536" : "524288",
            getenv("TAKES_NOTHING") ? "0" : "160");
        fclose(file);
    }
}
extern char **environ;
__attribute__((constructor)) static void complain(void) {
    for (char **e = environ; *e != NULL; e++)
        if (strncmp(*e, "HAKMEM_HEAP_PROFILE_RATE=many", 29) == 0)
            fputs("hakmem: HAKMEM_HEAP_PROFILE_RATE=many is no size: ignored\\n", stderr);
}
"""


def run(*arguments: str):
    return CliRunner().invoke(main, ["profile", *arguments])


def profile_of(text: dict):
    return parse(json.dumps(text).encode())


def named_of(text: dict):
    found = profile_of(text)
    return named(found, Symboliser(found))


def decoded(data: bytes):
    """A message of pprof, and the values of each sample by the names of its stack, inner first."""
    message = profile_pprof.message_class().FromString(gzip.decompress(data))
    text = message.string_table
    functions = {f.id: text[f.name] for f in message.function}
    locations = {
        place.id: [functions[line.function_id] for line in place.line] for place in message.location
    }
    samples = {
        tuple(name for place in s.location_id for name in locations[place]): list(s.value)
        for s in message.sample
    }
    return message, samples


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes a document to a file; reports go beside it."""
    monkeypatch.chdir(tmp_path)

    def write(name: str = "heap.json", **more) -> str:
        Path(name).write_text(json.dumps(document(**more)))
        return name

    return write


@pytest.fixture(scope="session")
def program(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    compiler = shutil.which("g++")
    assert compiler, "the tests need a C++ compiler"
    command = [compiler, "-g", "-O1", "-o", str(folder / "shop"), str(SOURCE)]
    subprocess.run(command, check=True)
    return folder / "shop"


def profile_by(program: Path, larger: int = 8_000_000):
    path = program.parent / f"{program.name}.{larger}.json"
    subprocess.run([str(program), str(path), str(larger)], check=True)
    return read_file(path)


def functions(profile, symboliser=None) -> dict[int, list[str]]:
    """The functions of the program itself, by live bytes."""
    result = named(profile, symboliser or Symboliser(profile))
    return {
        s.figures.live.bytes: [
            f.function for f in s.frames if not f.function.startswith(("__libc", "_start", "libc"))
        ]
        for s in result.sites
    }


# The file


def test_document_is_read():
    found = profile_of(document())
    assert (found.pid, found.name, found.rate, found.seconds) == (4711, "server", RATE, 60)
    assert found.stacks[0].figures.live.bytes == 64 << 20
    assert found.maps[0].offset == 0x1000
    assert found.live.bytes == 65 << 20


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"hakmem_heap_profile": 2}, "it is of version 2, this command reads 1"),
        ({"pid": -1}, "out of range"),
        ({"rate": 1.5}, "rate is of the wrong type"),
        ({"live": {"bytes": 1}}, "live has no count"),
        ({"stacks": 7}, "stacks is no list"),
        ({"stacks": [stack([1], 1, 1, freed=[1, 2])]}, "freed of a stack has 2 figures, not 7"),
        ({"stacks": [stack([1], 1, 1, live=[1])]}, "live of a stack has 1 figures, not 4"),
        ({"stacks": [stack(list(range(2000)), 1, 1)]}, "pcs is no list of at most"),
        ({"timeline": [[1]]}, "a point of the timeline is no pair"),
        ({"program": None}, "program is of the wrong type"),
        ({"rate": 10**50}, "out of range"),
    ],
)
def test_what_is_no_profile_is_one_line(written, more, told):
    stacks = more.pop("stacks", None)
    name = written()
    text = json.loads(Path(name).read_text()) | more
    if stacks is not None:
        text["stacks"] = stacks
    Path(name).write_text(json.dumps(text))
    found = run(name)
    assert found.exit_code == 2
    assert "heap.json is no heap profile of hakmem: " in found.output
    assert told in found.output
    assert len(found.output.strip().splitlines()) == 1


@pytest.mark.parametrize("text", ["", "{}", "[1]", "{" * 100_000, "\0\1", '{"hakmem_heap_profile'])
def test_what_is_no_document_is_one_line(written, text):
    name = written()
    Path(name).write_text(text)
    found = run(name)
    assert found.exit_code == 2
    assert len(found.output.strip().splitlines()) == 1


def test_a_missing_file_is_one_line():
    found = run("/nowhere/heap.json")
    assert (found.exit_code, found.output) == (
        2,
        "Error: cannot read /nowhere/heap.json: No such file or directory\n",
    )


def test_names_cannot_reach_the_terminal_or_end_a_script(written):
    name = written(program="/bin/\x1b[31mx<!--<script><b>\u202e")
    found = run("--format", "html", name)
    assert found.exit_code == 0, found.output
    assert "\x1b" not in found.output
    text = Path("heap.html").read_text()
    assert "<b>" not in text.partition("<h1>")[2].partition("</h1>")[0]
    data = text.partition('id="stacks">')[2].partition("</script>")[0]
    assert "<" not in data
    assert json.loads(data)["root"].startswith("\\x1b[31mx")


# Estimates


def test_interval_is_of_the_variance_and_holds_what_was_seen():
    # Four blocks of 64 MiB are all seen: nothing is uncertain.
    assert interval(Amount(256 << 20, 4, 0, 0), RATE) == (256 << 20, 256 << 20)
    low, high = interval(Amount(1 << 20, 1000, 10**10, 10), RATE)
    assert (low, high) == (((1 << 20) - 196_000), ((1 << 20) + 196_000))
    # One sampled block of 1 MiB stands for 1.16; it is there, whatever the variance.
    one = Amount(1_212_687, 1, 10**14, 1)
    assert interval(one, RATE)[0] == round(sampled(one, RATE)) > 1_000_000
    assert interval(Amount(), RATE) == (0, 0)


def test_samples_that_were_taken_less_often_make_the_interval_wide():
    asked = profile_of(document())
    count, none = {**asked.samples, "taken": 10}, Amount()
    total = replace(asked.total, bytes=1000 * asked.rate)
    seldom = replace(asked, samples=count, live=none, total=total)
    assert interval_of_live(seldom) == (0, 300 * asked.rate)
    assert f"not {profile_view.size(asked.rate)}" in profile_view.headline(seldom)
    often = replace(seldom, samples={**count, "taken": 1000})
    assert interval_of_live(often) == (0, 3 * asked.rate)
    assert "HAKMEM_HEAP_PROFILE_MOST" not in profile_view.headline(often)


def test_figures_of_one_stack_add_up():
    first = profile_of(document()).stacks[0].figures
    other = replace(first, age_ms=500, oldest_ms=20_000, live=Amount(10, 64, 1, 2))
    both = first + other
    assert both.live == first.live + other.live
    assert (both.age_ms, both.oldest_ms, both.pinned) == (1000, 20_000, 2 * first.pinned)
    assert both.freed == (0, 12, 6, 2, 0, 0, 0)
    assert usual_lifetime(both, (1, 10, 100, 1000, 10_000, 100_000)) == "< 10 ms"


def test_sizes_read_well():
    assert [size(n) for n in (0, 1023, 1024, -(3 << 20), 5 << 40)] == [
        "0 B", "1023 B", "1.0 KB", "-3.0 MB", "5,120.0 GB"]  # fmt: skip


# Names


@pytest.mark.turns
def test_functions_lines_and_inlined_frames_of_a_real_program(program):
    result = named(profile := profile_by(program), Symboliser(profile))
    [site] = [s for s in result.sites if s.figures.live.bytes == 8_000_000]
    names = [f.function for f in site.frames[:4]]
    assert names == ["shop::Cache::inlined(long)", "shop::Cache::fill(long)",
                     "shop::hidden(long)", "main"]  # fmt: skip
    line = 1 + SOURCE.read_text().partition("inline void inlined")[0].count("\n")
    assert (site.frames[0].file, site.frames[0].line) == (str(SOURCE), line)
    assert site.frames[0].where == f"stacks_of_itself.cpp:{line}"
    assert result.remarks == ()


@NEEDS_PYDEMUMBLE
def test_functions_of_rust(program):
    found = functions(profile_by(program))
    assert found[300_000] == ["mycrate::foo::bar", "main"]
    assert found[200_000] == ["mycrate::cache::fill", "main"]


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZN3app5Cache4fillEi", "app::Cache::fill(int)"),
        pytest.param("_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar", marks=NEEDS_PYDEMUMBLE),
        pytest.param(
            "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
            "core::fmt::Write::write_fmt",
            marks=NEEDS_PYDEMUMBLE,
        ),
        ("_Z6handlei.cold", "handle(int)"),
        ("parse.constprop.0.isra.0", "parse"),
        ("main", "main"),
        ("_Z", "_Z"),
        ("e\x1bvil", "e\\x1bvil"),
    ],
)
def test_names_are_demangled(symbol, name):
    assert demangled(symbol) == name


def stripped(program: Path, folder: Path, *flags: str) -> Path:
    copy = folder / "shop"
    subprocess.run(["strip", *flags, "-o", str(copy), str(program)], check=True)
    return copy


@pytest.mark.turns
def test_without_debug_information_symbols_name_the_functions(program, tmp_path):
    profile = profile_by(stripped(program, tmp_path, "-g"))
    found = functions(profile)
    assert found[8_000_000] == ["shop::Cache::fill(long)", "shop::hidden(long)", "main"]
    told = f"without debug information, told by function: {tmp_path}/shop"
    assert told in named(profile, Symboliser(profile)).remarks


@pytest.mark.turns
def test_a_stripped_program_is_told_by_offset(program, tmp_path):
    profile = profile_by(stripped(program, tmp_path))
    symboliser = Symboliser(profile)
    found = functions(profile, symboliser)[8_000_000]
    # Not by the symbol that happens to lie before it.
    assert len(found) > 3
    assert all(name.startswith("shop+0x") for name in found)
    [told] = named(profile, symboliser).remarks
    assert told.startswith(f"without symbols, told by offset: {tmp_path}/shop")
    # Two runs have other addresses, and the same offsets.
    again = profile_by(tmp_path / "shop")
    assert functions(again)[8_000_000] == found


def test_separate_debug_information_is_found_by_build_id(program, tmp_path):
    copy = stripped(program, tmp_path)
    profile = profile_by(copy)
    build_id = Module(str(copy), copy).build_id
    assert len(build_id) == 40
    place = tmp_path / "root/usr/lib/debug/.build-id" / build_id[:2]
    place.mkdir(parents=True)
    subprocess.run(["objcopy", "--only-keep-debug", program, place / f"{build_id[2:]}.debug"],
                   check=True)  # fmt: skip
    symboliser = Symboliser(profile)
    symboliser.root = tmp_path / "root"
    found = functions(profile, symboliser)
    assert found[8_000_000][:3] == ["shop::Cache::inlined(long)", "shop::Cache::fill(long)",
                                    "shop::hidden(long)"]  # fmt: skip


@pytest.mark.turns
def test_a_program_at_a_fixed_address(tmp_path):
    copy = tmp_path / "fixed"
    command = ["g++", "-g", "-O1", "-no-pie", "-o", str(copy), str(SOURCE)]
    subprocess.run(command, check=True)
    assert functions(profile_by(copy))[8_000_000][2:] == ["shop::hidden(long)", "main"]


@pytest.mark.turns
def test_a_function_in_two_parts_keeps_its_name(tmp_path):
    """Its first part has no symbol here, and lies behind another function's."""
    copy = tmp_path / "split"
    subprocess.run(["g++", "-g", "-O2", "-o", str(copy), str(SOURCE)], check=True)
    symbols = subprocess.run(["nm", str(copy)], capture_output=True, text=True, check=True).stdout
    cold = [f"--strip-symbol={line.split()[2]}" for line in symbols.splitlines()
            if line.endswith(".cold")]  # fmt: skip
    assert any("hidden" in option for option in cold)
    subprocess.run(["objcopy", *cold, str(copy)], check=True)
    found = functions(profile_by(copy))[8_000_000]
    assert found[1:] == ["shop::Cache::fill(long)", "shop::hidden(long)", "main"]


def test_a_file_that_changed_since_is_told(program, tmp_path):
    copy = Path(shutil.copy2(program, tmp_path / "shop"))
    profile = replace(profile_by(copy), started_ms=1000)
    symboliser = Symboliser(profile)
    named(profile, symboliser)
    assert any(line.startswith("changed since the program started") and str(copy) in line
               for line in symboliser.remarks)  # fmt: skip


def test_a_file_of_the_same_step_of_the_clock_is_not_told_as_changed(program):
    """The start is told in steps of the kernel's coarse clock, a file's time in finer ones."""
    profile = profile_by(program)
    module = Module(str(program), program)
    os.utime(program, ns=(0, (profile.started_ms + CLOCK_STEP_MS) * 1_000_000 + 900_000))
    assert not module.changed_after(profile.started_ms)
    os.utime(program, ns=(0, (profile.started_ms + CLOCK_STEP_MS + 1) * 1_000_000))
    assert module.changed_after(profile.started_ms)


def test_a_missing_file_is_told_by_offset_and_the_allocator_is_dropped():
    result = named_of(document())
    assert [f.function for f in result.sites[0].frames] == ["server+0x1100", "server+0x1500"]
    assert result.remarks == ("cannot be read, told by offset: /nowhere/bin/server",)


def test_perf_map_names_compiled_code(tmp_path):
    path = tmp_path / "perf-4711.map"
    path.write_text(
        f"{COMPILED + 0x100:x} 40 LazyCompile:*handler /srv/app.js:12:5\n"
        f"{COMPILED + 0x200:x} 20 old\n"
        f"0x{COMPILED + 0x200:x} 0x20 py::serve:/srv/app.py\n"
        "no line of it\n"
    )
    found = PerfMap(path, 0)
    assert found.name(COMPILED + 0x100) == Frame("LazyCompile:*handler /srv/app.js:12:5")
    assert found.name(COMPILED + 0x13F) is not None
    assert found.name(COMPILED + 0x140) is None
    assert found.name(COMPILED + 0x21F) == Frame("serve", "/srv/app.py", part=PYTHON)
    # Of another process that had the number before.
    assert PerfMap(path, round(time.time() * 1000) + 60_000).name(COMPILED + 0x100) is None


def test_compiled_code_is_found_in_the_stacks(tmp_path):
    pcs = [ALLOCATOR, COMPILED + 0x101, COMPILED + 0x301, BASE + 0x501]
    profile = profile_of(document([stack(pcs, 100, 1)]))
    symboliser = Symboliser(profile)
    symboliser.root = tmp_path
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp/perf-4711.map").write_text(f"{COMPILED + 0x100:x} 40 JS:*handler app.js:1\n")
    [site] = named(profile, symboliser).sites
    assert [f.function for f in site.frames] == [
        "JS:*handler app.js:1", "[anonymous code]", "server+0x1500"]  # fmt: skip


def test_addresses_of_nowhere_do_no_harm():
    found = named_of(document([stack([], 5, 1), stack([0], 6, 1), stack([1 << 63], 7, 1)]))
    assert {s.frames[0].function for s in found.sites} == {"[no stack]", "[unknown]"}


def test_the_place_shown_is_not_of_a_languages_library():
    frames = (
        Frame("__gnu_cxx::new_allocator<int>::allocate(unsigned long)"),
        Frame("std::vector<int, std::allocator<int>>::push_back(int&&)"),
        Frame("app::Cache::fill(int) const", "/src/cache.cc", 7),
        Frame("operator()(int)"),
        Frame("main"),
        Frame("__libc_start_main"),
    )
    assert own_frame(frames).where == "cache.cc:7"
    assert profile_view.chain(frames) == "app::Cache::fill cache.cc:7 ← operator() ← main"


def test_the_place_shown_is_in_python_where_its_functions_are_known():
    frames = (
        Frame("PyUnicode_New", "Objects/unicodeobject.c", 1251, INTERPRETER),
        Frame("_PyEval_EvalFrameDefault", "", 0, INTERPRETER),
        Frame("remember", "/srv/orders.py", part=PYTHON),
        Frame("_PyEval_Vector", "", 0, INTERPRETER),
        Frame("do_GET", "/srv/orders.py", part=PYTHON),
        Frame("Py_BytesMain", "", 0, INTERPRETER),
    )
    assert profile_view.chain(frames) == "remember orders.py ← do_GET"
    assert profile_view.chain(without_lines(frames)) == "remember orders.py ← do_GET"
    assert own_frame(frames[:2]).function == "PyUnicode_New"
    told = "python3 -X perf, from Python 3.12 on, tells the functions of Python too"
    assert list(python_remarks([frames[:2]])) == [told]
    assert not list(python_remarks([frames[:2], frames[2:3]]))


@pytest.mark.parametrize(
    ("names", "first"),
    [
        # Where the library is linked into the program, in the order of a stack.
        ("hak_sampled_alloc take_drawn take_class malloc_long keeper main", "keeper"),
        ("hak_sampled_alloc take_drawn take_class malloc_slowly hak_raw_realloc f", "f"),
        ("hak_sampled_alloc take_class.isra.0 malloc_long move_block.part.0 f main", "f"),
        ("malloc_long.constprop.0 f", "malloc_long.constprop.0"),
        ("hak_sampled_alloc obtain keeper obtain main", "keeper"),
        ("hak_sampled_alloc take_drawn", "take_drawn"),
        ("f main", "f"),
    ],
)
def test_the_allocator_inside_the_program_is_dropped(names, first, monkeypatch):
    frames = [Frame(name) for name in names.split()]
    monkeypatch.setattr(Symboliser, "place", lambda _, pc: Place(pc, (frames[pc],)))
    stack = Symboliser(profile_of(document())).stack(range(len(frames)))
    assert stack[0].frames[0].function == first


@pytest.mark.parametrize(
    ("path", "is_it"),
    [
        ("/usr/bin/python3.11", True),
        ("/usr/lib/x86_64-linux-gnu/libpython3.12.so.1.0", True),
        ("/usr/lib/python3/dist-packages/numpy/core.so", False),
        ("/srv/python3-tool", False),
    ],
)
def test_what_runs_python_is_known_by_its_file(path, is_it):
    assert bool(CPYTHON.search(path)) == is_it


@pytest.mark.parametrize(
    ("function", "is_of_it"),
    [
        ("std::vector<int>::push_back(int&&)", True),
        ("std::vector<int> app::make<int>(int)", False),
        ("<u8 as alloc::vec::spec_from_elem::SpecFromElem>::from_elem", True),
        ("<&mut alloc::string::String as core::fmt::Write>::write_str", True),
        ("<app::Price as core::fmt::Display>::fmt", False),
        ("alloc::raw_vec::finish_grow", True),
        ("allocate", False),
    ],
)
def test_what_is_of_a_languages_library(function, is_of_it):
    assert is_library(Frame(function)) == is_of_it


@pytest.mark.parametrize(
    ("file", "is_of_it"),
    [
        ("/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/alloc/src/fmt.rs", True),
        ("/root/.rustup/toolchains/stable/lib/rustlib/src/rust/library/core/src/option.rs", True),
        ("/usr/src/rustc-1.63.0/library/alloc/src/vec/mod.rs", True),
        ("/rust/deps/hashbrown-0.15.5/src/raw/mod.rs", True),
        ("/usr/include/c++/12/bits/stl_vector.h", True),
        ("/src/library/src/main.rs", False),
        ("/root/.cargo/registry/src/index/bytes-1.5.0/src/bytes_mut.rs", False),
    ],
)
def test_files_of_a_languages_library(file, is_of_it):
    """As with Rust's debug = "line-tables-only"."""
    assert is_library(Frame("{closure#0}", file, 659)) == is_of_it


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("main", "main"),
        ("f(int (*)(char), long)", "f"),
        ("operator()", "operator()"),
        ("app::Cache::get(int) const", "app::Cache::get"),
        ("std::vector<int, std::allocator<int>> app::make<int>(int (*)(char))", "app::make<int>"),
        ("void std::sort<int*>(int*, int*)", "std::sort<int*>"),
        ("app::operator<<(std::ostream&, app::Cache const&)", "app::operator<<"),
        ("app::Cache::operator bool() const", "app::Cache::operator bool"),
        ("LazyCompile:*handler /srv/app.js:12:5", "LazyCompile:*handler /srv/app.js:12:5"),
        ("<alloc::vec::Vec<T> as core::ops::Drop>::drop",
         "<alloc::vec::Vec<T> as core::ops::Drop>::drop"),
        ("f)", "f)"),
        (")", ")"),
    ],
)  # fmt: skip
def test_bare_names(function, name):
    assert bare(function) == name


# Formats


def test_pprof_is_right_by_function_name(program):
    profile = profile_by(program)
    message, samples = decoded(profile_pprof.of_profile(named(profile, Symboliser(profile))))
    text = message.string_table
    kinds = [(text[t.type], text[t.unit]) for t in message.sample_type]
    assert kinds == [("inuse_objects", "count"), ("inuse_space", "bytes"),
                     ("alloc_objects", "count"), ("alloc_space", "bytes"),
                     ("peak_space", "bytes"), ("pinned_space", "bytes")]  # fmt: skip
    assert text[message.default_sample_type] == "inuse_space"
    assert (message.period, text[message.period_type.type]) == (524288, "space")
    assert text[message.period_type.unit] == "bytes"
    assert message.duration_nanos == 10**9
    [comment] = message.comment
    assert text[comment] == f"hakmem: of what was allocated since {profile.since}"
    [values] = [v for names, v in samples.items() if names[0] == "shop::Cache::inlined(long)"]
    assert values == [10, 8_000_000, 10, 8_000_000, 8_000_000, 8_000_000]
    first = message.mapping[0]
    assert text[first.filename] == str(program)
    assert text[first.build_id] == Module(str(program), program).build_id
    assert text[0] == ""
    places = {place.id: place for place in message.location}
    inner = places[message.sample[0].location_id[0]]
    # Two functions at one address: one is inlined in the other.
    assert len(inner.line) == 2
    assert inner.line[0].line > 0
    mapping = {m.id: m for m in message.mapping}[inner.mapping_id]
    assert mapping.memory_start <= inner.address < mapping.memory_limit


@pytest.mark.turns
@pytest.mark.skipif(GO is None, reason="no go: Debian's golang-go")
def test_pprof_of_go_reads_it(program, tmp_path):
    profile = profile_by(program)
    path = tmp_path / "shop.pb.gz"
    path.write_bytes(profile_pprof.of_profile(named(profile, Symboliser(profile))))

    def top(*arguments: str) -> list[str]:
        said = subprocess.run([GO, "tool", "pprof", "-top", *arguments, str(path)], text=True,
                              capture_output=True, check=False,
                              env={**os.environ, "PPROF_TMPDIR": str(tmp_path)})  # fmt: skip
        if said.returncode and "no such tool" in said.stderr:
            pytest.skip("this go has no pprof")
        assert said.returncode == 0, said.stderr
        return said.stdout.splitlines()

    lines = top()
    assert "Type: inuse_space" in lines
    header = next(i for i, line in enumerate(lines) if "flat%" in line)
    assert lines[header + 1].split()[0] == "7812.50kB"
    assert lines[header + 1].endswith("shop::Cache::inlined (inline)")
    assert any(line.split()[0] == "3" and "mycrate::foo::bar" in line
               for line in top("-sample_index=alloc_objects"))  # fmt: skip


def test_folded_stacks():
    assert profile_files.folded(named_of(document()).sites) == (
        "server+0x1500;server+0x1100 67108864\nserver+0x1500;server+0x1200 1048576\n"
    )
    frames = (Frame("a;b c\nd"), Frame("main"))
    assert profile_files.folded_stack(frames) == "main;a:b c d"


def test_folded_stacks_are_of_the_order(written):
    name = written()
    assert run("--format", "folded,html", "--sort", "total", name).exit_code == 0
    assert Path("heap.folded").read_text().splitlines()[-1] == (
        f"server+0x1500;server+0x1300 {512 << 20}"
    )
    page = Path("heap.html").read_text()
    assert " selected>bytes allocated since sampling started</option>" in page


def test_dhat_has_the_fields_of_its_viewer():
    found = json.loads(profile_files.dhat(named_of(document())))
    for name in ("dhatFileVersion", "mode", "verb", "bklt", "bkacc", "tu", "Mtu", "cmd", "pid",
                 "te", "pps", "ftbl"):  # fmt: skip
        assert name in found
    assert (found["dhatFileVersion"], found["mode"], found["bklt"]) == (2, "heap", False)
    assert found["cmd"].endswith("server (of what was allocated since 2023-11-14 22:13:20 UTC)")
    stopped = json.loads(profile_files.dhat(named_of(document(stopped_ms=1_700_000_010_000))))
    assert stopped["cmd"].endswith("22:13:20 until 2023-11-14 22:13:30 UTC)")
    assert (found["te"], stopped["te"]) == (60_000, 10_000)
    assert found["ftbl"][0] == "[root]"
    [first] = [p for p in found["pps"] if p["eb"] == 64 << 20]
    assert (first["ebk"], first["gb"], first["gbk"]) == (64, 64 << 20, 64)
    assert [found["ftbl"][i] for i in first["fs"]] == ["server+0x1100", "server+0x1500"]
    assert sum(p["tb"] for p in found["pps"]) == profile_of(document()).total.bytes


def test_all_formats_are_written_and_named(written):
    found = run("--format", "html,pprof,folded,dhat,json", "--output", "x", written("y.json"))
    assert found.exit_code == 0, found.output
    names = ["x.html", "x.pb.gz", "x.folded", "x.dhat.json", "x.json"]
    assert f"Written: {' '.join(names)}" in found.output
    assert all(Path(name).stat().st_size for name in names)
    assert "64.0 MB" in found.output
    assert "server+0x1100 ← server+0x1500" in found.output


def test_output_is_a_prefix_or_a_folder(written, tmp_path):
    name = written()
    (tmp_path / "out").mkdir()
    assert run("--format", "folded", "--output", "out/run1", name).exit_code == 0
    assert run("--format", "folded", "--output", "out", name).exit_code == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"run1.folded", "heap.folded"}


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("--output", "/nowhere/x", "FILE"), 2, "--output: there is no folder /nowhere"),
        (("--output", "/proc/x", "FILE"), 1, "cannot write /proc/x"),
        (("--format", "svg", "FILE"), 2, "--format: 'svg' is not one of html, pprof"),
        (("--format", ",", "FILE"), 2, "--format: name one or more of"),
        (("--rate", "1K", "FILE"), 2, "a FILE is one profile: --rate cannot be given"),
        (("--rate", "1Q", "1"), 2, "--rate: '1Q' is no size such as 64K"),
        (("--seconds", "1", "true"), 2, "a PROGRAM is sampled to its end: --seconds cannot"),
        (("--every", "1", "FILE"), 2, "a FILE is one profile: --every cannot be given"),
        (("FILE", "other"), 2, "one FILE, and no more: other"),
        (("1", "other"), 2, "one PID, and no more: other"),
        ((), 2, "Missing argument"),
        (("--sort", "age", "FILE"), 2, "'age' is not one of"),
        (("diff", "FILE"), 2, "Missing argument 'B'"),
        (("diff", "--format", "dhat", "FILE", "FILE"), 2, "'dhat' is not one of html, pprof"),
        (("diff", "/nowhere.json", "FILE"), 2, "cannot read /nowhere.json"),
        (("4194304",), 1, "there is no process 4194304"),
        (("--", "no-such-program"), 127, "there is no program 'no-such-program'"),
        (("--set", "HEAP_PROFILE=0", "--", "/bin/true"), 2, "HAKMEM_HEAP_PROFILE is set by this"),
    ],
)
def test_mistakes_are_one_line(written, arguments, status, told):
    name = written()
    found = run(*(name if a == "FILE" else a for a in arguments))
    assert found.exit_code == status, found.output
    assert told in found.output
    assert "Traceback" not in found.output
    assert found.exception is None or isinstance(found.exception, SystemExit)


@pytest.mark.parametrize("number", ["0", "99999999999999999999"])
@pytest.mark.parametrize("before", [["profile"], ["profile", "diff", "FILE"], ["serve"]])
def test_numbers_of_no_process_are_one_line(written, before, number):
    name = written()
    found = CliRunner().invoke(main, [*(name if a == "FILE" else a for a in before), number])
    if number == "0":
        told = "Error: '0' is no PID, which is a number such as 1234\n"
        assert (found.exit_code, found.output) == (2, told)
        return
    assert (found.exit_code, found.output) == (1, f"Error: there is no process {number}\n")


def test_a_report_is_no_program(written):
    Path("report.html").write_bytes(b"<!doctype html>")
    for name, status in (("report.html", 127), ("./report.html", 126)):
        found = run(name)
        assert found.exit_code == status
        assert found.output.endswith("; nor is it a heap profile of hakmem\n")


@pytest.mark.turns
def test_output_that_cannot_be_written_is_one_line(written):
    name = written()
    for more in ([name], ["diff", name, name]):
        with Path("/dev/full").open("w") as full:
            found = subprocess.run([*COMMAND, *more], stdout=full, stderr=subprocess.PIPE,
                                   text=True, check=False)  # fmt: skip
        told = "Error: cannot write the output: No space left on device\n"
        assert (found.returncode, found.stderr) == (1, told)
    # Closed, the table is lost as well; the reports are written.
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "--format", "folded", name]
    found = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    told = "Error: cannot write the output: it is closed\n"
    assert (found.returncode, found.stderr) == (1, told)
    assert Path(name).with_suffix(".folded").exists()


def test_leaks_are_shown_with_their_intervals(written):
    found = run("--leaks", "--format", "html", written())
    assert found.exit_code == 0, found.output
    lines = found.output.splitlines()
    first = next(line for line in lines if "server+0x1100" in line)
    assert "64.0 MB" in first
    assert "55.3 MB … 75.1 MB" in first
    assert " 64 " in first
    assert "1.5 s" in first
    # Freed by now.
    assert "server+0x1300" not in found.output
    assert "Not freed" in Path("heap.html").read_text()


def test_order_of_the_table(written):
    def order(*arguments: str) -> list[str]:
        said = run(*arguments, "--format", "folded", written()).output
        return [line.split("server+0x")[1][:4] for line in said.splitlines() if "←" in line]

    assert order() == ["1100", "1200"]
    assert order("--sort", "total") == ["1300", "1100", "1200"]
    assert order("--sort", "peak", "--top", "1") == ["1100"]


def test_dropped_samples_are_told(written):
    samples = {"taken": 700, "live": 1, "dropped": 70, "stacks_dropped": 3, "own_bytes": 1}
    found = run("--format", "html", written(samples=samples))
    assert "70 samples of 700 were dropped" in found.output
    assert "3 stacks were dropped" in found.output
    assert "70 samples of 700 were dropped" in Path("heap.html").read_text()


def test_an_empty_profile_is_shown(written):
    nothing = {"taken": 0, "live": 0, "dropped": 0, "stacks_dropped": 0, "own_bytes": 0}
    found = run("--format", "html,pprof,folded,dhat", written(stacks=[], samples=nothing, maps=[],
                timeline=[], peak={"bytes": 0, "count": 0, "at_ms": 0}))  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "nothing live" in found.output
    assert "Nothing was sampled: the program allocates nothing, or less than" in found.output


# Growth


@pytest.mark.turns
def test_growth_of_two_runs_by_stack(program, tmp_path, monkeypatch):
    before, after = profile_by(program, 8_000_000), profile_by(program, 9_000_000)
    assert before.maps != after.maps
    a, b = (named(p, Symboliser(p)) for p in (before, after))
    [change] = compare(a, b)
    assert (change.bytes, change.count) == (1_000_000, 0)
    assert change.bytes > change.error
    assert change.frames[0].function == "shop::Cache::inlined(long)"
    assert change.frames[0].line > 0
    assert profile_files.folded_changes([change]).endswith(
        "shop::Cache::fill(long);shop::Cache::inlined(long) 8000000 9000000\n"
    )
    monkeypatch.chdir(tmp_path)
    files = [str(program.parent / f"shop.{n}.json") for n in (9_000_000, 8_000_000)]
    found = run("diff", *files, "--format", "html,pprof,folded")
    assert found.exit_code == 0, found.output
    assert "-976.6 KB" in found.output
    assert "Written: shop.diff.html shop.diff.pb.gz shop.diff.folded" in found.output
    message, samples = decoded(Path("shop.diff.pb.gz").read_bytes())
    [(names, values)] = samples.items()
    assert names[:2] == ("shop::Cache::inlined(long)", "shop::Cache::fill(long)")
    assert values[:2] == [0, -1_000_000]
    assert all(place.address == 0 for place in message.location)
    [difference, comment] = message.comment
    assert message.string_table[difference] == "hakmem: the difference of two profiles"
    assert message.string_table[comment] == f"hakmem: of what was allocated since {a.profile.since}"
    assert f"Figures are of what was allocated since {a.profile.since}." in found.output


def test_each_of_two_profiles_says_since_when(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text(json.dumps(document()))
    Path("b.json").write_text(json.dumps(document(started_ms=1_700_000_050_000)))
    told = (
        "before: of what was allocated since 2023-11-14 22:13:20 UTC; "
        "after: of what was allocated since 2023-11-14 22:14:10 UTC"
    )
    found = run("diff", "a.json", "b.json", "--format", "html,pprof")
    assert f"Figures are {told}." in " ".join(found.output.split())
    message, _ = decoded(Path("server.diff.pb.gz").read_bytes())
    assert message.string_table[message.comment[-1]] == f"hakmem: {told}"
    page = Path("server.diff.html").read_text()
    assert "2023-11-14 22:13:20 UTC" in page
    assert "2023-11-14 22:14:10 UTC" in page


@pytest.mark.turns
def test_two_builds_are_compared_by_function(program, tmp_path):
    """A line more in the source is no growth."""
    other = tmp_path / "shop.cpp"
    other.write_text(f"\n\n{SOURCE.read_text()}")
    subprocess.run(["g++", "-g", "-O1", "-o", str(tmp_path / "shop"), str(other)], check=True)
    a, b = (named(p, Symboliser(p)) for p in map(profile_by, (program, tmp_path / "shop")))
    assert compare(a, b) == []
    grown = profile_by(tmp_path / "shop", 8_500_000)
    [change] = compare(a, named(grown, Symboliser(grown)))
    assert (change.bytes, change.frames[0].line) == (500_000, 0)


def test_change_within_chance_is_told():
    a = named_of(document([stack([BASE + 0x101], 10 << 20, 10)]))
    b = named_of(document([stack([BASE + 0x101], 11 << 20, 11)]))
    [change] = compare(a, b)
    assert abs(change.bytes) <= change.error
    assert change.error == pytest.approx(1.96 * (21 * (1 << 20) * RATE) ** 0.5)


# A process that runs


def test_a_running_process_is_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with fake_profiled() as fake:
        found = run(str(fake.pid))
        assert found.exit_code == 0, found.output
        assert "65.0 MB live" in found.output
        assert f"Written: server.{fake.pid}.heap.html server.{fake.pid}.heap.pb.gz" in found.output
        fake.tell("grow")
        assert profile_page.ask(fake.pid).live.bytes == 73 << 20
        assert run("--format", "json", "--output", "a", str(fake.pid)).exit_code == 0
        fake.tell("grow")
        grown = run("diff", "a.json", str(fake.pid))
        assert grown.exit_code == 0, grown.output
        assert "+8.0 MB" in grown.output


@pytest.mark.turns
def test_a_process_is_asked_again_and_again(tmp_path):
    with fake_profiled() as fake:
        process = subprocess.Popen(
            [*COMMAND, "--every", "1", "--format", "folded", "--output", "x", str(fake.pid)],
            cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        end = time.monotonic() + 60
        while not (tmp_path / "x.2.folded").exists():
            assert time.monotonic() < end
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        fake.tell("end", wait=False)
        fake.process.wait(60)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert said == f"hakmem profile: process {fake.pid} has ended\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("mute", "it has not answered"),
        ("fail 12", "it could not write its profile: Cannot allocate memory"),
        ("spoil", "its answer cannot be read"),
        ("over", "its answer says more than there is"),
    ],
)
def test_answers_that_are_none(words, told):
    with fake_profiled() as fake:
        fake.tell(words)
        with pytest.raises(UserError, match=told):
            profile_page.ask(fake.pid, 1.0 if words == "mute" else 60)
        fake.tell("good")
        assert profile_page.ask(fake.pid).live.bytes == 65 << 20


def test_a_process_that_ends_while_it_is_asked():
    with fake_profiled() as fake:
        fake.tell("mute")
        ends = threading.Timer(0.2, fake.process.terminate)
        ends.start()
        # The latter where this reader was so late that it had ended before.
        with pytest.raises(UserError, match=r"there is no process|has ended"):
            profile_page.ask(fake.pid)
        ends.join()


@pytest.mark.turns
def test_two_readers_wait_for_each_other():
    with fake_profiled() as fake:
        command = [
            sys.executable,
            "-c",
            "import sys; from hakmem.profiles import profile_page;"
            "print([profile_page.ask(int(sys.argv[1])).live.bytes >> 20 for _ in range(20)])",
        ]
        readers = [subprocess.Popen([*command, str(fake.pid)], stdout=subprocess.PIPE, text=True)
                   for _ in range(3)]  # fmt: skip
        for reader in readers:
            assert json.loads(reader.communicate(timeout=60)[0]) == [65] * 20


def test_a_process_without_a_profile_says_how_to_get_one():
    found = run(str(os.getpid()))
    assert found.exit_code == 1
    assert (
        "keeps no heap profile (there is no hakmem in it): start it with HAKMEM_HEAP_PROFILE=1"
        in found.output
    )
    assert len(found.output.strip().splitlines()) == 1


@pytest.mark.turns
@pytest.mark.skipif(os.geteuid() != 0, reason="root makes a process of another user")
def test_a_process_of_another_user_is_one_line():
    with fake_profiled() as fake:
        command = [sys.executable, "-c", "import os, sys; from hakmem.profiles import profile_page;"
                   "from hakmem.errors import UserError\n"
                   "os.setgid(65534); os.setuid(65534)\n"
                   "try: profile_page.ask(int(sys.argv[1]))\n"
                   "except UserError as error: print(error)"]  # fmt: skip
        said = subprocess.run([*command, str(fake.pid)], capture_output=True, text=True,
                              check=False)  # fmt: skip
    assert "not permitted; it belongs to another user" in said.stdout, said.stderr


# A program that is started


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("profiled")
    for name, text, flags in (
        ("libwriting.so", WRITES_PROFILE, ("-shared", "-fPIC", "-ldl")),
        ("static", "int main(void) { return 3; }", ("-static",)),
        ("fails", "#include <stdlib.h>\nint main(void) { return malloc(9) ? 3 : 1; }", ("-O0",)),
        ("skips", "#include <stdlib.h>\n#include <unistd.h>\n"
         "int main(void) { _exit(malloc(9) ? 0 : 1); }", ("-O0",)),
    ):  # fmt: skip
        source = folder / f"{name}.c"
        source.write_text(text)
        compile_c(folder / name, [source], *flags)
    (folder / "bad").write_text("#!/nowhere/interpreter\n")
    (folder / "bad").chmod(0o755)
    return folder


@pytest.fixture
def writing(made, monkeypatch, tmp_path):
    monkeypatch.setenv("HAKLAB_LIB", str(made / "libwriting.so"))

    def start(*arguments: str):
        return subprocess.run([*COMMAND, *arguments], cwd=tmp_path, capture_output=True, text=True,
                              check=False)  # fmt: skip

    return start


@pytest.mark.turns
def test_a_program_is_profiled_and_keeps_output_and_status(writing, made, tmp_path):
    found = writing("--format", "html,folded", "--output", "x", "--", "/bin/echo", "hello")
    assert (found.returncode, found.stdout) == (0, "hello\n"), found.stderr
    assert "echo (" in found.stderr
    assert "5.0 MB live" in found.stderr
    assert "Where it allocates, by peak" in found.stderr
    assert "Written: x.html x.folded" in found.stderr
    assert (tmp_path / "x.folded").read_text() == "[unknown] 5242880\n"
    failed = writing("--format", "folded", "--", str(made / "fails"))
    assert failed.returncode == 3
    assert list(tmp_path.glob("fails.*.heap.folded"))


@pytest.mark.turns
@pytest.mark.parametrize(("program", "status"), [("true", 1), ("false", 1), ("MADE/fails", 3)])
def test_program_of_which_nothing_was_sampled_is_told(writing, made, monkeypatch, program, status):
    monkeypatch.setenv("TAKES_NOTHING", "1")
    found = writing("--format", "folded", "--", program.replace("MADE", str(made)))
    assert found.returncode == status, found.stderr
    assert found.stderr.count("Nothing was sampled: the program allocates nothing, or less") == 1


@pytest.mark.turns
def test_setting_that_the_command_takes_over_is_told(writing, monkeypatch):
    monkeypatch.setenv("HAKMEM_HEAP_PROFILE", "0")
    monkeypatch.setenv("HAKMEM_HEAP_PROFILE_FORMAT", "json")
    found = writing("--format", "folded", "--", "/bin/true")
    assert found.returncode == 0, found.stderr
    told = [line for line in found.stderr.splitlines() if "is not used" in line]
    assert told == [
        "hakmem profile: environment: HAKMEM_HEAP_PROFILE=0 is not used: this command sets "
        "HAKMEM_HEAP_PROFILE=1"
    ]


@pytest.mark.turns
def test_programs_that_it_starts_are_named(writing, tmp_path):
    text = "import subprocess, sys; [subprocess.run(['/bin/true']) for _ in 'ab']; sys.exit(5)"
    found = writing("--format", "folded", "--output", "x", "--", sys.executable, "-c", text)
    assert found.returncode == 5
    assert found.stderr.startswith("python")
    assert found.stderr.count("Started by it, not in the report: ") == 2
    assert "5.0 MB live, 10.0 MB allocated." in found.stderr
    assert {path.name for path in tmp_path.glob("x*")} == {"x.folded"}


@pytest.mark.turns
def test_a_start_script_gives_way_to_what_it_starts(writing):
    """The shell ends without its exit handlers."""
    found = writing("--format", "folded", "--output", "x", "--", "/bin/sh", "-c",
                    "/bin/true; exit 0")  # fmt: skip
    assert found.returncode == 0, found.stderr
    first, second = found.stderr.splitlines()[:2]
    assert first.endswith("; this is the largest process that it started")
    assert second.startswith("true (")


@pytest.mark.turns
def test_a_program_that_becomes_another_is_reported(writing):
    found = writing("--format", "folded", "--output", "x", "--", "/bin/sh", "-c", "exec /bin/true")
    assert found.returncode == 0
    assert "true (" in found.stderr


@pytest.mark.turns
def test_profiles_of_a_run_are_numbered(writing, tmp_path):
    found = writing("--every", "1", "--format", "folded", "--output", "x", "--", "/bin/true")
    assert found.returncode == 0, found.stderr
    assert {path.name for path in tmp_path.glob("x*")} == {"x.1.folded", "x.2.folded"}
    assert found.stderr.count("Where it allocates") == 1


@pytest.mark.turns
def test_a_program_killed_after_a_profile_is_reported(writing, tmp_path):
    text = f"exec {sys.executable} -c 'import ctypes, os; " \
           "ctypes.CDLL(None).write_profile(); os.kill(os.getpid(), 9)'"  # fmt: skip
    found = writing("--every", "1", "--format", "folded", "--output", "x", "--", "sh", "-c", text)
    assert found.returncode == 137, found.stderr
    assert "the program was killed by SIGKILL: the last profile is of before" in found.stderr
    assert (tmp_path / "x.2.folded").exists()


@pytest.mark.turns
def test_rate_reaches_the_library(writing):
    found = writing("--rate", "64K", "--format", "folded", "--output", "x", "--", "/bin/true")
    assert "one in 64.0 KB" in found.stderr
    refused = writing("--rate", "many", "--", "/bin/true")
    assert refused.returncode == 2
    assert "HAKMEM_HEAP_PROFILE_RATE=many is no size" in refused.stderr


@pytest.mark.turns
@pytest.mark.parametrize(
    ("program", "status", "told"),
    [
        (("/bin/sh", "-c", "kill -SEGV $$"), 139, "the program was killed by SIGSEGV"),
        (("MADE/static",), 125, "it cannot be served: "),
        (("MADE/skips",), 1, "the program ended without its exit handlers"),
        (("/bin/sh", "-c", "unset LD_PRELOAD; exec sleep 1"), 1, "hakmem did not serve the"),
        (("/dev/null",), 126, "cannot start '/dev/null': it is no file"),
        (("MADE/bad",), 126, "its interpreter /nowhere/interpreter is missing"),
    ],
)
def test_a_run_that_leaves_nothing_says_why(writing, made, program, status, told):
    found = writing("--", *(word.replace("MADE", str(made)) for word in program))
    assert found.returncode == status, found.stderr
    assert told in found.stderr
    assert "Traceback" not in found.stderr


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setenv("HAKLAB_LIB", "/nowhere/libhakmem.so")
    found = run("--", "/bin/true")
    assert found.exit_code == 125
    assert "no library at /nowhere/libhakmem.so" in found.output


def test_labels_are_summed_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stacks = [
        stack([ALLOCATOR, BASE + 0x101], 3 << 20, 3, label=7),
        stack([ALLOCATOR, BASE + 0x101], 5 << 20, 5),
        stack([ALLOCATOR, BASE + 0x201], 4 << 20, 4, label=7),
        stack([ALLOCATOR, BASE + 0x201], 1 << 20, 1, label=(1 << 63) + 2),
    ]
    text = json.dumps(document(stacks, labels=[[7, "tenant-7"]], stopped_ms=1_700_000_050_000))
    Path("labelled.json").write_text(text)
    found = run("--by", "label", "--format", "pprof", "labelled.json")
    assert found.exit_code == 0, found.output
    rows = [line.split() for line in found.stdout.splitlines() if line.split()[1:2] == ["MB"]]
    assert [(row[0], row[2], row[-1]) for row in rows] == [
        ("7.0", "7", "tenant-7"), ("5.0", "5", "none"), ("1.0", "1", str((1 << 63) + 2)),
    ]  # fmt: skip
    assert "until 2023-11-14 22:14:10" in found.stdout
    assert run("--by", "label", "--leaks", "labelled.json").exit_code == 2
    for wrong in ([[7]], [["7", "x"]], [[7, 8]], {"7": "x"}):
        Path("wrong.json").write_text(json.dumps(document(stacks, labels=wrong)))
        assert "label" in run("wrong.json").output


def test_heaps_of_one_name_are_summed_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stacks = [
        stack([ALLOCATOR, BASE + 0x101], 3 << 20, 3, heap="query"),
        stack([ALLOCATOR, BASE + 0x101], 5 << 20, 5),
        stack([ALLOCATOR, BASE + 0x201], 4 << 20, 4, heap="query", label=7),
        stack([ALLOCATOR, BASE + 0x201], 1 << 20, 1, heap=""),
        stack([ALLOCATOR, BASE + 0x201], 2 << 20, 2, heap="\x1b[2J[red]"),
    ]
    Path("heaps.json").write_text(json.dumps(document(stacks)))
    found = run("--by", "heap", "--format", "pprof", "heaps.json")
    assert found.exit_code == 0, found.output
    rows = [line.split() for line in found.stdout.splitlines() if line.split()[1:2] == ["MB"]]
    assert [(row[0], row[2], row[-1]) for row in rows] == [
        ("7.0", "7", "query"), ("5.0", "5", "heap)"), ("2.0", "2", "\\x1b[2J[red]"),
        ("1.0", "1", "name)"),
    ]  # fmt: skip
    data = gzip.decompress(Path("heaps.pb.gz").read_bytes())
    message = profile_pprof.message_class().FromString(data)
    text = message.string_table
    heaps = [{text[m.key]: text[m.str] for m in one.label if m.str} for one in message.sample]
    assert [one.get("heap") for one in heaps] == [
        "query", None, "query", "unnamed", "\\x1b[2J[red]"
    ]  # fmt: skip
    assert run("--by", "heap", "--leaks", "heaps.json").exit_code == 2
    Path("wrong.json").write_text(json.dumps(document([stack([BASE], 1, 1, heap=7)])))
    assert "heap is of the wrong type" in run("wrong.json").output


def test_a_stopped_process_with_a_page_is_told_at_once():
    with fake_profiled() as fake:
        os.kill(fake.pid, signal.SIGSTOP)
        try:
            while not is_stopped(fake.pid):
                time.sleep(0.01)
            begun = time.monotonic()
            with pytest.raises(UserError, match="it is stopped"):
                profile_page.ask(fake.pid)
            # The answer itself is waited for four times as long.
            assert time.monotonic() - begun < profile_page.PATIENCE_S
        finally:
            os.kill(fake.pid, signal.SIGCONT)
