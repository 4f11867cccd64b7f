"""Runs real programs at length under hakmem and compares what they make with their run under glibc's malloc.

    .venv/bin/python tests/real/run.py [--library PATH]... [--only NAME]... [--without NAME]... [--report [FILE]]

Every program runs first without a preload and then with each library. Prints one table; ends with status 0 when every
run was equal, 1 when one was not, 2 for bad arguments.
"""

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

from measured import WorkloadFailed, compare_transcripts, remove, run_alone
from programs import PROGRAMS
from table import NoPlace, Row, markdown, replace_table

REPO = Path(__file__).resolve().parents[2]
DEFAULT_LIBRARY = REPO / "build/release/libhakmem.so"
DOCUMENT = REPO / "docs/real-programs.md"
EQUAL, FAILED = "equal", "FAILED"


class OneLineParser(argparse.ArgumentParser):
    def error(self, message):
        print(f"real: {message}", file=sys.stderr)
        raise SystemExit(2)


def arguments(given):
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", action="append", type=library_path, metavar="PATH",
                        help="may be given more than once; default: the release build's")  # fmt: skip
    parser.add_argument("--only", action="append", type=program_name, metavar="NAME", help="these programs alone")
    parser.add_argument("--without", action="append", type=program_name, metavar="NAME", default=[])
    parser.add_argument("--report", nargs="?", type=Path, const=DOCUMENT, metavar="FILE",
                        help="write the table to its place in this document (docs/real-programs.md)")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="list the programs and what they do")
    options = parser.parse_args(given)
    if not options.list:
        options.library = options.library or [default_library(parser)]
        names = [library.name for library in options.library]
        for name in names:
            if names.count(name) > 1:
                parser.error(f"argument --library: two libraries are called {name}")
    if options.report:
        try:
            replace_table(options.report.read_text(), "")
        except (OSError, NoPlace) as error:
            parser.error(f"argument --report: {options.report}: {error}")
    return options


def library_path(value):
    path = Path(value)
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{value}: {error.strerror}") from None
    if magic != b"\x7fELF":
        raise argparse.ArgumentTypeError(f"{value} is not a shared library")
    return path


def default_library(parser):
    try:
        return library_path(DEFAULT_LIBRARY)
    except argparse.ArgumentTypeError as error:
        parser.error(f"argument --library: {error}: build it first (make test), or name another")


def program_name(value):
    if value not in PROGRAMS:
        raise argparse.ArgumentTypeError(f"no program is called {value!r}; known: {', '.join(PROGRAMS)}")
    return value


def chosen(options):
    names = options.only or list(PROGRAMS)
    return [program for name, program in PROGRAMS.items() if name in names and name not in options.without]


def copies(libraries, folder):
    """The libraries as they are now, where any user can read them: a server may run as one of its own, and a build
    during the run must not change what is tested."""
    kept = []
    for library in libraries:
        copy = folder / "libraries" / library.name
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(library, copy)
        copy.chmod(0o755)
        kept.append(copy)
    return kept


def rows_of(program, libraries, folder):
    """Yields a row for each library, with what a failure said."""
    if problem := program.problem():
        for library in libraries:
            yield Row(program.name, "", program.does, library.name, "NOT RUN"), problem
        return
    version = program.version_text()
    expected = run_once(program, "glibc", folder, ())
    all_equal = not expected.failure
    for library in libraries:
        if expected.failure:
            row = Row(program.name, version, program.does, library.name, "NO COMPARISON")
            yield row, f"under glibc: {expected.failure}"
            continue
        run = run_once(program, library.stem, folder, (library,))
        failure = run.failure or difference(expected, run)
        if failure:
            all_equal = False
        else:
            remove(folder / f"{program.name}-{library.stem}")
        yield row_of_run(program, version, library, FAILED if failure else EQUAL, expected, run), failure
    if all_equal:
        remove(folder / f"{program.name}-glibc")


def row_of_run(program, version, library, verdict, expected, run):
    return Row(
        program.name,
        version,
        "; ".join([program.does, *run.notes]),
        library.name,
        verdict,
        (expected.cpu_seconds, run.cpu_seconds),
        (expected.peak_rss_mb, run.peak_rss_mb),
        f"alloc={run.spans:,} in {run.processes:,} process{'' if run.processes == 1 else 'es'}",
    )


def run_once(program, allocator, folder, preload):
    """All runs are in a folder of one name, so that no output differs for it; what is left is moved aside."""
    work = folder / "work"
    run = run_alone(program, allocator, work, preload)
    if work.exists():
        work.rename(folder / f"{program.name}-{allocator}")
    return run


def difference(expected, run):
    try:
        compare_transcripts(expected.transcript, run.transcript)
    except WorkloadFailed as failure:
        return str(failure)
    return ""


def facts(libraries, seconds):
    with open("/proc/cpuinfo") as cpuinfo:
        model = next((line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")), "?")
    return (
        f"{time.strftime('%Y-%m-%d')}, {model}, {os.cpu_count()} CPUs, Linux {platform.release()}, "
        f"{' '.join(platform.libc_ver())}; {', '.join(library.name for library in libraries)}; "
        f"{seconds / 60:.0f} minutes in all."
    )


def run_all(programs, libraries, folder):
    """Runs one program after the other; prints a line for each as it ends."""
    rows, failures = [], []
    for program in programs:
        for row, failure in rows_of(program, libraries, folder):
            rows.append(row)
            times = ", CPU {:.1f} s / {:.1f} s".format(*row.cpu_seconds) if row.cpu_seconds else ""
            print(f"{row.program}: {row.library}: {row.verdict}{times}", flush=True)
            if failure:
                failures.append(row.program)
                print(failure, flush=True)
    return rows, failures


def main(given=None):
    options = arguments(given)
    if options.list:
        for program in chosen(options):
            print(f"{program.name:14} {program.does}")
        return 0
    programs = chosen(options)
    if not programs:
        print("real: argument --without: leaves no program to run", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="hakmem-real-"))
    folder.chmod(0o755)
    start = time.monotonic()
    failures = ["interrupted"]
    try:
        libraries = copies(options.library, folder)
        rows, failures = run_all(programs, libraries, folder)
    finally:
        if not failures:
            remove(folder)
        else:
            print(f"what failed runs left is in {folder}", flush=True)
    text = markdown(rows, facts(libraries, time.monotonic() - start))
    print(f"\n{text}\n{len(rows) - len(failures)} passed, {len(failures)} failed")
    if options.report:
        options.report.write_text(replace_table(options.report.read_text(), text))
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
