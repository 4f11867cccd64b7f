"""`hakmem ab-self-test`: whether `hakmem ab` can be trusted on this machine.

It compares a library with itself and with a slowed build of itself, many times each, and counts
the right answers. scripts/ab-self-test.sh makes the two builds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import click

from hakmem import environment
from hakmem.errors import UserError
from hakmem.measuring.deciding import Verdict
from hakmem.options import PROGRAM_LAST, WholeRange, cpu_option

# Of 20 trials; other numbers of trials must reach the same shares.
LEAST_RIGHT = {Verdict.NO_DIFFERENCE: 19 / 20, Verdict.NO_GO: 18 / 20}


# Two sides that are the same are refused. This means nothing to anybody, and is of one length.
TOLD_APART = ("--a=AB_SIDE=A", "--b=AB_SIDE=B")


@dataclass
class Course:
    """One kind of trial: what B is, the right answer, and the answers so far."""

    title: str
    library: Path
    right: Verdict
    verdicts: list[str] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    pairs: list[int] = field(default_factory=list)

    @property
    def hits(self) -> int:
        return self.verdicts.count(self.right.value)

    @property
    def passed(self) -> bool:
        return self.hits >= LEAST_RIGHT[self.right] * len(self.verdicts)

    def __str__(self) -> str:
        change = 100 * (median(self.speeds) - 1)
        return (
            f"{self.title}: {self.hits} of {len(self.verdicts)} said '{self.right.value}' "
            f"({'enough' if self.passed else 'TOO FEW'}); median of the measured differences "
            f"{change:+.2f} %, median of the pairs used {median(self.pairs):.0f}"
        )


@click.command(hidden=True, context_settings=PROGRAM_LAST)
@click.option(
    "--plain",
    type=click.Path(exists=True, path_type=Path),
    required=True,
    help="The library as it is.",
)
@click.option(
    "--slowed",
    type=click.Path(exists=True, path_type=Path),
    required=True,
    help="The same, made to do more work.",
)
@click.option("--trials", type=WholeRange(1), default=20, show_default=True, help="Of each kind.")
@cpu_option("auto")
@click.option("--option", "more", multiple=True, help="Passed on to hakmem ab, such as --pairs=40.")
@click.argument("program", nargs=-1, required=True)
def ab_self_test(
    plain: Path,
    slowed: Path,
    trials: int,
    cpu: str,
    more: tuple[str, ...],
    program: tuple[str, ...],
) -> None:
    """Count the right answers of `hakmem ab` where the truth is known."""
    for name, value in environment.describe().items():
        click.echo(f"{name}: {value}")
    click.echo(f"program: {' '.join(program)}; options: {' '.join(more) or 'defaults'}")
    courses = [
        Course("library beside itself", plain, Verdict.NO_DIFFERENCE),
        Course("library beside its slowed build", slowed, Verdict.NO_GO),
    ]
    for number in range(1, trials + 1):
        for course in courses:
            sides = [f"--a-lib={plain}", f"--b-lib={course.library}", *TOLD_APART]
            arguments = [*sides, f"--cpu={cpu}", *more]
            said = one_trial(course, [*arguments, f"--seed={number}"], program)
            click.echo(f"{number:3} {course.title}: {said}")
    for course in courses:
        click.echo(str(course))
    if not all(course.passed for course in courses):
        raise SystemExit(1)


def one_trial(course: Course, arguments: list[str], program: tuple[str, ...]) -> str:
    """Runs `hakmem ab` as a user would; returns its verdict."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-c", "from hakmem.cli import main; main()", "ab"]
        ran = subprocess.run(
            [*command, *arguments, f"--json={answer}", "--", *program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if not answer.exists():
            raise UserError(f"hakmem ab gave no answer: {ran.stderr.strip()}")
        found = json.loads(answer.read_text())
    course.verdicts.append(found["verdict"])
    course.speeds.append(found["speed_of_b_over_a"]["median"])
    course.pairs.append(found["pairs"])
    return ran.stdout.strip().splitlines()[0]
