"""SQLite's own tests. Every test must end as it does under glibc."""

import re
import shutil

from measured import REPO, WORKLOADS
from programs.databases import unprivileged
from registry import LONG_LIMIT_S, program

# What tests/real/fetch_tests.sh builds: no package has SQLite's tests, or testfixture, which runs them.
SQLITE_TESTS = REPO / "build/real/sqlite-tests"
SQLITE_PASSED = re.compile(r"^(\S.*?)\.\.\.(?: \(.*\) )? Ok$", re.MULTILINE)
SQLITE_OMITTED = re.compile(r"^\.  (.*)$", re.MULTILINE)
SQLITE_FAILED = re.compile(r"^!Failures on these tests:(.*)$", re.MULTILINE)
SQLITE_FILE = re.compile(r"^Time: (\S+) \d+ ms$", re.MULTILINE)
SQLITE_SUMMARY = re.compile(r"^(\d+) errors out of (\d+) tests", re.MULTILINE)
SQLITE_LEFT = re.compile(r"^(?:Unfreed memory|\d+ files were left open).*$", re.MULTILINE)


def sqlite_results(said):
    """What testfixture's output says of its tests: each kind of result, the failures first, then the number of all."""
    results = {
        "tests that failed": " ".join(SQLITE_FAILED.findall(said)).split(),
        "what was left": SQLITE_LEFT.findall(said),
        "omitted": SQLITE_OMITTED.findall(said),
        "files": SQLITE_FILE.findall(said),
        "tests that passed": SQLITE_PASSED.findall(said),
    }
    summary = SQLITE_SUMMARY.search(said)
    return results, tuple(map(int, summary.groups())) if summary else None


@program("sqlite-tests", does="SQLite's own tests, those of veryquick.test", needs={"setpriv": "util-linux"},
         version=("sh", "-c", f"echo 'puts [sqlite3 -version]' | {SQLITE_TESTS}/testfixture"),
         limit_s=LONG_LIMIT_S, fetched=(SQLITE_TESTS / "testfixture",))  # fmt: skip
def sqlite_tests(session):
    as_account = unprivileged(session)
    # The user may not be able to read where they lie.
    shutil.copytree(SQLITE_TESTS, session.directory / "sqlite")
    session.copy(WORKLOADS / "served.tcl")
    argv = ["sqlite/testfixture", "served.tcl", "sqlite/test/veryquick.test"]
    said = session.run(*as_account(argv), compare=False, statuses=(0, 1)).decode(errors="replace")
    results, summary = sqlite_results(said)
    session.require(summary, f"the tests did not reach their end:\n{said[-2000:]}")
    for kind, found in results.items():
        session.record(kind, "\n".join(found).encode())
    session.record("errors and tests", "{} {}".format(*summary).encode())
    session.require(not summary[0], f"tests failed: {results['tests that failed']}")
    session.note(f"{len(results['tests that passed']):,} tests passed in {len(results['files']):,} files")
