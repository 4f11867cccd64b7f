"""Files that another process names: libraries, debug information, perf maps.

A name is looked up as the process would: from its own root, from where no link leads out. What is
read is a plain file of a file system that keeps data: a pipe or a device may never end, and files
of /proc and /sys do something when they are read. A file system may be its user's own and not
answer: that is for the worker's parent to notice.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path

from hakmem.running.process_words import MAPS_MOST, lines_of

OPENAT2_CALL = 437  # on every machine
RESOLVE_NO_MAGICLINKS, RESOLVE_IN_ROOT = 0x02, 0x10
LACKS_CALL = (errno.ENOSYS, errno.EPERM, errno.EINVAL)
LINKS_MOST = 40
PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# From <linux/magic.h>: file systems whose files are the kernel's words, or act.
NOT_KEPT = frozenset((
    0x9FA0, 0x62656572, 0x64626720, 0x74726163, 0x27E0EB, 0x63677270, 0x73636673, 0xCAFE4A11,
    0x6165676C, 0xDE5E81E4, 0x62656570, 0x1CD1, 0xF97CFF8C, 0x43415D53, 0x534F434B, 0x50495045,
    0x09041934, 0x6E736673, 0x19800202, 0x42494E4D, 0x0187, 0x50494446, 0x444D4142,
))  # fmt: skip

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def file_system(descriptor: int) -> int:
    """The magic number of what a file lies in."""
    found = ctypes.create_string_buffer(256)
    if LIBC.fstatfs(ctypes.c_int(descriptor), found) != 0:
        raise OSError(ctypes.get_errno(), "fstatfs")
    return struct.unpack_from("<q", found)[0] & 0xFFFFFFFF


def is_kept(descriptor: int) -> bool:
    """A plain file whose bytes lie somewhere."""
    if file_system(descriptor) in NOT_KEPT:
        return False
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def place_in(root: int, path: str, follow: bool = True) -> int:
    """The place of a path below a root, not opened yet; a link at its end itself, unless that is
    followed."""
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    how = struct.pack("<QQQ", flags, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
    found = LIBC.syscall(
        ctypes.c_long(OPENAT2_CALL), ctypes.c_int(root), os.fsencode(path), how,
        ctypes.c_size_t(len(how)),
    )  # fmt: skip
    if found >= 0:
        return found
    if (number := ctypes.get_errno()) not in LACKS_CALL:
        raise OSError(number, os.strerror(number), path)
    return walked_in(root, path, follow)


def walked_in(root: int, path: str, follow: bool = True) -> int:
    """The same where the kernel lacks the call: folder by folder, each entered without following a
    link."""
    folders, links = [os.dup(root)], 0
    rest = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    try:
        while rest:
            name = rest.pop()
            if name == "..":
                if len(folders) > 1:
                    os.close(folders.pop())
                continue
            found = os.open(name, PLACE, dir_fd=folders[-1])
            folders.append(found)
            if not stat.S_ISLNK(os.fstat(found).st_mode) or not (rest or follow):
                continue
            links += 1
            if links > LINKS_MOST or file_system(found) in NOT_KEPT:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink("", dir_fd=found)
            os.close(folders.pop())
            while target.startswith("/") and len(folders) > 1:
                os.close(folders.pop())
            rest += [part for part in reversed(target.split("/")) if part not in ("", ".")]
        return folders.pop()
    finally:
        for each in folders:
            os.close(each)


def opened(place: int, path: str = "") -> int:
    """To be read, once it is known that this neither waits nor does anything."""
    if not is_kept(place):
        raise OSError(errno.EINVAL, "no plain file", path)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    return os.open(f"/proc/self/fd/{place}", flags)


def open_in(root: int, path: str, follow: bool = True) -> int:
    place = place_in(root, path, follow)
    try:
        return opened(place, path)
    finally:
        os.close(place)


def open_root(pid: int | None, root: Path = Path("/")) -> int:
    """The root of a process, as it has it; ours without one."""
    where = root if pid is None else Path(f"/proc/{pid}/root")
    return os.open(where, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def open_mapped(pid: int, start: int, end: int) -> int | None:
    """The file of a mapping itself, also one that was deleted; only root can."""
    with suppress(OSError):
        place = os.open(f"/proc/{pid}/map_files/{start:x}-{end:x}", os.O_PATH | os.O_CLOEXEC)
        try:
            # Before anything is asked of its file system.
            if is_mounted_by_kernel(pid, place):
                return opened(place)
        finally:
            os.close(place)
    return None


def is_mounted_by_kernel(pid: int, place: int) -> bool:
    """Not by a program, which may never answer. Of what is not mounted where the process sees it,
    nobody tells."""
    words = Path(f"/proc/self/fdinfo/{place}").read_text().split()
    number = words[words.index("mnt_id:") + 1]
    for line in lines_of(pid, "mountinfo", MAPS_MOST):
        fields = line.split()
        if fields[0] == number:
            return not fields[fields.index("-") + 1].startswith("fuse")
    return False


def users_of(pid: int) -> tuple[int, int, list[int]]:
    """The user, group and further groups that a process has for files."""
    found: dict[str, list[int]] = {}
    for line in lines_of(pid, "status"):
        name, _, values = line.partition(":")
        if name in ("Uid", "Gid", "Groups"):
            found[name] = [int(value) for value in values.split()]
    return found["Uid"][3], found["Gid"][3], found["Groups"]
