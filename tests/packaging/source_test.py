"""source_test.py RELEASE: the source release has the files of the clone, and the same bytes whenever and wherever it is made."""
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from support import ROOT, clean_environment, expect, release_archive, run

archive = release_archive(sys.argv[1])


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def made_elsewhere(work: Path) -> Path:
    """Another clone, umask, time zone, language and working folder; files of another age."""
    clone = work / "another clone"
    run("git", "clone", "--quiet", "--shared", ROOT, clone)
    # What is not committed yet: the fixture has it.
    listed = run("git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    wanted = {name for name in listed if name and (ROOT / name).is_file()}
    for name in run("git", "-C", clone, "ls-files", "-z").split("\0"):
        if name and name not in wanted:
            (clone / name).unlink()
    for name in wanted:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        if not (clone / name).is_file() or (clone / name).read_bytes() != (ROOT / name).read_bytes():
            shutil.copy(ROOT / name, clone / name)
    old = os.umask(0o077)
    try:
        environment = clean_environment(TZ="Pacific/Auckland", LC_ALL="C", SOURCE_DATE_EPOCH="1")
        run(clone / "packaging/source.sh", work / "out", "--worktree", env=environment, cwd="/")
    finally:
        os.umask(old)
    (other,) = (work / "out").iterdir()
    return other


with tempfile.TemporaryDirectory() as temporary:
    other = made_elsewhere(Path(temporary))
    expect(other.name == archive.name, f"{other.name} is called {archive.name}")
    expect(digest(other) == digest(archive), "two runs write the same bytes")
    refused = subprocess.run([ROOT / "packaging/source.sh", temporary, "no-such-commit"], capture_output=True, env=clean_environment())
    expect(refused.returncode != 0, "a commit that does not exist is refused")
    leftovers = [p.name for p in Path(temporary).iterdir() if p.suffix == ".xz"]
    expect(not leftovers, f"a refused run writes nothing: {leftovers}")

version = re.search(r"^project\(hakmem VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
expect(archive.name == f"hakmem-{version}.tar.xz", f"{archive.name} has version {version}")
with tarfile.open(archive) as tar:
    members = tar.getmembers()
    tops = {m.name.split("/")[0] for m in members}
    expect(tops == {f"hakmem-{version}"}, f"one folder: {tops}")
    expect(all(m.uid == 0 and m.gid == 0 for m in members), "files belong to no user")
    expect(all(m.mode & 0o022 == 0 for m in members if not m.issym()), "nobody but the owner may write")
    packed = {m.name.split("/", 1)[1]: m for m in members if m.isfile()}
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "CMakeLists.txt", "include/hakmem/hakmem.h"):
        expect(name in packed, f"{name} is in the release")
        expect(tar.extractfile(packed[name]).read() == (ROOT / name).read_bytes(), f"{name} is the clone's")
    listed = run("git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    present = {n for n in listed if n and (ROOT / n).is_file() and not (ROOT / n).is_symlink() and not n.startswith(".ci/")}
    expect(set(packed) == present, f"all files and no other: {set(packed) ^ present}")
