"""The folder of allocators built here: lib<name>.so, lib<name>.a, <name>.json and <name>.log each.

A library counts only together with its metadata, which is written last and names its checksum, and
that of the static archive.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from hakmem import files
from hakmem.documents import write_text
from hakmem.environment import user_folder
from hakmem.errors import UserError
from hakmem.plain_text import parse_json


@dataclass(frozen=True)
class Metadata:
    """How a library in the cache came about; `recipe` is the digest of what it was built by."""

    name: str
    crate: str
    crate_version: str
    version: str
    compiler: str
    sha256: str
    date: str
    recipe: str
    # Empty where an older build kept no archive.
    archive_sha256: str = ""
    # A folder, or URL@TAG of a git repository, whose tree took the place of the crate's.
    source: str = ""

    def __str__(self) -> str:
        return f"{self.version} ({self.source or f'crate {self.crate} {self.crate_version}'})"

    @property
    def kind(self) -> str:
        """Of what kind its source is."""
        return ("git" if "://" in self.source else "folder") if self.source else "crates.io"


def cache_folder() -> Path:
    """HAKLAB_CACHE, else hakmem/peers in the user's cache folder."""
    found = user_folder("HAKLAB_CACHE", "XDG_CACHE_HOME", ".cache")
    return found if os.environ.get("HAKLAB_CACHE") else found / "peers"


def why_not_ours() -> str:
    """Libraries of the folder run as whoever compares them: nobody else may have put them there."""
    try:
        problem = files.why_not_ours(cache_folder())
    except OSError as error:
        problem = f"the folder {cache_folder()} cannot be used: {error.strerror}"
    return f"{problem} (HAKLAB_CACHE names another one)" if problem else ""


def own_folder(*names: str) -> Path:
    """A folder of the cache, made if it is not there."""
    folder = cache_folder().joinpath(*names)
    try:
        files.make_folder(folder)
    except OSError as error:
        raise UserError(f"cannot make {folder}: {error.strerror}") from error
    if problem := why_not_ours():
        raise UserError(problem)
    return folder


def library_path(name: str) -> Path:
    return cache_folder() / f"lib{name}.so"


def archive_path(name: str) -> Path:
    return cache_folder() / f"lib{name}.a"


def log_path(name: str) -> Path:
    return cache_folder() / f"{name}.log"


def checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def read(name: str) -> tuple[Metadata | None, str]:
    """The metadata of a built library, or why it cannot be used."""
    path, library = metadata_path(name), library_path(name)
    if problem := why_not_ours():
        return None, problem
    if not library.is_file() or not path.is_file():
        return None, not_built(name)
    try:
        said = parse_json(path.read_bytes())
        metadata = Metadata(**{n: v for n, v in said.items() if n in Metadata.__annotations__})
    except (OSError, ValueError, TypeError) as error:
        return None, f"{path.name} is not readable ({error}): build it again"
    if checksum(library) != metadata.sha256:
        return None, f"{library.name} is not the file that was built: build it again"
    return metadata, ""


def not_built(name: str = "") -> str:
    """And what there is to do: only the source tree has the command that builds others."""
    if find_spec("hakmem_lab") is not None:
        return f"not built (hakmem peers build{' ' * bool(name)}{name})"
    return (
        "not built (only hakmem's source tree builds it; --lib NAME=PATH takes a library of yours)"
    )


def archive_problem(name: str) -> str:
    """Why the static archive of a built allocator cannot be linked, or an empty string."""
    metadata, problem = read(name)
    if metadata is None:
        return problem
    archive = archive_path(name)
    if not metadata.archive_sha256 or not archive.is_file():
        return f"no static archive kept: build it again (hakmem peers build {name})"
    if checksum(archive) != metadata.archive_sha256:
        return f"{archive.name} is not the file that was built: build it again"
    return ""


def write(metadata: Metadata, library: Path, archive: Path) -> None:
    """Moves what was built into place. Without its metadata it does not count meanwhile."""
    path = metadata_path(metadata.name)
    files.remove(path)
    files.move(library, library_path(metadata.name))
    files.move(archive, archive_path(metadata.name))
    write_text(path, json.dumps(asdict(metadata), indent=1) + "\n")


def metadata_path(name: str) -> Path:
    return cache_folder() / f"{name}.json"
