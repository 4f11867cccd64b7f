from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import hakmem
from hakmem.cli import LIBRARIES, OF_THE_SOURCES, main


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def completed(words: str) -> list[str]:
    """What our own part answers to bash for a line that ends in the last word."""
    answer = subprocess.run(
        [sys.executable, "-c", "from hakmem.cli import main; main(prog_name='hakmem')"],
        env={
            **os.environ,
            "_HAKMEM_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in answer.stderr
    return [line.partition(",")[2] for line in answer.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_is_valid_for_its_shell(shell):
    found = run("completion", shell)
    assert found.exit_code == 0, found.output
    assert "_HAKMEM_COMPLETE" in found.output
    if shutil.which(shell):
        check = subprocess.run([shell, "-n"], input=found.output, text=True, check=False)
        assert check.returncode == 0


def test_unknown_shell_is_refused():
    found = run("completion", "csh")
    assert found.exit_code == 2
    assert "csh" in found.output


@pytest.mark.turns
def test_commands_options_and_allocators_are_completed():
    assert {"compare", "completion"} <= set(completed("hakmem comp"))
    assert "--pairs" in completed("hakmem compare --pa")
    assert "glibc,tcmalloc" in completed("hakmem compare --with glibc,tcm")
    assert completed("hakmem run --profile sp") == ["speed"]


def test_version_and_near_names():
    assert run("--version").output.startswith("hakmem, version ")
    found = run("compar")
    assert found.exit_code == 2
    assert "compare" in found.output


def all_commands(group: click.Group = main, path: str = "hakmem"):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from all_commands(command, f"{path} {name}")


@pytest.mark.parametrize(("path", "command"), list(all_commands()))
def test_every_command_and_option_has_help(path, command):
    assert command.get_short_help_str(), path
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.opts[0]}"


@pytest.mark.parametrize(("path", "command"), list(all_commands()))
def test_help_has_the_words_of_the_glossary(path, command):
    """A run is one start of a program, a round one run of each allocator, a pair one of two."""
    context = click.Context(command, info_name=path)
    said = command.get_help(context).lower()
    assert not re.search(r"\bslices?\b|\bpaired\b", said), path
    counts = [p for p in command.params if "--pairs" in p.opts]
    if path != "hakmem ab":
        assert all("--rounds" in p.opts for p in counts), path


def test_documents_define_them():
    docs = Path(__file__).resolve().parents[2] / "docs"
    glossary = (docs / "glossary.md").read_text()
    assert "(comparing.md#method-of-compare) (round, run, cost)" in glossary
    method = (docs / "comparing.md").read_text().partition("## Method of `compare`")[2].lower()
    for word in ("round", "run", "cost"):
        assert re.search(rf"\*{word}\b", method), word


@pytest.mark.parametrize("name", OF_THE_SOURCES)
def test_without_the_source_tree_its_commands_say_so(name, monkeypatch):
    monkeypatch.setattr("hakmem.cli.find_spec", lambda package: None)
    for arguments in ((), ("--rounds", "3", "--", "x")):
        found = run(name, *arguments)
        assert (found.exit_code, found.output.count("\n")) == (2, 1), found.output
        assert found.output.startswith(f"Error: {name} needs the source tree")
    assert run(name, "--help").exit_code == 0
    assert run("--help").exit_code == 0


@pytest.mark.turns
def test_package_runs_on_the_python_it_names():
    """vermin knows which Python each name and syntax of the sources needs."""
    package = Path(hakmem.__file__).parent
    command = [
        str(Path(sys.executable).with_name("vermin")),
        "-t=3.9-",
        "--violations",
        "--no-tips",
    ]
    found = subprocess.run([*command, "--no-parse-comments", str(package)], capture_output=True)
    assert found.returncode == 0, found.stdout.decode()


def test_path_of_each_library_is_printed(build, monkeypatch):
    monkeypatch.setenv("HAKLAB_BUILD", str(build))
    assert run("--lib").output == f"{build}/libhakmem.so\n"
    for kind in LIBRARIES:
        library = build / f"libhakmem-{kind}.so"
        if not library.exists():
            missing = run("--lib", kind)
            assert (missing.exit_code, missing.output.count("\n")) == (125, 1)
            assert f"{library} is missing" in missing.output
            library.write_bytes((build / "libhakmem.so").read_bytes())
        found = run("--lib", kind)
        assert (found.exit_code, found.output) == (0, f"{library}\n")
        library.unlink()
    wrong = run("--lib", "other")
    assert (wrong.exit_code, "--lib: 'other' is not one of hardened, je" in wrong.output) == (
        2,
        True,
    )
