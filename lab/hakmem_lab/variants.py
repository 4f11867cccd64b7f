"""Groups of design variants as data: changes to one commit of the repository, and rows to run.

A group is a folder of variants/ with a group.toml: patches beside it, or definitions for CMake. The
commit without a change takes part as the variant `base`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hakmem.allocators.peers import known_names, repository_root
from hakmem.errors import UserError
from hakmem.options import require_distinct

from hakmem_lab.suite import Table, read_toml
from hakmem_lab.suite_session import FLOOR

GROUP_FILE = "group.toml"
BASE = "base"
# Names become columns, files and arguments of --only.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Variant:
    """One change to the base: a patch, definitions for CMake, or both."""

    name: str
    title: str
    patch: Path | None = None
    cmake: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    """Variants that are measured together; `rows` are names or patterns of the suites' rows."""

    name: str
    title: str
    folder: Path
    base: str
    rows: tuple[str, ...]
    variants: tuple[Variant, ...]

    def only(self, names: Sequence[str]) -> "Group":
        """The group with these variants alone; the base stays in any case."""
        known = [variant.name for variant in self.variants]
        for name in names:
            if name not in (*known, BASE):
                raise UserError(
                    f"--only: group '{self.name}' has no variant '{name}' "
                    f"(known: {', '.join(known)})",
                    2,
                )
        return replace(self, variants=tuple(v for v in self.variants if v.name in names))


def variants_folder() -> Path:
    return repository_root() / "variants"


def group_names() -> list[str]:
    return sorted(path.parent.name for path in variants_folder().glob(f"*/{GROUP_FILE}"))


def load_group(name: str) -> Group:
    """A group of the project by name, or one of the user's by the path of its folder."""
    if name in group_names():
        return read_group(variants_folder() / name)
    if "/" in name:
        return read_group(Path(name))
    known = ", ".join(group_names()) or "none"
    raise UserError(
        f"unknown group '{name}' (known: {known}; or the path of a folder with a {GROUP_FILE})", 2
    )


def read_group(folder: Path) -> Group:
    folder = folder.absolute()
    path = folder / GROUP_FILE
    table = Table(str(path), read_toml(path))
    table.refuse_others(("title", "base", "rows", "variant"))
    variants = [
        read_variant(Table(f"{path}: variant {number}", entry), folder)
        for number, entry in enumerate(table.rows("variant"), 1)
    ]
    if not variants:
        raise UserError(f"{path}: no [[variant]]", 2)
    require_distinct([variant.name for variant in variants])
    rows = table.texts("rows")
    if not rows:
        raise UserError(f"{path}: rows is empty", 2)
    title, base = table.text("title"), table.text("base")
    return Group(folder.name, title, folder, base, rows, tuple(variants))


def read_variant(table: Table, folder: Path) -> Variant:
    table.refuse_others(("name", "title", "patch", "cmake"))
    name = table.text("name")
    table.where = f"{table.where} ({name})"
    if not NAME.fullmatch(name) or name in (BASE, FLOOR, *known_names()):
        raise UserError(f"{table.where}: the name is that of an allocator, or no plain word", 2)
    patch_name, cmake = table.text("patch", ""), table.texts("cmake", ())
    if not patch_name and not cmake:
        raise UserError(f"{table.where}: it changes nothing: neither patch nor cmake", 2)
    for definition in cmake:
        if not definition.startswith("-D"):
            raise UserError(f"{table.where}: cmake: '{definition}' does not begin with -D", 2)
    patch = folder / patch_name if patch_name else None
    if patch is not None and not patch.is_file():
        raise UserError(f"{table.where}: there is no file {patch}", 2)
    return Variant(name, table.text("title", name), patch, cmake)
