"""`hakmem misuse` on a stand-in for the program of tests/misuse and libraries that do little."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hakmem.cli import main
from small_build import compile_c

from hakmem_lab import misuse_cases
from hakmem_lab.misuse_cases import Ending, judged, tallies, total

# Its cases allocate, so that the loader's log names who serves; the environment says how they end.
PROGRAM = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void is(const char *name, const char *given, int signal, const char *words, int status) {
    if (strcmp(name, given) != 0) return;
    if (words != NULL) fputs(words, stderr);
    if (signal != 0) kill(getpid(), signal);
    _exit(status);
}
int main(int argc, char **argv) {
    volatile char *p = malloc(10);
    p[0] = 1;
    free((char *)p);
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        puts("over.control.40\nover.seen.40\nover.fault.40\nover.missed.40\nover.absent.40\n"
             "impossible-size.max");
        return 0;
    }
    is("over.control.40", argv[1], 0, getenv("NOISY"), 0);
    is("over.seen.40", argv[1], SIGABRT, "x: overflow\n", 0);
    is("over.fault.40", argv[1], SIGSEGV, NULL, 0);
    is("over.absent.40", argv[1], 0, NULL, 11);
    is("impossible-size.max", argv[1], 0, NULL, 10);
    return 0;
}
"""


def run(*arguments: str):
    return CliRunner().invoke(main, ["misuse", *arguments])


@pytest.fixture
def program(build: Path, monkeypatch) -> Path:
    target = build / "tests" / "misuse" / "misuse"
    if not target.exists():
        source = build / "misuse.c"
        source.write_text(PROGRAM)
        compile_c(target, [source], "-fno-builtin")
    monkeypatch.delenv("NOISY", raising=False)
    return target


def test_how_an_end_is_judged():
    assert judged("a.b", -6, b"told\n").outcome == "reported"
    assert judged("a.b", -11, b"").outcome == "stopped"
    assert judged("a.b", 0, b"told").outcome == "told"
    assert judged("a.b", 0, b"").outcome == "passed"
    assert judged("a.b", 10, b"").outcome == "failed"
    assert judged("impossible-size.b", 10, b"warning").outcome == "refused"
    assert judged("a.b", 11, b"").outcome == "absent"


def test_impossible_requests_and_controls_are_no_misuse():
    endings = [
        Ending("a.control", "passed"),
        Ending("a.one", "reported"),
        Ending("a.two", "hung"),
        Ending("a.three", "absent"),
        Ending("impossible-size.x", "refused"),
    ]
    found = tallies(endings)
    assert (found["a"].cases, found["a"].stopped, found["a"].missed) == (2, 1, ["a.two"])
    assert found["impossible-size"].refused == 1
    assert (total(found).cases, total(found).reported) == (2, 1)


def test_verdict_table_and_json(program, tmp_path):
    path = tmp_path / "out.json"
    found = run("--with", "glibc", "--json", str(path))
    assert found.exit_code == 0, found.output
    assert found.output.startswith("Of 3 misuses glibc stops 2 (1 with a report).")
    assert "2/1" in found.output
    (one,) = json.loads(path.read_text())["allocators"]
    assert one["families"]["over"]["missed"] == ["over.missed.40"]
    assert (one["total"]["stopped"], one["total"]["reported"]) == (2, 1)
    endings = {case["case"]: case["outcome"] for case in one["cases"]}
    assert endings["over.absent.40"] == "absent"
    assert endings["over.control.40"] == "passed"


def test_allocator_that_disturbs_a_control_fails(program, monkeypatch):
    monkeypatch.setenv("NOISY", "warning: odd\n")
    found = run("--with", "glibc")
    assert found.exit_code == 1
    assert "glibc: over.control.40 is correct, and was told: warning: odd" in found.output


def test_library_that_does_not_serve_is_refused(program, build):
    found = run("--with", "hakmem")
    assert found.exit_code == 1
    assert "hakmem does not serve" in found.output


def test_missing_program_says_how_to_build_it(monkeypatch, tmp_path):
    monkeypatch.setenv("HAKLAB_BUILD", str(tmp_path))
    found = run("--with", "glibc")
    assert found.exit_code == 125
    assert "--target misuse" in found.output


def test_hung_case_is_ended(tmp_path):
    script = tmp_path / "sleeper"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    script.chmod(0o755)
    assert misuse_cases.run_case(script, "a.b", None, limit_s=0.2).outcome == "hung"
