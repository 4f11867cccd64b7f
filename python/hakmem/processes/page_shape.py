"""The figures of a statistics page as they must be. Any user can write a page, so nothing in it is
believed: what has passed here has every member that the commands read, of its type, and numbers
that fit 64 bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hakmem.plain_text import parse_json
from hakmem.processes.figures_table import FIGURES as TABLE

LARGEST = (1 << 64) - 1
DEEPEST = 16
# A line of maps has a path of 4,096 bytes, each of which may be written as four.
TEXT_MOST = 1 << 15


@dataclass(frozen=True)
class Shape:
    """Of a value: `kind` is int, bool, str, a mapping of members, or a shape for list items.

    `newer`: pages of older versions lack it, and it is read as null."""

    kind: object
    optional: bool = False
    most: int = 0
    newer: bool = False


COUNT, FLAG, TEXT = Shape(int), Shape(bool), Shape(str)
MAYBE = Shape(int, optional=True)
NEWER = Shape(int, optional=True, newer=True)
NEWER_FLAG = Shape(bool, optional=True, newer=True)
NEWER_TEXT = Shape(str, optional=True, newer=True)


def counts(names: str) -> dict[str, Shape]:
    return dict.fromkeys(names.split(), COUNT)


def kept(names: str) -> dict[str, Shape]:
    """What no command reads, and files of figures have."""
    return dict.fromkeys(names.split(), NEWER)


def figures(name: str, read: str = "") -> dict[str, Shape]:
    """The members of an object in figures_table.py; those that commands read must be there."""
    return {member: NEWER for object_, member, *_ in TABLE if object_ == name} | counts(read)


def many(kind: Mapping[str, Shape] | Shape, most: int) -> Shape:
    return Shape(kind if isinstance(kind, Shape) else Shape(kind), most=most)


ROW = {
    "aligned": FLAG,
    **counts("class size slab_bytes live cached depots free never_allocated rest"),
    **dict.fromkeys(
        ("estimated_requested", "estimated_rounding", "hits", "misses", "refills", "flushes"),
        MAYBE,
    ),
    **kept("group slabs handed_out requests requested"),
}
HEAP = {
    "name": TEXT,
    **counts("id parent live peak blocks held limit total refused requests"),
}
CLASSES, REGIONS, BLOCKS, LEVELS, HEAPS = 128, 4096, 8192, 16, 4096
FIGURES = Shape({
    "hakmem": NEWER_TEXT,
    **kept("stats_version pid monotonic_ms"),
    "settings": Shape({"front_metrics": FLAG, "profile": NEWER_TEXT, "thp": NEWER_TEXT,
                       "hardened": NEWER_FLAG, "requests": NEWER_FLAG}),
    "total": Shape(figures("total", "accessible live")),
    "spans": Shape(figures("spans", "slabs extents extents_cached free_dirty free_clean claimed "
                                    "guards")),
    "slabs": Shape(figures("slabs", "live cached depots free never_allocated rest")),
    "extents": Shape({**figures("extents"), "requested": MAYBE, "tail": MAYBE}),
    "huge": Shape(figures("huge", "live kept")),
    "sampled": Shape(figures("sampled", "live")),
    "heaps_total": Shape(figures("heaps_total"), optional=True, newer=True),
    "heaps": Shape(Shape(HEAP), optional=True, most=HEAPS, newer=True),
    "heaps_left_out": NEWER,
    "own": Shape(figures("own", "metadata tables other total")),
    "caches": Shape(figures("caches", "used unused")),
    "regions_total": Shape(figures("regions_total", "count")),
    "estimate": Shape({"requested": MAYBE, "rounding": MAYBE, "kind": NEWER_TEXT,
                       **kept("unknown")}),
    "counters": Shape({**counts("alloc free slow_paths mmap_total munmap mprotect mremap madvise "
                                "madvise_enomem madvise_other"),
                       **kept("madvise_disabled fallback_mmap huge_alloc huge_fail lean_decommit "
                              "lean_retire prctl membarrier")}),
    "purge": Shape(figures("purge", "count bytes")),
    "budget": Shape({**counts("target limit level refused"), "entered": many(COUNT, LEVELS),
                     **kept("used resident pressure callbacks")}, optional=True),
    "process": Shape(figures("process", "used used_peak resident resident_peak"), optional=True,
                     newer=True),
    "guard": Shape(figures("guard", "frees reallocs usable_sizes")),
    "classes": many(ROW, CLASSES),
    "regions": many({**counts("base limit first_span spans map_offset"), **kept("reserved")},
                    REGIONS),
    "huge_blocks": many({**counts("address bytes"), "kept": FLAG}, BLOCKS),
    "huge_blocks_left_out": COUNT,
    "own_memory": many({**counts("address bytes"), "kind": TEXT}, BLOCKS),
    "sampled_slots": Shape(counts("address bytes"), optional=True),
})  # fmt: skip


def parse(text: bytes) -> dict:
    """The figures of a page; ValueError says what is wrong with them."""
    figures = parse_json(text, "its page", parse_constant=refuse)
    check_bounds(figures)
    check(figures, FIGURES, "it")
    # Until a process has allocated, its library may not have set up its size classes.
    figures["classes"] = [row for row in figures["classes"] if row["size"] or row["slab_bytes"]]
    check_rows(figures["classes"])
    heaps = figures["heaps"] or []
    if len({row["id"] for row in heaps}) < len(heaps):
        raise ValueError("its heaps are not told apart")
    check_together(figures["extents"], "requested", "tail")
    return pruned(figures, FIGURES)


def pruned(value: object, shape: Shape) -> object:
    """Without members that the library does not write: anything may be in them, and figures are
    kept."""
    if isinstance(value, dict) and isinstance(shape.kind, Mapping):
        return {name: pruned(value[name], part) for name, part in shape.kind.items()}
    if isinstance(value, list) and isinstance(shape.kind, Shape):
        return [pruned(each, shape.kind) for each in value]
    return value


def check_rows(rows: list[dict]) -> None:
    """Each class once, and of figures that are used together all or none."""
    codes = {row["class"] for row in rows}
    blocks = {(row["size"], row["aligned"]) for row in rows}
    if len(codes) < len(rows) or len(blocks) < len(rows) or max(codes, default=0) >= CLASSES:
        raise ValueError("its classes are not told apart")
    for row in rows:
        check_together(row, "hits", "misses")
        check_together(row, "estimated_requested", "estimated_rounding")


def check_together(figures: Mapping, one: str, other: str) -> None:
    if (figures[one] is None) != (figures[other] is None):
        raise ValueError(f"it has {one} without {other}, or the other way round")


def refuse(name: str) -> None:
    raise ValueError(f"{name} is no figure")


def check_bounds(value: object, depth: int = 0) -> None:
    """Of everything, as all of it may be written to a file."""
    if depth > DEEPEST:
        raise ValueError("it is nested too deep")
    if isinstance(value, dict):
        for each in value.values():
            check_bounds(each, depth + 1)
    elif isinstance(value, list):
        for each in value:
            check_bounds(each, depth + 1)
    elif (isinstance(value, int) and not 0 <= value <= LARGEST) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise ValueError("a figure is out of range")


def check(value: object, shape: Shape, name: str) -> None:
    if value is None and shape.optional:
        return
    if isinstance(shape.kind, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"{name} is no object")
        for key in [key for key, member in shape.kind.items() if member.newer]:
            value.setdefault(key, None)
        if lacking := [key for key in shape.kind if key not in value]:
            raise ValueError(f"{name} has no {', '.join(lacking)}")
        for key, member in shape.kind.items():
            check(value[key], member, key)
    elif isinstance(shape.kind, Shape):
        if not isinstance(value, list) or len(value) > shape.most:
            raise ValueError(f"{name} is no list of at most {shape.most}")
        for each in value:
            check(each, shape.kind, f"one of {name}")
    elif type(value) is not shape.kind:
        raise ValueError(f"{name} is of the wrong type")
    elif shape.kind is str and len(value) > TEXT_MOST:
        raise ValueError(f"{name} is longer than {TEXT_MOST} characters")
