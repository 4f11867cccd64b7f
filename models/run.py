#!/usr/bin/env python3
"""Checks the models of the lock-free protocols with Spin: every model must hold, and every mutant, the same model with one
step taken out, must fail in the way its file says. What the lines in the head of a model mean:

    mirrors FILE: TEXT      the model follows this line; it must stand in that file of the source
    mutant NAME: KIND | …   -DNAME must fail: assertion, stuck (nobody can go on), cycle (a liveness property)
    finding NAME: KIND | …  the same, where it is the allocator that is so: the model is of what it ought to do
    mended NAME FILE: TEXT  once this stands in that file the finding is a mutant like others
    variant NAME | …        -DNAME must hold as well
    ltl NAME | …            this property must hold too, under weak fairness
    pan OPTIONS             for the compiler, and
    flags OPTIONS           for the verifier

Exit status: 0 all as expected, 1 not so, 2 bad usage, 77 spin or the compiler is missing (CTest: skipped)."""

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MEMORY_MB = 1024  # of one verifier
SECONDS = 600
DEPTH = 500_000
FAILURES = {
    "assertion": "assertion violated",
    "stuck": "invalid end state",
    "cycle": "acceptance cycle",
}


@dataclass
class Case:
    """One run of the verifier: a model as it is, or with one definition."""

    model: str
    kind: str  # model, variant, ltl, mutant, finding
    name: str = ""
    expected: str = ""  # how it must fail
    states: int = 0
    seconds: float = 0
    problem: str = ""  # why it is not as expected

    @property
    def title(self):
        return f"{self.model} {self.name}".strip()


@dataclass
class Model:
    name: str
    mirrors: list = field(default_factory=list)
    cases: list = field(default_factory=list)
    pan: list = field(default_factory=list)
    flags: list = field(default_factory=list)

    @property
    def path(self):
        return HERE / f"{self.name}.pml"

    def of_kind(self, *kinds):
        return [c for c in self.cases if c.kind in kinds]


def in_source(name, text):
    """However its lines are broken."""
    source = ROOT / name
    return source.exists() and " ".join(text.split()) in " ".join(source.read_text().split())


def read_model(path):
    model = Model(path.stem)
    model.cases.append(Case(model.name, "model"))
    head = path.read_text().split("*/", 1)[0]
    for line in head.splitlines():
        word, _, rest = line.strip(" *").partition(" ")
        if word == "mirrors":
            model.mirrors.append(rest.split(": ", 1))
        elif word in ("mutant", "finding"):
            name, kind = rest.split(" | ", 1)[0].split(": ")
            if kind not in FAILURES:
                sys.exit(f"{path}: {name}: no kind of failure: {kind}")
            model.cases.append(Case(model.name, word, name, kind))
        elif word == "mended":
            name, place = rest.split(" ", 1)
            if in_source(*place.split(": ", 1)):
                next(c for c in model.cases if c.name == name).kind = "mutant"
        elif word in ("variant", "ltl"):
            model.cases.append(Case(model.name, word, rest.split(" | ", 1)[0]))
        elif word == "pan":
            model.pan += rest.split()
        elif word == "flags":
            model.flags += rest.split()
    return model


def missing_mirrors(model):
    """Lines of the source that the model follows and that are no longer there."""
    return [f"{name} has no longer: {text}" for name, text in model.mirrors if not in_source(name, text)]


def run(command, folder, seconds=SECONDS):
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, check=False
    )
    return done.returncode, done.stdout


def definition(case):
    return [f"-D{case.name}"] if case.kind in ("mutant", "variant", "finding") else []


def verify(model, case, folder):
    """The verifier's output, complete or up to the first error."""
    for file in (model.path, *HERE.glob("*.inc")):  # Spin puts what it writes beside the model
        shutil.copy(file, folder)
    status, out = run(["spin", "-a", *definition(case), model.path.name], folder)
    if status != 0 or not (Path(folder) / "pan.c").exists():
        raise RuntimeError(f"spin: {out.strip()}")
    liveness = case.kind == "ltl"
    options = [] if liveness else ["-DSAFETY", "-DNOCLAIM"]
    options += [f"-DMEMLIM={MEMORY_MB}", *model.pan]
    # A mutant fails soon: compiling takes longer than searching.
    optimise = "-O0" if case.expected else "-O1"
    status, out = run(["cc", optimise, "-w", *options, "-o", "pan", "pan.c"], folder)
    if status != 0:
        raise RuntimeError(f"cc: {out.strip()}")
    flags = ["-a", "-f", "-N", case.name] if liveness else model.flags
    return run(["./pan", f"-m{DEPTH}", *flags], folder)[1]


def judge(case, out):
    """What is wrong with this output; empty: it is as expected."""
    errors = re.search(r"errors: (\d+)", out)
    if errors is None:
        return "the verifier did not finish: " + " / ".join(out.strip().splitlines()[-3:])
    cut_short = re.search(r"max search depth too small|memory limit|out of memory|not complete", out, re.I)
    if int(errors[1]) == 0 and cut_short:
        return "the search is not complete: " + " / ".join(out.strip().splitlines()[:3])
    first = next((line for line in out.splitlines() if line.startswith("pan:1:")), "")
    if not case.expected:
        return f"it fails: {first}" if int(errors[1]) else ""
    if int(errors[1]) == 0:
        return "it holds, but should fail"
    return "" if FAILURES[case.expected] in first else f"it fails in another way: {first}"


def check(model, case):
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hakmem-model-") as folder:
        try:
            out = verify(model, case, folder)
            case.problem = judge(case, out)
            found = re.search(r"([0-9.e+]+) states, stored", out)
            case.states = int(float(found[1])) if found else 0
        except subprocess.TimeoutExpired as late:
            case.problem = f"no answer after {late.timeout:.0f} s"
        except RuntimeError as error:
            case.problem = str(error)
    case.seconds = time.monotonic() - begin


def show_trail(model, name):
    """The steps that lead to the failure, as Spin prints them."""
    case = next((c for c in model.cases if c.name == name), None)
    if case is None:
        usage_error(f"--trail: {model.name} has no case {name!r}")
    with tempfile.TemporaryDirectory(prefix="hakmem-model-") as folder:
        print(verify(model, case, folder))
        if not list(Path(folder).glob("*.trail")):
            return 0
        print(run(["spin", "-t", "-p", "-g", "-l", *definition(case), model.path.name], folder)[1])
    return 1


def print_table(models):
    print(f"{'model':<14}{'states':>10}{'seconds':>9}  {'verdict':<9}{'variants':>9}{'mutants killed':>16}")
    for model in models:
        plain = model.of_kind("model")[0]
        others, mutants = model.of_kind("variant", "ltl"), model.of_kind("mutant")
        held = sum(not c.problem for c in others)
        killed = sum(not c.problem for c in mutants)
        print(
            f"{model.name:<14}{plain.states:>10,}{sum(c.seconds for c in model.cases):>9.1f}  "
            f"{'FAILS' if plain.problem else 'holds':<9}{f'{held}/{len(others)}':>9}{f'{killed}/{len(mutants)}':>16}"
        )


def print_findings(models):
    for model in models:
        for case in model.of_kind("finding"):
            if not case.problem:
                print(f"the allocator differs from its model: {case.title} ({model.path.name} says how)")


def report(models, followed):
    """The models that ran; of all that there are, the lines that they follow."""
    print_table(models)
    print_findings(models)
    problems = [f"{m.name}: {text}" for m in followed for text in missing_mirrors(m)]
    for model in models:
        for case in model.cases:
            if not case.problem:
                continue
            problems.append(f"{case.title}: {case.problem}")
    for problem in problems:
        print(f"PROBLEM {problem}", file=sys.stderr)
    return 1 if problems else 0


def usage_error(text):
    print(f"models/run.py: {text}", file=sys.stderr)
    sys.exit(2)


def parse(argv, names):
    parser = argparse.ArgumentParser(description="Checks the models of the lock-free protocols with Spin.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(names)}; all when none is named")
    parser.add_argument("--no-mutants", action="store_true", help="the models alone: seconds")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="verifiers at a time (2)")
    parser.add_argument("--trail", metavar="NAME", help="one mutant, variant or finding of the one model: the steps to its failure")
    parser.error = usage_error
    options = parser.parse_args(argv)
    for name in options.models:
        if name not in names:
            usage_error(f"MODEL: no model {name!r}; there are {', '.join(names)}")
    if options.jobs < 1:
        usage_error(f"--jobs: not a positive number: {options.jobs}")
    if options.trail is not None and len(options.models) != 1:
        usage_error(f"--trail: {options.trail!r} needs the one model it belongs to")
    return options


def main(argv):
    models = {path.stem: read_model(path) for path in sorted(HERE.glob("*.pml"))}
    options = parse(argv, list(models))
    for tool in ("spin", "cc"):
        if shutil.which(tool) is None:
            print(f"SKIPPED: {tool} is not installed")
            return 77
    chosen = [models[name] for name in options.models or models]
    if options.trail is not None:
        return show_trail(chosen[0], options.trail)
    for model in chosen:
        if options.no_mutants:
            model.cases = [c for c in model.cases if c.kind not in ("mutant", "finding")]
    # The models themselves first: they take longest.
    jobs = sorted(((m, c) for m in chosen for c in m.cases), key=lambda job: job[1].kind in ("mutant", "finding"))
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda job: check(*job), jobs))
    return report(chosen, models.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
