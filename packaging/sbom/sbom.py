"""sbom.py FOLDER: writes FOLDER/hakmem-VERSION.spdx.json, an SPDX 2.3 document of the packages in a folder (recipes/ apart: they hold none).

Each package is listed with its hash, licence and package URL, what it declares to need, and the libraries in it with what
the loader needs for them. All of that is read from the packages themselves. A package without a licence text is refused.
The document depends on the folder and SOURCE_DATE_EPOCH alone.
"""

import email
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import uuid
import zipfile
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath

from license_expression import get_spdx_licensing
from packageurl import PackageURL
from spdx_tools.spdx.model import (
    Actor,
    ActorType,
    Checksum,
    ChecksumAlgorithm,
    CreationInfo,
    Document,
    ExternalPackageRef,
    ExternalPackageRefCategory,
    Package,
    PackagePurpose,
    Relationship,
    RelationshipType,
    SpdxNoAssertion,
)
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document
from spdx_tools.spdx.writer.write_anything import write_file

AUTHORS = "The hakmem authors"
LICENCE_TEXT = "Permission is hereby granted, free of charge"
LIBRARY = re.compile(r".*\.(so(\.\d+)*|a)$")


@dataclass
class Artefact:
    """A file of the release, and what it says of itself."""

    path: Path
    name: str
    version: str
    url: PackageURL
    purpose: PackagePurpose
    # (package URL of what is needed, relationship: DEPENDS_ON, OPTIONAL_DEPENDENCY_OF or BUILD_DEPENDENCY_OF)
    needs: list[tuple[PackageURL, RelationshipType]] = field(default_factory=list)
    # Every file in it, by name.
    contents: dict[str, bytes] = field(default_factory=dict)


# --- readers, one for each kind of package ---


def tar_contents(data: bytes | Path) -> dict[str, bytes]:
    source = {"fileobj": io.BytesIO(data)} if isinstance(data, bytes) else {"name": data}
    with tarfile.open(**source) as tar:
        return {member.name.removeprefix("./"): tar.extractfile(member).read() for member in tar if member.isfile()}


def without_top(contents: dict[str, bytes]) -> dict[str, bytes]:
    return {name.split("/", 1)[-1]: data for name, data in contents.items()}


def requirements(lines: list[str]) -> list[tuple[PackageURL, RelationshipType]]:
    needs = []
    for line in lines:
        name = re.match(r"[A-Za-z0-9._-]+", line)[0]
        optional = re.search(r"\bextra\s*==", line)
        kind = RelationshipType.OPTIONAL_DEPENDENCY_OF if optional else RelationshipType.DEPENDS_ON
        needs.append((PackageURL("pypi", None, name.lower().replace("_", "-")), kind))
    return needs


def read_python(path: Path, contents: dict[str, bytes], metadata: bytes, purpose: PackagePurpose) -> Artefact:
    fields = email.message_from_bytes(metadata)
    url = PackageURL("pypi", None, fields["Name"].lower().replace("_", "-"), fields["Version"], {"file_name": path.name})
    needs = requirements(fields.get_all("Requires-Dist", []))
    return Artefact(path, fields["Name"], fields["Version"], url, purpose, needs, contents)


def read_wheel(path: Path) -> Artefact:
    with zipfile.ZipFile(path) as wheel:
        contents = {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    (metadata,) = (data for name, data in contents.items() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
    return read_python(path, contents, metadata, PackagePurpose.INSTALL)


def read_crate(path: Path) -> Artefact:
    contents = without_top(tar_contents(path))
    manifest = tomllib.loads(contents["Cargo.toml"].decode())
    needs = []
    tables = [manifest, *manifest.get("target", {}).values()]
    for key, kind in (("dependencies", RelationshipType.DEPENDS_ON), ("build-dependencies", RelationshipType.BUILD_DEPENDENCY_OF)):
        for table in tables:
            for name, wanted in table.get(key, {}).items():
                wanted = wanted if isinstance(wanted, dict) else {}
                optional = wanted.get("optional") and kind == RelationshipType.DEPENDS_ON
                needs.append((PackageURL("cargo", None, wanted.get("package", name)), RelationshipType.OPTIONAL_DEPENDENCY_OF if optional else kind))
    package = manifest["package"]
    url = PackageURL("cargo", None, package["name"], package["version"])
    return Artefact(path, package["name"], package["version"], url, PackagePurpose.SOURCE, needs, contents)


def npm_url(name: str, version: str | None = None) -> PackageURL:
    scope, _, base = name.rpartition("/")
    return PackageURL("npm", scope or None, base, version)


def read_npm(path: Path) -> Artefact:
    contents = without_top(tar_contents(path))
    manifest = json.loads(contents["package.json"])
    needs = [(npm_url(name), RelationshipType.DEPENDS_ON) for name in manifest.get("dependencies", {})]
    needs += [(npm_url(name), RelationshipType.OPTIONAL_DEPENDENCY_OF) for name in manifest.get("optionalDependencies", {})]
    url = npm_url(manifest["name"], manifest["version"])
    return Artefact(path, manifest["name"], manifest["version"], url, PackagePurpose.INSTALL, needs, contents)


def read_deb(path: Path) -> Artefact:
    control = subprocess.run(["dpkg-deb", "--field", path], capture_output=True, text=True, check=True).stdout
    fields = email.message_from_string(control)
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], capture_output=True, check=True).stdout
    needs = []
    for key, kind in (
        ("Pre-Depends", RelationshipType.DEPENDS_ON),
        ("Depends", RelationshipType.DEPENDS_ON),
        ("Recommends", RelationshipType.OPTIONAL_DEPENDENCY_OF),
    ):
        for wanted in filter(None, re.split(r"\s*[,|]\s*", fields.get(key, "").strip())):
            needs.append((PackageURL("deb", "debian", re.match(r"[a-z0-9][a-z0-9.+-]*", wanted)[0]), kind))
    name, version = fields["Package"], fields["Version"]
    url = PackageURL("deb", "debian", name, version, {"arch": fields["Architecture"]})
    return Artefact(path, name, version, url, PackagePurpose.INSTALL, needs, tar_contents(data))


def read_source(path: Path) -> Artefact:
    contents = without_top(tar_contents(path))
    if "PKG-INFO" in contents:
        return read_python(path, contents, contents["PKG-INFO"], PackagePurpose.SOURCE)
    version = re.fullmatch(r"hakmem-(.+)\.tar\.(xz|gz)", path.name)[1]
    return Artefact(path, "hakmem", version, PackageURL("generic", None, "hakmem", version), PackagePurpose.SOURCE, [], contents)


READERS = {".whl": read_wheel, ".crate": read_crate, ".tgz": read_npm, ".deb": read_deb, ".tar.xz": read_source, ".tar.gz": read_source}
# Of a Debian source package, whose .dsc lists their hashes; and debug information, which has the licence of the package beside it.
NO_PACKAGE = re.compile(r".*(-dbgsym_.*\.deb|\.dsc|\.buildinfo|\.changes|\.debian\.tar\.xz|\.orig\.tar\.xz|\.ddeb|SHA256SUMS|\.spdx\.json|\.md|LICENSE)$")


def read(path: Path) -> Artefact:
    for ending, reader in READERS.items():
        if path.name.endswith(ending):
            artefact = reader(path)
            break
    else:
        raise SystemExit(f"sbom.py: {path}: no kind of package that it can read")
    if not any(LICENCE_TEXT in data.decode(errors="ignore") for name, data in artefact.contents.items() if is_licence(name)):
        raise SystemExit(f"sbom.py: {path}: holds no text of its licence")
    return artefact


def is_licence(name: str) -> bool:
    return bool(re.match(r"(LICEN[SC]E|copyright)", PurePosixPath(name).name))


# --- the document ---


def identifier(*words: str) -> str:
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join(words))


def sha256(data: bytes) -> Checksum:
    return Checksum(ChecksumAlgorithm.SHA256, hashlib.sha256(data).hexdigest())


def loader_needs(library: bytes) -> list[str]:
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(library)
        file.flush()
        output = subprocess.run(["readelf", "--dynamic", "--wide", file.name], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\)\s+Shared library: \[(.+)\]", output)


def reference(url: PackageURL) -> list[ExternalPackageRef]:
    return [ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", url.to_string())]


class Builder:
    def __init__(self) -> None:
        self.packages: dict[str, Package] = {}
        self.relationships: list[Relationship] = []

    def relate(self, one: str, kind: RelationshipType, other: str) -> None:
        relationship = Relationship(one, kind, other)
        if relationship not in self.relationships:
            self.relationships.append(relationship)

    def add(self, package: Package) -> str:
        self.packages.setdefault(package.spdx_id, package)
        return package.spdx_id

    def add_needed(self, url: PackageURL) -> str:
        name = f"{url.namespace}/{url.name}" if url.type == "npm" and url.namespace else url.name
        identity = identifier("needed", url.type, name)
        return self.add(Package(identity, name, SpdxNoAssertion(), files_analyzed=False, external_references=reference(url)))

    def add_artefact(self, artefact: Artefact) -> str:
        licence = get_spdx_licensing().parse("MIT")
        identity = self.add(
            Package(
                identifier("package", artefact.path.name),
                artefact.name,
                SpdxNoAssertion(),
                version=artefact.version,
                file_name=artefact.path.name,
                supplier=Actor(ActorType.ORGANIZATION, AUTHORS),
                files_analyzed=False,
                checksums=[sha256(artefact.path.read_bytes())],
                license_concluded=licence,
                license_declared=licence,
                copyright_text=f"Copyright (c) {AUTHORS}",
                external_references=reference(artefact.url),
                primary_package_purpose=artefact.purpose,
            )
        )
        self.relate("SPDXRef-DOCUMENT", RelationshipType.DESCRIBES, identity)
        for url, kind in artefact.needs:
            needed = self.add_needed(url)
            if kind == RelationshipType.DEPENDS_ON:
                self.relate(identity, kind, needed)
            else:
                self.relate(needed, kind, identity)
        for name, data in sorted(artefact.contents.items()):
            if LIBRARY.match(name) and artefact.purpose == PackagePurpose.INSTALL:
                self.relate(identity, RelationshipType.CONTAINS, self.add_library(artefact, name, data))
        return identity

    def add_library(self, artefact: Artefact, name: str, data: bytes) -> str:
        licence = get_spdx_licensing().parse("MIT")
        identity = self.add(
            Package(
                identifier("library", artefact.path.name, name),
                PurePosixPath(name).name,
                SpdxNoAssertion(),
                version=artefact.version,
                file_name=f"./{name}",
                files_analyzed=False,
                checksums=[sha256(data)],
                license_concluded=licence,
                license_declared=licence,
                copyright_text=f"Copyright (c) {AUTHORS}",
                primary_package_purpose=PackagePurpose.LIBRARY,
            )
        )
        if data.startswith(b"\x7fELF"):
            for needed in loader_needs(data):
                self.relate(identity, RelationshipType.DYNAMIC_LINK, self.add_needed(PackageURL("generic", None, needed)))
        return identity


def document_of(artefacts: list[Artefact], source: Artefact, created: datetime) -> Document:
    builder = Builder()
    identities = {artefact.path: builder.add_artefact(artefact) for artefact in artefacts}
    for artefact in artefacts:
        if artefact is not source:
            builder.relate(identities[artefact.path], RelationshipType.GENERATED_FROM, identities[source.path])
    # The same packages, the same name.
    content = "".join(package.checksums[0].value for package in builder.packages.values() if package.checksums)
    name = f"hakmem-{source.version}"
    info = CreationInfo(
        spdx_version="SPDX-2.3",
        spdx_id="SPDXRef-DOCUMENT",
        name=name,
        document_namespace=f"https://spdx.org/spdxdocs/{name}-{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        creators=[Actor(ActorType.ORGANIZATION, AUTHORS), Actor(ActorType.TOOL, "packaging/sbom/sbom.py")],
        created=created,
    )
    return Document(info, packages=list(builder.packages.values()), relationships=builder.relationships)


def main(folder: Path) -> None:
    if "SOURCE_DATE_EPOCH" not in os.environ:
        raise SystemExit("sbom.py: SOURCE_DATE_EPOCH is not set: the document would differ each time")
    created = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc).replace(tzinfo=None)
    found = (path for path in folder.rglob("*") if path.is_file() and folder / "recipes" not in path.parents)
    files = sorted(path for path in found if not NO_PACKAGE.match(path.name))
    artefacts = [read(path) for path in files]
    sources = [a for a in artefacts if a.url.type == "generic"]
    if len(sources) != 1:
        raise SystemExit(f"sbom.py: {folder} holds {len(sources)} source releases, not one")
    document = document_of(artefacts, sources[0], created)
    faults = validate_full_spdx_document(document)
    if faults:
        raise SystemExit("\n".join(f"sbom.py: {fault.validation_message}" for fault in faults))
    output = folder / f"{document.creation_info.name}.spdx.json"
    write_file(document, str(output), validate=False)
    print(output)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
