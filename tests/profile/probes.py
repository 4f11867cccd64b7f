"""The probes hakmem:sample_alloc(ptr, size, weight) and hakmem:sample_free(ptr), and the same as OpenTelemetry names them,
otel_memory:alloc and otel_memory:free, as tracers see them.

  probes.py notes FILE…                 readelf: names, arguments in the registers of a function's, semaphores that lie where the notes say
  probes.py gdb PROGRAM [LIBRARY]       gdb listens to probed.c: pointers, sizes and weights, the semaphore while it listens, and
                                        that nothing fires where nobody does
  probes.py kernel FILE PROGRAM [ARGUMENT…]  Linux listens (what perf and bpftrace use), with the semaphore and without

FILE has the probes; LIBRARY is preloaded. Ends with 77 where the machine has no such listener."""
import ctypes
import math
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ARGUMENTS = {"hakmem:sample_alloc": 3, "hakmem:sample_free": 1, "otel_memory:alloc": 3, "otel_memory:free": 1}
REGISTERS = {"x86_64": ["8@%rdi", "8@%rsi", "8@%rdx"], "aarch64": ["8@x0", "8@x1", "8@x2"]}[os.uname().machine]
BLOCKS, BYTES, GRANULE = 64, 8192, 16
# The mean distance is one block: a block is drawn with the probability 1 - 1/e, and 64 are all missed once in 10^27 runs.
OPTIONS = {"HAKMEM_HEAP_PROFILE": "1", "HAKMEM_HEAP_PROFILE_RATE": str(BYTES), "HAKMEM_HEAP_PROFILE_MOST": "0"}
SKIPPED = 77


class Probe(NamedTuple):
    name: str
    location: int
    semaphore: int
    arguments: list[str]


def skip(reason: str) -> None:
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def readelf(*arguments: str) -> str:
    return subprocess.run(["readelf", "-W", *arguments], check=True, capture_output=True, text=True).stdout


def probes_of(file: str) -> list[Probe]:
    found = re.findall(
        r"Provider: (hakmem|otel_memory)\s+Name: (\w+)\s+Location: (\S+), Base: \S+, Semaphore: (\S+)\s+Arguments: (.*)", readelf("-n", file)
    )
    return [Probe(f"{provider}:{name}", int(at, 16), int(semaphore, 16), arguments.split())
            for provider, name, at, semaphore, arguments in found]


def file_offset(file: str, address: int) -> int:
    for at, virtual, size in re.findall(r"LOAD\s+(0x\w+) (0x\w+) 0x\w+ (0x\w+)", readelf("-l", file)):
        if int(virtual, 16) <= address < int(virtual, 16) + int(size, 16):
            return address - int(virtual, 16) + int(at, 16)
    raise SystemExit(f"{file}: {address:#x} is not in the file")


def check_notes(file: str) -> None:
    probes = probes_of(file)
    assert {p.name for p in probes} == set(ARGUMENTS), (file, probes)
    assert re.search(r"^ *hakmem +0x0*8\b", readelf("-n", file), re.MULTILINE), f"{file}: no note that says where it can be asked"
    section = re.search(r"\.probes\s+PROGBITS\s+(\w+) \w+ (\w+) \w+\s+WA ", readelf("-S", file))
    assert section is not None, f"{file}: no writable .probes"
    start, size = (int(x, 16) for x in section.groups())
    found = re.findall(r": (\w+)\s+2 OBJECT .* (hakmem|otel_memory)_(\w+)_semaphore", readelf("-s", file))
    symbols = {f"{provider}:{name}": int(at, 16) for at, provider, name in found}
    assert set(symbols) == set(ARGUMENTS) and len(set(symbols.values())) == len(ARGUMENTS), (file, symbols)
    for p in probes:
        assert p.semaphore == symbols[p.name] and start <= p.semaphore < start + size, (file, p, symbols)
        assert p.arguments == REGISTERS[: ARGUMENTS[p.name]], (file, p)


def gdb(program: str, library: str | None, commands: list[str]) -> str:
    settings = ["set startup-with-shell off", "set breakpoint always-inserted on"]
    settings += [f"set environment {name} {value}" for name, value in OPTIONS.items()]
    if library is not None:
        settings.append(f"set environment LD_PRELOAD {library}")
    script = [part for line in [*settings, "break main", "run", *commands, "continue"] for part in ("-ex", line)]
    try:
        done = subprocess.run(
            ["gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", *script, program],
            check=False, capture_output=True, text=True, timeout=100, env={k: v for k, v in os.environ.items() if not k.startswith("HAKMEM_")},
        )  # fmt: skip
    except FileNotFoundError:
        skip("no gdb")
    text = done.stdout + done.stderr
    if "ptrace" in text and "permitted" in text:
        skip("gdb may not trace here")
    assert text.count("block 0x") == BLOCKS, text
    return text


def listen(probe: str, form: str, values: str) -> list[str]:
    """Commands are lines of their own, which -ex has none of."""
    lines = rf'silent\nprintf "{form}\\n", {values}, {probe.replace(":", "_")}_semaphore\ncontinue'
    return [f"break -probe-stap {probe}", f"python gdb.breakpoints()[-1].commands = '{lines}'"]


def check_gdb(program: str, library: str | None) -> None:
    for provider, alloc, free in (("hakmem", "sample_alloc", "sample_free"), ("otel_memory", "alloc", "free")):
        text = gdb(program, library, [
            *listen(f"{provider}:{alloc}", "alloc %p %lu %lu raised %d", "$_probe_arg0, $_probe_arg1, $_probe_arg2"),
            *listen(f"{provider}:{free}", "free %p raised %d", "$_probe_arg0"),
        ])  # fmt: skip
        check_heard(text, library)

    # The same places, without the semaphores: the arguments are not computed.
    text = gdb(program, library, [
        r"python import re; listed = gdb.execute('info probes stap', to_string=True)",
        r"python at = re.findall(r'stap +(?:hakmem|otel_memory) +\w+ +(0x\w+)', listed)",
        "python [gdb.Breakpoint(f'*{x}') for x in at]",
    ])  # fmt: skip
    numbers = range(2, 2 + len(ARGUMENTS))
    assert all(text.count(f"Breakpoint {n} at") == 1 for n in numbers), text
    assert not any(f"hit Breakpoint {n}," in text for n in numbers), text


def check_heard(text: str, library: str | None) -> None:
    # The hardened build's blocks have 8 bytes of its own. A request takes GRANULE - 1 bytes more than its size from the countdown.
    size = BYTES + 8 if library is not None and "hardened" in library else BYTES
    weight = round(size / (1 - math.exp(-(size + GRANULE - 1) / BYTES)))
    blocks = set(re.findall(r"^block (0x\w+)", text, re.MULTILINE))
    sampled = re.findall(rf"^alloc (0x\w+) {size} (\d+) raised (\d+)", text, re.MULTILINE)
    freed = re.findall(r"^free (0x\w+) raised (\d+)", text, re.MULTILINE)
    assert len(blocks) == BLOCKS and sampled, text
    assert {p for p, _, _ in sampled} <= blocks and len({p for p, _, _ in sampled}) == len(sampled), text
    assert {(w, raised) for _, w, raised in sampled} == {(str(weight), "1")}, text
    assert {p for p, _ in freed} & blocks == {p for p, _, _ in sampled}, text
    assert {raised for _, raised in freed} == {"1"}, text
    print(f"{len(sampled)} of {BLOCKS} blocks sampled")


def count_by_kernel(file: str, location: int, semaphore: int, command: list[str]) -> int:
    """How often the place is come by, of a process that runs the command."""
    try:
        kind = int(Path("/sys/bus/event_source/devices/uprobe/type").read_text())
    except OSError:
        skip("Linux has no uprobes here")
    path = ctypes.create_string_buffer(os.path.realpath(file).encode())
    # perf_event_attr: type, size, config (offset of the reference counter in its upper half), …, uprobe_path, probe_offset
    attributes = struct.pack("=IIQQQQQIIQQ", kind, 72, semaphore << 32, 0, 0, 0, 0, 0, 0, ctypes.addressof(path), location)
    attributes = attributes.ljust(72, b"\0")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.read(read_end, 1)
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.execve(command[0], command, {**os.environ, **OPTIONS})
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 298, "aarch64": 241}[os.uname().machine]
    fd = libc.syscall(ctypes.c_long(number), attributes, child, -1, -1, 0)
    error = ctypes.get_errno()
    os.write(write_end, b"x")
    _, status = os.waitpid(child, 0)
    if fd < 0:
        skip(f"perf_event_open: {os.strerror(error)}")
    assert status == 0, status
    counted = struct.unpack("=Q", os.read(fd, 8))[0]
    os.close(fd)  # Linux refuses one place with two semaphores at a time
    return counted


def check_kernel(file: str, command: list[str]) -> None:
    for p in probes_of(file):
        location, semaphore = file_offset(file, p.location), file_offset(file, p.semaphore)
        listened = count_by_kernel(file, location, semaphore, command)
        unheard = count_by_kernel(file, location, 0, command)
        print(f"{p.name}: {listened} with the semaphore, {unheard} without")
        assert listened > 0 and unheard == 0


if __name__ == "__main__":
    mode, *rest = sys.argv[1:]
    if mode == "notes":
        for name in rest:
            check_notes(name)
    elif mode == "gdb":
        check_gdb(rest[0], rest[1] if len(rest) > 1 else None)
    else:
        check_kernel(rest[0], rest[1:])
