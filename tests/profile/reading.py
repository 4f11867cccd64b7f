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
        need(set(stack) - {"label", "heap"} == {"pcs", "live", "total", "peak", "pinned", "age_ms", "freed"}, str(stack))
        need(len(stack["freed"]) == len(d["lifetime_bounds_ms"]) + 1, "lifetimes")
    return d


def fields(data: bytes) -> list[tuple[int, object]]:
    """Of a message of protocol buffers: numbers, and bytes."""
    found, at = [], 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 0x80:
                return value

    while at < len(data):
        key = number()
        need(key % 8 in (0, 2), f"wire type {key % 8}")
        value = number()
        if key % 8 == 2:
            need(at + value <= len(data), "cut off")
            value, at = data[at:at + value], at + value
        found.append((key // 8, value))
    return found


def packed(data: bytes) -> list[int]:
    found, value, shift = [], 0, 0
    for byte in data:
        value, shift = value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            found.append(value)
            value = shift = 0
    need(shift == 0, "cut off")
    return found


def proto(data: bytes) -> dict:
    """profile.proto: sample types, samples as rows of their values with addresses and labels, mappings as (start, end, path, build id)."""
    whole = fields(data)
    strings = [value.decode() for field, value in whole if field == 6]
    need(strings[0] == "" and len(set(field for field, _ in whole) - set(range(1, 15))) == 0, "fields")
    parts = {number: [fields(value) for field, value in whole if field == number] for number in (1, 2, 3, 4, 11)}
    of = {field: value for field, value in whole if field in (9, 10, 12, 13, 14)}
    types = [(strings[dict(t)[1]], strings[dict(t)[2]]) for t in parts[1]]
    maps = {m[1]: (m[2], m[3], strings[m[5]], strings[m.get(6, 0)], m.get(4, 0)) for m in map(dict, parts[3])}
    places = {p[1]: p for p in map(dict, parts[4])}
    need(len(places) == len(parts[4]) and len(maps) == len(parts[3]) and 0 not in places and 0 not in maps, "numbers are unique")
    for place in places.values():
        need(not place[2] or maps[place[2]][0] <= place[3] < maps[place[2]][1], "mappings")
    samples = []
    for sample in parts[2]:
        row = dict(field for field in sample if field[0] != 3)
        values = packed(row[2])
        need(len(values) == len(types), "values")
        labels = {}
        for label in (dict(fields(value)) for field, value in sample if field == 3):
            labels[strings[label[1]]] = strings[label[2]] if 2 in label else label[3]
        samples.append({"values": values, "pcs": [places[i][3] for i in packed(row[1])], "labels": labels})
    return {"types": types, "samples": samples, "maps": list(maps.values()), "default": strings[of[14]], "period": of[12],
            "taken_ns": of[9], "duration_ns": of[10], "comment": strings[of[13]]}


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
