"""Processes whose first thread has ended, which have ended as a whole, or have not allocated yet:
/proc answers of each as if it were not permitted, or empty."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_build import compile_c

from hakmem.processes import process_memory, stats_page
from hakmem.running import threads, witness

pytestmark = pytest.mark.turns

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("HAKLAB_BUILD", REPOSITORY / "build/release")).resolve()
LIBRARY = BUILD / "libhakmem.so"

# With an argument its first thread ends, and another one has memory and rests.
LEAVES = """
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char *volatile kept[3000];
static void *rest(void *unused) {
    for (int i = 0; i < 3000; i++) kept[i] = memset(malloc(3000), 1, 3000);
    usleep(300000);
    for (int i = 0; i < 3000; i += 2) { free(kept[i]); kept[i] = malloc(2000); }
    (void)!write(1, "ready\\n", 6);
    for (;;) pause();
    return unused;
}
int main(int argc, char **argv) {
    pthread_t thread;
    (void)argv;
    if (argc == 1) {
        (void)!write(1, "ready\\n", 6);
        for (;;) pause();
    }
    pthread_create(&thread, NULL, rest, NULL);
    pthread_exit(NULL);
}
"""


@pytest.fixture(scope="module")
def leaves(tmp_path_factory) -> Path:
    if not LIBRARY.is_file():
        pytest.skip("the library is not built")
    folder = tmp_path_factory.mktemp("leaves")
    (folder / "leaves.c").write_text(LEAVES)
    compile_c(folder / "leaves", [folder / "leaves.c"], "-pthread", "-fno-builtin")
    return folder / "leaves"


@contextmanager
def started(*command: str, preload: Path | None = LIBRARY):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HAKMEM_")}
    environment |= {"HAKMEM_STATS_PAGE": "1", "HAKMEM_HEAP_PROFILE": "1"}
    if preload is not None:
        environment["LD_PRELOAD"] = str(preload)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def hakmem(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from hakmem.cli import main; main()"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


COMMANDS = (("explain",), ("top", "--once"), ("profile", "--format", "json"))


def test_all_is_read_where_the_first_thread_has_ended(leaves, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with started(str(leaves), "leave") as process:
        pid = process.pid
        assert Path(f"/proc/{pid}/maps").read_text() == "", "what it is about"
        assert threads.seen_by(pid) != pid
        assert not threads.is_zombie(pid)
        assert process_memory.resident_bytes(pid) > 3 << 20
        assert process_memory.rollup(pid)["Rss"] > 3 << 20
        assert any(str(leaves) in one.name for one in process_memory.mappings(pid))
        assert witness.program_of(pid) == str(leaves)
        assert witness.Counter(LIBRARY).read(pid) > 0
        for command in COMMANDS:
            found = hakmem(*command, str(pid))
            assert found.returncode == 0, found.stderr
        explained = hakmem("explain", "--json", "e.json", str(pid))
        assert explained.returncode == 0, explained.stderr
        [account] = json.loads(Path("e.json").read_text())["explanations"]
        assert account["rss"] > 3 << 20
        [report] = tmp_path.glob("*.heap.json")
        assert str(leaves) in report.read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_process_that_has_ended_is_told_as_such(command):
    process = subprocess.Popen(["/bin/true"])
    try:
        while not threads.is_zombie(process.pid):
            time.sleep(0.001)
        found = hakmem(*command, str(process.pid))
    finally:
        process.wait()
    assert found.returncode == 1
    assert found.stderr.count("\n") == 1
    assert "has ended, and nothing of it is left" in found.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_nobody_is_told_to_set_what_is_set(leaves, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with started(str(leaves)) as process:
        found = hakmem(*command, str(process.pid))
        path = stats_page.page_file(process.pid)
    if found.returncode == 0:
        assert path is not None, "the loader may have allocated"
    else:
        assert found.stderr.count("\n") == 1
        assert "yet: it has HAKMEM_" in found.stderr
        assert "start it with" not in found.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_library_that_was_not_loaded_is_told(leaves, command):
    with started(str(leaves), preload=None) as process:
        found = hakmem(*command, str(process.pid))
    assert found.returncode == 1
    assert "=1, and hakmem was not loaded into it" in found.stderr


@pytest.mark.parametrize(
    "arguments", [("explain", "0"), ("top", "0"), ("top", "--once", "00"), ("profile", "0"),
                  ("serve", "0"), ("profile", "diff", "0", "0")],
)  # fmt: skip
def test_no_process_is_0(arguments):
    found = hakmem(*arguments)
    assert found.returncode == 2
    assert found.stderr == f"Error: '{arguments[-1]}' is no PID, which is a number such as 1234\n"
