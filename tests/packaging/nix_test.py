"""nix_test.py RELEASE CMAKE BUILD [--all]: Nix parses and evaluates the recipe, with stand-ins for nixpkgs; it builds nothing.

--all: CMake builds the release with the recipe's flags and the absolute folders that nixpkgs' hook for CMake gives.
"""
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from support import ROOT, clean_environment, expect, release_archive, run, skip

archive = release_archive(sys.argv[1])
recipe = archive.parent / "recipes/nix"
if shutil.which("nix-instantiate") is None:
    skip("nix-instantiate is not installed (Debian: nix-bin)")
options = set(re.findall(r"^(HAKMEM_\w+):", (Path(sys.argv[3]) / "CMakeCache.txt").read_text(), re.MULTILINE))


def evaluate(arguments: str) -> dict:
    with tempfile.TemporaryDirectory() as home:
        places = {f"NIX_{name}_DIR": f"{home}/{name}" for name in ("STATE", "LOG", "CONF", "LOCALSTATE", "STORE")}
        environment = clean_environment(HOME=home, XDG_CACHE_HOME=f"{home}/cache", **places)
        expression = f"import {ROOT}/tests/packaging/stand_ins/nixpkgs.nix {recipe} {arguments}"
        # The store that holds nothing: nothing is written outside of the temporary folder.
        output = run("sh", "-c", 'exec nix-instantiate --store dummy:// --eval --strict --json -E "$1" 2>/dev/null', "sh", expression,
                     env=environment, stdin=os.open(os.devnull, os.O_RDONLY))  # fmt: skip
    return json.loads(output)


def check_absolute_folders(flags: list[str], name: str) -> None:
    """The build that the hook of nixpkgs' cmake makes of the recipe: every folder of the installation is absolute."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary).resolve()
        run("tar", "-xf", archive, "-C", work)
        (source,) = (path for path in work.iterdir() if path.is_dir())
        out, cmake = work / "store", sys.argv[2]
        folders = [f"-DCMAKE_INSTALL_{kind}DIR={out / place}" for kind, place in (("LIB", "lib"), ("INCLUDE", "include"), ("BIN", "bin"))]
        run(cmake, "-G", "Ninja", "-S", source, "-B", work / "build", f"-DCMAKE_INSTALL_PREFIX={out}", "-DCMAKE_BUILD_TYPE=Release", *folders, *flags)
        run(cmake, "--build", work / "build", "--target", "install")
        environment = clean_environment(PKG_CONFIG_LIBDIR=str(out / "lib/pkgconfig"))
        found = run("pkg-config", "--cflags", "--libs", "hakmem", env=environment).split()
        run("c++", "-std=c++17", ROOT / "tests/install/consumer/program.cc", "-o", work / "program", *found)
        output = run(work / "program", env=clean_environment(LD_LIBRARY_PATH=str(out / "lib")))
        expect("ours 1 1 1 served 1" in output, f"{name}: pkg-config finds it in absolute folders: {output!r}")


for arguments, wanted in (("{ }", {"shared", "static"}), ("{ hardened = true; }", {"hardened", "hardened-static"})):
    package = evaluate(arguments)
    expect(f"{package['pname']}-{package['version']}.tar.xz" == archive.name, f"it is {archive.name}: {package}")
    flags = dict(flag.removeprefix("-D").split("=", 1) for flag in package["cmakeFlags"])
    expect(set(flags) <= options, f"CMakeLists.txt has the options {set(flags)}")
    expect(set(flags["HAKMEM_LIBRARIES"].split(";")) == wanted, f"{arguments}: {wanted}: {flags}")
    if "--all" in sys.argv:
        check_absolute_folders(package["cmakeFlags"], next(iter(sorted(wanted))))
    expect(package["meta"]["license"]["spdxId"] == "MIT", "the licence is the project's")
