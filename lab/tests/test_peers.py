import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from hakmem.allocators import cache
from hakmem.allocators.peers import find
from hakmem.allocators.recipes import PACKAGES, RECIPES
from hakmem.cli import main
from small_build import compile_c

from hakmem_lab import peer_sources
from hakmem_lab.commands import peers
from hakmem_lab.commands.peers import (
    BuildError,
    examined,
    find_archive,
    manifest,
    missing_tool,
    why_it_does_not_serve,
)

# Every function of the list, each handed on to glibc's.
WHOLE = """
#include <errno.h>
#include <stddef.h>
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t);
extern void *__libc_memalign(size_t, size_t), *__libc_realloc(void *, size_t);
extern void __libc_free(void *);
void *malloc(size_t n) { return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { return __libc_realloc(p, n); }
void free(void *p) { __libc_free(p); }
void *memalign(size_t a, size_t n) { return __libc_memalign(a, n); }
void *aligned_alloc(size_t a, size_t n) { return __libc_memalign(a, n); }
int posix_memalign(void **p, size_t a, size_t n) {
    *p = __libc_memalign(a, n);
    return *p == NULL ? ENOMEM : 0;
}
size_t malloc_usable_size(void *p) {
    return p == NULL ? 0 : (((size_t *)p)[-1] & ~(size_t)7) - sizeof(size_t);
}
"""


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path / "peers"))
    return tmp_path / "peers"


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Path:
    """A library that serves every function."""
    source = tmp_path_factory.mktemp("whole") / "whole.c"
    source.write_text(WHOLE)
    return compile_c(source.with_name("libwhole.so"), [source], "-shared", "-fPIC", "-fno-builtin")


def put(name: str, library: Path, **changes: str) -> cache.Metadata:
    """Puts a copy of a library into the cache as if it had been built."""
    fields = {
        "name": name,
        "crate": RECIPES[name].crate,
        "crate_version": "1.2.3",
        "version": "9.8.7",
        "compiler": "gcc 12",
        "sha256": cache.checksum(library),
        "date": "2026-01-01T00:00:00+00:00",
        "recipe": RECIPES[name].digest,
    }
    cache.cache_folder().mkdir(parents=True, exist_ok=True)
    copy, archive = cache.cache_folder() / "fresh.so", cache.cache_folder() / "fresh.a"
    copy.write_bytes(library.read_bytes())
    archive.write_bytes(b"!<arch>\n")
    fields["archive_sha256"] = cache.checksum(archive)
    metadata = cache.Metadata(**{**fields, **changes})
    cache.write(metadata, copy, archive)
    return metadata


def test_cache_folder_follows_its_variables(monkeypatch, tmp_path):
    monkeypatch.delenv("HAKLAB_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.cache_folder() == Path("/x/hakmem/peers")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache.cache_folder() == Path("/home/somebody/.cache/hakmem/peers")
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path))
    assert cache.cache_folder() == tmp_path


def test_metadata_comes_back_and_names_both_versions(folder, whole):
    metadata = put("mimalloc3", whole)
    assert cache.read("mimalloc3") == (metadata, "")
    found = find("mimalloc3")
    assert found.usable
    assert found.version == "9.8.7 (crate libmimalloc-sys2 1.2.3)"
    assert found.source == "crates.io"


def test_library_that_is_not_the_one_built_does_not_count(folder, whole):
    put("mimalloc3", whole)
    with cache.library_path("mimalloc3").open("ab") as file:
        file.write(b"x")
    assert "not the file that was built" in find("mimalloc3").problem
    cache.metadata_path("mimalloc3").write_text("{")
    assert "is not readable" in find("mimalloc3").problem
    cache.metadata_path("mimalloc3").unlink()
    assert find("mimalloc3").problem == "not built (hakmem peers build mimalloc3)"


def test_archive_that_is_not_the_one_built_is_not_linked(folder, whole):
    assert cache.archive_problem("mimalloc3") == "not built (hakmem peers build mimalloc3)"
    put("mimalloc3", whole)
    assert cache.archive_problem("mimalloc3") == ""
    cache.archive_path("mimalloc3").write_bytes(b"other")
    assert "not the file that was built" in cache.archive_problem("mimalloc3")


def test_library_of_an_older_build_without_archive_still_serves(folder, whole):
    put("mimalloc3", whole)
    path = cache.metadata_path("mimalloc3")
    older = json.loads(path.read_text())
    del older["archive_sha256"]
    path.write_text(json.dumps(older))
    assert find("mimalloc3").usable
    assert "no static archive kept: build it again" in cache.archive_problem("mimalloc3")
    assert not peers.is_current(RECIPES["mimalloc3"])


def test_only_googles_tcmalloc_gets_its_tunable(folder, monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert [n for n, recipe in RECIPES.items() if recipe.settings] == ["tcmalloc-google"]
    assert find("tcmalloc-google").settings == {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    given = find("tcmalloc-google").settings["GLIBC_TUNABLES"]
    assert given == "glibc.malloc.check=1:glibc.pthread.rseq=0"


@pytest.mark.turns
def test_settings_of_a_peer_reach_it_alone_and_are_printed(folder, whole, monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    put("tcmalloc-google", whole)
    put("mimalloc3", whole)
    script = "test -n \"$GLIBC_TUNABLES\" && echo 'Throughput = 2' || echo 'Throughput = 1'"
    path = folder / "out.json"
    found = run("compare", "--pairs", "2", "--with", "mimalloc3,tcmalloc-google", "--json",
                str(path), "--", "/bin/sh", "-c", script)  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "with GLIBC_TUNABLES=glibc.pthread.rseq=0" in " ".join(found.output.split())
    rows = json.loads(path.read_text())["measures"][0]["rows"]
    values = {row["name"]: row["values"] for row in rows}
    assert values == {"mimalloc3": [1, 1], "tcmalloc-google": [2, 2]}


def test_compare_with_a_peer_that_is_not_built_says_so(folder):
    found = run("compare", "--rounds", "1", "--with", "glibc,snmalloc", "--", "/bin/true")
    told = "Error: snmalloc: not built (hakmem peers build snmalloc)\n"
    assert (found.exit_code, found.output) == (2, told)


def test_whether_a_library_serves(whole, build, tmp_path):
    assert why_it_does_not_serve(whole, {}) == ""
    assert "not loaded" in why_it_does_not_serve(tmp_path / "libnone.so", {})
    assert why_it_does_not_serve(build / "libhakmem.so", {}).startswith("NOT SERVED (")
    source = tmp_path / "crash.c"
    source.write_text("#include <stdlib.h>\n__attribute__((constructor)) void f(void) { abort(); }")
    library = compile_c(tmp_path / "libcrash.so", [source], "-shared", "-fPIC")
    assert why_it_does_not_serve(library, {}) == "killed by SIGABRT"


def test_list_has_a_row_for_each_and_the_reason(folder, whole, monkeypatch):
    put("mimalloc3", whole)
    monkeypatch.setenv("JEMALLOC_SO", "/nowhere/libjemalloc.so")
    monkeypatch.setenv("TCMALLOC_SO", str(whole))
    found = run("peers", "list")
    assert found.exit_code == 0, found.output
    rows = {words[0]: " ".join(words) for line in found.output.splitlines()
            if (words := line.split())}  # fmt: skip
    assert set(rows) >= {"hakmem", "glibc", "mimalloc", "jemalloc", "tcmalloc", *RECIPES}
    assert "9.8.7" in found.output
    said = {name: examined(find(name)) for name in ("jemalloc", "tcmalloc", "rpmalloc", "hakmem")}
    assert said["jemalloc"] == "no library at /nowhere/libjemalloc.so"
    assert (said["tcmalloc"], find("tcmalloc").source) == ("", "user (TCMALLOC_SO)")
    assert said["rpmalloc"] == "not built (hakmem peers build rpmalloc)"
    assert said["hakmem"].startswith("NOT SERVED (")
    assert str(whole) in found.output


def test_missing_tools_fail_their_peers_in_one_line_each(folder, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    found = run("peers", "build", "snmalloc", "mimalloc3")
    assert found.exit_code == 1
    assert "snmalloc: FAILED: cargo is not installed (Debian package cargo-web)" in found.output
    assert "mimalloc3: FAILED: cargo is not installed" in found.output
    assert "not built: snmalloc, mimalloc3" in found.output
    assert "Traceback" not in found.output


def test_each_tool_of_each_recipe_has_a_package():
    for recipe in RECIPES.values():
        assert set(recipe.needed_tools) <= set(PACKAGES)
        assert recipe.method in peers.METHODS
        assert len(recipe.products) == len(recipe.targets) == 2 * (recipe.method == "cmake")


def test_missing_compiler_is_named(monkeypatch, tmp_path):
    tool = tmp_path / "cargo"
    tool.write_text("")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = missing_tool(RECIPES["tcmalloc-google"])
    assert said == "clang-19 is not installed (Debian package clang-19)"


def test_unknown_peer_is_refused(folder):
    found = run("peers", "build", "nonesuch")
    assert found.exit_code == 2
    assert "no recipe for 'nonesuch'" in found.output


def test_what_is_up_to_date_is_not_built_again(folder, whole, monkeypatch):
    put("mimalloc3", whole)
    monkeypatch.setenv("PATH", "/nonexistent")
    found = run("peers", "build", "mimalloc3")
    assert found.exit_code == 0, found.output
    assert "is up to date" in found.output
    put("mimalloc3", whole, recipe="older")
    assert run("peers", "build", "mimalloc3").exit_code == 1


@pytest.fixture
def fake_tools(tmp_path, monkeypatch, whole) -> Path:
    """A cargo that fetches nothing and finds the sources of jemalloc, whose make is a copy."""
    tools, crate = tmp_path / "tools", tmp_path / "crate"
    (crate / "jemalloc").mkdir(parents=True)
    (crate / "configure").mkdir()
    (crate / "configure" / "configure").write_text("echo configured $@\n")
    metadata = {
        "packages": [
            {
                "name": "tikv-jemalloc-sys",
                "version": "0.7.1+5.3.1-0-gabc",
                "manifest_path": str(crate / "Cargo.toml"),
            }
        ]
    }
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    tools.mkdir()
    scripts = {
        "cargo": f'[ "$1" = fetch ] || cat {tmp_path}/metadata.json',
        "make": (
            f"echo gcc -fPIC -O3 -c a.c; mkdir -p lib; cp {whole} lib/libjemalloc.so.2; "
            "echo an archive >lib/libjemalloc.a"
        ),
    }
    for name, body in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    return tools


def test_build_puts_library_and_metadata_into_the_cache(folder, fake_tools):
    found = run("peers", "build", "jemalloc5")
    assert found.exit_code == 0, found.output
    metadata, problem = cache.read("jemalloc5")
    assert problem == ""
    assert (metadata.version, metadata.crate_version) == ("5.3.1", "0.7.1")
    assert metadata.compiler
    assert cache.archive_path("jemalloc5").read_text() == "an archive\n"
    assert cache.archive_problem("jemalloc5") == ""
    assert "configured --with-version=5.3.1-0-gabc" in cache.log_path("jemalloc5").read_text()
    assert not list((folder / "work").iterdir())


@pytest.mark.turns
def test_build_from_sources_has_the_crates_definitions(folder, fake_tools, tmp_path):
    """As hardened_malloc is built: all sources of a folder, C and C++, by the compiler itself."""
    crate = tmp_path / "hardened"
    source = crate / "vendor" / "hardened-malloc"
    source.mkdir(parents=True)
    (source / "whole.c").write_text(f"#if !WANTED\n#error not wanted\n#endif\n{WHOLE}")
    (source / "new.cc").write_text("int of_cxx() { return 1; }\n")
    (crate / "config-default.conf").write_text("# a comment\nWANTED=1\n")
    package = {
        "name": "hardened-malloc-sys",
        "version": "16.0.2026071503",
        "manifest_path": str(crate / "Cargo.toml"),
    }
    (tmp_path / "metadata.json").write_text(json.dumps({"packages": [package]}))
    found = run("peers", "build", "hardened_malloc")
    # Hidden as the flags have it, the stand-in's malloc serves nobody.
    assert "built, but NOT SERVED" in found.output
    log = cache.log_path("hardened_malloc").read_text()
    assert "-DWANTED=1" in log
    assert "new.cc.o" in log
    public = WHOLE.replace("#include <errno.h>", "#pragma GCC visibility push(default)")
    public = "#include <errno.h>\n" + public
    (source / "whole.c").write_text(public)
    found = run("peers", "build", "hardened_malloc")
    assert found.exit_code == 0, found.output
    metadata, problem = cache.read("hardened_malloc")
    assert (problem, metadata.version) == ("", "2026071503")
    assert cache.archive_problem("hardened_malloc") == ""


def test_failed_build_keeps_the_older_library_and_says_why(folder, fake_tools, whole):
    put("jemalloc5", whole)
    (fake_tools / "make").write_text("#!/bin/sh\necho 'a.c:1: error: no such luck'; exit 2\n")
    found = run("peers", "build", "--force", "jemalloc5")
    assert found.exit_code == 1
    assert "compiling failed: a.c:1: error: no such luck" in found.output
    assert find("jemalloc5").usable


def test_build_without_an_archive_fails(folder, fake_tools, whole):
    (fake_tools / "make").write_text(f"#!/bin/sh\nmkdir -p lib; cp {whole} lib/libjemalloc.so.2\n")
    found = run("peers", "build", "jemalloc5")
    assert found.exit_code == 1
    assert "the build made no libjemalloc.a" in found.output
    assert not find("jemalloc5").usable


def test_library_that_does_not_serve_is_not_kept(folder, fake_tools, build):
    (fake_tools / "make").write_text(
        f"#!/bin/sh\nmkdir -p lib; cp {build}/libhakmem.so lib/libjemalloc.so.2\n"
        "echo an archive >lib/libjemalloc.a\n"
    )
    found = run("peers", "build", "jemalloc5")
    assert found.exit_code == 1
    assert "built, but NOT SERVED" in found.output
    assert not find("jemalloc5").usable


def test_interrupt_keeps_what_was_built(folder, fake_tools, monkeypatch):
    real = peers.build

    def build_one_then_interrupt(recipe, jobs, say, *others):
        if recipe.name != "jemalloc5":
            raise KeyboardInterrupt
        return real(recipe, jobs, say, *others)

    monkeypatch.setattr("hakmem_lab.commands.peers.build", build_one_then_interrupt)
    found = run("peers", "build", "jemalloc5", "snmalloc", "rpmalloc")
    assert found.exit_code == 130
    assert "interrupted while building snmalloc" in found.output
    assert find("jemalloc5").usable
    assert not find("rpmalloc").usable


def test_two_builds_of_one_peer_do_not_meet(folder, fake_tools):
    shop = peers.Workshop(RECIPES["jemalloc5"], 1, lambda _: None)
    with peers.only_one(shop):
        found = run("peers", "build", "jemalloc5")
    assert found.exit_code == 1
    assert "another process is building it" in found.output


def test_steps_run_without_the_users_flags(folder, fake_tools, monkeypatch):
    monkeypatch.setenv("CFLAGS", "-O0")
    monkeypatch.setenv("LD_PRELOAD", "")
    shop = peers.Workshop(RECIPES["mimalloc3"], 1, lambda _: None)
    assert not {"CFLAGS", "LD_PRELOAD"} & set(shop.environment())
    assert shop.environment()["CC"] == "gcc"


def test_manifest_pins_the_crate():
    text = manifest(RECIPES["rpmalloc"])
    assert 'version = "=0.2.3"' in text
    assert 'features = ["preload"]' in text
    assert "default-features = false" in text


def test_archive_is_that_of_the_crates_own_script(tmp_path):
    (tmp_path / "libx.a").write_text("")
    other = {"reason": "build-script-executed", "package_id": "r#libc@1", "out_dir": "/nowhere"}
    own = {"reason": "build-script-executed", "package_id": "r#x-sys@1", "out_dir": str(tmp_path)}
    text = "\n".join(["noise", json.dumps(other), json.dumps(own)])
    assert find_archive(text, "x-sys") == tmp_path / "libx.a"
    with pytest.raises(BuildError, match="did not run"):
        find_archive(text, "y-sys")
    (tmp_path / "liby.a").write_text("")
    with pytest.raises(BuildError, match="2 archives"):
        find_archive(text, "x-sys")


def git(folder: Path, *command: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, "-C", str(folder), *command], check=True, capture_output=True)


def make_jemalloc(folder: Path) -> Path:
    """As much of jemalloc's tree as the stand-ins look at."""
    mark = folder / RECIPES["jemalloc5"].mark
    mark.parent.mkdir(parents=True)
    mark.write_text("")
    (folder / "of-this-tree.c").write_text("")
    return folder


@pytest.fixture
def tree(tmp_path) -> Path:
    return make_jemalloc(tmp_path / "my jemalloc")


@pytest.fixture
def repository(tree) -> Path:
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "all")
    git(tree, "tag", "jemalloc-5.9.2")
    return tree


def list_sources_when_compiling(tools: Path) -> None:
    """The make of the stand-ins tells which tree it runs in."""
    make = tools / "make"
    make.write_text(f"{make.read_text()}ls >&2\n")


def test_given_folder_is_built_in_place_of_the_crates_tree(folder, fake_tools, tree):
    list_sources_when_compiling(fake_tools)
    found = run("peers", "build", "--from", f"jemalloc5={tree}")
    assert found.exit_code == 0, found.output
    log = cache.log_path("jemalloc5").read_text()
    assert "of-this-tree.c" in log
    # The tree names no version of its own, and the crate's is not that of the tree.
    assert "--with-version=0.0.0-0-g0" in log
    allocator = find("jemalloc5")
    assert (allocator.version, allocator.source) == (f"unknown ({tree})", "folder")
    assert f"built unknown ({tree})" in found.output
    assert "mimalloc3" not in found.output


def test_version_of_a_folder_is_what_git_says_of_it(folder, fake_tools, repository):
    found = run("peers", "build", "--from", f"jemalloc5={repository}")
    assert found.exit_code == 0, found.output
    assert find("jemalloc5").version == f"5.9.2 ({repository})"
    (repository / "more.c").write_text("")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "more")
    assert run("peers", "build", "--from", f"jemalloc5={repository}").exit_code == 0
    assert find("jemalloc5").version.startswith("5.9.2-1-g")


def test_version_of_a_release_is_in_its_file(folder, fake_tools, tree):
    (tree / "VERSION").write_text("5.4.0-0-gabc\n")
    assert run("peers", "build", "--from", f"jemalloc5={tree}").exit_code == 0
    assert find("jemalloc5").version == f"5.4.0 ({tree})"


def test_version_that_a_trees_own_file_names_comes_first(folder, tmp_path):
    crate = tmp_path / "crate"
    (crate / "rpmalloc").mkdir(parents=True)
    (crate / "rpmalloc" / "CHANGELOG").write_text("3.2.1\n")
    source = peer_sources.Source("/given")
    shop = peers.Workshop(RECIPES["rpmalloc"], 1, print, source, crate, "0.2.3", "7.0")
    assert peers.version_shown(shop) == "3.2.1"
    (crate / "rpmalloc" / "CHANGELOG").write_text("nothing\n")
    assert peers.version_shown(shop) == "7.0"
    # The version of Google's tcmalloc is in a file of the crate beside the tree.
    (crate / "CHANGELOG.md").write_text("## [0.1.14](x) - 2025-06-16\n")
    shop = peers.Workshop(RECIPES["tcmalloc-google"], 1, print, source, crate, "0.1.14", "")
    assert peers.version_shown(shop) == "unknown"
    shop.source = None
    assert peers.version_shown(shop) == "of 2025-06-16, 8 KiB pages"


def test_given_git_tag_is_cloned(folder, fake_tools, repository):
    list_sources_when_compiling(fake_tools)
    url = f"file://{repository}"
    found = run("peers", "build", "--from", f"jemalloc5={url}@jemalloc-5.9.2")
    assert found.exit_code == 0, found.output
    log = cache.log_path("jemalloc5").read_text()
    assert "--depth=1 --branch=jemalloc-5.9.2" in log
    assert "of-this-tree.c" in log
    assert "--with-version=5.9.2-0-g0" in log
    allocator = find("jemalloc5")
    assert allocator.version == f"5.9.2 ({url}@jemalloc-5.9.2)"
    assert allocator.source == "git"
    assert not list((folder / "work").iterdir())


def test_crate_stands_in_for_a_repository_that_cannot_be_reached(folder, fake_tools, tmp_path):
    url = f"file://{tmp_path}/nowhere@5.9.2"
    found = run("peers", "build", "--from", f"jemalloc5={url}")
    assert found.exit_code == 0, found.output
    said = [line for line in found.output.splitlines() if "instead" in line]
    assert len(said) == 1
    assert said[0].startswith(f"jemalloc5: {url}: cloning failed: fatal: ")
    assert said[0].endswith("; the crate tikv-jemalloc-sys 0.7.1 instead")
    assert find("jemalloc5").version == "5.3.1 (crate tikv-jemalloc-sys 0.7.1)"
    assert find("jemalloc5").source == "crates.io"


def test_tag_that_a_repository_has_not_fails(folder, fake_tools, repository):
    found = run("peers", "build", "--from", f"jemalloc5=file://{repository}@5.0")
    assert found.exit_code == 1
    assert "cloning failed: fatal: Remote branch 5.0 not found" in found.output
    assert "not built: jemalloc5" in found.output
    assert not find("jemalloc5").usable


def test_repository_of_something_else_fails(folder, fake_tools, repository):
    (repository / RECIPES["jemalloc5"].mark).unlink()
    git(repository, "commit", "-q", "-a", "-m", "less")
    git(repository, "tag", "less")
    found = run("peers", "build", "--from", f"jemalloc5=file://{repository}@less")
    assert found.exit_code == 1
    assert "@less: not the sources of jemalloc5 (no include/jemalloc/jemalloc.sh" in found.output


def test_git_that_is_missing_is_named(monkeypatch):
    there = "/bin/tool"
    monkeypatch.setattr("shutil.which", lambda tool: there if tool != "git" else None)
    told = "git is not installed (Debian package git)"
    assert missing_tool(RECIPES["rpmalloc"], peer_sources.Source("file:///x", "1")) == told
    assert missing_tool(RECIPES["rpmalloc"], peer_sources.Source("/x")) == ""


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("nonesuch=/tmp", "--from nonesuch=/tmp: no recipe for 'nonesuch' (there are: mimalloc3,"),
        ("rpmalloc", "--from: 'rpmalloc' is not NAME=VALUE: it has no ="),
        ("rpmalloc=/none", "--from rpmalloc=/none: no such folder; nothing built"),
        (
            "rpmalloc=/usr",
            "--from rpmalloc=/usr: not the sources of rpmalloc (no rpmalloc/rpmalloc.c in it); "
            "nothing built",
        ),
        (
            "rpmalloc=https://a@example.org/x",
            "--from rpmalloc=https://a@example.org/x: no tag named (URL@TAG); nothing built",
        ),
        ("rpmalloc=file:///x@", "--from rpmalloc=file:///x@: no tag named (URL@TAG)"),
    ],
)
def test_source_that_is_none_is_refused_before_any_build(folder, given, told):
    found = run("peers", "build", "mimalloc3", "--from", given)
    assert found.exit_code == 2
    assert found.output.startswith(f"Error: {told}")
    assert found.output.count("\n") == 1
    assert not folder.exists()


def test_source_given_twice_is_refused(folder, tree):
    given = ("--from", f"jemalloc5={tree}")
    found = run("peers", "build", *given, *given)
    assert (found.exit_code, found.output) == (2, "Error: --from: jemalloc5 is given twice\n")


def test_failed_build_of_a_given_tree_says_why(folder, fake_tools, tree):
    (fake_tools / "make").write_text("#!/bin/sh\necho 'a.c:1: error: no such luck'; exit 2\n")
    found = run("peers", "build", "--from", f"jemalloc5={tree}")
    assert found.exit_code == 1
    assert "jemalloc5: FAILED: compiling failed: a.c:1: error: no such luck" in found.output


def test_what_was_built_from_a_tree_stays_until_it_is_forced(folder, fake_tools, tree):
    assert run("peers", "build", "--from", f"jemalloc5={tree}").exit_code == 0
    found = run("peers", "build", "jemalloc5")
    assert f"jemalloc5: unknown ({tree}) is up to date" in found.output
    assert run("peers", "build", "--force", "jemalloc5").exit_code == 0
    assert find("jemalloc5").version == "5.3.1 (crate tikv-jemalloc-sys 0.7.1)"
    # A tree may have changed since: it is built whenever it is given.
    found = run("peers", "build", "--from", f"jemalloc5={tree}")
    assert "is up to date" not in found.output


def test_own_configure_of_a_tree_is_used(folder, fake_tools, tree):
    (tree / "configure").write_text("echo the own one $@\n")
    assert run("peers", "build", "--from", f"jemalloc5={tree}").exit_code == 0
    assert "the own one --with-version" in cache.log_path("jemalloc5").read_text()


def test_cargo_takes_the_copy_with_the_given_tree_for_the_crate(folder, tmp_path):
    crate, tree = tmp_path / "crate", tmp_path / "tree"
    for place, name in ((crate / "rpmalloc", "old.c"), (tree, "new.c"), (tree / ".git", "x")):
        place.mkdir(parents=True)
        (place / name).write_text("")
    shop = peers.Workshop(RECIPES["rpmalloc"], 1, print, peer_sources.Source(str(tree)), crate)
    shop.folder.mkdir(parents=True)
    peers.put_in_place(shop, tree)
    assert [path.name for path in shop.tree.iterdir()] == ["new.c"]
    text = (shop.folder / "Cargo.toml").read_text()
    assert text.endswith('[patch.crates-io]\nrpmalloc-sys = { path = "crate" }\n')
    assert (crate / "rpmalloc" / "old.c").exists()


def test_cmake_projects_are_built_by_their_targets(folder, tmp_path):
    """A small project of the shape of snmalloc's, by its recipe."""
    crate = tmp_path / "crate"
    (crate / "upstream").mkdir(parents=True)
    (crate / "upstream" / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(x C)\n"
        "add_library(snmallocshim SHARED a.c)\nadd_library(snmallocshim-static STATIC a.c)\n"
        "add_library(unwanted STATIC a.c b.c)\n"
    )
    (crate / "upstream" / "a.c").write_text("int a;\n")
    (crate / "upstream" / "b.c").write_text("#error not asked for\n")
    shop = peers.Workshop(RECIPES["snmalloc"], 1, print, None, crate, "0.7.6")
    with peers.only_one(shop):
        built = peers.build_by_cmake(shop)
        assert (built.library.name, built.archive.name) == ("libsnmalloc.so", "libsnmalloc.a")
    (crate / "upstream" / "CMakeLists.txt").write_text("project(x C)\ninclude(nowhere.cmake)\n")
    with peers.only_one(shop), pytest.raises(BuildError, match="CMake Error at CMake"):
        peers.build_by_cmake(shop)
