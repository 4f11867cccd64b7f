"""meson_test.py RELEASE CMAKE LIBRARY [--all]: a project takes hakmem by the wrap and dependency('hakmem').

Meson builds it by lists and flags of its own: they must be those of CMake's build, whose LIBRARY is compared too.
--all: the archive, both, the hardened build, the one that replaces nothing, an installation.
"""
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from support import ROOT, clean_environment, expect, release_archive, run, tool

PROJECT = """project('consumer', 'c', 'cpp', default_options: ['c_std=c11', 'cpp_std=c++17'])
hakmem = dependency('hakmem', version: '>=0.1')
executable('in_c', 'program.c', dependencies: hakmem)
executable('in_cc', 'program.cc', dependencies: hakmem)
executable('unnamed', 'unnamed.cc', dependencies: hakmem)
"""
# What the two build systems add of their own: kind of build, PIC, colours, 64-bit offsets (which x86-64
# and aarch64 have anyway), gcc's default standards.
OWN = re.compile(r"-DNDEBUG|-std=gnu(17|\+\+17)|-D\w+_EXPORTS|-D_FILE_OFFSET_BITS=64|-D_GLIBCXX_ASSERTIONS=1|-fdiagnostics-color.*|-fPIC|-Wno-missing-prototypes"
                 r"|-Wstrict-prototypes|-Wmissing-prototypes")  # fmt: skip


def make_project(release: Path, work: Path) -> Path:
    project = work / "project"
    shutil.copytree(release / "recipes/meson/subprojects", project / "subprojects")
    for name in ("program.c", "program.cc", "unnamed.cc"):
        shutil.copy(ROOT / "tests/install/consumer" / name, project)
    (project / "meson.build").write_text(PROJECT)
    return project


def build(project: Path, name: str, *options: str) -> Path:
    folder = project.parent / name
    # No hakmem of this machine may be found in its place.
    environment = clean_environment(PKG_CONFIG_LIBDIR="/nonexistent")
    run(tool("meson"), "setup", folder, project, "--wrap-mode=forcefallback", *options, env=environment)
    output = run("ninja", "-C", folder)
    expect("warning:" not in output, f"{name}: no warning: {output}")
    return folder


def check_programs(folder: Path) -> None:
    for program, wanted in (
        ("in_c", r"version \S+ ours 1 1 served 1"),
        ("in_cc", r"version \S+ ours 1 1 1 served 1 threw 1"),
        ("unnamed", "read 2 ours 1 1 1"),
    ):
        output = run(folder / program, input="x\n").strip()
        expect(bool(re.fullmatch(wanted, output)), f"{folder.name}: {program} prints {wanted!r}: {output!r}")


def check_no_override(folder: Path) -> None:
    # in_c frees a block of hakmem_malloc by free, which needs one malloc for both.
    output = run(folder / "in_cc").strip()
    expect(bool(re.fullmatch(r"version \S+ ours 0 1 0 served 1 threw 1", output)), f"{folder.name}: malloc stays as it was: {output!r}")
    output = run(folder / "unnamed", input="x\n").strip()
    expect(output == "read 2 ours 0 0 0", f"{folder.name}: new and libc stay as they were: {output!r}")


def flags_by_file(commands: Path, top: str) -> dict[str, set[str]]:
    flags = {}
    for entry in json.loads(commands.read_text()):
        file = (Path(entry["directory"]) / entry["file"]).resolve().as_posix()
        if f"/{top}/src/" not in file:
            continue
        words = re.findall(r"(?:[^\s\"']|\"[^\"]*\"|'[^']*')+", entry["command"])
        # -O3, CMake's own for a plain Release, is not compared.
        kept = {w for w in words if re.match(r"-[DWf]|-std=", w) and not OWN.fullmatch(w)}
        flags[file.split(f"/{top}/")[1]] = kept
    return flags


def compare_with_cmake(archive: Path, work: Path, cmake: str, folder: Path) -> None:
    run("tar", "-xf", archive, "-C", work)
    top = archive.name.removesuffix(".tar.xz")
    reference = work / "reference"
    run(cmake, "-G", "Ninja", "-S", work / top, "-B", reference, "-DHAKMEM_BUILD_TESTS=OFF", "-DHAKMEM_BUILD_BENCH=OFF", "-DHAKMEM_LIBRARIES=shared")
    wanted = {}
    # Target by target: the core library of the tests compiles the same files with other flags.
    for entry in json.loads((reference / "compile_commands.json").read_text()):
        if "hakmem.dir" in entry["command"]:
            wanted[entry["file"]] = entry
    picked = work / "reference_commands.json"
    picked.write_text(json.dumps(list(wanted.values())))
    by_cmake, by_meson = flags_by_file(picked, top), flags_by_file(folder / "compile_commands.json", top)
    expect(len(by_cmake) > 40, f"CMake's list of files was found: {sorted(by_cmake)}")
    expect(set(by_cmake) == set(by_meson), f"the same files: {set(by_cmake) ^ set(by_meson)}")
    for file, flags in by_cmake.items():
        expect(flags == by_meson[file], f"{file}: the same flags: {flags ^ by_meson[file]}")


def interface(library: Path) -> dict[str, object]:
    exports = re.findall(r"^\S+ (\w \S+)$", run("nm", "-D", "--defined-only", library), re.MULTILINE)
    dynamic = run("readelf", "-dW", library)
    kept = re.findall(r"\((NEEDED|SONAME|FLAGS|FLAGS_1|BIND_NOW)\)\s+(.*)", dynamic)
    return {"exports": sorted(exports), "dynamic section": sorted(kept)}


def compare_libraries(built: Path, reference: Path) -> None:
    ours, theirs = interface(built), interface(reference)
    for what in ours:
        expect(ours[what] == theirs[what], f"{what} of Meson's and CMake's library are the same: {ours[what]} and {theirs[what]}")


def check_installation(folder: Path, work: Path, archive: Path) -> None:
    run(tool("meson"), "install", "-C", folder, "--destdir", work / "installed", "--no-rebuild")
    (pc,) = (work / "installed").rglob("hakmem.pc")
    version = archive.name.removeprefix("hakmem-").removesuffix(".tar.xz")
    expect(f"Version: {version}\n" in pc.read_text(), f"hakmem.pc has version {version}")
    headers = {p.name for p in (work / "installed").rglob("hakmem/*.h*")}
    expect(headers == {p.name for p in (ROOT / "include/hakmem").iterdir()}, f"all headers are installed: {headers}")


def main(release: str, cmake: str, library: str, everything: bool) -> None:
    archive = release_archive(release)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary).resolve()
        project = make_project(Path(release), work)
        folder = build(project, "shared")
        check_programs(folder)
        compare_with_cmake(archive, work, cmake, folder)
        (built,) = (p for p in folder.rglob("libhakmem.so.*") if p.is_file() and not p.is_symlink() and not p.name.endswith(".symbols"))
        compare_libraries(built, Path(library))
        check_installation(folder, work, archive)
        if everything:
            check_programs(build(project, "static", "--default-library=static"))
            check_programs(build(project, "both", "--default-library=both"))
            hardened = build(project, "hardened", "-Dhakmem:hardened=true")
            check_programs(hardened)
            expect(any(hardened.rglob("libhakmem-hardened.so")), "the hardened build has a name of its own")
            check_programs(build(project, "hardened_static", "-Dhakmem:hardened=true", "--default-library=static"))
            for kind in ("shared", "static"):
                folder = build(project, f"no_override_{kind}", "-Dhakmem:override=false", f"--default-library={kind}")
                check_no_override(folder)


main(*sys.argv[1:4], "--all" in sys.argv[4:])
