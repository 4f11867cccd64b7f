"""The one place where files and folders are made, and opened for writing.

Another user may be able to write to the folder, and put a link where a file is to be: root would
write wherever the link leads. So a path is walked folder by folder, and only links of the caller
or of root are followed. A file's contents go into a new file of a random name, which then takes
the place of the old one.
"""

from __future__ import annotations

import errno
import os
import pwd
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
# Neither a terminal of ours, nor a wait for whoever reads a pipe, nor a link that took the file's
# place meanwhile.
OPENED = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# As the kernel's own bound.
LINKS_MOST = 40
# Links of /proc that are text, as links elsewhere; the others lead to an object of the kernel's.
PLAIN_PROC_LINKS = ("self", "thread-self", "mounts", "net")


class StrangeLink(OSError):
    """A path goes through a link that somebody else has made."""

    def __init__(self, path: str, owner: int) -> None:
        whose = f"'{path}' is a link of user {user_name(owner)}"
        told = f"{whose}: only links of your own or of root are followed"
        super().__init__(errno.ELOOP, told, path)


class Place(NamedTuple):
    """A name in an open folder; or a descriptor of ours, for a name such as /dev/stdout."""

    folder: int
    name: str
    descriptor: int | None = None

    def look(self) -> os.stat_result | None:
        """What is there, itself; None where there is nothing yet."""
        if self.descriptor is not None:
            return os.fstat(self.descriptor)
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, flags: int) -> int:
        return os.open(self.name, flags | OPENED, 0o666, dir_fd=self.folder)


def user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def is_trusted(owner: int) -> bool:
    return owner in (0, os.geteuid())


class Walk:
    """Goes along a path from folder to folder. The descriptor of the folder it has reached is its
    own."""

    def __init__(self, path: str | os.PathLike, makes_folders: bool = False) -> None:
        text = os.fspath(path)
        self.path, self.makes_folders, self.links = text, makes_folders, 0
        self.rest = parts_of(text)
        self.folder = os.open("/" if text.startswith("/") else ".", FOLDER)

    def enter(self, name: str, flags: int = os.O_NOFOLLOW) -> None:
        found = os.open(name, FOLDER | flags, dir_fd=self.folder)
        os.close(self.folder)
        self.folder = found

    def place(self) -> Place:
        """The last name of the path, behind all links; what is there is no link, or nothing."""
        while self.rest:
            name = self.rest.pop()
            try:
                found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.folder)
            except FileNotFoundError:
                if not self.rest and not self.makes_folders:
                    return Place(self.folder, name)
                if not self.makes_folders:
                    raise
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=self.folder)
                self.enter(name)
                continue
            try:
                mode = os.fstat(found).st_mode
                if stat.S_ISLNK(mode):
                    if (number := self.follow(name, found)) is not None:
                        return Place(self.folder, name, number)
                elif self.rest or stat.S_ISDIR(mode):
                    self.enter(name)
                else:
                    return Place(self.folder, name)
            finally:
                os.close(found)
        return Place(self.folder, ".")

    def follow(self, name: str, link: int) -> int | None:
        """Goes on where a link leads; a number where that is an open file of this process."""
        found = os.fstat(link)
        self.links += 1
        if self.links > LINKS_MOST:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self.path)
        if not is_trusted(found.st_uid):
            raise StrangeLink(self.path if not self.rest else name, found.st_uid)
        if found.st_dev == Path("/proc").stat().st_dev and name not in PLAIN_PROC_LINKS:
            folder = os.fstat(self.folder)
            if not self.rest and os.path.samestat(folder, Path("/proc/self/fd").stat()):
                return int(name)
            self.enter(name, 0)
            return None
        target = os.readlink("", dir_fd=link)
        if target.startswith("/"):
            os.close(self.folder)
            self.folder = os.open("/", FOLDER)
        self.rest += parts_of(target)
        return None


def parts_of(path: str) -> list[str]:
    """The last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


@contextmanager
def place_of(path: str | os.PathLike, makes_folders: bool = False) -> Iterator[Place]:
    walk = Walk(path, makes_folders)
    try:
        yield walk.place()
    finally:
        os.close(walk.folder)


def look(path: str | os.PathLike) -> os.stat_result | None:
    """What a path leads to; None where there is nothing yet. OSError where the way there cannot be
    gone."""
    with place_of(path) as place:
        return place.look()


def begin_of(path: str | os.PathLike, count: int) -> bytes | None:
    """The first bytes of a plain file; None where there is none."""
    with suppress(FileNotFoundError, NotADirectoryError), place_of(path) as place:
        found = place.look()
        if place.descriptor is not None or found is None or not stat.S_ISREG(found.st_mode):
            return None
        with os.fdopen(place.open(os.O_RDONLY), "rb") as file:
            return file.read(count) if is_plain(file.fileno()) else None
    return None


def is_plain(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def takes_new_files(place: Place) -> bool:
    return os.access(".", os.W_OK, dir_fd=place.folder)


def replace(path: str | os.PathLike, data: bytes) -> None:
    """Writes a whole file: an interrupt or a full disk leaves the old one. A pipe or a device
    keeps nothing, and is written as it is."""
    with place_of(path) as place:
        found = place.look()
        if place.descriptor is not None:
            write_to(os.dup(place.descriptor), data)
        elif found is None or (stat.S_ISREG(found.st_mode) and takes_new_files(place)):
            swap(place, found, data)
        elif stat.S_ISDIR(found.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        else:
            write_to(open_existing(place), data)


def swap(place: Place, old: os.stat_result | None, data: bytes) -> None:
    # Short, for the longest of names.
    fresh = Place(place.folder, f".hakmem-{secrets.token_hex(8)}.new")
    with os.fdopen(fresh.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        try:
            if old is not None:
                # With the rights of the file that it replaces; of another user's, with no more
                # than a new one has.
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                kept = stat.S_IMODE(old.st_mode) & 0o777
                os.fchmod(file.fileno(), kept if old.st_uid == os.geteuid() else kept & mode)
            file.write(data)
            file.flush()
            os.rename(fresh.name, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(fresh.name, dir_fd=place.folder)
            raise


def open_existing(place: Place) -> int:
    """What takes no file in its place: a pipe, a device, or the file in a folder that may not be
    written to."""
    descriptor = place.open(os.O_WRONLY)
    try:
        found = os.fstat(descriptor)
        require_own(place, found)
        if stat.S_ISREG(found.st_mode):
            os.ftruncate(descriptor, 0)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_to(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def require_own(place: Place, found: os.stat_result) -> None:
    """A pipe of another user has that one at its other end. A file of ours may have another name in
    a folder that others write to: then it is theirs to choose which."""
    if stat.S_ISFIFO(found.st_mode) and not is_trusted(found.st_uid):
        raise OSError(errno.EACCES, f"it is a pipe of user {user_name(found.st_uid)}")
    folder = os.fstat(place.folder)
    is_ours = is_trusted(folder.st_uid) and not folder.st_mode & stat.S_IWOTH
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and not is_ours:
        raise OSError(errno.EMLINK, "it has other names, and others can write to its folder")


def open_to_append(path: str | os.PathLike, **how: object) -> IO:
    """A text file that grows, or is locked."""
    with place_of(path) as place:
        if place.descriptor is not None:
            return os.fdopen(os.dup(place.descriptor), "a", **how)
        descriptor = place.open(os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            require_own(place, os.fstat(descriptor))
            return os.fdopen(descriptor, "a", **how)
        except BaseException:
            os.close(descriptor)
            raise


def open_null() -> IO:
    return open(os.devnull, "w")  # noqa: PTH123


def make_folder(path: str | os.PathLike) -> None:
    """With those above it."""
    with place_of(path, makes_folders=True) as place:
        if place.name != ".":
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))


def why_not_ours(path: str | os.PathLike) -> str:
    """Of a folder whose files are run or believed: who else could have put them there, or an empty
    string. A folder that is not there holds nobody's files."""
    found = None
    with suppress(FileNotFoundError):
        found = look(path)
    if found is None or not stat.S_ISDIR(found.st_mode):
        return ""
    if not is_trusted(found.st_uid):
        return f"the folder {path} belongs to user {user_name(found.st_uid)}"
    return f"every user can write to the folder {path}" if found.st_mode & stat.S_IWOTH else ""


def scratch_folder(
    prefix: str = "hakmem-", within: Path | None = None
) -> tempfile.TemporaryDirectory:
    """A new folder of a random name that only its owner may enter, gone at the end."""
    return tempfile.TemporaryDirectory(prefix=prefix, dir=within)


def scratch_file(mode: str = "w+b", **how: object) -> IO:
    """Without a name."""
    return tempfile.TemporaryFile(mode, **how)


def move(source: Path, target: Path) -> None:
    """A file into the place of another, which may be a link: the link itself gives way."""
    with place_of(source.parent) as old, place_of(target.parent) as new:
        os.rename(source.name, target.name, src_dir_fd=old.folder, dst_dir_fd=new.folder)


def put_aside(path: Path) -> Path:
    """Under a name beside it that nobody can have guessed."""
    kept = path.with_name(f"{path.name}.old-{secrets.token_hex(8)}")
    move(path, kept)
    return kept


def remove(path: Path) -> None:
    """One name, if it is there."""
    with suppress(FileNotFoundError), place_of(path.parent) as place:
        os.unlink(path.name, dir_fd=place.folder)


def copy(source: Path, target: Path, mode: int | None = None) -> None:
    replace(target, source.read_bytes())
    if mode is not None:
        set_mode(target, mode)


def copy_tree(source: Path, target: Path, leave_out: str = "") -> None:
    """Into a folder that is not there yet, in one of ours, but not what has the name `leave_out`.

    Links stay links: one of them may lead nowhere.
    """
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns(leave_out))


def set_mode(path: Path, mode: int) -> None:
    with place_of(path) as place:
        descriptor = os.open(place.name, os.O_RDONLY | OPENED, dir_fd=place.folder)
    try:
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
