"""The files that a command is given to read: each ends somewhere, and not far away."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hakmem.documents import is_named_pipe
from hakmem.errors import WRONG_USE, UserError

BYTES_MOST = 512 << 20
# The one that ends at once.
NULL_DEVICE = os.makedev(1, 3)


def is_readable_kind(path: Path) -> bool:
    """False for a named pipe, which may wait for ever, and a device, which may have no end.

    OSError where the path names nothing.
    """
    found = path.stat()
    is_device = stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)
    return not is_named_pipe(path) and (not is_device or found.st_rdev == NULL_DEVICE)


def read_whole(path: Path, most: int = BYTES_MOST) -> bytes:
    """All that a file holds; UserError where it cannot be read."""
    try:
        if not is_readable_kind(path):
            raise UserError(f"cannot read {path}: it is no plain file", WRONG_USE)
        with path.open("rb") as file:
            # A pipe has no size, and a file may grow.
            is_larger = os.fstat(file.fileno()).st_size > most
            data = b"" if is_larger else file.read(most + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", WRONG_USE) from error
    if is_larger or len(data) > most:
        raise UserError(f"cannot read {path}: it is larger than {most >> 20} MB", WRONG_USE)
    return data


def read_text(path: Path) -> str:
    """The same with \\n at the end of each line; what is no text stands out in it."""
    text = read_whole(path).decode(errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")
