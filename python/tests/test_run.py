from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_build import BENCH, compile_c

from hakmem.commands.run import library_of
from hakmem.errors import UserError
from hakmem.running import in_place, threads, witness
from hakmem.running.programs import examine
from hakmem.running.proof import hakmem_served

pytestmark = pytest.mark.turns

# Counts its calls as hakmem counts its spans, under the same name, and knows one option.
SERVING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct { uint64_t alloc, free; } hak_os_stats;
int hakmem_option_set(const char *name, int64_t value) { return name == NULL || value < 0; }
void *malloc(size_t bytes) {
    static void *(*next)(size_t);
    if (next == NULL) *(void **)&next = dlsym(RTLD_NEXT, "malloc");
    hak_os_stats.alloc++;
    return next(bytes);
}
extern char **environ;
__attribute__((constructor)) static void complain(void) {
    for (char **e = environ; *e != NULL; e++) {
        int name = (int)strcspn(*e, "=");
        if (strncmp(*e, "HAKMEM_", 7) == 0 && strncmp(*e, "HAKMEM_KNOWN=", 13) != 0)
            fprintf(stderr, "hakmem: %.*s is not an option of this version: ignored\\n", name, *e);
    }
}
"""
ALLOCATES = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
    char *block = malloc(100);
    strcpy(block, argc > 1 ? argv[1] : "done");
    puts(block);
    if (argc > 2) sleep(1);
    return 3;
}
"""
OWN_MALLOC = """
#include <stddef.h>
static char memory[1 << 20];
static size_t used;
void *malloc(size_t bytes) { used += (bytes + 15) & ~15ul; return memory + used; }
void free(void *block) { (void)block; }
int main(void) { return malloc(10) == NULL; }
"""


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """Programs, and a library that serves them."""
    folder = tmp_path_factory.mktemp("run")
    for name, text in (("serving", SERVING), ("allocates", ALLOCATES), ("own", OWN_MALLOC)):
        (folder / f"{name}.c").write_text(text)
    compile_c(folder / "libserving.so", [folder / "serving.c"], "-shared", "-fPIC")
    compile_c(folder / "allocates", [folder / "allocates.c"])
    compile_c(folder / "static", [folder / "allocates.c"], "-static")
    compile_c(folder / "own", [folder / "own.c"], "-rdynamic", "-fno-builtin")
    return folder


@pytest.fixture
def run(made, monkeypatch):
    monkeypatch.setenv("HAKLAB_LIB", str(made / "libserving.so"))
    monkeypatch.delenv("LD_PRELOAD", raising=False)

    def start(*arguments: str, **more) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", "from hakmem.cli import main; main()", "run"]
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False, **more
        )

    return start


def test_program_keeps_its_status_output_and_input(run, made):
    found = run(str(made / "allocates"), "--profile")
    assert (found.returncode, found.stdout, found.stderr) == (3, "--profile\n", "")
    assert run("--", "/bin/cat", input="through").stdout == "through"


def test_proof_names_the_counter(run, made):
    found = run("--proof", "--", str(made / "allocates"))
    assert found.returncode == 3
    assert f"served {made}/allocates: " in found.stderr


def test_what_is_known_of_a_run_is_written(run, made, tmp_path):
    out = tmp_path / "run.json"
    found = run("--json", str(out), "--", str(made / "allocates"))
    document = json.loads(out.read_text())
    assert document["made_by"] == "hakmem run"
    assert document["served"] > 0
    assert (document["why"], document["exit_status"]) == ("", found.returncode)
    run("--json", str(out), "--", "/bin/sh", "-c", "exit 7")
    assert json.loads(out.read_text())["exit_status"] == 7


def test_preload_is_appended_to_and_never_doubled(run, made, monkeypatch, build):
    first = build / "libhakmem.so"
    monkeypatch.setenv("LD_PRELOAD", str(first))
    script = ("--", "/bin/sh", "-c", "echo $LD_PRELOAD")
    assert run(*script).stdout == f"{first}:{made}/libserving.so\n"
    monkeypatch.setenv("LD_PRELOAD", f"{made}/libserving.so")
    assert run(*script).stdout == f"{made}/libserving.so\n"


def test_end_by_a_signal_is_the_programs_and_told_as_by_a_shell_where_the_command_stays(run):
    script = ("--", "/bin/sh", "-c", "kill -SEGV $$")
    assert run(*script).returncode == -signal.SIGSEGV
    assert run("--proof", *script).returncode == 128 + signal.SIGSEGV


@pytest.mark.parametrize("option", [(), ("--set", "KNOWN=1")])
def test_the_program_takes_the_place_of_the_command(run, made, option):
    """Its process is the one that was started, without a child that it has not made."""
    script = "echo $$ $(cat /proc/$$/task/*/children) $(readlink /proc/$$/exe)"
    command = [sys.executable, "-c", "from hakmem.cli import main; main()", "run", *option]
    with subprocess.Popen([*command, "--", "/bin/sh", "-c", script], stdout=subprocess.PIPE,
                          text=True) as process:  # fmt: skip
        said = process.stdout.read().split()
    assert said[0] == str(process.pid)
    assert said[-1] == str(Path("/bin/sh").resolve())
    # The shells of $(…) alone.
    assert len(said) <= 4


def test_nobody_of_ours_stays_once_the_program_is_served(made, monkeypatch):
    """The observer is no child of the program's: it is found by what it keeps open."""
    monkeypatch.setattr(in_place, "FOLLOWED_S", 0.2)
    told, tell = os.pipe()
    library = made / "libserving.so"
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    # It lasts much longer than the observer may.
    words = [str(made / "allocates"), "a", "b"]
    pid = os.fork()
    if pid == 0:
        in_place.become(
            words, environment, library, lambda e: os.write(tell, b"%d" % bool(e.served))
        )
    os.close(tell)
    with os.fdopen(told, "rb") as said:
        assert said.read() == b"1"
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3


def test_program_that_cannot_be_started_is_told_once(run, tmp_path):
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF" + bytes(60))
    broken.chmod(0o755)
    found = run("--", str(broken))
    assert found.returncode == 126
    assert "cannot start" in found.stderr and found.stderr.count("\n") == 1


def test_a_command_that_has_just_begun_is_waited_for(made, monkeypatch):
    """As by `hakmem run -- X & hakmem profile $!`."""
    monkeypatch.setenv("HAKLAB_LIB", str(made / "libserving.so"))
    words = [sys.executable, "-m", "hakmem", "run", "--", str(made / "allocates"), "a", "b"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        threads.await_start(process.pid)
        # It has become the program, and would have been missed a moment before.
        assert threads.program_of(process.pid) == str(made / "allocates")
    for other in (["sleep", "60"], [sys.executable, "-m", "hakmem", "serve"]):
        with subprocess.Popen(other, stderr=subprocess.DEVNULL) as process:
            assert not threads.is_starting(process.pid)
            process.kill()


def test_commands_follow_one_that_waits_for_its_program(made, monkeypatch):
    monkeypatch.setenv("HAKLAB_LIB", str(made / "libserving.so"))
    command = [sys.executable, "-c", "from hakmem.cli import main; main()"]
    started = [*command, "run", "--proof", "--", "/bin/sh", "-c", "echo $$; read x"]
    pipe = subprocess.PIPE
    with subprocess.Popen(started, stdin=pipe, stdout=pipe, text=True) as waits:
        program = int(waits.stdout.readline())
        assert program != waits.pid
        assert threads.waited_for(waits.pid) == program
        assert threads.waited_for(program) == threads.waited_for(os.getpid()) == 0
        for words in (("profile",), ("explain",), ("top", "--once"), ("serve",)):
            found = subprocess.run([*command, *words, str(waits.pid)], capture_output=True,
                                   text=True, check=False)  # fmt: skip
            assert (
                f"process {waits.pid} is hakmem, which waits for process {program}" in found.stderr
            )
            assert f"process {program} (sh)" in found.stderr
        waits.stdin.close()


def test_termination_is_passed_on(made, monkeypatch, tmp_path):
    monkeypatch.setenv("HAKLAB_LIB", str(made / "libserving.so"))
    ready = tmp_path / "ready"
    script = f"trap 'echo told; exit 5' TERM; touch {ready}; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        [sys.executable, "-c", "from hakmem.cli import main; main()", "run", "--", "/bin/sh",
         "-c", script], stdout=subprocess.PIPE, text=True)  # fmt: skip
    end = time.monotonic() + 30
    while not ready.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    process.terminate()
    said, _ = process.communicate(timeout=30)
    assert (process.returncode, said) == (5, "told\n")


def test_static_program_is_named_and_still_runs(run, made):
    found = run("--", str(made / "static"))
    assert (found.returncode, found.stdout) == (3, "done\n")
    assert "is statically linked" in found.stderr
    strict = run("--strict", "--", str(made / "static"))
    assert (strict.returncode, strict.stdout) == (125, "")


def test_program_with_its_own_malloc_is_named(run, made):
    found = run("--", str(made / "own"))
    assert found.returncode == 0
    assert "brings its own malloc" in found.stderr


def test_program_behind_a_start_script_is_what_counts(run, made):
    found = run("--", "/bin/sh", "-c", f"sleep 0.2; exec {made}/static a b")
    assert found.returncode == 3
    assert "NOT SERVED" in found.stderr
    assert "statically linked" in found.stderr


def test_library_that_serves_nothing_is_found_out(run, monkeypatch, tmp_path, made):
    # As with a malloc of the program's own that its file does not show.
    idle = tmp_path / "idle.c"
    idle.write_text("struct { unsigned long long alloc; } hak_os_stats;\n")
    library = compile_c(tmp_path / "libidle.so", [idle], "-shared", "-fPIC")
    monkeypatch.setenv("HAKLAB_LIB", str(library))
    found = run("--", str(made / "allocates"))
    assert found.returncode == 3
    assert "NOT SERVED: it was loaded and served nothing" in found.stderr
    assert run("--strict", "--", str(made / "allocates")).returncode == 125


def test_dropped_preload_is_found_out(run, made):
    found = run("--", "/usr/bin/env", "-u", "LD_PRELOAD", str(made / "allocates"), "x" * 9)
    assert found.returncode == 3
    # `env` itself was served; either it or the program was looked at last.
    assert "Traceback" not in found.stderr


def test_options_reach_the_program_with_and_without_prefix(run):
    script = ("--", "/bin/sh", "-c", "echo $HAKMEM_KNOWN")
    assert run("--set", "KNOWN=5", *script).stdout == "5\n"
    assert run("--set", "HAKMEM_KNOWN=6", *script).stdout == "6\n"


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("--set", "NONESUCH=1", "--", "echo"), 2, "HAKMEM_NONESUCH is not an option"),
        (("--set", "KNOWN", "--", "echo"), 2, "'KNOWN' is not NAME=VALUE"),
        (("--set", "KNOWN=1", "--set", "HAKMEM_KNOWN=2", "--", "echo"), 2, "given twice"),
        (("--", "no-such-program"), 127, "no program 'no-such-program'"),
        ((), 2, "PROGRAM"),
    ],
)
def test_bad_command_lines_start_nothing(run, arguments, status, told):
    found = run(*arguments)
    assert (found.returncode, found.stdout) == (status, "")
    assert told in found.stderr


def test_missing_library_is_named(run, monkeypatch):
    monkeypatch.setenv("HAKLAB_LIB", "/nowhere/libhakmem.so")
    found = run("--", "/bin/true")
    assert found.returncode == 125
    assert "no library at /nowhere/libhakmem.so" in found.stderr


def test_script_without_interpreter_line_goes_to_the_shell(run, tmp_path):
    script = tmp_path / "plain"
    script.write_text("echo from $1\n")
    script.chmod(0o755)
    assert run("--", str(script), "shell").stdout == "from shell\n"


def test_setuid_and_capabilities_are_obstacles(made, tmp_path):
    copy = tmp_path / "copy"
    copy.write_bytes((made / "allocates").read_bytes())
    copy.chmod(0o755)
    assert examine([str(copy)]).obstacle == ""
    if os.geteuid() != 0:
        pytest.skip("only root can make a program of another user")
    os.chown(copy, 12345, 12345)
    copy.chmod(0o4755)
    assert "is setuid" in examine([str(copy)]).obstacle


def test_other_processor_and_musl_are_obstacles(made, tmp_path):
    data = bytearray((made / "allocates").read_bytes())
    musl = bytes(data).replace(b"/lib64/ld-linux-x86-64.so.2", b"/lib/ld-musl-x86_64.so.1\0\0\0")
    other = tmp_path / "other"
    other.write_bytes(musl)
    other.chmod(0o755)
    assert "uses musl" in examine([str(other)]).obstacle
    data[18:20] = (183).to_bytes(2, "little")
    other.write_bytes(data)
    assert "AARCH64" in examine([str(other)]).obstacle


def test_script_is_judged_by_its_interpreter(made, tmp_path):
    script = tmp_path / "script"
    script.write_text(f"#!{made}/static\n")
    script.chmod(0o755)
    assert "statically linked" in examine([str(script)]).obstacle
    script.write_text("#!/usr/bin/env -S sh -e\n")
    assert examine([str(script)]).path.name in ("sh", "dash", "bash")


def test_linked_allocator_is_a_remark(made, tmp_path, build):
    library = compile_c(tmp_path / "libjemalloc.so.2", [BENCH / "floor.c"], "-shared", "-fPIC")
    program = compile_c(tmp_path / "linked", [made / "allocates.c"],
                        "-Wl,--no-as-needed", str(library))  # fmt: skip
    found = examine([str(program)])
    assert found.obstacle == ""
    assert "linked with" in found.remark


def test_program_that_asks_jemalloc_is_told_of_its_library(run, made, tmp_path):
    source, program = tmp_path / "asks.c", tmp_path / "asks"
    library = tmp_path / "libjemalloc.so.2"
    source.write_text("int mallctl(void) { return 0; }\n")
    compile_c(library, [source], "-shared", "-fPIC")
    source.write_text("int mallctl(void); int main(void) { return mallctl(); }\n")
    compile_c(program, [source], str(library), f"-Wl,-rpath,{tmp_path}")
    assert examine([str(program)]).asks_jemalloc == "mallctl"
    assert examine([str(made / "allocates")]).asks_jemalloc == ""
    result = run("--", str(program))
    assert result.returncode == 0
    assert "libhakmem-je.so does" in result.stderr
    assert "libhakmem-je" not in run("--", str(made / "allocates")).stderr


def test_program_that_prints_no_counter_is_proved_from_its_memory(made, capfd):
    served = hakmem_served([str(made / "allocates")], made / "libserving.so")
    # It fails with status 3: a run with a problem proves nothing.
    assert not served
    served = hakmem_served(["/bin/cat", "/dev/null"], made / "libserving.so")
    assert served
    assert str(served).startswith("yes, ")
    assert not hakmem_served([str(made / "own")], made / "libserving.so")
    assert capfd.readouterr() == ("", "")


def test_system_without_ptrace_sees_programs_that_last(made, monkeypatch):
    monkeypatch.setattr(witness.Tracer, "_ask", lambda *_: False)
    library = made / "libserving.so"
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    lasting = witness.run_for_proof([str(made / "allocates"), "a", "b"], environment, library)
    assert (lasting.exit_status, bool(lasting.served)) == (3, True)
    short = witness.run_for_proof([str(made / "static")], environment, library)
    assert short.exit_status == 3
    assert short.why_unknown == "it ended too soon"


def test_a_signal_reaches_a_program_that_is_still_traced(made, monkeypatch):
    # Nothing is preloaded: it is traced to its end.
    library = made / "libserving.so"
    stops = "(sleep 0.2; kill -CONT $$) & kill -STOP $$; exit 6"
    stopped = witness.run_for_proof(["/bin/sh", "-c", stops], dict(os.environ), library)
    assert (stopped.exit_status, stopped.served) == (6, None)
    killed = witness.run_for_proof(
        ["/bin/sh", "-c", "kill -USR1 $$; sleep 5"], dict(os.environ), library
    )
    assert killed.exit_status == 128 + signal.SIGUSR1


def test_the_hardened_profile_is_a_library_of_its_own(tmp_path: Path) -> None:
    library = tmp_path / "libhakmem.so"
    assert library_of(None, library) == library_of("speed", library) == library
    with pytest.raises(UserError, match=r"libhakmem-hardened\.so is missing"):
        library_of("hardened", library)
    hardened = tmp_path / "libhakmem-hardened.so"
    hardened.touch()
    assert library_of("hardened", library) == hardened


def test_counter_of_a_library_that_is_just_being_mapped_is_not_read(tmp_path):
    """The loader maps the whole file first: what lies where the counter will be is its text."""
    source = tmp_path / "counted.c"
    source.write_text("unsigned long hak_os_stats = 7;\n")
    library = compile_c(tmp_path / "libcounted.so", [source], "-shared", "-fPIC")
    counter = witness.Counter(library)
    mapped = (
        "import mmap, sys\n"
        f"with open({str(library)!r}, 'rb') as file:\n"
        "    held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
    )
    for words, preload, expected in ((mapped, "", None), ("import sys\n", str(library), 7)):
        command = [sys.executable, "-c", f"{words}print('ready', flush=True)\nsys.stdin.read()"]
        environment = {**os.environ, "LD_PRELOAD": preload}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        ) as child:
            assert child.stdout.readline() == b"ready\n"
            assert counter.read(child.pid) == expected
            child.stdin.close()


def test_program_whose_memory_may_not_be_read_is_not_told_to_be_unserved(knowing, monkeypatch):
    """Root may read all: what others meet in a program of the rights 0111 stands here for that."""
    monkeypatch.setattr(witness, "counter_offset", lambda _library: 0)

    def barred(_pid: int) -> str:
        raise PermissionError

    plain = ["/bin/sleep", "0.05"]
    assert witness.run_for_proof(plain, dict(os.environ), knowing).why_unknown == ""
    monkeypatch.setattr(witness, "program_of", barred)
    found = witness.run_for_proof(plain, dict(os.environ), knowing)
    assert (found.served, found.why_unknown) == (None, "its memory may not be read")


@pytest.mark.parametrize("name", ["INT", "QUIT", "TERM"])
@pytest.mark.parametrize(
    ("command", "has_terminal"),
    [(("run",), True), (("run",), False), (("explain", "--after", "20"), False)],
)
def test_signal_of_a_supervisor_and_of_a_terminal_reach_the_program_once(
    name, command, has_terminal, knowing, tmp_path
):
    """A supervisor signals our process alone; a terminal signals all in its foreground."""
    number, script = signal.Signals[f"SIG{name}"], tmp_path / "program.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "def count(*_): print('got', flush=True)\n"
        f"signal.signal({number.value}, count)\n"
        "print('ready', flush=True)\n"
        "end = time.monotonic() + 0.8\n"
        "while time.monotonic() < end: time.sleep(0.1)\n"
        "print('end', flush=True)\n"
    )
    arguments = [sys.executable, "-m", "hakmem", *command, "--", sys.executable, str(script)]
    if has_terminal:
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(sys.executable, arguments)
        said = os.fdopen(terminal, buffering=1)
    else:
        process = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True)  # fmt: skip
        pid, said = process.pid, process.stdout
    with said:
        assert said.readline().strip() == "ready"
        if has_terminal and name != "TERM":
            os.write(terminal, {"INT": b"\x03", "QUIT": b"\x1c"}[name])
        else:
            os.kill(pid, number)
        # A terminal shows ^C as well.
        lines = [said.readline().strip()[-3:] for _ in range(2)]
    assert lines == ["got", "end"]
    if has_terminal:
        os.waitpid(pid, 0)
    else:
        process.wait()
