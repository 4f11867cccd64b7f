"""flags.py COMPILED COMPILE_COMMANDS: what the crate's build script has compiled, and how, beside CMake's static library.

COMPILED holds the compiler's arguments, one call a line. Files must be the same, and so must definitions, and flags that
change what the code does. The crate is always optimised as the preset release is.
"""
import json
import re
import shlex
import sys
from pathlib import Path

# Warnings do not change the code. Debug information, sections and position independence are the choices of cargo, the
# optimisation that of the preset, and CMake names the C standard only where it is not the compiler's default.
IGNORED = re.compile(r"-(w|W.*|g.*|c|O.*|std=gnu17|m64|ffunction-sections|fdata-sections|fPIC|fno-omit-frame-pointer|pipe|fdiagnostics-color=.*)$")
# The build's own choice: assertions of libc, which the allocator does not use.
IGNORED_DEFINITIONS = {"NDEBUG"}


def meaning(arguments: list[str]) -> set[str]:
    flags, i = set(), 0
    while i < len(arguments):
        flag = arguments[i]
        if flag in ("-o", "-I", "-isystem", "-MF", "-MT", "-MQ"):
            i += 1
        elif flag == "-D":
            i += 1
            flags.add("-D" + arguments[i])
        elif flag.startswith("-") and not flag.startswith(("-I", "-M")) and not IGNORED.match(flag):
            flags.add(flag)
        i += 1
    return {f.removesuffix("=1") if f == "-D_GNU_SOURCE=1" else f for f in flags if f[2:] not in IGNORED_DEFINITIONS}


def source_of(arguments: list[str]) -> str | None:
    """The C file below src/."""
    for argument in arguments:
        found = re.search(r"(?:^|/)src/(\w+/\w+\.c)$", argument)
        if found and "-c" in arguments:
            return found.group(1)
    return None


def of_crate(path: Path) -> dict[str, set[str]]:
    calls = [shlex.split(line) for line in path.read_text().splitlines()]
    for call in calls:
        if source_of(call) and "-O2" not in call:
            raise SystemExit(f"without -O2: {' '.join(call)}")
    return {s: meaning(call) for call in calls if (s := source_of(call))}


def of_cmake(path: Path) -> dict[str, set[str]]:
    found = {}
    for entry in json.loads(path.read_text()):
        call = shlex.split(entry["command"])[1:]
        source = source_of(call)
        if "/hakmem_static.dir/" in entry["command"] and source and not source.startswith("override/"):
            found[source] = meaning(call)
    return found


def main(compiled: str, commands: str) -> None:
    crate, cmake = of_crate(Path(compiled)), of_cmake(Path(commands))
    if not cmake:
        raise SystemExit(f"{commands} has no object of hakmem_static")
    problems = [f"{name}: compiled by CMake only" for name in sorted(cmake.keys() - crate.keys())]
    problems += [f"{name}: compiled by the crate only" for name in sorted(crate.keys() - cmake.keys())]
    for name in sorted(crate.keys() & cmake.keys()):
        if crate[name] != cmake[name]:
            only = " ".join(sorted(crate[name] - cmake[name])), " ".join(sorted(cmake[name] - crate[name]))
            problems.append(f"{name}: the crate alone has [{only[0]}], CMake alone [{only[1]}]")
    if problems:
        raise SystemExit("\n".join(problems))
    print(f"{len(cmake)} files are compiled as by CMake")


if __name__ == "__main__":
    main(*sys.argv[1:3])
