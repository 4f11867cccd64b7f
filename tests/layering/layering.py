"""layering.py PROJECT: data flows one way through src/. A file includes headers of its own box or of boxes before it in
the order below; no file is longer than 600 lines; platform conditionals stay in the boxes that face the platform.

layering.py --objects OBJECT…: no object file uses a symbol that an object of a higher box defines, whatever its source
declares for itself, and no files use each other's in a circle. An object's path names its source below src/."""
import re
import subprocess
import sys
from pathlib import Path

BOXES = [
    "base", "os", "config", "misuse", "region", "pool", "slab", "large", "arena", "tcache", "heap", "reclaim", "profile", "guard",
    "report", "api", "override", "je",
]
PUBLIC_HEADERS = {"hakmem/heap.h", "hakmem/hakmem.h", "hakmem/hakmem.hpp", "hakmem/stats.h"}
# Exceptions to the order, as (including file, header). There is none, and a new one needs a decision record.
ALLOWED: set[tuple[str, str]] = set()
LINES_MAX = 600
PAIRS_MAX = 50 # of a box and another one that it includes headers of
PLATFORM_BOXES = {"base", "os", "override"}
# Constants of the build and of the language, which say nothing about the platform.
BUILD_CONSTANTS = {"HAK_CHECKS", "HAK_WEAK_CXX_RUNTIME", "HAK_SCHEDULE_POINTS", "__cplusplus", "defined"}


def includes(text: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE)


def conditionals(text: str) -> list[str]:
    """Conditions of #if, #ifdef and #elif; not #ifndef of what the next line defines, as an include guard is."""
    text = re.sub(r"^#ifndef (\w+)\n#define \1\b", "", text, flags=re.MULTILINE)
    return re.findall(r"^\s*#\s*(?:el)?if(?:n?def)?\s+(.*)$", text, re.MULTILINE)


def check_file(name: str, text: str) -> list[str]:
    """`name` is the path below src/."""
    problems = []
    box = name.split("/")[0]
    if box not in BOXES:
        return [f"{name}: {box}/ is not a box of the order"]
    for header in includes(text):
        if header in PUBLIC_HEADERS or (name, header) in ALLOWED:
            continue
        target = header.split("/")[0]
        if target not in BOXES or "/" not in header:
            problems.append(f'{name}: "{header}" does not name a box')
        elif BOXES.index(target) > BOXES.index(box):
            problems.append(f'{name}: {box}/ may not include "{header}"')
    lines = text.count("\n")
    if lines > LINES_MAX:
        problems.append(f"{name}: {lines} lines, at most {LINES_MAX}")
    if box not in PLATFORM_BOXES:
        for condition in conditionals(text):
            names = set(re.findall(r"[A-Za-z_]\w*", condition))
            if not names <= BUILD_CONSTANTS:
                problems.append(f"{name}: platform conditional outside of {', '.join(sorted(PLATFORM_BOXES))}: {condition}")
    return problems


def pairs(files: dict[str, str]) -> set[tuple[str, str]]:
    found = {(name.split("/")[0], header.split("/")[0]) for name, text in files.items() for header in includes(text) if header not in PUBLIC_HEADERS}
    return {(box, other) for box, other in found if box != other}


def check(source: Path) -> list[str]:
    problems = []
    files = [p for p in sorted(source.rglob("*")) if p.suffix in {".c", ".h", ".cc", ".hpp", ".def"}]
    if len(files) < 30:
        problems.append(f"only {len(files)} files found below {source.name}/")
    for path in files:
        problems += check_file(path.relative_to(source).as_posix(), path.read_text())
    if len(found := pairs({path.relative_to(source).as_posix(): path.read_text() for path in files})) > PAIRS_MAX:
        problems.append(f"{len(found)} pairs of a box and another one that it includes, at most {PAIRS_MAX}: {sorted(found)}")
    return problems


OBJECTS_LEAST = 30


def symbols(nm_text: str) -> tuple[set[str], set[str]]:
    """Global names that an object defines, and names that it uses, from the output of nm."""
    defined, used = set(), set()
    for line in nm_text.splitlines():
        match = re.fullmatch(r"(?:[0-9a-f]+)?\s*([A-Za-z])\s+(\S+)", line.strip())
        if match is None:
            continue
        kind, name = match.groups()
        if kind in "Uwv":
            used.add(name)
        elif kind.isupper():
            defined.add(name)
    return defined, used


def check_symbols(objects: dict[str, tuple[set[str], set[str]]]) -> list[str]:
    """`objects`: what each file below src/ defines and uses."""
    home = {name: file for file, (defined, _) in objects.items() for name in defined}
    problems = []
    for file, (_, used) in sorted(objects.items()):
        box = file.split("/")[0]
        for name in sorted(used & home.keys()):
            other = home[name].split("/")[0]
            if BOXES.index(other) > BOXES.index(box):
                problems.append(f"{file}: {box}/ uses {name} of {home[name]}")
    return problems


def circles(uses: dict[str, set[str]]) -> list[list[str]]:
    """Groups of files of which each leads to all others of its group, by what `uses` says of each."""
    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            for file in uses.get(ahead.pop(), set()) - seen:
                seen.add(file)
                ahead.append(file)
        return seen
    reach = {file: reached(file) for file in uses}
    groups = {tuple(sorted(other for other in reach[file] if file in reach.get(other, set()))) for file in uses if file in reach[file]}
    return [list(group) for group in sorted(groups)]


def check_circles(objects: dict[str, tuple[set[str], set[str]]]) -> list[str]:
    home = {name: file for file, (defined, _) in objects.items() for name in defined}
    uses = {file: {home[name] for name in used & home.keys()} - {file} for file, (_, used) in objects.items()}
    problems = []
    for group in circles(uses):
        problems.append("a circle of files: " + " ".join(group))
        for file in group:
            problems += [f"  {file} uses {name} of {home[name]}" for name in sorted(objects[file][1] & home.keys()) if home[name] in group and home[name] != file]
    return problems


def check_objects(paths: list[str]) -> list[str]:
    objects = {}
    # One run for all: `path:` begins what nm has to say of each.
    text = subprocess.run(["nm", *paths], check=True, capture_output=True, text=True).stdout
    parts = re.split(r"^(\S+):\n", "\n" + text, flags=re.MULTILINE)[1:] if len(paths) > 1 else [*paths, text]
    for path, said in zip(parts[::2], parts[1::2]):
        file = re.search(r"/src/(\w+/[\w.]+)\.o$", path)
        if file is None:
            return [f"{path}: no object of a file below src/"]
        objects[file.group(1)] = symbols(said)
    if len(objects) != len(paths) or len(objects) < OBJECTS_LEAST:
        return [f"only {len(objects)} objects"]
    return check_symbols(objects) + check_circles(objects)


if __name__ == "__main__":
    found = check_objects(sys.argv[2:]) if sys.argv[1] == "--objects" else check(Path(sys.argv[1]) / "src")
    sys.exit("\n".join(found) or 0)
