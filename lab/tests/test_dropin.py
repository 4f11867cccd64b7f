"""`hakmem dropin` on stand-ins for the scripts of tests/dropin, and on libraries that do little."""

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from hakmem.cli import main
from small_build import compile_c

from hakmem_lab import dropin
from hakmem_lab.dropin import (
    JEMALLOC,
    Row,
    Shop,
    difference,
    explain,
    judged,
    refused,
    results,
    served,
)

OWN = Path(__file__).resolve().parents[2] / "tests" / "dropin"
# A part's script: what each of three tests says on the library of a folder.
SCRIPT = """
if [ "$1" = build ]; then echo "NOTE 3 files"; exit; fi
echo "RESULT one: pass: "
if [ "$4" = "THEIRS" ]; then echo "RESULT two: pass: "; echo "RESULT three: skip: none"
else echo "RESULT two: fail: file.c:1: 2 != 1"; echo "RESULT three: fail: "; fi
"""
REASON = '[[reason]]\ntest = "tikv t*"\nsays = "fail: file.c:1: .*"\nbecause = "its own classes"\n'
PROGRAM = '# sh dash\necho "same"\n[ "${DROPIN_OTHER-}" = "" ] || basename "$LD_LIBRARY_PATH"\n'
ANSWERS = 'const char name[] = "VALUE"; int mallctl(void) { return name[0]; }'


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree with the scripts, a build, and Debian's libraries, all stand-ins."""
    own, theirs, build = (tmp_path / name for name in ("tests/dropin", "debian", "build"))
    (own / "programs").mkdir(parents=True)
    (own / "tikv.sh").write_text(SCRIPT.replace("THEIRS", str(theirs)))
    (own / "reasons.toml").write_text(REASON)
    (own / "programs/first.sh").write_text(PROGRAM)
    (own / "programs/second.sh").write_text("# nonesuch-program nonesuch-package\n")
    (own / "trace.c").write_text((OWN / "trace.c").read_text())
    for folder, value in ((theirs, "t"), (build / "je", "o")):
        folder.mkdir(parents=True)
        source = tmp_path / "answers.c"
        source.write_text(ANSWERS.replace("VALUE", value))
        compile_c(folder / JEMALLOC, [source], "-shared", "-fPIC")
    monkeypatch.setenv("HAKLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HAKLAB_BUILD", str(build))
    monkeypatch.setattr(dropin, "repository_root", lambda: tmp_path)
    for module in ("hakmem_lab.dropin", "hakmem_lab.commands.dropin"):
        monkeypatch.setattr(f"{module}.DEBIAN_LIBRARIES", theirs)
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(main, ["dropin", *arguments])


def test_what_fails_for_a_reason_ends_well(tree):
    path = tree / "out.json"
    found = run("tikv", "--json", str(path))
    assert found.exit_code == 0, found.output
    assert "its own classes" in found.output
    rows = json.loads(path.read_text())["rows"]
    assert [(row["name"], row["theirs"], row["ours"]) for row in rows] == [
        ("one", "pass", "pass"),
        ("two", "pass", "fail: file.c:1: 2 != 1"),
        ("three", "skip: none", "fail"),
    ]


def test_what_fails_for_no_reason_is_the_status(tree):
    reasons = tree / "tests/dropin/reasons.toml"
    reasons.write_text(REASON.replace("file.c:1: .*", "file.c:1"))
    found = run("tikv")
    assert (found.exit_code, "NO REASON" in found.output) == (1, True), found.output


def test_bad_words_and_absent_libraries_are_refused(tree):
    found = run("nonesuch")
    assert (found.exit_code, "'nonesuch' is not one of" in found.output) == (2, True)
    (tree / "build/je" / JEMALLOC).unlink()
    found = run("tikv")
    assert (found.exit_code, f"{JEMALLOC} is missing" in found.output) == (125, True)


def test_two_runs_do_not_meet(tree):
    with Shop().held():
        found = run("tikv")
    assert (found.exit_code, "another process works in" in found.output) == (125, True)


def test_a_script_that_fails_is_told_with_its_words(tree):
    (tree / "tests/dropin/tikv.sh").write_text("echo no such luck >&2; exit 3")
    found = run("tikv")
    assert found.exit_code == 1
    assert "ends with 3" in found.output and "no such luck" in found.output


def test_a_list_of_sources_that_is_not_there(tree, monkeypatch):
    monkeypatch.setattr(dropin, "SOURCES", tree / "none.sources")
    found = run("jemalloc")
    assert (found.exit_code, "none.sources is missing" in found.output) == (125, True)


@pytest.mark.turns
def test_programs_must_print_the_same(tree, monkeypatch):
    shop = Shop()
    (row,) = dropin.programs(shop)
    # No process of it calls malloc of either library, but each has one by the preloaded trace.
    assert (row.theirs, row.ours) == ("pass", "served by nobody")
    assert shop.notes["second"].startswith("not run: nonesuch-program nonesuch-package")
    monkeypatch.setenv("DROPIN_OTHER", "1")
    (row,) = dropin.programs(Shop())
    assert row.ours.startswith("status 0: 'je', not 'debian'")


def test_who_serves_and_what_is_answered(tree):
    ours = tree / "build/je"
    assert served(f"served by {ours / JEMALLOC}\n", ours) == ""
    assert served("served by /opt/other.so\n", ours) == "served by /opt/other.so"
    theirs = "mallctl epoch -> 0\nmallctl version -> 0\n"
    assert refused((theirs, "", "mallctl epoch -> 0 7\nmallctl own -> 2\n")) == ""
    assert refused((theirs, "", "mib epoch -> 2\n")) == "answers otherwise: epoch -> 2"
    ended = [subprocess.CompletedProcess("", status, "a\n", "") for status in (0, 0, 9)]
    assert difference(ended[:2]) == ""
    assert difference(ended).startswith("status 9: no line")


def test_trace_tells_calls_and_who_serves(tree):
    source = tree / "asks.c"
    source.write_text(
        "int mallctl(const char *, void *, unsigned long *, void *, unsigned long);"
        "int main(void) { return mallctl(\"epoch\", 0, 0, 0, 0) != 'o'; }"
    )
    library = tree / "build/je" / JEMALLOC
    program = compile_c(tree / "asks", [source, library], f"-Wl,-rpath,{library.parent}")
    shim = compile_c(tree / "trace.so", [OWN / "trace.c"], "-shared", "-fPIC")
    given = {"LD_PRELOAD": str(shim), "DROPIN_TRACE": str(tree / "trace")}
    subprocess.run([program], env=given, check=True)
    said = (tree / "trace").read_text().splitlines()
    assert said[0].startswith("served by ") and said[0].endswith(JEMALLOC)
    assert said[1] == f"mallctl epoch -> {ord('o')}"


def test_a_test_that_runs_twice_passes_twice():
    once, twice = "RESULT a b: fail: x: y\n", "RESULT a b: pass: \n"
    assert results(once + twice) == results(twice + once) == {"a b": "fail: x: y"}


def test_figures_within_one_percent():
    found = judged("filled active 1010 1000\nfilled resident 1011 1000\nsparse active 1900 1000\n")
    assert found == {
        "filled active": "pass",
        "filled resident": "1,011 for 1,000: +1.10 %",
        "sparse active": "pass",
    }
    assert "-2.00 %" in judged("sparse active 980 1000\n")["sparse active"]


def test_reasons_fit_the_whole_of_what_is_said():
    rows = [Row("tikv", "two", "pass", "fail: a; b"), Row("tikv", "two", "skip", "fail: a")]
    explain(rows, [{"test": "tikv *", "says": "fail: a", "because": "x"}])
    assert [row.because for row in rows] == ["", ""]
    explain(rows, [{"test": "tikv *", "says": "fail: a; [bc]", "because": "x"}])
    assert [row.because for row in rows] == ["x", ""]


def test_the_reasons_of_the_tree_are_whole():
    for one in dropin.reasons(OWN):
        assert set(one) == {"test", "says", "because"}
        assert one["test"].split()[0] in dropin.PARTS
