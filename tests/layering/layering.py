"""layering.py PROJECT: who uses whom in src/, against edges.txt beside this file: a file includes headers of its own folder or of those that the
folder's line names; names no variable of another folder but those that the list says; and no files lead to each other in a circle, where a
file is a source with its header. Platform conditionals stay in the folders that face the platform.

layering.py --objects OBJECT…: the same edges and circles by the symbols of object files, whatever a source declares for itself. An object's
path names its source below src/."""
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

PUBLIC_HEADERS = {"hakmem/heap.h", "hakmem/hakmem.h", "hakmem/hakmem.hpp", "hakmem/stats.h"}
PLATFORM_FOLDERS = {"base", "os", "override"}
# Constants of the build and of the language, which say nothing about the platform.
BUILD_CONSTANTS = {"HAK_CHECKS", "HAK_WEAK_CXX_RUNTIME", "HAK_SCHEDULE_POINTS", "__cplusplus", "defined"}
FILES_LEAST = 30
COMMENTS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
EXTERN = re.compile(r'^\s*extern\s+(?!"C")[^;()]*?(\w+)(?:\[[^\]]*\])?(?:\s+HAK_\w+(?:\([^)]*\))?)*\s*;', re.MULTILINE)
MEMBERS = r"(?:\.\w+|->\w+|\[[^\]]*\])*"
CALLS = r"hak_(?:store|add|sub|exchange|cas|or|and)\w*|__atomic_(?!load)\w+"


def folder(file: str) -> str:
    return file.split("/")[0]


class Rules:
    """What edges.txt allows, and what of it something has needed."""

    def __init__(self, text: str) -> None:
        self.edges: dict[str, set[str]] = {}
        self.variables: dict[str, dict[str, bool]] = {}
        self.used: set[tuple[str, str]] = set()
        section = ""
        for line in text.splitlines():
            if line.startswith("["):
                section = line.strip("[]")
            elif line and not line.startswith("#") and section == "edges":
                name, _, others = line.partition(":")
                self.edges[name] = set(others.split())
            elif line and not line.startswith("#"):
                name, *words = line.split()
                self.variables[name] = {word.removesuffix("=writes"): word.endswith("=writes") for word in words}

    def allow(self, one: str, other: str) -> bool:
        self.used.add((one, other))
        return one == other or (one in self.edges and (other == "base" or other in self.edges[one]))

    def allow_variable(self, name: str, user: str, writes: bool) -> bool:
        self.used.add((name, user))
        listed = self.variables.get(name, {})
        return user in listed and (listed[user] or not writes)

    def unused(self) -> list[str]:
        edges = [f"{one}/ may use {other}/, and does not" for one, others in self.edges.items() for other in sorted(others)
                 if (one, other) not in self.used]
        return edges + [f"{user}/ may name {name}, and does not" for name, users in self.variables.items() for user in sorted(users)
                        if (name, user) not in self.used]


def includes(text: str) -> list[str]:
    return [name for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE) if name not in PUBLIC_HEADERS]


def conditionals(text: str) -> list[str]:
    """Conditions of #if, #ifdef and #elif; not #ifndef of what the next line defines, as an include guard is."""
    text = re.sub(r"^#ifndef (\w+)\n#define \1\b", "", text, flags=re.MULTILINE)
    return re.findall(r"^\s*#\s*(?:el)?if(?:n?def)?\s+(.*)$", text, re.MULTILINE)


def check_file(name: str, text: str, rules: Rules) -> list[str]:
    """`name` is the path below src/."""
    problems = []
    for header in includes(text):
        if "/" not in header:
            problems.append(f'{name}: "{header}" does not name a folder')
        elif not rules.allow(folder(name), folder(header)):
            problems.append(f'{name}: {folder(name)}/ may not include "{header}"')
    if folder(name) not in PLATFORM_FOLDERS:
        for condition in conditionals(text):
            if not set(re.findall(r"[A-Za-z_]\w*", condition)) <= BUILD_CONSTANTS:
                problems.append(f"{name}: platform conditional outside of {', '.join(sorted(PLATFORM_FOLDERS))}: {condition}")
    return problems


def writes(text: str, name: str) -> bool:
    assigned = rf"(?<![\w.>&*]){name}\b{MEMBERS}\s*(?:=(?!=)|[-+|&]=|\+\+|--)"
    return re.search(rf"{assigned}|(?:{CALLS})\(\s*&\s*{name}\b|(?:\+\+|--){name}\b", text) is not None


def check_variables(files: dict[str, str], rules: Rules) -> list[str]:
    """Those that a header declares; constants may be read by all."""
    bare = {name: COMMENTS.sub("", text) for name, text in files.items()}
    home = {}
    for name, text in bare.items():
        for found in EXTERN.finditer(text if name.endswith(".h") else ""):
            if not re.search(r"\bconst\s+(?:\w+\s+)*$|\bconst\s+HAK_\w+\s+\w+\s*$|^\s*extern\s+const\b[^*]*$", found[0][: found.start(1) - found.start()]):
                home[found[1]] = folder(name)
    problems = []
    for name, text in sorted(bare.items()):
        for variable in sorted(set(re.findall(r"(?<![\w.>])hak_\w+", text)) & home.keys()):
            changes = writes(text, variable)
            if home[variable] != folder(name) and not rules.allow_variable(variable, folder(name), changes):
                problems.append(f"{name}: {'changes' if changes else 'reads'} {variable} of {home[variable]}/")
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


def unit(name: str) -> str:
    """A source with its header is one file here; a table is a file of its own."""
    return re.sub(r"\.(c|h|cc|hpp)$", "", name)


def check_headers(files: dict[str, str]) -> list[str]:
    uses: dict[str, set[str]] = defaultdict(set)
    for name, text in files.items():
        uses[unit(name)] |= {unit(header) for header in includes(text)} - {unit(name)}
    return ["a circle of files: " + " ".join(group) for group in circles(uses)]


def check(files: dict[str, str], rules: Rules) -> list[str]:
    problems = [] if len(files) >= FILES_LEAST else [f"only {len(files)} files found"]
    for name, text in files.items():
        problems += check_file(name, text, rules)
    return problems + check_variables(files, rules) + check_headers(files) + rules.unused()


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


Objects = dict[str, tuple[set[str], set[str]]]


def check_symbols(objects: Objects, rules: Rules) -> list[str]:
    """`objects`: what each file below src/ defines and uses. By inline functions of the folders that it may use, a file uses theirs, too."""
    home = {name: file for file, (defined, _) in objects.items() for name in defined}
    problems = []
    for file, (_, used) in sorted(objects.items()):
        near, far = {folder(file)}, {folder(file)}
        while near:
            near = {other for one in near for other in rules.edges.get(one, set())} - far
            far |= near
        problems += [f"{file}: {folder(file)}/ uses {name} of {home[name]}" for name in sorted(used & home.keys())
                     if folder(home[name]) not in far | {"base"}]
    return problems


def check_circles(objects: Objects) -> list[str]:
    home = {name: file for file, (defined, _) in objects.items() for name in defined}
    uses = {file: {home[name] for name in used & home.keys()} - {file} for file, (_, used) in objects.items()}
    problems = []
    for group in circles(uses):
        problems.append("a circle of files: " + " ".join(group))
        for file in group:
            problems += [f"  {file} uses {name} of {home[name]}" for name in sorted(objects[file][1] & home.keys()) if home[name] in group and home[name] != file]
    return problems


def check_objects(paths: list[str], rules: Rules) -> list[str]:
    objects: Objects = {}
    # One run for all: `path:` begins what nm has to say of each.
    text = subprocess.run(["nm", *paths], check=True, capture_output=True, text=True).stdout
    parts = re.split(r"^(\S+):\n", "\n" + text, flags=re.MULTILINE)[1:] if len(paths) > 1 else [*paths, text]
    for path, said in zip(parts[::2], parts[1::2]):
        file = re.search(r"/src/(\w+/[\w.]+)\.o$", path)
        if file is None:
            return [f"{path}: no object of a file below src/"]
        objects[file.group(1)] = symbols(said)
    if len(objects) != len(paths) or len(objects) < FILES_LEAST:
        return [f"only {len(objects)} objects"]
    return check_symbols(objects, rules) + check_circles(objects)


def sources(source: Path) -> dict[str, str]:
    return {p.relative_to(source).as_posix(): p.read_text() for p in sorted(source.rglob("*")) if p.suffix in {".c", ".h", ".cc", ".hpp", ".def"}}


if __name__ == "__main__":
    allowed = Rules(Path(__file__).with_name("edges.txt").read_text())
    found = check_objects(sys.argv[2:], allowed) if sys.argv[1] == "--objects" else check(sources(Path(sys.argv[1]) / "src"), allowed)
    print("\n".join(found) or "no file uses what it may not")
    sys.exit(1 if found else 0)
