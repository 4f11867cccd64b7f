"""Two builds of hakmem side by side on a fixed set of loads: what another way to build is worth.

Each load is a rotation of its own: the release build, the other build, and the floor where the load
is a bench program of one thread.
"""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import geometric_mean, median

from hakmem.allocators.peers import Allocator, bench_program, find, repository_root
from hakmem.environment import default_cpu
from hakmem.errors import UserError
from hakmem.measuring.measures import NO_DIFFERENCE, TOO_FEW
from hakmem.measuring.rotation import (
    OPS_PER_SECOND,
    WALL_TIME,
    Metric,
    Rotation,
    contenders,
    run_rotation,
)
from hakmem.measuring.statistics import Interval, net_speed_ratio, speed_ratio
from hakmem.output import tables
from hakmem.running.proof import hakmem_served
from rich import box
from rich.table import Table

SYSTEM_PYTHON = "/usr/bin/python3"
RECORDS = Path(__file__).parent / "workloads" / "records.py"
# By default Python serves small objects from arenas of its own, past malloc.
PYTHON_SETTINGS = {"PYTHONMALLOC": "malloc", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True)
class CoreLoad:
    """One load: a bench program by its name, or a command; threads are left to the scheduler."""

    title: str
    command: tuple[str, ...]
    metric: Metric = OPS_PER_SECOND
    is_threaded: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_bench(self) -> bool:
        return self.command[0].startswith("bench_")

    @property
    def has_floor(self) -> bool:
        """Threads that wait for each other do not take the floor's time on top of it."""
        return self.is_bench and not self.is_threaded

    @property
    def resolved(self) -> tuple[str, ...]:
        first = str(bench_program(self.command[0])) if self.is_bench else self.command[0]
        return (first, *self.command[1:])


CORE_LOADS = (
    CoreLoad("random mixed, 400 slots", ("bench_random_mixed", "10000000", "400")),
    CoreLoad("random mixed, 4,000 slots", ("bench_random_mixed", "8000000", "4000")),
    CoreLoad("random mixed, 100,000 slots", ("bench_random_mixed", "4000000", "100000")),
    CoreLoad("replace one of 128 blocks, 64 B", ("bench_fixed_size", "15000000", "64")),
    CoreLoad("server churn, 2 threads", ("bench_larson", "2", "3000000"), is_threaded=True),
    CoreLoad(
        "producer/consumer, 64 B",
        ("bench_prodcons", "1", "1", "64", "2000000"),
        is_threaded=True,
    ),
    CoreLoad(
        "Python and SQLite", (SYSTEM_PYTHON, str(RECORDS), "1"), WALL_TIME, settings=PYTHON_SETTINGS
    ),
)


@dataclass(frozen=True)
class LoadResult:
    """How fast the other build is on one load; ratios above 1: the other build is faster."""

    title: str
    unit: str
    release: float = 0.0
    other: float = 0.0
    ratio: Interval | None = None
    net: Interval | None = None
    rounds: int = 0
    problem: str = ""

    @property
    def verdict(self) -> str:
        if self.ratio is None or self.ratio.low is None or self.ratio.high is None:
            return TOO_FEW
        if self.ratio.low > 1:
            return "faster"
        return "slower" if self.ratio.high < 1 else NO_DIFFERENCE


def build_preset(preset: str, target: str) -> None:
    """Configures and builds; the script says what it does, and shows the log of a failure."""
    script = repository_root() / "scripts" / "build.sh"
    if subprocess.run([str(script), preset, target], check=False).returncode:
        raise UserError(f"the preset {preset} was not built")


def preset_library(folder: str) -> Path:
    return repository_root() / "build" / folder / "libhakmem.so"


def compare_builds(
    library: Path,
    name: str,
    pairs: int,
    seed: int,
    progress: Callable[[str], None] = lambda _what: None,
    loads: Sequence[CoreLoad] = CORE_LOADS,
) -> list[LoadResult]:
    """Each load under the release build and under `library`; Ctrl-C leaves what is done."""
    release = Allocator("release", find("hakmem").library)
    other = Allocator(name, library)
    for allocator in (release, other):
        if allocator.library is None or not allocator.library.is_file():
            raise UserError(f"{allocator.library} is missing: build first", 2)
    results = []
    for load in loads:
        result, was_interrupted = measure_load(load, release, other, pairs, seed, progress)
        results.append(result)
        if was_interrupted:
            break
    return results


def measure_load(
    load: CoreLoad,
    release: Allocator,
    other: Allocator,
    pairs: int,
    seed: int,
    progress: Callable[[str], None],
) -> tuple[LoadResult, bool]:
    """One load's result, and whether it was interrupted."""
    for allocator in (release, other):
        if not hakmem_served(load.resolved, allocator.library, load.settings):
            problem = f"the {allocator.name} build did not serve it"
            return LoadResult(load.title, load.metric.unit, problem=problem), False
    chosen = [release, other, *([find("floor")] if load.has_floor else [])]
    rows = contenders(chosen, load.resolved, load.settings)
    cpus = None if load.is_threaded else default_cpu()
    rotation = run_rotation(
        rows, load.metric, pairs, seed, cpus, lambda row: progress(f"{load.title}: {row}")
    )
    return result_of(load, rotation, other.name), rotation.interrupted


def result_of(load: CoreLoad, rotation: Rotation, other: str) -> LoadResult:
    for name in ("release", other):
        series = rotation.series[name]
        if series.problem or not rotation.rounds_done:
            problem = f"{name}: {series.problem or 'no whole round'}"
            return LoadResult(load.title, load.metric.unit, problem=problem)
    ours, base = rotation.costs(other), rotation.costs("release")
    net = None
    if "floor" in rotation.series and not rotation.series["floor"].problem:
        net = net_speed_ratio(ours, base, rotation.costs("floor"), rotation.seed)
    values = {
        name: series.values[: rotation.rounds_done] for name, series in rotation.series.items()
    }
    return LoadResult(
        load.title,
        load.metric.unit,
        median(values["release"]),
        median(values[other]),
        speed_ratio(ours, base, rotation.seed),
        net,
        rotation.rounds_done,
    )


def sentence(results: Sequence[LoadResult], name: str) -> str:
    """The verdict on all loads together, before their table."""
    ratios = [result.ratio.median for result in results if result.ratio is not None]
    if not ratios:
        return f"No load has figures: nothing is known of the {name} build."
    verdicts = [result.verdict for result in results if result.ratio is not None]
    kinds = ("faster", "slower", NO_DIFFERENCE, TOO_FEW)
    told = [f"{kind} in {n}" for kind in kinds if (n := verdicts.count(kind))]
    many = "load" if len(ratios) == 1 else "loads"
    return (
        f"The {name} build runs at {geometric_mean(ratios):.3f} of the release build's speed, the "
        f"geometric mean of {len(ratios)} {many}: {', '.join(told)}."
    )


def results_table(results: Sequence[LoadResult], name: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), caption_justify="left")
    table.caption = (
        "Medians; ratios are of speed within pairs, [95 % interval]: above 1, "
        f"{name} is faster. Net: after the floor's time is taken from both."
    )
    table.add_column("load", no_wrap=True)
    table.add_column("release", justify="right", no_wrap=True)
    table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"{name} ÷ release")
    table.add_column("net of floor")
    table.add_column(f"{name} is")
    for result in results:
        metric = OPS_PER_SECOND if result.unit == OPS_PER_SECOND.unit else WALL_TIME
        if result.problem:
            table.add_row(result.title, *[tables.ABSENT] * 2, result.problem, *[tables.ABSENT] * 2)
            continue
        table.add_row(
            result.title,
            f"{tables.figure(result.release, metric)} {result.unit}",
            f"{tables.figure(result.other, metric)} {result.unit}",
            tables.interval(result.ratio),
            tables.interval(result.net) if result.net else tables.ABSENT,
            result.verdict,
        )
    return table


def as_json(results: Sequence[LoadResult]) -> list[dict]:
    return [asdict(result) | {"verdict": result.verdict} for result in results]
