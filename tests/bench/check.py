"""What every bench program promises, tried with small arguments: it runs under the library, prints one well-formed
result, does the same work again and under any allocator, and answers a wrong command line with one line and status 2.

check.py run BINARY LIBRARY [--floor FLOOR] [ARGUMENT...]
check.py seeds BINARY LIBRARY FIRST LAST [ARGUMENT...]
check.py reject BINARY NAME [ARGUMENT...]
check.py readme README PROGRAM...
"""
import argparse
import os
import re
import subprocess
import sys

RESULT = re.compile(r"Throughput = (\d{4,}|\d{1,3}(?:\.\d{3})?) ops/s \[([^\]]*)\] time=(\d+\.\d{3})s\n")
SERVED = re.compile(r"\[SS_OS_STATS\] alloc=(\d+) ")
TIMEOUT_S = 50


def run(command: list[str], preload: str | None = None) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HAKMEM_") and k != "LD_PRELOAD"}
    if preload:
        environment |= {"LD_PRELOAD": preload, "HAKMEM_SS_OS_STATS": "1"}
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)


def labels(output: str) -> dict[str, str] | None:
    """The labels of the result line; None unless there is exactly one such line, the first, with work done."""
    found = RESULT.findall(output)
    if len(found) != 1 or RESULT.match(output) is None or float(found[0][0]) == 0:
        return None
    pairs = [label.partition("=") for label in found[0][1].split(" ")]
    return {name: value for name, _, value in pairs} if all(value for _, _, value in pairs) else None


def result_problems(what: str, done: subprocess.CompletedProcess) -> list[str]:
    if done.returncode != 0:
        return [f"{what}: status {done.returncode}: {done.stderr.strip()}"]
    return [] if labels(done.stdout) else [f"{what}: no well-formed result in {done.stdout!r}"]


def rejection_problems(name: str, done: subprocess.CompletedProcess) -> list[str]:
    """One line on stderr that names the argument, nothing on stdout, status 2."""
    if done.returncode == 2 and done.stdout == "" and re.fullmatch(rf"[^\n]*\b{name}\b[^\n]*\n", done.stderr):
        return []
    return [f"{done.args}: status {done.returncode}, not one line that names '{name}': {done.stdout!r} {done.stderr!r}"]


def argument_names(binary: str) -> list[str]:
    """As --help gives them."""
    usage = run([binary, "--help"]).stdout.splitlines()[0]
    return re.findall(r"\[(\w+)\]", usage)


def defaults(binary: str) -> list[str]:
    """In the same order."""
    return re.findall(r"\(default (\d+),", run([binary, "--help"]).stdout)


def same_work_problems(command: list[str], library: str) -> list[str]:
    runs = {"first run": run(command, library), "second run": run(command, library), "glibc": run(command)}
    problems = [p for what, done in runs.items() for p in result_problems(what, done)]
    if problems:
        return problems
    served = SERVED.search(runs["first run"].stderr)
    if served is None or int(served.group(1)) == 0:
        problems.append(f"not served by the library: {runs['first run'].stderr!r}")
    work = {what: labels(done.stdout) for what, done in runs.items()}
    if any(found != work["glibc"] for found in work.values()):
        problems.append(f"not the same work: {work}")
    return problems


def seed_problems(command: list[str], names: list[str]) -> list[str]:
    """What a scenario computes depends on its seed."""
    first = labels(run(command).stdout)
    if not first or "check" not in first:
        return []
    place = names.index("seed") + 1
    seeded = [*command, *defaults(command[0])[len(command) - 1 :]]
    other = labels(run([*seeded[:place], "77", *seeded[place + 1 :]]).stdout)
    return [] if other and other["check"] != first["check"] else [f"another seed, the same check: {other}"]


def command_line_problems(binary: str, names: list[str]) -> list[str]:
    usual = defaults(binary)
    problems = [] if names and len(names) == len(usual) else ["--help does not give each argument and its default"]
    for place, name in enumerate(names):
        for bad in ("x", "-1", "1.5", "99999999999999999999999"):
            problems += rejection_problems(name, run([binary, *usual[:place], bad]))
    too_many = [*usual, "1"]
    return problems + rejection_problems(f"argument {len(too_many)}", run([binary, *too_many]))


def check_run(binary: str, library: str, floor: str | None, arguments: list[str]) -> list[str]:
    command = [binary, *arguments]
    names = argument_names(binary)
    problems = same_work_problems(command, library) + command_line_problems(binary, names)
    if not problems:
        problems += seed_problems(command, names)
    return problems + (result_problems("floor", run(command, floor)) if floor else [])


def seeds_problems(binary: str, library: str, seeds: range, arguments: list[str]) -> list[str]:
    """The seed is the program's first argument."""
    problems = []
    for seed in seeds:
        found = same_work_problems([binary, str(seed), *arguments], library)
        problems += [f"seed {seed}: {problem}" for problem in found]
    return problems


def readme_problems(text: str, programs: list[str]) -> list[str]:
    return [f"no row for {name}" for name in programs if not re.search(rf"^\| `{name}` \|", text, re.MULTILINE)]


def main(arguments: list[str]) -> list[str]:
    parser = argparse.ArgumentParser()
    modes = parser.add_subparsers(dest="mode", required=True)
    one = modes.add_parser("run")
    one.add_argument("--floor")
    one.add_argument("binary")
    one.add_argument("library")
    one.add_argument("arguments", nargs="*")
    seeds = modes.add_parser("seeds")
    seeds.add_argument("binary")
    seeds.add_argument("library")
    seeds.add_argument("first", type=int)
    seeds.add_argument("last", type=int)
    seeds.add_argument("arguments", nargs="*")
    reject = modes.add_parser("reject")
    reject.add_argument("binary")
    reject.add_argument("name")
    reject.add_argument("arguments", nargs="*")
    readme = modes.add_parser("readme")
    readme.add_argument("file")
    readme.add_argument("programs", nargs="+")
    given = parser.parse_args(arguments)
    if given.mode == "run":
        return check_run(given.binary, given.library, given.floor, given.arguments)
    if given.mode == "seeds":
        seeds = range(given.first, given.last + 1)
        return seeds_problems(given.binary, given.library, seeds, given.arguments)
    if given.mode == "reject":
        return rejection_problems(given.name, run([given.binary, *given.arguments]))
    with open(given.file) as f:
        return readme_problems(f.read(), given.programs)


if __name__ == "__main__":
    sys.exit("\n".join(main(sys.argv[1:])) or 0)
