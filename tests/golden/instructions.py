"""instructions.py PROGRAM GOLDEN [--record]: instructions of one malloc, one free and one pair in a loop, counted by
callgrind and compared with the golden file. Differences of two iteration counts leave start and warm-up out.

To record new values: run with --record, and say in the commit why they changed."""
import json
import re
import shutil
import subprocess
import sys
import tempfile

BOUNDS = {"malloc": 17, "free": 18, "pair": 51}
# Sizes that the fast path hands to short ways behind it: whole spans, which arenas keep, and extents, on quick lists; of
# the largest every other request takes the long way.
PAIRS = {32_769: 320, 262_145: 355, 16_777_217: 475}
# A slow path that the clock asks for in one run of a pair is some thousand instructions over all calls; one instruction
# more on the fast path is one in each. Of the short ways behind it the clock is a part.
HALF, SHORT_WAYS = 0.5, 0.01
SIZES = [1, 16, 100, 1024, 5000, 32768, 65536, 200000, 300000, 1048576, 4194304, 30000000]
FEW, MANY = 10_000, 30_000


def self_costs(text: str, objects: str) -> tuple[dict[str, int], int]:
    """Costs of each function of the object without its callees, and the program's total, from a callgrind file."""
    names: dict[tuple[str, str], str] = {}
    costs: dict[str, int] = {}
    total = 0
    current_object = function = ""
    inclusive_follows = False
    for line in text.splitlines():
        entry = re.match(r"(c?(?:ob|fn|fi|fl|fe))=\((\d+)\)(?: (.*))?$", line)
        if entry:
            kind = "fn" if entry.group(1).endswith("fn") else "ob" if entry.group(1).endswith("ob") else "file"
            if entry.group(3):
                names[kind, entry.group(2)] = entry.group(3)
            name = names[kind, entry.group(2)]
            if entry.group(1) == "ob":
                current_object = name
            elif entry.group(1) == "fn":
                function = name
        elif line.startswith("calls="):
            inclusive_follows = True
        elif re.match(r"[+\-*\d]", line):
            if not inclusive_follows:
                cost = int(line.split()[1])
                total += cost
                if objects in current_object:
                    costs[function] = costs.get(function, 0) + cost
            inclusive_follows = False
    return costs, total


def count(program: str, size: int, times: int) -> tuple[int, int, int]:
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(
            ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out.name}", program, str(size), str(times)],
            check=True,
            timeout=60,
        )
        with open(out.name) as f:
            costs, total = self_costs(f.read(), "libhakmem.so")
    return costs["malloc"], costs["free"], total


def per_call(few: tuple[int, ...], many: tuple[int, ...]) -> dict[str, float]:
    return dict(zip(BOUNDS, (round((b - a) / (MANY - FEW), 2) for a, b in zip(few, many))))


def measure(program: str, golden: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Where one run is not what was recorded, the least of two: one in which the clock asks for something else on a slow path counts
    that too."""
    result = {}
    for size in SIZES:
        few, many = count(program, size, FEW), count(program, size, MANY)
        if problems({str(size): per_call(few, many)}, {str(size): golden.get(str(size), {})}):
            few, many = (tuple(map(min, zip(first, count(program, size, n)))) for first, n in ((few, FEW), (many, MANY)))
        result[str(size)] = per_call(few, many)
    return result


def differ(golden: float, measured: float) -> bool:
    slack = SHORT_WAYS * golden if golden > BOUNDS["pair"] else 0
    return abs(golden - measured) >= max(HALF, slack)


def problems(measured: dict, golden: dict) -> list[str]:
    found = []
    for size, values in measured.items():
        for what, value in values.items():
            most = next((PAIRS[least] for least in reversed(PAIRS) if int(size) >= least and what == "pair"), BOUNDS[what])
            if value > most:
                found.append(f"{what} of {size} bytes: {value} instructions, at most {most} allowed")
    changed = [
        size
        for size in golden.keys() | measured.keys()
        for what in BOUNDS
        if differ(golden.get(size, {}).get(what, 0), measured.get(size, {}).get(what, 0))
    ]
    if changed:
        found.append(f"recorded: {json.dumps(golden)}\nmeasured: {json.dumps(measured)}")
    return found


if __name__ == "__main__":
    if shutil.which("valgrind") is None:
        print("valgrind is not installed")
        sys.exit(77)
    record = "--record" in sys.argv
    with open(sys.argv[2]) as f:
        golden = json.load(f)
    measured = measure(sys.argv[1], {} if record else golden)
    if record:
        with open(sys.argv[2], "w") as f:
            json.dump(measured, f, indent=2)
            f.write("\n")
        sys.exit(0)
    sys.exit("\n".join(problems(measured, golden)) or 0)
