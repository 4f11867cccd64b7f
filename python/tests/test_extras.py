"""The command as `pip install hakmem` leaves it, without what hakmem[report] adds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from fake_profile import document

from hakmem.cli import main

pytestmark = pytest.mark.turns

EXTRAS = ("matplotlib", "google", "prometheus_client")
# Makes an import of an extra fail as it does where the package is not installed.
WITHOUT_EXTRAS = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from hakmem.cli import main
main(prog_name="hakmem")
"""
INSTALL = "pip install 'hakmem[report]'"
# Imported by no command before it draws, or is asked for a profile in pprof's format.
SLOW = ("matplotlib", "scipy", "google.protobuf", "prometheus_client")


def start(folder: Path, *arguments: str, code: str = WITHOUT_EXTRAS, flags: tuple[str, ...] = ()):
    return subprocess.run(
        [sys.executable, *flags, "-c", code, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (("compare", "--html", "r.html", "--", "/usr/bin/touch", "ran"), "--html needs matplotlib"),
        (("explain", "--plot", "r.svg", "--", "touch", "ran"), "--plot needs matplotlib"),
        (("profile", "--format", "html,pprof", "--", "touch", "ran"), "--format pprof needs proto"),
        (("profile", "diff", "--format", "pprof", "a", "b"), "--format pprof needs protobuf"),
        (("top", "--serve", "9"), "--serve needs prometheus-client"),
        (("top", "--prometheus", "-"), "--prometheus needs prometheus-client"),
        (("serve", "1"), "serve needs protobuf and prometheus-client"),
    ],
)
def test_what_needs_an_extra_names_it_before_anything_runs(tmp_path, arguments, needed):
    if "diff" in arguments:
        for name in arguments[-2:]:
            (tmp_path / name).write_text(json.dumps(document()))
    before = sorted(tmp_path.iterdir())
    found = start(tmp_path, *arguments)
    assert found.returncode == 2, found.stderr
    assert found.stderr.count("\n") == 1
    assert found.stderr.startswith(f"Error: {needed}")
    assert INSTALL in found.stderr
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("compare", "--html", "r.html", "--", "no-such"), "there is no program 'no-such'"),
        (("compare", "--html", "r.html", "--with", "x", "--", "/bin/true"), "unknown allocator"),
        (("compare", "--html", "r.html", "--pairs", "x", "--", "/bin/true"), "no whole number"),
        (("explain", "--plot", "r.svg", "--set", "X", "--", "/bin/true"), "'X' is not NAME=VALUE"),
        (("explain", "--plot", "r.svg", "--", "no-such"), "there is no program 'no-such'"),
        (("profile", "--format", "pprof", "--", "no-such"), "there is no program 'no-such'"),
        (("profile", "--format", "pprof", "--rate", "1K", "x.json"), "--rate cannot be given"),
        (("profile", "diff", "--format", "pprof", "a", "b"), "cannot read a"),
        (("top", "--serve", "9", "--once"), "exclude each other"),
        (("top", "--serve", "9", "x"), "'x' is no PID"),
        (("serve", "x"), "'x' is no PID"),
    ],
)
def test_mistake_in_the_command_line_is_told_before_a_missing_package(tmp_path, arguments, told):
    found = start(tmp_path, *arguments)
    assert found.returncode in (1, 2, 127)
    assert (told in found.stderr, found.stderr.count("\n")) == (True, 1), found.stderr
    assert INSTALL not in found.stderr


def test_help_names_the_extra_where_it_is_needed():
    """In the help of the whole, and of each option that cannot be used without it."""
    context = click.Context(main)
    assert INSTALL in main.get_help(context)
    needing = {"compare": "--html", "explain": "--plot", "top": "--serve"}
    for name, option in needing.items():
        [found] = [p for p in main.get_command(context, name).params if option in p.opts]
        assert "hakmem[report]" in found.help
    assert "hakmem[report]" in main.get_command(context, "serve").help
    profile = main.get_command(context, "profile")
    assert any("hakmem[report]" in (p.help or "") for p in profile.params if p.name == "formats")


def test_comparison_has_its_tables_and_names_the_extra(tmp_path):
    found = start(
        tmp_path, "compare", "--with", "glibc", "--pairs", "1", "--json", "j", "--", "/bin/true"
    )
    assert found.returncode == 0, found.stderr
    assert "Wall time" in found.stdout
    assert f"no page with plots without {INSTALL}" in found.stdout
    assert not list(Path(os.environ["HAKLAB_RESULTS"]).glob("*.html"))


def test_profile_has_its_page_and_names_the_extra_for_the_rest(tmp_path):
    (tmp_path / "heap.json").write_text(json.dumps(document()))
    found = start(tmp_path, "profile", "heap.json")
    assert found.returncode == 0, found.stderr
    assert INSTALL in found.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heap.html", "heap.json"]
    assert "flame-graph" in (tmp_path / "heap.html").read_text()


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("compare", "--help"), ("run", "--help"), ("run", "--", "/bin/true"),
     ("profile", "--help"), ("tail", "--help"), ("explain", "--help"), ("top", "--help")],
)  # fmt: skip
def test_nothing_slow_is_imported_before_it_is_used(tmp_path, arguments):
    code = "from hakmem.cli import main; main(prog_name='hakmem')"
    found = start(tmp_path, *arguments, code=code, flags=("-X", "importtime"))
    assert found.returncode == 0, found.stderr
    imported = {line.rpartition("|")[2].strip() for line in found.stderr.splitlines()}
    assert "hakmem.cli" in imported
    assert imported.isdisjoint(SLOW)
