import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from hakmem.allocators.peers import repository_root
from hakmem.cli import main
from hakmem.errors import UserError
from small_build import compile_c
from test_peers import WHOLE

from hakmem_lab import pgo
from hakmem_lab.commands import pgo as pgo_command
from hakmem_lab.pgo import Training

SMALL = Training("small", ("bench_random_mixed", "20000", "100"))


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
    load = Training("bad", ("/bin/sh", "-c", "echo no luck >&2; exit 3"))
    with pytest.raises(UserError, match="bad failed: exit status 3; it last said: no luck"):
        pgo.train(counted, [load])


def test_smoke_wants_service(tmp_path, build, monkeypatch):
    monkeypatch.setattr(pgo, "SMOKE_TESTS", ())
    source = tmp_path / "whole.c"
    source.write_text(WHOLE)
    whole = compile_c(tmp_path / "libwhole.so", [source], "-shared", "-fPIC", "-fno-builtin")
    assert "load and serve" in pgo.smoke(whole).passed
    with pytest.raises(UserError, match="NOT SERVED"):
        pgo.smoke(build / "libhakmem.so")


def test_command_trains_and_tries_the_build(monkeypatch, tmp_path):
    """The whole command but for the compiler."""
    monkeypatch.setattr(pgo_command, "build_and_train", lambda _progress: tmp_path / "built.so")
    monkeypatch.setattr(pgo_command, "smoke", lambda _library: pgo.Smoke(("load",), ("tests",)))
    found = CliRunner().invoke(main, ["pgo"])
    assert found.exit_code == 0, found.output
    assert "passed: load" in found.output and "not tried: tests" in found.output


def test_failed_preset_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "build.sh"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(pgo, "repository_root", lambda: tmp_path)
    with pytest.raises(UserError, match="the preset nice was not built"):
        pgo.build_preset("nice", "hakmem")


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
