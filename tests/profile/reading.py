"""Readers of heap profiles, strict: whatever a line is not expected to be fails. And of the page of a running process."""
import ctypes
import json
import mmap
import os
import re
import struct
import time
from pathlib import Path

COUNTS = r"(\d+): (\d+) \[(\d+): (\d+)\]"
HEADER = struct.Struct("<8sIIIIQ")
FUTEX_WAKE, SYS_FUTEX = 1, {"x86_64": 202, "aarch64": 98}[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)


def need(condition: object, what: str) -> None:
    if not condition:
        raise ValueError(what)


def mappings(lines: list[str]) -> list[tuple[int, int, str]]:
    found = []
    for line in lines:
        m = re.fullmatch(r"([0-9a-f]+)-([0-9a-f]+) ([r-][w-][x-][ps]) [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ \d+ *(.*)", line)
        need(m, f"mapping: {line!r}")
        found.append((int(m[1], 16), int(m[2], 16), m[3]))
    return found


def addresses(text: str) -> list[int]:
    found = [int(word, 16) for word in text.split()]
    need(text == "".join(f" {pc:#x}" for pc in found), f"addresses: {text!r}")
    return found


def split(text: str) -> tuple[list[str], list[str]]:
    need(text.endswith("\n"), "cut off")
    profile, mark, maps = text.partition("\nMAPPED_LIBRARIES:\n")
    need(mark, "no mappings")
    need(mappings(maps.splitlines()), "no mappings")
    return profile.splitlines(), maps.splitlines()


def comment(line: str) -> dict:
    m = re.fullmatch(r"# of what was allocated since (\d+)(?: and until (\d+))? \(ms, Unix time\)", line)
    need(m, line)
    return {"started_ms": int(m[1]), "stopped_ms": int(m[2] or 0)}


def pprof(text: str) -> dict:
    """Totals, and a row for each stack: live count and bytes, total count and bytes, addresses."""
    lines, maps = split(text)
    m = re.fullmatch(f"heap profile: {COUNTS} @ heapprofile", lines[0])
    need(m, lines[0])
    stacks, since = [], comment(lines[1])
    for line in lines[2:]:
        s = re.fullmatch(f"{COUNTS} @((?: 0x[0-9a-f]+)*)", line)
        need(s, line)
        stacks.append((*map(int, s.groups()[:4]), addresses(s[5])))
    return {"totals": tuple(map(int, m.groups())), "stacks": stacks, "maps": maps} | since


def jemalloc(text: str) -> dict:
    lines, maps = split(text)
    m = re.fullmatch(r"heap_v2/(\d+)", lines[0])
    need(m, lines[0])
    rows, since = [], comment(lines.pop(2))
    for at, counts in zip([" ", *lines[2::2]], lines[1::2], strict=True):
        c = re.fullmatch(f"  t\\*: {COUNTS}", counts)
        need(c, counts)
        need(at == " " or at.startswith("@ "), at)
        rows.append((*map(int, c.groups()), addresses(at[1:]) if at != " " else []))
    return {"rate": int(m[1]), "totals": rows[0][:4], "stacks": rows[1:], "maps": maps} | since


def as_json(text: str) -> dict:
    d = json.loads(text)
    need(d["hakmem_heap_profile"] == 1 and text.endswith("}\n"), "not a profile")
    mappings(d["maps"])
    for stack in d["stacks"]:
        need(set(stack) == {"pcs", "live", "total", "peak", "pinned", "age_ms", "freed"}, str(stack))
        need(len(stack["freed"]) == len(d["lifetime_bounds_ms"]) + 1, "lifetimes")
    return d


READERS = [pprof, jemalloc, as_json]


def totals_of_stacks(d: dict, name: str) -> list[int]:
    return [sum(column) for column in zip(*(s[name] for s in d["stacks"]), strict=True)]


# --- the page ---


def page_path(pid: int) -> str | None:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(link) == "/memfd:hakmem-profile (deleted)":
                return str(link)
        except FileNotFoundError:
            pass
    return None


def ask(pid: int, patience_s: float = 20) -> dict:
    """The answer of a process to a question that begins now."""
    with open(page_path(pid), "rb") as file:
        page = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    # ctypes takes addresses of writable buffers only.
    address = ctypes.addressof(ctypes.py_object(page))  # kept so that the mapping stays
    base = _address_of(page)
    before, until = HEADER.unpack_from(page)[2], time.monotonic() + patience_s
    while True:
        libc.syscall(SYS_FUTEX, ctypes.c_void_p(base + 12), FUTEX_WAKE, 1, None, None, 0)
        magic, owner, sequence, error, _, length = HEADER.unpack_from(page)
        need(magic == b"hakmemP1" and owner == pid, f"{magic!r} of {owner}")
        if sequence != before and sequence % 2 == 0:
            text = page[4096:4096 + length]
            if HEADER.unpack_from(page)[2] == sequence:
                need(error == 0, os.strerror(error))
                return as_json(text.decode())
        if time.monotonic() > until:
            raise TimeoutError(f"no answer of {pid}, {address:#x}")
        time.sleep(0.01)


def _address_of(page: mmap.mmap) -> int:
    class Buffer(ctypes.Structure):
        _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("rest", ctypes.c_char * 256)]

    buffer = Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(page), ctypes.byref(buffer), 0)
    return buffer.buf
