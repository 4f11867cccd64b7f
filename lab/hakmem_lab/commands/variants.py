"""`hakmem variants`: design choices beside each other, each a patch to one commit."""

import time
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem
from hakmem.allocators.peers import Allocator
from hakmem.destinations import output_option
from hakmem.documents import MARKDOWN, now, write_json, write_text
from hakmem.errors import UserError
from hakmem.options import (
    INTERRUPTED,
    FiniteRange,
    WholeRange,
    csv_option,
    json_option,
    require_resume_alone,
    resolve_seed,
    resume_folder_option,
    rows_option,
    seed_option,
)
from hakmem.output import tables
from hakmem.running.interruption import only_once
from rich.console import Console

from hakmem_lab.commands.bench import leave_if_unplanned, minutes, prepare, run_all
from hakmem_lab.suite_files import table_text
from hakmem_lab.suite_results import RowResult, collect
from hakmem_lab.suite_run import is_done
from hakmem_lab.suite_session import Session, clean_environment, load, require_unchanged
from hakmem_lab.suite_tables import show_problems
from hakmem_lab.variants import BASE, group_names, load_group
from hakmem_lab.variants_build import source_of
from hakmem_lab.variants_results import COLUMNS, csv_lines, document, row_figures
from hakmem_lab.variants_run import Asked, build_all, new_session, prove, rows_of
from hakmem_lab.variants_text import markdown, show

OUTPUTS = {"csv_path", "json_path", "markdown_path", "resume"}


def complete_groups(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(name) for name in group_names() if name.startswith(incomplete)]


@click.command()
@click.option("--list", "list_only", is_flag=True, help="Show groups, or the variants of GROUP.")
@rows_option("Instead of the group's rows")
@click.option(
    "--rounds",
    type=WholeRange(1),
    default=10,
    show_default=True,
    help="Each runs the base and every variant once.",
)
@click.option("--only", metavar="NAME,…", help="These variants alone, beside the base.")
@click.option("--with", "peers", metavar="NAME,…", help="Other allocators in the same rotation.")
@click.option("--base", metavar="COMMIT", help="Instead of the group's base; HEAD is one too.")
@click.option("--build-only", is_flag=True, help="Build the variants, and measure nothing.")
@click.option(
    "--minutes",
    "limit",
    type=FiniteRange(min=0, min_open=True),
    default=30,
    show_default=True,
    help="Time limit to scale the work to.",
)
@seed_option()
@resume_folder_option("write its figures")
@csv_option(COLUMNS)
@json_option()
@output_option(
    "--markdown",
    "markdown_path",
    text="Write the tables as Markdown, for a decision.",
    kind=MARKDOWN,
)
@click.argument("group", required=False, shell_complete=complete_groups)
@click.pass_context
def variants(context: click.Context, **given) -> None:
    """Measure the variants of GROUP against their base, all in one rotation.

    GROUP is a folder of variants/ or the path of one: patches to a commit, and rows of the suites
    to run. Each is built once, from the commit itself, into the cache. Results go to a folder of
    their own. Ends with status 1 when a variant has no figures, 130 after Ctrl-C; `--resume` goes
    on then.
    """
    console = tables.make_console()
    if given["list_only"]:
        list_groups(console, given["group"])
        return
    with clean_environment(), only_once():
        started = time.monotonic()
        try:
            session = resumed(context, given) if given["resume"] else begun(console, given)
        except KeyboardInterrupt:
            console.print("interrupted before the first round")
            raise SystemExit(INTERRUPTED) from None
        if session is not None:
            measure(console, session, given, started)


def list_groups(console: Console, name: str | None) -> None:
    """All groups, or one with its variants and rows."""
    if name is None:
        table = tables.plain_table("Groups of variants")
        for title in ("group", "base", "variants", "what"):
            table.add_column(title)
        for group in map(load_group, group_names()):
            known = ", ".join(variant.name for variant in group.variants)
            table.add_row(group.name, group.base, known, group.title)
    else:
        group = load_group(name)
        table = tables.plain_table(group.title)
        table.caption = f"Rows: {', '.join(row.name for row in rows_of(group, ()))}"
        for title in ("variant", "made by", "what"):
            table.add_column(title)
        table.add_row(BASE, group.base, "the commit as it is")
        for variant in group.variants:
            patch = [variant.patch.name] if variant.patch else []
            table.add_row(variant.name, " ".join([*patch, *variant.cmake]), variant.title)
    console.print(table)


def begun(console: Console, given: dict) -> Session | None:
    """A new session, with everything built; None where no more is asked for."""
    if given["group"] is None:
        raise UserError(f"no GROUP given (known: {', '.join(group_names()) or 'none'})", 2)
    group = load_group(given["group"])
    rows = rows_of(group, given["wanted"])
    only = tuple(name.strip() for name in (given["only"] or "").split(",") if name.strip())
    if given["only"] is not None:
        group = group.only(only)
    source = source_of(group.folder, given["base"] or group.base)
    console.print(f"base: {source.commit}")
    built = build_all(group, source, lambda line: console.print(line, soft_wrap=True))
    if given["build_only"]:
        require_built(built)
        return None
    seed = resolve_seed(given["seed"])
    asked = Asked(given["rounds"], seed, given["wanted"], only, given["peers"] or "")
    return new_session(group, source, built, rows, asked)


def require_built(built: Sequence[Allocator]) -> None:
    broken = [allocator.name for allocator in built if not allocator.usable]
    if broken:
        raise UserError(f"not built: {', '.join(broken)}")


def resumed(context: click.Context, given: dict) -> Session:
    require_resume_alone(OUTPUTS)
    session = load(given["resume"])
    if session.allocators[0].name != BASE or "repeat" not in session.facts:
        raise UserError(f"{given['resume']} is of `hakmem bench`, not of variants", 2)
    require_unchanged(session)
    return session


def measure(console: Console, session: Session, given: dict, started: float) -> None:
    """The rounds that are missing, then all tables and files."""
    console.print(f"results: {session.folder}", soft_wrap=True)
    done: dict[str, RowResult] = {}
    try:
        if given["resume"] is None:
            prepare(console, session, {"limit_s": 60 * given["limit"]}, started)
            prove(session)
            session.save()
        interrupted = not run_all(console, session, done)
    except KeyboardInterrupt:
        interrupted = True
        leave_if_unplanned(console, session)
    finally:
        session.close()
    conclude(console, session, given, interrupted, done)


def conclude(
    console: Console, session: Session, given: dict, interrupted: bool, done: dict[str, RowResult]
) -> None:
    rows = [row_figures(session, job) for job in session.jobs]
    show(console, session, rows)
    finished = not interrupted and all(is_done(session, job) for job in session.jobs)
    results = collect(session, now(), finished, done)
    show_problems(console, results)
    text, figures = markdown(session, rows), document(session, rows) | {"finished": finished}
    lines = table_text(COLUMNS, csv_lines(session, rows))
    own = session.folder / "variants"
    for path in filter(None, (given["markdown_path"], own.with_suffix(".md"))):
        write_text(path, text)
    for path in filter(None, (given["json_path"], own.with_suffix(".json"))):
        write_json(path, "variants", figures)
    for path in filter(None, (given["csv_path"], own.with_suffix(".csv"))):
        write_text(path, lines)
    took = minutes(session.seconds)
    console.print(f"took {took}; figures: {own}.md, .json, .csv", soft_wrap=True)
    if interrupted:
        console.print(f"interrupted; go on with: hakmem variants --resume {session.folder}",
                      soft_wrap=True)  # fmt: skip
        raise SystemExit(INTERRUPTED)
    if any(row.problems() for row in results.rows):
        raise SystemExit(1)
