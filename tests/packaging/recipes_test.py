"""recipes_test.py RELEASE CMAKE BUILD [--all]: the recipes have the release's version and hashes, and ask CMake for what it knows.

vcpkg and Spack cannot be had from a registry: their recipes run with stand-ins for the functions they call. --all: the port
is built by that, and a program against it.
"""
import hashlib
import itertools
import json
import re
import runpy
import subprocess
import sys
import tempfile
import types
from pathlib import Path

from support import ROOT, clean_environment, expect, release_archive, run

SEMANTIC_VERSION = re.compile(r"\d+\.\d+\.\d+")
STATES = re.compile(r"State: (built by tests|parsed only|parsed and evaluated only|compiled and evaluated only)")


def text_of(recipes: Path, name: str) -> str:
    return (recipes / name).read_text()


def check_versions_and_hashes(recipes: Path, archive: Path) -> str:
    version = archive.name.removeprefix("hakmem-").removesuffix(".tar.xz")
    content = archive.read_bytes()
    sha256, sha512 = hashlib.sha256(content).hexdigest(), hashlib.sha512(content).hexdigest()
    for name, digest in (
        ("conan/conandata.yml", sha256),
        ("meson/subprojects/hakmem.wrap", sha256),
        ("vcpkg/portfile.cmake", sha512),
        ("nix/default.nix", sha256),
        ("spack/package.py", sha256),
    ):
        text = text_of(recipes, name)
        expect(digest in text, f"{name} has the release's hash")
        expect(archive.as_uri() in text, f"{name} has the release's address {archive.as_uri()}")
    for file in filter(Path.is_file, recipes.rglob("*")):
        other = set(SEMANTIC_VERSION.findall(re.sub(r"\b(Spack|cmake|>=?) ?\d[\d.]*", "", file.read_text()))) - {version}
        expect(not other, f"{file.name} has no version but {version}: {other}")
    return version


def check_states(recipes: Path) -> None:
    """Each recipe says what was run of it, and the table of packaging/README.md says the same."""
    rows = dict(re.findall(r"^\| [^|]+ \| `(\w+)/` \| ([\w ]+) \|", (ROOT / "packaging/README.md").read_text(), re.MULTILINE))
    for folder in sorted(p for p in recipes.iterdir() if p.is_dir()):
        marks = {m for file in folder.rglob("*") if file.is_file() for m in STATES.findall(file.read_text())}
        expect(len(marks) == 1, f"{folder.name}: one state: {marks}")
        expect(rows.get(folder.name) == marks.pop(), f"packaging/README.md says the same of {folder.name}: {rows.get(folder.name)!r}")


def known_options(build: str) -> dict[str, str]:
    cache = (Path(build) / "CMakeCache.txt").read_text()
    return dict(re.findall(r"^(HAKMEM_\w+):(\w+)=", cache, re.MULTILINE))


def check_definitions(who: str, definitions: dict[str, str], options: dict[str, str]) -> None:
    expect(bool(definitions), f"{who} passes options")
    for name, value in definitions.items():
        expect(name in options, f"{who}: CMakeLists.txt has an option {name}")
        if options[name] == "BOOL":
            expect(value in ("ON", "OFF"), f"{who}: {name} is ON or OFF: {value}")
    libraries = definitions["HAKMEM_LIBRARIES"].split(";")
    # CMakeLists.txt refuses others when it configures; --all and the test of Nix and Conan do.
    expect(set(libraries) <= {"shared", "static", "hardened", "hardened-static"}, f"{who}: known libraries: {libraries}")


def parse(flags: list[str]) -> dict[str, str]:
    return dict(flag.removeprefix("-D").split("=", 1) for flag in flags)


def check_conan(recipes: Path, options: dict[str, str]) -> None:
    names = re.findall(r"cache_variables\[\"(\w+)\"\]", text_of(recipes, "conan/conanfile.py"))
    expect(len(names) >= 4 and set(names) <= set(options), f"conan: CMakeLists.txt has the options {names}")


# --- Spack ---


def spack_stand_ins() -> tuple[dict[str, types.ModuleType], list[tuple]]:
    """Modules that a package.py imports; directives note what they were called with, and take nothing unknown."""
    calls: list[tuple] = []
    accepted = {
        "version": {"sha256"},
        "variant": {"default", "description"},
        "depends_on": {"type", "when"},
        "requires": {"msg", "policy", "when"},
        "license": {"checked_by"},
    }

    def directive(name: str):
        def call(*arguments, **named):
            expect(set(named) <= accepted[name], f"spack: {name} knows {set(named)}")
            calls.append((name, arguments, named))

        return call

    class CMakePackage:
        def __init__(self, chosen: dict[str, bool]):
            self.chosen = chosen
            self.spec = {("+" if on else "~") + name for name, on in chosen.items()}

        def define(self, name: str, value) -> str:
            return f"-D{name}={('ON' if value else 'OFF') if isinstance(value, bool) else value}"

        def define_from_variant(self, name: str, variant: str) -> str:
            return self.define(name, self.chosen[variant])

    modules = {name: types.ModuleType(name) for name in ("spack", "spack.package", "spack_repo", "spack_repo.builtin",
                                                         "spack_repo.builtin.build_systems", "spack_repo.builtin.build_systems.cmake")}  # fmt: skip
    for name in accepted:
        setattr(modules["spack.package"], name, directive(name))
    modules["spack_repo.builtin.build_systems.cmake"].CMakePackage = CMakePackage
    return modules, calls


def check_spack(recipes: Path, version: str, options: dict[str, str]) -> None:
    modules, calls = spack_stand_ins()
    sys.modules.update(modules)
    package = runpy.run_path(str(recipes / "spack/package.py"))["Hakmem"]
    expect([c[1] for c in calls if c[0] == "version"] == [(version,)], f"spack: one version, {version}")
    variants = [c[1][0] for c in calls if c[0] == "variant"]
    expect(bool(package.__doc__) and package.url.endswith(".tar.xz"), "spack: a description and an address")
    for chosen in itertools.product((True, False), repeat=len(variants)):
        flags = package(dict(zip(variants, chosen))).cmake_args()
        check_definitions(f"spack {chosen}", parse(flags), options)


# --- vcpkg ---


def check_port_description(recipes: Path, version: str) -> dict:
    """vcpkg's own rules: https://learn.microsoft.com/vcpkg/reference/vcpkg-json."""
    port = json.loads(text_of(recipes, "vcpkg/vcpkg.json"))
    known = {"name", "version", "description", "homepage", "license", "supports", "dependencies", "features", "port-version"}
    strange = {key for key in port if not key.startswith("$")} - known
    expect(not strange, f"vcpkg.json: no field that vcpkg does not know: {strange}")
    expect(port["name"] == "hakmem" and port["version"] == version, f"vcpkg.json: hakmem {version}")
    for dependency in port["dependencies"]:
        expect(set(dependency) <= {"name", "host", "platform", "features"}, f"vcpkg.json: dependency {dependency}")
    for name, feature in port["features"].items():
        expect(bool(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)), f"vcpkg.json: feature {name}")
        expect(set(feature) <= {"description", "dependencies", "supports"} and "description" in feature, f"vcpkg.json: feature {name}")
    return port


def run_port(recipes: Path, work: Path, cmake: str, linkage: str, features: list[str], build: bool) -> dict[str, str]:
    run(
        cmake, f"-DPORT_FOLDER={recipes / 'vcpkg'}", f"-DWORK={work}", f"-DLINKAGE={linkage}", f"-DFEATURES={';'.join(['core', *features])}",
        f"-DBUILD={'ON' if build else 'OFF'}", "-P", ROOT / "tests/packaging/stand_ins/vcpkg.cmake",
    )  # fmt: skip
    share = work / "packages/share/hakmem"
    expect((share / "copyright").read_bytes() == (ROOT / "LICENSE").read_bytes(), "vcpkg: the licence is packed")
    expect((share / "usage").is_file(), "vcpkg: usage is packed")
    return parse((work / "configure.txt").read_text().splitlines())


def check_port_users(work: Path, cmake: str, linkage: str, features: list[str], usage: str) -> None:
    """A program for each target that usage names, by the package where vcpkg puts it."""
    targets = ["hakmem::hakmem"]
    if features:
        targets.append("hakmem::hakmem_hardened" + ("_static" if linkage == "static" else ""))
    expect(all(target in usage for target in targets), f"vcpkg: usage names {targets}")
    project = work / "user"
    project.mkdir()
    lines = ["cmake_minimum_required(VERSION 3.18)", "project(user LANGUAGES C CXX)", "find_package(hakmem CONFIG REQUIRED)"]
    for number, target in enumerate(targets):
        lines.append(f"add_executable(user{number} {ROOT}/tests/install/consumer/program.cc)")
        lines.append(f"target_compile_features(user{number} PRIVATE cxx_std_17)")
        lines.append(f"target_link_libraries(user{number} PRIVATE {target})")
    (project / "CMakeLists.txt").write_text("\n".join(lines))
    run(cmake, "-G", "Ninja", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={work / 'packages'}")
    run(cmake, "--build", project / "build")
    for number, target in enumerate(targets):
        output = run(project / f"build/user{number}").strip()
        expect(bool(re.fullmatch(r"version \S+ ours 1 1 1 served 1 threw 1", output)), f"vcpkg: {target} {linkage} serves: {output!r}")
    # The same by pkg-config, which knows the package by one name.
    environment = clean_environment(PKG_CONFIG_LIBDIR=str(work / "packages/lib/pkgconfig"))
    flags = run("pkg-config", "--cflags", "--libs", "hakmem", env=environment).split()
    program = work / "by_pkg_config"
    run("c++", "-std=c++17", ROOT / "tests/install/consumer/program.cc", "-o", program, *flags)
    output = run(program, env=clean_environment(LD_LIBRARY_PATH=str(work / "packages/lib"))).strip()
    expect("ours 1 1 1 served 1" in output, f"vcpkg: hakmem.pc {linkage} serves: {output!r}")


def check_vcpkg(recipes: Path, version: str, cmake: str, options: dict[str, str], build: bool) -> None:
    port = check_port_description(recipes, version)
    choices = itertools.product(("dynamic", "static"), ([], sorted(port["features"])))
    for linkage, features in choices:
        with tempfile.TemporaryDirectory() as temporary:
            work = Path(temporary).resolve()
            definitions = run_port(recipes, work, cmake, linkage, features, build)
            check_definitions(f"vcpkg {linkage} {features}", definitions, options)
            kinds = {library.endswith("static") for library in definitions["HAKMEM_LIBRARIES"].split(";")}
            expect(kinds == {linkage == "static"}, f"vcpkg: a {linkage} triplet has libraries of its kind alone: {definitions}")
            if build:
                check_port_users(work, cmake, linkage, features, text_of(recipes, "vcpkg/usage"))


def check_refusals(recipes: Path, archive: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for present, why in (([], "no release"), (["hakmem-1.tar.xz", "hakmem-2.tar.xz"], "two releases")):
            for name in present:
                (folder / name).write_bytes(b"")
            command = [ROOT / "packaging/recipes.sh", folder, "https://example.org"]
            refused = subprocess.run(command, capture_output=True, text=True, env=clean_environment())
            expect(refused.returncode == 1 and "not one" in refused.stderr, f"{why}: refused: {refused.stderr}")
            expect(not (folder / "recipes").exists(), f"{why}: nothing is written")


def main(release: str, cmake: str, build: str, everything: bool) -> None:
    archive = release_archive(release)
    recipes = Path(release) / "recipes"
    version = check_versions_and_hashes(recipes, archive)
    check_states(recipes)
    options = known_options(build)
    check_conan(recipes, options)
    check_spack(recipes, version, options)
    check_vcpkg(recipes, version, cmake, options, everything)
    check_refusals(recipes, archive)


main(*sys.argv[1:4], "--all" in sys.argv[4:])
