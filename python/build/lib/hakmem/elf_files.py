"""ELF files, by a library that is loaded with the first: many commands end without one.

A file can be damaged, or made to harm: no more is read than it has, and no table is believed to be
longer.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hakmem.errors import UserError

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

# Of one table or section: debug information of the largest programs has less in one piece.
PIECE_MOST = 1 << 30


class Bounded(io.BufferedReader):
    """Reads what there is: a buffer of the size that is asked for would be made first."""

    def __init__(self, raw: io.RawIOBase) -> None:
        super().__init__(raw)
        self.size = os.fstat(raw.fileno()).st_size

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self.size - self.tell())
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted > PIECE_MOST:
            raise OSError(errno.EFBIG, "a part of it is too large")
        return super().read(wanted)


@contextmanager
def elf_file(path: Path) -> Iterator[ELFFile]:
    """What is done within raises OSError too where the file is no ELF file, or a damaged one."""
    from elftools.elf.elffile import ELFFile

    with Bounded(path.open("rb", buffering=0)) as file:
        try:
            elf = ELFFile(file)
            require_whole(elf, file.size)
            yield elf
        except (OSError, UserError, GeneratorExit):
            raise
        except Exception as error:
            # The library has an exception for what it looks at, and Python's own for what it does
            # not.
            told = str(error) or type(error).__name__
            raise OSError(errno.ENOEXEC, told, str(path)) from error


def require_whole(elf: ELFFile, size: int) -> None:
    """Tables of entries as long as the format has them, within the file."""
    is_64 = elf.elfclass == 64
    head = elf.header
    for name, length, count, offset in (
        ("section", 64 if is_64 else 40, elf.num_sections(), head["e_shoff"]),
        ("segment", 56 if is_64 else 32, elf.num_segments(), head["e_phoff"]),
    ):
        entry = head["e_shentsize" if name == "section" else "e_phentsize"]
        if count and (entry != length or offset + count * length > size):
            raise OSError(errno.ENOEXEC, f"its table of {name}s is damaged")
