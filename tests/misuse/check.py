"""What both builds of hakmem notice of the cases in this folder.

    check.py controls PROGRAM LIBRARY...             correct programs end with status 0 and say nothing
    check.py outcomes PROGRAM DEFAULT HARDENED FILE  every case ends as FILE says
    check.py write PROGRAM DEFAULT HARDENED FILE     writes FILE: runs all cases many times (ROUNDS)

FILE has a line a case: its name, what the default build makes of it, what the hardened build does. `any` is what differs
from run to run, as addresses or what is drawn at random have it. Such a word stays when FILE is written again, unless no
run went unnoticed any more. What happens in one run of 20 or less is no outcome of a case: one byte of a canary is what an
overflow has written in one run of 256. So a case that ended otherwise runs AGAIN times more, and all of these but one
must end as FILE says.
"""
import os
import sys
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab"))

from hakmem_lab import misuse_cases  # noqa: E402

ANY = "any"
ROUNDS = 60
RARE = 0.05
AGAIN = 8
# For a machine that is busy; a case takes milliseconds.
LIMIT_S = 60.0
HEADER = """\
# What libhakmem.so and libhakmem-hardened.so make of each case (docs/security.md; words: lab/hakmem_lab/misuse_cases.py).
# After a change that is meant: python3 tests/misuse/check.py write PROGRAM DEFAULT HARDENED tests/misuse/expected.txt
"""


def control_problems(endings):
    return [f"{one.case}: {one.outcome}, status {one.status}, signal {one.signal}: {one.words[:200]}"
            for one in endings if not one.is_silent]


def outcome_problems(expected, found):
    """Both by case: a pair of words, for the default and the hardened build."""
    problems = [f"{case}: has no line in the file" for case in found if case not in expected]
    problems += [f"{case}: there is no such case" for case in expected if case not in found]
    for case, words in found.items():
        for build, wanted, got in zip(("default", "hardened"), expected.get(case, words), words):
            if wanted not in (ANY, got):
                problems.append(f"{case}: {build} build: {got}, not {wanted}")
    return problems


def read(path):
    lines = (line.split() for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return {case: (default, hardened) for case, default, hardened in lines}


def merged(outcomes, before):
    """One word for what many runs of a case came to: a Counter of words."""
    (outcome, count), runs = outcomes.most_common(1)[0], sum(outcomes.values())
    if count < runs * (1 - RARE):
        return ANY
    noticed = outcome in (misuse_cases.REPORTED, misuse_cases.STOPPED) and count == runs
    return ANY if before == ANY and not noticed else outcome


def confirmed(problem, run_again):
    """Whether a case really ends otherwise: `run_again` says what it came to in another run."""
    wanted = problem.rpartition(", not ")[2]
    return sum(run_again() != wanted for _ in range(AGAIN)) > 1


def unlike(program, libraries, expected):
    """The cases that do not end as expected, rare outcomes aside."""
    cases = [case for case in misuse_cases.listed(program) if not misuse_cases.is_control(case)]
    problems = []
    for problem in outcome_problems(expected, run_both(program, cases, libraries)):
        case, _, said = problem.partition(": ")
        library = libraries[said.startswith("hardened")]

        def run_again(case=case, library=library):
            return misuse_cases.run_case(program, case, library, limit_s=LIMIT_S).outcome

        if ", not " not in said or confirmed(problem, run_again):
            problems.append(problem)
    return problems


def run_both(program, cases, libraries):
    runs = [misuse_cases.run_cases(program, cases, library, limit_s=LIMIT_S) for library in libraries]
    return {one.case: (one.outcome, other.outcome) for one, other in zip(*runs)}


def write(program, cases, libraries, path):
    before = read(path) if path.exists() else {}
    seen = defaultdict(lambda: (Counter(), Counter()))
    for number in range(ROUNDS):
        print(f"round {number + 1} of {ROUNDS}", end="\r", file=sys.stderr)
        for case, words in run_both(program, cases, libraries).items():
            for outcomes, word in zip(seen[case], words):
                outcomes[word] += 1
    lines = []
    for case in cases:
        words = [merged(*pair) for pair in zip(seen[case], before.get(case, ("", "")))]
        lines.append(f"{case:45} {words[0]:9} {words[1]}\n")
    path.write_text(HEADER + "".join(lines))


def main(mode, program, *rest):
    for name in list(os.environ):
        if name.startswith(("HAKMEM_", "GLIBC_TUNABLES", "MALLOC_", "LD_")):
            del os.environ[name]
    program = Path(program)
    cases = misuse_cases.listed(program)
    problems = []
    if mode == "controls":
        controls = [case for case in cases if misuse_cases.is_control(case)]
        assert controls
        for library in rest:
            endings = misuse_cases.run_cases(program, controls, Path(library), limit_s=LIMIT_S)
            problems += [f"{Path(library).name}: {text}" for text in control_problems(endings)]
    else:
        cases = [case for case in cases if not misuse_cases.is_control(case)]
        libraries, path = [Path(library) for library in rest[:2]], Path(rest[2])
        if mode == "write":
            write(program, cases, libraries, path)
        else:
            problems = unlike(program, libraries, read(path))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
