"""`hakmem profile`: who allocates, and who keeps it."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import click
from click.shell_completion import CompletionItem
from rich.console import Console

from hakmem import files
from hakmem.allocators.settings import check_library, is_hakmem, overridden, own_settings
from hakmem.commands.run import chosen_settings, preloading, reason, require_build
from hakmem.destinations import (
    Destination,
    OutputPrefix,
    require_folder,
    require_free,
    require_writable,
)
from hakmem.errors import INTERRUPTED, NOT_STARTED, WRONG_USE, UserError, warn
from hakmem.options import (
    PROGRAM_LAST,
    Decorator,
    TargetCommand,
    complete_pids,
    is_behind_dashes,
    is_given,
    is_pid,
    number_option,
    option,
    pid_of,
    process_of,
    refuse,
    set_option,
    stacked,
)
from hakmem.output.streams import make_console
from hakmem.plain_text import printable
from hakmem.profiles import heap_profile, outside, profile_view
from hakmem.profiles.heap_profile import HeapProfile, read_file
from hakmem.profiles.other_formats import is_profile
from hakmem.profiles.profile_files import (
    DEFAULT_FORMATS,
    ENDINGS,
    KINDS,
    OF_CHANGES,
    Wanted,
    formats_there,
    parse_formats,
    write_changes,
    write_profile,
)
from hakmem.profiles.profile_sites import ORDERS, Named, compare, named, size
from hakmem.profiles.symbols import Symboliser
from hakmem.running import programs
from hakmem.running.launching import signal_name
from hakmem.running.threads import has_ended, seen_by
from hakmem.running.witness import Ended, run_watched
from hakmem.streams import report_stream

WRITTEN = re.compile(r"\.(?P<pid>\d+)\.(?P<number>\d+)\.json$")
PREFIX = "heap"
OWN_FILE = Path("/proc/self/exe")
# Of files that the library and this command write.
NAME_END = re.compile(r"\.(json|heap|pb|pb\.gz)$")
HEAD_BYTES = 64
OPTION_OF = {"HAKMEM_HEAP_PROFILE_RATE": "--rate", "HAKMEM_HEAP_PROFILE_SECONDS": "--every"}


@dataclass(frozen=True)
class Ran:
    """What a run left: the profiles of the program itself in order, the last one of each other
    process. A start script may leave none of its own: then the largest of the others takes its
    place, and a remark says so."""

    ended: Ended
    profiles: tuple[HeapProfile, ...]
    others: tuple[HeapProfile, ...]
    problems: tuple[str, ...]
    remark: str = ""


def run_profiled(
    program: Sequence[str],
    folder: Path,
    rate: str | None,
    every_s: int | None,
    settings: Sequence[str],
) -> Ran:
    own = {
        "HAKMEM_HEAP_PROFILE": "1",
        "HAKMEM_HEAP_PROFILE_FORMAT": "json",
        "HAKMEM_HEAP_PROFILE_AT_EXIT": "1",
        "HAKMEM_HEAP_PROFILE_PREFIX": str(folder / PREFIX),
    }
    if rate is not None:
        own["HAKMEM_HEAP_PROFILE_RATE"] = rate
    if every_s is not None:
        own["HAKMEM_HEAP_PROFILE_SECONDS"] = str(every_s)
    if taken := sorted(own.keys() & own_settings("--set", settings).keys()):
        raise UserError(f"--set: {taken[0]} is set by this command", 2)
    chosen, library = chosen_settings(None, settings, with_environment=True)
    if is_hakmem(library):
        check_library(library, {OPTION_OF.get(name, "--set"): {name: own[name]} for name in own})
    found = require_target(program)
    require_build(found, chosen, "--set HAKMEM_PROFILE=")
    for line in overridden({name: own[name] for name in own if name not in OPTION_OF}):
        warn("profile", line)
    environment = {**os.environ, **chosen, **own, **preloading(found, library)}
    ended = run_watched(program, environment, (found.hakmem or library).resolve())
    return collected(folder, ended, found, chosen)


def require_target(program: Sequence[str]) -> programs.Examined:
    """A program that can be served; what is none may be a heap profile of another name."""
    found = programs.examine(program)
    if not found.holds_hakmem:
        try:
            programs.require_servable(program)
        except UserError as error:
            if found.path is not None or not programs.is_file(Path(program[0])):
                raise
            told = f"{error.format_message()}; nor is it a heap profile of hakmem"
            raise UserError(told, error.exit_code) from error
    return found


def collected(
    folder: Path, ended: Ended, found: programs.Examined, chosen: Mapping[str, str]
) -> Ran:
    by_process: dict[int, list[HeapProfile]] = {}
    problems = []
    for pid, path in numbered(folder.iterdir()):
        try:
            by_process.setdefault(pid, []).append(read_file(path))
        except UserError as error:
            problems.append(error.format_message())
    own = tuple(titled(one, found) for one in by_process.pop(ended.pid, ()))
    others = sorted((p[-1] for p in by_process.values() if p), key=lambda p: -p.total.bytes)
    remark = ""
    if own and os.WIFSIGNALED(ended.wait_status):
        name = signal_name(os.WTERMSIG(ended.wait_status))
        remark = f"the program was killed by {name}: the last profile is of before"
    if own and len(holders := hakmems_in(own[-1])) > 1:
        # They may have started in one millisecond. What one has allocated in all only grows.
        by_size = sorted(own, key=lambda one: one.total.bytes)
        own = tuple(one for one in by_size if one.started_ms == by_size[-1].started_ms)
        told = "the one that has allocated most is shown"
        remark = f"the process has several hakmems ({', '.join(holders)}): {told}"
    if not own:
        why = f"no heap profile was written: {why_nothing(ended, found, chosen)}"
        if others:
            largest = others.pop(0)
            own = tuple(by_process[largest.pid]) if largest.pid in by_process else (largest,)
            remark = f"{why}; this is the largest process that it started"
        else:
            problems.insert(0, why)
    return Ran(ended, own, tuple(others), tuple(problems), remark)


def titled(profile: HeapProfile, found: programs.Examined) -> HeapProfile:
    """By the name that it was started by, where that leads to the file which wrote the profile."""
    leads_there = found.path is not None and str(found.path.resolve()) == profile.program
    return replace(profile, title=printable(found.path.name)) if leads_there else profile


def hakmems_in(profile: HeapProfile) -> list[str]:
    """The files in the process that hold one: a library may bring its own when it is loaded."""
    paths = {one.path for one in profile.maps if "x" in one.rights and one.path.startswith("/")}
    return sorted(path for path in paths if programs.is_hakmem(Path(path), as_malloc=False))


def numbered(paths: Iterable[Path]) -> list[tuple[int, Path]]:
    """The process and the file, in the order they were written in."""
    matches = [(WRITTEN.search(path.name), path) for path in paths]
    known = [(int(m["pid"]), int(m["number"]), path) for m, path in matches if m]
    return [(pid, path) for pid, _, path in sorted(known)]


def why_nothing(ended: Ended, found: programs.Examined, chosen: Mapping[str, str]) -> str:
    if os.WIFSIGNALED(ended.wait_status):
        name = signal_name(os.WTERMSIG(ended.wait_status))
        return f"the program was killed by {name} (--every SECONDS writes some before)"
    # Until it becomes the program, the process is of this command's own file.
    if ended.exit_status == NOT_STARTED and ended.program in ("", str(OWN_FILE.resolve())):
        return "the program could not be started"
    if ended.served:
        return "the program ended without its exit handlers (--every SECONDS writes some before)"
    if ended.served is None and ended.why_unknown:
        return f"whether hakmem served the program could not be seen: {ended.why_unknown}"
    return f"hakmem did not serve the program: {reason(ended, found, chosen)}"


ROWS = 15
SECONDS = 10
OTHERS_NAMED = 10
RATE = re.compile(r"([1-9]\d{0,11})([KMGT]?)", re.IGNORECASE)


def output_options(formats: Sequence[str], default: str) -> Decorator:
    return stacked(
        option(
            "--output",
            "Where the reports go: their endings are put behind it. A folder takes reports named "
            "after the program. Default: this folder.",
            kind=OutputPrefix(),
            metavar="DIR/PREFIX",
        ),
        option(
            "--format formats",
            f"Reports to write, comma-separated: {', '.join(formats)}; pprof needs hakmem[report].",
            default,
            metavar="LIST",
        ),
        number_option("--top rows", "Lines of the table on the terminal.", ROWS, 0, metavar="N"),
    )


def seconds_option() -> Decorator:
    return number_option(
        "--seconds",
        "How long a PID is sampled that keeps no profile itself.",
        SECONDS,
        least=1,
        metavar="N",
    )


def pattern_of(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]):
    """One expression of all that are given; None for none."""
    for text in texts:
        try:
            re.compile(text)
        except re.error as error:
            told = f"--skip: '{text}' is no regular expression: {error}"
            raise UserError(told, WRONG_USE) from error
    return re.compile("|".join(f"(?:{text})" for text in texts)) if texts else None


def skip_option() -> Decorator:
    text = (
        "Leave functions out of the stacks whose names a regular expression finds: wrappers of "
        "malloc that this command does not know as such. May be repeated."
    )
    return click.option(
        "--skip", multiple=True, metavar="REGEX", help=text, callback=pattern_of, type=str
    )


@click.command()
@output_options(OF_CHANGES, "html")
@skip_option()
@seconds_option()
@click.argument("before", metavar="A", shell_complete=complete_pids)
@click.argument("after", metavar="B", shell_complete=complete_pids)
def diff(
    output: Path | None,
    formats: str,
    rows: int,
    seconds: int,
    skip: re.Pattern[str] | None,
    before: str,
    after: str,
) -> None:
    """Show the growth of live memory by stack, from heap profile A to B.

    A and B are files that `hakmem profile --format json` or the library wrote, of one process or of
    two runs; B can also be the PID of a running process. One that keeps no profile itself is
    sampled for --seconds: B then has only what was allocated meanwhile, and A is best made so too.

    \b
    hakmem profile --format json --output before PID
    hakmem profile diff before.json PID

    Of the same files, stacks are compared by line, else by function.
    """
    asked_for = parse_formats(formats, OF_CHANGES)
    first, second = (named_target(each, seconds, skip) for each in (before, after))
    name = f"{second.profile.name}.diff"
    require_places(Wanted(asked_for, output), name)
    wanted = Wanted(formats_there(asked_for, is_given("formats"))[0], output)
    changes = compare(first, second)
    console = make_console(sys.stdout)
    profile_view.show_changes(console, first, second, changes, rows)
    prefix = wanted.prefix(name)
    tell_written(console, write_changes(first, second, changes, wanted, prefix))


def require_places(wanted: Wanted, name: str = "") -> None:
    """Refuses files that would be lost, as far as the names of the new ones are known."""
    if wanted.output is None:
        require_folder("--output", Path())
    known = wanted.known(name).items()
    places = [Destination("--output", path, KINDS[each]) for each, path in known]
    for place in places:
        require_writable(place.option, place.path)
    require_free(places, click.get_current_context())


class WithDiff(TargetCommand):
    """`diff` as first word is a command of its own; a program of that name goes behind --."""

    def takes_more(self, target: str) -> bool:
        return is_pid(target) or names_profile(target)

    def make_context(self, info_name, args, parent=None, **extra):
        if args[:1] == ["diff"]:
            return diff.make_context("profile diff", args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


def complete_targets(
    context: click.Context, parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    is_diff = "diff".startswith(begun) and not context.params.get("target")
    words = [CompletionItem("diff", help="growth between two profiles")] if is_diff else []
    return [*words, *complete_pids(context, parameter, begun)]


@click.command(cls=WithDiff, context_settings=PROGRAM_LAST)
@option(
    "--rate",
    "How much is allocated between two samples, on average: 64K samples more blocks, and costs "
    "more time, than the library's default, 512K.",
    metavar="SIZE",
)
@seconds_option()
@click.option("--leaks", is_flag=True, help="Show what is live (at exit), largest first.")
@number_option(
    "--every every_s",
    "A profile every so many seconds, with numbered reports.",
    least=1,
    metavar="SECONDS",
)
@option(
    "--sort order",
    "The figure that the table is sorted by. Folded stacks hold it, and the flame graph shows it "
    "first. Default: peak for a PROGRAM, live for a PID, a FILE and with --leaks.",
    kind=click.Choice(ORDERS),
)
@option(
    "--by",
    "What the lines of the table sum up: stacks, the labels of hakmem_label_set, or heaps of one "
    "name.",
    "stack",
    click.Choice(["stack", "label", "heap"]),
)
@skip_option()
@set_option()
@output_options(tuple(ENDINGS), DEFAULT_FORMATS)
@click.argument(
    "target",
    nargs=-1,
    required=True,
    metavar="PROGRAM|PID|FILE",
    type=click.UNPROCESSED,
    shell_complete=complete_targets,
)
def profile(
    rate: str | None,
    seconds: int,
    leaks: bool,
    every_s: int | None,
    order: str | None,
    by: str,
    skip: re.Pattern[str] | None,
    settings: tuple[str, ...],
    output: Path | None,
    formats: str,
    rows: int,
    target: tuple[str, ...],
) -> None:
    """Show which code allocates memory, and which keeps it.

    \b
    hakmem profile -- PROGRAM [ARGUMENT]...    run a program, profile it to its end
    hakmem profile PID                         a process that runs
    hakmem profile FILE                        a file that the library wrote, in any format
    hakmem profile diff A B                    growth between two profiles

    A process that keeps no profile is sampled for --seconds, or while --every goes on.

    Options go before a PROGRAM. What stands behind -- is one, a number or diff too. PROGRAM
    keeps its input, output and exit status; the table of a
    PROGRAM goes to stderr. Reports: html (flame graph, tables, live memory over time), pprof
    (.pb.gz, for pprof, Pyroscope, Parca and Speedscope), folded (for flamegraph.pl), dhat (for
    Valgrind's dh_view.html) and json (for `hakmem profile diff`).

    \b
    hakmem profile --leaks -- ./server --config test.conf
    hakmem profile --rate 16K --format html,json --output out/run1 -- python3 job.py
    hakmem run -- ./server & hakmem profile --seconds 60 PID
    """
    if leaks and by != "stack":
        raise UserError(f"--leaks shows stacks: it goes without --by {by}", WRONG_USE)
    asked_for = parse_formats(formats)
    kind = kind_of(target)
    if kind != PROGRAM:
        refuse("a PID or FILE starts nothing", {"settings"})
    else:
        refuse("a PROGRAM is sampled to its end", {"seconds"})
        own_settings("--set", settings)
        require_target(target)
    if kind == FILE:
        refuse("a FILE is one profile", {"every_s", "rate", "seconds"})
    name = NAME_END.sub("", Path(target[0]).name) if kind == FILE else ""
    require_places(Wanted(asked_for, output), name)
    # All that can be wrong with the command line is said before a package is missing.
    there, left_out = formats_there(asked_for, is_given("formats"))
    wanted = Wanted(there, output)
    if left_out:
        warn("profile", left_out)
    if kind == PROGRAM:
        order = order or ("live" if leaks else "peak")
        report = Report(make_console(report_stream()), wanted, leaks, order, rows, by, skip)
        raise SystemExit(of_program(report, target, rate, every_s, settings))
    report = Report(make_console(sys.stdout), wanted, leaks, order or "live", rows, by, skip)
    if kind == FILE:
        found = heap_profile.read_file(Path(target[0]))
        report.write(found, Symboliser(found), name=name)
    else:
        of_process(report, process_of(target[0]), every_s, seconds, own_rate(rate))


PROGRAM, PROCESS, FILE = "program", "process", "file"


def kind_of(target: Sequence[str]) -> str:
    first = target[0]
    if is_behind_dashes():
        return PROGRAM
    if is_pid(first):
        pid_of(first)
        kind = PROCESS
    else:
        kind = FILE if names_profile(first) else PROGRAM
    if kind != PROGRAM and len(target) > 1:
        what = "PID" if kind == PROCESS else "FILE"
        raise UserError(f"one {what}, and no more: {' '.join(target[1:])}", 2)
    return kind


def names_profile(text: str) -> bool:
    """A file of a heap profile, by its ending or its contents. A program is none, and what may be
    executed is one."""
    path = Path(text)
    try:
        if path.is_file() and path.stat().st_mode & 0o111:
            return False
        if text.endswith(".json"):
            return True
        is_found = "/" not in text and programs.locate(text) is not None
        if is_found or not path.is_file():
            return False
        with path.open("rb") as file:
            return is_profile(file.read(HEAD_BYTES))
    except OSError:
        return text.endswith(".json")


def tell_written(console: Console, paths: Sequence[Path]) -> None:
    # A path is not broken over lines: it will be copied.
    console.print("Written: " + " ".join(map(str, paths)), soft_wrap=True)


class Report:
    """What is made of each profile."""

    def __init__(
        self,
        console: Console,
        wanted: Wanted,
        leaks: bool,
        order: str,
        rows: int,
        by: str,
        skip: re.Pattern[str] | None = None,
    ) -> None:
        self.console, self.wanted, self.leaks, self.skip = console, wanted, leaks, skip
        self.order, self.rows, self.by = order, rows, by

    def write(
        self,
        found: HeapProfile,
        symboliser: Symboliser,
        number: int | None = None,
        name: str = "",
        table: bool = True,
    ) -> Named:
        result = named(found, symboliser, self.skip)
        if table and not found.samples["taken"]:
            self.console.print(profile_view.NOTHING_SAMPLED, soft_wrap=True)
        if table and self.leaks:
            profile_view.show_leaks(self.console, result, self.rows)
        elif table:
            profile_view.show(self.console, result, self.order, self.rows, self.by)
        prefix = self.wanted.prefix(name or f"{found.name}.{found.pid}.heap", number)
        tell_written(
            self.console, write_profile(result, self.wanted, prefix, self.order, self.leaks)
        )
        return result


def own_rate(text: str | None) -> int | None:
    """In bytes."""
    found = None if text is None else RATE.fullmatch(text)
    if found is None and text is not None:
        raise UserError(f"--rate: '{text}' is no size such as 64K", WRONG_USE)
    bytes_ = found and int(found[1]) << 10 * " KMGT".index(found[2].upper() or " ")
    return bytes_ and min(bytes_, 1 << 40)


def of_process(
    report: Report, pid: int, every_s: int | None, seconds: int, rate: int | None
) -> None:
    with outside.source(pid, rate) as source:
        with countdown(pid) as tick:
            found = source.first(every_s or seconds, tick=tick)
        if source.cut_short:
            warn("profile", f"{source.cut_short}: this is what was sampled until then")
        # In a container it has another number itself.
        name = f"{found.name}.{pid}.heap"
        if every_s is not None and not source.cut_short:
            report_each(report, source, found, every_s, name)
            return
    report.write(found, symboliser_of(found, pid), name=name)
    if source.interrupted:
        raise SystemExit(INTERRUPTED)


def symboliser_of(found: HeapProfile, pid: int) -> Symboliser:
    """By the files that the process sees, as long as it is there."""
    return Symboliser(found) if has_ended(seen_by(pid)) else Symboliser(found, pid)


@contextmanager
def countdown(pid: int) -> Iterator[Callable[[float], None]]:
    """One line on a terminal that says how long it will still take."""
    stream, shown = sys.stderr, ""

    def tick(left: float) -> None:
        nonlocal shown
        text = f"hakmem profile: process {pid}, {left:3.0f} s left (Ctrl-C shows what there is)"
        if stream.isatty() and text != shown:
            stream.write(f"\r{text}")
            stream.flush()
            shown = text

    try:
        yield tick
    finally:
        if shown:
            stream.write(f"\r{' ' * len(shown)}\r")
            stream.flush()


def report_each(
    report: Report, source: outside.Source, found: HeapProfile, every_s: int, name: str
) -> None:
    pid, symboliser, number = source.pid, Symboliser(found, source.pid), 1
    try:
        while True:
            report.write(found, symboliser, number, name)
            number += 1
            time.sleep(every_s)
            found = source.ask()
            symboliser.renew(found)
    except KeyboardInterrupt:
        return
    except UserError:
        if not has_ended(seen_by(pid)):
            raise
        warn("profile", f"process {pid} has ended")


def of_program(
    report: Report,
    program: Sequence[str],
    rate: str | None,
    every_s: int | None,
    settings: Sequence[str],
) -> int:
    """Its exit status; a failure of ours shows in it only if the program itself had none."""
    with files.scratch_folder("hakmem-profile-") as folder:
        ran = run_profiled(program, Path(folder), rate, every_s, settings)
    failed = bool(ran.problems)
    for line in (*ran.problems, ran.remark):
        if line:
            warn("profile", line)
    try:
        report_run(report, ran, every_s is not None)
    except UserError as error:
        warn("profile", error.format_message())
        failed = True
    # An empty picture is no answer to who allocates.
    failed |= not any(one.samples["taken"] for one in (*ran.profiles, *ran.others))
    return ran.ended.exit_status or (1 if failed else 0)


def report_run(report: Report, ran: Ran, is_numbered: bool) -> None:
    for number, found in enumerate(ran.profiles, 1):
        is_last = number == len(ran.profiles)
        if is_numbered or is_last:
            report.write(found, Symboliser(found), number if is_numbered else None, table=is_last)
    for child in ran.others[:OTHERS_NAMED]:
        report.console.print(
            f"Started by it, not in the report: {child.name} ({child.pid}), {told([child])}."
        )
    if more := ran.others[OTHERS_NAMED:]:
        report.console.print(f"And {len(more):,} smaller ones, {told(more)}.")


def told(profiles: Sequence[HeapProfile]) -> str:
    live = sum(one.live.bytes for one in profiles)
    return f"{size(live)} live, {size(sum(one.total.bytes for one in profiles))} allocated"


def named_target(target: str, seconds: int, skip: re.Pattern[str] | None) -> Named:
    """A file, or a process that runs."""
    if is_pid(target) and not Path(target).exists():
        pid = process_of(target)
        with outside.source(pid) as source, countdown(pid) as tick:
            found = source.first(seconds, tick=tick)
        if source.cut_short:
            warn("profile", f"{source.cut_short}: B is what was sampled until then")
        return named(found, symboliser_of(found, pid), skip)
    found = heap_profile.read_file(Path(target))
    return named(found, Symboliser(found), skip)
