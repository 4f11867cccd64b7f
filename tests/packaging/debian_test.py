"""debian_test.py LIBRARY HARDENED: packaging/debian fits the tree: names, versions, lists, manual page, drop-in, scripts."""
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
DEBIAN = REPO / "packaging/debian"
PYTHON = REPO / "python"
# Of pyproject.toml's dependencies, what Debian lacks, and what does its work in the package.
STOOD_IN_FOR = {"symbolic": "stand-ins/symbolic/debuginfo.py", "pydemumble": "stand-ins/pydemumble.py"}
# Of Python 3.9, which is Debian 11's: the package is not built there.
NOT_NEEDED = {"cxxfilt"}


def exported(library: Path) -> set[str]:
    text = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].split("@")[0] for line in text.splitlines() if line}


def listed(symbols: str, soname: str) -> dict[str, str]:
    """Of one library in the symbols file: the names, each with the version it came with."""
    section = re.search(rf"^{re.escape(soname)} libhakmem0 .*\n((?: .*\n)*)", symbols, re.MULTILINE)
    return dict(re.findall(r"^ (\w+)@Base (\S+)$", section[1], re.MULTILINE)) if section else {}


def symbols_differ(symbols: str, soname: str, found: set[str], version: str) -> Iterator[str]:
    names = listed(symbols, soname)
    if not names:
        yield f"symbols: {soname} has no list"
    yield from (f"symbols: {soname} lists {name}, which is not exported" for name in sorted(names.keys() - found))
    yield from (f"symbols: {soname} exports {name}, which is not listed" for name in sorted(found - names.keys()))
    yield from (
        f"symbols: {name} came with {came}, after this version {version}"
        for name, came in names.items() if numbers(came) > numbers(version)
    )


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def version_of_tree(text: str) -> str:
    found = re.search(r"^project\(hakmem VERSION (\d+\.\d+\.\d+)", text, re.MULTILINE)
    return found[1] if found else ""


def other_versions(version: str, texts: dict[str, str]) -> Iterator[str]:
    """A version that is written where it should be derived."""
    for name, text in texts.items():
        if version in text:
            yield f"{name} has the version {version}: CMakeLists.txt is its place"


HEADERS = ("hakmem.h", "heap.h", "stats.h")


def headers() -> str:
    return "\n".join((REPO / "include/hakmem" / name).read_text() for name in HEADERS)


def page_differs(page: str, header: str) -> Iterator[str]:
    """The functions, the formats of profiles, and which header has to be included."""
    declared = set(re.findall(r"^(?:\w[\w *]*?[ *])(hakmem_\w+)\(", header, re.MULTILINE))
    formats = re.findall(r"^  (HAKMEM_PROFILE_\w+),? +/\*", header, re.MULTILINE)
    needed = [f".Dv {name}" for name in formats] + [f".In hakmem/{name}" for name in HEADERS]
    yield from (f"libhakmem(3) lacks {text}" for text in needed if text not in page)
    synopsis = page.partition(".Sh SYNOPSIS")[2].partition(".Sh DESCRIPTION")[0]
    described = page.partition(".Sh DESCRIPTION")[2]
    told = set(re.findall(r"^\.F[no] (hakmem_\w+)", synopsis, re.MULTILINE))
    if len(declared) < 25 or len(formats) < 4:
        yield f"only {len(declared)} functions found in the header"
    yield from (f"libhakmem(3) lacks {name}" for name in sorted(declared - told))
    yield from (f"libhakmem(3) has {name}, which the header lacks" for name in sorted(told - declared))
    yield from (f"libhakmem(3) does not describe {name}" for name in sorted(told) if name not in described)


def lint(page: Path) -> Iterator[str]:
    tools = {
        "mandoc": ["mandoc", "-Tlint", "-Wwarning", str(page)],
        "man": ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(page)],
    }
    for tool, command in tools.items():
        if shutil.which(tool) is None:
            print(f"{tool} is not installed: {page.name} is not checked by it")
            continue
        # mandoc tells on stdout, man on stderr; man's stdout is the page.
        answer = subprocess.run(command, capture_output=True, text=True, env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin", "MANWIDTH": "80"})
        told = answer.stderr + (answer.stdout if tool == "mandoc" else "")
        if told.strip() or answer.returncode:
            yield f"{tool} on {page.name}: {told.strip()}"


def libraries_differ(rules: str, installed: str, command: str) -> Iterator[str]:
    """The libraries that the command knows are built, in the package, and beside the command."""
    kinds = re.search(r"^LIBRARIES = \((.*)\)$", command, re.MULTILINE)
    names = ["libhakmem", *(f"libhakmem-{kind}" for kind in re.findall(r'"(\w+)"', kinds[1] if kinds else ""))]
    if len(names) < 3:
        yield "the command's list of libraries is not found"
    for name in names:
        if not re.search(rf"^usr/lib/\*/{re.escape(name)}\.so(\.\*)?$", installed, re.MULTILINE):
            yield f"libhakmem0.install lacks {name}"
        target = name.removeprefix("lib").replace("-", "_")
        if not re.search(rf"^TARGETS = .*\b{target}\b", rules, re.MULTILINE):
            yield f"rules: {target} is not built"
        if not re.search(rf"/hakmem/lib/{re.escape(name)}\.so$|^\tfor library in .*\b{re.escape(name)}\b.*; do \\\n\t +ln -s", rules, re.MULTILINE):
            yield f"rules: {name} is not beside the command"


def programs_differ(rules: str, sources: dict[str, str]) -> Iterator[str]:
    asked = set()
    for text in sources.values():
        asked |= set(re.findall(r'bench_program\("([\w.]+)"\)', text)) | set(re.findall(r'"bench" / "([\w.]+\.so)"', text))
    given = set(re.search(r"^PROGRAMS = (.*)$", rules, re.MULTILINE)[1].split())
    given |= set(re.search(r"^PRELOADED = (.*)$", rules, re.MULTILINE)[1].split())
    yield from (f"rules: the command starts {name}, which is not installed" for name in sorted(asked - given))
    yield from (f"rules: {name} is installed, and the command does not start it" for name in sorted(given - asked))


def dependencies_differ(control: str, project: str) -> Iterator[str]:
    depends = control.partition("\nPackage: hakmem\n")[2]
    wanted = re.findall(r'^    "([\w-]+)', re.search(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)[1], re.MULTILINE)
    for name in set(wanted) - NOT_NEEDED:
        if name in STOOD_IN_FOR:
            if not (DEBIAN / STOOD_IN_FOR[name]).is_file():
                yield f"{STOOD_IN_FOR[name]} is missing"
        elif f" python3-{name}" not in depends:
            yield f"control: the command depends on {name}, the package not on python3-{name}"


def drop_in_fails(example: Path, library: Path) -> Iterator[str]:
    command = [sys.executable, str(DEBIAN / "tests/drop-in"), str(example), str(library)]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        yield f"{example.name}: {answer.stderr.strip().splitlines()[-1]}"


def preload_fails(library: Path) -> Iterator[str]:
    answer = subprocess.run([DEBIAN / "tests/preload", library], capture_output=True, text=True)
    if answer.returncode:
        yield f"tests/preload: {answer.stderr.strip()}"


def scripts_fail() -> Iterator[str]:
    # running.sh is sourced.
    scripts = [*REPO.glob("packaging/*/*.sh"), *DEBIAN.glob("tests/*")]
    shells = [path for path in scripts if path.read_text().startswith(("#!/bin/sh", "#!/bin/bash", "#!/usr/bin/env bash"))]
    if len(shells) < 6:
        yield f"only {len(shells)} scripts found"
    for path in shells:
        shell = "sh" if path.read_text().startswith("#!/bin/sh") else "bash"
        answer = subprocess.run([shell, "-n", path], capture_output=True, text=True)
        if answer.returncode or answer.stderr:
            yield answer.stderr.strip()
        if not path.stat().st_mode & 0o100:
            yield f"{path.name} is not executable"


def problems(libraries: dict[str, Path]) -> Iterator[str]:
    version = version_of_tree((REPO / "CMakeLists.txt").read_text())
    written = (DEBIAN / "rules", DEBIAN / "control", DEBIAN / "build.sh", *DEBIAN.glob("man/*.*"), *DEBIAN.glob("tests/*"))
    texts = {str(p.relative_to(DEBIAN)): p.read_text() for p in written}
    yield from other_versions(version, texts)
    for soname, library in libraries.items():
        yield from symbols_differ((DEBIAN / "libhakmem0.symbols").read_text(), soname, exported(library), version)
    yield from page_differs(texts["man/libhakmem.3"], headers())
    yield from lint(DEBIAN / "man/libhakmem.3")
    if (PYTHON / "pyproject.toml").is_file():
        installed = (DEBIAN / "libhakmem0.install").read_text()
        yield from libraries_differ(texts["rules"], installed, (PYTHON / "hakmem/cli.py").read_text())
        yield from programs_differ(texts["rules"], {str(p): p.read_text() for p in PYTHON.glob("hakmem/**/*.py")})
        yield from dependencies_differ(texts["control"], (PYTHON / "pyproject.toml").read_text())
    yield from drop_in_fails(DEBIAN / "examples/hakmem.conf", libraries["libhakmem.so.0"])
    yield from preload_fails(libraries["libhakmem-hardened.so.0"])
    yield from scripts_fail()


if __name__ == "__main__":
    given = {"libhakmem.so.0": Path(sys.argv[1]), "libhakmem-hardened.so.0": Path(sys.argv[2])}
    sys.exit("\n".join(problems(given)) or 0)
