"""One case, one sentence and one status, in every command (docs/comparing.md, Exit statuses)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from small_build import compile_c

from hakmem.cli import main
from hakmem.processes import process_memory
from hakmem.running import programs
from hakmem.running.proof import parse_stats

ROOT = Path(__file__).resolve().parents[2]
OWN_MALLOC = """
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
struct { uint64_t alloc, free; } hak_os_stats;
static char memory[1 << 20];
static size_t used;
void *malloc(size_t bytes) {
    hak_os_stats.alloc++;
    used += (bytes + 15) & ~15ul;
    return memory + used;
}
void free(void *block) { (void)block; }
int main(int argc, char **argv) {
    if (argc > 5) printf("hakmem: version %s\\n", argv[0]);
    return strdup("x") == NULL;
}
"""
# Options that each command needs before its program.
TAKE_A_PROGRAM = {
    "run": (),
    "explain": ("--after", "0.01"),
    "profile": ("--format", "folded"),
    "record": (),
    "compare": ("--pairs", "1", "--with", "hakmem,glibc"),
    "ab": ("--b", "X=1", "--pairs", "2", "--max-pairs", "2"),
}
ALL = sorted(TAKE_A_PROGRAM)


@pytest.fixture(autouse=True)
def cases(tmp_path, monkeypatch, knowing, build) -> Path:
    """A folder with programs that cannot be had, as the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path / "peers"))
    recorder = build / "bench" / "librecord.so"
    if not recorder.exists():
        recorder.write_bytes((build / "bench" / "libfloor.so").read_bytes())
    (tmp_path / "plain").write_text("no program\n")
    (tmp_path / "folder").mkdir()
    script = tmp_path / "orphan"
    script.write_text("#!/nowhere/interpreter\n")
    script.chmod(0o755)
    return tmp_path


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("statuses")
    (folder / "empty.c").write_text("int main(void) { return 0; }\n")
    (folder / "own.c").write_text(OWN_MALLOC)
    compile_c(folder / "static", [folder / "empty.c"], "-static")
    compile_c(folder / "idle", [folder / "empty.c"])
    compile_c(folder / "holds", [folder / "own.c"], "-rdynamic", "-fno-builtin")
    compile_c(folder / "fixed", [folder / "own.c"], "-no-pie", "-rdynamic", "-fno-builtin")
    return folder


def run(command: str, *arguments: str):
    return CliRunner().invoke(main, [command, *TAKE_A_PROGRAM[command], *arguments])


@pytest.mark.parametrize("command", ALL)
@pytest.mark.parametrize(
    ("program", "status", "told"),
    [
        ("no-such-program", 127, "there is no program 'no-such-program'"),
        ("./none", 127, "there is no program './none'"),
        ("", 127, "there is no program ''"),
        # As root the same case as a folder that may not be searched.
        ("n" * 300, 127, f"there is no program '{'n' * 300}'"),
        (f"./{'n' * 300}", 126, f"cannot start './{'n' * 300}': File name too long"),
        ("plain", 127, "there is no program 'plain' (./plain is in this folder)"),
        ("./plain", 126, "cannot start './plain': it is not executable"),
        ("./folder", 126, "cannot start './folder': it is a folder"),
        ("/dev/null", 126, "cannot start '/dev/null': it is no file"),
        (
            "./orphan",
            126,
            "cannot start './orphan': its interpreter /nowhere/interpreter is missing or not "
            "executable",
        ),
    ],
)
def test_program_that_cannot_be_started(command, program, status, told):
    found = run(command, "--", program)
    assert found.exit_code == status, found.output
    assert found.output.partition("; nor is it a heap profile")[0].strip() == f"Error: {told}"


def test_program_that_one_side_alone_does_not_find():
    found = CliRunner().invoke(main, ["ab", "--b", "PATH=/nowhere", "--", "ls"])
    assert found.exit_code == 127, found.output
    assert found.output.endswith("Error: cannot start 'ls': No such file or directory\n")


@pytest.mark.parametrize("command", ALL)
def test_mistyped_option_is_not_the_program(command):
    for option in ("--proff", "-Q"):
        found = run(command, option, "--", "/bin/true")
        assert found.exit_code == 2, found.output
        assert re.search(f"No such option:? '?{option}", found.output)


@pytest.mark.turns
@pytest.mark.parametrize("command", ALL)
def test_what_a_terminal_obeys_is_in_no_name(command, cases, made):
    """A name of a program, of a folder and of an allocator; in messages of one line."""
    folder = cases / "a\x1b[31m\nb"
    folder.mkdir()
    program = folder / "p\x07\x9b"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    for there in (program, folder / "none", folder):
        found = hakmem(command, *TAKE_A_PROGRAM[command], "--", str(there), "0.1")
        said = found.stdout + found.stderr
        assert "Traceback" not in said
        assert not {"\x1b", "\x07", "\x9b"} & set(said), said
        if there != program:
            assert found.stderr.count("\n") == 1
            assert r"a\x1b[31m\nb" in found.stderr


def test_name_of_an_allocator_is_shown_as_others(build):
    name = "new\x1b[2J"
    found = CliRunner().invoke(main, ["compare", "--with", "glibc", "--pairs", "1", "--lib",
                                      f"{name}={build}/libhakmem.so", "--", "/bin/ls"])  # fmt: skip
    assert "\x1b" not in found.output
    assert r"new\x1b[2J" in found.output


def test_in_every_command_options_are_those_before_the_program():
    context = click.Context(main)
    commands = [main.get_command(context, name) for name in main.list_commands(context)]
    found = []
    for command in commands:
        rest = [p for p in command.params if isinstance(p, click.Argument) and p.nargs == -1]
        if any(p.name in ("program", "target") for p in rest):
            found.append(command.name)
            assert "ignore_unknown_options" not in command.context_settings, command.name
            assert command.context_settings["allow_interspersed_args"] is False, command.name
    assert set(ALL) <= set(found)


@pytest.mark.parametrize("command", [name for name in ALL if name != "run"])
def test_static_program_is_refused(command, made):
    found = run(command, "--", str(made / "static"))
    assert found.exit_code == 125, found.output
    assert found.output.startswith(f"Error: it cannot be served: {made}/static is statically")


@pytest.mark.turns
def test_run_starts_it_and_says_so_and_strict_refuses(made):
    started = hakmem("run", "--", str(made / "static"))
    assert (started.returncode, "it cannot be served: " in started.stderr) == (0, True)
    assert hakmem("run", "--strict", "--", str(made / "static")).returncode == 125


def hakmem(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from hakmem.cli import main; main()"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", ALL)
def test_missing_library_of_hakmem(command, monkeypatch):
    monkeypatch.setenv("HAKLAB_LIB", "/nowhere/libhakmem.so")
    more = ("--on", "hakmem") if command == "record" else ()
    found = run(command, *more, "--", "/bin/true")
    assert (found.exit_code, found.output) == (
        125,
        "Error: hakmem: no library at /nowhere/libhakmem.so: build first (make run)\n",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "--with", "glibc,rpmalloc", "--", "/bin/true"),
        ("ab", "--b-lib", "rpmalloc", "--", "/bin/true"),
        ("record", "--on", "rpmalloc", "--", "/bin/true"),
        ("tail", "--with", "glibc,rpmalloc"),
    ],
)
def test_peer_that_is_not_built(arguments, build):
    latency = build / "bench" / "bench_latency"
    if not latency.exists():
        latency.symlink_to("/bin/true")
    found = CliRunner().invoke(main, list(arguments))
    assert (found.exit_code, found.output) == (
        2,
        "Error: rpmalloc: not built (hakmem peers build rpmalloc)\n",
    )


@pytest.mark.turns
def test_program_that_holds_hakmem_is_told_as_such(made):
    for name in ("holds", "fixed"):
        path = made / name
        found = programs.examine([str(path)])
        assert found.holds_hakmem
        ran = hakmem("run", "--proof", "--strict", "--", str(path))
        assert ran.returncode == 0, ran.stderr
        assert f"served {path}: " in ran.stderr
        assert "not be served" not in ran.stderr
        compared = run("compare", "--", str(path))
        assert compared.exit_code == 125
        assert f"{path} holds hakmem itself" in compared.output
    assert hakmem("run", "--profile", "hardened", "--", str(made / "holds")).returncode != 0


def test_mark_of_hakmem_is_in_its_sources():
    text = (ROOT / "src" / "life" / "init.c").read_text()
    assert programs.MARK_OF_HAKMEM.decode().replace("\n", "\\n") in text


def test_program_linked_with_the_library_is_told_as_such(made, tmp_path, knowing):
    library = tmp_path / "libhakmem.so.0"
    library.write_bytes(knowing.read_bytes())
    linked = compile_c(tmp_path / "linked", [made / "empty.c"], "-Wl,--no-as-needed", str(library))
    found = programs.examine([str(linked)])
    assert (found.obstacle, found.holds_hakmem) == ("", False)
    assert "is linked with" in found.remark and "libhakmem.so.0" in found.remark


def test_a_process_with_two_copies_is_one_process():
    text = "[SS_OS_STATS] alloc=26 free=0\n[SS_OS_STATS] alloc=0 free=0\n"
    assert parse_stats(text) == (26, 1)


@pytest.mark.parametrize("names", ["hakmem,glibc", "glibc"])
def test_program_that_allocates_nothing_is_not_compared(made, names):
    found = CliRunner().invoke(main, ["compare", "--with", names, "--", str(made / "idle")])
    assert found.exit_code == 1, found.output
    assert found.output.endswith(
        "Error: the program allocates nothing, or by a malloc of its own: nothing to compare\n"
    )
    assert "beside" not in found.output


def test_ab_of_a_program_that_allocates_nothing(made):
    found = run("ab", "--", str(made / "idle"))
    assert found.exit_code == 1
    assert "the program allocates nothing, or by a malloc of its own" in found.output


@pytest.mark.parametrize("command", ["compare", "ab"])
def test_metric_is_judged_before_anything_runs(command):
    for arguments, told in (
        (("--metric", "took [0-9]+"), "has no group"),
        (("--lower-is-better",), "--lower-is-better is the direction of --metric"),
    ):
        found = run(command, *arguments, "--", "/usr/bin/touch", "started")
        assert (found.exit_code, told in found.output) == (2, True), found.output
        assert not Path("started").exists()


def test_root_is_not_told_to_be_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "this is root already" in process_memory.how_permitted()
    assert "or root" not in process_memory.how_permitted()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert process_memory.how_permitted().endswith("be that user, or root")


@pytest.mark.turns
@pytest.mark.parametrize("first", ["", "#!\n", "#! \t\n"])
def test_script_without_interpreter_is_started_by_all(cases, first):
    """By the shell, as by env: the kernel takes a #! with nothing behind it for none."""
    script = cases / "bare"
    script.write_text(f"{first}exit 7\n")
    script.chmod(0o755)
    for command in (("run",), ("explain", "--after", "5")):
        found = hakmem(*command, "--", "./bare")
        assert "Traceback" not in found.stderr
        assert found.returncode == 7, found.stderr
    # As the commands start it through the launcher, which is no shell.
    words = programs.arguments_of(["./bare", "word"])
    assert words == ["/bin/sh", str(programs.locate("./bare")), "word"]


@pytest.mark.turns
def test_run_of_a_program_that_allocates_nothing_has_its_status_and_says_so(made):
    """Nothing failed, so that the status is the program's; --strict is for who needs the proof."""
    for options, status in (((), 0), (("--proof",), 0), (("--strict",), 125)):
        found = hakmem("run", *options, "--", str(made / "idle"))
        assert found.returncode == status
        assert found.stderr.count("\n") == 1
        assert "NOT SERVED: " in found.stderr
        assert "the program allocates nothing, or by a malloc of its own" in found.stderr


def test_the_table_of_the_documents_has_these_statuses():
    text = (ROOT / "docs" / "comparing.md").read_text()
    section = text.partition("## Exit statuses")[2].partition("\n## ")[0]
    for status in ("2", "125", "126", "127", "130"):
        assert f"| {status} |" in section
