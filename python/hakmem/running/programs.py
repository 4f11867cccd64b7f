"""What a program file says about itself before it runs: whether a preloaded malloc can serve it.

The dynamic loader ignores LD_PRELOAD, wholly or for malloc, in some programs; their files show it.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc", "snmalloc", "rpmalloc", "tbbmalloc")
# Interpreter of a script of an interpreter of a script: the kernel follows a few, no more.
SCRIPT_DEPTH = 4
SCRIPT_LINE_BYTES = 256


@dataclass(frozen=True)
class Examined:
    """What is known of a program: `obstacle` says why preloading cannot work, if it cannot."""

    path: Path | None
    obstacle: str = ""
    remark: str = ""

    @property
    def notes(self) -> list[str]:
        return [text for text in (self.obstacle, self.remark) if text]


def locate(command: str) -> Path | None:
    found = shutil.which(command)
    return Path(found) if found else None


def examine(command: Sequence[str]) -> Examined:
    """Looks at the file of a command line; for a script, at its interpreter."""
    path = locate(command[0])
    if path is None:
        return Examined(None)
    for _ in range(SCRIPT_DEPTH):
        if privileged := privileges(path):
            return Examined(path, f"{path} {privileged}: the loader ignores preloaded libraries")
        interpreter = script_interpreter(path)
        if interpreter is None:
            return examine_binary(path)
        path = interpreter
    return Examined(path)


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
        with path.open("rb") as file:
            return examine_elf(path, ELFFile(file))
    except (ELFError, OSError):
        return Examined(path)


@cache
def own_machine() -> tuple[str, int]:
    """Processor and word size of the interpreter that runs this, and so of what was built here."""
    with Path(sys.executable).resolve().open("rb") as file:
        elf = ELFFile(file)
        return elf["e_machine"], elf.elfclass


def examine_elf(path: Path, elf: ELFFile) -> Examined:
    if (elf["e_machine"], elf.elfclass) != own_machine():
        kind = f"{elf['e_machine'].removeprefix('EM_')}, {elf.elfclass} bits"
        return Examined(path, f"{path} is for another processor ({kind}): hakmem cannot be loaded")
    interpreter = next((s.get_interp_name() for s in elf.iter_segments("PT_INTERP")), None)
    if interpreter is None:
        return Examined(path, f"{path} is statically linked: nothing can be preloaded into it")
    if "ld-musl" in interpreter:
        return Examined(path, f"{path} uses musl, hakmem needs glibc: it cannot be loaded")
    if defines_malloc(elf):
        return Examined(path, f"{path} brings its own malloc, which comes before preloaded ones")
    bundled = next((lib for lib in needed_libraries(elf) if is_allocator(lib)), None)
    if bundled:
        remark = f"{path} is linked with {bundled}; a preloaded library comes before it"
        return Examined(path, remark=remark)
    return Examined(path)


def is_allocator(library: str) -> bool:
    return any(name in library for name in OTHER_ALLOCATORS)


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
    if not isinstance(section, DynamicSection):
        return []
    return [tag.needed for tag in section.iter_tags("DT_NEEDED")]
