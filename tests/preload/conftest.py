"""Fixtures of the preload tests: the library, the programs, the comparison."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from preload import WorkloadFailed, run_both

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.fixture(scope="session")
def library():
    """The library under test: $HAKMEM_SO, or that of the release preset."""
    path = Path(os.environ.get("HAKMEM_SO") or REPO / "build/release/libhakmem.so").resolve()
    if not path.is_file():
        pytest.fail(f"no library at {path}: build it first, or set HAKMEM_SO", pytrace=False)
    return path


@pytest.fixture(scope="session")
def workloads():
    return HERE / "workloads"


def missing_program(name, package):
    message = f"{name} is not installed: install the Debian package {package}"
    if os.environ.get("HAKMEM_PRELOAD_ALLOW_SKIP") == "1":
        pytest.skip(message)
    pytest.fail(message, pytrace=False)


@pytest.fixture(scope="session")
def keep_stderr(tmp_path_factory):
    """A shim for programs that close standard error before exit handlers of
    libraries run, and with it the counter line that proves they were served."""
    if not shutil.which("gcc", path=SYSTEM_PATH):
        missing_program("gcc", "g++")
    shim = tmp_path_factory.mktemp("shim") / "keep_stderr.so"
    source = HERE / "workloads/keep_stderr.c"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", shim, source], check=True)
    return shim


@pytest.fixture
def needs():
    """needs(package, program…): the test cannot run without these programs."""

    def check(package, *programs):
        for program in programs:
            if not shutil.which(program, path=SYSTEM_PATH):
                missing_program(program, package)

    return check


@pytest.fixture
def compare(library, tmp_path):
    """compare(workload): run it under both allocators, results must be equal."""

    def check(workload, shims=()):
        try:
            run_both(workload, tmp_path, library, shims)
        except WorkloadFailed as failure:
            # Its message says it all; a trace through the harness adds nothing.
            pytest.fail(str(failure), pytrace=False)

    return check
