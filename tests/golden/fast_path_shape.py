"""fast_path_shape.py LIBRARY: the bodies of malloc, free and kin contain no call, and read nothing but what the fast
path is made of: no option, no counter."""
import re
import subprocess
import sys

# Entry points whose whole body is the fast path with a jump to the slow one.
ENTRIES = ["malloc", "free", "hakmem_malloc", "hakmem_free", "cfree", "__libc_malloc", "__libc_free",
           "_ZdlPv", "_ZdaPv", "_ZdlPvm", "_ZdaPvm"]
# A failed attempt of these raises an exception, so their slow half is a call; the fast one, up to the first return, is not.
UP_TO_RETURN = ["_Znwm", "_Znam"]
# The GOT holds the offset of the thread cache in thread-local memory.
DATA_ALLOWED = {"hak_code_of_granules", "hak_main_base", "hak_main_limit", "_GLOBAL_OFFSET_TABLE_", "_DYNAMIC"}


def disassemble(library: str) -> dict[str, list[str]]:
    text = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", library], check=True, capture_output=True, text=True
    ).stdout
    bodies: dict[str, list[str]] = {}
    name = None
    for line in text.splitlines():
        head = re.match(r"[0-9a-f]+ <(.+)>:$", line)
        if head:
            name = head.group(1)
            bodies[name] = []
        elif name is not None and "\t" in line:
            bodies[name].append(line.split("\t", 1)[1])
    return bodies


def problems_of(name: str, body: list[str]) -> list[str]:
    found = []
    for instruction in body:
        if instruction.startswith("call"):
            found.append(f"{name}: a call: {instruction}")
        reference = re.search(r"\(%rip\).*# [0-9a-f]+ <([^>+@]+)", instruction)
        if reference and reference.group(1) not in DATA_ALLOWED:
            found.append(f"{name}: reads {reference.group(1)}: {instruction}")
    return found


def fast_half(body: list[str]) -> list[str]:
    returns = [i for i, instruction in enumerate(body) if instruction.startswith("ret")]
    return body[: returns[0] + 1] if returns else body


def check(bodies: dict[str, list[str]]) -> list[str]:
    problems = []
    # Functions with the same body may share one address, and then one label in the disassembly.
    for name in ENTRIES:
        problems += problems_of(name, bodies.get(name, []))
    for name in UP_TO_RETURN:
        problems += problems_of(name, fast_half(bodies.get(name, [])))
    for function in ("malloc", "free"):
        if not any(bodies.get(n) for n in (function, f"hakmem_{function}", f"__libc_{function}")):
            problems.append(f"no body of {function} found")
    return problems


if __name__ == "__main__":
    sys.exit("\n".join(check(disassemble(sys.argv[1]))) or 0)
