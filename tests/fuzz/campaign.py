"""campaign.py --build DIR [--hardened] [--harness NAME] [--minutes N | --inputs N | --replay | --merge] [--keep]

Runs the fuzzers of a build (preset fuzz) for a while under one setting after the other, all harnesses at once,
starting from the stored inputs. Prints one line a harness: inputs executed, code covered, findings. With --keep a
finding's input is made smaller and stored beside the others; without, it stays in the build folder. --inputs runs N inputs
under each setting, the same on every machine, however busy it is. --hardened runs the
fuzzers of the hardened build, on the same stored inputs. --replay runs the stored inputs alone, those that once failed
under every setting. --merge replaces what is stored, but for those, by a few inputs of it and of the build folder that
cover nearly the same. Exit status 1: something was found.
"""

import argparse
import concurrent.futures
import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

STORED = Path(__file__).resolve().parent / "corpus"
HARNESSES = ("calls", "starts", "misuse", "heaps")
# Settings that change which paths run; they are read at start, hence one process each.
SETTINGS = (
    {},
    {"HAKMEM_RESERVE_MB": "16"},
    {"HAKMEM_TINY_HOT_RING_ENABLE": "0"},
    {"HAKMEM_TINY_MAX_CLASS": "3"},
    {"HAKMEM_TINY_FRONT_METRICS": "1"},
    {"HAKMEM_THP": "on", "HAKMEM_TINY_MAX_CLASS": "12"},
    {"HAKMEM_PROFILE": "speed"},
    {"HAKMEM_PROFILE": "lean"},
    {"HAKMEM_SS_MEM_LEAN": "1", "HAKMEM_SS_MEM_LEAN_TARGET_MB": "0", "HAKMEM_SS_MEM_LEAN_DECOMMIT": "FREE"},
    {"HAKMEM_RSS_TARGET": "1M", "HAKMEM_THP": "off"},
    {f"HAKMEM_TINY_HOT_RING_C{n}": str(v) for n, v in ((1, 64), (2, 128), (5, 1), (7, 2), (12, 1))},
)
# Misuse of a sampled block ends in a fault, which its harness takes for a crash; tests/guard has it instead.
SAMPLED = ({"HAKMEM_GUARD_SAMPLE": "1/3"}, {"HAKMEM_GUARD_SAMPLE": "1/40", "HAKMEM_RESERVE_MB": "16"})
SLICE_SECONDS = 60  # of one setting, at most: what a process has gone through must not pile up
# Of each harness in the repository, the longest, which cover most; every smoke test begins with them.
STORED_MAX, STORED_BYTES_MAX = 80, 90_000
FINDINGS_MAX = 5  # then a harness stops: they are likely to be one
# Whole inputs from the start: a call takes three bytes, and little happens in a few calls.
COMMON = ("-max_len=2048", "-len_control=0", "-timeout=60", "-rss_limit_mb=4096", "-print_final_stats=1", "-verbosity=1")


@dataclasses.dataclass
class Tally:
    executed: int = 0
    covered: int = 0
    findings: list[str] = dataclasses.field(default_factory=list)


def environment(setting: dict[str, str]) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HAKMEM_", "ASAN_", "UBSAN_"))}
    return clean | setting | {"UBSAN_OPTIONS": "print_stacktrace=1"}


def as_text(setting: dict[str, str]) -> str:
    return " ".join(f"{k}={v}" for k, v in setting.items()) or "default settings"


class Campaign:
    def __init__(self, build: Path, harness: str, hardened: bool, keep: bool):
        self.harness = f"{harness}_hardened" if hardened else harness
        self.program = build / "tests" / "fuzz" / f"fuzz_{self.harness}"
        self.settings = SETTINGS if harness == "misuse" else SETTINGS + SAMPLED
        self.keep = keep
        self.stored = STORED / harness
        self.seeds = [STORED / "calls"] if harness == "starts" else []  # its inputs are theirs, with refusals in front
        self.work = build / "fuzzing" / self.harness
        self.crashes = build / "fuzzing" / f"{self.harness}-findings"
        self.tally = Tally()
        if not self.program.exists():
            return
        if not keep:
            shutil.rmtree(self.work, ignore_errors=True)  # so that every run is the same one
        for folder in (self.stored, self.work, self.crashes):
            folder.mkdir(parents=True, exist_ok=True)

    def launch(self, setting: dict[str, str], *arguments: str) -> subprocess.CompletedProcess:
        command = [str(self.program), *COMMON, f"-artifact_prefix={self.crashes}/", *arguments]
        return subprocess.run(
            command, env=environment(setting), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace"
        )

    def note(self, setting: dict[str, str], run: subprocess.CompletedProcess) -> None:
        executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", run.stdout)
        covered = re.findall(r"\bcov: (\d+)", run.stdout)
        self.tally.executed += int(executed[1]) if executed else 0
        self.tally.covered = max([self.tally.covered, *map(int, covered)])
        if run.returncode == 0:
            return
        written = re.search(r"Test unit written to (\S+)", run.stdout)
        where = self.store(setting, Path(written[1])) if written else "no input"
        marks = (r"fuzz: FINDING: .*", r".*runtime error: .*", r"hakmem: .*", r"ERROR: .*")
        what = next(filter(None, (re.search(mark, run.stdout) for mark in marks)), None)
        title = what[0] if what else f"status {run.returncode}"
        self.tally.findings.append(f"{title} [{as_text(setting)}; {where}]")
        print(f"fuzz {self.harness}: {self.tally.findings[-1]}", flush=True)
        if not what:
            print(run.stdout[-3000:], flush=True)

    def store(self, setting: dict[str, str], unit: Path) -> str:
        if not self.keep:
            return str(unit)
        if self.launch(setting, str(unit)).returncode == 0:
            return f"{unit}, not seen again when it runs alone"
        small = self.crashes / f"small-{unit.name}"
        self.launch(setting, "-minimize_crash=1", "-max_total_time=30", f"-exact_artifact_path={small}", str(unit))
        best = small if small.exists() and self.launch(setting, str(small)).returncode != 0 else unit
        name = "crash-" + hashlib.sha1(best.read_bytes()).hexdigest()[:12]
        shutil.copyfile(best, self.stored / name)
        return str(self.stored / name)

    def replay(self) -> Tally:
        crashes = [str(unit) for unit in sorted(self.stored.glob("crash-*"))]
        self.note({}, self.launch({}, "-runs=0", str(self.stored), *map(str, self.seeds)))
        for setting in self.settings:
            if crashes:
                self.note(setting, self.launch(setting, *crashes))
        return self.tally

    def fuzz_inputs(self, inputs: int) -> Tally:
        for turn, setting in enumerate(self.settings, start=1):
            self.note(setting, self.launch(setting, f"-seed={turn}", f"-runs={inputs}", *self.corpora()))
        return self.tally

    def fuzz(self, seconds: float) -> Tally:
        end = time.monotonic() + seconds
        share = max(1, min(SLICE_SECONDS, seconds / len(self.settings)))
        turn = 0
        while (left := end - time.monotonic()) > 0 and len(self.tally.findings) < FINDINGS_MAX:
            setting = self.settings[turn % len(self.settings)]
            turn += 1
            limits = (f"-seed={turn}", f"-max_total_time={max(1, round(min(share, left)))}")
            self.note(setting, self.launch(setting, *limits, *self.corpora()))
        return self.tally

    def corpora(self) -> list[str]:
        return [str(self.work), str(self.stored), *map(str, self.seeds)]

    def merge(self) -> None:
        fresh = self.work.with_name(f"{self.harness}-merged")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        self.launch({}, "-set_cover_merge=1", str(fresh), str(self.stored), str(self.work), *map(str, self.seeds))
        for old in self.stored.iterdir():
            if not old.name.startswith("crash-"):
                old.unlink()
        left = STORED_BYTES_MAX
        for unit in sorted(fresh.iterdir(), key=lambda u: u.stat().st_size, reverse=True)[:STORED_MAX]:
            left -= unit.stat().st_size
            if left >= 0:
                shutil.copyfile(unit, self.stored / unit.name)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(usage=__doc__.split("\n", 1)[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--hardened", action="store_true")
    parser.add_argument("--harness", choices=HARNESSES)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=1)
    length.add_argument("--inputs", type=int)
    length.add_argument("--replay", action="store_true")
    length.add_argument("--merge", action="store_true")
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    if not 0 < arguments.minutes < 1e6:
        parser.error(f"--minutes {arguments.minutes}: a number above 0 is needed")
    if arguments.inputs is not None and arguments.inputs <= 0:
        parser.error(f"--inputs {arguments.inputs}: a number above 0 is needed")
    return arguments


def run(campaign: Campaign, arguments: argparse.Namespace) -> Tally:
    if arguments.replay:
        return campaign.replay()
    if arguments.inputs is not None:
        return campaign.fuzz_inputs(arguments.inputs)
    return campaign.fuzz(arguments.minutes * 60)


def main() -> int:
    arguments = parsed_arguments()
    campaigns = [
        Campaign(arguments.build.resolve(), h, arguments.hardened, arguments.keep or arguments.merge)
        for h in HARNESSES
        if arguments.harness in (None, h)
    ]
    for campaign in campaigns:
        if not campaign.program.exists():
            print(f"campaign.py: --build {arguments.build}: no {campaign.program.name} there", file=sys.stderr)
            return 2
    if arguments.merge:
        for campaign in campaigns:
            campaign.merge()
        return 0
    with concurrent.futures.ThreadPoolExecutor(len(campaigns)) as pool:
        started = time.monotonic()
        tallies = list(pool.map(lambda c: run(c, arguments), campaigns))
    for campaign, tally in zip(campaigns, tallies):
        print(
            f"fuzz {campaign.harness}: {tally.executed} inputs in {time.monotonic() - started:.0f} s, "
            f"{tally.covered} edges covered, {len(tally.findings)} findings"
        )
    return 1 if any(t.findings for t in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
