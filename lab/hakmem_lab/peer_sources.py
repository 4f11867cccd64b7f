"""Where a peer's sources come from: its crate, or a tree that the user gives in place of it.

A given tree, a folder or a tag of a git repository, takes the place of upstream's tree in a copy
of the crate. All that is built after is the same.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hakmem import files
from hakmem.allocators.recipes import RECIPES, Recipe
from hakmem.allocators.settings import split_pair, without_repeats
from hakmem.errors import UserError

OPTION = "--from"
# Git waits for no password, and gives up a transfer that stands still.
GIT = ("git", "-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=30")
GIT_ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh"}
# What git says of a repository that answers and has no such tag or branch.
NO_SUCH_TAG = re.compile(r"Remote branch .* not found")


@dataclass(frozen=True)
class Source:
    """A given tree: a folder, or with a tag the address of a git repository."""

    place: str
    tag: str = ""

    def __str__(self) -> str:
        return f"{self.place}@{self.tag}" if self.tag else self.place


def recipe_of(name: str) -> Recipe:
    if name not in RECIPES:
        raise UserError(f"no recipe for '{name}' (there are: {', '.join(RECIPES)})", 2)
    return RECIPES[name]


def given_sources(texts: Sequence[str]) -> dict[str, Source]:
    """What --from gives, by the peer's name; what cannot be one is refused before any build."""
    pairs = without_repeats(OPTION, (split_pair(OPTION, text) for text in texts))
    return {name: source_of(name, value) for name, value in pairs.items()}


def source_of(name: str, value: str) -> Source:
    told = f"{OPTION} {name}={value}"
    if name not in RECIPES:
        known = ", ".join(RECIPES)
        raise UserError(f"{told}: no recipe for '{name}' (there are: {known}); nothing built", 2)
    if "://" in value:
        # An @ before the last slash is that of a user's name.
        place, _, tag = value.rpartition("@")
        if not place or not tag or "/" in tag:
            raise UserError(f"{told}: no tag named (URL@TAG); nothing built", 2)
        return Source(place, tag)
    folder = Path(value).expanduser().absolute()
    if problem := why_no_tree(RECIPES[name], folder):
        raise UserError(f"{told}: {problem}; nothing built", 2)
    return Source(str(folder))


def why_no_tree(recipe: Recipe, folder: Path) -> str:
    """Why a folder is not upstream's tree of this peer, or an empty string."""
    if not folder.is_dir():
        return "no such folder"
    if not (folder / recipe.mark).is_file():
        return f"not the sources of {recipe.name} (no {recipe.mark} in it)"
    return ""


def clone_command(source: Source, target: Path) -> list[str]:
    one = ("--quiet", "--depth=1", f"--branch={source.tag}")
    return [*GIT, "clone", *one, "--", source.place, str(target)]


def put_in_place(recipe: Recipe, tree: Path, crate: Path) -> None:
    """In a copy of the crate, this tree instead of upstream's."""
    target = crate / recipe.tree
    shutil.rmtree(target)
    files.copy_tree(tree, target, leave_out=".git")


def version_of(source: Source, tree: Path) -> str:
    """By its tag, by a file VERSION such as releases have, or by what git says of the folder."""
    text, named = source.tag, tree / "VERSION"
    if not text and named.is_file():
        text = named.read_text(errors="replace").partition("\n")[0].strip()
    if not text and (tree / ".git").exists():
        command = ["git", "-C", str(tree), "describe", "--tags", "--always"]
        try:
            asked = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return ""
        text = asked.stdout.strip()
    # Names of peers and a v stand before versions; behind them, that of the tag's own commit.
    text = re.sub(r"-0-g\w+$", "", text)
    found = re.search(r"\d+\.\d+.*", text)
    return found[0] if found else text
