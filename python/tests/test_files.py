"""Files are made where their names say, whoever else may write to the folder."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import strangers
from click.testing import CliRunner
from strangers import as_root

from hakmem import files
from hakmem.allocators import cache
from hakmem.cli import main
from hakmem.documents import JSON, write_bytes, write_json, write_text
from hakmem.errors import UserError
from hakmem.measuring.journal import Journal

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def shared(tmp_path) -> Path:
    """A folder that every user can write to, with a second one of ours beside it."""
    for name, mode in (("shared", 0o777), ("mine", 0o700)):
        (tmp_path / name).mkdir()
        strangers.lets_in(tmp_path / name, mode=mode)
    return tmp_path / "shared"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


WAYS = {
    "whole": lambda path: write_bytes(path, b"data"),
    "document": lambda path: write_json(path, "test", {}),
    "grows": lambda path: Journal(path).write({"round": 1}),
    "folder": lambda path: files.make_folder(path / "x"),
    "mode": lambda path: files.set_mode(path, 0o777),
}


@as_root
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("target", ["none", "file"])
@pytest.mark.parametrize("sticky", [False, True])
def test_link_of_another_user_is_not_followed(shared, way, target, sticky):
    shared.chmod(0o1777 if sticky else 0o777)
    mine = shared.parent / "mine"
    (mine / "file").write_text('{\n "made_by": "hakmem test"}\n')
    (mine / "file").chmod(0o600)
    strangers.links(shared / "out", mine / target)
    with pytest.raises((UserError, OSError)) as told:
        WAYS[way](shared / "out")
    assert "is a link of user nobody: only links of your own or of root are followed" in str(told)
    assert names(mine) == ["file"]
    assert (mine / "file").read_text() == '{\n "made_by": "hakmem test"}\n'
    assert (mine / "file").stat().st_mode & 0o777 == 0o600
    assert names(shared) == ["out"]


@as_root
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", ["a/out", "a/../mine/out", "b/out", "c/out"])
def test_folder_behind_a_link_of_another_user_is_not_entered(shared, way, path):
    mine = shared.parent / "mine"
    strangers.links(shared / "a", mine)
    strangers.links(shared / "deep", "../mine")
    # Links of ours may lead to one of theirs.
    (shared / "b").symlink_to("a")
    (shared / "c").symlink_to(shared / "deep")
    with pytest.raises((UserError, OSError), match="is a link of user nobody"):
        WAYS[way](shared / path)
    assert names(mine) == []


def test_links_of_our_own_are_followed(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "to-folder").symlink_to("folder")
    (tmp_path / "link").symlink_to("to-folder/../to-folder/out")
    (tmp_path / "absolute").symlink_to(tmp_path / "link")
    write_text(tmp_path / "absolute", "text")
    assert (tmp_path / "folder/out").read_text() == "text"
    assert (tmp_path / "link").is_symlink()
    Journal(tmp_path / "link").write({})
    assert (tmp_path / "folder/out").read_text() == "text{}\n"
    files.make_folder(tmp_path / "to-folder/x/y")
    files.make_folder(tmp_path / "to-folder/x/y")
    assert (tmp_path / "folder/x/y").is_dir()


@as_root
def test_other_name_of_a_file_of_ours_is_not_written_to(shared):
    """The kernel lets nobody make such a name today; it was the default of older ones."""
    mine = shared.parent / "mine" / "file"
    mine.write_text("kept")
    mine.chmod(0o600)
    os.link(mine, shared / "out")
    with pytest.raises(UserError, match="it has other names"):
        Journal(shared / "out").write({})
    write_text(shared / "out", "new")
    assert (shared / "out").stat().st_mode & 0o777 == 0o600
    assert (mine.read_text(), mine.stat().st_nlink) == ("kept", 1)


@as_root
@pytest.mark.parametrize("way", ["whole", "document", "grows"])
def test_pipe_of_another_user_is_not_written_to(shared, way):
    strangers.acts("mkfifo", "-m", "666", shared / "out")
    reader = os.open(shared / "out", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises((UserError, OSError), match=r"pipe of user|no JSON file"):
        WAYS[way](shared / "out")
    assert os.read(reader, 10) == b""
    os.close(reader)


@as_root
def test_rights_are_not_those_that_another_user_has_chosen(shared):
    strangers.acts("install", "-m", "0666", "/dev/null", shared / "out")
    write_text(shared / "out", "new")
    found = (shared / "out").stat()
    assert (found.st_uid, found.st_mode & 0o777) == (0, 0o644)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0, 0o666)])
def test_new_file_has_the_rights_that_the_umask_leaves(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_text(tmp_path / "out", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == mode


PLANTER = """
import os, sys
os.chdir(sys.argv[1])
print("ready", flush=True)
count = 0
while os.getppid() == int(sys.argv[2]):
    for name in os.listdir("."):
        if name.startswith(".hakmem"):
            try:
                os.unlink(name)
                os.symlink(sys.argv[3], name)
            except OSError:
                pass
    for pid in range(os.getpid() - 50, os.getpid() + 50):
        try:
            os.symlink(sys.argv[3], f".hakmem-{pid}.new")
        except OSError:
            pass
"""


@as_root
def test_name_of_the_new_file_cannot_be_planted_before(shared):
    mine = shared.parent / "mine"
    words = ("-c", PLANTER, str(shared), str(os.getpid()), str(mine / "x"))
    with strangers.python(*words, stdout=subprocess.PIPE) as planter:
        try:
            planter.stdout.readline()
            written = 0
            for number in range(200):
                with suppress(UserError):
                    write_text(shared / f"out{number}", "text")
                    written += 1
        finally:
            planter.kill()
    assert written > 0
    assert names(mine) == []


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
def test_standard_output_is_written_by_each_of_its_names(tmp_path, name):
    (tmp_path / "link").symlink_to("/dev/stdout")
    script = f"from hakmem.documents import *; write_text(Path({name!r}), 'text')"
    for out in ("pipe", "file"):
        with (tmp_path / "file").open("w+") as file:
            found = subprocess.run(
                [sys.executable, "-c", script], check=True, cwd=tmp_path, text=True,
                stdout=subprocess.PIPE if out == "pipe" else file)  # fmt: skip
            file.seek(0)
            assert (found.stdout or file.read()) == "text"


def test_pipe_with_a_reader_and_devices_are_written(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as reader:
        keeper = os.open(tmp_path / "pipe", os.O_RDWR)
        write_bytes(tmp_path / "pipe", b"x" * 100_000)
        os.close(keeper)
        assert len(reader.communicate(timeout=60)[0]) == 100_000
    write_bytes(Path("/dev/null"), b"x")
    with pytest.raises(UserError, match="No space left on device"):
        write_bytes(Path("/dev/full"), b"x")
    with pytest.raises(UserError, match="Is a directory"):
        write_bytes(tmp_path, b"x")


def test_pipe_without_a_reader_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for way in ("whole", "grows"):
        with pytest.raises(UserError, match="No such device"):
            WAYS[way](tmp_path / "pipe")
    assert files.begin_of(tmp_path / "pipe", 8) is None


@as_root
@pytest.mark.parametrize(
    "words",
    [
        ("run", "--json", "{}", "--", "true"),
        ("record", "--output", "{}", "--", "true"),
        ("record", "--json", "{}", "--", "true"),
        ("explain", "--plot", "{}.svg", "--", "true"),
        ("explain", "--output", "{}", "--", "true"),
        ("compare", "--html", "{}", "--", "true"),
        ("ab", "--b", "X=1", "--json", "{}", "--", "true"),
        ("top", "--prometheus", "{}"),
        ("profile", "--format", "html", "--output", "{}", "--", "true"),
        ("profile", "--format", "html", "--output", "folder/x", "--", "true"),
    ],
    ids=" ".join,
)
def test_each_command_says_so_before_it_starts_anything(shared, monkeypatch, words, knowing):
    monkeypatch.chdir(shared)
    mine = shared.parent / "mine"
    for name in ("out", "out.svg", "out.html"):
        strangers.links(shared / name, mine / name)
    strangers.links(shared / "folder", mine)
    found = CliRunner().invoke(main, [word.format("out") for word in words])
    assert found.exit_code == 2
    assert "is a link of user nobody" in found.output
    assert found.output.count("\n") == 1
    assert names(mine) == []


@as_root
def test_default_name_of_a_profile_may_be_a_planted_link(shared, monkeypatch, build):
    """The name is known before: the program, its number, and what it is."""
    from test_profile import document

    monkeypatch.chdir(shared)
    mine = shared.parent / "mine"
    (shared / "heap.json").write_text(json.dumps(document()))
    for ending in (".html", ".folded"):
        strangers.links(shared / f"heap{ending}", mine / "there")
    found = CliRunner().invoke(main, ["profile", "--format", "folded", "./heap.json"])
    assert (found.exit_code, names(mine)) == (2, []), found.output
    assert "is a link of user nobody" in found.output


@as_root
def test_peers_that_another_user_can_have_built_are_not_run(tmp_path, monkeypatch):
    strangers.lets_in(tmp_path)
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    os.chown(tmp_path / "cache", strangers.UID, strangers.UID)
    _, problem = cache.read("mimalloc")
    assert "belongs to user nobody (HAKLAB_CACHE names another one)" in problem
    with pytest.raises(UserError, match="belongs to user nobody"):
        cache.own_folder("x")
    os.chown(tmp_path / "cache", 0, 0)
    (tmp_path / "cache").chmod(0o777)
    assert "every user can write to" in cache.read("mimalloc")[1]
    (tmp_path / "cache").chmod(0o755)
    assert "not built" in cache.read("mimalloc")[1]


def test_peers_of_a_folder_that_is_not_there_are_not_built(tmp_path, monkeypatch):
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path / "neither" / "cache"))
    assert cache.read("mimalloc")[1].startswith("not built")


def test_failed_write_leaves_no_file(tmp_path, monkeypatch):
    def full(*_arguments, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "rename", full)
    with pytest.raises(UserError, match="No space"):
        write_text(tmp_path / "out", "text", JSON)
    assert names(tmp_path) == []


# What makes or changes a file by its name, or opens one for writing.
MAKERS = {
    "write_text", "write_bytes", "touch", "mkdir", "makedirs", "symlink_to", "hardlink_to",
    "symlink", "link", "rename", "renames", "chmod", "lchmod", "chown", "mkfifo", "mknod",
    "unlink", "copy", "copy2", "copyfile", "copytree", "copymode", "copystat", "move", "savefig",
    "to_csv", "NamedTemporaryFile", "TemporaryFile", "TemporaryDirectory", "SpooledTemporaryFile",
    "mkstemp", "mkdtemp", "mktemp", "tofile", "bind", "truncate", "dump", "FileIO",
}  # fmt: skip
OWN = {"files", "documents"}
WRITING = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC", "O_TMPFILE")
# By file and word: what is no file of ours.
KNOWN = {
    ("hakmem/profiles/outside.py", "open"): "the memory of a process",
    ("hakmem/running/witness.py", "open"): "/dev/null",
    ("hakmem/running/in_place.py", "open"): "/dev/null",
    ("hakmem/commands/record.py", "bind"): "a socket without a file",
    ("hakmem/running/serving.py", "bind"): "a port",
    ("hakmem/commands/explain.py", "truncate"): "a text in memory",
    ("hakmem/output/report.py", "savefig"): "a picture in memory",
    ("hakmem_lab/commands/peers.py", "truncate"): "an open log",
    ("hakmem_lab/suite_session.py", "link"): "a program that is linked",
}


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def opens_for_writing(call: ast.Call, name: str) -> bool:
    """A mode that is not spelled out counts as one for writing."""
    if name not in ("open", "openat"):
        return False
    texts = [ast.unparse(each) for each in (*call.args, *(k.value for k in call.keywords))]
    if any(word in text for word in WRITING for text in texts):
        return True
    place = 1 if isinstance(call.func, ast.Name) else 0
    modes = [k.value for k in call.keywords if k.arg == "mode"] + call.args[place : place + 1]
    on_module = isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
    if on_module and call.func.value.id in ("os", "Archive"):
        return False
    return any(not is_text(mode) or set(mode.value) & set("wax+") for mode in modes)


def makers_in(source: str) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        is_method = isinstance(node.func, ast.Attribute)
        name = node.func.attr if is_method else getattr(node.func, "id", "")
        owner = getattr(node.func.value, "id", "") if is_method else ""
        # A text's takes two arguments, a path's one.
        replaces = name == "replace" and is_method and len(node.args) == 1 and not node.keywords
        os_replaces = name == "replace" and owner == "os"
        makes = (is_method and name in MAKERS) or name in MAKERS - {
            "write_text",
            "write_bytes",
            "copy",
            "link",
            "dump",
            "move",
        }
        if owner in OWN:
            continue
        if makes or replaces or os_replaces or opens_for_writing(node, name):
            found.append((node.lineno, name))
    return found


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("path.open('w')", "open"), ("open(path, 'ab')", "open"), ("path.open(mode)", "open"),
        ("io.open(path, mode='r+')", "open"), ("os.open(p, os.O_RDWR | flags)", "open"),
        ("path.write_text('x')", "write_text"), ("path.replace(other)", "replace"),
        ("os.replace(a, b)", "replace"), ("shutil.copy2(a, b)", "copy2"),
        ("tempfile.TemporaryDirectory()", "TemporaryDirectory"), ("mkdtemp()", "mkdtemp"),
        ("path.mkdir(exist_ok=True)", "mkdir"), ("sock.bind('x')", "bind"),
    ],
)  # fmt: skip
def test_scan_finds_what_writes(line, name):
    assert makers_in(line) == [(1, name)]


def test_scan_leaves_what_reads():
    for line in ("path.open('rb')", "open(path)", "os.open(p, os.O_RDONLY)", "os.fdopen(fd, 'w')",
                 "'text'.replace('a', 'b')", "replace(one, x=2)", "files.replace(path, data)",
                 "documents.write_text(path, text)", "write_text(path, text)"):  # fmt: skip
        assert makers_in(line) == [], line


SOURCES = sorted(
    path
    for folder in ("python/hakmem", "lab/hakmem_lab")
    for path in (ROOT / folder).rglob("*.py")
    # What is run as somebody's program, in a folder of its own.
    if path != ROOT / "python/hakmem/files.py" and "workloads" not in path.parts
)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_else_makes_files(path):
    name = str(path.relative_to(ROOT)).partition("/")[2]
    found = [
        (line, word) for line, word in makers_in(path.read_text()) if (name, word) not in KNOWN
    ]
    assert found == [], f"{name}: use hakmem.files"
