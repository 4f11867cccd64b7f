"""The profile-guided build: what it is trained on, and what it must pass before it counts."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hakmem.allocators.peers import bench_program, repository_root
from hakmem.errors import UserError
from hakmem.plain_text import with_last_words
from hakmem.running.launching import run_once

from hakmem_lab.building import why_it_does_not_serve
from hakmem_lab.programs import WORKLOADS
from hakmem_lab.real_programs import PYTHON_SETTINGS, SYSTEM_PYTHON
from hakmem_lab.static_peers import TRIAL_SOURCE

# Other seeds and sizes than those of the suites it is measured on.
TRAINING_SEED = "7"
SMOKE_TESTS = ("test_override_api", "test_override_override")
SMOKE_LIMIT_S = 300


@dataclass(frozen=True)
class Training:
    """One run that is counted: a bench program by its name, or a command."""

    title: str
    command: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def resolved(self) -> tuple[str, ...]:
        first, *more = self.command
        return (str(bench_program(first)) if first.startswith("bench_") else first, *more)


def bench(name: str, *arguments: str) -> Training:
    return Training(" ".join((name, *arguments)), (f"bench_{name}", *arguments))


TRAINING = (
    *(
        bench("random_mixed", steps, slots, TRAINING_SEED)
        for steps, slots in (("4000000", "300"), ("3000000", "6000"), ("2000000", "80000"))
    ),
    *(
        bench("fixed_size", "1000000", size)
        for size in ("16", "48", "200", "800", "2000", "8192", "30000")
    ),
    bench("swing", "1000000", "200", "256"),
    bench("swing", "1000000", "1200", "1024"),
    bench("larson", "2", "600000"),
    bench("larson", "8", "150000"),
    bench("prodcons", "1", "1", "96", "500000"),
    bench("prodcons", "1", "1", "512", "300000"),
    bench("thread_churn", "600", "100"),
    bench("mid_large_mt", "2", "5000"),
    Training(
        "Python and SQLite",
        (SYSTEM_PYTHON, str(WORKLOADS / "records.py"), "1", TRAINING_SEED),
        PYTHON_SETTINGS,
    ),
)


@dataclass(frozen=True)
class Smoke:
    """What the finished build passed, and what could not be tried."""

    passed: tuple[str, ...] = ()
    not_tried: tuple[str, ...] = field(default=())


def build_preset(preset: str, target: str) -> None:
    """Configures and builds; the script says what it does, and shows the log of a failure."""
    script = repository_root() / "scripts" / "build.sh"
    if subprocess.run([str(script), preset, target], check=False).returncode:
        raise UserError(f"the preset {preset} was not built")


def preset_library(folder: str) -> Path:
    return repository_root() / "build" / folder / "libhakmem.so"


def profile_folder() -> Path:
    return repository_root() / "build" / "pgo-profile"


def build_and_train(progress: Callable[[str], None] = lambda _what: None) -> Path:
    """Instruments, trains and builds again; returns the library that came of it."""
    build_preset("pgo-generate", "hakmem")
    # Counts of an older build would not fit, or count twice.
    shutil.rmtree(profile_folder(), ignore_errors=True)
    train(preset_library("pgo-generate"), TRAINING, progress)
    build_preset("pgo-use", "hakmem")
    return preset_library("pgo")


def train(
    library: Path, loads: Sequence[Training], progress: Callable[[str], None] = lambda _what: None
) -> None:
    """Runs the loads under the instrumented library; each must leave counts at its exit."""
    written = newest_count()
    for load in loads:
        progress(load.title)
        outcome = run_once(load.resolved, library, None, load.settings)
        if outcome.problem:
            told = f"training with {load.title} failed: {outcome.problem}"
            raise UserError(with_last_words(told, outcome.last_words()))
        before, written = written, newest_count()
        if written <= before:
            raise UserError(f"training with {load.title} left no counts in {profile_folder()}")


def newest_count() -> int:
    """When the profile was last written, in nanoseconds; 0 before that."""
    return max((path.stat().st_mtime_ns for path in profile_folder().rglob("*.gcda")), default=0)


def smoke(library: Path) -> Smoke:
    """The loader's trial, the linked trial under preload, and the API tests on this build."""
    if wrong := why_it_does_not_serve(library, {}):
        raise UserError(f"the profile-guided build does not serve: {wrong}")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "trial"
        command = ["gcc", "-O1", "-fno-builtin", str(TRIAL_SOURCE), "-o", str(program), "-pthread"]
        must_pass(command, "compiling the trial program")
        must_pass([str(program)], "the trial program", library)
    passed, not_tried = ["load and serve", "contents, zeroing, threads"], []
    folder = library.parent
    for name in SMOKE_TESTS:
        said = subprocess.run(
            ["cmake", "--build", str(folder), "--target", name], capture_output=True, check=False
        )
        if said.returncode and b"unknown target" in said.stdout + said.stderr:
            not_tried.append(f"{name} (GoogleTest is not installed)")
            continue
        if said.returncode:
            raise UserError(f"{name} does not build in {folder}")
        must_pass([str(next(folder.glob(f"tests/**/{name}")))], name)
        passed.append(name)
    return Smoke(tuple(passed), tuple(not_tried))


def must_pass(command: Sequence[str], what: str, preload: Path | None = None) -> None:
    outcome = run_once(command, preload, limit_s=SMOKE_LIMIT_S)
    if outcome.problem:
        told = f"{what} failed with the profile-guided build: {outcome.problem}"
        raise UserError(with_last_words(told, outcome.stdout + outcome.stderr))
