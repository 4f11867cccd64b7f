"""Compiler, assembler, linker, debugger, build tool, version control."""

from random import Random


def test_gxx(compare, needs, workloads):
    needs("g++", "g++")
    needs("binutils", "as")

    def workload(session):
        session.copy(workloads / "large.cpp")
        # The driver, cc1plus and as.
        session.run("g++", "-std=c++17", "-O1", "-c", "large.cpp", "-o", "large.o", processes=3)
        session.record_file("large.o")

    compare(workload)


def test_linked_program(compare, needs, workloads):
    """Links a C++ program under the preload, then runs it under the preload."""
    needs("g++", "g++")
    needs("binutils", "ld")

    def workload(session):
        session.copy(workloads / "new_delete.cpp")
        session.run("g++", "-std=c++17", "-O1", "-g", "-c", "new_delete.cpp", "-o", "new_delete.o", processes=3)
        # The driver, collect2 and ld.
        session.run("g++", "-pthread", "new_delete.o", "-o", "new_delete", processes=3)
        session.record_file("new_delete")
        session.run("./new_delete")

    compare(workload)


def test_gdb(compare, needs, workloads):
    """Reads debug information with gdb's worker threads; starts no program."""
    needs("g++", "g++")
    needs("gdb", "gdb")

    def workload(session):
        session.copy(workloads / "new_delete.cpp")
        session.run("g++", "-std=c++17", "-g", "-pthread", "new_delete.cpp", "-o", "new_delete", processes=3)
        session.run(
            "gdb", "-nx", "-batch",
            "-iex", "set debuginfod enabled off",
            "-ex", "info functions thread",
            "-ex", "info types Node",
            "-ex", "info line main",
            "-ex", "disassemble main",
            "-ex", "ptype std::string",
            "-ex", "python print(sum(len(str(i)) for i in range(100000)))",
            "new_delete",
        )  # fmt: skip

    compare(workload)


def test_cmake(compare, needs, workloads):
    needs("cmake", "cmake")

    def workload(session):
        session.copy(workloads / "churn.cmake")
        session.write("data", "".join(f"{i}\n" for i in range(50000)))
        session.run("cmake", "-P", "churn.cmake", processes=2)
        session.run("cmake", "-E", "sha256sum", "data")
        session.run("cmake", "-E", "tar", "cJf", "data.tar.xz", "--mtime=2024-01-01 00:00:00Z", "data")
        session.run("cmake", "-E", "tar", "tf", "data.tar.xz")
        session.record_file("data.tar.xz")

    compare(workload)


GIT_ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "Author",
    "GIT_AUTHOR_EMAIL": "author@example.org",
    "GIT_COMMITTER_NAME": "Committer",
    "GIT_COMMITTER_EMAIL": "committer@example.org",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_PAGER": "cat",
}

GIT_SETTINGS = {
    "gc.auto": "0",
    "maintenance.auto": "false",
    "pack.threads": "2",
    "core.fsync": "none",
}


def test_git(compare, needs):
    needs("git", "git")
    files, commits = 300, 25

    def workload(session):
        random = Random(1)
        lines = {
            n: [f"file {n} line {i} {random.random()}" for i in range(random.randrange(5, 200))] for n in range(files)
        }

        def git(*argv, date=1700000000, **options):
            env = {**GIT_ENVIRONMENT, "GIT_AUTHOR_DATE": f"{date} +0000", "GIT_COMMITTER_DATE": f"{date} +0000"}
            return session.run("git", *argv, env=env, **options)

        def commit(number, touched):
            for n in touched:
                lines[n][random.randrange(len(lines[n]))] = f"changed in {number} {random.random()}"
                session.write(f"dir{n % 12}/file{n}", "\n".join(lines[n]) + "\n")
            git("add", "-A")
            git("commit", "-q", "-m", f"change {number}", date=1700000000 + number * 60)

        git("init", "-q", "-b", "main")
        for name, value in GIT_SETTINGS.items():
            git("config", name, value)
        commit(0, range(files))
        for number in range(1, commits):
            if number == 10:
                git("checkout", "-q", "-b", "side")
            if number == 18:
                git("checkout", "-q", "main")
            # Each branch has files of its own, so that the merge is clean.
            side = 10 <= number < 18
            commit(number, random.sample(range(0 if side else 1, files, 2), 40))
        git("merge", "-q", "-m", "merge", "side", date=1700900000)
        git("gc", "-q", "--aggressive", "--prune=now", timeout_s=120)
        git("fsck", "--full", "--strict")
        git("log", "--all", "--graph", "--stat", "-p")
        git("blame", "dir1/file1")
        git("grep", "-n", "changed in 2")
        git("cat-file", "--batch-all-objects", "--batch-check")
        # With one thread the same deltas are found every time: the pack's
        # bytes, and with them its name, must be the same too.
        git("-c", "pack.threads=1", "repack", "-q", "-a", "-d", "-f")
        (pack,) = (path.relative_to(session.directory) for path in session.directory.glob(".git/objects/pack/*.pack"))
        session.record_file(pack)
        git("verify-pack", "-v", str(pack.with_suffix(".idx")))
        git("status", "--short")

    compare(workload)
