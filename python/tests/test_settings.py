from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_build import compile_c

from hakmem.allocators import settings
from hakmem.allocators.peers import Allocator, from_path
from hakmem.cli import main
from hakmem.commands import explain
from hakmem.errors import UserError
from hakmem.options import chosen_allocators

# Leaves a file when it is started, so that "nothing was started" can be seen.
LEAVES = ("/bin/sh", "-c", "echo x >>started; echo $HAKMEM_PROFILE; echo Throughput = 5 ops/s")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path / "peers"))
    for name in [name for name in os.environ if name.startswith("HAKMEM_")]:
        monkeypatch.delenv(name)


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


SET_OPTIONS = (
    ("run", "--set"),
    ("explain", "--set"),
    ("profile", "--set"),
    ("ab", "--b"),
    ("ab", "--a"),
)
REFUSED = (
    (
        "HAKMEM_PROFLE=lean",
        "HAKMEM_PROFLE=lean: HAKMEM_PROFLE is not an option of this version (near: HAKMEM_PROFILE)",
    ),
    ("HAKMEM_PROFILE=fast", "HAKMEM_PROFILE=fast is not one of speed, lean"),
    ("HAKMEM_RSS_TARGET=lots", "HAKMEM_RSS_TARGET=lots is not a size such as 64M"),
    ("HAKMEM_PROFILE=lean\n", r"HAKMEM_PROFILE=lean\n is not one of speed, lean"),
    ("HAKMEM_RSS_TARGET=64M\r\n", r"HAKMEM_RSS_TARGET=64M\r\n is not a size such as 64M"),
    *(
        (
            f"HAKMEM_{name}=1",
            f"HAKMEM_{told}=1: HAKMEM_{told} is not an option of this version "
            "(HAKMEM_VERBOSE=1 prints all there are)",
        )
        for name, told in (("X\nYZ", r"X\nYZ"), ("XY\n", r"XY\n"), ("X\udcff", r"X\udcff"))
    ),
)


@pytest.mark.parametrize(("setting", "told"), REFUSED)
@pytest.mark.parametrize(("command", "option"), SET_OPTIONS)
def test_setting_that_the_library_refuses_starts_nothing(knowing, command, option, setting, told):
    found = run(command, option, setting, "--", *LEAVES)
    assert (found.exit_code, found.output) == (2, f"Error: {option}: {told}; nothing was started\n")
    assert not Path("started").exists()


@pytest.mark.parametrize(("setting", "told"), REFUSED)
@pytest.mark.parametrize(
    "command",
    [
        ("compare", "--with", "hakmem,glibc"),
        ("ab", "--b-lib", "glibc"),
        ("explain",),
        ("profile",),
        ("record", "--on", "hakmem"),
    ],
)
def test_setting_of_the_environment_is_judged_too(knowing, monkeypatch, command, setting, told):
    name, _, value = setting.partition("=")
    monkeypatch.setenv(name, value)
    found = run(*command, "--", *LEAVES)
    assert found.exit_code == 2, found.output
    assert found.output == f"Error: environment: {told}; nothing was started\n"
    assert not Path("started").exists()


def test_every_choice_of_allocators_judges_the_environment(knowing, monkeypatch):
    """tail, replay, soak and the others have no PROGRAM, and choose with this."""
    monkeypatch.setenv("HAKMEM_PROFLE", "lean")
    for names in (None, "hakmem"):
        with pytest.raises(UserError, match="environment: HAKMEM_PROFLE=lean"):
            chosen_allocators(names, (), [])


def test_page_that_the_environment_turns_off_is_made_all_the_same(knowing, monkeypatch):
    assert settings.overridden({"HAKMEM_STATS_PAGE": "1"}) == []
    monkeypatch.setenv("HAKMEM_STATS_PAGE", "1")
    assert settings.overridden({"HAKMEM_STATS_PAGE": "1"}) == []
    monkeypatch.setenv("HAKMEM_STATS_PAGE", "0")
    (told,) = settings.overridden({"HAKMEM_STATS_PAGE": "1"})
    said = []
    monkeypatch.setattr(explain, "warn", lambda *words: said.append(words))
    monkeypatch.setattr(settings, "complaints", lambda *_: [])
    explain.explained_environment(["/bin/true"], None, ())
    assert said == [("explain", told)]
    assert told.startswith("environment: HAKMEM_STATS_PAGE=0 is not used: this command sets ")


@pytest.mark.turns
def test_run_leaves_the_environment_to_the_library_which_is_heard(knowing, monkeypatch):
    monkeypatch.setenv("HAKMEM_PROFLE", "lean")
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "from hakmem.cli import main; main()",
            "run",
            "--",
            "/bin/echo",
            "a",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "a\n")
    assert "HAKMEM_PROFLE is not an option" in found.stderr


def test_profile_option_is_named(knowing):
    found = run("run", "--profile", "fast", "--", *LEAVES)
    assert found.exit_code == 2
    assert found.output.startswith(
        "Error: --profile: HAKMEM_PROFILE=fast is not one of speed, lean"
    )
    both = run("run", "--profile", "lean", "--set", "PROFILE=speed", "--", *LEAVES)
    assert (both.exit_code, "given twice" in both.output) == (2, True)


def test_hardened_is_refused_where_it_would_be_measured_as_something_else(knowing):
    found = run("ab", "--b", "HAKMEM_PROFILE=hardened", "--", *LEAVES)
    assert found.exit_code == 2
    assert "HAKMEM_PROFILE=hardened needs libhakmem-hardened.so; nothing was" in found.output


def test_a_bare_name_is_an_option_of_hakmem_where_there_is_one(knowing):
    notes: list[str] = []
    ours = from_path("hakmem", knowing)
    chosen = settings.settings_for("--b", ["PROFILE=speed", "SPEED=9", "PROFLE=x", "Q\n=1"], [ours],
                                   notes)  # fmt: skip
    assert chosen == {"HAKMEM_PROFILE": "speed", "SPEED": "9", "PROFLE": "x", "Q\n": "1"}
    assert notes == [
        "--b: PROFILE=speed is taken as HAKMEM_PROFILE=speed",
        "--b: SPEED=9 is a variable of the program: hakmem has no HAKMEM_SPEED",
        "--b: PROFLE=x is a variable of the program: hakmem has no HAKMEM_PROFLE "
        "(near: HAKMEM_PROFILE)",
        r"--b: Q\n=1 is a variable of the program: hakmem has no HAKMEM_Q\n",
    ]
    with pytest.raises(UserError, match="HAKMEM_PROFILE=fast is not one of"):
        settings.settings_for("--b", ["PROFILE=fast"], [ours], notes)
    with pytest.raises(UserError, match="HAKMEM_PROFILE is given twice"):
        settings.settings_for("--b", ["PROFILE=speed", "HAKMEM_PROFILE=lean"], [ours], notes)


def test_a_bare_name_under_another_allocator_is_told_to_be_the_programs(knowing):
    notes: list[str] = []
    chosen = settings.settings_for("--b", ["PROFILE=speed", "X=1"], [Allocator("glibc")], notes)
    assert chosen == {"PROFILE": "speed", "X": "1"}
    assert notes == [
        "--b: PROFILE=speed is a variable of the program: HAKMEM_PROFILE means nothing to glibc"
    ]


def test_ab_says_what_a_bare_name_means(knowing):
    found = run("ab", "--b", "PROFILE=speed", "--pairs", "2", "--max-pairs", "2", "--", "/bin/sh",
                "-c", "sed -n 1p /proc/version >/dev/null")  # fmt: skip
    assert "note: --b: PROFILE=speed is taken as HAKMEM_PROFILE=speed" in found.output, found.output


def test_settings_of_others_pass_and_mean_nothing_to_hakmem(knowing):
    texts = ["MIMALLOC_VERBOSE=1", "MALLOC_CONF=narenas:1", "GLIBC_TUNABLES=a=b"]
    notes: list[str] = []
    chosen = settings.settings_for("--set", texts, [from_path("hakmem", knowing)], notes)
    assert (list(chosen), notes) == (["MIMALLOC_VERBOSE", "MALLOC_CONF", "GLIBC_TUNABLES"], [])
    with pytest.raises(UserError, match="HAKMEM_PROFILE means nothing to glibc"):
        settings.settings_for("--b", ["HAKMEM_PROFILE=lean"], [Allocator("glibc")], notes)


def test_a_library_that_is_no_hakmem_is_never_asked(tmp_path, monkeypatch):
    """It has the file name of hakmem, and would leave a file where it is started."""
    source = tmp_path / "other.c"
    source.write_text(
        "#include <fcntl.h>\n__attribute__((constructor)) static void f(void)"
        '{ open("asked", O_CREAT | O_WRONLY, 0600); }'
    )
    library = compile_c(tmp_path / "libhakmem.so", [source], "-shared", "-fPIC")
    monkeypatch.setenv("HAKMEM_PROFLE", "lean")
    settings.check([from_path("hakmem", library)], {})
    assert not Path("asked").exists()
    assert not settings.is_hakmem(Path("/etc/passwd"))
    monkeypatch.setenv("HAKLAB_LIB", str(library))
    found = run("run", "--set", "PROFILE=lean", "--", "/bin/true")
    assert found.exit_code == 2
    assert "which is no hakmem" in found.output
    assert not Path("asked").exists()


@pytest.mark.turns
def test_warnings_of_the_library_in_the_measured_runs_are_passed_on(knowing, monkeypatch, tmp_path):
    monkeypatch.setenv("TROUBLED", "1")
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))
    found = run("compare", "--pairs", "1", "--with", "hakmem", "--", "/bin/cat", "/dev/null")
    assert "note: hakmem: HAKMEM_STATS: not written" in found.output, found.output
    assert "HAKMEM_PROFILE=0" not in found.output.replace("effective settings", "")


def test_long_values_are_refused_as_short_ones_are(knowing, monkeypatch):
    told = f"HAKMEM_RSS_TARGET={'1' * 64}… is not a size such as 64M; nothing was started\n"
    for command, option in SET_OPTIONS:
        found = run(command, option, f"HAKMEM_RSS_TARGET={'1' * 2000}", "--", *LEAVES)
        assert (found.exit_code, found.output) == (2, f"Error: {option}: {told}")
    monkeypatch.setenv("HAKMEM_RSS_TARGET", "1" * 2000)
    found = run("explain", "--", *LEAVES)
    assert (found.exit_code, found.output) == (2, f"Error: environment: {told}")


def test_a_bare_name_that_is_retired_is_refused(knowing):
    found = run("ab", "--b", "OLD=1", "--", *LEAVES)
    assert (found.exit_code, "HAKMEM_OLD is retired" in found.output) == (2, True), found.output
