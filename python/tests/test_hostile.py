"""What another user's process names, and what is in it, does no harm to whoever looks."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import strangers
from fake_profile import BASE, COMPILED, document, stack
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console
from strangers import as_root

from hakmem.elf_files import elf_file
from hakmem.errors import UserError
from hakmem.processes import live_figures, page_shape, stats_page
from hakmem.profiles import (
    foreign_files,
    heap_profile,
    profile_files,
    profile_html,
    profile_pprof,
    profile_view,
    symbol_worker,
)
from hakmem.profiles.heap_profile import parse
from hakmem.profiles.profile_server import ProfileCollector
from hakmem.profiles.profile_sites import compare, named
from hakmem.profiles.symbol_files import demangled
from hakmem.profiles.symbols import Symboliser

MIB = 1 << 20
C_SOURCE = """
int visible_function(int x) { return x * 3; }
int another_one(int x) { return visible_function(x) + 1; }
int main(void) { return another_one(1); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """A shared library with symbols and lines."""
    folder = tmp_path_factory.mktemp("library")
    strangers.lets_in(folder)
    (folder / "code.c").write_text(C_SOURCE)
    built = folder / "libcode.so"
    subprocess.run(["gcc", "-g", "-O0", "-shared", "-fPIC", folder / "code.c", "-o", built],
                   check=True)  # fmt: skip
    return built


def offset_of(library: Path, name: str = "visible_function") -> int:
    with elf_file(library) as elf:
        return elf.get_section_by_name(".symtab").get_symbol_by_name(name)[0]["st_value"]


def profile_of(path: str, offset: int, **more):
    """One stack in one file."""
    maps = [f"{BASE:x}-{BASE + 0x100000:x} r-xp 00000000 08:01 99 {path}"]
    return parse(
        json.dumps(document([stack([BASE + offset + 5], 5, 1)], maps=maps, **more)).encode()
    )


def function_in(path: str, offset: int, pid: int | None = None, **more) -> str:
    profile = profile_of(path, offset, **more)
    return named(profile, Symboliser(profile, pid)).sites[0].frames[-1].function


# Opening by names.


@pytest.fixture
def tree(tmp_path) -> Path:
    """A root of its own with links that lead out of it in every way."""
    root = tmp_path / "root"
    (root / "etc/deep").mkdir(parents=True)
    (root / "etc/inside").write_text("inside")
    (tmp_path / "outside").write_text("outside")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/inside").write_text("outside")
    links = {
        "absolute": "/etc/inside", "out": str(tmp_path / "outside"), "up": "../outside",
        "far": "../" * 40 + "etc/inside", "folder": "/etc", "loop": "loop",
        "proc": "/proc/self/environ",
        "etc/deep/up": "../../../../etc/inside", "chain": "absolute",
    }  # fmt: skip
    for name, target in links.items():
        (root / name).symlink_to(target)
    os.mkfifo(root / "pipe")
    return root


@pytest.fixture(params=["call", "walk"])
def way(request, monkeypatch) -> str:
    """As the kernel resolves names, and where it lacks the call."""
    if request.param == "walk":
        monkeypatch.setattr(foreign_files, "place_in", foreign_files.walked_in)
    return request.param


def read_in(root: Path, path: str) -> bytes:
    descriptor = foreign_files.open_root(None, root)
    try:
        with os.fdopen(foreign_files.open_in(descriptor, path), "rb") as file:
            return file.read(100)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    "path", ["/etc/inside", "absolute", "far", "folder/inside", "etc/deep/up", "chain",
             "/../../etc/inside", "etc/../etc/./inside"])  # fmt: skip
def test_links_stay_below_the_root(tree, way, path):
    assert read_in(tree, path) == b"inside"


@pytest.mark.parametrize(
    "path", ["out", "up", "loop", "proc", "pipe", "etc", "", "none", "etc/inside/x"]
)
def test_what_is_no_plain_file_below_the_root_is_not_opened(tree, way, path):
    with pytest.raises(OSError):
        read_in(tree, path)


@pytest.mark.parametrize(
    "path", ["/proc/self/environ", "/proc/kmsg", "/proc/self/root/etc/passwd", "/proc/self/fd/0",
             "/sys/kernel/uevent_seqnum", "/dev/zero", "/dev/tty", "/dev/null",
             "/proc/self/exe"])  # fmt: skip
def test_words_of_the_kernel_and_devices_are_not_read(way, path):
    with pytest.raises(OSError):
        read_in(Path("/"), path)


def test_descriptors_are_closed(tree, way):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in ("absolute", "chain", "up", "loop", "pipe", "none"):
        try:
            read_in(tree, path)
        except OSError:
            continue
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# A process with a root and a user of its own.

CHROOTED = """
import ctypes, os, sys, time
# Loaded before the root is another one.
prctl = ctypes.CDLL(None).prctl
os.chroot(sys.argv[1])
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
# As a program that was started by its user.
prctl(4, 1)
print("ready", flush=True)
time.sleep(600)
"""


@contextmanager
def process_in(root: Path, user: int = strangers.UID):
    words = [sys.executable, "-I", "-S", "-c", CHROOTED, str(root), str(user)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def jail(tmp_path) -> Path:
    root = tmp_path / "jail"
    (root / "tmp").mkdir(parents=True)
    (root / "srv").mkdir()
    strangers.lets_in(root)
    (root / "tmp").chmod(0o1777)
    return root


@as_root
def test_library_is_named_from_the_root_of_the_process(jail, library):
    offset = offset_of(library)
    shutil.copy(library, jail / "srv/libcode.so")
    # Absolute ones, which on this side lead to files that are there.
    (jail / "srv/out.so").symlink_to(library)
    (jail / "srv/in.so").symlink_to("/srv/libcode.so")
    with process_in(jail) as pid:
        assert function_in("/srv/libcode.so", offset, pid) == "visible_function"
        assert function_in("/srv/in.so", offset, pid) == "visible_function"
        assert function_in("/srv/out.so", offset, pid) == f"out.so+0x{offset + 4:x}"


@as_root
def test_files_that_the_user_of_the_process_cannot_read_are_not_read(jail, library):
    offset = offset_of(library)
    shutil.copy(library, jail / "srv/libcode.so")
    (jail / "srv/libcode.so").chmod(0o600)
    with process_in(jail) as pid:
        assert function_in("/srv/libcode.so", offset, pid) == f"libcode.so+0x{offset + 4:x}"


@as_root
@pytest.mark.parametrize("owner", [0, strangers.UID])
def test_profile_of_another_user_names_no_file_that_this_one_cannot_read(tmp_path, library, owner):
    offset = offset_of(library)
    private = Path(shutil.copy(library, tmp_path / "libprivate.so"))
    private.chmod(0o600)
    strangers.lets_in(tmp_path)
    maps = [f"{BASE:x}-{BASE + 0x100000:x} r-xp 00000000 08:01 99 {private}"]
    written = tmp_path / "heap.json"
    written.write_text(json.dumps(document([stack([BASE + offset + 5], 5, 1)], maps=maps)))
    os.chown(written, owner, owner)
    profile = heap_profile.read_file(written)
    name = named(profile, Symboliser(profile)).sites[0].frames[-1].function
    assert name == ("visible_function" if owner == 0 else f"libprivate.so+0x{offset + 4:x}")


@pytest.mark.parametrize(
    "path", ["pipe", "/proc/kmsg", "/proc/self/mem", "/dev/zero", "/dev/random"]
)
def test_name_of_what_never_ends_is_told_by_offset(tmp_path, path):
    os.mkfifo(tmp_path / "pipe")
    path = str(tmp_path / path)
    assert function_in(path, 0x100) == f"{Path(path).name}+0x104"


# Perf maps.


def perf_name(jail: Path, pid: int, number: int) -> str:
    profile = parse(json.dumps(document([stack([COMPILED + 0x101], 5, 1)], pid=number)).encode())
    return named(profile, Symboliser(profile, pid)).sites[0].frames[-1].function


@as_root
@pytest.mark.parametrize(
    ("owner", "kind", "believed"),
    [(strangers.UID, "file", True), (0, "file", True), (1234, "file", False),
     (strangers.UID, "link", False), (1234, "pipe", False)])  # fmt: skip
def test_perf_map_is_believed_of_the_processs_user_and_of_root(jail, owner, kind, believed):
    with process_in(jail) as pid:
        path = jail / f"tmp/perf-{pid}.map"
        real = path if kind == "file" else jail / "srv/real"
        if kind == "pipe":
            os.mkfifo(path)
        else:
            real.write_text(f"{COMPILED + 0x100:x} 40 compiled\n")
            os.chown(real, owner, owner)
        if kind == "link":
            path.symlink_to("/srv/real")
        # The number in a profile is what the process says; here it is the kernel's that counts.
        found = perf_name(jail, pid, 1)
        assert found == ("compiled" if believed else "[anonymous code]")


@as_root
def test_perf_map_on_our_side_is_the_second_choice(jail):
    with process_in(jail) as pid:
        path = Path(f"/tmp/perf-{pid}.map")
        path.write_text(f"{COMPILED + 0x100:x} 40 ours\n")
        try:
            assert perf_name(jail, pid, pid) == "ours"
            os.chown(path, 1234, 1234)
            assert perf_name(jail, pid, pid) == "[anonymous code]"
        finally:
            path.unlink()


# Memory.

MEASURED = """
import re, resource, sys
sys.path[:0] = {paths!r}
{code}
# Not RUSAGE_SELF: what the process that started this one had before exec counts there.
own = re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]
print(max(int(own), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
"""


def peak_mib(code: str, *arguments: str, status: int = 0) -> tuple[float, str]:
    """The most memory of a process that runs this, or of one that it starts; and what it says."""
    paths = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
    script = MEASURED.format(paths=paths, code=code)
    found = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True,
                           text=True, timeout=300, check=False)  # fmt: skip
    assert found.returncode == status, found.stderr
    *said, last = found.stdout.splitlines()
    return int(last) / 1024, "\n".join(said) + found.stderr


COMMAND = """
from hakmem.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    print("status", end.code)
"""


def test_library_alone_needs_little():
    """What the bounds below are beside."""
    assert peak_mib("import hakmem.commands.profile")[0] < 120


JSON_BYTES = 24 << 20
HOSTILE_JSON = {
    "lists": lambda: '{"hakmem_heap_profile": 1, "x": [' + "[]," * (JSON_BYTES // 3) + "[]]}",
    "objects": lambda: '{"hakmem_heap_profile": 1, "x": [' + "{}," * (JSON_BYTES // 3) + "{}]}",
    "numbers": lambda: '{"hakmem_heap_profile": 1, "x": [' + "999," * (JSON_BYTES // 4) + "1]}",
    "texts": lambda: '{"hakmem_heap_profile": 1, "x": [' + '"ab",' * (JSON_BYTES // 5) + "1]}",
    "names": lambda: (
        '{"hakmem_heap_profile": 1, "x": {'
        + ",".join(f'"{i:x}":0' for i in range(JSON_BYTES // 10))
        + "}}"
    ),
    "nested": lambda: '{"hakmem_heap_profile": 1, "x": ' + "[" * JSON_BYTES,
    "pcs": lambda: json.dumps(document([stack([1 << 40] * 1024, 1, 1)] * 1000)),
}


@pytest.mark.turns
@pytest.mark.parametrize("kind", HOSTILE_JSON)
def test_profile_of_24_mb_takes_no_more_than_its_kind(tmp_path, kind):
    path = tmp_path / "heap.json"
    path.write_text(HOSTILE_JSON[kind]())
    peak, said = peak_mib(
        COMMAND, "profile", "--format", "folded", "--output", str(tmp_path / "out"), str(path)
    )
    assert "Traceback" not in said
    assert peak < 450, said[-200:]


def packed(data: bytes) -> bytes:
    return gzip.compress(data, 1)


TYPES = b"\x0a\x02\x08\x01" + b"\x32\x00\x32\x0binuse_space"
LONG_TEXT = b"\x32\xb0\xea\x01" + b"x" * 30_000
HEAP_WORD, LABEL_WORDS = b"\x32\x04heap", b"\x32\x05label\x32\nlabel_name"
PLACE = b"\x22\x04\x08\x01\x18\x05"
# A sample at that place, and its heap's name.
IN_HEAP = b"\x12\x0c\x0a\x01\x01\x12\x01\x01\x1a\x04\x08\x03\x10\x02"


def labelled(number: int) -> bytes:
    """A sample whose label has that number, and the long text as its name."""
    low, middle, high = number & 127 | 128, number >> 7 & 127 | 128, number >> 14
    label = b"\x1a\x06\x08\x03\x18" + bytes([low, middle, high])
    return b"\x12\x14\x0a\x01\x01\x12\x01\x01" + label + b"\x1a\x04\x08\x04\x10\x02"


HOSTILE_FILES = {
    "nothing": lambda: packed(bytes(300 << 20)),
    "fields": lambda: packed(b"\n" * (16 << 20)),
    "samples": lambda: packed(TYPES + b"\x12\x00" * (8 << 20)),
    "one long stack": lambda: packed(
        TYPES + b"\x12\x85\x80\x80\x08\x0a\x80\x80\x80\x08" + b"\x01" * (16 << 20)),
    "strings": lambda: packed(TYPES + b"\x32\x00" * (8 << 20)),
    "lines": lambda: b"heap_v2/1\n" + b"\n" * (12 << 20),
    "stacks": lambda: b"heap profile: 0: 0 [0: 0] @ heapprofile\n" + b"1: 1 [1: 1] @\n" * (2 << 20),
    "maps": lambda: b"heap_v2/1\nMAPPED_LIBRARIES:\n" + b"x\n" * (12 << 20),
    "mappings": lambda: packed(TYPES + b"\x1a\x02\x08\x01" * (2_000_000)),
    # A long text that much refers to.
    "paths": lambda: packed(TYPES + LONG_TEXT + b"\x1a\x02\x28\x02" * 100_000),
    "heaps": lambda: packed(TYPES + LONG_TEXT + HEAP_WORD + PLACE + IN_HEAP * 50_000),
    "labels": lambda: packed(
        TYPES + LONG_TEXT + LABEL_WORDS + PLACE + b"".join(map(labelled, range(50_000)))),
}  # fmt: skip


@pytest.mark.turns
@pytest.mark.parametrize("kind", HOSTILE_FILES)
def test_files_of_other_formats_take_no_more_than_their_kind(tmp_path, kind):
    path = tmp_path / "heap.heap"
    path.write_bytes(HOSTILE_FILES[kind]())
    code = f"""
from pathlib import Path
from hakmem.profiles.heap_profile import read_file
from hakmem.errors import UserError
try:
    read_file(Path({str(path)!r}))
except UserError as error:
    print(error)
"""
    peak, said = peak_mib(code)
    assert "Traceback" not in said
    assert peak < 700, said


@pytest.mark.turns
def test_perf_map_of_20_mb(tmp_path):
    (tmp_path / "tmp").mkdir()
    lines = (f"{COMPILED + 16 * i:x} 10 n{i}\n" for i in range(20 * MIB // 24))
    (tmp_path / "tmp/perf-4711.map").write_text("".join(lines))
    code = f"""
from test_hostile import *
from pathlib import Path
profile = parse(json.dumps(document([stack([COMPILED + 16 * 77 + 1], 5, 1)])).encode())
symboliser = Symboliser(profile)
symboliser.root = Path({str(tmp_path)!r})
print(named(profile, symboliser).sites[0].frames[-1].function)
symboliser.reader.end()
"""
    peak, said = peak_mib(code)
    assert "n77" in said
    assert peak < 300


def bomb(levels: int) -> str:
    """A symbol of some 300 characters; each parameter's type holds the one before twice."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    later = "".join(f"St4pairIS{digits[i]}_S{digits[i]}_E" for i in range(levels))
    return f"_Z1fSt4pairIiiE{later}"


def test_names_are_cut():
    pytest.importorskip("pydemumble")
    assert len(demangled(bomb(8))) < 4200
    assert len(demangled("_Z" + "1f" * 100_000)) <= 4096
    assert len(demangled("x" * 1_000_000)) <= 4096


@pytest.mark.turns
def test_symbols_that_stand_for_megabytes(tmp_path):
    """Each of them would be 60 MB, and some would not fit any memory."""
    names = [bomb(n) for n in (14, 16, 18, 20, 22, 25, 30, 35)]
    source = "".join(f'void f{i}(void) __asm__("{name}");\nvoid f{i}(void) {{}}\n'
                     for i, name in enumerate(names))  # fmt: skip
    (tmp_path / "bomb.c").write_text(source)
    built = tmp_path / "libbomb.so"
    subprocess.run(["gcc", "-O0", "-shared", "-fPIC", tmp_path / "bomb.c", "-o", built], check=True)
    pcs = [BASE + offset_of(built, name) + 2 for name in names]
    maps = [f"{BASE:x}-{BASE + 0x100000:x} r-xp 00000000 08:01 99 {built}"]
    text = json.dumps(document([stack([pc], 5, 1) for pc in pcs], maps=maps))
    (tmp_path / "heap.json").write_text(text)
    peak, said = peak_mib(COMMAND, "profile", "--format", "folded", "--output",
                          str(tmp_path / "out"), str(tmp_path / "heap.json"))  # fmt: skip
    assert "Traceback" not in said
    assert peak < 700
    assert (tmp_path / "out.folded").stat().st_size < 8 * 4200


MUTANTS = 120


def mutated(data: bytes, seed: int) -> bytes:
    """Some bytes of its tables are others, or numbers in it are large."""
    chance = random.Random(seed)
    found = bytearray(data)
    head = struct.unpack_from("<Q", data, 0x28)[0]
    for _ in range(chance.randint(1, 12)):
        low, high = chance.choice([(0, 64), (64, 700), (head, len(data)), (0, len(data))])
        place = chance.randrange(low, high)
        if chance.random() < 0.5:
            found[place] = chance.randrange(256)
        else:
            value = chance.choice(
                [0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 31, (1 << 63) - 1, (1 << 64) - 1]
            )
            struct.pack_into("<Q", found, min(place // 8 * 8, len(found) - 8), value)
    if chance.random() < 0.2:
        del found[chance.randrange(len(found)) :]
    return bytes(found)


def test_mutated_files_are_told_by_offset_and_take_little(tmp_path, library):
    data, offset = library.read_bytes(), offset_of(library)
    stacks, maps = [], []
    for seed in range(MUTANTS):
        path = tmp_path / f"m{seed}.so"
        path.write_bytes(mutated(data, seed))
        base = BASE + seed * 0x100000
        maps.append(f"{base:x}-{base + 0x100000:x} r-xp 00000000 08:01 99 {path}")
        stacks.append(stack([base + offset + 5], 5, 1))
    (tmp_path / "heap.json").write_text(json.dumps(document(stacks, maps=maps)))
    peak, said = peak_mib(COMMAND, "profile", "--format", "folded,pprof", "--output",
                          str(tmp_path / "out"), str(tmp_path / "heap.json"))  # fmt: skip
    assert "Traceback" not in said
    assert "status 0" in said
    assert peak < 400
    text = (tmp_path / "out.folded").read_text()
    assert "visible_function" in text
    assert ".so+0x" in text


@pytest.mark.turns
@pytest.mark.parametrize("seed", range(40))
def test_mutated_program_raises_nothing(tmp_path, library, seed):
    """Where it is our own to run, it is looked at here."""
    path = tmp_path / "program"
    path.write_bytes(mutated(library.read_bytes(), seed))
    from hakmem.running.programs import examine_binary
    from hakmem.running.witness import counter_offset

    counter_offset(path)
    examine_binary(path)


def test_a_table_that_is_longer_than_its_file_is_not_believed(tmp_path, library):
    data = bytearray(library.read_bytes())
    for entry, count, told in ((0x3A, 0, "section"), (0x36, 1, "segment"), (0x3A, 1, "section")):
        changed = bytearray(data)
        struct.pack_into("<HH", changed, entry, count, 0xFF00)
        path = tmp_path / "x"
        path.write_bytes(changed)
        with pytest.raises(OSError, match=f"its table of {told}s is damaged"), elf_file(path):
            pass


LARGE = (10**38, (1 << 64) - 1, 1 << 63)


def places_in(value: object, path: tuple = ()):
    """All numbers of a document, by where they are."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from places_in(each, (*path, name))
    elif isinstance(value, list):
        for number, each in enumerate(value[:2]):
            yield from places_in(each, (*path, number))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield path


def with_value(text: str, path: tuple, value: int) -> str:
    found = json.loads(text)
    inner = found
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return json.dumps(found)


@pytest.mark.turns
@pytest.mark.parametrize("value", LARGE)
def test_large_numbers_are_told_or_shown(monkeypatch, value):
    monkeypatch.setattr(Symboliser, "prepare", lambda *_: None)
    monkeypatch.setattr(Symboliser, "look_up", looked_up)
    monkeypatch.setattr(profile_html, "draw", drawn_once(profile_html.draw))
    stacks = [stack([BASE + 0x101], 64 << 20, 64), stack([BASE + 0x201], 1 << 20, 8)]
    text = json.dumps(document(stacks, stopped_ms=1_700_000_060_000))
    plain = shown(text)
    refused = 0
    for path in places_in(json.loads(text)):
        try:
            one = shown(with_value(text, path, value))
        except ValueError:
            refused += 1
            continue
        for found in (plain, one):
            profile_html.of_changes(found, plain, compare(found, plain))
            profile_pprof.of_changes(plain, found, compare(plain, found))
    assert refused > 8


def drawn_once(draw):
    """A plot is the same wherever what it shows is: most of the time is drawing."""
    kept = {}

    def drawn(profile, narrow):
        of = (str(profile.timeline), profile.peak_ms, profile.peak_bytes, narrow)
        if of not in kept:
            kept[of] = draw(profile, narrow)
        return kept[of]

    return drawn


def shown(text: str):
    """In each of the ways there are; ValueError is what `read_file` tells in a line."""
    found = parse(text.encode())
    result = named(found, Symboliser(found))
    profile_view.show(Console(file=io.StringIO()), result, "live", 5, "stack")
    profile_html.of_profile(result, "live", False)
    profile_pprof.of_profile(result)
    profile_files.folded(result.sites)
    profile_files.dhat(result)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ProfileCollector(found, 1))
    generate_latest(registry)
    return result


def looked_up(_self, address: int):
    from hakmem.profiles.frames import Frame
    from hakmem.profiles.symbols import Place

    return Place(address, (Frame(f"f{address:x}"),))


# Pages.


def test_maps_of_pages_are_not_read_by_who_shows_figures(monkeypatch):
    """A sparse file costs its user nothing, and each copy of it 64 MiB."""
    asked = []

    def pread(descriptor: int, count: int, offset: int) -> bytes:
        asked.append(count)
        return real(descriptor, count, offset)

    real = os.pread
    monkeypatch.setattr(stats_page.os, "pread", pread)
    from fake_process import fake_process

    with fake_process() as fake:
        found = live_figures.look(fake.pid)
        assert len(found.snapshot.spans) == 0
        assert max(asked) <= stats_page.JSON_MOST
        assert len(stats_page.read(fake.pid).spans) > 0


def test_members_that_nobody_reads_are_not_kept():
    from fake_process import Fake

    figures = json.loads(json.dumps(Fake().figures(0)))
    figures["more"] = [[]] * 1000
    figures["total"]["more"] = {"x": [1] * 1000}
    found = page_shape.parse(json.dumps(figures).encode())
    assert "more" not in found
    assert "more" not in found["total"]


@pytest.mark.parametrize("where", ["program", "maps", "heap", "label"])
def test_texts_have_a_bound(where):
    long = "x" * 40_000
    text = document([stack([BASE], 1, 1, heap=long if where == "heap" else None)])
    if where == "program":
        text["program"] = long
    elif where == "maps":
        text["maps"] = [long]
    elif where == "label":
        text["labels"] = [[1, long]]
    with pytest.raises(ValueError, match="longer than 32768 characters"):
        parse(json.dumps(text).encode())


def test_pages_of_all_processes_together_have_a_bound(monkeypatch):
    from fake_process import fake_process

    with fake_process() as one, fake_process() as other:
        monkeypatch.setattr(
            live_figures.stats_page, "processes", lambda _: iter((one.pid, other.pid))
        )
        assert set(live_figures.look_around()[0]) == {one.pid, other.pid}
        monkeypatch.setattr(live_figures, "JSON_MOST", 10)
        found, unseen = live_figures.look_around()
        assert (set(found), unseen.unreadable) == ({one.pid}, [other.pid])


# A worker that is lost.


def test_worker_that_dies_takes_one_file_with_it(library, monkeypatch):
    offset = offset_of(library)
    profile = profile_of(str(library), offset)
    symboliser = Symboliser(profile)
    assert symboliser.place(BASE + offset + 5).frames[-1].function == "visible_function"
    symboliser.reader.process.kill()
    symboliser.reader.process.wait()
    assert symboliser.place(BASE + offset + 9).frames[-1].function == f"libcode.so+0x{offset + 8:x}"
    assert any("damaged or too large" in line for line in symboliser.remarks)


def test_worker_that_does_not_answer_is_given_up(library, monkeypatch):
    from hakmem.profiles import symbol_reader

    monkeypatch.setattr(symbol_reader, "IDLE_S", 0.3)
    offset = offset_of(library)
    profile = profile_of(str(library), offset)
    symboliser = Symboliser(profile)
    symboliser.place(BASE + offset + 5)
    os.kill(symboliser.reader.process.pid, 19)
    assert symboliser.place(BASE + offset + 9).frames[-1].function == f"libcode.so+0x{offset + 8:x}"


def test_worker_has_bounds(library):
    offset = offset_of(library)
    symboliser = Symboliser(profile_of(str(library), offset))
    symboliser.place(BASE + offset + 5)
    pid = symboliser.reader.process.pid
    for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_CPU):
        assert resource.prlimit(pid, which)[0] != resource.RLIM_INFINITY
    assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)


def test_what_a_program_says_is_on_disk_makes_little_room(tmp_path, monkeypatch):
    """Of a file system that its user answers for."""

    class Room:
        disk = 0

        def allow(self, disk: int, _mapped: int) -> None:
            self.disk += disk

    (tmp_path / "file").write_bytes(bytes(1 << 16))
    monkeypatch.setattr(symbol_worker, "TOLD_MOST", 1 << 17)
    for kind, found in ((symbol_worker.FUSE, 1 << 17), (0xEF53, 8 << 16)):
        monkeypatch.setattr(symbol_worker, "file_system", lambda _, kind=kind: kind)
        files = symbol_worker.Files(os.open("/", os.O_PATH), Room())
        for _ in range(8):
            files.keep(os.open(tmp_path / "file", os.O_RDONLY))
        assert files.room.disk == found


@as_root
def test_worker_is_the_user_of_the_process(jail, library):
    with process_in(jail) as pid:
        symboliser = Symboliser(profile_of("/none", 1), pid)
        symboliser.place(BASE + 5)
        assert foreign_files.users_of(symboliser.reader.process.pid) == (
            strangers.UID,
            strangers.UID,
            [],
        )


def test_errors_of_our_own_pass_through(library):
    with pytest.raises(UserError, match="ours"), elf_file(library):
        raise UserError("ours")
