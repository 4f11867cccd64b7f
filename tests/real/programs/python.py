"""CPython's, NumPy's and SciPy's own tests. Every test case must end as it does under glibc."""

from xml.etree import ElementTree

from measured import REPO, WORKLOADS, WorkloadFailed
from registry import LONG_LIMIT_S, program

PYTHON = "/usr/bin/python3"
PACKAGES = "/usr/lib/python3/dist-packages"
SUITE = {PYTHON: "python3", "/usr/lib/python3.11/test/test_threading.py": "libpython3.11-testsuite"}
PYTEST = {PYTHON: "python3", "/usr/bin/pytest-3": "python3-pytest", f"{PACKAGES}/hypothesis": "python3-hypothesis"}
VERSION = (PYTHON, "--version")
RESULTS = "results.xml"
# What tests/real/fetch_tests.sh fetches: Debian's package of the test suite has no tests of sqlite3.
FETCHED_TESTS = REPO / "build/real/python-tests"

PROCESSES_AND_THREADS = """
    test_threading test_thread test_threading_local test_threadsignals test_queue test_fork1
    test_asyncio test_ctypes test_mmap test_signal test_select test_context
""".split()
DATA = """
    test_pickle test_pickletools test_json test_zlib test_bz2 test_lzma test_gzip test_io test_memoryio test_csv
    test_re test_decimal test_hashlib test_struct test_weakref test_gc test_marshal test_codecs test_buffer
""".split()
OBJECTS = """
    test_dict test_list test_tuple test_set test_bytes test_unicode test_array test_memoryview test_deque
    test_collections test_heapq test_sort test_itertools test_functools test_generators test_coroutines test_gc
    test_weakref test_pickle test_json test_re test_long test_int test_float test_complex test_enum test_dataclasses
    test_descr test_class test_exceptions test_ast test_compile test_pyexpat test_sax test_minidom
    test_random test_statistics test_string test_textwrap test_difflib test_threading test_queue
""".split()
NUMPY_MODULES = ("numpy.core", "numpy.lib", "numpy.linalg", "numpy.fft", "numpy.ma", "numpy.random", "numpy.polynomial")
# On processors with AVX-512, where NumPy's arrays lie decides how numpy.logspace rounds the last bit: under any allocator but glibc's the
# first test fails, and others of the second are named.
NOT_EXACT = "not (TestLogspace and test_start_stop_array) and not test_numerical_stability_pi"
SCIPY_MODULES = ("scipy.linalg", "scipy.sparse.csgraph", "scipy.fft", "scipy.spatial", "scipy.ndimage", "scipy.cluster")


def run_suite(session, module, *arguments, env=None):
    """Runs a module that tests and writes a JUnit report, through served.py, and records how each test ended."""
    session.copy(WORKLOADS / "served.py")
    report = session.directory / RESULTS
    report.unlink(missing_ok=True)
    # Tests look at what their children print: only the process that tests prints a line, asked to by served.py.
    settings = {"HAKMEM_SS_OS_STATS": "0", "OPENBLAS_NUM_THREADS": "2", **(env or {})}
    said = session.run(PYTHON, "served.py", module, *arguments, env=settings, compare=False)
    try:
        outcomes = junit_outcomes(report)
    except (OSError, ElementTree.ParseError) as error:
        end = said.decode(errors="replace")[-2000:]
        raise WorkloadFailed(f"{module} {' '.join(arguments)}: no results: {error}\n{end}") from None
    by_outcome = {kind: sorted(n for n, o in outcomes.items() if o == kind) for kind in ("failed", "skipped", "passed")}
    # The failed ones first: of several differences the first is shown.
    for kind, names in by_outcome.items():
        session.record(f"{module}: tests that {kind}", "\n".join(names).encode())
    session.require(by_outcome["passed"], f"{module}: no test passed")
    failed = f", {len(by_outcome['failed'])} failed as under glibc" if by_outcome["failed"] else ""
    session.note(f"{len(by_outcome['passed']):,} tests passed{failed}")
    return outcomes


def junit_outcomes(path):
    """How each test case ended. One that failed and passed when it was run again has passed."""
    outcomes = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        if outcomes.get(name) != "passed":
            outcomes[name] = outcome
    return outcomes


def cpython_tests(session, modules, **options):
    # Failed modules are run again (-w): some cases depend on time.
    report = str(session.directory / RESULTS)
    outcomes = run_suite(session, "test", "-w", "--timeout", "600", "--junit-xml", report, *modules, **options)
    # A module that is not there, or skips itself, is in no report.
    without = modules_without_result(modules, outcomes)
    session.require(not without, f"no test was run of {' '.join(without)}")


def modules_without_result(modules, outcomes):
    """Names of test cases begin with test.MODULE, only those of ctypes with its own package."""
    own = {"test_ctypes": "ctypes.test"}
    prefixes = {module: own.get(module, f"test.{module}") + "." for module in modules}
    return [module for module, prefix in prefixes.items() if not any(name.startswith(prefix) for name in outcomes)]


def pytest_tests(session, modules, *arguments):
    report = f"--junitxml={session.directory / RESULTS}"
    options = ("-q", "-p", "no:cacheprovider", "-m", "not slow", "-k", NOT_EXACT, "--hypothesis-seed=0", report)
    run_suite(session, "pytest", *options, *arguments, "--pyargs", *modules)


@program("cpython", does="CPython's own tests: threads, fork, asyncio, ctypes, pickle, io",
         version=VERSION, needs=SUITE, limit_s=LONG_LIMIT_S)  # fmt: skip
def cpython(session):
    cpython_tests(session, [*PROCESSES_AND_THREADS, *DATA])


@program("cpython-sqlite3", does="CPython's own tests of sqlite3, three times", version=VERSION, needs=SUITE,
         fetched=(FETCHED_TESTS / "test_sqlite3/__init__.py",))  # fmt: skip
def cpython_sqlite3(session):
    modules = sorted(f"test_sqlite3.{path.stem}" for path in FETCHED_TESTS.glob("test_sqlite3/test_*.py"))
    for _ in range(3):
        cpython_tests(session, modules, env={"SERVED_MORE_TESTS": str(FETCHED_TESTS)})


@program("cpython-malloc", does="CPython's own tests with every object from malloc (PYTHONMALLOC=malloc)",
         version=VERSION, needs=SUITE, limit_s=LONG_LIMIT_S)  # fmt: skip
def cpython_malloc(session):
    cpython_tests(session, OBJECTS, env={"PYTHONMALLOC": "malloc"})


@program("numpy", does="NumPy's own tests",
         version=(PYTHON, "-c", "import numpy; print(numpy.__version__)"),
         needs={**PYTEST, f"{PACKAGES}/numpy": "python3-numpy"}, limit_s=LONG_LIMIT_S)  # fmt: skip
def numpy(session):
    pytest_tests(session, NUMPY_MODULES)


@program("scipy", does="SciPy's own tests: " + ", ".join(name.removeprefix("scipy.") for name in SCIPY_MODULES),
         version=(PYTHON, "-c", "import scipy; print(scipy.__version__)"),
         needs={**PYTEST, f"{PACKAGES}/scipy": "python3-scipy"}, limit_s=LONG_LIMIT_S)  # fmt: skip
def scipy(session):
    pytest_tests(session, SCIPY_MODULES)
