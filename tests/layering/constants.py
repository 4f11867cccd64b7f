"""constants.py PROJECT: each constant of the core that is a number stands in constants.txt once, which says whether it steers what
hakmem does, and why it is there.

The core is src/ without reports, profiles, sampled guards and jemalloc's interface. How many there are is no matter: one that means two
things is worse than two."""
import re
import sys
from collections import Counter
from pathlib import Path

NOT_CORE = {"report", "profile", "guard", "je"}
REST = "else"
SECTIONS = ("returning memory", "steering", "heaps", "profiles, guards, hardened", REST)
DEFINED = re.compile(r"^\s*#\s*define\s+(\w+)\s+(.*\S)", re.MULTILINE)
NAMED = re.compile(r"^\s*(?:enum\s*\{\s*)?([A-Z][A-Z0-9_]+)\s*=\s*([^,;{]*)", re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.])\d|HAK_[KMG]IB")


def constants(text: str) -> set[str]:
    """Macros without parameters, and enumerators, whose text has a number in it."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"//.*", "", text)
    return {name for pattern in (DEFINED, NAMED) for name, value in pattern.findall(text) if NUMBER.search(value)}


def listed(text: str) -> dict[str, list[tuple[str, str]]]:
    """Of each section the constants as FILE:NAME with the reason, a line each; in the last one a line has all of a file."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            last = line.strip("[]")
            sections[last] = []
        elif line.strip() and not line.startswith("#"):
            file, *words = line.split()
            rows = [(word, "none") for word in words] if last == REST else [(words[0], " ".join(words[1:]))]
            sections[last] += [(f"{file}:{name}", reason) for name, reason in rows]
    return sections


def check(found: set[str], sections: dict[str, list[tuple[str, str]]]) -> list[str]:
    if tuple(sections) != SECTIONS:
        return [f"sections {list(sections)}, expected {list(SECTIONS)}"]
    names = Counter(name for rows in sections.values() for name, _ in rows)
    problems = [f"{name} is listed {times} times" for name, times in names.items() if times > 1]
    problems += [f"{name} is in no section of constants.txt" for name in sorted(found - set(names))]
    problems += [f"{name} is listed, and not in the sources" for name in sorted(set(names) - found)]
    return problems + [f"{name} has no reason" for rows in sections.values() for name, reason in rows if not reason]


def of_core(source: Path) -> dict[str, set[str]]:
    files = {p.relative_to(source).as_posix(): p for p in sorted(source.rglob("*")) if p.suffix in {".c", ".h"}}
    return {name: constants(path.read_text()) for name, path in files.items() if name.split("/")[0] not in NOT_CORE}


def main(project: str) -> int:
    found = of_core(Path(project) / "src")
    sections = listed(Path(__file__).with_name("constants.txt").read_text())
    problems = check({f"{file}:{name}" for file, names in found.items() for name in names}, sections)
    print("\n".join(problems) or ", ".join(f"{section}: {len(rows)}" for section, rows in sections.items()))
    return 1 if problems or len(found) < 30 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
