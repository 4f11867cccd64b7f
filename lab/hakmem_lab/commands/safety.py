"""`hakmem safety`: what the checks against misuse cost."""

from pathlib import Path

import click
from hakmem import environment
from hakmem.options import INTERRUPTED, json_option, pairs_option, resolve_seed, seed_option
from hakmem.output import tables

from hakmem_lab.commands.pgo import show_comparison
from hakmem_lab.flavours import build_preset, preset_library

PRESET = "bench-fast"
# What HAK_CHECKS switches, by its uses in src/.
LEFT_OUT = (
    "a block freed twice in a row, seen at the second call; the size given to a sized free or "
    "delete, compared with the block's"
)
STAYS = "ownership of the pointer at each free; double and inner frees at a flush; foreign pointers"


@click.command()
@pairs_option(15)
@seed_option()
@json_option()
def safety(pairs: int, seed: int | None, json_path: Path | None) -> None:
    """Build without the fast path's misuse checks, and compare with the release build.

    The preset bench-fast (HAKMEM_CHECKS=OFF) leaves out: two frees of one block in a row, by its
    owner or by another thread, seen at the call, and the size check of sized free and delete.
    A ratio above 1 is the price of those.
    Ownership and the checks made when a class is flushed stay in both builds.
    """
    console = tables.make_console()
    try:
        build_preset(PRESET, "hakmem")
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    facts = environment.describe() | {"left out": LEFT_OUT, "in both": STAYS}
    library = preset_library(PRESET)
    show_comparison(console, library, "unchecked", facts, pairs, resolve_seed(seed), json_path)
