"""`hakmem profile` of a file in each format that the library writes, told by its contents."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_profile import document
from small_build import KEEPS, compile_c
from test_outside import ON, program, running
from test_top import COMMAND as TOP

from hakmem.cli import main
from hakmem.errors import UserError
from hakmem.profiles.allocator_frames import is_entry, is_wrapper
from hakmem.profiles.heap_profile import read_file
from hakmem.profiles.profile_sites import own_frame
from hakmem.profiles.profile_view import chain
from hakmem.profiles.symbols import Frame

LIBRARY = Path(__file__).resolve().parents[2] / "build" / "release" / "libhakmem.so"
needs_library = pytest.mark.skipif(not LIBRARY.is_file(), reason="the library is not built")
program = program
COMMAND = [*TOP[:-1], "profile"]
HELD_BYTES = 40_000_000


def run(*arguments: object):
    return CliRunner().invoke(main, ["profile", *map(str, arguments)])


@pytest.fixture(scope="session")
def written(tmp_path_factory) -> dict[str, Path]:
    """A file of each format, and a compressed one."""
    folder = tmp_path_factory.mktemp("formats")
    (folder / "keeps.c").write_text(KEEPS)
    keeps = compile_c(folder / "keeps", [folder / "keeps.c"], "-g", "-fno-builtin")
    found = {}
    for name in ("pprof", "jemalloc", "json", "proto"):
        settings = {"": "1", "_FORMAT": name, "_AT_EXIT": "1", "_PREFIX": str(folder / name)}
        environment = {f"HAKMEM_HEAP_PROFILE{key}": value for key, value in settings.items()}
        subprocess.run([keeps], env={**os.environ, **environment, "LD_PRELOAD": str(LIBRARY)},
                       check=True)  # fmt: skip
        [found[name]] = folder.glob(f"{name}.*")
    found["packed"] = folder / "packed.pb.gz"
    found["packed"].write_bytes(gzip.compress(found["proto"].read_bytes()))
    return found


@needs_library
@pytest.mark.parametrize("name", ["pprof", "jemalloc", "json", "proto", "packed"])
def test_each_format_of_the_library_is_read(written, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    # Neither a slash nor an ending tells that it is a file.
    place = tmp_path / "found"
    place.write_bytes(written[name].read_bytes())
    for target in (written[name], "found"):
        found = run("--format", "folded,json", "--output", tmp_path / "out", target)
        assert found.exit_code == 0, found.output
        assert "is of keeps_it keeps.c:6" in found.output
    profile = read_file(written[name])
    assert profile.name == "keeps"
    assert HELD_BYTES / 2 < profile.live.bytes < HELD_BYTES * 2
    assert HELD_BYTES / 2e5 < profile.live.count < HELD_BYTES * 2 / 1e5
    assert profile.live.bytes_variance > 0
    assert profile.started_ms > 1_700_000_000_000
    if name != "packed":
        assert f".{profile.pid}." in written[name].name
    assert bool(profile.lacks) == (name != "json")
    assert "at its peak" not in found.output
    # What was made of it is a document of its own.
    again = read_file(tmp_path / "out.json")
    assert again.live == profile.live
    compared = run("diff", "--format", "folded", "--output", tmp_path / "d",
                   written["json"], written[name])  # fmt: skip
    assert compared.exit_code == 0, compared.output


@needs_library
def test_what_this_command_wrote_for_pprof_is_read(written, tmp_path):
    out = tmp_path / "own"
    assert run("--format", "pprof", "--output", out, written["json"]).exit_code == 0
    assert read_file(tmp_path / "own.pb.gz").live.bytes == read_file(written["json"]).live.bytes


@needs_library
@pytest.mark.parametrize("after", ["json", "pprof"])
def test_a_difference_is_no_profile(written, tmp_path, after):
    """Of a file and itself too, where no figure is below 0, and nothing else tells it."""
    assert run("diff", "--format", "pprof", "--output", tmp_path / "d", written["json"],
               written[after]).exit_code == 0  # fmt: skip
    with pytest.raises(UserError, match="it is the difference of two profiles"):
        read_file(tmp_path / "d.pb.gz")


@needs_library
@pytest.mark.parametrize("name", ["pprof", "jemalloc", "proto", "packed"])
def test_damaged_files_are_told_in_one_line(written, tmp_path, name):
    whole = written[name].read_bytes()
    place = tmp_path / "damaged.heap"
    steps = max(1, len(whole) // 150)
    cut = 0
    for end in range(16, len(whole) - 1, steps):
        place.write_bytes(whole[:end])
        try:
            read_file(place)
        except UserError as error:
            cut += 1
            assert "is no heap profile of hakmem" in str(error.message)
    assert cut or name == "proto"
    for at in range(0, len(whole), steps):
        place.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with suppress(UserError):
            read_file(place)


def test_other_files_are_no_profiles(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, data in (("a", b"text\n"), ("b", gzip.compress(b"text")), ("c", b"heap profile: x")):
        (tmp_path / name).write_bytes(data)
        found = run(f"./{name}")
        assert found.exit_code in (2, 126), found.output
        assert "heap profile of hakmem" in found.output
        assert found.output.count("\n") == 1
    # A program of the name comes first.
    (tmp_path / "true").write_bytes(json.dumps(document()).encode())
    assert "is no" not in run("--format", "folded", "--rate", "64K", "true").output


@needs_library
def test_growth_of_a_process_that_is_only_preloaded(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with running(program) as subject:
        assert run("--seconds", "1", "--format", "json", "--output", "before",
                   subject.pid).exit_code == 0  # fmt: skip
        found = run("diff", "--seconds", "1", "--format", "folded", "before.json", subject.pid)
        assert found.exit_code == 0, found.output
        assert "Growth of live bytes" in found.output
        subject.comes_to(1 - ON)


@needs_library
def test_process_is_named_by_its_name_and_not_by_where_a_link_leads(program, tmp_path, monkeypatch):
    """As redis-server, which is a link to redis-check-rdb on Debian."""
    monkeypatch.chdir(tmp_path)
    link = tmp_path / "a-server-with-a-long-name"
    link.symlink_to(program)
    with running(link) as subject:
        found = run("--seconds", "1", "--format", "folded", subject.pid)
        assert found.output.startswith(f"{link.name} ({subject.pid}): "), found.output
        assert f"Written: {link.name}.{subject.pid}.heap.folded" in found.output
        assert "since sampling started (" in found.output
    keeps = tmp_path / "keeps.c"
    keeps.write_text(KEEPS)
    compile_c(tmp_path / "check", [keeps], "-fno-builtin")
    (tmp_path / "server").symlink_to("check")
    ran = subprocess.run(
        [*COMMAND, "--format", "folded", "--", "./server"], check=False, capture_output=True,
        text=True, env={**os.environ, "HAKLAB_LIB": str(LIBRARY)})  # fmt: skip
    assert ran.stderr.startswith("server ("), ran.stderr


@pytest.mark.parametrize(
    ("frames", "shown"),
    [
        (("zmalloc_usable", "zmalloc", "sdsnewlen", "main"), "sdsnewlen ← main"),
        (("ztrymalloc_usable_internal", "zrealloc", "grow", "main"), "grow ← main"),
        (("calloc_large", "calloc", "xcalloc", "load", "main"), "load ← main"),
        (("hakmem::heap::allocate", "hakmem::Heap::alloc", "server::rows"), "server::rows"),
        (
            (
                "<hakmem::Hakmem as core::alloc::GlobalAlloc>::alloc",
                "alloc::alloc::alloc",
                "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
                "server::rows",
            ),
            "server::rows",
        ),
        (("operator new(unsigned long)", "app::fill(int)", "main"), "app::fill ← main"),
        (
            ("fill", "hakmem::heap::Heap::scope<server::run::{{closure}}>", "server::run"),
            "fill ← hakmem::heap::Heap::scope<server::run::{{closure}}> ← server::run",
        ),
        (("sqlite3MemMalloc", "sqlite3Malloc", "sqlite3DbMallocRawNN", "vdbe"), "vdbe"),
        (("PyObject_Malloc", "PyDict_New"), "PyDict_New"),
        (("xmalloc", "_start"), "xmalloc"),
        (("xmalloc",), "xmalloc"),
        (("Pool::calloc(unsigned long)", "main"), "Pool::calloc ← main"),
        (("reallocate_rows", "main"), "reallocate_rows ← main"),
    ],
)
def test_headlines_name_the_caller_of_an_allocator(frames, shown):
    assert chain(tuple(map(Frame, frames))) == shown


def test_crate_is_known_by_its_files_where_names_are_short():
    frames = (
        Frame("take", "/home/u/.cargo/registry/src/index-1/hakmem-0.1.0/src/lib.rs", 59),
        Frame("alloc", "/srv/hakmem/src/lib.rs", 80),
        Frame("{closure#0}", "/srv/app/src/main.rs", 4),
        Frame("app::main"),
    )
    assert own_frame(frames).where == "main.rs:4"
    assert not is_entry("take", "/srv/app/src/lib.rs")
    assert not is_wrapper("load_calloc_table")


def test_functions_can_be_skipped(tmp_path):
    file = tmp_path / "p.json"
    file.write_text(json.dumps(document()))
    found = run(
        "--format", "folded", "--output", tmp_path / "out", "--skip", r"\+0x1(1|2)00$", file
    )
    assert found.exit_code == 0, found.output
    assert "server+0x1100" not in (tmp_path / "out.folded").read_text()
    assert "of live memory is of server+0x1500" in found.output
    wrong = run("--skip", "(", file)
    assert wrong.exit_code == 2
    assert "--skip: '(' is no regular expression" in wrong.output
