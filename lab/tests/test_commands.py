import pytest
from click.testing import CliRunner
from hakmem.cli import main
from small_build import compile_c


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


# Every command of the source tree that starts a program of the user's.
STARTING = (("soak", "--with", "glibc", "--program", "x=PROGRAM"),)


@pytest.fixture(scope="module")
def static(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("static")
    (folder / "empty.c").write_text("int main(void) { return 0; }\n")
    return str(compile_c(folder / "static", [folder / "empty.c"], "-static"))


@pytest.mark.parametrize("words", STARTING)
def test_program_that_cannot_be_had_has_the_status_of_every_command(words, static, tmp_path):
    for program, status, told in (
        ("no-such-program", 127, "there is no program 'no-such-program'"),
        (str(tmp_path), 126, f"cannot start '{tmp_path}': it is a folder"),
        ("/etc/passwd", 126, "cannot start '/etc/passwd': it is not executable"),
        (static, 125, f"it cannot be served: {static} is statically linked"),
    ):
        found = run(*(word.replace("PROGRAM", program) for word in words))
        assert (found.exit_code, told in found.output) == (status, True), found.output


@pytest.mark.turns
@pytest.mark.parametrize("command", ["soak", "drawn", "programs", "steady"])
def test_missing_library_of_hakmem_has_the_status_of_every_command(command, monkeypatch, tmp_path):
    monkeypatch.setenv("HAKLAB_LIB", "/nowhere/libhakmem.so")
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path))
    found = run(command)
    assert found.exit_code == 125, found.output
    told = "Error: hakmem: no library at /nowhere/libhakmem.so: build first (make run)"
    assert told in found.output


@pytest.mark.turns
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("soak", "--set", "HAKMEM_PROFLE=lean"), "--set: HAKMEM_PROFLE=lean: "),
        (("soak", "--set", "PROFILE=fast"), "--set: HAKMEM_PROFILE=fast is not one of"),
        (("bench", "--with", "hakmem", "--set", "HAKMEM_PROFLE=x"), "--set: HAKMEM_PROFLE=x: "),
    ],
)
def test_setting_that_hakmem_refuses_starts_nothing(knowing, words, told, tmp_path, monkeypatch):
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))
    found = run(*words)
    assert (found.exit_code, told in found.output) == (2, True), found.output
    assert "; nothing was started" in found.output
    assert not (tmp_path / "results").exists()


def test_setting_of_the_environment_that_hakmem_refuses(knowing, monkeypatch):
    monkeypatch.setenv("HAKMEM_PROFLE", "lean")
    found = run("soak")
    assert (found.exit_code, "environment: HAKMEM_PROFLE" in found.output) == (2, True)


@pytest.mark.turns
@pytest.mark.parametrize(
    "words",
    [
        ("soak", "--minutes", "nan"),
        ("soak", "--epoch", "nan"),
        ("drawn", "--rest", "nan"),
        ("steady", "--seconds", "nan"),
        ("soak", "--program", "x= "),
    ],
)
def test_numbers_that_are_none_and_empty_commands_are_refused(words):
    found = run(*words)
    assert found.exit_code == 2, found.output
    assert words[1] in found.output


@pytest.mark.parametrize(
    ("arguments", "needs"),
    [
        (("drawn", "--with", "glibc", "--picture", "r.svg"), "--picture"),
        (("drawn", "--with", "glibc", "--picture", "p.svg"), "--picture"),
    ],
)
def test_what_draws_needs_its_package_before_anything_runs(arguments, needs, tmp_path, monkeypatch):
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr("hakmem.extras.is_there", lambda _module: False)
    monkeypatch.chdir(tmp_path)
    found = run(*arguments)
    assert found.exit_code == 2, found.output
    assert found.output.splitlines()[-1].startswith(f"Error: {needs} needs matplotlib: pip install")
    assert not list(tmp_path.glob("*.*")) and not list(tmp_path.glob("results/*"))
