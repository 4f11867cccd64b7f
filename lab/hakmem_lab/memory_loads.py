"""What `hakmem memory` runs: loads whose resident memory is the figure, and what is read of them.

The bench programs look at themselves and print one line, `Memory: name=value …`; what the launcher
has seen of a run (peak, throughput) stands beside it. A load runs under all allocators, or under
hakmem alone in several settings.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hakmem.measuring.rotation import OPS_PER_SECOND
from hakmem.running.launching import Outcome

MEMORY_LINE = re.compile(r"^Memory: (.*)$", re.MULTILINE)
MEMORY_WORD = re.compile(r"(\w+)=(\d+)")
KIB_A_MIB = 1024
# The budget of the load under a target, and the limit of the control group.
TARGET_MB = 256
IDLE_BYTES = 32 * 1024


@dataclass(frozen=True)
class Figure:
    """One figure of a run; `read` gives None where the run has none, such as a goal not reached."""

    name: str
    title: str
    unit: str
    read: Callable[[Outcome, Mapping[str, int]], float | None]
    higher_is_better: bool = False


@dataclass(frozen=True)
class Variant:
    """hakmem in other settings; `kernel_thp` is the system's mode while it runs."""

    name: str
    settings: Mapping[str, str]
    kernel_thp: str = ""


@dataclass(frozen=True)
class Load:
    """One program; `quick` are its arguments when it only has to be shown that all works."""

    name: str
    title: str
    command: tuple[str, ...]
    figures: tuple[Figure, ...]
    quick: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()
    # hakmem in other settings, beside all allocators in theirs.
    extra: tuple[Variant, ...] = ()
    pinned: bool = False
    # Runs of one round, whose medians count: for figures of single calls.
    runs: int = 1
    # Above 0: in a control group with so much memory, in which it may be killed.
    cgroup_mb: int = 0

    def arguments(self, is_quick: bool) -> tuple[str, ...]:
        return (self.command[0], *(self.quick if is_quick and self.quick else self.command[1:]))


def said(outcome: Outcome) -> dict[str, int]:
    """What the program printed of its own memory."""
    found = MEMORY_LINE.search(outcome.stdout)
    return {name: int(value) for name, value in MEMORY_WORD.findall(found[1])} if found else {}


def own(key: str, per: float = 1.0) -> Callable[[Outcome, Mapping[str, int]], float | None]:
    """A word of the program's line."""
    return lambda _outcome, words: words[key] / per if key in words else None


def share(key: str, of: str) -> Callable[[Outcome, Mapping[str, int]], float | None]:
    def read(_outcome: Outcome, words: Mapping[str, int]) -> float | None:
        return 100 * words[key] / words[of] if words.get(of) and key in words else None

    return read


def grown(_outcome: Outcome, words: Mapping[str, int]) -> float | None:
    """What has become resident while the program slept."""
    if not {"end_kb", "rested_kb"} <= words.keys():
        return None
    return (words["end_kb"] - words["rested_kb"]) / KIB_A_MIB


def peak(outcome: Outcome, _words: Mapping[str, int]) -> float | None:
    return outcome.peak_rss_kb / KIB_A_MIB


def speed(outcome: Outcome, _words: Mapping[str, int]) -> float | None:
    return OPS_PER_SECOND.read(outcome)


def alive(outcome: Outcome, _words: Mapping[str, int]) -> float:
    return 0.0 if outcome.signal_number == 9 else 1.0


PEAK = Figure("peak", "peak RSS", "MB", peak)
SPEED = Figure("speed", "throughput", "ops/s", speed, higher_is_better=True)
END = Figure("end", "RSS at the end", "MB", own("end_kb", KIB_A_MIB))

BALANCED = Variant("balanced", {"HAKMEM_PROFILE": "balanced"})
LEAN = Variant("lean", {"HAKMEM_PROFILE": "lean"})
FAST = Variant("speed", {"HAKMEM_PROFILE": "speed"})
THP = (
    Variant("THP off", {"HAKMEM_THP": "off"}),
    Variant("THP auto", {"HAKMEM_THP": "auto"}),
    Variant("THP on", {"HAKMEM_THP": "on"}),
    Variant("THP auto, kernel always", {"HAKMEM_THP": "auto"}, "always"),
)
TARGET = (
    Variant("no target", {}),
    Variant(f"target {TARGET_MB} MB", {"HAKMEM_RSS_TARGET": f"{TARGET_MB}M"}),
)
PROFILES = (BALANCED, LEAN)
WITHIN_GROUP = (Variant("hakmem, target 90%", {"HAKMEM_RSS_TARGET": "90%"}),)

SPIKE = (
    Figure("after-2s", "RSS 2 s after the frees", "% of the spike",
           share("after_2s_kb", "asked_kb")),
    Figure("reached", "until RSS is 5 % of the spike", "ms", own("reached_us", 1000)),
    Figure("spike", "RSS of the whole spike", "MB", own("spike_kb", KIB_A_MIB)),
    SPEED,
)  # fmt: skip
SLEEPERS = (END, Figure("reached", "until RSS is 40 MB", "ms", own("reached_us", 1000)))
PHASES = (
    Figure("end", "RSS over live, at the end", "times", own("end_permille", 1000)),
    Figure("mean", "RSS over live, mean of the phases", "times", own("mean_permille", 1000)),
    PEAK,
    SPEED,
)
# The kernel makes huge pages whole again, some every 10 s.
RESTED = (Figure("grown", "RSS that came in 45 s of sleep", "MB", grown), *PHASES)
THREADS = (
    Figure("thread", "RSS of an idle thread beyond its stack", "B", own("thread_bytes")),
    Figure("idle", "RSS of all of them", "MB", own("end_kb", KIB_A_MIB)),
)
SERVER = (END, Figure("held", "RSS with the live blocks", "MB", own("held_kb", KIB_A_MIB)), SPEED)
BUDGET = (Figure("highest", "highest RSS, looked at every 10 ms", "MB",
                 own("highest_kb", KIB_A_MIB)), SPEED)  # fmt: skip
FIRST = (
    Figure("p50", "first 1,000 requests, p50", "ns", own("p50_ns")),
    Figure("p99", "first 1,000 requests, p99", "ns", own("p99_ns")),
    Figure("max", "first 1,000 requests, longest", "ns", own("max_ns")),
    Figure("total", "first 1,000 requests, all", "ns", own("total_ns")),
    Figure("class-p99", "first 64 blocks of each size, p99", "ns", own("class_p99_ns")),
)
CGROUP = (Figure("alive", "not killed", "", alive, higher_is_better=True), PEAK, SPEED)
SMALL = (PEAK,)
RANDOM_400 = ("bench_random_mixed", "20000000", "400")
RANDOM_400_QUICK = ("1000000", "400")

LOADS = (
    Load("spike", "spike of 2 GB freed, then light work",
         ("bench_spike", "2048"), SPIKE, ("128", "64", "1048576", "3000")),
    Load("sleepers", "producer asleep, consumers asleep",
         ("bench_sleepers", "370", "2", "0"), SLEEPERS),
    Load("sleepers-busy", "producer asleep, consumers computing",
         ("bench_sleepers", "370", "2", "1"), SLEEPERS),
    Load("phases", "20 phases of 200 MB, 1 % survive",
         ("bench_phases", "20", "200", "1"), PHASES, ("4", "20", "1", "10", "200")),
    Load("idle-threads", "10,000 idle threads that once allocated",
         ("bench_idle_threads", "10000"), THREADS, ("200", "100", "16", "8192", "64", "200")),
    Load("server", "server churn with 8 threads, 2 s after the load",
         ("bench_larson", "8", "5000000", "1000", "8", "1000", "50000", "42", "2000"), SERVER,
         ("8", "200000", "1000", "8", "1000", "50000", "42", "200")),
    Load("sessions", "server sessions with 8 threads, 2 s after the load",
         ("bench_mixed", "8", "6000", "200", "2000", "42", "2000"), SERVER,
         ("8", "300", "50", "2000", "42", "200")),
    Load("lean-random-400", "random mixed, 400 slots, by profile",
         RANDOM_400, (SPEED, PEAK), RANDOM_400_QUICK, PROFILES, pinned=True),
    Load("lean-spike", "spike, by profile",
         ("bench_spike", "1024"), SPIKE, ("128", "64", "1048576", "3000"), PROFILES),
    Load("lean-phases", "phases, by profile",
         ("bench_phases", "10", "100", "1"), PHASES, ("4", "20", "1", "10", "200"), PROFILES),
    Load("speed-random-400", "random mixed, 400 slots, profile speed",
         RANDOM_400, (SPEED, PEAK), RANDOM_400_QUICK, (BALANCED, FAST), pinned=True),
    Load("speed-server", "server churn with 2 threads, profile speed",
         ("bench_larson", "2", "5000000"), (SPEED, PEAK), ("2", "200000"), (BALANCED, FAST)),
    Load("first", "first requests of a process, profile speed",
         ("bench_first",), FIRST, variants=(BALANCED, FAST), pinned=True, runs=20),
    Load("target", f"live 130 MB in changing sizes, target {TARGET_MB} MB",
         ("bench_budget", "40"), BUDGET, ("3", "20", "10"), TARGET),
    Load("cgroup", "live 200 MB to 8 KiB, churn, in 256 MB",
         ("bench_budget", "10", "200", "0", "2", "2"), CGROUP, ("2", "50", "0", "2", "2"),
         extra=WITHIN_GROUP, cgroup_mb=256),
    Load("cgroup-64k", "live 200 MB to 64 KiB, churn, in 256 MB",
         ("bench_budget", "10", "200", "0", "2", "3"), CGROUP, ("2", "50", "0", "2", "3"),
         extra=WITHIN_GROUP, cgroup_mb=256),
    Load("random-400", "random mixed, 400 slots",
         RANDOM_400, (PEAK, SPEED), RANDOM_400_QUICK, pinned=True),
    Load("small-true", "true", ("/bin/true",), SMALL),
    Load("small-echo", "echo", ("/bin/echo", "hakmem"), SMALL),
    Load("small-ls", "ls of a folder", ("/bin/ls", "-l", "/usr/bin"), SMALL),
    Load("small-sqlite", "sqlite3 -version", ("/usr/bin/sqlite3", "-version"), SMALL),
    Load("small-perl", "perl, one line", ("/usr/bin/perl", "-e", "print 1"), SMALL),
    Load("thp-random", "random mixed, 100,000 slots, by huge pages",
         ("bench_random_mixed", "5000000", "100000"), (PEAK, SPEED), ("1000000", "100000"), THP,
         pinned=True),
    Load("thp-bulk", "bulk, shuffled, by huge pages",
         ("bench_bulk", "2000000", "2"), (PEAK, SPEED), ("100000", "2"), THP, pinned=True),
    Load("thp-spike", "spike, by huge pages",
         ("bench_spike", "1024"), (*SPIKE, PEAK), ("128", "64", "1048576", "3000"), THP),
    Load("thp-phases", "phases, then 45 s of sleep, by huge pages",
         ("bench_phases", "10", "100", "1", "100", "45000"), RESTED,
         ("4", "20", "1", "10", "200"), THP),
)  # fmt: skip
