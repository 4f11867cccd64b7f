"""nix_test.py RELEASE BUILD: Nix parses and evaluates the recipe, with stand-ins for nixpkgs; it builds nothing."""
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
options = set(re.findall(r"^(HAKMEM_\w+):", (Path(sys.argv[2]) / "CMakeCache.txt").read_text(), re.MULTILINE))


def evaluate(arguments: str) -> dict:
    with tempfile.TemporaryDirectory() as home:
        places = {f"NIX_{name}_DIR": f"{home}/{name}" for name in ("STATE", "LOG", "CONF", "LOCALSTATE", "STORE")}
        environment = clean_environment(HOME=home, XDG_CACHE_HOME=f"{home}/cache", **places)
        expression = f"import {ROOT}/tests/packaging/stand_ins/nixpkgs.nix {recipe} {arguments}"
        # The store that holds nothing: nothing is written outside of the temporary folder.
        output = run("sh", "-c", 'exec nix-instantiate --store dummy:// --eval --strict --json -E "$1" 2>/dev/null', "sh", expression,
                     env=environment, stdin=os.open(os.devnull, os.O_RDONLY))  # fmt: skip
    return json.loads(output)


for arguments, wanted in (("{ }", {"shared", "static"}), ("{ hardened = true; }", {"hardened", "hardened-static"})):
    package = evaluate(arguments)
    expect(f"{package['pname']}-{package['version']}.tar.xz" == archive.name, f"it is {archive.name}: {package}")
    flags = dict(flag.removeprefix("-D").split("=", 1) for flag in package["cmakeFlags"])
    expect(set(flags) <= options, f"CMakeLists.txt has the options {set(flags)}")
    expect(set(flags["HAKMEM_LIBRARIES"].split(";")) == wanted, f"{arguments}: {wanted}: {flags}")
    expect(package["meta"]["license"]["spdxId"] == "MIT", "the licence is the project's")
