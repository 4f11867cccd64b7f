"""The checks themselves, on a stand-in for the program: each must fail on what it is there to find."""
import contextlib
import io
import stat
import tempfile
from collections import Counter
from pathlib import Path

import check
from check import misuse_cases

# Its cases end as their names say.
STAND_IN = """#!/bin/sh
case $1 in
--list) echo a.control b.control-talks c.control-fails d.dies d.talks-and-dies d.passes d.talks impossible-size.none d.no d.hangs ;;
*.control | d.passes) ;;
*-talks | d.talks) echo something >&2 ;;
*-fails) exit 3 ;;
d.dies) kill -SEGV $$ ;;
d.talks-and-dies) echo something >&2; kill -ABRT $$ ;;
impossible-size.none | d.no) exit 10 ;;
d.hangs) exec sleep 600 ;;
esac
"""
WANTED = {"a.control": "passed", "b.control-talks": "told", "c.control-fails": "failed", "d.dies": "stopped", "d.talks-and-dies": "reported",
          "d.passes": "passed", "d.talks": "told", "impossible-size.none": "refused", "d.no": "failed"}


def quiet(*arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = check.main(*map(str, arguments))
    return status, out.getvalue()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program"
        program.write_text(STAND_IN)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        endings = misuse_cases.run_cases(program, list(WANTED), None)
        assert {one.case: one.outcome for one in endings} == WANTED, endings
        assert misuse_cases.run_case(program, "d.hangs", None, limit_s=0.3).outcome == misuse_cases.HUNG

        none = Path(folder) / "none.so"
        status, said = quiet("controls", program, none)
        # The loader says that it cannot preload: a control that is not silent.
        assert status == 1 and "a.control: told" in said and "c.control-fails" in said, said

        (Path(folder) / "few.txt").write_text("d.dies stopped passed\nd.gone passed passed\n")
        stopped_only = program.with_name("few")
        stopped_only.write_text(STAND_IN.replace(STAND_IN.splitlines()[2], "--list) echo a.control d.dies ;;"))
        stopped_only.chmod(0o755)
        status, said = quiet("outcomes", stopped_only, "/dev/null", "/dev/null", Path(folder) / "few.txt")
        # Under a library that is none every end comes with words of the loader's.
        assert status == 1, said
        assert said.splitlines() == ["d.gone: there is no such case", "d.dies: default build: reported, not stopped",
                                     "d.dies: hardened build: reported, not passed"], said

    problems = check.control_problems(endings[:3])
    assert [text.split(":")[0] for text in problems] == ["b.control-talks", "c.control-fails"]
    tally = misuse_cases.tallies(endings)["d"]
    assert (tally.cases, tally.stopped, tally.reported, len(tally.missed)) == (5, 2, 1, 3)

    expected = {"x.a": ("passed", "reported"), "x.b": ("any", "passed")}
    assert not check.outcome_problems(expected, {"x.a": ("passed", "reported"), "x.b": ("stopped", "passed")})
    better = {"x.a": ("reported", "reported"), "x.b": ("stopped", "passed")}
    assert check.outcome_problems(expected, better) == ["x.a: default build: reported, not passed"]
    worse = {"x.a": ("passed", "passed"), "x.b": ("stopped", "passed")}
    assert check.outcome_problems(expected, worse) == ["x.a: hardened build: passed, not reported"]
    assert len(check.outcome_problems(expected, {"x.a": ("passed", "reported"), "x.c": ("passed", "passed")})) == 2

    assert check.merged(Counter(passed=55, stopped=5), "") == "any"
    assert check.merged(Counter(passed=1, reported=59), "") == "reported"
    assert check.merged(Counter(passed=60), "any") == "any"
    assert check.merged(Counter(reported=60), "any") == "reported"
    assert check.merged(Counter(passed=60), "reported") == "passed"

    for again, is_real in ((["reported"] * 8, False), (["reported"] * 7 + ["passed"], False), (["passed"] * 8, True),
                           (["passed", "reported"] * 4, True)):
        left = iter(again)
        assert check.confirmed("x.a: hardened build: passed, not reported", lambda left=left: next(left)) == is_real


if __name__ == "__main__":
    main()
