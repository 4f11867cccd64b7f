import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from hakmem.allocators.peers import repository_root
from hakmem.cli import main
from hakmem.errors import UserError
from hakmem.measuring.measures import NO_DIFFERENCE, TOO_FEW
from hakmem.measuring.statistics import Interval
from small_build import assert_in_order, compile_c
from test_peers import WHOLE

from hakmem_lab import flavours, instructions, pgo
from hakmem_lab.commands import pgo as pgo_command
from hakmem_lab.commands import safety as safety_command
from hakmem_lab.flavours import CoreLoad, LoadResult, compare_builds

STEPS = (instructions.StepLoad("steps", "bench_random_mixed", ("100",)),)
SMALL = CoreLoad("small", ("bench_random_mixed", "20000", "100"))


@pytest.fixture
def profile(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "profile"
    monkeypatch.setattr(pgo, "profile_folder", lambda: folder)
    return folder


def counting_library(folder: Path, *flags: str) -> Path:
    source = folder / "counted.c"
    source.write_text("__attribute__((constructor)) void begin(void) {}\n")
    return compile_c(folder / "libcounted.so", [source], "-shared", "-fPIC", *flags)


def test_training_needs_counts_from_every_load(tmp_path, profile):
    counted = counting_library(tmp_path, f"-fprofile-generate={profile}")
    told = []
    pgo.train(counted, [SMALL, SMALL], told.append)
    assert told == ["small", "small"]
    assert list(profile.rglob("*.gcda"))
    plain = counting_library(tmp_path)
    with pytest.raises(UserError, match="training with small left no counts"):
        pgo.train(plain, [SMALL])


def test_training_that_fails_is_told(tmp_path, profile):
    counted = counting_library(tmp_path, f"-fprofile-generate={profile}")
    load = CoreLoad("bad", ("/bin/sh", "-c", "echo no luck >&2; exit 3"))
    with pytest.raises(UserError, match="bad failed: exit status 3; it last said: no luck"):
        pgo.train(counted, [load])


def test_training_differs_from_what_is_measured():
    measured = {load.command for load in flavours.CORE_LOADS}
    assert not measured & {load.command for load in pgo.TRAINING}


def test_smoke_wants_every_function(tmp_path, build, monkeypatch):
    monkeypatch.setattr(pgo, "SMOKE_TESTS", ())
    source = tmp_path / "whole.c"
    source.write_text(WHOLE)
    whole = compile_c(tmp_path / "libwhole.so", [source], "-shared", "-fPIC", "-fno-builtin")
    assert "load and serve" in pgo.smoke(whole).passed
    at = "aligned_alloc(size_t a, size_t n) { return "
    source.write_text(
        WHOLE.replace(f"{at}__libc_memalign(a, n)", f"{at}(char *)__libc_memalign(a, n + 16) + 16")
    )
    wrong = compile_c(tmp_path / "libwrong.so", [source], "-shared", "-fPIC", "-fno-builtin")
    with pytest.raises(UserError, match=r"aligned_alloc\(256, 512\) is not aligned"):
        pgo.smoke(wrong)
    with pytest.raises(UserError, match="has no malloc"):
        pgo.smoke(build / "libhakmem.so")


def test_two_builds_are_compared_in_pairs(build, tmp_path):
    other = tmp_path / "libhakmem.so"
    shutil.copy(build / "libhakmem.so", other)
    (result,) = compare_builds(other, "other", pairs=3, seed=1, loads=[SMALL])
    assert (result.problem, result.rounds) == ("", 3)
    assert result.ratio.median > 0
    assert result.release > 0 < result.other
    assert result.net is None or result.net.median > 0


def test_build_that_does_not_serve_gets_no_figures(build):
    floor = build / "bench" / "libfloor.so"
    (result,) = compare_builds(floor, "other", pairs=2, seed=1, loads=[SMALL])
    assert result.problem == "the other build did not serve it"
    assert result.ratio is None


def test_missing_build_is_named(tmp_path):
    with pytest.raises(UserError, match=r"libnone\.so is missing: build first"):
        compare_builds(tmp_path / "libnone.so", "other", pairs=2, seed=1, loads=[SMALL])


def test_verdict_follows_the_interval():
    def said(*interval: float) -> str:
        return LoadResult("x", "s", ratio=Interval(*interval)).verdict

    assert said(1.1, 1.05, 1.2) == "faster"
    assert said(0.9, 0.85, 0.95) == "slower"
    assert said(1.0, 0.9, 1.1) == NO_DIFFERENCE
    assert said(1.5) == TOO_FEW


@pytest.mark.parametrize(("command", "module"), [("pgo", pgo_command), ("safety", safety_command)])
def test_commands_build_compare_and_write(command, module, build, tmp_path, monkeypatch):
    """The whole command but for the compiler: the build is a copy of the stand-in."""
    other = tmp_path / "libhakmem.so"
    shutil.copy(build / "libhakmem.so", other)
    monkeypatch.setattr(flavours, "CORE_LOADS", (SMALL,))
    monkeypatch.setattr(flavours.compare_builds, "__defaults__", (lambda _what: None, (SMALL,)))
    if command == "pgo":
        monkeypatch.setattr(module, "build_and_train", lambda _progress: other)
        monkeypatch.setattr(module, "smoke", lambda _library: pgo.Smoke(("all",)))
    else:
        monkeypatch.setattr(module, "build_preset", lambda _preset, _target: None)
        monkeypatch.setattr(module, "preset_library", lambda _preset: other)
    monkeypatch.setattr(instructions, "STEP_LOADS", STEPS)
    path = tmp_path / "out.json"
    found = CliRunner().invoke(main, [command, "--pairs", "2", "--json", str(path)])
    assert found.exit_code == 0, found.output
    document = json.loads(path.read_text())
    assert document["made_by"] == ("hakmem pgo" if command == "pgo" else "hakmem safety")
    assert [load["title"] for load in document["loads"]] == ["small"]
    name = "pgo" if command == "pgo" else "unchecked"
    told = f"The {name} build runs at "
    assert_in_order(
        found.output, told, "too few rounds to say in 1.", "small", "How it was", "kernel"
    )
    assert found.output.lstrip().startswith(told)
    if not instructions.problem():
        of_release, of_other = document["instructions"]["steps"]
        assert of_release == pytest.approx(of_other, abs=0.1)
        assert "Instructions a step, steps: release" in found.output


@pytest.mark.skipif(bool(instructions.problem()), reason=instructions.problem())
def test_instructions_of_a_step_are_counted_exactly(build):
    library = build / "libhakmem.so"
    first = instructions.per_step(STEPS[0], library)
    assert 20 < first < 1000
    assert instructions.per_step(STEPS[0], library) == pytest.approx(first, abs=0.1)
    with pytest.raises(UserError, match=r"could not count .*: status 2"):
        instructions.count([str(build / "bench" / "bench_random_mixed"), "none"], library)


def test_without_valgrind_that_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert instructions.problem() == "valgrind is not installed (Debian package valgrind)"


def test_failed_preset_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "build.sh"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(flavours, "repository_root", lambda: tmp_path)
    with pytest.raises(UserError, match="the preset nice was not built"):
        flavours.build_preset("nice", "hakmem")


def test_text_of_safety_covers_every_switch_in_the_sources():
    """A new use of HAK_CHECKS needs a word in commands/safety.py."""
    sources = repository_root() / "src"
    used = {
        str(path.relative_to(sources))
        for path in sources.rglob("*.[ch]")
        if re.search(r"^#if.*\bHAK_CHECKS\b", path.read_text(), re.MULTILINE)
    }
    assert used == {"api/free.c", "tcache/cache.h", "tcache/tcache.c"}


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
@pytest.mark.parametrize(
    ("value", "said"),
    [("sometimes", "'sometimes' is not generate or use"), ("use", "no profile in")],
)
def test_cmake_refuses_what_cannot_be_built(value, said, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(small LANGUAGES C)\n"
        f"include({repository_root()}/cmake/pgo.cmake)\n"
        "add_library(small SHARED small.c)\nhakmem_profile(small)\n"
    )
    (tmp_path / "small.c").write_text("int small(void) { return 1; }\n")
    flags = [f"-DHAKMEM_PGO={value}", f"-DHAKMEM_PGO_PROFILE={tmp_path}/none"]
    command = ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "build"), *flags]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode
    assert said in " ".join(ran.stderr.split())
