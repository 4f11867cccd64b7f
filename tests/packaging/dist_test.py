"""dist_test.py LIBRARY: a release by packaging/dist.sh, of a small clone with a package of each kind that the SBOM reads."""
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from support import ROOT, SKIPPED, clean_environment, expect, run, skip, tool

# A package.sh of the clone: wheel, crate, npm and Debian package, the same bytes each time.
PACKAGES = r'''#!/usr/bin/env python3
import io, json, os, subprocess, sys, tarfile, tempfile, zipfile
from pathlib import Path
out, here = Path(sys.argv[1]), Path(__file__).parent
licence, library = (here / "../../LICENSE").read_bytes(), (here / "libhakmem.so").read_bytes()

def tar(path, top, files):
    with tarfile.open(path, "w:xz" if path.suffix == ".xz" else "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(top + name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))

with zipfile.ZipFile(out / "hakmem-0.1.0-py3-none-any.whl", "w") as wheel:
    for name, data in {
        "hakmem/libhakmem.so": library,
        "hakmem-0.1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: hakmem\nVersion: 0.1.0\nRequires-Dist: click>=8\nRequires-Dist: Mat_plotlib>=3; extra == 'report'\n",
        "hakmem-0.1.0.dist-info/licenses/LICENSE": licence,
    }.items():
        wheel.writestr(zipfile.ZipInfo(name), data)
manifest = b'[package]\nname = "hakmem-sys"\nversion = "0.1.0"\n[dependencies.libc]\nversion = "0.2"\n[build-dependencies]\ncc = "1"\n'
tar(out / "hakmem-sys-0.1.0.crate", "hakmem-sys-0.1.0/", {"Cargo.toml": manifest, "LICENSE": licence})
manifest = {"name": "hakmem", "version": "0.1.0", "optionalDependencies": {"@hakmem/linux-x64": "0.1.0"}}
tar(out / "hakmem-0.1.0.tgz", "package/", {"package.json": json.dumps(manifest).encode(), "LICENSE": licence})
os.makedirs(out / "debian", exist_ok=True)
with tempfile.TemporaryDirectory() as work:
    root = Path(work)
    root.chmod(0o755)
    for name, data in {
        "DEBIAN/control": b"Package: libhakmem0\nVersion: 0.1.0-1\nArchitecture: amd64\nMaintainer: A <a@example.org>\nDepends: libc6 (>= 2.34)\nDescription: x\n",
        "usr/lib/libhakmem.so.0": library,
        "usr/share/doc/libhakmem0/copyright": licence,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", root, out / "debian/libhakmem0_0.1.0-1_amd64.deb"], check=True, stdout=subprocess.DEVNULL)
'''
PACKAGED = {
    "hakmem-0.1.0-py3-none-any.whl": "pkg:pypi/hakmem@0.1.0?file_name=hakmem-0.1.0-py3-none-any.whl",
    "hakmem-sys-0.1.0.crate": "pkg:cargo/hakmem-sys@0.1.0",
    "hakmem-0.1.0.tgz": "pkg:npm/hakmem@0.1.0",
    "libhakmem0_0.1.0-1_amd64.deb": "pkg:deb/debian/libhakmem0@0.1.0-1?arch=amd64",
}
NEEDS = {
    ("pkg:pypi/hakmem", "DEPENDS_ON", "pkg:pypi/click"),
    ("pkg:pypi/mat-plotlib", "OPTIONAL_DEPENDENCY_OF", "pkg:pypi/hakmem"),
    ("pkg:cargo/hakmem-sys", "DEPENDS_ON", "pkg:cargo/libc"),
    ("pkg:cargo/cc", "BUILD_DEPENDENCY_OF", "pkg:cargo/hakmem-sys"),
    ("pkg:npm/%40hakmem/linux-x64", "OPTIONAL_DEPENDENCY_OF", "pkg:npm/hakmem"),
    ("pkg:deb/debian/libhakmem0", "DEPENDS_ON", "pkg:deb/debian/libc6"),
}


def git(clone: Path, *arguments: str) -> str:
    return run("git", "-C", clone, "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments)


def make_clone(work: Path, library: Path) -> Path:
    """What a release is made with, as it is now, in a repository of its own: small, so that it is packed in no time."""
    clone = work / "clone"
    clone.mkdir()
    for name in ("CMakeLists.txt", "CHANGELOG.md", "LICENSE", ".gitignore", "scripts", "packaging"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, clone / name)
    # Only the packages of this test.
    for script in clone.glob("packaging/*/package.sh"):
        script.unlink()
    version = re.compile(r"^(project\(hakmem VERSION )\S+", re.MULTILINE)
    lists = clone / "CMakeLists.txt"
    lists.write_text(version.sub(r"\g<1>0.1.0", lists.read_text()))
    (clone / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0 (unreleased)\n\nFirst.\n\n- One.\n\n## 0.0.9\n\n- Older.\n")
    kinds = clone / "packaging/kinds"
    kinds.mkdir()
    shutil.copy(library, kinds / "libhakmem.so")
    write_script(kinds / "package.sh", PACKAGES)
    git(clone, "init", "--quiet", "--initial-branch=main")
    commit(clone)
    return clone


def write_script(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def commit(clone: Path) -> None:
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message=state")


def dist(clone: Path, out: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = clean_environment(PACKAGING_TOOLS=str(tool("python").parents[1]))
    command = [clone / "packaging/dist.sh", out, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def check_sums(out: Path) -> None:
    run("sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS", cwd=out)
    listed = {line.split("  ", 1)[1] for line in (out / "SHA256SUMS").read_text().splitlines()}
    present = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()} - {"SHA256SUMS"}
    expect(listed == present, f"all files are in SHA256SUMS: {listed ^ present}")
    for name in (*PACKAGED, "hakmem-0.1.0.tar.xz", "LICENSE", "hakmem-0.1.0-notes.md", "hakmem-0.1.0.spdx.json", "conanfile.py"):
        expect(any(Path(p).name == name for p in present), f"{name} is in the release: {present}")


def check_sbom(out: Path) -> None:
    file = out / "hakmem-0.1.0.spdx.json"
    run(tool("pyspdxtools"), "--infile", file)
    document = json.loads(file.read_text())
    packages = {p["SPDXID"]: p for p in document["packages"]}
    by_name = {p.get("packageFileName"): p for p in packages.values()}

    def url(identity: str) -> str:
        references = packages.get(identity, {}).get("externalRefs", [{"referenceLocator": identity}])
        return re.sub(r"(?<=.)@[^/]*$", "", references[0]["referenceLocator"])

    relationships = {(r["spdxElementId"], r["relationshipType"], r["relatedSpdxElement"]) for r in document["relationships"]}
    missing = NEEDS - {(url(a), kind, url(b)) for a, kind, b in relationships}
    expect(not missing, f"what packages need: {missing} is missing")
    for name, wanted in {**PACKAGED, "hakmem-0.1.0.tar.xz": "pkg:generic/hakmem@0.1.0"}.items():
        (path,) = out.rglob(name)
        package = by_name[name]
        expect(package["checksums"][0]["checksumValue"] == hashlib.sha256(path.read_bytes()).hexdigest(), f"{name}: its hash")
        expect(package["externalRefs"][0]["referenceLocator"] == wanted, f"{name}: {wanted}: {package['externalRefs']}")
        expect(package["licenseDeclared"] == "MIT", f"{name}: its licence")
        expect(("SPDXRef-DOCUMENT", "DESCRIBES", package["SPDXID"]) in relationships, f"{name} is described")
    libraries = [p for p in packages.values() if p.get("primaryPackagePurpose") == "LIBRARY"]
    expect(len(libraries) == 2, f"the libraries in wheel and Debian package are listed: {libraries}")
    for library in libraries:
        linked = {b for a, kind, b in relationships if a == library["SPDXID"] and kind == "DYNAMIC_LINK"}
        expect({packages[b]["name"] for b in linked} >= {"libc.so.6"}, f"{library['name']} needs libc: {linked}")


def check_refusals(clone: Path, out: Path, work: Path) -> None:
    before = (out / "SHA256SUMS").read_text()

    def refused(why: str, result: subprocess.CompletedProcess, words: str) -> None:
        expect(result.returncode not in (0, SKIPPED) and words in result.stderr, f"{why}: refused with {words!r}: {result}")
        expect((out / "SHA256SUMS").read_text() == before, f"{why}: the release that was there is left alone")

    refused("a package that is not there", dist(clone, out, "--without", "nothing"), "no packaging/nothing/package.sh")
    (work / "mine").mkdir()
    (work / "mine/letter").write_text("kept")
    refused("a folder with other files", dist(clone, work / "mine"), "no release")
    expect((work / "mine/letter").read_text() == "kept", "other files are left alone")
    (clone / "new").write_text("not committed")
    refused("a file that is not committed", dist(clone, out), "commit or remove first")
    (clone / "new").unlink()

    write_script(clone / "packaging/changing/package.sh", '#!/bin/sh\npwd | gzip -n >"$1/hakmem_1.ddeb"\n')
    commit(clone)
    refused("a package that depends on its folder", dist(clone, out, "--check", "--without", "kinds"), "hakmem_1.ddeb")
    write_script(clone / "packaging/changing/package.sh", f"#!/bin/sh\ntouch '{work}/begun'\nexit 3\n")
    write_script(clone / "packaging/changing/needs.sh", "#!/bin/sh\necho a-compiler is not installed >&2\nexit 1\n")
    commit(clone)
    lacking = dist(clone, out)
    refused("a package whose compiler is missing", lacking, "packaging/changing/package.sh cannot work here: a-compiler is not installed")
    expect(lacking.stderr.count("\n") == 1 and not (work / "begun").exists(), f"it says so in one line, before it builds: {lacking.stderr}")
    (clone / "packaging/changing/needs.sh").unlink()
    write_script(clone / "packaging/changing/package.sh", "#!/bin/sh\nexit 3\n")
    commit(clone)
    refused("a package that cannot be made", dist(clone, out), "")
    unlicensed = PACKAGES.replace('"LICENSE": licence', '"OTHER": licence')
    write_script(clone / "packaging/changing/package.sh", unlicensed.replace('"libhakmem.so"', '"../kinds/libhakmem.so"'))
    commit(clone)
    refused("a package without a licence", dist(clone, out, "--without", "kinds"), "no text of its licence")
    (clone / "CHANGELOG.md").write_text("# Changelog\n\n## 0.0.9\n\n- Older.\n")
    commit(clone)
    refused("a version without notes", dist(clone, out, "--without", "changing"), "no part '## 0.1.0'")
    leftovers = {p.name for p in work.iterdir()} - {"clone", "release", "mine"}
    expect(not leftovers, f"nothing is left behind: {leftovers}")


def main(library: str) -> None:
    for program in ("git", "dpkg-deb", "readelf", "xz"):
        if shutil.which(program) is None:
            skip(f"{program} is not installed")
    tool("pyspdxtools")
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary).resolve()
        clone, out = make_clone(work, Path(library)), work / "release"
        made = dist(clone, out, "--check", "--url", "https://example.org/releases/")
        expect(made.returncode == 0 and "the same in two builds" in made.stdout, f"a release is made: {made.stdout}{made.stderr}")
        check_sums(out)
        check_sbom(out)
        notes = (out / "hakmem-0.1.0-notes.md").read_text()
        expect(notes == "# hakmem 0.1.0\n\nFirst.\n\n- One.\n", f"the notes are this version's part of the changelog: {notes!r}")
        expect("https://example.org/releases/hakmem-0.1.0.tar.xz" in (out / "recipes/conan/conandata.yml").read_text(), "recipes have the address")
        check_refusals(clone, out, work)


main(sys.argv[1])
