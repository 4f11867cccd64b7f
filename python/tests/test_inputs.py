"""Files without an end, and such as no memory holds, are refused at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from hakmem import inputs
from hakmem.cli import main
from hakmem.errors import UserError
from hakmem.inputs import BYTES_MOST, read_text, read_whole


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(BYTES_MOST + 1)
    return path


def test_commands_refuse_what_has_no_end(large):
    # The library writes no profile of more than 128 MB.
    for arguments, most in ((("compare", "--from"), 512), (("profile", "diff"), 128)):
        for path, told in (("/dev/zero", "no plain file"), (large, f"larger than {most} MB")):
            paths = [str(path)] * (2 if arguments[0] == "profile" else 1)
            found = CliRunner().invoke(main, [*arguments, *paths])
            assert (found.exit_code, told in found.output) == (2, True), found.output


def test_what_is_read(tmp_path, large):
    with pytest.raises(UserError, match="larger than 512 MB"):
        read_whole(large)
    with pytest.raises(UserError, match="no plain file"):
        read_whole(Path("/dev/zero"))
    assert read_whole(Path(os.devnull)) == b""
    with pytest.raises(UserError, match="nothing: No such file or directory"):
        read_whole(tmp_path / "nothing")
    path = tmp_path / "text"
    path.write_bytes(b"a\r\nb\xff\n")
    assert read_text(path) == "a\nb\N{REPLACEMENT CHARACTER}\n"


def test_open_pipe_is_read_to_its_end():
    read, write = os.pipe()
    os.write(write, b"text")
    os.close(write)
    assert read_whole(Path(f"/dev/fd/{read}")) == b"text"
    os.close(read)


def test_what_takes_a_files_place_after_a_look_is_not_waited_for(tmp_path, monkeypatch):
    path = tmp_path / "file"
    os.mkfifo(path)
    monkeypatch.setattr(inputs, "is_readable_kind", lambda _: True)
    before = Path(os.devnull).stat()
    monkeypatch.setattr(Path, "stat", lambda _: before)
    with pytest.raises(UserError, match="no plain file"):
        read_whole(path)


def test_owner_is_that_of_the_file_that_was_read(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"text")
    read = inputs.open_known

    def then_replaced(which: Path) -> int:
        descriptor = read(which)
        path.unlink()
        path.write_bytes(b"other")
        return descriptor

    before = path.stat()
    monkeypatch.setattr(inputs, "open_known", then_replaced)
    data, found = inputs.read_with_status(path)
    assert (data, found.st_ino) == (b"text", before.st_ino)
