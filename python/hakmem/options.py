"""Options that several commands share, and their checks."""

from __future__ import annotations

import math
import os
import re
import secrets
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from hakmem.allocators import cache, peers
from hakmem.allocators.settings import split_pair, without_repeats
from hakmem.destinations import WORD, output_option
from hakmem.documents import HTML, JSON, PICTURE, PICTURE_ENDINGS, Kind
from hakmem.environment import allowed_cpus, default_cpu
from hakmem.errors import WRONG_USE, UserError, warn
from hakmem.extras import MATPLOTLIB, NEEDED, needing
from hakmem.inputs import is_readable_kind
from hakmem.plain_text import printable
from hakmem.running.proof import load_checked
from hakmem.running.threads import await_start, waited_for

# Of a command that ends with a PROGRAM: options are those before it, and what is none of ours is
# refused, not taken for the program.
PROGRAM_LAST = {"allow_interspersed_args": False}

# More than any kernel has: the launcher's set of CPUs ends here.
CPUS_MAX = 1 << 16

# What the programs in C take.
SEED_MOST = (1 << 63) - 1


class InputFile(click.Path):
    """A plain file that the command reads."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, readable=True, path_type=Path)

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        try:
            if not is_readable_kind(Path(value)):
                self.fail(f"File '{value}' is no plain file.", param, ctx)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            self.fail(f"File '{value}' cannot be read: {error.strerror}.", param, ctx)
        return super().convert(value, param, ctx)


class FiniteRange(click.FloatRange):
    """A number within bounds: nan, which is within all of them, and inf are none."""

    name = "number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            is_finite = math.isfinite(float(value))
        except (TypeError, ValueError):
            is_finite = False
        if not is_finite:
            self.fail(f"'{value}' is no number.", param, ctx)
        return super().convert(value, param, ctx)


class WholeRange(click.IntRange):
    """A whole number within bounds."""

    name = "number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, str) and not re.fullmatch(r"[+-]?[0-9]{1,40}", value.strip()):
            self.fail(f"'{value}' is no whole number.", param, ctx)
        return super().convert(value, param, ctx)


def pid_of(text: str) -> int:
    """The PID of a process, which need not be there. 0 would be the caller itself to some calls of
    the kernel, and nobody to others."""
    if not is_pid(text) or int(text) == 0:
        raise UserError(f"'{text}' is no PID, which is a number such as 1234", WRONG_USE)
    return int(text)


def process_of(text: str) -> int:
    """The PID of a process to look at: of one of ours that waits for a program, the program's."""
    pid = pid_of(text)
    await_start(pid)
    if program := waited_for(pid):
        command = click.get_current_context().info_name or "hakmem"
        warn(command, f"process {pid} is hakmem, which waits for process {program}: that is shown")
    return program or pid


def is_pid(text: str) -> bool:
    """Digits alone, as a program's name may be too: behind -- a number is a PROGRAM."""
    return text.isascii() and text.isdecimal() and len(text) <= 40


class TargetCommand(click.Command):
    """A command whose target may be a PID or a file; behind -- it is a PROGRAM in any case."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        found, _, _ = self.make_parser(ctx).parse_args(list(args))
        target = found.get("target")
        # Of click, where there is none: nothing, or a mark of its own.
        target = target if isinstance(target, tuple) else ()
        dashed = given[-len(target) - 1 : -len(target)] == ["--"]
        ctx.meta[BEHIND_DASHES] = dashed
        # Behind what is no program an option is ours.
        ctx.allow_interspersed_args = bool(target) and not dashed and self.takes_more(target[0])
        return super().parse_args(ctx, args)

    def takes_more(self, target: str) -> bool:
        """Whether the target is none that has options of its own."""
        return is_pid(target)


BEHIND_DASHES = "hakmem.behind_dashes"


def is_behind_dashes() -> bool:
    return click.get_current_context().meta.get(BEHIND_DASHES, False)


def is_given(name: str) -> bool:
    """Whether a parameter of the command is from its command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def refuse(why: str, names: Iterable[str]) -> None:
    """Refuses those of the command's parameters that are given though they mean nothing here.

    `why` stands before what was given: "--from measures nothing: --with, --seed cannot be given".
    """
    command, names = click.get_current_context().command, set(names)
    given = [p for p in command.params if p.name in names and is_given(p.name)]
    if given:
        told = [p.opts[0] if isinstance(p, click.Option) else p.human_readable_name for p in given]
        raise UserError(f"{why}: {', '.join(told)} cannot be given", WRONG_USE)


def refuse_beside(why: str, allowed: set[str]) -> None:
    """Refuses every parameter that is given, but for `allowed`."""
    params = click.get_current_context().command.params
    refuse(why, [p.name for p in params if p.name not in allowed])


Decorator = Callable[[Callable], Callable]


def stacked(*options: Decorator) -> Decorator:
    """Several options as one decorator, in the order of the help text."""

    def decorate(function: Callable) -> Callable:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def complete_pids(
    _context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """The processes of this user; files and programs as the shell has them."""
    found = []
    for entry in Path("/proc").iterdir() if begun.isdecimal() or not begun else ():
        try:
            if entry.name.startswith(begun or tuple("123456789")) and is_own_process(entry):
                name = printable((entry / "comm").read_text(errors="replace").rstrip("\n"))
                found.append(CompletionItem(entry.name, help=name))
        except OSError:
            continue
    return [*sorted(found, key=lambda item: int(item.value)), CompletionItem(begun, type="file")]


def is_own_process(entry: Path) -> bool:
    """Kernel threads have no command line."""
    mine = entry.name.isdecimal() and entry.stat().st_uid == os.geteuid()
    return mine and int(entry.name) != os.getpid() and bool((entry / "cmdline").read_bytes())


def completing(names: Callable[[], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    return lambda _context, _parameter, begun: [
        CompletionItem(name) for name in names() if name.startswith(begun)
    ]


def complete_names(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The allocators that may follow in a list with commas."""
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    fitting = [n for n in peers.known_names() if n.startswith(last) and n not in given]
    return [CompletionItem(f"{before}{comma}{name}") for name in fitting]


def option(
    names: str, text: str, default: object = None, kind: object = None, **more: object
) -> Decorator:
    """An option with one value or several; its default is in the help."""
    more |= {"default": default, "show_default": default is not None}
    return click.option(*names.split(), type=kind, help=text, **more)


def several(names: str, text: str, metavar: str, kind: object = None) -> Decorator:
    """An option that may be given again and again."""
    return click.option(*names.split(), type=kind, multiple=True, metavar=metavar, help=text)


def number_option(
    names: str,
    text: str,
    default: float | None = None,
    least: float | None = None,
    most: float | None = None,
    metavar: str | None = None,
) -> Decorator:
    """A number within bounds, a whole one where the least is."""
    kind = (WholeRange if isinstance(least, int) else FiniteRange)(least, most)
    return option(names, text, default, kind, metavar=metavar)


SET_OWN = (
    "Set an option of hakmem for PROGRAM; HAKMEM_ may be left out. hakmem run --set VERBOSE=1 -- "
    "true lists them."
)


def set_option(text: str = SET_OWN) -> Decorator:
    """--set, to be given to own_settings() where it is of hakmem's own options."""
    return several("--set settings", text, "NAME=VALUE")


def allocator_options(usual: str = peers.USUAL_HELP) -> Decorator:
    """--with and --lib, to be given to chosen_allocators()."""
    text = f"Allocators, comma-separated; the first is the baseline (default: {usual})."
    return stacked(
        option("--with names", text, None, WORD, shell_complete=complete_names),
        several("--lib libraries", "Add a library.", "NAME=PATH"),
    )


def pairs_option(default: int, minimum: int = 1) -> Decorator:
    return number_option(
        "--rounds --pairs pairs", "Each runs every allocator once.", default, minimum
    )


def cpu_option(default: str) -> Decorator:
    return option("--cpu", "CPU or list to pin to, auto or none.", default, WORD)


def stdin_option(each: str = "") -> Decorator:
    kind = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)
    text = f"File that PROGRAM reads as its standard input{each}."
    return option("--stdin", text, kind=kind, metavar="FILE")


def seed_option() -> Decorator:
    return number_option(
        "--seed", "Of the order and the intervals; printed when not given.", least=0, most=SEED_MOST
    )


def rows_option(what: str) -> Decorator:
    """--rows, to be given to suite.pick(); `what` they are, for the help."""
    text = f"{what}: names, patterns such as 'larson*', group:NAME."
    return several("--rows wanted", text, "NAME", WORD)


def resume_folder_option(rest: str) -> Decorator:
    kind, text = click.Path(file_okay=False, path_type=Path), f"Go on with a stopped run, or {rest}"
    return option("--resume", f"{text} again.", kind=kind, metavar="FOLDER")


def require_resume_alone(allowed: set[str]) -> None:
    """Beside --resume only `allowed` parameters: the others are those of the run resumed."""
    refuse_beside("--resume takes all from its folder", {"resume", *allowed})


def json_option() -> Decorator:
    text = "Write all figures as JSON, to stdout with -."
    return output_option("--json", "json_path", text=text, kind=JSON)


def html_option() -> Decorator:
    return plot_option("--html", "html_path", "Write a report with plots, in one file.", (), HTML)


def plot_option(
    name: str,
    parameter: str,
    text: str,
    endings: Sequence[str] = PICTURE_ENDINGS,
    kind: Kind = PICTURE,
) -> Decorator:
    """An option that names a file with plots in it."""
    return output_option(
        name, parameter, text=f"{text} {NEEDED}", kind=kind, callback=needing(MATPLOTLIB),
        endings=endings,
    )  # fmt: skip


OTHERS_BY_LIB = "others with --lib NAME=PATH"


def chosen_allocators(
    names: str | None,
    libraries: Sequence[str],
    notes: list[str],
    usual: Sequence[str] = peers.USUAL_NAMES,
) -> list[peers.Allocator]:
    """Those asked for, which must all be there; else the usual ones that are, the others noted."""
    if names is None:
        names = usual_names(notes, usual)
    chosen = [load_checked(a) for a in named_allocators(names, libraries)]
    for allocator in chosen:
        peers.require_usable(allocator)
    return chosen


def usual_names(notes: list[str], usual: Sequence[str] = peers.USUAL_NAMES) -> str:
    """All that is there. What is not is named, not left out in silence.

    hakmem stays in any case: to measure without it has to be asked for.
    """
    taken: list[str] = []
    missing: list[peers.Allocator] = []
    for text in usual:
        for name in text.split(peers.ALTERNATIVES):
            found = load_checked(peers.find(name))
            if found.usable or name == "hakmem":
                taken.append(name)
                break
            missing.append(found)
    if unbuilt := [a.name for a in missing if "not built" in a.problem]:
        notes.append(f"not compared: {', '.join(unbuilt)}: {cache.not_built()}")
    notes += [f"not compared: {a.name}: {a.problem}" for a in missing if a.name not in unbuilt]
    return ",".join(taken)


def named_allocators(names: str, libraries: Sequence[str]) -> list[peers.Allocator]:
    """Those of --with, then --lib; a name in both takes the path of --lib."""
    given = without_repeats("--lib", (split_pair("--lib", text) for text in libraries))
    for name in given:
        if printable(name) != name:
            told = f"--lib: '{name}' holds what cannot be shown in a line of a table"
            raise UserError(f"{told}: give the library another name", WRONG_USE)
        if name in (*peers.known_names(), "floor"):
            told = f"--lib: '{name}' is the name of an allocator that this command knows"
            raise UserError(f"{told}: give the library another one", WRONG_USE)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    wanted += [name for name in given if name not in wanted]
    if not wanted:
        raise UserError("--with: no allocator named", 2)
    chosen = [
        peers.from_path(n, Path(given[n])) if n in given else peers.find(n, OTHERS_BY_LIB)
        for n in wanted
    ]
    require_distinct([a.name for a in chosen])
    return chosen


def split_command(option: str, text: str) -> list[str]:
    """The words of a command line that an option holds."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"{option}: cannot read '{text}': {error}", 2) from error
    if not words:
        raise UserError(f"{option}: '{text}' names no program", 2)
    return words


def require_distinct(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two rows are named '{name}'", 2)


def resolve_cpus(given: str) -> str | None:
    """A CPU list for the launcher; `none` leaves programs where the kernel puts them."""
    if given == "none":
        return None
    if given == "auto":
        return default_cpu()
    wanted = parse_cpu_list(given)
    barred = sorted(wanted - set(allowed_cpus()))
    if barred:
        usable = ",".join(map(str, allowed_cpus()))
        raise UserError(f"--cpu: CPU {barred[0]} is not usable here (usable: {usable})", 2)
    return given


def parse_cpu_list(text: str) -> set[int]:
    """The CPUs of a list such as 1 or 0,2-3."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        is_range = first.isdecimal() and (last or first).isdecimal()
        if not is_range or not int(first) <= int(last or first) < CPUS_MAX:
            raise UserError(f"--cpu: '{text}' is no CPU list (such as 1 or 0,2-3), none or auto", 2)
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus


def resolve_seed(given: int | None) -> int:
    """The given seed, or a fresh one that is printed and can be given next time."""
    return secrets.randbelow(1 << 31) if given is None else given


def percent(value: str) -> float:
    """A share above 0 and below 1, from a percentage or a fraction."""
    text = value.strip()
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = -1.0
    if 0 < share < 1:
        return share
    hint = " (such as 1% or 0.01)"
    # A number without a sign of percent may be meant as one.
    if text.isdecimal() and 0 < int(text[:4]) < 100:
        hint = f": write {text}% or {int(text) / 100:g}"
    raise click.BadParameter(f"'{text}' is no share above 0 and below 100%{hint}")


PERCENT = click.types.FuncParamType(percent)
