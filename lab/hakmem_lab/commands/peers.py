"""`hakmem peers`: the allocators to compare with, and building those that Debian has not.

cargo only fetches a crate, and for some peers runs its build script for the static archive. A
tree that is given takes the place of the crate's own. A library is checked under a real program
before it takes its place in the cache.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click
from hakmem import files
from hakmem.allocators import cache
from hakmem.allocators.peers import Allocator, find, known_names
from hakmem.allocators.recipes import PACKAGES, RECIPES, Recipe
from hakmem.documents import write_text
from hakmem.environment import allowed_cpus
from hakmem.errors import INTERRUPTED, UserError
from hakmem.options import several
from hakmem.output import tables
from hakmem.running.launching import own_session
from hakmem.running.proof import load_checked, peer_served
from rich.table import Table

from hakmem_lab import peer_sources
from hakmem_lab.peer_sources import Source, given_sources, recipe_of

# What would change a build behind the recipe's back.
UNWANTED = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "RUSTFLAGS", "MAKEFLAGS", "LD_PRELOAD")
UNWANTED_PREFIXES = ("CARGO_BUILD_", "CARGO_ENCODED_", "CARGO_PROFILE_", "JEMALLOC_", "CMAKE_")
LINK_FLAGS = ("-shared", "-pthread", "-Wl,-O1", "-Wl,--gc-sections", "-Wl,-z,relro")


class BuildError(Exception):
    """Why a peer could not be built, in one line."""


@dataclass(frozen=True)
class Built:
    """What one build made, still in its scratch folder."""

    library: Path
    archive: Path


@dataclass
class Workshop:
    """The scratch folder, the log and the environment of one build."""

    recipe: Recipe
    jobs: int
    say: Callable[[str], None]
    # What is built in place of the crate's tree; none where that is built itself.
    source: Source | None = None
    crate_folder: Path = Path()
    crate_version: str = ""
    # The version of a given tree that names none in its files.
    tree_version: str = ""

    @property
    def folder(self) -> Path:
        return cache.cache_folder() / "work" / self.recipe.name

    @property
    def tree(self) -> Path:
        """Upstream's tree, the crate's own or the given one."""
        return self.crate_folder / self.recipe.tree

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in UNWANTED and not name.startswith(UNWANTED_PREFIXES)
        }
        kept |= {"CARGO_TARGET_DIR": str(self.folder / "target"), "CARGO_TERM_COLOR": "never"}
        return kept | dict(self.recipe.compilers) | dict(self.recipe.environment) | (extra or {})

    def run(
        self,
        what: str,
        command: Sequence[str],
        folder: Path,
        extra: Mapping[str, str] | None = None,
    ) -> str:
        """Runs one step to its end and returns its standard output; all of it goes to the log."""
        self.say(what)
        with files.open_to_append(cache.log_path(self.recipe.name), errors="replace") as log:
            log.write(f"\n== {what}: {' '.join(command)}\n")
            log.flush()
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": log}
            how = {"cwd": folder, "env": self.environment(extra), "text": True, **streams}
            with own_session(command, signal.SIGTERM, errors="replace", **how) as process:
                output, _ = process.communicate()
            log.write(output)
        if process.returncode:
            raise BuildError(f"{what} failed: {self.last_words()}")
        return output

    def last_words(self) -> str:
        """The line of the log that says most about a failure."""
        log = cache.log_path(self.recipe.name)
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
        told = re.compile(r"\b(error|fatal)\b[:\[]|^CMake Error ")
        telling = [line for line in lines if told.search(line)]
        word = (telling or [line for line in lines if line] or ["no message"])[0 if telling else -1]
        return f"{word[:200]} (log: {log})"


def why_it_does_not_serve(library: Path, settings: Mapping[str, str]) -> str:
    """Of a small program under a library: how it fails, or whose malloc it has; else nothing."""
    allocator = load_checked(Allocator(library.name, library, settings=settings))
    said = allocator.problem or peer_served((sys.executable, "-I", "-S", "-c", ""), allocator)
    return "" if said == "yes" else said


def missing_tool(recipe: Recipe, source: Source | None = None) -> str:
    """One line about the first tool that is not there, or an empty string."""
    for tool in (*recipe.needed_tools, *(["git"] if source and source.tag else [])):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian package {PACKAGES[tool]})"
    return ""


def is_current(recipe: Recipe) -> bool:
    """Whether the cache has this peer, library and archive, by the recipe as it is now."""
    metadata, _ = cache.read(recipe.name)
    is_by_recipe = metadata is not None and metadata.recipe == recipe.digest
    return is_by_recipe and not cache.archive_problem(recipe.name)


def build(
    recipe: Recipe,
    jobs: int,
    say: Callable[[str], None] = lambda _: None,
    source: Source | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> cache.Metadata:
    """Builds a peer and puts it into the cache; raises BuildError when it cannot.

    `say` is told each step, `tell` what a reader must know of the result.
    """
    if problem := missing_tool(recipe, source):
        raise BuildError(problem)
    shop = Workshop(recipe, jobs, say, source)
    with only_one(shop):
        try:
            tree = given_tree(shop, tell)
            fetch(shop)
            if tree is not None:
                put_in_place(shop, tree)
            built = METHODS[recipe.method](shop)
            say("trying")
            if said := why_it_does_not_serve(built.library, recipe.settings):
                raise BuildError(f"built, but {said}")
            metadata = describe(shop, built)
            cache.write(metadata, built.library, built.archive)
        finally:
            shutil.rmtree(shop.folder, ignore_errors=True)
    return metadata


@contextmanager
def only_one(shop: Workshop) -> Iterator[None]:
    """An empty scratch folder and log; refuses while another process builds the same peer."""
    log = cache.log_path(shop.recipe.name)
    cache.own_folder()
    with files.open_to_append(log) as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BuildError("another process is building it") from None
        held.truncate(0)
        shutil.rmtree(shop.folder, ignore_errors=True)
        files.make_folder(shop.folder)
        yield


def given_tree(shop: Workshop, tell: Callable[[str], None]) -> Path | None:
    """The given tree, a tag cloned; none where the crate's own is to be built."""
    source = shop.source
    if source is None:
        return None
    tree = Path(source.place)
    if source.tag:
        tree = shop.folder / "clone"
        environment = peer_sources.GIT_ENVIRONMENT
        try:
            command = peer_sources.clone_command(source, tree)
            shop.run("cloning", command, shop.folder, environment)
        except BuildError as error:
            if peer_sources.NO_SUCH_TAG.search(str(error)):
                raise
            recipe = shop.recipe
            tell(f"{source}: {error}; the crate {recipe.crate} {recipe.crate_version} instead")
            shop.source = None
            return None
    if problem := peer_sources.why_no_tree(shop.recipe, tree):
        raise BuildError(f"{source}: {problem}")
    shop.tree_version = peer_sources.version_of(source, tree)
    return tree


def put_in_place(shop: Workshop, tree: Path) -> None:
    """A copy of the crate with the given tree; cargo takes it for the crate."""
    copy = shop.folder / "crate"
    files.copy_tree(shop.crate_folder, copy)
    peer_sources.put_in_place(shop.recipe, tree, copy)
    shop.crate_folder = copy
    patch = f'\n[patch.crates-io]\n{shop.recipe.crate} = {{ path = "crate" }}\n'
    write_text(shop.folder / "Cargo.toml", manifest(shop.recipe) + patch)


def fetch(shop: Workshop) -> None:
    """A cargo project that depends on the crate alone, and where cargo put the crate's sources."""
    files.make_folder(shop.folder / "src")
    write_text(shop.folder / "src" / "lib.rs", "")
    write_text(shop.folder / "Cargo.toml", manifest(shop.recipe))
    shop.run("fetching", ["cargo", "fetch"], shop.folder)
    command = ["cargo", "metadata", "--format-version", "1", "--offline"]
    for package in json.loads(shop.run("looking up sources", command, shop.folder))["packages"]:
        if package["name"] == shop.recipe.crate:
            shop.crate_folder = Path(package["manifest_path"]).parent
            shop.crate_version = package["version"]
            return
    raise BuildError(f"cargo does not name the sources of {shop.recipe.crate}")


def manifest(recipe: Recipe) -> str:
    features = ", ".join(f'"{name}"' for name in recipe.features)
    return f"""\
[package]
name = "hakmem-peer-{recipe.name}"
version = "0.0.0"
edition = "2021"

[dependencies.{recipe.crate}]
version = "={recipe.crate_version}"
default-features = {str(recipe.default_features).lower()}
features = [{features}]

[profile.release]
opt-level = {recipe.opt_level}
debug = false

[profile.release.build-override]
opt-level = 0

[workspace]
"""


def build_by_cargo(shop: Workshop) -> Built:
    """The archive that the crate's build script makes, linked whole into a shared library."""
    flags = list(shop.recipe.flags)
    if shop.recipe.undefine:
        # -U before the script's own -D would do nothing: a header is read after both.
        header = shop.folder / "undefine.h"
        write_text(header, "".join(f"#undef {name}\n" for name in shop.recipe.undefine))
        flags += ["-include", str(header)]
    given = {"CFLAGS": " ".join(flags), "CXXFLAGS": " ".join(flags)}
    command = ["cargo", "build", "--release", "--offline", "-vv", "--message-format=json"]
    output = shop.run("compiling", [*command, f"-j{shop.jobs}"], shop.folder, given)
    archive = find_archive(output, shop.recipe.crate)
    library = shop.folder / f"lib{shop.recipe.name}.so"
    linker = shop.recipe.compilers["CXX" if shop.recipe.is_cxx else "CC"]
    whole = ["-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive"]
    name = f"-Wl,-soname,lib{shop.recipe.name}.so"
    shop.run("linking", [linker, *LINK_FLAGS, name, "-o", str(library), *whole], shop.folder)
    return Built(library, staged(shop, archive))


def find_archive(messages: str, crate: str) -> Path:
    """The one static archive in the folder of the crate's build script."""
    for line in messages.splitlines():
        if not line.startswith("{"):
            continue
        message = json.loads(line)
        is_ours = re.search(rf"[/#]{re.escape(crate)}[#@]", message.get("package_id", ""))
        if message.get("reason") == "build-script-executed" and is_ours:
            found = sorted(Path(message["out_dir"]).glob("*.a"))
            if len(found) == 1:
                return found[0]
            raise BuildError(f"the build script of {crate} made {len(found)} archives, not one")
    raise BuildError(f"cargo did not run the build script of {crate}")


def build_by_configure(shop: Workshop) -> Built:
    """jemalloc's own configure and make, on a copy of its sources."""
    source = shop.folder / "source"
    files.copy_tree(shop.tree, source)
    if not (source / "configure").exists():
        files.copy(shop.crate_folder / "configure" / "configure", source / "configure")
    version = shop.crate_version.partition("+")[2]
    if shop.source:
        # It has to have five parts, whatever a given tree is called.
        found = re.match(r"\d+\.\d+\.\d+", shop.tree_version)
        version = f"{found[0] if found else '0.0.0'}-0-g0"
    configure = ["sh", "./configure", f"--with-version={version}", *shop.recipe.flags]
    shop.run("configuring", configure, source)
    archive = "lib/libjemalloc.a"
    shop.run("compiling", ["make", f"-j{shop.jobs}", "build_lib_shared", archive], source)
    library = staged(shop, source / "lib" / "libjemalloc.so.2")
    return Built(library, staged(shop, source / archive))


def build_by_cmake(shop: Workshop) -> Built:
    """Upstream's own CMake project, its preloadable target and its static one."""
    folder = shop.folder / "build"
    configure = ["cmake", "-S", str(shop.tree), "-B", str(folder), "-G", "Unix Makefiles"]
    shop.run("configuring", [*configure, *shop.recipe.flags], shop.folder)
    compile_ = ["cmake", "--build", str(folder), "--target", *shop.recipe.targets, "--verbose"]
    shop.run("compiling", [*compile_, f"-j{shop.jobs}"], shop.folder)
    library, archive = (staged(shop, folder / name) for name in shop.recipe.products)
    return Built(library, archive)


def build_by_compiler(shop: Workshop) -> Built:
    """hardened_malloc's own sources, with the definitions that the crate takes from upstream."""
    source = shop.tree
    lines = (shop.crate_folder / "config-default.conf").read_text().splitlines()
    defines = [f"-D{line}" for line in lines if re.fullmatch(r"\w+=\w+", line)]
    flags = [*shop.recipe.flags, "-D_GNU_SOURCE", *defines]
    flags += [f"-I{source / folder}" for folder in ("", "include", "third_party")]
    objects = []
    for file in sorted([*source.glob("*.c"), *source.glob("*.cc")]):
        is_cxx = file.suffix == ".cc"
        compiler = [shop.recipe.compilers["CXX" if is_cxx else "CC"]]
        compiler += ["-std=c++17", "-fsized-deallocation"] if is_cxx else ["-std=c2x"]
        objects.append(f"{file.stem}{file.suffix}.o")
        shop.run("compiling", [*compiler, *flags, "-c", str(file), "-o", objects[-1]], shop.folder)
    name = f"lib{shop.recipe.name}"
    linker = [shop.recipe.compilers["CXX"], *shop.recipe.flags, *LINK_FLAGS, "-Wl,-z,now"]
    target = ["-o", f"{name}.so", f"-Wl,-soname,{name}.so"]
    shop.run("linking", [*linker, *target, *objects], shop.folder)
    shop.run("packing", ["gcc-ar", "rcs", f"{name}.a", *objects], shop.folder)
    return Built(shop.folder / f"{name}.so", shop.folder / f"{name}.a")


def staged(shop: Workshop, built: Path) -> Path:
    """A copy under the peer's name, with the suffix .so or .a of what was built."""
    if not built.exists():
        raise BuildError(
            f"the build made no {built.name} (log: {cache.log_path(shop.recipe.name)})"
        )
    suffix = ".a" if built.suffix == ".a" else ".so"
    target = shop.folder / f"lib{shop.recipe.name}{suffix}"
    files.copy(built, target)
    return target


METHODS = {
    "cargo": build_by_cargo,
    "configure": build_by_configure,
    "cmake": build_by_cmake,
    "compiler": build_by_compiler,
}


def describe(shop: Workshop, built: Built) -> cache.Metadata:
    recipe = shop.recipe
    compiler = recipe.compilers["CXX"]
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return cache.Metadata(
        name=recipe.name,
        crate=recipe.crate,
        crate_version=shop.crate_version.partition("+")[0],
        version=version_shown(shop),
        compiler=said.stdout.partition("\n")[0] or compiler,
        sha256=cache.checksum(built.library),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        recipe=recipe.digest,
        archive_sha256=cache.checksum(built.archive),
        source=str(shop.source or ""),
    )


def version_shown(shop: Workshop) -> str:
    """Of a given tree by its own files, else by its tag; never that of the crate."""
    recipe = shop.recipe
    in_tree = recipe.version_file.startswith(f"{recipe.tree}/")
    if shop.source and not (in_tree and (shop.crate_folder / recipe.version_file).is_file()):
        return shop.tree_version or "unknown"
    said = upstream_version(recipe, shop.crate_folder, shop.crate_version)
    return shop.tree_version if said == "unknown" and shop.tree_version else said


def upstream_version(recipe: Recipe, folder: Path, crate_version: str) -> str:
    """The allocator's own version, which is not its crate's."""
    text = crate_version
    if recipe.version_file:
        text = (folder / recipe.version_file).read_text(errors="replace")
    found = re.search(recipe.version_pattern, text, re.MULTILINE)
    if found is None:
        return "unknown"
    if recipe.version_note:
        return recipe.version_note.format(*found.groups())
    parts = found.groups()
    return ".".join(str(int(part)) for part in parts) if len(parts) > 1 else parts[0]


@click.group()
def peers() -> None:
    """Build other allocators from their sources, and list what there is to compare with."""


@peers.command("build")
@click.option("--force", is_flag=True, help="Build also what is there and up to date.")
@several(
    peer_sources.OPTION + " sources",
    "Build NAME from its source tree in DIR, or from a git tag, by the same recipe.",
    "NAME=DIR|NAME=URL@TAG",
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
def build_command(force: bool, sources: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Build the named allocators, or all, from crates.io sources into the cache folder.

    What was built from a given tree stays until its recipe changes or --force is given. Where a
    git repository cannot be reached the crate is built.
    """
    console = tables.make_console()
    given = given_sources(sources)
    recipes = [recipe_of(name) for name in dict.fromkeys((*names, *given) or RECIPES)]
    console.print(f"into {cache.cache_folder()}")
    failed: dict[str, str] = {}
    for recipe in recipes:
        name, source = recipe.name, given.get(recipe.name)
        if not force and source is None and is_current(recipe):
            metadata, _ = cache.read(name)
            console.print(f"{name}: {metadata} is up to date", soft_wrap=True)
            continue
        try:
            with console.status(f"{name}: starting") as status:
                metadata = build(
                    recipe,
                    len(allowed_cpus()),
                    lambda what, name=name: status.update(f"{name}: {what}"),
                    source,
                    lambda what, name=name: console.print(f"{name}: {what}", soft_wrap=True),
                )
            console.print(f"{name}: built {metadata}, {metadata.compiler}", soft_wrap=True)
        except (BuildError, OSError) as error:
            failed[name] = str(error)
            console.print(f"{name}: FAILED: {error}", soft_wrap=True)
        except KeyboardInterrupt:
            console.print(f"interrupted while building {name}; what was built before stays")
            raise SystemExit(INTERRUPTED) from None
    if failed:
        raise UserError(f"not built: {', '.join(failed)}")


@peers.command("list")
def list_command() -> None:
    """Show each known allocator: version, where it comes from, and whether it loads and serves.

    Each library is preloaded into a small program, of which the loader says whose malloc it has.
    """
    console = tables.make_console()
    rows = [(found, examined(found)) for found in map(find, known_names())]
    console.print(peers_table(rows))
    # Paths are long: below the table they stay whole.
    paths = {a.name: str(a.library) for a, _ in rows if a.library is not None}
    console.print(tables.facts_table(paths))


def examined(allocator: Allocator) -> str:
    """What a trial shows; what the system has needs none."""
    if allocator.library is None or allocator.problem:
        return allocator.problem
    return why_it_does_not_serve(allocator.library, allocator.settings)


def peers_table(rows: list[tuple[Allocator, str]]) -> Table:
    heads = ("allocator", "version", "source", "loads and serves", "runs with")
    lines = []
    for allocator, problem in rows:
        given = " ".join(f"{name}={value}" for name, value in allocator.settings.items())
        cells = (allocator.version, allocator.source, problem or "yes", given)
        lines.append([allocator.name, *(cell or tables.ABSENT for cell in cells)])
    return tables.figures_table("", heads, lines, heads)
