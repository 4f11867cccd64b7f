"""abi.py LIBRARIES_FOLDER LIST [--update VERSION]: compares what programs may rely on with what the last release had.

Rows of LIST: `symbol LIBRARY NAME` (exported names, and the SONAME), `declaration TEXT` (functions, types, macros with a value of
the headers), `constant NAME VALUE` (enumerators), `field STRUCTURE NUMBER TEXT` (in order), `option NAME`
(src/config/options.def). A row of LIST that the tree
lacks is a fault, except an option that RETIRED names; rows that the tree has beyond LIST are additions. Structures of GROWS may
grow at their end: their callers say the size, or get a pointer. Status 1: faults."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("libhakmem.so", "libhakmem-hardened.so")
HEADERS = ("hakmem.h", "heap.h", "stats.h")
GROWS = {"hakmem_heap_options", "hakmem_heap_stats", "hakmem_option", "hakmem_stats"}
# A parameter's type and its name, which no caller sees.
PARAMETER = re.compile(r"([\w*]+[ *])\w+(?=[,)])")
# These name the version itself.
VERSIONS = re.compile(r"HAKMEM_(VERSION_\w+|STATS_VERSION)$")


def symbols(library: Path) -> list[str]:
    names = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    soname = re.search(r"SONAME.*\[(.*)\]", dynamic)
    found = sorted({line.split()[-1].split("@")[0] for line in names.splitlines() if line})
    return [f"symbol {library.name} SONAME {soname[1] if soname else 'none'}", *(f"symbol {library.name} {name}" for name in found)]


def own_lines(include: Path, header: str) -> str:
    """The preprocessed header, #define lines included, without what it includes."""
    text = subprocess.run([os.environ.get("CC", "cc"), "-E", "-dD", f"-I{include}", "-x", "c", "-"], input=f"#include <hakmem/{header}>\n",
                          check=True, capture_output=True, text=True).stdout
    kept, ours = [], False
    for line in text.splitlines():
        if marker := re.match(r'# \d+ "(.*?)"', line):
            ours = marker[1].endswith(f"hakmem/{header}")
        elif ours:
            kept.append(line)
    return "\n".join(kept)


def without_attributes(code: str) -> str:
    while (start := code.find("__attribute__")) >= 0:
        depth, end = 0, code.index("(", start)
        while True:
            depth += {"(": 1, ")": -1}.get(code[end], 0)
            end += 1
            if depth == 0:
                break
        code = code[:start] + code[end:]
    return code


def spaced(text: str) -> str:
    return re.sub(r" ?([(),*;{}]) ?", r"\1", " ".join(text.split()))


def macros(lines: str) -> list[str]:
    """Those with a value; what expands to code is of no ABI."""
    found = re.findall(r"^#define (HAKMEM_\w+) +(\"[^\"]*\"|-?\w+)$", lines, re.MULTILINE)
    return [f"declaration #define {name} {value}" for name, value in found
            if not VERSIONS.match(name) and re.match(r'"|-?\d', value)]


def enumerators(body: str) -> list[str]:
    """An enumerator without a value is one more than the one before it."""
    found, value = [], -1
    for part in body.split(","):
        name, _, given = part.partition("=")
        value = int(given, 0) if given else value + 1
        found.append(f"constant {name.strip()} {value}")
    return found


def declarations(lines: str) -> list[str]:
    code = without_attributes("\n".join(line for line in lines.splitlines() if not line.startswith("#")))
    found = []
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \w+;", code, re.DOTALL):
        fields = []
        for part in filter(None, map(spaced, body.split(";"))):
            kind, space, names = part.partition(" ") # a pointer to a structure has none
            fields += [f"{kind} {field}" for field in names.split(",")] if space else [part]
        found += [f"field {name} {number} {field}" for number, field in enumerate(fields)]
    code = re.sub(r"typedef struct (\w+) \{.*?\} \w+;", r"typedef struct \1 \1;", code, flags=re.DOTALL)
    for text in filter(None, map(spaced, code.split(";"))):
        if constants := re.match(r"(?:typedef )?enum ?(\w*)\{(.*?),?\}(\w*)$", text):
            found += enumerators(constants[2])
            if constants[1]:
                found.append(f"declaration {text.partition('{')[0]} {constants[3]}".rstrip())
        else:
            found.append(f"declaration {PARAMETER.sub(lambda part: part[1].rstrip(), text)}")
    return found


def options(table: str) -> tuple[set[str], list[str]]:
    """(names, prefixes and names that are retired)"""
    names = re.findall(r'^(?:OPTION|CHOICE|PER_CLASS|TEXT)\(\w+, "(\w+)"', table, re.MULTILINE)
    return set(names), re.findall(r'^RETIRED\("(\w+)"', table, re.MULTILINE)


def rows_of_tree(folder: Path, root: Path = ROOT) -> list[str]:
    found = [row for library in LIBRARIES for row in symbols(folder / library)]
    for header in HEADERS:
        lines = own_lines(root / "include", header)
        found += macros(lines) + declarations(lines)
    found += [f"option {name}" for name in sorted(options((root / "src/config/options.def").read_text())[0])]
    return list(dict.fromkeys(found))


def faults(old: list[str], new: list[str], retired: list[str]) -> list[str]:
    there = set(new)
    found = [f"gone: {row}" for row in old if row not in there and not (row.startswith("option ") and row.split()[1] in retired)]
    known = {row.split()[1] for row in old if row.startswith("field ")}
    found += [f"only {', '.join(sorted(GROWS))} may grow: {row}" for row in new if row.startswith("field ") and row not in old
              and row.split()[1] in known - GROWS]
    return found


def version_of(text: str) -> str:
    found = re.search(r"^# hakmem ([\d.]+)", text, re.MULTILINE)
    return found[1] if found else ""


def main(arguments: list[str]) -> int:
    folder, path = Path(arguments[0]), Path(arguments[1])
    new = rows_of_tree(folder)
    if arguments[2:3] == ["--update"]:
        path.write_text("\n".join([f"# hakmem {arguments[3]}: what programs may rely on (scripts/abi.sh). Written by scripts/abi.sh --update.",
                                   *new]) + "\n")
        print(f"abi.sh: {len(new)} rows of hakmem {arguments[3]}")
        return 0
    text = path.read_text()
    old = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = faults(old, new, options((ROOT / "src/config/options.def").read_text())[1])
    added = [row for row in new if row not in set(old)]
    print(*found, *(f"added: {row}" for row in added), sep="\n", end="\n" if found or added else "")
    print(f"abi.sh: {len(old)} rows of hakmem {version_of(text)}, {len(found)} faults, {len(added)} additions")
    return 1 if found or len(old) < 150 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
