import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from hakmem.allocators.peers import repository_root
from hakmem.cli import main
from hakmem.errors import UserError
from hakmem.measuring import journal
from hakmem.measuring.rotation import OPS_PER_SECOND, Contender, new_rotation
from hakmem.running.launching import Outcome
from small_build import STAND_IN, assert_in_order

from hakmem_lab import variants_run
from hakmem_lab.suite import Row
from hakmem_lab.suite_session import Job, Session
from hakmem_lab.variants import Variant, group_names, load_group
from hakmem_lab.variants_build import apply, folder_of, source_of
from hakmem_lab.variants_results import FASTER, LESS, SLOWER, csv_lines, row_figures, totals
from hakmem_lab.variants_run import rows_of
from hakmem_lab.variants_text import markdown

needs_tools = pytest.mark.skipif(
    not all(map(shutil.which, ("git", "cmake", "make", "tar"))), reason="needs git, cmake and make"
)
CMAKE = """\
cmake_minimum_required(VERSION 3.25)
project(standin LANGUAGES C)
option(SILENT "Prints no counters" OFF)
add_library(hakmem SHARED lib.c)
target_compile_definitions(hakmem PRIVATE SILENT=$<BOOL:${SILENT}>)
"""
PRESETS = """\
{"version": 6, "configurePresets": [{"name": "release", "generator": "Unix Makefiles",
 "cacheVariables": {"CMAKE_BUILD_TYPE": "Release"}}]}
"""
PATCH = """\
diff --git a/lib.c b/lib.c
--- a/lib.c
+++ b/lib.c
@@ -1,3 +1,3 @@
-#define ALLOCATED "7"
+#define ALLOCATED "{}"
{}
 #if !SILENT
"""
GROUP = """
title = "How much it says it took"
base = "{base}"
rows = ["random-mixed-400"]
[[variant]]
name = "eight"
title = "eight | of them"
patch = "eight.patch"
"""
MORE = """
[[variant]]
name = "{name}"
{how}
"""


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def make_patch(number: str, second_line: str = " #define REST 1") -> str:
    return PATCH.format(number, second_line)


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(variants_run, "SLICE_S", 0.01)


@pytest.fixture
def group(tmp_path, monkeypatch) -> Path:
    """A group in a repository whose library stands in for the allocator; the cache lies in it."""
    repository = tmp_path / "repository"
    folder = repository / "variants" / "counts"
    folder.mkdir(parents=True)
    source = STAND_IN.replace("alloc=7", 'alloc=" ALLOCATED "')
    source = f'#define ALLOCATED "7"\n#define REST 1\n#if !SILENT\n{source}\n#endif\nint unused;\n'
    (repository / "lib.c").write_text(source)
    (repository / "CMakeLists.txt").write_text(CMAKE)
    (repository / "CMakePresets.json").write_text(PRESETS)
    (repository / ".gitignore").write_text("/cache/\n/variants/\n")
    git(tmp_path, "init", "-q", str(repository))
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "first")
    (folder / "eight.patch").write_text(make_patch("8"))
    (folder / "group.toml").write_text(GROUP.format(base=git(repository, "rev-parse", "HEAD")))
    monkeypatch.setenv("HAKLAB_CACHE", str(repository / "cache"))
    return folder


def add_variant(group: Path, name: str, how: str) -> None:
    path = group / "group.toml"
    path.write_text(path.read_text() + MORE.format(name=name, how=how))


def run(*arguments: str):
    return CliRunner().invoke(main, ["variants", *arguments])


def one_line(text: str) -> str:
    return " ".join(text.split())


def results() -> Path:
    found = list(journal.results_folder().glob("variants-*"))
    assert len(found) == 1
    return found[0]


@needs_tools
def test_builds_once_and_leaves_the_repository_as_it_was(group):
    repository = group.parent.parent
    first = run(str(group), "--build-only")
    assert first.exit_code == 0, first.output
    assert re.search(r"^base: built: ", first.output, re.MULTILINE)
    libraries = re.findall(r"^eight: built: (\S+)", first.output, re.MULTILINE)
    assert b"alloc=8" in Path(libraries[0]).read_bytes()
    assert sorted(p.name for p in Path(libraries[0]).parent.iterdir()) == [
        "build.log", "built.json", "libhakmem.so",
    ]  # fmt: skip
    again = run(str(group), "--build-only")
    assert again.output.count("known already") == 2
    assert git(repository, "status", "--porcelain") == ""
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert not journal.results_folder().exists()


@needs_tools
def test_a_changed_patch_and_a_damaged_library_are_built_again(group):
    assert run(str(group), "--build-only").exit_code == 0
    (group / "eight.patch").write_text(make_patch("9"))
    found = run(str(group), "--build-only")
    library = Path(re.findall(r"^eight: built: (\S+)", found.output, re.MULTILINE)[0])
    assert b"alloc=9" in library.read_bytes()
    library.write_bytes(b"broken")
    again = run(str(group), "--build-only")
    assert "eight: built" in again.output
    assert b"alloc=9" in library.read_bytes()


@needs_tools
def test_what_cannot_be_built_is_said_with_its_log(group):
    (group / "stale.patch").write_text(make_patch("8", " #define REST 2"))
    (group / "wrong.patch").write_text(make_patch("8", "-#define REST 1\n+#error broken_here"))
    add_variant(group, "stale", 'patch = "stale.patch"')
    add_variant(group, "wrong", 'patch = "wrong.patch"')
    found = run(str(group), "--build-only")
    assert found.exit_code == 1
    said = one_line(found.output)
    assert re.search(r"stale: stale\.patch does not apply to \w{12}: error: .+ \(log: \S+\)", said)
    assert re.search(r"wrong: it does not compile: .*error.*broken_here.* \(log: \S+\)", said)
    assert "eight: built" in said
    assert "Error: not built: stale, wrong" in said
    log = Path(re.findall(r"\(log: (\S+)\)", found.output)[0])
    assert "git apply" in log.read_text()


@needs_tools
def test_another_base_is_built_and_a_patch_must_apply_to_it(group):
    repository = group.parent.parent
    source = repository / "lib.c"
    source.write_text(source.read_text().replace('"7"', '"70"'))
    git(repository, "commit", "-qam", "second")
    found = run(str(group), "--base", "HEAD", "--build-only")
    head = git(repository, "rev-parse", "HEAD")
    assert found.exit_code == 1
    assert f"base: {head}" in found.output
    assert f"eight.patch does not apply to {head[:12]}" in found.output
    unknown = run(str(group), "--base", "nosuch")
    assert unknown.exit_code == 2
    assert "base 'nosuch' is no commit of" in unknown.output
    assert run(str(group), "--base", "HEAD~1", "--build-only").exit_code == 0


@needs_tools
def test_a_base_that_does_not_build_ends_it(group):
    repository = group.parent.parent
    (repository / "CMakeLists.txt").write_text("no cmake\n")
    git(repository, "commit", "-qam", "broken")
    found = run(str(group), "--base", "HEAD")
    assert found.exit_code == 1
    assert "the base cannot be built: cmake refuses it: " in found.output


@needs_tools
@pytest.mark.long
def test_measures_all_in_one_rotation_and_writes_all_files(group, tmp_path):
    outputs = {name: tmp_path / f"out.{name}" for name in ("json", "csv", "markdown")}
    options = [part for name, path in outputs.items() for part in (f"--{name}", str(path))]
    found = run(str(group), "--rounds", "5", "--seed", "3", "--with", "glibc", *options)
    assert found.exit_code == 0, found.output
    assert_in_order(found.output, "eight ran at ", " of the base's speed", "geometric mean")
    written = json.loads(outputs["json"].read_text())
    assert list(written["variants"]) == ["base", "eight", "glibc"]
    # The patch is in what was measured: the counters of each build say so.
    assert written["served"]["base"].startswith("yes, 7 spans handed out")
    assert written["served"]["eight"].startswith("yes, 8 spans")
    assert written["served"]["glibc"] == "yes"
    (row,) = written["rows"]
    assert (row["name"], row["rounds"], row["problem"]) == ("random-mixed-400", 5, "")
    base, eight, _ = row["entries"]
    assert base["speed"] is None
    assert eight["speed"]["low"] <= eight["speed"]["median"] <= eight["speed"]["high"]
    assert "net" in eight
    with outputs["csv"].open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["variant"] for line in lines] == ["base", "eight", "glibc"]
    assert lines[0]["base_commit"] == git(group, "rev-parse", "HEAD")
    assert lines[1]["rounds"] == "5"
    text = outputs["markdown"].read_text()
    assert text.startswith(
        "<!-- Written by `hakmem variants`. -->\n\n## How much it says it took\n"
    )
    assert "- `eight`: eight | of them" in text
    assert "    hakmem variants counts --base" in text
    assert "--rounds 5 --seed 3 --with glibc" in text
    rounds = [json.loads(line) for line in journal_lines(results())]
    assert sum("round" in line for line in rounds) == 5
    assert set(rounds[-1]["slices"]) == {"base", "eight", "glibc", "floor"}


def journal_lines(folder: Path) -> list[str]:
    (path,) = folder.glob("*.jsonl")
    return path.read_text().splitlines()


@needs_tools
def test_only_and_rows_choose(group):
    add_variant(group, "silent", 'cmake = ["-DSILENT=ON"]')
    found = run(str(group), "--only", "eight", "--rows", "random-mixed-4000", "--rounds", "1")
    assert found.exit_code == 0, found.output
    assert "silent" not in found.output
    written = json.loads((results() / "variants.json").read_text())
    assert [row["name"] for row in written["rows"]] == ["random-mixed-4000"]
    assert "--rows random-mixed-4000 --only eight" in written["facts"]["repeat"]


@needs_tools
def test_a_variant_that_does_not_serve_has_no_figures(group):
    add_variant(group, "silent", 'cmake = ["-DSILENT=ON"]')
    found = run(str(group), "--rounds", "1")
    assert found.exit_code == 1, found.output
    assert "silent: random-mixed-400: NOT SERVED" in one_line(found.output)
    written = json.loads((results() / "variants.json").read_text())
    entries = {entry["variant"]: entry for entry in written["rows"][0]["entries"]}
    assert entries["silent"]["rounds"] == 0
    assert entries["eight"]["rounds"] == 1


@needs_tools
def test_a_variant_that_crashes_keeps_its_column(group):
    crash = "#define REST 1\n+__attribute__((constructor)) static void f(void){__builtin_trap();}"
    (group / "crash.patch").write_text(make_patch("8", f"-#define REST 1\n+{crash}"))
    text = (group / "crash.patch").read_text().replace("-1,3 +1,3", "-1,3 +1,4")
    (group / "crash.patch").write_text(text)
    add_variant(group, "crash", 'patch = "crash.patch"')
    found = run(str(group), "--rounds", "1")
    assert found.exit_code == 1, found.output
    assert "random-mixed-400 (preload), crash: killed by SIGILL" in one_line(found.output)
    written = json.loads((results() / "variants.json").read_text())
    assert [entry["rounds"] for entry in written["rows"][0]["entries"]] == [1, 1, 0]


@needs_tools
def test_a_base_that_does_not_serve_leaves_the_row_out(group):
    path = group / "group.toml"
    repository = group.parent.parent
    source = repository / "CMakeLists.txt"
    source.write_text(source.read_text().replace("OFF", "ON"))
    git(repository, "commit", "-qam", "silent")
    path.write_text(GROUP.format(base="HEAD"))
    found = run(str(group), "--rounds", "1")
    assert found.exit_code == 1, found.output
    assert "random-mixed-400 (preload): base: NOT SERVED" in one_line(found.output)


@needs_tools
def test_ctrl_c_leaves_figures_and_resume_goes_on(group):
    command = [sys.executable, "-m", "hakmem_lab", "variants", str(group), "--rounds", "2000"]
    command[1:3] = ["-c", "from hakmem.cli import main; main()"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for_round()
        os.kill(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, output
    folder = results()
    assert f"go on with: hakmem variants --resume {folder}" in output
    done = sum("round" in json.loads(line) for line in journal_lines(folder))
    assert json.loads((folder / "variants.json").read_text())["rows"][0]["rounds"] == done
    plan = json.loads((folder / "plan.json").read_text())
    plan["rounds"] = done + 1
    (folder / "plan.json").write_text(json.dumps(plan))
    resumed = run("--resume", str(folder))
    assert resumed.exit_code == 0, resumed.output
    assert json.loads((folder / "variants.json").read_text())["rows"][0]["rounds"] == done + 1
    refused = run("--resume", str(folder), "--rounds", "3")
    assert refused.exit_code == 2
    assert "--resume takes all from its folder: --rounds cannot be given" in refused.output


def wait_for_round() -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for path in journal.results_folder().glob("variants-*/*.jsonl"):
            if '"round"' in path.read_text():
                return
        time.sleep(0.02)
    pytest.fail("no round within five minutes")


def test_unknown_groups_variants_and_missing_ones():
    found = run("nosuch")
    assert found.exit_code == 2
    assert "unknown group 'nosuch' (known: classes, colour" in found.output
    assert run("./nosuch").exit_code == 2
    assert run().exit_code == 2
    wrong = run("colour", "--only", "off,nosuch")
    assert wrong.exit_code == 2
    assert "group 'colour' has no variant 'nosuch' (known: off, colours-8, colours-32)" in one_line(
        wrong.output
    )
    assert run("colour", "--rows", "nosuch").exit_code == 2


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title =", "titel =", "unknown key 'titel'"),
        ('name = "eight"', 'name = "base"', "the name is that of an allocator"),
        ('name = "eight"', 'name = "glibc"', "the name is that of an allocator"),
        ('name = "eight"', 'name = "a/b"', "no plain word"),
        ('patch = "eight.patch"', "", "it changes nothing"),
        ('patch = "eight.patch"', 'patch = "no.patch"', "there is no file"),
        ('patch = "eight.patch"', 'cmake = ["CC=x"]', "'CC=x' does not begin with -D"),
        ('rows = ["random-mixed-400"]', "rows = []", "rows is empty"),
        ("[[variant]]", "[[other]]", "unknown key 'other'"),
    ],
)
def test_broken_groups_are_named_in_one_line(tmp_path, old, new, said):
    (tmp_path / "eight.patch").write_text(make_patch("8"))
    text = GROUP.format(base="HEAD")
    assert old in text
    (tmp_path / "group.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(UserError) as error:
        load_group(str(tmp_path))
    assert said in error.value.message
    assert error.value.exit_code == 2


@needs_tools
def test_a_folder_outside_any_repository_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "eight.patch").write_text(make_patch("8"))
    (tmp_path / "group.toml").write_text(GROUP.format(base="HEAD"))
    found = run(str(tmp_path))
    assert found.exit_code == 2
    assert "lies in no git repository" in one_line(found.output)


def test_list_shows_groups_and_their_variants():
    found = run("--list")
    assert found.exit_code == 0
    for name in group_names():
        assert name in found.output
    one = run("--list", "colour")
    assert "off.patch" in one.output
    assert "bulk-shuffled" in one.output


def outcome(rss_kb: int) -> Outcome:
    return Outcome(0, 0, 0.1, 0.1, rss_kb, 10, 0, "", "")


def session_with(folder: Path, speeds: dict[str, tuple[float, int]]) -> tuple[Session, Job]:
    """A session with one finished row, in which every variant had these figures in each round."""
    from hakmem.allocators.peers import Allocator
    from hakmem.measuring.journal import Journal

    job = Job(Row("row", "a row", "core", "bench_random_mixed", ("{work}",), work=100), "preload")
    allocators = [Allocator(name, Path("/lib"), source=f"the {name}") for name in speeds]
    facts = {"base": "abc", "repeat": "hakmem variants x"}
    session = Session(folder, "x", "X", 6, 0.1, 1, allocators, jobs=[job], facts=facts)
    rotation = new_rotation([Contender(name, ("x",)) for name in speeds], OPS_PER_SECOND, 1)
    log = Journal(session.journal_path(job))
    log.begin("bench", rotation, {}, missing={}, served="")
    for number in range(1, 7):
        for name, (speed, rss_kb) in speeds.items():
            drift = 1 + 0.1 * number
            rotation.series[name].values.append(speed * drift)
            rotation.series[name].outcomes.append(outcome(rss_kb))
        rotation.rounds_done = number
        log.add_round(rotation)
    return session, job


def test_ratios_are_of_the_variant_over_the_base(tmp_path):
    speeds = {"base": (100.0, 1000), "fast": (110.0, 900), "slow": (80.0, 1000)}
    session, job = session_with(tmp_path, speeds)
    row = row_figures(session, job)
    fast, slow = row.of("fast"), row.of("slow")
    assert fast.speed.median == pytest.approx(1.1)
    assert (fast.verdict, fast.rss_verdict) == (FASTER, LESS)
    assert fast.rss.median == pytest.approx(0.9)
    assert slow.speed.median == pytest.approx(0.8)
    assert slow.verdict == SLOWER
    assert row.of("base").speed is None
    found = {one.variant: one for one in totals(session, [row])}
    assert found["fast"].speed == pytest.approx(1.1)
    assert found["slow"].counts[SLOWER] == 1
    lines = csv_lines(session, [row])
    assert [line[3] for line in lines] == ["base", "fast", "slow"]
    assert lines[1][9:13] == ["1.1000", "1.1000", "1.1000", FASTER]


def test_markdown_marks_what_is_beyond_the_noise(tmp_path):
    speeds = {"base": (1e8, 2048), "fast": (1.1e8, 2048), "same": (1e8, 2048)}
    session, job = session_with(tmp_path, speeds)
    text = markdown(session, [row_figures(session, job)])
    assert "| row | base | fast | same |" in text
    assert "| **1.100** faster [1.100, 1.100] | 1.000 ~ [1.000, 1.000] |" in text
    assert "| faster/slower/~/? |  | 1/0/0/0 | 0/0/1/0 |" in text
    assert "| a row | 2.0 MB | 1.000 ~ [1.000, 1.000] 2.0 MB |" in text
    assert "- `fast`: the fast" in text


@pytest.mark.parametrize("name", group_names())
def test_the_projects_groups_name_rows_that_exist(name):
    assert rows_of(load_group(name), ())


@needs_tools
@pytest.mark.parametrize("name", group_names())
def test_the_projects_patches_apply_to_their_base(name, tmp_path):
    group = load_group(name)
    try:
        source = source_of(repository_root(), group.base)
    except UserError as error:
        pytest.skip(error.message)
    for variant in group.variants:
        if variant.patch is None:
            continue
        tree = tmp_path / variant.name
        tree.mkdir()
        archive = tmp_path / "tree.tar"
        git(
            source.repository, "archive", "-o", str(archive), source.commit, "src", "CMakeLists.txt"
        )
        subprocess.run(["tar", "-xf", str(archive), "-C", str(tree)], check=True)
        with (tmp_path / "log").open("a") as log:
            apply(variant.patch, source, tree, log)
        changed = {line[6:] for line in variant.patch.read_text().splitlines()
                   if line.startswith("+++ b/")}  # fmt: skip
        assert changed
        for path in changed:
            before = git(source.repository, "show", f"{source.commit}:{path}")
            assert (tree / path).read_text().strip() != before


def test_the_folder_of_a_build_depends_on_all_it_is_made_of(tmp_path):
    from hakmem_lab.variants_build import Source

    patch = tmp_path / "p"
    patch.write_text("1")
    source, other = Source(tmp_path, "a" * 40), Source(tmp_path, "b" * 40)
    plain = folder_of(Variant("v", "t"), source)
    folders = {
        plain,
        folder_of(Variant("v", "t"), other),
        folder_of(Variant("v", "t", patch), source),
        folder_of(Variant("v", "t", None, ("-DA=1",)), source),
    }
    patch.write_text("2")
    folders.add(folder_of(Variant("v", "t", patch), source))
    assert len(folders) == 5
    assert folder_of(Variant("other", "name"), source) == plain
