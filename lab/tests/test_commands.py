import json

import pytest
from click.testing import CliRunner
from hakmem.cli import main

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


def test_pair_with_missing_peer_has_a_row_that_says_so(monkeypatch):
    monkeypatch.setenv("MIMALLOC_SO", "/nowhere/libmimalloc.so")
    found = run("pair", "--pairs", "1", "--with", "glibc,mimalloc", "--", *RECORDED)
    assert found.exit_code == 0, found.output
    assert "no library at /nowhere/libmimalloc.so" in found.output


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
    found = run("pair", "--pairs", "1", "--with", "hakmem,glibc", "--", "/bin/true")
    assert found.exit_code == 1
    assert "NOT SERVED" in found.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("--with", "nonesuch", "--", "/bin/true"),
        ("--with", "glibc", "--lib", "no-equals-sign", "--", "/bin/true"),
        ("--with", "glibc", "--program", "glibc=/bin/true", "--", "/bin/true"),
        ("--with", "glibc", "--cpu", "many", "--", "/bin/true"),
        ("--with", "glibc", "--metric", "(", "--", "/bin/true"),
        ("--with", "glibc", "--", "no-such-program"),
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
    assert found.output.count("yes, alloc=7") == 2
    assert "effective settings: HAKMEM_PROFILE=balanced" in found.output
    assert "\x1b" not in found.output


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
    assert found.exit_code == 2
    assert "is missing: build first" in found.output


def test_demo_with_a_program_that_does_not_exist(short_demo):
    found = run("demo", "--app", "no-such-program --flag")
    assert found.exit_code == 2
    assert "cannot start 'no-such-program'" in found.output


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
    assert program["served"]["hakmem"] == "yes, alloc=7"
    assert {"hakmem", "glibc"} <= {row["name"] for row in program["summary"]}
