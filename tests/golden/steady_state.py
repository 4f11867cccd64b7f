"""steady_state.py LIBRARY LAUNCHER BENCH [NAME=VALUE...]: after warm-up the allocator makes no system call and touches no new page. Two
iteration counts must differ in neither."""
import os
import re
import subprocess
import sys
import tempfile

from launching import launch

FEW, MANY = 20_000_000, 40_000_000
SLOTS = [400, 4000]
# A random walk reaches a new peak now and then, and with it a page or two; anything steady would be thousands.
FAULT_SLACK = 16
# With settings: blocks that are drawn at random reach a new page now and then too.
CALL_SLACK = 16


def system_calls(library: str, command: list[str], settings: list[str]) -> dict[str, int] | None:
    """Calls by name; None where tracing is not allowed."""
    with tempfile.NamedTemporaryFile() as out:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HAKMEM_")}
        run = subprocess.run(
            # At the same addresses each time: where a mapping is to be aligned, its address tells how many calls that takes.
            ["setarch", "-R", "strace", "-f", "-c", "-U", "calls,name", "-o", out.name, "-E", f"LD_PRELOAD={library}",
             *(word for s in settings for word in ("-E", s)), *command],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60,
        )
        if run.returncode != 0:
            print(run.stderr)
            return None
        with open(out.name) as f:
            return {m.group(2): int(m.group(1)) for m in re.finditer(r"^\s*(\d+)\s+(\w+)\s*$", f.read(), re.MULTILINE)}


def own_counters(library: str, command: list[str], settings: list[str]) -> dict[str, int]:
    """The allocator's own count of its system calls, where nobody may trace."""
    environment = dict(os.environ, LD_PRELOAD=library, HAKMEM_SS_OS_STATS="1") | dict(s.split("=") for s in settings)
    err = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60).stderr
    line = re.search(r"\[SS_OS_STATS\] (.*)", err)
    return {k: int(v) for k, v in re.findall(r"(madvise|mmap_total|fallback_mmap)=(\d+)", line.group(1))}


def compare(few: dict[str, int], many: dict[str, int], slack: int = 0) -> list[str]:
    return [f"{n}: {few.get(n, 0)} calls, then {many.get(n, 0)}" for n in sorted(few | many)
            if abs(few.get(n, 0) - many.get(n, 0)) > slack]


def main(library: str, launcher: str, bench: str, *settings: str) -> list[str]:
    problems = []
    for slots in SLOTS:
        commands = [[bench, str(n), str(slots)] for n in (FEW, MANY)]
        counts = [system_calls(library, c, settings) for c in commands]
        if None in counts:
            counts = [own_counters(library, c, settings) for c in commands]
        if not counts[0]:
            problems.append("no system call was counted at all")
        problems += [f"{slots} slots: {p}" for p in compare(*counts, CALL_SLACK if settings else 0)]
        if settings:
            continue
        faults = [launch(launcher, c, library)["minor_faults"] for c in commands]
        if abs(faults[1] - faults[0]) > FAULT_SLACK:
            problems.append(f"{slots} slots: {faults[0]} page faults in {FEW} steps, {faults[1]} in {MANY}")
    return problems


if __name__ == "__main__":
    sys.exit("\n".join(main(*sys.argv[1:])) or 0)
