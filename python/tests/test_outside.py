"""Heap profiles of processes that were started without a setting, with the real library."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import struct
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from small_build import compile_c
from test_profile import COMMAND
from test_profile_container import NOBODY, SET_USER, UNSHARE, may_unshare
from test_serve import get, served

from hakmem.errors import UserError
from hakmem.profiles import outside

LIBRARY = Path(__file__).resolve().parents[2] / "build" / "release" / "libhakmem.so"
pytestmark = [
    pytest.mark.turns,
    pytest.mark.skipif(not LIBRARY.is_file(), reason="the library is not built"),
]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")

# A thread allocates, unless it rests; the first one obeys. `state` tells whether it is sampled.
PROGRAM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
static volatile int rests;
static void *kept[1 << 12];
__attribute__((noinline)) void keeps_it(unsigned i) {
    free(kept[i % (1 << 12)]);
    void *volatile p = kept[i % (1 << 12)] = malloc(2000);
    memset(p, 1, 2000);
    __asm__ volatile("" ::: "memory");
}
static void *work(void *unused) {
    for (unsigned i = 0;; i++) {
        if (!rests) keeps_it(i);
        if (i % 1000 == 0 || rests) usleep(1000);
    }
    return unused;
}
__attribute__((weak)) int
hakmem_profile_write(int, int, int (*)(void *, const void *, size_t), void *);
static int note(void *to, const void *text, size_t bytes) {
    *(int *)to = memmem(text, bytes, "\\"stopped_ms\\":0,", 15) != NULL;
    return 0;
}
static void say(const char *word, int number) {
    char line[100];
    int length = snprintf(line, sizeof line, "%s %d\\n", word, number);
    if (write(1, line, length) != length) _exit(1);
}
static void begin(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, NULL) != 0) _exit(1);
}
#define ENDS_AT(call) \\
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), \\
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
static void enter_sandbox(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), ENDS_AT(openat), ENDS_AT(readlinkat), ENDS_AT(prctl),
        ENDS_AT(memfd_create), ENDS_AT(clone), ENDS_AT(clone3), ENDS_AT(rt_sigaction),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof steps / sizeof *steps, steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &filter)) _exit(1);
}
int main(int argc, char **argv) {
    rests = argc > 1 && !strcmp(argv[1], "rests");
    if (argc > 1 && !rests) {
        for (unsigned i = 0; i < 100; i++) keeps_it(i);
        enter_sandbox();
        say("ready", getpid());
        work(NULL);
    }
    begin();
    say("ready", getpid());
    for (char line[100]; fgets(line, sizeof line, stdin) != NULL;) {
        int is_on = -1;
        if (!strcmp(line, "state\\n")) {
            if (hakmem_profile_write) hakmem_profile_write(1, 2, note, &is_on);
            say("state", is_on);
        } else if (!strcmp(line, "fork\\n")) {
            int child = fork();
            if (child == 0) {
                begin();
                sleep(1);
                if (hakmem_profile_write) hakmem_profile_write(1, 2, note, &is_on);
                say("state", is_on);
                _exit(0);
            }
        } else if (!strcmp(line, "exec\\n")) {
            execl(argv[0], argv[0], "rests", NULL);
        } else if (!strcmp(line, "rest\\n")) {
            rests = 1;
            say("rests", 1);
        }
    }
    return 0;
}
"""
OFF, ON = 0, 1
# Ten looks of a command that samples.
SAMPLED_S = 2.5


@pytest.fixture(scope="session")
def program(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("outside")
    (folder / "subject.c").write_text(PROGRAM)
    return compile_c(folder / "subject", [folder / "subject.c"], "-g", "-fno-builtin", "-pthread")


class Subject:
    def __init__(self, process: subprocess.Popen) -> None:
        self.process = process
        self.pid = int(self.hear("ready"))

    def hear(self, word: str) -> str:
        said, _, rest = self.process.stdout.readline().partition(" ")
        assert said == word, (said, rest)
        return rest.strip()

    def tell(self, word: str) -> None:
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    @property
    def state(self) -> int:
        self.tell("state")
        return int(self.hear("state"))

    def comes_to(self, state: int, within_s: float = 30) -> None:
        end = time.monotonic() + within_s
        while self.state != state:
            assert time.monotonic() < end, self.state
            time.sleep(0.05)

    @property
    def resources(self) -> tuple[int, int]:
        return tuple(
            len(list(Path(f"/proc/{self.pid}/{name}").iterdir())) for name in ("fd", "task")
        )

    @property
    def words(self) -> tuple:
        with Path(f"/proc/{self.pid}/mem").open("rb", 0) as memory:
            place = outside.find_words(memory.fileno(), outside.mappings_of(self.pid))
            return outside.WORDS.unpack(outside.at(memory.fileno(), place, outside.WORDS.size))

    @property
    def beat(self) -> int:
        return self.words[1]

    def is_sampled(self) -> None:
        """It has answered, and the command has had time to look at the answer."""
        self.comes_to(ON)
        end = time.monotonic() + 60
        while (sequence := self.words[4]) == 0 or sequence % 2 != 0:
            assert time.monotonic() < end, sequence
            time.sleep(0.05)
        time.sleep(SAMPLED_S)


@contextmanager
def running(program: Path, *arguments: str, preload: Path | None = LIBRARY, before=()):
    environment = {**os.environ, **({"LD_PRELOAD": str(preload)} if preload else {})}
    process = subprocess.Popen([*before, program, *arguments], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True, env=environment)  # fmt: skip
    try:
        yield Subject(process)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def subject(program):
    with running(program) as one:
        yield one


def command(subject: int | Subject, folder: Path, *arguments: str, before=()) -> subprocess.Popen:
    pid = getattr(subject, "pid", subject)
    whole = [*before, *COMMAND, "--format", "json", "--output", folder, *arguments, pid]
    return subprocess.Popen(list(map(str, whole)), cwd=folder, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def found(process: subprocess.Popen, folder: Path, status: int = 0) -> dict:
    out, err = process.communicate(timeout=100)
    assert process.returncode == status, err
    return json.loads((folder / re.search(r"Written: (\S+)", out)[1]).read_text())


def refused(process: subprocess.Popen) -> str:
    _, err = process.communicate(timeout=100)
    assert process.returncode == 1, err
    assert err.count("\n") == 1, err
    return err


def test_it_is_sampled_and_as_before_afterwards(subject, tmp_path):
    before = subject.resources
    process = command(subject, tmp_path, "--seconds", "1", "--rate", "16K")
    document = found(process, tmp_path)
    assert document["rate"] == 16 << 10
    assert document["taken_ms"] - document["started_ms"] >= 1000
    assert document["samples"]["taken"] > 10
    assert document["program"].endswith("/subject")
    assert any(line.endswith("/subject") for line in document["maps"])
    subject.comes_to(OFF)
    assert subject.resources == before
    again = found(command(subject, tmp_path, "--seconds", "1"), tmp_path)
    assert again["rate"] == 512 << 10, "what the first one asked for is gone"
    assert again["started_ms"] > document["taken_ms"]


def test_its_functions_are_named(subject, tmp_path):
    out, _ = command(subject, tmp_path, "--seconds", "1").communicate(timeout=100)
    assert re.search(r"keeps_it subject\.c:\d+ ← work", out), out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_command_switches_off(subject, tmp_path, number):
    process = command(subject, tmp_path, "--seconds", "100")
    subject.comes_to(ON)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert subject.beat == 0
    subject.comes_to(OFF)


def test_a_killed_command_leaves_an_end(subject, tmp_path):
    process = command(subject, tmp_path, "--seconds", "100")
    subject.comes_to(ON)
    process.kill()
    process.communicate(timeout=60)
    assert subject.beat != 0
    subject.comes_to(OFF)


def test_two_commands_have_one_profile(subject, tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    long = command(subject, folders[0], "--seconds", "100")
    subject.comes_to(ON)
    first = found(command(subject, folders[1], "--seconds", "1"), folders[1])
    assert subject.beat != 0
    # It has begun long ago, and shows what it has.
    long.send_signal(signal.SIGINT)
    second = found(long, folders[0], status=130)
    assert first["started_ms"] == second["started_ms"]
    assert first["stopped_ms"] == second["stopped_ms"] == 0
    assert subject.beat == 0


def test_every_few_seconds(subject, tmp_path):
    process = command(subject, tmp_path, "--every", "1")
    names = [tmp_path / f"subject.{subject.pid}.heap.{n}.json" for n in (1, 2)]
    end = time.monotonic() + 60
    while not names[1].exists():
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    one, two = (json.loads(name.read_text()) for name in names)
    assert one["started_ms"] == two["started_ms"]
    assert one["total"]["bytes"] < two["total"]["bytes"]
    subject.comes_to(OFF)


def test_a_child_is_not_sampled(subject, tmp_path):
    process = command(subject, tmp_path, "--seconds", "100")
    subject.comes_to(ON)
    subject.tell("fork")
    assert subject.hear("state") == str(OFF)
    assert subject.state == ON
    process.kill()
    process.communicate()


def test_another_program_in_its_place_is_not_touched(subject, tmp_path):
    process = command(subject, tmp_path, "--seconds", "3")
    subject.comes_to(ON)
    subject.tell("exec")
    assert subject.hear("ready") == str(subject.pid)
    out, err = process.communicate(timeout=100)
    assert outside.ENDS in err
    # An answer that was there before is shown.
    assert (process.returncode == 0) == ("Written: " in out) == (f"{outside.ENDS}, after " in err)
    assert subject.beat == 0


def cut_short(
    process: subprocess.Popen, folder: Path, status: int, why: str, seconds: int = 100
) -> None:
    out, err = process.communicate(timeout=100)
    assert process.returncode == status, err
    told = rf", after \d+\.\d of {seconds} s: this is what was sampled until then"
    assert re.search(why + told, err)
    document = json.loads((folder / re.search(r"Written: (\S+)", out)[1]).read_text())
    assert document["samples"]["taken"] > 0 and document["stacks"] and document["maps"]


def test_what_was_sampled_before_the_end_of_the_process_is_kept(subject, tmp_path):
    process = command(subject, tmp_path, "--seconds", "100")
    subject.is_sampled()
    subject.process.kill()
    subject.process.wait()
    cut_short(
        process,
        tmp_path,
        0,
        r"(there is no process \d+ \(any more\)|it runs another program now, or ends)",
    )


@pytest.mark.parametrize("ends", ["in another program", "without mappings"])
def test_an_answer_whose_process_ends_meanwhile_is_none(subject, monkeypatch, ends):
    def end(pid: int) -> list[str]:
        if ends == "without mappings":
            return []
        subject.tell("exec")
        assert subject.hear("ready") == str(pid)
        return ["another program's"]

    with outside.source(subject.pid) as source:
        source.first(0.1)
        monkeypatch.setattr(outside, "mapping_lines", end)
        with pytest.raises(UserError, match=outside.ENDS):
            source.whole_answer()


def test_what_was_sampled_before_an_interrupt_is_shown(subject, tmp_path):
    process = command(subject, tmp_path, "--seconds", "100")
    subject.is_sampled()
    process.send_signal(signal.SIGINT)
    cut_short(process, tmp_path, 130, "interrupted")
    subject.comes_to(OFF)


def test_a_terminal_sees_how_long_it_will_still_take(subject, tmp_path):
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        words = [*COMMAND, "--format", "json", "--seconds", "2", str(subject.pid)]
        os.execv(words[0], words)
    said = b""
    with suppress(OSError):
        while data := os.read(terminal, 4096):
            said += data
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0
    assert {b"2 s left", b"1 s left"} & set(re.findall(rb"\d s left", said)), said


def test_one_that_is_stopped(subject, tmp_path):
    os.kill(subject.pid, signal.SIGSTOP)
    # Far below what an answer is waited for.
    for arguments in (("--seconds", "100"), ("--every", "100")):
        assert "it is stopped" in refused(command(subject, tmp_path, *arguments))
    os.kill(subject.pid, signal.SIGCONT)
    time.sleep(0.5)
    assert subject.state == -1, "it is not sampled for somebody who has gone"


def test_one_that_is_stopped_meanwhile(subject, tmp_path):
    process = command(subject, tmp_path, "--seconds", "4")
    subject.is_sampled()
    time.sleep(0.5)
    os.kill(subject.pid, signal.SIGSTOP)
    try:
        cut_short(process, tmp_path, 0, r"it is stopped \(kill -CONT lets it go on\)", 4)
    finally:
        os.kill(subject.pid, signal.SIGCONT)


def test_one_at_rest(program, tmp_path):
    with running(program, "rests") as subject:
        told = refused(command(subject, tmp_path, "--seconds", "1"))
    assert "it has not allocated within 1 s" in told


def test_one_that_comes_to_rest(subject, tmp_path):
    process = command(subject, tmp_path, "--seconds", "4")
    subject.comes_to(ON)
    time.sleep(1.5)
    subject.tell("rest")
    subject.hear("rests")
    assert found(process, tmp_path)["samples"]["taken"] > 0


def test_one_in_a_sandbox(program, tmp_path):
    with running(program, "sandbox") as subject:
        document = found(command(subject, tmp_path, "--seconds", "1"), tmp_path)
        assert document["samples"]["taken"] > 0
        time.sleep(0.5)
        assert subject.process.poll() is None


def test_one_without_hakmem(program, tmp_path):
    with running(program, preload=None) as subject:
        told = refused(command(subject, tmp_path, "--seconds", "1"))
    assert "keeps no heap profile" in told
    assert "no hakmem in it" in told


def test_an_older_library(program, tmp_path):
    note = struct.pack("<III", 7, 8, 1) + b"hakmem\0"
    data = LIBRARY.read_bytes()
    assert data.count(note) == 1
    older = tmp_path / "libhakmem.so"
    older.write_bytes(data.replace(note, note[:12] + b"nobody\0"))
    with running(program, preload=older) as subject:
        told = refused(command(subject, tmp_path, "--seconds", "1"))
    assert "or an older one" in told


def test_a_static_program(tmp_path):
    (tmp_path / "subject.c").write_text(PROGRAM)
    archive = LIBRARY.with_name("libhakmem.a")
    compile_c(tmp_path / "subject", [tmp_path / "subject.c"], "-static", "-fno-builtin",
              "-pthread", "-Wl,--gc-sections", archive)  # fmt: skip
    with running(tmp_path / "subject", preload=None) as subject:
        document = found(command(subject, tmp_path, "--seconds", "1"), tmp_path)
        assert document["samples"]["taken"] > 0


@as_root
def test_another_user_is_told_in_one_line(subject):
    other = [*SET_USER, "--reuid", str(NOBODY), "--regid", str(NOBODY)]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        told = refused(command(subject, Path(folder), "--seconds", "1", before=other))
    assert "not permitted" in told
    assert subject.state == -1


@pytest.mark.skipif(os.geteuid() != 0 or not may_unshare(), reason="no namespaces here")
def test_in_a_container(program, tmp_path):
    with running(program, before=UNSHARE) as subject:
        assert subject.pid == 1
        children = Path(f"/proc/{subject.process.pid}/task/{subject.process.pid}/children")
        inner = int(children.read_text())
        document = found(command(inner, tmp_path, "--seconds", "1"), tmp_path)
        os.kill(inner, signal.SIGKILL)
    assert document["pid"] == 1
    assert document["samples"]["taken"] > 0


def test_served(subject):
    with served(subject.pid, name="subject") as (address, process):
        assert subject.state == ON
        status, _, kind = get(f"{address}/debug/pprof/heap?seconds=1")
        assert (status, kind) == (200, "application/octet-stream")
        process.terminate()
        assert process.wait(60) == 0
    assert subject.beat == 0
    subject.comes_to(OFF)


def test_a_tracer_switches_it_by_the_semaphore(subject):
    notes = subprocess.run(["readelf", "-nW", LIBRARY], text=True, capture_output=True, check=True)
    place = re.search(
        r"Name: sample_alloc\s+Location: \S+, Base: \S+, Semaphore: (\S+)", notes.stdout
    )
    if place is None:
        pytest.skip("built without probes")
    base = next(m.start for m in outside.mappings_of(subject.pid) if "libhakmem" in m.path)
    with Path(f"/proc/{subject.pid}/mem").open("r+b", 0) as memory:
        os.pwrite(memory.fileno(), struct.pack("<H", 1), base + int(place[1], 16))
        subject.comes_to(ON)
        time.sleep(1)
        assert subject.state == ON
        os.pwrite(memory.fileno(), struct.pack("<H", 0), base + int(place[1], 16))
        subject.comes_to(OFF)
