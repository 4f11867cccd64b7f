"""Bench programs linked with one allocator each: wholly static, or else with its archive only.

A preloaded allocator is called through the procedure linkage table and lies far from the program.
Linked in, neither holds, and code and data fall into other places: separate binaries show how much
of a difference is layout. An allocator that cannot be linked is reported, never replaced.
"""

import hashlib
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hakmem import files
from hakmem.allocators import cache
from hakmem.allocators.peers import (
    DEBIAN_LIBRARIES,
    PEERS,
    build_folder,
    find,
    repository_root,
)
from hakmem.allocators.recipes import RECIPES
from hakmem.errors import UserError
from hakmem.measuring.rotation import Contender
from hakmem.plain_text import with_last_words
from hakmem.running.launching import run_once

# Those of bench/CMakeLists.txt and of the release preset; a test compares them.
BENCH_FLAGS = (
    "-O3",
    "-Wall",
    "-Wextra",
    "-fno-builtin-malloc",
    "-fno-builtin-free",
    "-fno-builtin-calloc",
    "-fno-builtin-realloc",
)
COMPILE_FLAGS = ("-g", "-DNDEBUG", *BENCH_FLAGS)
STATIC = "static"
ARCHIVE_ONLY = "archive in a dynamic program"
LINKABLE = ("malloc", "calloc", "realloc", "free")
TRIAL_SOURCE = Path(__file__).parent / "workloads" / "link_trial.c"
TRIAL_LIMIT_S = 60
CXX_SUFFIXES = (".cc", ".cpp", ".cxx")


@dataclass(frozen=True)
class Archive:
    """What is linked for one allocator; without a path, the C library's own malloc."""

    name: str
    path: Path | None = None
    problem: str = ""
    is_cxx: bool = False
    # What it needs after it on the linker's command line.
    libraries: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


# Debian's archives with their packages; its mimalloc has none.
PACKAGED = {
    "mimalloc": ("", "libmimalloc-dev", {}),
    "jemalloc": ("libjemalloc.a", "libjemalloc-dev", {"libraries": ("-lm",)}),
    "tcmalloc": ("libtcmalloc_minimal.a", "libgoogle-perftools-dev", {"is_cxx": True}),
    "scudo": (str(Path(PEERS["scudo"].file_name).with_suffix(".a")), PEERS["scudo"].package, {}),
}


@dataclass(frozen=True)
class Linked:
    """A bench program with one allocator in it, or why there is none."""

    name: str
    path: Path | None = None
    problem: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    def contender(self, arguments: Sequence[str]) -> Contender:
        """A row for a rotation: this program, nothing preloaded."""
        if self.path is None:
            raise UserError(f"{self.name} is not linked: {self.problem}")
        return Contender(self.name, (str(self.path), *arguments), None, self.settings)


class LinkError(Exception):
    """Why a program could not be linked with an archive, in one line."""


def program_sources(program: str) -> tuple[Path, ...]:
    """The sources of a bench program by its name, its own first, as the build has them."""
    folder = repository_root() / "bench"
    there = sorted(path.stem for path in folder.glob("bench_*.c*"))
    if program not in there:
        raise UserError(f"no bench program '{program}' (there are: {', '.join(there)})", 2)
    if not (build_folder() / "build.ninja").is_file():
        # Built by other means: all that is known are the names.
        return next(folder.glob(f"{program}.c*")), folder / "bench.c"
    query = ["ninja", "-C", str(build_folder()), "-t", "query", f"bench/{program}"]
    asked = subprocess.run(query, capture_output=True, text=True, check=False)
    objects = re.findall(r"^ +bench/CMakeFiles/[^/]+\.dir/(\S+)\.o$", asked.stdout, re.MULTILINE)
    if not objects:
        raise UserError(f"{build_folder()} does not know {program}: build first", 2)
    return tuple(
        folder / name for name in sorted(set(objects), key=lambda x: Path(x).stem != program)
    )


def find_archive(name: str) -> Archive:
    """The archive of an allocator by name; what is missing comes back with its problem named."""
    if name in RECIPES:
        path, problem = cache.archive_path(name), cache.archive_problem(name)
        return Archive(name, path, problem, RECIPES[name].is_cxx, settings=find(name).settings)
    if name in PEERS:
        return packaged_archive(name, *PACKAGED[name])
    if name == "glibc":
        return Archive(name)
    if name == "hakmem-hardened":
        return Archive(name, problem="the build makes no such archive")
    path = build_folder() / "libhakmem.a"
    problem = "" if path.is_file() else f"{path} is missing: build first"
    return Archive(name, path, problem)


def packaged_archive(name: str, file_name: str, package: str, how: Mapping) -> Archive:
    if not file_name:
        return Archive(name, problem=f"Debian's {package} has no static archive")
    path = DEBIAN_LIBRARIES / file_name
    return Archive(
        name, path, "" if path.is_file() else f"not installed (package {package})", **how
    )


def link(sources: Sequence[Path], name: str) -> Linked:
    """Links a program with an allocator, or finds it in the cache by a digest of what it is of.

    The first source names the program. Wholly static comes first; where that does not link or does
    not run, the archive goes into a dynamic executable.
    """
    archive = find_archive(name)
    if archive.problem:
        return Linked(name, problem=archive.problem)
    if absent := [tool for tool in ("gcc", "g++", "nm") if shutil.which(tool) is None]:
        return Linked(name, problem=f"{absent[0]} is not installed")
    target = target_path(sources, archive)
    made = Linked(name, target, settings=archive.settings)
    if target.is_file():
        return made
    cache.own_folder("linked")
    reasons = []
    for kind in (STATIC, ARCHIVE_ONLY) if archive.path else (STATIC,):
        try:
            build_one(sources, archive, kind, target)
            return made
        except LinkError as error:
            reasons.append(f"{kind}: {error}")
    return Linked(name, problem="; ".join(reasons))


def target_path(sources: Sequence[Path], archive: Archive) -> Path:
    """Where the program goes: a name that changes with sources, headers, archive and compiler."""
    digest = hashlib.sha256(repr((COMPILE_FLAGS, archive.settings)).encode())
    headers = sorted({h for source in sources for h in source.parent.glob("*.h")})
    own = [archive.path] if archive.path else []
    for path in (*sources, *headers, *own, TRIAL_SOURCE, Path(__file__)):
        digest.update(f"{path.name} {cache.checksum(path)}\n".encode())
    said = subprocess.run(["g++", "--version"], capture_output=True, check=False)
    digest.update(said.stdout)
    stem = f"{sources[0].stem}-{archive.name}-{digest.hexdigest()[:16]}"
    return cache.cache_folder() / "linked" / stem


def build_one(sources: Sequence[Path], archive: Archive, kind: str, target: Path) -> None:
    """Links, looks at whose malloc it is, and tries it; only then the program takes its place."""
    with files.scratch_folder(within=target.parent) as scratch:
        folder = Path(scratch)
        trial = link_one((TRIAL_SOURCE,), archive, kind, folder)
        outcome = run_once([str(trial)], None, None, archive.settings, limit_s=TRIAL_LIMIT_S)
        if outcome.problem:
            why = with_last_words(outcome.problem, outcome.last_words(1))
            raise LinkError(f"a small program fails with it: {why}")
        files.move(link_one(sources, archive, kind, folder), target)


def compile_source(source: Path, folder: Path) -> Path:
    is_cxx = source.suffix in CXX_SUFFIXES
    target = folder / f"{source.stem}.o"
    compiler = ("g++", "-std=gnu++17") if is_cxx else ("gcc", "-std=gnu17")
    run_tool([*compiler, *COMPILE_FLAGS, "-c", str(source), "-o", str(target)])
    return target


def link_one(sources: Sequence[Path], archive: Archive, kind: str, folder: Path) -> Path:
    path = archive.path
    objects = [str(compile_source(source, folder)) for source in sources]
    is_cxx = archive.is_cxx or any(source.suffix in CXX_SUFFIXES for source in sources)
    program = folder / sources[0].stem
    command = ["g++" if is_cxx else "gcc", *objects, *([str(path)] if path else [])]
    command += [*archive.libraries, "-pthread"]
    command += ["-static"] if kind == STATIC else []
    for symbol in LINKABLE:
        # Wanted by itself: a program that only says new would get the rest from the C library.
        command += [f"-Wl,--undefined={symbol}", f"-Wl,--trace-symbol={symbol}"]
    said = run_tool([*command, "-o", str(program)])
    if path is not None:
        require_own_functions(said, path)
    names = run_tool(["nm", "--defined-only", "--format=posix", str(program)])
    if not re.search(r"^malloc [TtWi] ", names, re.MULTILINE):
        # The executable itself must have it, not call for the C library's.
        raise LinkError("the program has no malloc of its own")
    return program


def require_own_functions(said: str, path: Path) -> None:
    """The linker's word on where each function comes from: it must be the archive."""
    for symbol in LINKABLE:
        found = definition_of(said, symbol)
        if found is None or found.name != path.name:
            raise LinkError(f"{symbol} comes from {found.name if found else 'nowhere'}")


def definition_of(said: str, symbol: str) -> Path | None:
    """The first file that defines a symbol, in the linker's trace."""
    found = re.search(rf"(\S+?)(?:\([^()\s]+\))?: definition of {symbol}$", said, re.MULTILINE)
    return Path(found[1]) if found else None


def run_tool(command: Sequence[str]) -> str:
    """Runs a compiler or a linker; its first error is the reason when it fails."""
    ran = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if ran.returncode == 0:
        return ran.stdout + ran.stderr
    lines = [line.strip() for line in ran.stderr.splitlines() if line.strip()]
    telling = [x for x in lines if re.search(r"\berror: |undefined ref|multiple def", x)]
    raise LinkError((telling or lines or [f"{command[0]} failed"])[0][:300])
