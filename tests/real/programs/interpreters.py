"""Language runtimes with heaps of their own above malloc, their threads and their children."""

import inputs
from measured import SHORT_WORKLOADS, WORKLOADS
from registry import program


@program("perl", does="hashes, sorts, regular expressions, ithreads, fork; everything freed at exit",
         version=("perl", "--version"), needs={"perl": "perl"})  # fmt: skip
def perl(session):
    session.copy(WORKLOADS / "text.pl")
    session.copy(SHORT_WORKLOADS / "churn.pl")
    # perl leaves most memory to the system at its end, unless it is told to free all of it.
    env = {"PERL_HASH_SEED": "0", "PERL_DESTRUCT_LEVEL": "2"}
    session.run("perl", "text.pl", "60", env=env)
    for _ in range(3):
        session.run("perl", "churn.pl", env=env, processes=4)


@program("ruby", does="objects, strings, threads, fibers, Marshal, zlib and fork, partly under GC.stress",
         version=("ruby", "--version"), needs={"ruby": "ruby"})  # fmt: skip
def ruby(session):
    session.copy(WORKLOADS / "objects.rb")
    # The parent and four children.
    session.run("ruby", "objects.rb", "40", processes=5)


@program("node", does="120 workers that pass buffers on, some ended in their work; zlib and crypto pools, children",
         version=("node", "--version"), needs={"node": "nodejs"})  # fmt: skip
def node(session):
    session.copy(WORKLOADS / "objects.js")
    session.copy(SHORT_WORKLOADS / "churn.js")
    session.copy(WORKLOADS / "workers.js")
    session.run("node", "objects.js", "40")
    session.run("node", "churn.js", processes=2)
    session.run("node", "workers.js", "20")


@program("java", does="javac; -Xcomp: parallel sorts, streams, 200 threads, direct buffers, deflate; two collectors",
         version=("java", "-version"),
         needs={"javac": "openjdk-17-jdk-headless", "java": "openjdk-17-jdk-headless"})  # fmt: skip
def java(session):
    session.copy(WORKLOADS / "Sorting.java")
    session.copy(SHORT_WORKLOADS / "Churn.java")
    session.run("javac", "-d", "classes", "Sorting.java", "Churn.java")
    session.record_tree("classes/*.class")
    for collector in ("-XX:+UseG1GC", "-XX:+UseParallelGC"):
        # Every method is compiled before it runs: the compilers' arenas are malloc's largest customer in a JVM.
        session.run("java", "-Xcomp", "-Xmx512m", collector, "-cp", "classes", "Sorting", "6")
    session.run("java", "-Xcomp", "-Xmx512m", "-cp", "classes", "Churn")


@program("lua", does="tables, closures and strings with both collectors",
         version=("lua5.4", "-v"), needs={"lua5.4": "lua5.4"})  # fmt: skip
def lua(session):
    session.copy(WORKLOADS / "tables.lua")
    for collector in ("incremental", "generational"):
        session.run("lua5.4", "-e", f"collectgarbage('{collector}')", "tables.lua", "50")


@program("php", does="arrays, strings, expressions, JSON, generators; with its own heap and without",
         version=("php", "--version"), needs={"php": "php-cli"})  # fmt: skip
def php(session):
    session.copy(WORKLOADS / "arrays.php")
    # PHP opens extensions with RTLD_DEEPBIND: what the library says of that is its own.
    for own_heap in ("1", "0"):
        session.run("php", "-d", "memory_limit=-1", "arrays.php", "15",
                    env={"USE_ZEND_ALLOC": own_heap, "HAKMEM_DEEPBIND": "quiet"})


@program("z3", does="factors of a product of two 20-bit numbers, a graph in three colours",
         version=("z3", "--version"), needs={"z3": "z3"})  # fmt: skip
def z3(session):
    inputs.write_smt(session.directory, 20)
    session.run("z3", "problem.smt2")
