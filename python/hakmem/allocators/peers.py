"""Which allocators there are to compare, where their libraries lie, and in which version."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path

from hakmem.allocators import cache
from hakmem.allocators.recipes import RECIPES
from hakmem.environment import revision_of
from hakmem.errors import REFUSED, WRONG_USE, UserError

# Of a wheel: its libraries, and in bench/ its programs, as they lie in a build.
PACKAGED = Path(__file__).resolve().parents[1] / "lib"
DEBIAN_LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")


@dataclass(frozen=True)
class Allocator:
    """One allocator of a comparison; without a library it is what the program has by itself.

    `settings` are what a program must have in its environment to run under this one properly.
    """

    name: str
    library: Path | None = None
    version: str = ""
    problem: str = ""
    source: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        return not self.problem

    def __str__(self) -> str:
        """Where it lies, in which version, with which settings of its own."""
        given = " ".join(f"{name}={value}" for name, value in self.settings.items())
        what = f"{self.library or 'nothing preloaded'}  {self.version}".strip()
        return f"{what}  with {given}" if given else what


@dataclass(frozen=True)
class Peer:
    """A packaged allocator: the variable that overrides its path, its library and package."""

    variable: str
    file_name: str
    package: str


PEERS = {
    "mimalloc": Peer("MIMALLOC_SO", "libmimalloc.so.2.0", "libmimalloc2.0"),
    "jemalloc": Peer("JEMALLOC_SO", "libjemalloc.so.2", "libjemalloc2"),
    "tcmalloc": Peer("TCMALLOC_SO", "libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
    "scudo": Peer(
        "SCUDO_SO",
        "/usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.scudo_standalone-x86_64.so",
        "libclang-rt-19-dev",
    ),
}
DEFAULT_NAMES = ("hakmem", "glibc", *PEERS)


# Of two names for one allocator the first that is there: a build of ours, else Debian's.
ALTERNATIVES = "|"
# What every command compares that is not told by --with, as far as it is there.
USUAL_NAMES = (
    "hakmem", "glibc", "mimalloc3|mimalloc", "mimalloc2", "jemalloc5|jemalloc", "tcmalloc",
    "snmalloc", "tcmalloc-google", "rpmalloc",
)  # fmt: skip
USUAL_HELP = "hakmem, glibc and all others that are there"
# Allocators that are for what they stop, not for speed: compared where they are asked for.
HARDENED_NAMES = ("hakmem-hardened", "scudo", "hardened_malloc", "mimalloc-secure")


def repository_root() -> Path:
    """The checkout this package was installed from, else the current directory."""
    for folder in Path(__file__).resolve().parents:
        if (folder / "bench" / "launch.c").exists():
            return folder
    return Path.cwd()


def build_folder() -> Path:
    """The build whose binaries are measured: HAKLAB_BUILD, the package's own, or build/release."""
    given = os.environ.get("HAKLAB_BUILD")
    if given:
        return Path(given)
    return PACKAGED if is_packaged() else repository_root() / "build" / "release"


def is_packaged() -> bool:
    """Whether this is a wheel, which has libraries; an install from the source tree has none."""
    return (PACKAGED / "libhakmem.so").exists()


def bench_program(name: str) -> Path:
    path = build_folder() / "bench" / name
    if not path.exists():
        raise UserError(f"{path} is missing: {how_to_get()}", REFUSED)
    return path


def how_to_get() -> str:
    """For a message about a library or a program of ours that is not there."""
    return "install the package again" if is_packaged() else "build first (make run)"


def require_usable(allocator: Allocator) -> Allocator:
    """An allocator that was asked for: what cannot be had of it is said before anything runs."""
    if allocator.usable:
        return allocator
    if allocator.name in ("hakmem", "hakmem-hardened", "floor"):
        raise UserError(f"{allocator.name}: {allocator.problem}: {how_to_get()}", REFUSED)
    raise UserError(f"{allocator.name}: {allocator.problem}", WRONG_USE)


def package_version(package: str) -> str:
    """The installed version of a Debian package, or an empty string."""
    if shutil.which("dpkg-query") is None:
        return ""
    query = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", package]
    answer = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
    return answer[1] if len(answer) == 2 and answer[0] == "installed" else ""


def from_path(name: str, path: Path, version: str = "", source: str = "user") -> Allocator:
    """An allocator by the path of its library; a path that is not there becomes its problem."""
    path = path.expanduser().absolute()
    problem = "" if path.is_file() else f"no library at {path}"
    return Allocator(name, path, version, problem, source)


def known_names() -> list[str]:
    return [*DEFAULT_NAMES, "hakmem-hardened", *RECIPES]


def find(name: str, others: str = "") -> Allocator:
    """Looks an allocator up by name; what is missing comes back with its problem named.

    `others`: how the command takes an allocator that is not known, for the message.
    """
    if name == "glibc":
        return Allocator("glibc", None, package_version("libc6"), source="the system's")
    if name in ("hakmem", "hakmem-hardened"):
        if name == "hakmem" and (given := os.environ.get("HAKLAB_LIB")):
            return from_path(name, Path(given), "from HAKLAB_LIB")
        path = build_folder() / f"lib{name}.so"
        if path.parent == PACKAGED:
            return from_path(name, path, metadata.version("hakmem"), "this package")
        return from_path(name, path, revision_of(repository_root()), "this checkout")
    if name == "floor":
        return from_path(name, build_folder() / "bench" / "libfloor.so", "does nothing", "floor")
    if name in PEERS:
        return packaged(name, PEERS[name])
    if name in RECIPES:
        return built(name)
    near = get_close_matches(name.lower(), known_names())
    hints = [f"near: {', '.join(near)}" if near else f"known: {', '.join(known_names())}", others]
    told = "; ".join(hint for hint in hints if hint)
    raise UserError(f"unknown allocator '{name}' ({told})", WRONG_USE)


def packaged(name: str, peer: Peer) -> Allocator:
    """A library of Debian's, or the one that the user's variable names."""
    given = os.environ.get(peer.variable)
    if given:
        return from_path(name, Path(given), f"from {peer.variable}", f"user ({peer.variable})")
    version = package_version(peer.package)
    found = from_path(name, DEBIAN_LIBRARIES / peer.file_name, version, "Debian")
    if not found.usable:
        return replace(found, problem=f"not installed (package {peer.package})")
    return found


def built(name: str) -> Allocator:
    """A library that `hakmem peers build` made."""
    made, problem = cache.read(name)
    return Allocator(
        name,
        cache.library_path(name),
        str(made) if made else "",
        problem,
        made.kind if made else "crates.io",
        with_users_tunables(RECIPES[name].settings),
    )


def with_users_tunables(settings: Mapping[str, str]) -> dict[str, str]:
    """A peer's settings, after what the user has in the same list of GLIBC_TUNABLES."""
    before = os.environ.get("GLIBC_TUNABLES")
    return {
        name: f"{before}:{value}" if before and name == "GLIBC_TUNABLES" else value
        for name, value in settings.items()
    }
