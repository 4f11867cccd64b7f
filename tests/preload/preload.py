"""Runs one workload twice, first under glibc's malloc and then with hakmem
preloaded, and compares the two transcripts byte for byte.

A transcript is what the workload's steps printed, plus the files it recorded.
In the preloaded run every step must also show that hakmem served it: with
HAKMEM_SS_OS_STATS=1 each process prints one line at exit, and its `alloc` must
not be zero. Those lines are taken out before standard error is compared.
"""

import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

STATS_LINE = re.compile(rb"\[SS_OS_STATS\][^\n]*\n")
STATS_ALLOC = re.compile(rb"\balloc=(\d+)")

# Settings of this harness. Every other HAKMEM_* variable reaches the preloaded
# processes, so that the whole suite can be run under another profile; these do
# not, because the library warns on stderr about names it does not know.
HARNESS_VARIABLES = {"HAKMEM_SO", "HAKMEM_PRELOAD_ALLOW_SKIP"}

KEPT_OUTPUT_BYTES = 1 << 16


class WorkloadFailed(AssertionError):
    """A step ended badly, was not served by hakmem, or gave another result."""


def served_allocs(stderr):
    """The `alloc` figure of each process that reported, in order of exit."""
    lines = STATS_LINE.findall(stderr)
    return [int(m.group(1)) for m in map(STATS_ALLOC.search, lines) if m]


def strip_stats(stderr):
    return STATS_LINE.sub(b"", stderr)


def shorten(data):
    """Output as it is while short; its size and digest where it is long."""
    if len(data) <= KEPT_OUTPUT_BYTES:
        return data
    return b"%d bytes, sha256 %s" % (len(data), hashlib.sha256(data).hexdigest().encode())


def tail(data, lines=20):
    return b"\n".join(data.splitlines()[-lines:]).decode(errors="replace")


class Session:
    """One run of a workload in its own directory under one allocator."""

    def __init__(self, allocator, directory, preload=(), needs_proof=False):
        self.allocator = allocator
        self.directory = Path(directory)
        self.preload = [str(library) for library in preload]
        self.needs_proof = needs_proof
        self.transcript = []
        self.directory.mkdir(parents=True)

    # Inputs

    def write(self, name, content):
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def copy(self, source):
        shutil.copy(source, self.directory)

    # Results

    def record(self, label, data):
        """Adds a result of the workload's own to what must be equal."""
        self.transcript.append((label, shorten(data)))

    def record_file(self, name):
        self.record(f"file {name}", (self.directory / name).read_bytes())

    # Processes

    def run(self, *argv, stdin=None, env=None, timeout_s=90, compare=True, processes=1, statuses=(0,)):
        """Runs one program to its end and returns its standard output.

        `statuses` are those it may end with. `processes` is how many processes must report that hakmem served them
        (a compiler driver starts others; 0 for a program that allocates nothing).
        `compare=False` is for output that depends on time; the caller checks it.
        """
        with self._started(argv, env, stdin=subprocess.PIPE if stdin is not None else None) as step:
            stdout, stderr = step.communicate(stdin, timeout_s)
        step.check(stderr, processes, statuses)
        if compare:
            label = shlex.join(argv)
            self.record(f"stdout of {label}", stdout)
            self.record(f"stderr of {label}", strip_stats(stderr))
        return stdout

    @contextmanager
    def beside(self, *argv, env=None, timeout_s=60):
        """Runs a program while the body runs, and waits for its end after it.

        It must end well and have been served; its output is not compared. If
        the body fails because the program died, the failure says how it died.
        """
        with self._started(argv, env) as step:
            try:
                yield step.process
            except Exception as error:
                if step.process.poll() not in (None, 0):
                    _, stderr = step.communicate(None, timeout_s)
                    raise WorkloadFailed(step.died(stderr)) from error
                raise
            _, stderr = step.communicate(None, timeout_s)
        step.check(stderr, 1)

    # Internals

    @contextmanager
    def _started(self, argv, env, stdin=None):
        """Starts a step; if it still runs when its block is left, it is ended."""
        output = tempfile.TemporaryFile
        with output() as stdout, output() as stderr:
            process = subprocess.Popen(
                argv,
                cwd=self.directory,
                env=self._environment(env),
                stdin=stdin or subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            try:
                yield Step(self._command_line(argv, env), process, stdout, stderr, self.needs_proof)
            finally:
                if process.poll() is None:
                    kill_group(process)
                process.communicate()

    def _environment(self, extra):
        """A small fixed environment, so that both runs see the same one."""
        env = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.directory),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
        }
        if self.preload:
            env["LD_PRELOAD"] = ":".join(self.preload)
        if self.needs_proof:
            for name, value in os.environ.items():
                if name.startswith("HAKMEM_") and name not in HARNESS_VARIABLES:
                    env[name] = value
            env["HAKMEM_SS_OS_STATS"] = "1"
        env.update(extra or {})
        return env

    def _command_line(self, argv, extra):
        """The step as a line for a shell, to repeat a failure by hand."""
        shown = {k: v for k, v in self._environment(extra).items() if k.startswith(("LD_", "HAKMEM_"))}
        shown.update(extra or {})
        settings = " ".join(f"{k}={shlex.quote(v)}" for k, v in shown.items())
        return f"[{self.allocator}] {settings} {shlex.join(argv)}"


class Step:
    """One running program. Its output goes to files, not pipes, so that a
    child that outlives it can neither block it nor be waited for."""

    def __init__(self, command, process, stdout, stderr, needs_proof):
        self.command = command
        self.process = process
        self.stdout = stdout
        self.stderr = stderr
        self.needs_proof = needs_proof

    def communicate(self, stdin, timeout_s):
        try:
            self.process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            kill_group(self.process)
            self.process.communicate()
            raise WorkloadFailed(
                f"no end after {timeout_s} s: {self.command}\nstderr:\n{tail(whole(self.stderr))}"
            ) from None
        return whole(self.stdout), whole(self.stderr)

    def check(self, stderr, processes, statuses=(0,)):
        """The step ended well, and enough of its processes were served."""
        if self.process.returncode not in statuses:
            raise WorkloadFailed(self.died(stderr))
        if not self.needs_proof:
            return
        allocs = served_allocs(stderr)
        served = sum(1 for count in allocs if count > 0)
        if served < processes:
            raise WorkloadFailed(
                f"not served by hakmem: {served} processes reported alloc > 0, "
                f"expected at least {processes}; alloc figures {allocs}: {self.command}\n"
                f"stderr:\n{tail(stderr)}"
            )

    def died(self, stderr):
        return f"ended with {describe_status(self.process.returncode)}: {self.command}\nstderr:\n{tail(stderr)}"


def whole(file):
    file.seek(0)
    return file.read()


def kill_group(process):
    # Each step leads a session of its own, so this reaches the children it
    # forked and nothing else.
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def describe_status(returncode):
    if returncode < 0:
        return f"signal {signal.Signals(-returncode).name}"
    return f"status {returncode}"


def run_both(workload, directory, library, shims=()):
    """Runs `workload(session)` under both allocators and compares.

    Both runs use the same path, so that no output differs for the name of its
    directory; a finished run is moved aside and left for inspection.
    """
    directory = Path(directory)
    transcripts = {}
    for allocator, preload in (("glibc", [*shims]), ("hakmem", [library, *shims])):
        work = directory / "work"
        session = Session(allocator, work, preload, needs_proof=allocator == "hakmem")
        workload(session)
        transcripts[allocator] = session.transcript
        work.rename(directory / allocator)
    compare_transcripts(transcripts["glibc"], transcripts["hakmem"])


def compare_transcripts(expected, actual):
    if not expected:
        raise WorkloadFailed("the workload recorded nothing to compare")
    for (label, want), (got_label, got) in zip(expected, actual):
        if label != got_label:
            raise WorkloadFailed(f"other steps were run: {label!r} and {got_label!r}")
        if want != got:
            raise WorkloadFailed(f"{label} differs from the run under glibc:\n{first_difference(want, got)}")
    if len(expected) != len(actual):
        raise WorkloadFailed(f"{len(expected)} results under glibc, {len(actual)} under hakmem")


def first_difference(want, got):
    same = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
    begin = max(0, same - 40)
    return (
        f"from byte {same} of {len(want)} (glibc) and {len(got)} (hakmem)\n"
        f"  glibc:  {want[begin:same + 120]!r}\n"
        f"  hakmem: {got[begin:same + 120]!r}"
    )


def wait_until(condition, what, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise WorkloadFailed(f"waited {timeout_s} s for {what}")
        time.sleep(0.02)
