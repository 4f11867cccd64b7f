"""calls.py LIBRARY PROGRAM PAGE: the table of system calls in docs/deploying.md, beside what strace sees. Each call that the library makes beyond
those of the program with libc's malloc is in its row, or in the first; each call of the table is made, but for those that another kernel or libc
needs. PROGRAM is sandboxed.c."""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARY, PROGRAM, PAGE = (os.path.abspath(path) for path in sys.argv[1:4])
# clone: before Linux 5.3. fstat: glibc's, by another name than newfstatat. rt_sigtimedwait: for a pipe that nobody reads. The last two: for links.
NOT_HERE = {"clone", "newfstatat", "fstat", "rt_sigtimedwait", "geteuid", "fstatfs"}
OF_THE_TEST = {"clock_nanosleep", "write", "exit_group", "seccomp", "prctl"}
PROFILE = {"HAKMEM_HEAP_PROFILE": "1", "HAKMEM_HEAP_PROFILE_RATE": "64K", "HAKMEM_HEAP_PROFILE_AT_EXIT": "1", "HAKMEM_HEAP_PROFILE_FORMAT": "proto"}
RUNS = {
    "every program": [{}, {"HAKMEM_RSS_TARGET": "80%"}],
    "messages": [{"HAKMEM_EXTERNAL_GUARD_LOG": "1"}],
    "reports at exit": [{"HAKMEM_STATS": "json"}],
    "`HAKMEM_STATS_PAGE`": [{"HAKMEM_STATS_PAGE": "1"}],
    "`HAKMEM_BACKGROUND`": [{"HAKMEM_BACKGROUND": "1"}],
    "`HAKMEM_HEAP_PROFILE`": [PROFILE],
}
INHERITS = {"`HAKMEM_HEAP_PROFILE`": ["`HAKMEM_STATS_PAGE`", "`HAKMEM_BACKGROUND`", "reports at exit", "messages"], "reports at exit": ["messages"]}


def table(text: str) -> dict[str, set[str]]:
    part = text.partition("## System calls\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", part, re.MULTILINE)[1:]
    words = {name: re.sub(r"\(.*?\)|\[.*?\]|`[^`]*`", " ", calls) for name, calls in rows}
    return {name: {w for w in re.findall(r"[a-z]\w+", calls) if re.fullmatch(r"[a-z]+\w*\d*", w)} for name, calls in words.items()}


def trace(folder: Path, mode: str, settings: dict[str, str], preload: str) -> list[str]:
    out = folder / "trace"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HAKMEM_") and k != "LD_PRELOAD"}
    settings = settings | ({"HAKMEM_HEAP_PROFILE_PREFIX": f"{folder}/p"} if "HAKMEM_HEAP_PROFILE" in settings else {})
    variables = [f"{k}={v}" for k, v in settings.items()] + ([f"LD_PRELOAD={preload}"] if preload else [])
    command = ["strace", "-f", "-qq", "-o", str(out), "env", *variables, PROGRAM, mode]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    if ran.returncode != 0:
        print(ran.stderr)
        sys.exit(77 if "ptrace" in ran.stderr or ran.returncode == 77 else 1)
    return re.findall(r"^\d+ +(\w+)\(", out.read_text(), re.MULTILINE)


def check(folder: Path) -> list[str]:
    rows, problems, seen = table(Path(PAGE).read_text()), [], set()
    prose = {"at", "the", "start", "for", "unless", "or", "those", "of", "and", "files", "where", "link", "leads", "to", "them", "more", "than", "one", "a"}
    rows = {name: calls - prose for name, calls in rows.items()}
    baseline = set(trace(folder, "open", {"NO_FOREIGN": "1"}, ""))  # libc ends the program for a foreign pointer
    for name, runs in RUNS.items():
        allowed = rows[name] | rows["every program"] | {c for other in INHERITS.get(name, []) for c in rows[other]}
        for settings in runs:
            made = set(trace(folder, "open", settings, LIBRARY))
            seen |= made
            if more := made - baseline - allowed - {"exit"}:
                problems.append(f"{name}: not in the table: {sorted(more)} ({settings})")
    behind = trace(folder, "warm", {}, LIBRARY)
    behind = set(behind[behind.index("seccomp"):]) - OF_THE_TEST
    if behind != rows["behind a filter of its own"]:
        problems.append(f"behind a filter: {sorted(behind)}")
    for name, calls in rows.items():
        if never := calls - seen - NOT_HERE:
            problems.append(f"{name}: never made: {sorted(never)}")
    return problems


if __name__ == "__main__":
    if subprocess.run(["strace", "-V"], capture_output=True).returncode != 0:
        sys.exit(77)
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit("\n".join(check(Path(scratch))) or 0)
