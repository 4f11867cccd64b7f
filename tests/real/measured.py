"""One run of one program under one allocator, in a process of its own.

The process is what makes the figures of a run its own: its children's peak memory is asked of the kernel at the end,
whatever a workload left running is its descendant and is ended, and a workload that hangs is interrupted.
"""

import ctypes
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
PRELOAD = HERE.parent / "preload"
sys.path.insert(0, str(PRELOAD))

from preload import Session, WorkloadFailed, compare_transcripts, served_allocs, wait_until, whole  # noqa: E402

WORKLOADS = HERE / "workloads"
SHORT_WORKLOADS = PRELOAD / "workloads"

PR_SET_CHILD_SUBREAPER = 36
# How long after its limit a workload is interrupted that does not wait for a program just then.
GRACE_S = 30


@dataclass
class Run:
    """What one run gave: its results, and what it cost. `failure` is empty when it ended well."""

    failure: str = ""
    transcript: list = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cpu_seconds: float = 0.0
    peak_rss_mb: float = 0.0
    # Spans taken and processes that told so, from hakmem's lines at exit.
    spans: int = 0
    processes: int = 0


class MeasuredSession(Session):
    """A session that adds up the proof of all its steps, and whose steps end with the program's time.

    Build tools pass on what their children say on standard error as output of their own: it is looked at too.
    """

    def __init__(self, allocator, directory, preload, deadline):
        super().__init__(allocator, directory, preload, needs_proof=bool(preload))
        self.deadline = deadline
        self.spans = 0
        self.processes = 0
        self.notes = []

    def run(self, *argv, timeout_s=None, **options):
        return super().run(*argv, timeout_s=self.left_s(timeout_s), **options)

    def beside(self, *argv, timeout_s=60, **options):
        return super().beside(*argv, timeout_s=timeout_s, **options)

    def left_s(self, wanted_s=None):
        left = max(1.0, self.deadline - time.monotonic())
        return left if wanted_s is None else min(wanted_s, left)

    def note(self, text):
        """Something for the table that is found out by running, such as a number of tests."""
        self.notes.append(text)

    def require(self, holds, what):
        if not holds:
            raise WorkloadFailed(what)

    def record_tree(self, pattern):
        """The files that match, byte for byte, in the order of their names."""
        files = sorted(path for path in self.directory.glob(pattern) if path.is_file())
        self.require(files, f"no file matches {pattern}")
        for path in files:
            self.record_file(path.relative_to(self.directory))
        return len(files)

    def add_proof(self, text):
        """Counts the processes that told in `text` that hakmem served them. The output of steps is counted already."""
        allocs = [count for count in served_allocs(text) if count]
        self.spans += sum(allocs)
        self.processes += len(allocs)

    @contextmanager
    def _started(self, argv, env, stdin=None):
        with super()._started(argv, env, stdin) as step:
            try:
                yield step
            finally:
                for stream in (step.stdout, step.stderr):
                    self.add_proof(whole(stream))


def run_alone(program, allocator, directory, preload):
    """Runs the program's workload in a process of its own and returns its Run."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=report_run, args=(send, program, allocator, directory, preload))
    process.start()
    send.close()
    try:
        return receive.recv()
    except EOFError:
        process.join()
        return Run(failure=f"the process of the workload ended with status {process.exitcode}")
    finally:
        process.join()


def report_run(send, program, allocator, directory, preload):
    # Orphans come to us: they are counted, and none outlives the run.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGALRM, interrupt)
    # Ignored in what a shell runs in the background, and then in all that is started here: some tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(program.limit_s + GRACE_S)
    start = time.monotonic()
    run = Run()
    session = MeasuredSession(allocator, directory, preload, start + program.limit_s)
    try:
        program.workload(session)
        if preload and not session.spans:
            raise WorkloadFailed("no process reported that hakmem served it")
    except WorkloadFailed as failure:
        run.failure = str(failure)
    except Exception:
        run.failure = traceback.format_exc()
    finally:
        signal.alarm(0)
        end_children()
    run.transcript, run.notes = session.transcript, session.notes
    run.spans, run.processes = session.spans, session.processes
    # Kilobytes. A process starts with the peak of the one that forked it, so this is never below our own size.
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    run.peak_rss_mb = used.ru_maxrss / 1024
    run.cpu_seconds = used.ru_utime + used.ru_stime
    send.send(run)


def interrupt(_signal, _frame):
    raise WorkloadFailed("interrupted: the workload did not end in time")


def end_children():
    """Ends whatever still runs below this process. Ended children's children become ours, so it is repeated."""
    while children := child_pids():
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def child_pids():
    listed = [Path(f"/proc/self/task/{task}/children").read_text() for task in os.listdir("/proc/self/task")]
    return [int(pid) for pid in " ".join(listed).split()]


def remove(directory):
    shutil.rmtree(directory, ignore_errors=True)


__all__ = [
    "REPO",
    "SHORT_WORKLOADS",
    "WORKLOADS",
    "MeasuredSession",
    "Run",
    "WorkloadFailed",
    "compare_transcripts",
    "remove",
    "run_alone",
    "served_allocs",
    "wait_until",
]
