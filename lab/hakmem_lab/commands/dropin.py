"""`hakmem dropin`: other projects' tests and Debian's programs over our libraries."""

from dataclasses import asdict
from pathlib import Path

import click
from hakmem import environment, options
from hakmem.allocators.peers import DEBIAN_LIBRARIES
from hakmem.documents import write_json
from hakmem.errors import INTERRUPTED, REFUSED, UserError
from hakmem.output import tables
from hakmem.running.interruption import only_once

from hakmem_lab.dropin import JEMALLOC, MAIN, PARTS, TCMALLOC, Row, Shop, explain, reasons
from hakmem_lab.shell import clean_environment

# Of jemalloc's tests that pass on its own library.
BAR_PERCENT = 90


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(tuple(PARTS)), metavar="[PART]...")
@options.json_option()
def dropin(parts: tuple[str, ...], json_path: Path | None) -> None:
    """Run what is written for jemalloc and tcmalloc over our libraries, beside Debian's own ones.

    PART is jemalloc, tikv, gperftools, programs or figures; without one all are run.
    jemalloc's tests of its public interface, those of two Rust crates over it, gperftools' tests of
    tcmalloc's C interface, Debian's programs that link libjemalloc.so.2, and stats.* against the
    truth. Counted is what passes on Debian's library. Ends with status 1 when something fails on
    ours for no reason that tests/dropin/reasons.toml has, or when too many of jemalloc's tests do.
    """
    console = tables.make_console()
    parts = tuple(dict.fromkeys(parts or PARTS))
    rows: list[Row] = []
    interrupted = False
    with clean_environment(), only_once(), tables.progress_line(console, "parts", 0) as progress:
        shop = Shop(tick=progress.tick)
        needed = [shop.jemalloc / JEMALLOC, DEBIAN_LIBRARIES / JEMALLOC]
        needed += [shop.build / MAIN, DEBIAN_LIBRARIES / TCMALLOC] if "gperftools" in parts else []
        if absent := next((path for path in needed if not path.is_file()), None):
            raise UserError(f"{absent} is missing: build or install it first", REFUSED)
        known = reasons(shop.own)
        try:
            with shop.held():
                for part in parts:
                    rows.extend(PARTS[part](shop))
        except KeyboardInterrupt:
            interrupted = True
    explain(rows, known)
    heads = ("part", "pass on Debian's", "and on ours", "fail for a reason", "fail")
    lines = [[part, *map(str, counts(rows, part))] for part in parts]
    console.print(tables.figures_table("Written for others", heads, lines, ("part",)))
    failed = [[one.name, one.ours, one.because or "NO REASON"] for one in rows if one.fails]
    if failed:
        heads = ("test", "on ours", "reason")
        console.print(tables.figures_table("What fails on ours", heads, failed, heads))
    tables.print_facts(console, shop.notes)
    if json_path is not None:
        facts = environment.describe() | shop.notes
        write_json(json_path, "dropin", {"facts": facts, "rows": [asdict(one) for one in rows]})
    if interrupted:
        console.print(f"interrupted after {len(rows)} tests")
        raise SystemExit(INTERRUPTED)
    if not rows or any(one.fails and not one.because for one in rows) or below_bar(rows):
        raise SystemExit(1)


def counts(rows: list[Row], part: str) -> tuple[int, int, int, int]:
    counted = [one for one in rows if one.part == part and one.counts]
    failed = [one for one in counted if one.fails]
    reasoned = sum(bool(one.because) for one in failed)
    return len(counted), len(counted) - len(failed), reasoned, len(failed) - reasoned


def below_bar(rows: list[Row]) -> bool:
    counted, passed, *_ = counts(rows, "jemalloc")
    return passed * 100 < counted * BAR_PERCENT
