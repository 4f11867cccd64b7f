"""The folder of allocators built here: lib<name>.so, <name>.json and <name>.log for each.

A library counts only together with its metadata, which is written last and names its checksum.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Metadata:
    """How a library in the cache came about; `recipe` is the digest of what it was built by."""

    name: str
    crate: str
    crate_version: str
    version: str
    compiler: str
    flags: str
    sha256: str
    date: str
    recipe: str
    operator_new: bool

    def __str__(self) -> str:
        return f"{self.version} (crate {self.crate} {self.crate_version})"


def cache_folder() -> Path:
    """HAKLAB_CACHE, else hakmem/peers in the user's cache folder."""
    given = os.environ.get("HAKLAB_CACHE")
    if given:
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hakmem" / "peers"


def library_path(name: str) -> Path:
    return cache_folder() / f"lib{name}.so"


def log_path(name: str) -> Path:
    return cache_folder() / f"{name}.log"


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(name: str) -> tuple[Metadata | None, str]:
    """The metadata of a built library, or why it cannot be used."""
    path, library = metadata_path(name), library_path(name)
    if not library.is_file() or not path.is_file():
        return None, f"not built (hakmem peers build {name})"
    try:
        metadata = Metadata(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        return None, f"{path.name} is not readable ({error}): build it again"
    if checksum(library) != metadata.sha256:
        return None, f"{library.name} is not the file that was built: build it again"
    return metadata, ""


def write(metadata: Metadata, built: Path) -> None:
    """Moves a finished library into place. Without its metadata it does not count meanwhile."""
    path = metadata_path(metadata.name)
    path.unlink(missing_ok=True)
    built.replace(library_path(metadata.name))
    fresh = path.with_suffix(".json.new")
    fresh.write_text(json.dumps(asdict(metadata), indent=1) + "\n")
    fresh.replace(path)


def metadata_path(name: str) -> Path:
    return cache_folder() / f"{name}.json"
