"""constant_code.py LIBRARY: no pointer to code, nor to a table of such pointers, has its first value in memory that stays
writable: the loader's relocations there lead neither into the code nor into what it makes read-only afterwards."""
import re
import subprocess
import sys


def readelf(option: str, library: str) -> str:
    return subprocess.run(["readelf", option, library], check=True, capture_output=True, text=True).stdout


def ranges(segments: str) -> dict[str, range]:
    """Addresses of the code and of what is read-only once it is relocated."""
    found = {}
    for line in segments.splitlines():
        m = re.match(r"\s+(LOAD|GNU_RELRO)\s+0x\w+ 0x(\w+) 0x\w+ 0x\w+ 0x(\w+) (.{3}) ", line)
        if m and (m[1] == "GNU_RELRO" or "E" in m[4]):
            start = int(m[2], 16)
            found["relro" if m[1] == "GNU_RELRO" else "code"] = range(start, start + int(m[3], 16))
    return found


def relocations(text: str) -> list[tuple[int, int]]:
    """(place, target) of those that do not name a symbol of another library."""
    return [(int(m[1], 16), int(m[2], 16)) for m in re.finditer(r"^(\w+)\s+\w+ R_\w+_RELATIVE\s+(\w+)$", text, re.MULTILINE)]


def check(segments: str, relocated: str) -> list[str]:
    where, found = ranges(segments), relocations(relocated)
    if set(where) != {"code", "relro"} or len(found) < 50:
        return [f"not understood: {sorted(where)}, {len(found)} relocations"]
    return [f"the writable pointer at {place:#x} leads to {kind} at {target:#x}"
            for place, target in found if place not in where["relro"]
            for kind in ("code", "relro") if target in where[kind]]  # fmt: skip


if __name__ == "__main__":
    sys.exit("\n".join(check(readelf("-lW", sys.argv[1]), readelf("-rW", sys.argv[1]))) or 0)
