"""`hakmem scorecard`: one document with the current figures, written from measured files."""

from pathlib import Path

import click
from hakmem.allocators.peers import repository_root
from hakmem.destinations import output_option
from hakmem.documents import MARKDOWN, write_text
from hakmem.errors import INTERRUPTED
from hakmem.options import InputFile
from hakmem.output import tables
from rich.console import Console

from hakmem_lab import scorecard as card
from hakmem_lab.shell import PLAN

DEFAULT_OUT = "docs/scorecard.md"


@click.command()
@click.option(
    "--from",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    metavar="FOLDER",
    help="Results of `hakmem bench`.",
)
@click.option(
    "--soak",
    "soaks",
    multiple=True,
    type=InputFile(),
    metavar="CSV",
    help="A soak's figures. Of several, milestones are judged by the first.",
)
@output_option("--out", "out", text=f"The document (default: {DEFAULT_OUT}).", kind=MARKDOWN)
def scorecard(
    folder: Path,
    soaks: tuple[Path, ...],
    out: Path | None,
) -> None:
    """Write the scorecard: figures beside peers, milestones, system calls, memory, drift.

    Nothing is invented: what no file has a figure for says so. The same files give the same text.
    """
    console = tables.make_console()
    if (folder / PLAN).exists():
        count_calls(console, folder)
    target = out or repository_root() / DEFAULT_OUT
    write_text(target, card.compose(folder, soaks))
    console.print(f"wrote {target}", soft_wrap=True)


def count_calls(console: Console, folder: Path) -> None:
    try:
        with console.status("counting system calls") as status:
            card.count_calls(folder, lambda what: status.update(f"counting system calls: {what}"))
    except KeyboardInterrupt:
        console.print("interrupted while counting system calls")
        raise SystemExit(INTERRUPTED) from None
