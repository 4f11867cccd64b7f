"""What the plan of a run in a folder must look like: a folder may come from anywhere."""

import re
import sys
from collections.abc import Callable, Mapping

from hakmem.options import SEED_MOST

LOAD_SEEDS_END = 1 << 64
CPU_LIST = re.compile(r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*")


def whole(least: int, most: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and least <= value <= most


def seconds(most: float) -> Callable[[object], bool]:
    return lambda value: type(value) in (int, float) and 0 <= value <= most


def is_text(value: object) -> bool:
    return isinstance(value, str)


def is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def are_texts(value: object) -> bool:
    """By name."""
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def are_seeds(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(map(whole(0, LOAD_SEEDS_END - 1), value)) and len(set(value)) == len(value)


def is_cpu_list(value: object) -> bool:
    return value is None or (isinstance(value, str) and CPU_LIST.fullmatch(value) is not None)


Shape = Mapping[str, tuple[Callable[[object], bool], str]]
TEXTS = (are_texts, "no texts by name")
TEXT = (is_text, "no text")
PLAN_SHAPE: Shape = {
    "version": TEXT,
    "seeds": (are_seeds, "no list of seeds, each once"),
    "rounds": (whole(1, SEED_MOST), "no whole number from 1 on"),
    "scale": (whole(1, 100_000), "no whole number from 1 to 100000"),
    "rest_s": (seconds(3600), "no number from 0 to 3600"),
    "order_seed": (whole(0, SEED_MOST), "no seed"),
    "limit_s": (seconds(sys.float_info.max), "no number from 0 on"),
    "cpus": (is_cpu_list, "no list of CPUs"),
    "floor": (lambda value: type(value) is bool, "neither true nor false"),
    "facts": TEXTS,
    "served": TEXTS,
    "allocators": (lambda value: isinstance(value, list) and bool(value), "no list of allocators"),
}  # fmt: skip
ALLOCATOR_SHAPE: Shape = {
    "name": (is_name, "no name"),
    "library": (is_text_or_none, "no path"),
    "version": TEXT,
    "problem": TEXT,
    "source": TEXT,
    "settings": TEXTS,
    "checksum": TEXT,
}


def require_sound(plan: object, shape: Shape = PLAN_SHAPE) -> None:
    """ValueError names the key that is missing, or holds what it cannot."""
    require(plan, shape, "")
    for number, entry in enumerate(plan["allocators"], 1):
        require(entry, ALLOCATOR_SHAPE, f" of allocator {number}")
    names = [entry["name"] for entry in plan["allocators"]]
    if len(set(names)) < len(names):
        raise ValueError("allocators has a name twice")


def require(entry: object, shape: Shape, whose: str) -> None:
    if not isinstance(entry, dict):
        raise ValueError(f"the description{whose} is no object")
    for key, (fits, what) in shape.items():
        if key not in entry:
            raise ValueError(f"{key}{whose} is missing")
        if not fits(entry[key]):
            raise ValueError(f"{key}{whose} is {what}")
