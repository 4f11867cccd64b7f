import shutil
import subprocess

import pytest
from hakmem.allocators.peers import repository_root


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
