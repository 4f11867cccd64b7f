"""The files that commands are asked to write: nothing of the user's is lost for them."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from small_build import compile_c

from hakmem.cli import COMMANDS, OF_THE_SOURCES, main
from hakmem.destinations import OutputFile
from hakmem.documents import GENERATOR, HTML, JSON, PICTURE, Kind, table_kind, write_text
from hakmem.errors import UserError
from hakmem.profiles.profile_files import KINDS

COMMAND = [sys.executable, "-m", "hakmem"]
PROGRAM = ("--", "/bin/sh", "-c", ": >ran")
OURS = '{\n "made_by": "hakmem run",\n "x": 1}\n'


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, build) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))
    recorder = build / "bench" / "librecord.so"
    if not recorder.exists():
        recorder.write_bytes((build / "bench" / "libfloor.so").read_bytes())
    return tmp_path


def refused(*arguments: str, status: int = 2) -> str:
    """The one line of a command that started nothing."""
    found = CliRunner().invoke(main, list(arguments))
    assert (found.exit_code, found.output.count("\n")) == (status, 1), found.output
    assert not Path("ran").exists()
    return found.output


def started(*arguments: str, shell: str = "", **more) -> subprocess.CompletedProcess:
    command = ["sh", "-c", f'exec "$@" {shell}', "sh", *COMMAND, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def errors(found: subprocess.CompletedProcess) -> list[str]:
    """Without what is said of the program."""
    return [line for line in found.stderr.splitlines() if not line.startswith("hakmem run: ")]


COMMANDS_WITH_FILES = [
    ("run", "--json"), ("record", "--json"), ("record", "--output"), ("explain", "--json"),
    ("explain", "--output"), ("explain", "--plot"), ("compare", "--json"), ("compare", "--html"),
    ("ab", "--json"), ("top", "--prometheus"), ("top", "--json"), ("tail", "--json"),
    ("replay", "--json"),
]  # fmt: skip


def test_every_file_that_a_command_writes_goes_through_one_place():
    found = []
    for name in (n for n in COMMANDS if n not in OF_THE_SOURCES):
        command = main.get_command(click.Context(main), name)
        kinds = [p for p in command.params if isinstance(p.type, OutputFile)]
        found += [(name, max(p.opts, key=len)) for p in kinds]
        assert not kinds or command.callback.has_separate_files
    assert sorted(found) == sorted(COMMANDS_WITH_FILES)


@pytest.mark.parametrize(("command", "option"), COMMANDS_WITH_FILES, ids=" ".join)
def test_file_of_the_users_stays(command, option):
    if option == "--plot":
        Path("mine.svg").write_text('<?xml version="1.0"?><svg/>')
    Path("mine.svg" if option == "--plot" else "mine").write_text("use strict;\n")
    path = "mine.svg" if option == "--plot" else "./mine"
    rest = {"top": ("--once",), "tail": (), "replay": ("mine.trace",)}.get(command, PROGRAM)
    if option == "--prometheus":
        rest = ()
    Path("mine.trace").write_bytes(b"HAKTRACE")
    more = ("--b", "X=1") if command == "ab" else ()
    told = refused(command, option, path, *more, *rest)
    assert f"{option}: {path.removeprefix('./')} is there and is no " in told
    assert "of hakmem: not replaced (remove it, or give another name)" in told
    assert Path(path).read_text() == "use strict;\n"


@pytest.mark.turns
def test_own_file_empty_file_and_device_are_written():
    Path("own").write_text(OURS)
    Path("empty").touch()
    for path in ("own", "empty", "/dev/null"):
        found = started("run", "--json", path, "--", "/bin/true")
        assert (found.returncode, errors(found)) == (0, []), path
    for path in ("own", "empty"):
        assert json.loads(Path(path).read_text())["made_by"] == "hakmem run"
    assert Path("/dev/null").is_char_device()


@pytest.mark.turns
def test_file_that_the_program_itself_wrote_stays():
    found = started("run", "--json", "out", "--", "/bin/sh", "-c", "echo result >out")
    told = "is there and is no JSON file of hakmem: not replaced (remove it, or give another name)"
    assert (found.returncode, errors(found)) == (1, [f"Error: out {told}"])
    assert Path("out").read_text() == "result\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("compare", "--json", "a", "--html", "./a"), "--html: a is also what --json names"),
        (("record", "-o", "t", "--json", "t"), "t is also what --"),
        (("record", "-o", "t", "--json", "link"), "is also what --"),
        (("compare", "--json", "own", "--html", "hard"), "is also what --"),
        (("record", "-o", "to-nothing", "--json", "nothing"), "is also what --"),
        (("run", "--stdin", "own", "--json", "own"), "own is also what --stdin names"),
        (("run", "--stdin", "own", "--json", "hard"), "hard is also what --stdin names"),
        (("compare", "--lib", "x=own", "--json", "own"), "own is also what --lib names"),
        (
            ("compare", "--server", "serve --file=own {port}", "--load", "x", "--json", "own"),
            "own is also what --server names",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_no_two_files_of_a_command_are_one(arguments, told):
    Path("own").write_text(OURS)
    Path("link").symlink_to("t")
    Path("to-nothing").symlink_to("nothing")
    Path("hard").hardlink_to("own")
    rest = () if "--server" in arguments else PROGRAM
    output = refused(*arguments, *rest)
    assert told in output
    assert output.endswith("; nothing was started\n")
    assert Path("own").read_text() == OURS


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "--with", "own", "--json", "own"),
        ("compare", "--metric", "own", "--json", "own"),
        ("run", "--profile", "own", "--json", "own"),
        ("ab", "--stop", "own", "--json", "own"),
        ("record", "--on", "own", "--json", "own"),
    ],
)
def test_a_name_is_no_file_of_that_name(arguments):
    Path("own").write_text(OURS)
    assert "is also what" not in refused(*arguments, *PROGRAM)
    assert "is also what --with names" in refused(
        "compare", "--with", "x=own", "--json", "own", *PROGRAM
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--json", "own", "--", "/bin/cat", "./own"),
        ("run", "--json", "own", "--", "/bin/dd", "if=own"),
        ("run", "--json", "program", "--", "./program"),
        ("replay", "--json", "trace", "trace"),
        ("replay", "--summary", "--json", "trace", "trace"),
        ("profile", "--output", "heap", "--format", "json", "heap.json"),
        ("profile", "--format", "json", "heap.json"),
        ("profile", "--output", "heap", "--format", "json", "--", "/bin/cat", "heap.json"),
        ("profile", "--output", "own", "--format", "dhat", "--", "/bin/cat", "own.dhat.json"),
    ],
    ids=" ".join,
)
def test_what_is_read_is_not_written(arguments):
    for name in ("own", "trace", "heap.json", "own.dhat.json"):
        Path(name).write_text(OURS)
    Path("program").write_text("#!/bin/sh\n: >ran\n")
    Path("program").chmod(0o755)
    assert "is also what an argument names; nothing was started" in refused(*arguments)


def test_journal_that_is_read_is_not_written():
    Path("journal").write_text(OURS)
    told = "--json: journal is also what --from names; nothing was started"
    assert told in refused("compare", "--from", "journal", "--json", "journal")


@pytest.mark.turns
def test_file_that_is_an_open_stream_is_not_replaced():
    Path("in").write_text(OURS)
    for redirect, name in (("<in", "input"), (">>in", "output"), ("2>>in", "error output")):
        found = started("run", "--json", "in", *PROGRAM, shell=redirect)
        assert found.returncode == 2
        assert f"in is also the standard {name}; nothing" in found.stderr + Path("in").read_text()
        Path("in").write_text(OURS)
    assert not Path("ran").exists()


@pytest.mark.turns
def test_a_program_may_name_devices_and_pipes():
    found = started("run", "--json", "/dev/null", "--", "/bin/cat", "/dev/null")
    assert (found.returncode, errors(found)) == (0, [])


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("nosuch/", "there is no folder nosuch/"),
        ("", "no file is named"),
        ("file/", "there is no folder file/"),
        ("file/x", "there is no folder "),
        ("nosuch/x", "there is no folder "),
        ("to-nowhere/x", "there is no folder "),
        ("loop", "Too many levels of symbolic links"),
        ("x" * 300, "File name too long"),
    ],
    ids=lambda text: text[:10],
)
@pytest.mark.parametrize("command", ["run", "profile"])
def test_place_that_takes_no_file_is_told_before(command, path, told):
    Path("file").touch()
    Path("to-nowhere").symlink_to("/nowhere/x")
    Path("loop").symlink_to("loop")
    option = "--output" if command == "profile" else "--json"
    output = refused(command, option, path, *PROGRAM)
    assert f"{option}: " in output
    assert told in output


def test_link_is_followed_to_where_its_file_would_be():
    Path("to-nowhere").symlink_to("/nowhere/x")
    told = refused("run", "--json", "to-nowhere", *PROGRAM)
    assert told == "Error: --json: there is no folder /nowhere\n"


@pytest.mark.parametrize("command", ["run", "record", "profile"])
def test_folder_that_was_removed_is_told(command, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    option = {"run": ("--json", "x"), "record": (), "profile": ()}[command]
    assert "the current folder was removed" in refused(command, *option, *PROGRAM)


@pytest.mark.parametrize("path", ["/dev/full", "/dev/null", "-", "/dev/stdout"])
def test_profiles_and_traces_are_files(path):
    assert f"'{path}' is no place for them" in refused("profile", "--output", path, *PROGRAM)
    assert "a trace needs a file" in refused("record", "--output", path, *PROGRAM)


def test_profile_of_the_users_stays():
    Path("x.html").write_text("<!doctype html><title>mine</title>")
    told = refused("profile", "--format", "html", "--output", "x", *PROGRAM)
    assert told.startswith("Error: --output: x.html is there and is no report of hakmem")
    Path("x.folded").mkdir()
    told = refused("profile", "--format", "folded", "--output", "x", *PROGRAM)
    assert told == "Error: --output: x.folded is a folder\n"


@pytest.mark.turns
def test_dash_is_the_output_and_the_report_makes_way(printer, knowing):
    plan = ("--b", "X=1", "--pairs", "2", "--max-pairs", "2")
    found = started("ab", *plan, "--json", "-", "--", str(printer), "1")
    assert found.returncode in (0, 3, 4), found.stderr
    assert json.loads(found.stdout)["pairs"] == 2
    assert "Medians of all pairs" in found.stderr
    assert not Path("-").exists()
    lost = started("run", "--json", "-", *PROGRAM, shell=">&-")
    told = "Error: --json: /dev/stdout is not open for writing"
    assert (lost.returncode, errors(lost)) == (2, [told])
    assert "/dev/fd/77 is not open" in refused("run", "--json", "/dev/fd/77", *PROGRAM)
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("replay", "pipe"),
        ("compare", "--from", "pipe"),
        ("profile", "./pipe.json"),
        ("profile", "diff", "pipe", "pipe"),
        ("run", "--json", "pipe", *PROGRAM),
        ("profile", "--output", "pipe", "--format", "json", *PROGRAM),
    ],
    ids=" ".join,
)
def test_named_pipe_is_not_waited_for(arguments, knowing):
    for name in ("pipe", "pipe.json"):
        os.mkfifo(name)
    told = refused(*arguments)
    assert "no plain file" in told or "reports are files" in told


@pytest.mark.parametrize(
    "arguments", [("profile", "{}"), ("profile", "diff", "{}", "{}"), ("replay", "{}"),
                  ("compare", "--from", "{}")], ids=" ".join)  # fmt: skip
def test_file_that_cannot_be_read_has_one_status(arguments):
    """As root a name that is too long is the same as a folder that may not be searched."""
    Path("wrong.json").write_text("{}")
    for name, why in (
        ("./none.json", "No such file|does not exist"),
        (f"./{'n' * 300}.json", "File name too long"),
        ("./wrong.json", "is no|none of"),
    ):
        if name == "./wrong.json" and arguments[0] == "replay":
            continue
        assert re.search(why, refused(*(word.format(name) for word in arguments)))


def test_what_the_system_refuses_is_one_line(monkeypatch):
    def refuse(*_arguments, **_more):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("hakmem.commands.run.become", refuse)
    told = refused("run", *PROGRAM, status=1)
    assert told == "Error: [Errno 24] Too many open files\n"


@pytest.mark.parametrize(
    ("kind", "ours", "not_ours"),
    [
        (JSON, OURS, '{"name": "package"}'),
        (HTML, f"<!doctype html>\n<html><head>\n{GENERATOR}", "<!doctype html><p>hakmem</p>"),
        (KINDS["folded"], "main;f 10\ng 2\n[unkn", "main;f 10 bytes\n"),
        (KINDS["json"], '{"hakmem_heap_profile":1,', '{"heap":1}'),
        (KINDS["dhat"], '{\n "made_by": "hakmem profile"', '{"dhatFileVersion":2'),
        (
            table_kind(("allocator", "operation", "calls")),
            "allocator,operation,calls\n",
            "allocator,operation\n",
        ),
        (PICTURE, "<?xml?><svg><dc:title>hakmem</dc:title>", "<?xml?><svg><title>hakmem</title>"),
    ],
)
def test_kinds_are_told_by_how_they_begin(kind: Kind, ours, not_ours):
    path = Path("file")
    path.write_text(ours)
    write_text(path, "new", kind)
    path.write_text(not_ours)
    with pytest.raises(UserError, match="not replaced"):
        write_text(path, "new", kind)
    assert path.read_text() == not_ours


def interrupted(process: subprocess.Popen) -> str:
    try:
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode in (-signal.SIGINT, 130), said
    return said


@pytest.mark.turns
@pytest.mark.parametrize("module", ["hakmem.cli", "click", "hakmem.commands.compare", "rich.table"])
def test_interrupt_while_modules_are_imported_ends_by_the_signal(module, tmp_path):
    """One of them takes long: it is found before the real one, and waits."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            print('now', flush=True)\n"
        "            time.sleep(60)\n"
        "sys.meta_path.insert(0, Slow())\n"
    )
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1])])
    process = subprocess.Popen(
        [*COMMAND, "compare", "--with", "glibc", "--", "/bin/true"],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdout.readline() == "now\n"
    process.send_signal(signal.SIGINT)
    assert interrupted(process) == ""
    assert process.returncode == -signal.SIGINT


@pytest.mark.turns
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["compare", "ab"])
def test_interrupt_before_the_first_round(command, number, tmp_path):
    script = tmp_path / "program"
    script.write_text(f"#!/bin/sh\n: >{tmp_path}/ran\nexec sleep 60\n")
    script.chmod(0o755)
    more = ("--b", "X=1") if command == "ab" else ("--with", "glibc")
    process = subprocess.Popen(
        [*COMMAND, command, *more, "--", str(script)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    while not (tmp_path / "ran").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    said = interrupted(process)
    assert process.returncode == 130
    assert "Aborted" not in said
    assert "Traceback" not in said


@pytest.fixture(scope="session")
def printer(tmp_path_factory) -> Path:
    """Allocates, and prints what it is told to."""
    source = tmp_path_factory.mktemp("printer") / "printer.c"
    source.write_text(
        "#include <stdio.h>\n#include <string.h>\n"
        'int main(int argc, char **argv) { printf("x=%s\\n", strdup(argv[argc - 1])); return 0; }\n'
    )
    return compile_c(source.with_suffix(""), [source])


@pytest.mark.parametrize(
    ("command", "figure"),
    [("ab", "inf"), *(("compare", figure) for figure in ("1e999", "nan", "1e308", "1e-320", "-1"))],
)
def test_figure_that_is_none_is_told_and_measures_nothing(command, figure, printer, knowing):
    more = ("--b", "X=1") if command == "ab" else ("--with", "glibc")
    arguments = [command, *more, "--metric", "x=(.*)", "--", str(printer), figure]
    found = CliRunner().invoke(main, arguments)
    told = f"no figure: 'x=(.*)' finds '{figure}', which is not from 1e-30 to 1e+30"
    assert found.exit_code == 1, found.output
    assert isinstance(found.exception, SystemExit)
    assert told in found.output
    assert not re.search("Warning|Traceback", found.output)
