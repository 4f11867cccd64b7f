"""exports.py LIBRARY MAP HEADERS: the library exports exactly the names that the map lists, and of its own ones those that
the headers in the folder declare."""
import re
import subprocess
import sys
from pathlib import Path


def listed(map_text: str) -> set[str]:
    without_comments = re.sub(r"#.*", "", map_text)
    section = re.search(r"global:(.*?)local:", without_comments, re.DOTALL)
    return set(re.findall(r"[A-Za-z_]\w*(?=\s*;)", section.group(1))) if section else set()


def exported(library: str) -> set[str]:
    text = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout
    return {line.split()[-1].split("@")[0] for line in text.splitlines() if line}


def declared(header: str) -> set[str]:
    """Functions of ours: what stands before a parenthesis at the beginning of a declaration, or behind its type."""
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    code = re.sub(r"^[ \t]*#(?:.*\\\n)*.*$", "", code, flags=re.MULTILINE)
    return set(re.findall(r"^[a-z][\w ]*?[ *](hakmem_\w+)\(", code, re.MULTILINE))


def undeclared(names: set[str], found: set[str]) -> list[str]:
    own = {n for n in names if n.startswith("hakmem_")}
    return [f"declared but not listed: {n}" for n in sorted(found - own)] + [
        f"listed but in no header: {n}" for n in sorted(own - found)
    ]


def differences(wanted: set[str], found: set[str]) -> list[str]:
    return [f"listed but not exported: {n}" for n in sorted(wanted - found)] + [
        f"exported but not listed: {n}" for n in sorted(found - wanted)
    ]


if __name__ == "__main__":
    with open(sys.argv[2]) as f:
        wanted = listed(f.read())
    problems = differences(wanted, exported(sys.argv[1]))
    problems += undeclared(wanted, set().union(*(declared(h.read_text()) for h in Path(sys.argv[3]).glob("*.h"))))
    if len(wanted) < 60:
        problems.append(f"only {len(wanted)} names found in the map")
    sys.exit("\n".join(problems) or 0)
