"""`hakmem peers`: the allocators to compare with, and building those that Debian has not."""

import click
from hakmem.allocators import cache
from hakmem.allocators.peers import Allocator, find, known_names
from hakmem.allocators.recipes import RECIPES, Recipe
from hakmem.environment import allowed_cpus
from hakmem.errors import INTERRUPTED, UserError
from hakmem.output import tables
from rich.table import Table

from hakmem_lab.building import BuildError, build, is_current, why_it_does_not_serve


@click.group()
def peers() -> None:
    """Build other allocators from their sources, and list what there is to compare with."""


@peers.command("build")
@click.option("--force", is_flag=True, help="Build also what is there and up to date.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
def build_command(force: bool, names: tuple[str, ...]) -> None:
    """Build the named allocators, or all, from crates.io sources into the cache folder."""
    console = tables.make_console()
    recipes = [recipe_of(name) for name in dict.fromkeys(names or RECIPES)]
    console.print(f"into {cache.cache_folder()}")
    failed: dict[str, str] = {}
    for recipe in recipes:
        if not force and is_current(recipe):
            metadata, _ = cache.read(recipe.name)
            console.print(f"{recipe.name}: {metadata} is up to date")
            continue
        try:
            with console.status(f"{recipe.name}: starting") as status:
                metadata = build(
                    recipe,
                    len(allowed_cpus()),
                    lambda what, name=recipe.name: status.update(f"{name}: {what}"),
                )
            console.print(f"{recipe.name}: built {metadata}, {metadata.compiler}")
        except (BuildError, OSError) as error:
            failed[recipe.name] = str(error)
            console.print(f"{recipe.name}: FAILED: {error}", soft_wrap=True)
        except KeyboardInterrupt:
            console.print(f"interrupted while building {recipe.name}; what was built before stays")
            raise SystemExit(INTERRUPTED) from None
    if failed:
        raise UserError(f"not built: {', '.join(failed)}")


def recipe_of(name: str) -> Recipe:
    if name not in RECIPES:
        raise UserError(f"no recipe for '{name}' (there are: {', '.join(RECIPES)})", 2)
    return RECIPES[name]


@peers.command("list")
def list_command() -> None:
    """Show each known allocator: version, where it comes from, and whether it loads and serves.

    Each library is preloaded into a small program, of which the loader says whose malloc it has.
    """
    console = tables.make_console()
    rows = [(found, examined(found)) for found in map(find, known_names())]
    console.print(peers_table(rows))
    # Paths are long: below the table they stay whole.
    paths = {a.name: str(a.library) for a, _ in rows if a.library is not None}
    console.print(tables.facts_table(paths))


def examined(allocator: Allocator) -> str:
    """What a trial shows; what the system has needs none."""
    if allocator.library is None or allocator.problem:
        return allocator.problem
    return why_it_does_not_serve(allocator.library, allocator.settings)


def peers_table(rows: list[tuple[Allocator, str]]) -> Table:
    heads = ("allocator", "version", "source", "loads and serves", "runs with")
    lines = []
    for allocator, problem in rows:
        given = " ".join(f"{name}={value}" for name, value in allocator.settings.items())
        cells = (allocator.version, allocator.source, problem or "yes", given)
        lines.append([allocator.name, *(cell or tables.ABSENT for cell in cells)])
    return tables.figures_table("", heads, lines, heads)
