"""Output that cannot be written, files that take each other's place, and text that is no JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hakmem import files
from hakmem.cli import main
from hakmem.documents import open_descriptor, write_bytes, write_text
from hakmem.errors import UserError
from hakmem.plain_text import parse_json

pytestmark = pytest.mark.turns

COMMAND = [sys.executable, "-c", "from hakmem.cli import main; main(prog_name='hakmem')"]
LOST = "Error: cannot write the output: No space left on device\n"
PROGRAM = ("compare", "--with", "glibc", "--pairs", "1", "--", "/bin/true")


def started(*arguments: str, stdout: str = "", redirect: str = "") -> subprocess.CompletedProcess:
    """A command with its stdout in a file, and with what a shell does to its descriptors."""
    shell = ["sh", "-c", f'exec "$@" {redirect}', "sh", *COMMAND, *arguments]
    with Path(stdout or os.devnull).open("w") as out:
        return subprocess.run(shell, stdout=out, stderr=subprocess.PIPE, text=True, check=False)


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("--version",), ("compare", "--help"), ("completion", "bash"), PROGRAM],
    ids=" ".join,
)
def test_full_output_is_one_line(arguments):
    found = started(*arguments, stdout="/dev/full")
    assert (found.returncode, found.stderr) == (1, LOST)


@pytest.mark.parametrize("redirect", [">&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("arguments", [("--help",), ("completion", "bash"), PROGRAM], ids=" ".join)
def test_closed_output_is_lost_and_told(arguments, redirect, tmp_path):
    found = started(*arguments, redirect=redirect)
    told = "" if "2>&-" in redirect else LOST.replace("No space left on device", "it is closed")
    assert (found.returncode, found.stderr) == (1, told)


def test_program_finds_its_output_closed_as_without_us():
    found = started("run", "--", "/bin/sh", "-c", "echo x || exit 9", redirect=">&-")
    assert found.returncode == 9


@pytest.mark.parametrize("redirect", ["2>&-", "<&-", "2>&- <&-", "2>/dev/full"])
@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("--version",), ("completion", "bash"), PROGRAM, ("run", "--", "/bin/true")],
    ids=" ".join,
)
def test_closed_and_lost_streams_are_no_failure(arguments, redirect, tmp_path):
    found = started(*arguments, stdout=str(tmp_path / "out"), redirect=redirect)
    assert (found.returncode, "Traceback" in found.stderr) == (0, False), found.stderr


def test_program_keeps_its_status_where_our_words_are_lost():
    found = started("run", "--", "/bin/sh", "-c", "exit 7", redirect="2>/dev/full")
    assert found.returncode == 7


def without_reader(*arguments: str) -> subprocess.CompletedProcess:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        return subprocess.run([*COMMAND, *arguments], stdout=gone, stderr=subprocess.PIPE,
                              text=True, check=False)  # fmt: skip


def test_reader_that_has_gone_is_met_with_silence():
    found = without_reader("--help")
    assert (found.returncode, found.stderr) == (1, "")


@pytest.mark.long
@pytest.mark.parametrize("output", ["full", "without a reader"])
@pytest.mark.parametrize("command", ["compare", "compare --from", "ab"])
def test_files_are_written_where_the_output_is_lost(tmp_path, monkeypatch, command, output):
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))
    table, page = tmp_path / "t.json", tmp_path / "p.html"
    options = ("--json", str(table), "--html", str(page))
    if command == "compare --from":
        assert started(*PROGRAM).returncode == 0
        (journal,) = (tmp_path / "results").glob("*.jsonl")
        options = ("--from", str(journal), *options)
    arguments = (PROGRAM[0], *options, *(() if "--from" in options else PROGRAM[1:]))
    if command == "ab":
        arguments = ("ab", "--a-lib", "glibc", "--b-lib", "glibc", "--b", "X=1", "--max-pairs", "2",
                     "--pairs", "2", *options[:2], "--", "/bin/true")  # fmt: skip
    if output == "full":
        found = started(*arguments, stdout="/dev/full")
    else:
        found = without_reader(*arguments)
    assert found.stderr == (LOST if output == "full" else "")
    # Of so few pairs ab has no verdict.
    assert found.returncode == (4 if command == "ab" else 1)
    assert json.loads(table.read_text())["made_by"] == f"hakmem {arguments[0]}"
    assert command == "ab" or page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("redirect", ["2>/dev/full", "2>&-"])
def test_proof_that_is_lost_shows_in_a_status_of_0(redirect, knowing):
    for status in (0, 7):
        program = ("/bin/sh", "-c", f"sleep 0.1; exit {status}")
        assert started("run", "--", *program, redirect=redirect).returncode == status
        found = started("run", "--proof", "--", *program, redirect=redirect)
        assert found.returncode == (status or 1)


def test_words_that_the_terminal_cannot_show_are_no_traceback():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    found = subprocess.run([*COMMAND, *PROGRAM], env=environment, text=True, capture_output=True,
                           check=False)  # fmt: skip
    assert (found.returncode, found.stderr) == (0, "")


def test_home_that_takes_no_file_is_no_matter_of_a_plot(tmp_path):
    given = {n: v for n, v in os.environ.items() if not n.startswith(("XDG_", "MPL"))}
    page = tmp_path / "p.html"
    found = subprocess.run([*COMMAND, "compare", "--html", str(page), *PROGRAM[1:]], text=True,
                           env=given | {"HOME": "/proc/nowhere"}, capture_output=True,
                           check=False)  # fmt: skip
    assert (found.returncode, found.stderr, page.is_file()) == (0, "", True)


def failing(monkeypatch, path: Path) -> None:
    """Writing below a path's folder fails half way, as on a full disk."""
    whole = files.swap

    def swap(place: files.Place, old: os.stat_result | None, data: bytes) -> None:
        if not os.path.samestat(os.fstat(place.folder), path.parent.stat()):
            whole(place, old, data)
            return
        with monkeypatch.context() as full:
            full.setattr(files.os, "rename", refuse)
            whole(place, old, data[: len(data) // 2])

    def refuse(*_names: str, **_folders: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "swap", swap)


def test_journal_is_named_where_a_file_cannot_be_written(tmp_path, monkeypatch):
    results, out = tmp_path / "results", tmp_path / "small" / "out.json"
    out.parent.mkdir()
    monkeypatch.setenv("HAKLAB_RESULTS", str(results))
    failing(monkeypatch, out)
    found = CliRunner().invoke(main, [PROGRAM[0], "--json", str(out), *PROGRAM[1:]])
    (journal,) = results.glob("compare-*.jsonl")
    assert found.exit_code == 1
    assert f"cannot write {out}: No space left on device; what was measured is in {journal}: " \
        "hakmem compare --from reads it" in found.output  # fmt: skip
    assert journal.with_suffix(".html").exists()


def test_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("old")
    failing(monkeypatch, path)
    with pytest.raises(UserError, match="cannot write"):
        write_bytes(path, b"new and long")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_file_keeps_its_rights_and_its_link(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o600


def test_longest_name_and_a_name_that_is_no_text_can_be_written(tmp_path):
    path = tmp_path / ("x" * 255)
    write_text(path, "name: \udcff")
    assert path.read_text() == "name: \\udcff"


def test_standard_streams_by_their_names_are_written_where_they_are(tmp_path):
    out = tmp_path / "out"
    found = started("compare", "--json", "/proc/self/fd/1", *PROGRAM[1:], stdout=str(out))
    assert found.returncode == 0, found.stderr
    text = out.read_text()
    assert '"made_by": "hakmem compare"' in text
    assert text.index("Wall time") < text.index('"made_by"')
    # As root, a file put in that name's place would be one for every program of the machine.
    assert [open_descriptor(Path(f"/dev/{name}")) for name in ("stdout", "stderr", "fd/5")] == [
        1,
        2,
        5,
    ]


def test_folder_that_takes_no_file_gets_the_old_one_rewritten(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_text("old")
    monkeypatch.setattr(files, "takes_new_files", lambda place: False)
    write_text(path, "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b'{"a": [1, 2', "the file ends in the middle"),
        (b'{"a": "tex', "the file ends in the middle"),
        (b'{"a": 1,\n', "the file ends in the middle"),
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b"\x1f\x8b\xff", "the file is no text"),
        (b'{"a": 1,\n b}', "the file is no JSON at line 2, column 2"),
        (b"text", "the file is no JSON at line 1, column 1"),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_what_is_no_json_is_told_in_plain_words(text, told):
    with pytest.raises(ValueError, match=told):
        parse_json(text)
