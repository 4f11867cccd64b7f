"""Heap profiles of a process in a container: with mounts, process numbers and a user of its own.

Its program and library lie where only the container has something; from here they are reached
through /proc/PID/root.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_build import compile_c
from test_profile import COMMAND
from test_serve import served

LIBRARY = Path(__file__).resolve().parents[2] / "build" / "release" / "libhakmem.so"
NOBODY = 65534
UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
SET_USER = ["setpriv", "--clear-groups"]

PROGRAM = """
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__attribute__((noinline)) void keeps_it(size_t bytes) {
    void *volatile p = malloc(bytes);
    memset(p, 1, bytes);
    __asm__ volatile("" ::: "memory");
}
int main(void) {
    for (int i = 0; i < 200; i++) keeps_it(100000);
    if (write(1, "ready\\n", 6) != 6) return 1;
    for (;;) pause();
}
"""

# What is mounted over /mnt nobody outside sees. The user is changed before the library is there.
INSIDE = """
set -e
mount -t tmpfs -o mode=755 none /mnt
mkdir /mnt/only
cp "$1" /mnt/only/inside
cp -L "$2" /mnt/only/libhakmem.so
mount -t proc none /proc
cd /
shift 2
exec "$@" env HAKMEM_HEAP_PROFILE=1 HAKMEM_HEAP_PROFILE_RATE=16K \
    LD_PRELOAD=/mnt/only/libhakmem.so /mnt/only/inside
"""


def may_unshare() -> bool:
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return False
    tried = [*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.skipif(not LIBRARY.is_file(), reason="the library is not built"),
    pytest.mark.skipif(os.geteuid() != 0 or not may_unshare(), reason="no namespaces here"),
]


@pytest.fixture(scope="session")
def program(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("container")
    (folder / "grow.c").write_text(PROGRAM)
    return compile_c(folder / "grow", [folder / "grow.c"], "-g", "-fno-builtin")


@contextmanager
def container(program: Path, user: int):
    """The program's number as it is known here."""
    change = [*SET_USER, f"--reuid={user}", f"--regid={user}"]
    process = subprocess.Popen(
        [*UNSHARE, "sh", "-c", INSIDE, "sh", str(program), str(LIBRARY), *change],
        text=True, stdout=subprocess.PIPE)  # fmt: skip
    pid = 0
    try:
        assert select.select([process.stdout], [], [], 60)[0]
        assert process.stdout.readline() == "ready\n"
        [pid] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield int(pid)
    finally:
        if pid:
            os.kill(int(pid), signal.SIGKILL)
        else:
            process.kill()
        process.wait(60)
        process.stdout.close()


def profile(pid: int, folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*COMMAND, "--format", "json,folded", "--output", str(folder / "x"), str(pid)],
        text=True, capture_output=True, check=False)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("user", [0, NOBODY])
def test_functions_of_a_program_that_is_there_alone(program, tmp_path, user):
    with container(program, user) as pid:
        assert not Path("/mnt/only").exists()
        found = profile(pid, tmp_path)
        with (
            served(pid, name="inside") as (address, _),
            urllib.request.urlopen(f"{address}/report", timeout=60) as answer,
        ):
            assert b"keeps_it" in answer.read()
    assert found.returncode == 0, found.stderr
    assert "keeps_it grow.c:" in found.stdout
    assert "told by offset" not in found.stdout
    # It was copied a moment before the start.
    assert "changed since" not in found.stdout
    assert json.loads((tmp_path / "x.json").read_text())["pid"] == 1
    stacks = (tmp_path / "x.folded").read_text().splitlines()
    assert any(line.rpartition(" ")[0].endswith(";main;keeps_it") for line in stacks)


@pytest.mark.turns
def test_its_own_user_may_ask_and_another_is_told_in_one_line(program):
    with container(program, NOBODY) as pid:
        asked = "import sys; from hakmem.profiles import profile_page as p;" \
                "from hakmem.errors import UserError\n" \
                "import os; user = int(sys.argv[2]); os.setgroups([])\n" \
                "os.setgid(user); os.setuid(user)\n" \
                "try: print(p.ask(int(sys.argv[1])).name)\n" \
                "except UserError as error: print(error)"  # fmt: skip
        said = {
            user: subprocess.run([COMMAND[0], "-c", asked, str(pid), str(user)], text=True,
                                 capture_output=True, check=False)
            for user in (NOBODY, 1234)
        }  # fmt: skip
    assert said[NOBODY].stdout == "inside\n", said[NOBODY].stderr
    assert said[1234].stdout == (
        f"process {pid}: not permitted; it belongs to another user or is protected: "
        "be that user, or root\n"
    ), said[1234].stderr
