"""Compilers on a project of some 40,000 lines, the debugger, version control."""

from random import Random

from measured import WORKLOADS
from registry import LONG_LIMIT_S, program

SOURCES = "/usr/src/googletest"
# What of GoogleTest is built beside its libraries, and what of that is run.
TESTS = (
    "gmock_link_test", "gmock_ex_test", "gtest_unittest", "gtest-typed-test_test", "gtest_stress_test",
    "googletest-printers-test", "googletest-port-test", "googletest-param-test-test", "googletest-listener-test",
    "googletest-options-test", "sample1_unittest", "sample6_unittest", "sample9_unittest", "sample10_unittest",
)  # fmt: skip
STARTED_TESTS = (
    "gtest_unittest",
    "gtest_stress_test",
    "googletest-printers-test",
    "googletest-port-test",
    "gmock_link_test",
)
BUILD_TOOLS = {"cmake": "cmake", "make": "make", "ld": "binutils", f"{SOURCES}/CMakeLists.txt": "googletest"}


def build_googletest(session, c_compiler, cxx_compiler, *settings):
    """Builds with two jobs; every object, archive and program must have the bytes it has under glibc."""
    options = ["-Dgtest_build_tests=ON", "-Dgmock_build_tests=ON", "-Dgtest_build_samples=ON", *settings]
    compilers = [f"-DCMAKE_C_COMPILER={c_compiler}", f"-DCMAKE_CXX_COMPILER={cxx_compiler}"]
    cmake = ["cmake", "-G", "Unix Makefiles", "-S", SOURCES, "-B", "build", *compilers, *options]
    session.run(*cmake, compare=False)
    session.run("make", "-C", "build", "-j2", "gmock_main", *TESTS, compare=False, processes=40)
    objects = session.record_tree("build/**/*.o")
    session.record_tree("build/**/*.a")
    for test in TESTS:
        (path,) = session.directory.glob(f"build/**/{test}")
        session.record_file(path.relative_to(session.directory))
    session.note(f"{objects} object files equal")


@program("g++", does="builds GoogleTest with its tests, optimised, and runs some of what it built",
         version=("g++", "--version"), needs={"g++": "g++", "gcc": "gcc", **BUILD_TOOLS},
         limit_s=LONG_LIMIT_S)  # fmt: skip
def gxx(session):
    build_googletest(session, "gcc", "g++", "-DCMAKE_CXX_FLAGS=-O1")
    for test in STARTED_TESTS:
        (path,) = session.directory.glob(f"build/**/{test}")
        # Its exit status tells whether its tests passed; its output has times.
        session.run(str(path), compare=False)


@program("clang", does="builds GoogleTest with its tests and debug information",
         version=("clang++", "--version"),
         needs={"clang++": "clang", "clang": "clang", **BUILD_TOOLS}, limit_s=LONG_LIMIT_S)  # fmt: skip
def clang(session):
    build_googletest(session, "clang", "clang++", "-DCMAKE_CXX_FLAGS=-g")


@program("gdb", does="200 stops in a C++ program: pretty-printed containers, backtraces, expressions, its types",
         version=("gdb", "--version"), needs={"gdb": "gdb", "g++": "g++"})  # fmt: skip
def gdb(session):
    session.copy(WORKLOADS / "printing.cpp")
    session.copy(WORKLOADS / "printing.gdb")
    session.run("g++", "-std=c++17", "-O0", "-g", "printing.cpp", "-o", "printing", processes=3)
    # What the program under the debugger prints goes to files: the two would mix.
    session.run("gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-x", "printing.gdb", "printing")
    session.run(
        "gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off",
        "-ex", "info functions .", "-ex", "info types .", "-ex", "info variables .",
        "-ex", "disassemble /s main", "printing",
    )  # fmt: skip


GIT_ENVIRONMENT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_PAGER": "cat", "GIT_AUTHOR_DATE": "1700000000 +0000",
                   "GIT_COMMITTER_DATE": "1700000000 +0000"}  # fmt: skip


# Of each 200 commits, those from this one on are on a branch.
FIRST_ON_SIDE = 150


def history(commits, files):
    """A stream for git fast-import: each commit changes some lines of a few files."""
    random = Random(7)
    lines = {
        n: [f"file {n} line {i} {random.random()}" for i in range(random.randrange(20, 400))] for n in range(files)
    }
    for number in range(commits):
        touched = range(files) if number == 0 else random.sample(range(files), 6)
        message = f"change {number}\n"
        yield f"commit refs/heads/{'side' if number % 200 >= FIRST_ON_SIDE else 'main'}\n"
        yield f"committer Committer <committer@example.org> {1700000000 + 60 * number} +0000\n"
        yield f"data {len(message)}\n{message}"
        if number == FIRST_ON_SIDE:
            yield "from refs/heads/main\n"
        for n in touched:
            lines[n][random.randrange(len(lines[n]))] = f"changed in {number} {random.random()}"
            content = "\n".join(lines[n]) + "\n"
            yield f"M 100644 inline dir{n % 20}/file{n}\ndata {len(content)}\n{content}\n"


@program("git", does="900 commits imported; gc --aggressive, fsck, log -p, blame, merge, bundle, clone",
         version=("git", "--version"), needs={"git": "git"})  # fmt: skip
def git(session):
    def run(*argv, **options):
        return session.run("git", *argv, env=GIT_ENVIRONMENT, **options)

    run("init", "-q", "-b", "main", "repo")
    stream = "".join(history(900, 300)).encode()
    run("-C", "repo", "fast-import", "--quiet", stdin=stream)
    for setting in ("gc.auto=0", "core.fsync=none", "pack.threads=2", "user.name=Name", "user.email=name@example.org"):
        run("-C", "repo", "config", *setting.split("="))
    run("-C", "repo", "fsck", "--full", "--strict", "--no-progress")
    run("-C", "repo", "gc", "-q", "--aggressive", "--prune=now")
    run("-C", "repo", "fsck", "--full", "--strict", "--no-progress")
    run("-C", "repo", "reset", "-q", "--hard")
    run("-C", "repo", "log", "--all", "--graph", "--stat", "-p", "-M", "-C")
    run("-C", "repo", "blame", "-C", "-C", "dir1/file1")
    run("-C", "repo", "rev-list", "--all", "--objects")
    run("-C", "repo", "grep", "-n", "-E", "changed in [0-9]*7 ")
    run("-C", "repo", "merge", "-q", "-X", "ours", "-m", "merge", "side", compare=False)
    run("-C", "repo", "bundle", "create", "-q", "../repo.bundle", "--all")
    run("clone", "-q", "repo.bundle", "copy", processes=2)
    run("-C", "copy", "fsck", "--full", "--strict", "--no-progress")
    run("-C", "copy", "rev-parse", "HEAD", "origin/side")
    # With one thread the same deltas are found every time: the pack's bytes must be the same too.
    run("-C", "repo", "-c", "pack.threads=1", "repack", "-q", "-a", "-d", "-f")
    session.record_tree("repo/.git/objects/pack/*.pack")
