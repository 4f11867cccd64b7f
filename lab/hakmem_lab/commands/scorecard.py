"""`hakmem scorecard`: one document with the current figures, written from measured files."""

from pathlib import Path

import click
from hakmem.allocators.peers import repository_root
from hakmem.destinations import output_option
from hakmem.documents import MARKDOWN, write_json, write_text
from hakmem.errors import UserError
from hakmem.options import INTERRUPTED, InputFile, json_option
from hakmem.output import tables

from hakmem_lab import scorecard as card
from hakmem_lab.commands.bench import bench
from hakmem_lab.shell import PLAN

DEFAULT_OUT = "docs/scorecard.md"


@click.command()
@click.option(
    "--from",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Results of `hakmem bench` (default: the newest finished ones, of `full` if there are).",
)
@click.option("--run", metavar="SUITE", help="Run this suite first.")
@click.option(
    "--soak",
    "soaks",
    multiple=True,
    type=InputFile(),
    metavar="CSV",
    help="A soak's figures (default: the newest in the results folder, if there is one). Of "
    "several, milestones are judged by the first.",
)
@click.option("--no-soak", is_flag=True, help="Leave the soak out.")
@click.option(
    "--count/--no-count",
    default=None,
    help="Count system calls again, or never (default: when FOLDER has no counts yet).",
)
@output_option("--out", "out", text=f"The document (default: {DEFAULT_OUT}).", kind=MARKDOWN)
@json_option()
def scorecard(
    folder: Path | None,
    run: str | None,
    soaks: tuple[Path, ...],
    no_soak: bool,
    count: bool | None,
    out: Path | None,
    json_path: Path | None,
) -> None:
    """Write the scorecard: figures beside peers, milestones, system calls, memory, drift.

    Nothing is invented: what no file has a figure for says so. The same files give the same text.
    """
    console = tables.make_console()
    if folder is not None and run is not None:
        raise UserError("--run and --from exclude each other", 2)
    if soaks and no_soak:
        raise UserError("--soak and --no-soak exclude each other", 2)
    if run is not None:
        run_suite(run)
    folder = folder or card.newest_results()
    console.print(f"from {folder}", soft_wrap=True)
    if count is not False and (count or (folder / PLAN).exists()):
        count_calls(console, folder, bool(count))
    newest = None if no_soak or soaks else card.newest_soak()
    paths = soaks or ((newest,) if newest else ())
    for path in paths:
        console.print(f"soak: {path}", soft_wrap=True)
    target = out or repository_root() / DEFAULT_OUT
    write_text(target, card.compose(folder, paths))
    if json_path is not None:
        write_json(json_path, "scorecard", card.document(folder, paths))
    console.print(f"wrote {target}", soft_wrap=True)


def run_suite(name: str) -> None:
    """Rows without figures do not stop the scorecard; a stopped run does."""
    try:
        bench.main([name], prog_name="hakmem bench", standalone_mode=False)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            raise


def count_calls(console, folder: Path, again: bool) -> None:
    if again:
        (folder / card.CALLS_FILE).unlink(missing_ok=True)
    try:
        with console.status("counting system calls") as status:
            card.count_calls(folder, lambda what: status.update(f"counting system calls: {what}"))
    except KeyboardInterrupt:
        console.print("interrupted while counting system calls")
        raise SystemExit(INTERRUPTED) from None
