"""ELF files, by a library that is loaded with the first: many commands end without one."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile


@contextmanager
def elf_file(path: Path) -> Iterator[ELFFile]:
    """What is done within raises OSError too where the file is no ELF file, or a damaged one."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with path.open("rb") as file:
            yield ELFFile(file)
    except ELFError as error:
        raise OSError(errno.ENOEXEC, str(error), str(path)) from error
