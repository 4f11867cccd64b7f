"""Others' tests, Debian's programs and figures over our libraries, beside Debian's own ones.

Sources come from the registries into the cache folder; what is linked is linked with Debian's
library and finds ours by LD_LIBRARY_PATH. Only what passes on Debian's is asked of ours.
"""

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import zip_longest
from pathlib import Path

from hakmem.allocators import cache
from hakmem.allocators.peers import DEBIAN_LIBRARIES, build_folder, repository_root
from hakmem.allocators.recipes import PACKAGES as RECIPE_PACKAGES
from hakmem.errors import REFUSED, UserError
from hakmem.plain_text import last_lines

PASS = "pass"
LIMIT_S = 600
JEMALLOC, TCMALLOC = "libjemalloc.so.2", "libtcmalloc_minimal.so.4"
PACKAGES = {"apt-get": "apt dpkg-dev", "g++": "g++", "nm": "binutils", **RECIPE_PACKAGES}
TIKV_VERSION = "0.7.0"
TIKV_FEATURES = {
    "tikv-jemalloc-ctl": "stats,use_std,profiling,"
    "tikv-jemalloc-sys/unprefixed_malloc_on_supported_platforms",
    "tikv-jemallocator": "stats,profiling,unprefixed_malloc_on_supported_platforms",
}
# What a published crate has lost: its tests need the other crate.
TIKV_EXTRA = {
    "tikv-jemallocator": "[dev-dependencies.tikv-jemalloc-ctl]\n"
    f'version = "={TIKV_VERSION}"\nfeatures = ["use_std", "stats"]\n'
}
# What jemalloc's tests are linked with of its sources: none of it allocates.
TEST_PARTS = ("btalloc", "btalloc_0", "btalloc_1", "math", "mtx", "sleep", "SFMT", "thd", "timer")
SOURCE_PARTS = {
    "integration": ("nstime", "malloc_io", "ticker", "test_hooks"),
    "unit": ("nstime", "malloc_io", "ticker", "test_hooks", "sz", "sc", "bin_info", "div"),
}
PUBLIC = re.compile(
    r" U (malloc|calloc|realloc|free|memalign|valloc|posix_memalign|aligned_alloc|"
    r"malloc_usable_size|malloc_stats_print|[mrxsdn]allocx|sdallocx|mallctl\w*)$", re.MULTILINE
)  # fmt: skip
GPERFTOOLS_TESTS = (
    "malloc_extension_c_test.c", "malloc_extension_test.cc", "tcmalloc_unittest.cc",
    "tcmalloc_large_unittest.cc", "memalign_unittest.cc", "realloc_unittest.cc",
    "thread_dealloc_unittest.cc", "markidle_unittest.cc", "current_allocated_bytes_test.cc",
    "large_heap_fragmentation_unittest.cc", "frag_unittest.cc",
)  # fmt: skip
GPERFTOOLS_PARTS = ("tests/testutil", "base/logging", "base/sysinfo", "base/spinlock",
                    "base/spinlock_internal")  # fmt: skip


@dataclass
class Row:
    """One test: how it ends on Debian's library and on ours, and why ours may differ."""

    part: str
    name: str
    theirs: str
    ours: str
    because: str = ""

    @property
    def counts(self) -> bool:
        return self.theirs == PASS

    @property
    def fails(self) -> bool:
        return self.counts and self.ours != PASS


@dataclass
class Shop:
    """Where it is done, and what was told of it beside the rows."""

    folder: Path = field(default_factory=lambda: cache.cache_folder() / "dropin")
    notes: dict[str, str] = field(default_factory=dict)
    tick: Callable[[str], None] = lambda _: None
    own: Path = field(default_factory=lambda: repository_root() / "tests" / "dropin")
    jemalloc: Path = field(default_factory=lambda: build_folder() / "je" / JEMALLOC)
    tcmalloc: Path = field(default_factory=lambda: build_folder() / "libhakmem.so")

    def work(self, name: str) -> Path:
        """An empty folder."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def source(self, package: str) -> Path:
        """The unpacked sources of a Debian package, kept in the cache."""
        kept = self.folder / "sources" / package
        if not kept.is_dir():
            lists = self.folder / "lists"
            (lists / "partial").mkdir(parents=True, exist_ok=True)
            known = Path("/etc/apt/sources.list.d/debian.sources")
            if not known.is_file():
                raise UserError(f"{known} is missing: it names the sources", REFUSED)
            text = re.sub(r"(?m)^Types: .*", "Types: deb-src", known.read_text())
            (self.folder / "deb-src.sources").write_text(text)
            apt = ["apt-get", "-o", "Dir::Etc::SourceParts=-", "-o", f"Dir::State::Lists={lists}",
                   "-o", f"Dir::Etc::SourceList={self.folder}/deb-src.sources"]  # fmt: skip
            tool([*apt, "update"], self.folder)
            fetched = self.work(f"sources/{package}.new")
            tool([*apt, "source", package], fetched)
            fetched.rename(kept)
        return next(path for path in sorted(kept.iterdir()) if path.is_dir())


def run(
    command: Sequence[str | Path], folder: Path, limit_s: int = LIMIT_S, **variables: str | Path
):
    """A finished process with stdout and stderr as text; one that takes too long ends as 124."""
    words = ["timeout", str(limit_s), *map(str, command)]
    given = os.environ | {name: str(value) for name, value in variables.items()}
    how = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
    return subprocess.run(words, cwd=folder, env=given, check=False, **how)


def tool(command: Sequence[str | Path], folder: Path, **variables: str | Path) -> str:
    """A step that must succeed."""
    name = str(command[0])
    if name in PACKAGES and shutil.which(name) is None:
        raise UserError(f"{name} is not installed (Debian package {PACKAGES[name]})", REFUSED)
    ran = run(command, folder, **variables)
    if ran.returncode:
        raise UserError(f"{' '.join(map(str, command))} failed: {last_lines(ran.stderr)}")
    return ran.stdout


def each(work: Callable, things: Sequence) -> list:
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(work, things))


def beside(part: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> list[Row]:
    return [Row(part, name, word, ours.get(name, "no result")) for name, word in theirs.items()]


def jemalloc(shop: Shop) -> Iterator[Row]:
    """Its unit and integration tests that call what its library exports."""
    source, work = shop.source("jemalloc"), shop.work("jemalloc")
    how = ["--enable-prof", "--disable-doc", "--with-lg-page=12", "--with-lg-hugepage=21"]
    tool(["./configure", *how], source)
    (source / "include/jemalloc/internal/private_namespace.h").write_text("")
    # Unit tests see all of its headers, and the library's functions under their public names.
    text = (source / "test/include/test/jemalloc_test.h").read_text()
    (work / "test").mkdir()
    (work / "test/jemalloc_test.h").write_text(text.replace("#  define JEMALLOC_JET\n", "", 1))
    found = {"cannot be compiled": 0, "call nothing public": 0, "link": 0}
    for kind, parts in SOURCE_PARTS.items():
        flags = ["-std=gnu11", "-w", "-O1", "-fno-pic", "-fno-builtin", "-fvisibility=hidden",
                 "-D_GNU_SOURCE", "-D_REENTRANT", "-Iinclude", f"-I{work}", "-Itest/include",
                 f"-DJEMALLOC_{kind.upper()}_TEST"]  # fmt: skip

        def compiled(path: Path, kind: str = kind, flags: list[str] = flags) -> Path | None:
            target = work / f"{kind}-{path.parent.name}-{path.stem}.o"
            return (
                target
                if not run(["gcc", *flags, "-c", path, "-o", target], source).returncode
                else None
            )

        common = [source / f"test/src/{name}.c" for name in TEST_PARTS]
        common += [source / f"src/{name}.c" for name in parts]
        parts_made = [tool_made(made) for made in each(compiled, [*common, shop.own / "runner.c"])]
        tests = sorted((source / "test" / kind).glob("*.c"))
        for path, made in zip(tests, each(compiled, tests), strict=True):
            name = f"{kind}/{path.stem}"
            shop.tick(name)
            if made is None:
                found["cannot be compiled"] += 1
            elif not PUBLIC.search(tool(["nm", made], work)):
                found["call nothing public"] += 1
            else:
                program = linked(
                    [made, *parts_made, DEBIAN_LIBRARIES / JEMALLOC, "-lm"], made.with_suffix("")
                )
                found["link"] += 1
                script = path.with_suffix(".sh")
                yield from beside("jemalloc", *(results(name, script, program, at)
                                  for at in (DEBIAN_LIBRARIES, shop.jemalloc.parent)))  # fmt: skip
    shop.notes["jemalloc's test files"] = ", ".join(f"{n} {what}" for what, n in found.items())


def tool_made(made: Path | None) -> Path:
    if made is None:
        raise UserError("a part of jemalloc's tests cannot be compiled")
    return made


def linked(inputs: Sequence[str | Path], target: Path) -> Path:
    """What the library does not export becomes address 0: a test that uses it ends by itself."""
    command = ["gcc", "-no-pie", *inputs, "-o", target]
    said = run(command, target.parent).stderr
    absent = sorted(set(re.findall(r"undefined reference to `(\w+)'", said)))
    tool([*command, *(f"-Wl,--defsym={name}=0" for name in absent)], target.parent)
    return target


def results(name: str, script: Path, program: Path, library: Path) -> dict[str, str]:
    """Each test of one program by the words of runner.c."""
    start = 'export MALLOC_CONF=; [ ! -f "$0" ] || . "$0"; export MALLOC_CONF; exec "$1" x x'
    given = {"LD_LIBRARY_PATH": library, "enable_fill": "1", "enable_prof": "1"}
    said = run(["sh", "-c", start, script, program], program.parent, **given).stdout
    lines = re.findall(r"^RESULT (.+?): (.+?): (.*)$", said, re.MULTILINE)
    return {f"{name} {test}": f"{word}: {why}" if why else word for test, word, why in lines}


def tikv(shop: Shop) -> Iterator[Row]:
    """The tests of two Rust crates, over the library in place of the sources they bring."""
    work = shop.work("tikv")
    (work / "src").mkdir()
    (work / "src/lib.rs").write_text("")
    wanted = "".join(f'{name} = "={TIKV_VERSION}"\n' for name in TIKV_FEATURES)
    head = '[package]\nname = "dropin"\nversion = "0.0.0"\nedition = "2021"\n'
    (work / "Cargo.toml").write_text(f"{head}[workspace]\n[dependencies]\n{wanted}")
    known = json.loads(tool(["cargo", "metadata", "--format-version", "1"], work))["packages"]
    folders = {one["name"]: Path(one["manifest_path"]).parent for one in known}
    (work / "link").mkdir()
    (work / "link/libjemalloc.so").symlink_to(DEBIAN_LIBRARIES / JEMALLOC)
    given = {
        "CARGO_TARGET_DIR": work / "target",
        "JEMALLOC_OVERRIDE": work / "link/libjemalloc.so",
        "RUSTFLAGS": "-C relro-level=off -C link-arg=-Wl,--unresolved-symbols=ignore-all,-z,lazy",
    }
    for name, features in TIKV_FEATURES.items():
        crate = work / name
        shutil.copytree(folders[name], crate)
        with (crate / "Cargo.toml").open("a") as file:
            file.write(f"\n[workspace]\n{TIKV_EXTRA.get(name, '')}")
        build = ["cargo", "test", f"--features={features}"]
        said = tool([*build, "--no-run", "--message-format=json"], crate, **given)
        messages = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        programs = [m["executable"] for m in messages if m.get("executable")]
        both = []
        for library in (DEBIAN_LIBRARIES, shop.jemalloc.parent):
            found: dict[str, str] = {}
            for program in programs:
                shop.tick(f"{name} {Path(program).stem}")
                listed = run([program, "--list"], crate, LD_LIBRARY_PATH=DEBIAN_LIBRARIES).stdout
                for test in re.findall(r"^(\S.*): test$", listed, re.MULTILINE):
                    ran = run([program, "--exact", test], crate, LD_LIBRARY_PATH=library)
                    found[f"{name} {Path(program).stem.rpartition('-')[0]} {test}"] = ended(ran)
            documents = run([*build, "--doc"], crate, LD_LIBRARY_PATH=library, **given).stdout
            for test, word in re.findall(r"^test (src/.*) \.\.\. (\w+)$", documents, re.MULTILINE):
                found[f"{name} {test}"] = PASS if word == "ok" else word
            both.append(found)
        yield from beside("tikv", *both)


def ended(ran: subprocess.CompletedProcess) -> str:
    """How a process ended, with each check that it says failed; else its last words."""
    said = f"{ran.stdout}\n{ran.stderr}"
    telling = re.findall(r".*(?:FATAL|panicked|symbol lookup|Check failed).*", said)
    if ran.returncode == 0 and not telling:
        return PASS
    return "; ".join(dict.fromkeys(telling)) or f"status {ran.returncode}: {last_lines(said, 1)}"


def gperftools(shop: Shop) -> Iterator[Row]:
    """Its tests of MallocExtension and tc_ names; malloc_extension.cc is the C++ side of ours."""
    root, work = shop.source("google-perftools"), shop.work("gperftools")
    source = root / "src"
    tool(["cmake", "-S", root, "-B", work], work)
    # Debian's version is without the last number.
    text = (work / "config.h").read_text()
    (work / "config.h").write_text(re.sub(r"(VERSION|STRING) (.*)\.0\"", r'\1 \2"', text))
    # A failed check is told, and the test goes on; the C test has a second form without its hooks.
    (work / "base").mkdir()
    text = (source / "base/logging.h").read_text()
    (work / "base/logging.h").write_text(re.sub(r"abort\(\);( *\\)", r";\1", text))
    hookless = work / "malloc_extension_c_test_without_hooks.c"
    text = (source / "tests/malloc_extension_c_test.c").read_text()
    hookless.write_text(text.replace("  TestMallocHook();\n", ""))

    def compiled(path: Path) -> Path:
        target = work / f"{path.stem}.o"
        compiler = ["gcc"] if path.suffix == ".c" else ["g++", "-std=gnu++17"]
        flags = ["-w", "-O1", "-fno-builtin", "-Dcfree=free"]
        folders = [f"-I{folder}" for folder in (work, work / "gperftools", source)]
        tool([*compiler, *flags, *folders, "-c", path, "-o", target], work)
        return target

    common = each(compiled, [source / f"{name}.cc" for name in GPERFTOOLS_PARTS])
    shims = each(compiled, [shop.own / "malloc_extension.cc", source / "internal_logging.cc"])
    tests = [hookless, *(source / "tests" / name for name in GPERFTOOLS_TESTS)]
    sides = ((), DEBIAN_LIBRARIES / TCMALLOC), (shims, shop.tcmalloc)
    for path, made in zip(tests, each(compiled, tests), strict=True):
        shop.tick(path.stem)
        words = []
        for extra, library in sides:
            program = work / f"{path.stem}-{library.name}"
            link = ["g++", made, *common, *extra, library, f"-Wl,-rpath,{library.parent}"]
            ran = run([*link, "-o", program], work)
            words.append(ended(run([program], work) if ran.returncode == 0 else ran))
        yield Row("gperftools", path.stem, *words)


def programs(shop: Shop) -> Iterator[Row]:
    """Scripts that run Debian's programs: equal output, and the same answers to their mallctl."""
    shim = shop.work("programs") / "trace.so"
    tool(["gcc", "-O1", "-shared", "-fPIC", shop.own / "trace.c", "-o", shim], shim.parent)
    for place, script in enumerate(sorted((shop.own / "programs").glob("*.sh"))):
        shop.tick(script.stem)
        needs = script.read_text().partition("\n")[0].lstrip("# ").split(", ")
        path = f"{os.environ['PATH']}:/usr/sbin"
        if lacking := [one for one in needs if not shutil.which(one.split()[0], path=path)]:
            shop.notes[script.stem] = f"not run: {lacking[0]} (program, package) is not installed"
            continue
        given = {"REDIS": redis_with_defrag(shop)} if script.stem == "redis-defrag" else {}
        ours = shop.jemalloc.parent
        words, asked = [], []
        for turn, (library, how) in enumerate(((DEBIAN_LIBRARIES, shim), (ours, ""), (ours, shim))):
            folder = shop.work(f"programs/{script.stem}-{turn}")
            folder.chmod(0o777)
            given |= {"LD_LIBRARY_PATH": library, "LD_PRELOAD": how, "PATH": path}
            given |= {"DROPIN_TRACE": folder / "trace", "PORT": 20000 + 100 * place + 10 * turn}
            words.append(run(["sh", script], folder, **given))
            trace = folder / "trace"
            asked.append(trace.read_text(errors="replace") if trace.exists() else "")
        problem = difference(words) or served_badly(asked[2], shop.jemalloc) or refused(asked)
        yield Row("programs", script.stem, ended(words[0]), problem or PASS)
        names = re.findall(r"^(?:mallctl|mib|uses) (\S+)", asked[2], re.MULTILINE)
        told = ", ".join(dict.fromkeys(names)) or "malloc alone"
        shop.notes[f"{script.stem} asks"] = f"{told} ({len(names)} lines)"


def difference(words: Sequence[subprocess.CompletedProcess]) -> str:
    for one in words[1:]:
        if (one.returncode, one.stdout) != (words[0].returncode, words[0].stdout):
            pairs = zip_longest(words[0].stdout.splitlines(), one.stdout.splitlines())
            line = next(
                (f"{ours!r} for {theirs!r}" for theirs, ours in pairs if theirs != ours), ""
            )
            return f"status {one.returncode}: {line or 'no line'}: {last_lines(one.stderr, 1)}"
    return ""


def served_badly(trace: str, library: Path) -> str:
    """Whose mallctl the processes have, by trace.c; others than ours must not be among them."""
    by = set(re.findall(r"^served by (.*)$", trace, re.MULTILINE))
    others = {path for path in by if Path(path).resolve() != library.resolve()}
    return f"served by {', '.join(others) or 'nobody'}" if others or not by else ""


def refused(asked: Sequence[str]) -> str:
    """Names that ours answers with another error than Debian's."""
    theirs, ours = (
        dict(re.findall(r"^(?:mallctl|mib) (\S+) -> (\d+)", text, re.MULTILINE))
        for text in asked[::2]
    )
    other = [
        f"{name} -> {error}" for name, error in ours.items() if theirs.get(name, error) != error
    ]
    return f"answers otherwise: {', '.join(other)}" if other else ""


def redis_with_defrag(shop: Shop) -> Path:
    """Redis of Debian's sources with active defragmentation, which Debian does not compile in."""
    source = shop.source("redis")
    program, hint = source / "src/redis-server", source / "hint.o"
    if not program.exists():
        tool(["gcc", "-O2", "-c", shop.own / "defrag_hint.c", "-o", hint], source)
        with_hint = ["REDIS_CFLAGS=-DJEMALLOC_FRAG_HINT", f"REDIS_LDFLAGS={hint}"]
        how = ["MALLOC=jemalloc", "USE_SYSTEM_JEMALLOC=yes", "USE_SYSTEMD=no", "OPTIMIZATION=-O1"]
        jobs = f"-j{len(os.sched_getaffinity(0))}"
        tool(["make", jobs, "-C", "src", "redis-server", *how, *with_hint], source)
    return program


def figures(shop: Shop) -> Iterator[Row]:
    """stats.* against an own count and smaps, within 1 %; see figures.c."""
    program = shop.work("figures") / "figures"
    source = (shop.own / "figures.c", DEBIAN_LIBRARIES / JEMALLOC)
    tool(["gcc", "-O1", "-fno-builtin", *source, "-o", program], program.parent)
    said = tool([program], program.parent, LD_LIBRARY_PATH=shop.jemalloc.parent)
    for name, word in judged(said).items():
        yield Row("figures", name, PASS, word)


def judged(said: str) -> dict[str, str]:
    found = {}
    for phase, name, *values in re.findall(r"^(\w+) (\S+) (-?\d+) (\d+)$", said, re.MULTILINE):
        told, true = map(int, values)
        off = (told - true) / true * 100
        fits = off >= -1 and (off <= 1 or (phase, name) == ("sparse", "active"))
        found[f"{phase} {name}"] = PASS if fits else f"{told:,} said, {true:,} true: {off:+.2f} %"
    return found


PARTS = {part.__name__: part for part in (jemalloc, tikv, gperftools, programs, figures)}


def reasons(own: Path) -> list[dict[str, str]]:
    return tomllib.loads((own / "reasons.toml").read_text())["reason"]


def explain(rows: Sequence[Row], known: Sequence[Mapping[str, str]]) -> None:
    """Each failure's reason: the first entry whose test fits its name and whose words its own."""
    for row in rows:
        if row.fails:
            name = f"{row.part} {row.name}"
            fitting = (one for one in known if fnmatchcase(name, one["test"]))
            fits = (one["because"] for one in fitting if re.fullmatch(one["says"], row.ours))
            row.because = next(fits, "")
