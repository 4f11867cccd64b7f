"""The `hakmem` command: a group with one module a subcommand, imported when it is asked for."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec

import click

from hakmem.errors import INTERRUPTED, REFUSED, WRONG_USE, UserError, in_one_line
from hakmem.extras import INSTALL
from hakmem.running import interruption
from hakmem.streams import lasting_output

# In the order of the help text; each is a function of its name in hakmem.commands, or in
# hakmem_lab.commands, which the source tree has.
COMMANDS = {
    "run": "Run a program under hakmem, and check that it was served.",
    "compare": "Compare allocators on a program of yours.",
    "bench": "Run the project's own suite under all allocators.",
    "drawn": "Loads drawn from seeds, against the best peer of each.",
    "programs": "Real programs: CPU time, memory, faults, calls, or counts.",
    "ab": "Decide between two settings or two libraries.",
    "soak": "Hours of one load: drift of memory, speed and latency.",
    "steady": "System calls of every suite load once it is warm.",
    "tail": "Latency of single malloc and free calls, by percentile.",
    "record": "Write down what a program allocates.",
    "replay": "Run a recorded trace under each allocator.",
    "explain": "Where every resident byte of a process is.",
    "top": "Live figures of processes; metrics for Prometheus.",
    "profile": "Who allocates: heap profiles, growth, leaks.",
    "serve": "Heap profiles of a process for pprof, over HTTP.",
    "scorecard": "Write docs/scorecard.md from what was measured.",
    "peers": "Build and list other allocators.",
    "misuse": "Which misuse of memory each allocator stops.",
    "dropin": "Tests and programs written for jemalloc and tcmalloc.",
    "completion": "Print the shell's completion script.",
}
OF_THE_SOURCES = ("bench", "drawn", "programs", "soak", "steady", "scorecard", "peers", "misuse",
                  "dropin")  # fmt: skip


# Of --lib, beside the usual one.
LIBRARIES = ("hardened", "je")


def absent(name: str) -> click.Command:
    """Stands for a command that is not installed; its help says what it would do."""
    needed = (
        f"{name} needs the source tree, its benchmarks and its builds: after `make run` there, "
        f".venv/bin/hakmem {name} is it"
    )

    @click.command(
        name,
        help=f"{COMMANDS[name]}\n\nNot installed: {needed}.",
        options_metavar="",
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("rest", nargs=-1, type=click.UNPROCESSED)
    def stand_in(rest: tuple[str, ...]) -> None:
        raise UserError(needed, WRONG_USE)

    return stand_in


class LazyGroup(click.Group):
    """Knows its commands by name: help and completion need none of what they import."""

    def main(self, *arguments: object, **more: object) -> object:
        with lasting_output(), interruption.put_back():
            return super().main(*arguments, **more)

    def make_context(self, *arguments: object, **more: object) -> click.Context:
        with in_one_line():
            return super().make_context(*arguments, **more)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        package = "hakmem_lab" if cmd_name in OF_THE_SOURCES else "hakmem"
        if find_spec(package) is None:
            return absent(cmd_name)
        try:
            return getattr(import_module(f"{package}.commands.{cmd_name}"), cmd_name)
        finally:
            interruption.be_raised()

    def invoke(self, ctx: click.Context) -> object:
        """What a command itself tells nothing of: an interrupt, and what the system refuses it."""
        try:
            with in_one_line():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise SystemExit(INTERRUPTED) from None
        except OSError as error:
            raise UserError(str(error)) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in COMMANDS:
            near = get_close_matches(name, COMMANDS)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"No such command '{name}'.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {name: text for name, text in COMMANDS.items() if name not in OF_THE_SOURCES}
        width = max(map(len, COMMANDS))
        for title, names in (("Commands", own), ("In the source tree", OF_THE_SOURCES)):
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), COMMANDS[name]) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list:
        from click.shell_completion import CompletionItem

        fitting = [
            CompletionItem(name, help=text)
            for name, text in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        # Not the group's own, which imports every command for its help.
        return fitting + click.Command.shell_complete(self, ctx, incomplete)


def print_library(context: click.Context, _option: click.Parameter, kind: str | None) -> None:
    """And end: a script takes the line as it is."""
    if kind is None or context.resilient_parsing:
        return
    from hakmem.allocators import peers

    if kind not in ("", *LIBRARIES):
        told = f"--lib: '{kind}' is not one of {', '.join(LIBRARIES)}; alone it is the usual one"
        raise UserError(told, WRONG_USE)
    usual = peers.require_usable(peers.find("hakmem")).library
    library = usual.with_name(f"libhakmem-{kind}.so") if kind else usual
    if not library.is_file():
        raise UserError(f"{library} is missing: {peers.how_to_get()}", REFUSED)
    click.echo(library)
    context.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"For plots, pprof files and metrics: {INSTALL}",
)
@click.version_option(package_name="hakmem", prog_name="hakmem")
@click.option(
    "--lib",
    is_flag=False,
    flag_value="",
    is_eager=True,
    expose_value=False,
    callback=print_library,
    metavar="[hardened|je]",
    help="Print the path of the library, for LD_PRELOAD: the usual, hardened or jemalloc's.",
)
def main() -> None:
    """Measure hakmem beside other allocators.

    Every command has --help, and most write their figures with --json FILE.
    """
