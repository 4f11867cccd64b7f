"""Language runtimes: threads, fork, and heaps of their own above malloc."""

import shutil

import pytest

PYTHON = "/usr/bin/python3"


def test_python3(compare, needs, workloads):
    needs("python3", "python3")

    def workload(session):
        session.copy(workloads / "churn.py")
        # Itself and three children; workers of the pool leave by _exit.
        session.run(PYTHON, "churn.py", "2", processes=4)

    compare(workload)


def test_python3_malloc(compare, needs, workloads):
    """Without Python's own small-object allocator: every object is a block."""
    needs("python3", "python3")

    def workload(session):
        session.copy(workloads / "churn.py")
        session.run(PYTHON, "churn.py", "2", env={"PYTHONMALLOC": "malloc"}, processes=4)

    compare(workload)


def test_perl(compare, needs, workloads):
    needs("perl", "perl")

    def workload(session):
        session.copy(workloads / "churn.pl")
        session.run("perl", "churn.pl", env={"PERL_HASH_SEED": "0"}, processes=4)

    compare(workload)


def test_ruby(compare, needs, workloads):
    needs("ruby", "ruby")

    def workload(session):
        session.copy(workloads / "churn.rb")
        session.run("ruby", "churn.rb", processes=4)

    compare(workload)


def test_php(compare, needs, workloads):
    """Extensions are opened with RTLD_DEEPBIND; the library's line about that is its own."""
    needs("php-cli", "php")

    def workload(session):
        session.copy(workloads / "churn.php")
        quiet = {"HAKMEM_DEEPBIND": "quiet"}
        session.run("php", "-m", env=quiet)
        # With its own heap and without: then every value is a block. A child each.
        for own_heap in ("1", "0"):
            session.run("php", "churn.php", env={**quiet, "USE_ZEND_ALLOC": own_heap}, processes=2)
            session.run("rm", "archive.tar")

    compare(workload)


def test_node(compare, needs, workloads):
    needs("nodejs", "node")

    def workload(session):
        session.copy(workloads / "churn.js")
        session.run("node", "churn.js", processes=2)

    compare(workload)


def test_java(compare, workloads):
    """Optional: no Debian installation is asked to hold a JDK for one test."""
    if not shutil.which("javac", path="/usr/bin"):
        pytest.skip("no JDK (Debian package default-jdk-headless)")

    def workload(session):
        session.copy(workloads / "Churn.java")
        session.run("java", "-XX:+UseSerialGC", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "Churn.java")

    compare(workload)


def test_bash(compare, needs, workloads):
    needs("bash", "bash")

    def workload(session):
        session.copy(workloads / "churn.sh")
        session.run("bash", "churn.sh")

    compare(workload)


def test_gawk(compare, needs, workloads):
    needs("gawk", "gawk")

    def workload(session):
        session.copy(workloads / "churn.awk")
        session.write("input", "".join(f"row{i * 7919 % 5003} value{i} text {i * i}\n" for i in range(60000)))
        session.run("gawk", "-f", "churn.awk", "input")

    compare(workload)
