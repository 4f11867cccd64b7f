"""What a program file says about itself before it runs: whether it can be started, and served.

The dynamic loader ignores LD_PRELOAD, wholly or for malloc, in some programs; their files show it.
Every command refuses here what it cannot start or serve: one case has one sentence and one status.
"""

from __future__ import annotations

import itertools
import mmap
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hakmem.elf_files import elf_file
from hakmem.errors import NOT_FOUND, NOT_STARTED, REFUSED, UserError

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc", "snmalloc", "rpmalloc", "tbbmalloc")
# Names of jemalloc's that libhakmem.so has not: what a program asks by them a jemalloc answers, of
# its own memory. libhakmem-je.so has them.
JEMALLOC_NAMES = frozenset(
    (b"mallctl", b"mallctlbymib", b"mallctlnametomib", b"malloc_stats_print", b"mallocx")
)
LIBRARY_WITH_THEM = "libhakmem-je.so"
# What shows a sanitizer with a malloc of its own, in a program that is built with it.
SANITIZERS = {
    b"__asan_init": "AddressSanitizer",
    b"__hwasan_init": "HWAddressSanitizer",
    b"__lsan_init": "LeakSanitizer",
    b"__msan_init": "MemorySanitizer",
    b"__tsan_init": "ThreadSanitizer",
}
# All that gcc's static runtimes show, those without a malloc too.
SOME_SANITIZER = b"__sanitizer_symbolize_code"
# The tools of valgrind that replace malloc.
VALGRIND_TOOLS = ("memcheck", "massif", "dhat", "helgrind", "drd")
# Interpreter of a script of an interpreter of a script: the kernel follows a few, no more.
SCRIPT_DEPTH = 4
SCRIPT_LINE_BYTES = 256
# The loader lists the libraries of the largest programs within a second.
LIST_LIMIT_S = 10
# In a program that holds hakmem itself, with symbols or without: a message of src/life/init.c.
MARK_OF_HAKMEM = b"hakmem: version %s\n"
# And the note of src/watch/outside.c, which is found without reading all of a library.
NOTE_OF_HAKMEM = "hakmem"
# What the loader says of a library that it would load.
LOADED = re.compile(r"^\s+\S+ => (/.+) \(0x[0-9a-f]+\)$", re.MULTILINE)
# A preloaded library of this name is taken for one that the program needs.
OWN_SONAME = "libhakmem.so.0"


@dataclass(frozen=True)
class Examined:
    """What is known of a program: `obstacle` says why preloading cannot work, if it cannot.

    `hakmem`: the file with a hakmem that the program has anyway: itself, or a library. A second one
    that is preloaded would write the same files and answer the same requests: none is.
    `keeps_malloc`: a tool that checks the program must have malloc, so that none is preloaded.
    `asks_jemalloc`: the first name of jemalloc's own that the program uses.
    """

    path: Path | None
    obstacle: str = ""
    remark: str = ""
    hakmem: Path | None = None
    keeps_malloc: bool = False
    asks_jemalloc: str = ""

    @property
    def holds_hakmem(self) -> bool:
        return self.hakmem is not None

    @property
    def takes_preload(self) -> bool:
        return not (self.keeps_malloc or self.holds_hakmem)

    @property
    def notes(self) -> list[str]:
        return [text for text in (self.obstacle, self.remark) if text]


def locate(command: str) -> Path | None:
    found = shutil.which(command)
    return Path(found) if found else None


def require_program(command: Sequence[str]) -> Path:
    """The file of a command line. One that is missing or cannot be started is refused, as by env:
    127 for none of that name, 126 for one that cannot be started."""
    name = command[0]
    found = locate(name)
    if found is None:
        there = candidate(name)
        if there is None:
            hint = f" (./{name} is in this folder)" if name and is_file(Path(name)) else ""
            raise UserError(f"there is no program '{name}'{hint}", NOT_FOUND)
        why = "it is a folder" if there.is_dir() else "it is not executable"
        if not there.is_dir() and not there.is_file():
            why = "it is no file"
        raise UserError(f"cannot start '{name}': {why}", NOT_STARTED)
    interpreter = script_interpreter(found)
    if interpreter is not None and not os.access(interpreter, os.X_OK):
        why = f"its interpreter {interpreter} is missing or not executable"
        raise UserError(f"cannot start '{name}': {why}", NOT_STARTED)
    return found


def candidate(name: str) -> Path | None:
    """What has the name of a program and is none: a folder, or a file that is not executable."""
    if "/" in name:
        try:
            return Path(name) if Path(name).exists() else None
        except OSError as error:
            raise UserError(f"cannot start '{name}': {error.strerror}", NOT_STARTED) from error
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    paths = (Path(folder) / name for folder in folders if folder and name)
    return next((path for path in paths if is_file(path)), None)


def is_file(path: Path) -> bool:
    """False in a folder of PATH that may not be searched, too."""
    try:
        return path.is_file()
    except OSError:
        return False


def require_servable(command: Sequence[str]) -> Examined:
    """A program that a preloaded allocator can serve, as far as its file tells."""
    require_program(command)
    found = examine(command)
    if found.obstacle:
        raise UserError(f"it cannot be served: {found.obstacle}", REFUSED)
    return found


def arguments_of(command: Sequence[str]) -> list[str]:
    """For exec: like execvp of C, a script without #! goes to the shell."""
    path = require_program(command)
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError:
        return list(command)
    # The kernel takes a #! with nothing behind it for none.
    if start == b"\x7fELF" or script_interpreter(path) is not None:
        return list(command)
    return ["/bin/sh", str(path), *command[1:]]


def examine(command: Sequence[str]) -> Examined:
    """Looks at the file of a command line; for a script, at its interpreter."""
    path = locate(command[0])
    if path is None:
        return Examined(None)
    if tool := valgrind_tool(command):
        why = f"{path} checks it by {tool}, which has a malloc of its own: hakmem is not loaded"
        return Examined(path, why, keeps_malloc=True)
    for _ in range(SCRIPT_DEPTH):
        if privileged := privileges(path):
            return Examined(path, f"{path} {privileged}: the loader ignores preloaded libraries")
        interpreter = script_interpreter(path)
        if interpreter is None:
            return examine_binary(path)
        path = interpreter
    return Examined(path)


def valgrind_tool(command: Sequence[str]) -> str:
    """The tool that a command line of valgrind's chooses, if it replaces malloc."""
    if Path(command[0]).name != "valgrind":
        return ""
    options = itertools.takewhile(lambda word: word.startswith("-"), command[1:])
    tools = [word.removeprefix("--tool=") for word in options if word.startswith("--tool=")]
    tool = tools[-1] if tools else VALGRIND_TOOLS[0]
    return tool if tool in VALGRIND_TOOLS else ""


def dynamic_names(elf: ELFFile) -> bytes:
    """Each between zeros: a list of them would take many times what the section has."""
    section = elf.get_section_by_name(".dynstr")
    return b"\0%b\0" % section.data() if section is not None else b""


def named(name: bytes, names: bytes) -> bool:
    return b"\0%b\0" % name in names


def sanitizer_of(elf: ELFFile) -> str:
    """The sanitizer that a program is built with, if it has a malloc of its own."""
    names = dynamic_names(elf)
    known = next((said for mark, said in SANITIZERS.items() if named(mark, names)), "")
    has_some = named(SOME_SANITIZER, names)
    return known or ("a sanitizer" if has_some and defines_malloc(elf) else "")


def privileges(path: Path) -> str:
    """Why the program runs with more rights than ours, or an empty string."""
    try:
        mode = path.stat()
    except OSError:
        return ""
    if mode.st_mode & stat.S_ISUID and mode.st_uid != os.geteuid():
        return "is setuid"
    if mode.st_mode & stat.S_ISGID and mode.st_gid != os.getegid():
        return "is setgid"
    try:
        os.getxattr(path, "security.capability")
    except OSError:
        return ""
    return "has file capabilities" if os.geteuid() != 0 else ""


def script_interpreter(path: Path) -> Path | None:
    try:
        with path.open("rb") as file:
            line = file.read(SCRIPT_LINE_BYTES).split(b"\n")[0]
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    words = os.fsdecode(line[2:]).split()
    if len(words) > 1 and Path(words[0]).name == "env":
        program = next((word for word in words[1:] if word[0] != "-" and "=" not in word), "")
        return locate(program) or Path(words[0])
    return Path(words[0]) if words else None


def examine_binary(path: Path) -> Examined:
    try:
        with elf_file(path) as elf:
            return examine_elf(path, elf)
    except OSError:
        return Examined(path)


@cache
def own_machine() -> tuple[str, int]:
    """Processor and word size of the interpreter that runs this, and so of what was built here."""
    with elf_file(Path(sys.executable).resolve()) as elf:
        return elf["e_machine"], elf.elfclass


def examine_elf(path: Path, elf: ELFFile) -> Examined:
    if (elf["e_machine"], elf.elfclass) != own_machine():
        kind = f"{elf['e_machine'].removeprefix('EM_')}, {elf.elfclass} bits"
        return Examined(path, f"{path} is for another processor ({kind}): hakmem cannot be loaded")
    interpreter = next((s.get_interp_name() for s in elf.iter_segments("PT_INTERP")), None)
    if (interpreter is None or defines_malloc(elf)) and holds_hakmem(path):
        return Examined(
            path, f"{path} holds hakmem itself, which comes before any other", hakmem=path
        )
    if interpreter is None:
        return Examined(path, f"{path} is statically linked: nothing can be preloaded into it")
    if "ld-musl" in interpreter:
        return Examined(path, f"{path} uses musl, hakmem needs glibc: it cannot be loaded")
    if sanitizer := sanitizer_of(elf):
        why = (
            f"{path} is built with {sanitizer}, which has a malloc of its own: hakmem is not loaded"
        )
        return Examined(path, why, keeps_malloc=True)
    if defines_malloc(elf):
        return Examined(path, f"{path} brings its own malloc, which comes before preloaded ones")
    if holds_hakmem(path):
        return Examined(path, remark=f"{path} {UNDER_OWN_NAMES}", hakmem=path)
    needed = needed_libraries(elf)
    if holder := library_with_hakmem(path, interpreter, needed):
        remark = f"{path} is linked with {holder}, which holds hakmem: no other one is preloaded"
        return Examined(path, remark=remark, hakmem=holder)
    if ours := next((lib for lib in needed if Path(lib).name.startswith("libhakmem")), None):
        remark = f"{path} is linked with {ours}: it is under hakmem without being preloaded too"
        return Examined(path, remark=remark)
    names = dynamic_names(elf)
    asks = min((name for name in JEMALLOC_NAMES if named(name, names)), default=b"").decode()
    bundled = next((lib for lib in needed if is_allocator(lib)), None)
    if bundled:
        remark = f"{path} is linked with {bundled}; a preloaded library comes before it"
        return Examined(path, remark=remark, asks_jemalloc=asks)
    return Examined(path, asks_jemalloc=asks)


UNDER_OWN_NAMES = (
    "holds hakmem under names of its own: what it asks of that is served by it under any allocator"
)


def library_with_hakmem(path: Path, interpreter: str, needed: Sequence[str]) -> Path | None:
    """Of the libraries that are loaded with a program, the one whose hakmem is its malloc; not one
    of our own's name, in whose place the preloaded one is taken."""
    if not needed:
        return None
    environment = {n: v for n, v in os.environ.items() if n != "LD_PRELOAD"}
    try:
        # The loader only lists: no code of the program or of a library runs.
        listed = subprocess.run(
            [interpreter, "--list", str(path.absolute())], env=environment, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=LIST_LIMIT_S,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    found = (Path(each) for each in LOADED.findall(os.fsdecode(listed.stdout)))
    return next((lib for lib in found if lib.name != OWN_SONAME and is_hakmem(lib)), None)


def is_hakmem(library: Path, as_malloc: bool = True) -> bool:
    """Whether a file holds hakmem, by its note, and has its malloc."""
    with suppress(OSError), elf_file(library) as elf:
        notes = (n for part in elf.iter_segments("PT_NOTE") for n in part.iter_notes())
        # The note first: few have it, and a table of symbols is long.
        has_note = any(n["n_name"] == NOTE_OF_HAKMEM for n in notes)
        return has_note and (not as_malloc or defines_malloc(elf))
    return False


def is_allocator(library: str) -> bool:
    return any(name in library for name in OTHER_ALLOCATORS)


def holds_hakmem(path: Path) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(MARK_OF_HAKMEM) >= 0


def defines_malloc(elf: ELFFile) -> bool:
    """Whether the dynamic symbols hold a malloc of the program's own."""
    for name in (".gnu.hash", ".hash"):
        table = elf.get_section_by_name(name)
        if table is not None:
            symbol = table.get_symbol("malloc")
            return symbol is not None and symbol["st_shndx"] != "SHN_UNDEF"
    return False


def needed_libraries(elf: ELFFile) -> list[str]:
    section = elf.get_section_by_name(".dynamic")
    if section is None or section["sh_type"] != "SHT_DYNAMIC":
        return []
    return [tag.needed for tag in section.iter_tags("DT_NEEDED")]
