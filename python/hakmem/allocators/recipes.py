"""How each peer is built: its crate, its features, its compiler and flags. Data only.

Flags are those of the peer's own shared library: initial-exec TLS and hidden visibility where
upstream uses them, and its own optimisation level. A crate is made for static linking into Rust,
so its defaults are not always those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

GCC = {"CC": "gcc", "CXX": "g++"}
CLANG = {"CC": "clang-19", "CXX": "clang++-19"}

# The Debian package of each tool that a recipe may need.
PACKAGES = {
    # Debian 12 has a newer cargo beside its first one, which is too old for these crates.
    "cargo": "cargo-web",
    **{tool: tool for tool in ("gcc", "g++", "make", "cmake", "clang-19", "git")},
    "gcc-ar": "gcc",
    "clang++-19": "clang-19",
}


@dataclass(frozen=True)
class Recipe:
    """One peer. `method` is a function of commands/peers.py; `version` is read from the sources."""

    name: str
    crate: str
    crate_version: str
    method: str
    compilers: Mapping[str, str]
    # The folder of the crate that is upstream's tree, and a file that any such tree has.
    tree: str
    mark: str
    # A file of the crate and a pattern whose groups make up the version, or the crate's version.
    version_file: str = ""
    version_pattern: str = ""
    version_note: str = ""
    features: tuple[str, ...] = ()
    default_features: bool = False
    opt_level: int = 3
    tools: tuple[str, ...] = ()
    # Whether its archive needs the C++ library.
    is_cxx: bool = False
    # For the compiler (cargo), or for configure or cmake.
    flags: tuple[str, ...] = ()
    # Of cmake: what it is to make, the shared library and the archive by their files' names.
    targets: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    # Macros the build script defines and upstream's own build does not.
    undefine: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    # What a program measured under this peer must have in its environment.
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def needed_tools(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("cargo", *self.compilers.values(), *self.tools)))

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


MIMALLOC3 = Recipe(
    # Upstream's CMake project: its defaults, without the parts that nobody here uses.
    name="mimalloc3",
    crate="libmimalloc-sys2",
    crate_version="0.1.65",
    method="cmake",
    compilers=GCC,
    tree="c_src/mimalloc3",
    mark="include/mimalloc.h",
    version_file="c_src/mimalloc3/include/mimalloc.h",
    version_pattern=r"define MI_MALLOC_VERSION\s+(\d)(\d\d)(\d\d)",
    tools=("cmake", "make"),
    flags=(
        "-DCMAKE_BUILD_TYPE=Release",
        "-DMI_BUILD_OBJECT=OFF",
        "-DMI_BUILD_TESTS=OFF",
    ),
    targets=("mimalloc", "mimalloc-static"),
    products=("libmimalloc.so", "libmimalloc.a"),
)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        MIMALLOC3,
        replace(
            MIMALLOC3,
            name="mimalloc2",
            tree="c_src/mimalloc",
            version_file="c_src/mimalloc/include/mimalloc.h",
        ),
        Recipe(
            # Upstream's configure by itself: the crate's build leaves out operator new and delete.
            name="jemalloc5",
            crate="tikv-jemalloc-sys",
            crate_version="0.7.1",
            method="configure",
            compilers=GCC,
            tree="jemalloc",
            mark="include/jemalloc/jemalloc.sh",
            version_pattern=r"\+(\d+\.\d+\.\d+)",
            tools=("make",),
            flags=("--enable-doc=no",),
        ),
        Recipe(
            # clang 19 makes the same fast paths and no paired difference (0.99 to 1.03, 31 pairs).
            name="snmalloc",
            crate="snmalloc-sys",
            crate_version="0.7.6",
            method="cmake",
            compilers=GCC,
            tree="upstream",
            mark="src/snmalloc/snmalloc.h",
            version_pattern=r"^(\d+\.\d+\.\d+)",
            tools=("cmake", "make"),
            is_cxx=True,
            flags=(
                "-DCMAKE_BUILD_TYPE=Release",
                "-DSNMALLOC_BUILD_TESTING=OFF",
                # Its static target says sn_malloc and so on otherwise.
                "-DSNMALLOC_STATIC_LIBRARY_PREFIX=",
            ),
            targets=("snmallocshim", "snmallocshim-static"),
            products=("libsnmallocshim.so", "libsnmallocshim-static.a"),
        ),
        Recipe(
            name="tcmalloc-google",
            crate="libtcmalloc-sys",
            crate_version="0.1.14",
            method="cargo",
            compilers=CLANG,
            tree="c_src/tcmalloc",
            mark="tcmalloc/tcmalloc.cc",
            version_file="CHANGELOG.md",
            version_pattern=r"^## \[0\.1\.14\].* - (\d{4}-\d\d-\d\d)",
            version_note="of {0}, 8 KiB pages",
            default_features=True,
            # As Bazel's -c opt.
            opt_level=2,
            is_cxx=True,
            flags=(
                "-fvisibility=hidden",
                "-fvisibility-inlines-hidden",
                "-ftls-model=initial-exec",
            ),
            undefine=("TCMALLOC_INTERNAL_METHODS_ONLY",),
            # glibc registers rseq for itself, and then tcmalloc's caches per CPU stay off.
            settings={"GLIBC_TUNABLES": "glibc.pthread.rseq=0"},
        ),
        Recipe(
            name="rpmalloc",
            crate="rpmalloc-sys",
            crate_version="0.2.3",
            method="cargo",
            compilers=GCC,
            tree="rpmalloc",
            mark="rpmalloc/rpmalloc.c",
            version_file="rpmalloc/CHANGELOG",
            version_pattern=r"\A(\d+\.\d+\.\d+)",
            features=("preload",),
            flags=("-O3", "-funroll-loops", "-DENABLE_OVERRIDE=1", "-DBUILD_RELEASE=1"),
            # A librpmalloc of the system would be taken instead of the crate's sources.
            environment={"LIBRPMALLOC_NO_PKG_CONFIG": "1"},
        ),
        replace(
            # All that it checks, but no guard page behind each of its pages (FULL).
            MIMALLOC3,
            name="mimalloc-secure",
            flags=(*MIMALLOC3.flags, "-DMI_SECURE=ON"),
            products=("libmimalloc-secure.so", "libmimalloc-secure.a"),
        ),
        Recipe(
            # Upstream's sources and configuration, for the crate's build leaves out operator new.
            # Without upstream's -march=native, which no other peer has.
            name="hardened_malloc",
            crate="hardened-malloc-sys",
            crate_version="16.0.2026071503",
            method="compiler",
            compilers=GCC,
            tree="vendor/hardened-malloc",
            mark="h_malloc.c",
            version_pattern=r"(\d{10})$",
            tools=("gcc-ar",),
            is_cxx=True,
            flags=(
                "-O3",
                "-flto",
                "-ffat-lto-objects",
                "-fPIC",
                "-fvisibility=hidden",
                "-fno-plt",
                "-fstack-clash-protection",
                "-fcf-protection",
                "-fstack-protector-strong",
                # gcc 12 has these words of C23 in headers alone.
                "-include",
                "stdalign.h",
                "-include",
                "stdbool.h",
            ),
        ),
    )
}
