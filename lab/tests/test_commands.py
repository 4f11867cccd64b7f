import json

import pytest
from click.testing import CliRunner
from hakmem.cli import main
from small_build import assert_in_order, compile_c

from hakmem_lab.commands import demo as demo_module

RECORDED = ("/bin/sh", "-c", "echo Throughput = 100 ops/s")


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def short_demo(monkeypatch):
    monkeypatch.setattr(demo_module, "BENCH_ROUNDS", 2)
    monkeypatch.setattr(demo_module, "BENCH_SLICE_S", 0.001)
    monkeypatch.setattr(demo_module, "TRIAL_STEPS", 20_000)
    monkeypatch.setattr(demo_module, "APP_BUDGET_S", 0.0)


def test_pair_prints_a_row_for_each_and_the_seed(build):
    floor = build / "bench" / "libfloor.so"
    found = run("pair", "--pairs", "5", "--seed", "9", "--with", "glibc", "--lib", f"new={floor}",
                "--", *RECORDED)  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "seed 9" in found.output
    assert "1.000 [1.000, 1.000]" in found.output
    assert "higher is better" in found.output


def test_pair_with_missing_peer_is_refused_where_it_was_asked_for(monkeypatch):
    monkeypatch.setenv("TCMALLOC_SO", "/nowhere/libtcmalloc.so")
    found = run("pair", "--pairs", "1", "--with", "glibc,tcmalloc", "--", *RECORDED)
    told = "tcmalloc: no library at /nowhere/libtcmalloc.so"
    assert (found.exit_code, found.output) == (2, f"Error: {told}\n")
    found = run("pair", "--pairs", "1", "--", *RECORDED)
    assert f"note: not compared: {told}" in found.output


# Every command of the source tree that starts a program of the user's.
STARTING = (
    ("pair", "--with", "glibc", "--", "PROGRAM"),
    ("pair", "--with", "glibc", "--program", "x=PROGRAM", "--", "/bin/true"),
    ("demo", "--app", "PROGRAM"),
    ("soak", "--with", "glibc", "--program", "x=PROGRAM"),
)


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
        if "--program" in words and words[0] == "pair" and program == static:
            continue  # It is for static programs: nothing is preloaded.
        found = run(*(word.replace("PROGRAM", program) for word in words))
        assert (found.exit_code, told in found.output) == (status, True), found.output


@pytest.mark.parametrize(
    "command", ["pair", "demo", "soak", "drawn", "programs", "memory", "scale", "steady"]
)
def test_missing_library_of_hakmem_has_the_status_of_every_command(command, monkeypatch, tmp_path):
    monkeypatch.setenv("HAKLAB_LIB", "/nowhere/libhakmem.so")
    monkeypatch.setenv("HAKLAB_RESULTS", str(tmp_path))
    found = run(command, *(("--", "/bin/true") if command == "pair" else ()))
    assert found.exit_code == 125, found.output
    told = "Error: hakmem: no library at /nowhere/libhakmem.so: build first (make run)"
    assert told in found.output


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
    for words in (("soak",), ("demo",), ("pair", "--", "/bin/true")):
        found = run(*words)
        assert (found.exit_code, "environment: HAKMEM_PROFLE" in found.output) == (2, True)


def test_pair_falls_back_to_wall_time():
    found = run("pair", "--pairs", "1", "--with", "glibc", "--", "/bin/true")
    assert found.exit_code == 0, found.output
    assert "lower is better" in found.output


def test_pair_fails_with_its_program():
    found = run("pair", "--pairs", "2", "--with", "glibc", "--", "/bin/sh", "-c", "exit 9")
    assert found.exit_code == 1
    assert "exit status 9" in found.output


def test_pair_fails_when_hakmem_did_not_serve(monkeypatch, build):
    monkeypatch.setenv("HAKLAB_LIB", str(build / "bench" / "libfloor.so"))
    found = run("pair", "--pairs", "5", "--with", "hakmem,glibc", "--", "/bin/true")
    assert found.exit_code == 1
    assert "NOT SERVED" in found.output
    told = "hakmem did not serve this program: its figures are another malloc's"
    assert found.output.startswith(f"{told}.\n")
    assert "times as fast" not in found.output


def test_pair_fails_with_any_of_its_allocators():
    script = 'case "$LD_PRELOAD" in *hakmem*) exit 4;; esac'
    found = run("pair", "--pairs", "2", "--with", "glibc,hakmem", "--", "/bin/sh", "-c", script)
    assert found.exit_code == 1, found.output
    assert found.output.startswith("under hakmem this program failed: exit status 4.\n")
    assert "did not serve" not in found.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("--with", "nonesuch", "--", "/bin/true"),
        ("--with", "glibc", "--lib", "no-equals-sign", "--", "/bin/true"),
        ("--with", "glibc", "--program", "glibc=/bin/true", "--", "/bin/true"),
        ("--with", "glibc", "--cpu", "many", "--", "/bin/true"),
        ("--with", "glibc", "--metric", "(", "--", "/bin/true"),
        ("--with", "glibc", "--metric", "took [0-9]+", "--", "/bin/true"),
        ("--proff", "--", "/bin/true"),
    ],
)
def test_pair_refuses_bad_options_in_one_line(arguments):
    found = run("pair", "--pairs", "1", *arguments)
    assert found.exit_code == 2
    assert "Error: " in found.output
    assert "Traceback" not in found.output


def test_pair_writes_json(tmp_path):
    path = tmp_path / "out.json"
    found = run("pair", "--pairs", "2", "--with", "glibc", "--program", "other=/bin/echo "
                "Throughput = 50", "--json", str(path), "--", *RECORDED)  # fmt: skip
    assert found.exit_code == 0, found.output
    document = json.loads(path.read_text())
    assert document["baseline"] == "glibc"
    assert document["rounds"] == 2
    assert [row["name"] for row in document["summary"]] == ["glibc", "other"]
    assert [piece["value"] for piece in document["slices"]["other"]] == [50.0, 50.0]
    assert document["summary"][1]["ratio"]["median"] == 2.0


def test_demo_shows_both_parts_and_the_proof(short_demo, build):
    app = f"{build}/bench/bench_random_mixed 1000"
    found = run("demo", "--app", app, "--seed", "3")
    assert found.exit_code == 0, found.output
    assert "Random mixed" in found.output
    assert f"Your program: {app}" in found.output
    assert found.output.count("yes, 7 spans handed out") == 2
    assert "effective settings: HAKMEM_PROFILE=balanced" in found.output
    assert "\x1b" not in found.output
    assert found.output.lstrip().startswith("Random mixed")
    told = "hakmem did this "
    assert_in_order(found.output, "Random mixed", told, "allocator", "Your program", told,
                    "allocator", "How it was measured", "kernel")  # fmt: skip


def test_demo_is_strict_with_a_program_that_skips_exit_handlers(short_demo):
    found = run("demo", "--app", "/bin/sh -c 'echo hello'")
    assert found.exit_code == 1
    assert "NOT SERVED" in found.output


def test_demo_fails_when_hakmem_did_not_serve(short_demo, monkeypatch, build):
    monkeypatch.setenv("HAKLAB_LIB", str(build / "bench" / "libfloor.so"))
    found = run("demo", "--app", "/bin/true")
    assert found.exit_code == 1
    assert "NOT SERVED" in found.output


def test_demo_without_a_build_names_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("HAKLAB_BUILD", str(tmp_path))
    found = run("demo")
    assert found.exit_code == 125
    assert "is missing: build first" in found.output


def test_demo_with_a_program_that_does_not_exist(short_demo):
    found = run("demo", "--app", "no-such-program --flag")
    assert found.exit_code == 127
    assert "there is no program 'no-such-program'" in found.output


def test_demo_with_a_program_that_crashes(short_demo):
    found = run("demo", "--app", "/bin/sh -c 'echo broken >&2; kill -SEGV $$'")
    assert found.exit_code == 1
    assert "fails without any preload: killed by SIGSEGV" in found.output
    assert "broken" in found.output


def test_demo_writes_both_parts_as_json(short_demo, build, tmp_path):
    path = tmp_path / "out.json"
    app = f"{build}/bench/bench_random_mixed 1000"
    found = run("demo", "--app", app, "--seed", "3", "--json", str(path))
    assert found.exit_code == 0, found.output
    document = json.loads(path.read_text())
    bench, program = document["parts"]
    assert bench["rounds"] == 2
    assert bench["unit"] == "ops/s"
    assert len(bench["slices"]["hakmem"]) == 2
    assert program["command"][0].endswith("bench_random_mixed")
    assert program["served"]["hakmem"] == "yes, 7 spans handed out"
    assert {"hakmem", "glibc"} <= {row["name"] for row in program["summary"]}


@pytest.mark.parametrize(
    "words",
    [
        ("soak", "--minutes", "nan"),
        ("soak", "--epoch", "nan"),
        ("bench", "--minutes", "inf"),
        ("drawn", "--rest", "nan"),
        ("steady", "--seconds", "nan"),
        ("demo", "--app", " "),
    ],
)
def test_numbers_that_are_none_and_empty_commands_are_refused(words):
    found = run(*words)
    assert found.exit_code == 2, found.output
    assert words[1] in found.output


@pytest.mark.parametrize(
    ("arguments", "needs"),
    [
        (("bench", "quick", "--with", "glibc"), "bench"),
        (("scale", "--axis", "blocks", "--with", "glibc"), "scale"),
        (("drawn", "--quick", "--with", "glibc", "--html", "r.html"), "--html"),
        (("drawn", "--quick", "--with", "glibc", "--picture", "p.svg"), "--picture"),
        (
            ("soak", "--minutes", "1", "--with", "glibc", "--program", "x=true", "--plot", "p.svg"),
            "--plot",
        ),
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
