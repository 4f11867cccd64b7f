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
    return read_with_status(path, most)[0]


def read_with_status(path: Path, most: int = BYTES_MOST) -> tuple[bytes, os.stat_result]:
    """The same, with whose file it was that was read: the name may lead to another one by now."""
    try:
        with os.fdopen(open_known(path), "rb") as file:
            found = os.fstat(file.fileno())
            # A pipe has no size, and a file may grow.
            is_larger = found.st_size > most
            data = b"" if is_larger else file.read(most + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", WRONG_USE) from error
    if is_larger or len(data) > most:
        raise UserError(f"cannot read {path}: it is larger than {most >> 20} MB", WRONG_USE)
    return data, found


def open_known(path: Path) -> int:
    """A named pipe or a device may have taken the place of what was looked at."""
    is_known, before = is_readable_kind(path), path.stat()
    if is_known:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) or os.path.samestat(found, before):
            os.set_blocking(descriptor, True)
            return descriptor
        os.close(descriptor)
    raise UserError(f"cannot read {path}: it is no plain file", WRONG_USE)


def read_text(path: Path) -> str:
    """The same with \\n at the end of each line; what is no text stands out in it."""
    text = read_whole(path).decode(errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")
