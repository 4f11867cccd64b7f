from dataclasses import replace
from shlex import quote

import pytest
from hakmem.allocators.peers import Allocator, find
from hakmem.errors import UserError
from hakmem.running.launching import Outcome

from hakmem_lab.programs import CATALOGUE, Program, RealLoad, output_digest, read_catalogue

TINY = {"redis": 200, "postgres": 5}
# Those that need no compiler.
TINY_SERVERS = {
    "redis-flush": 2000,
    "redis-change": 2000,
    "memcached": 2000,
    "node-http": 100,
    "gunicorn": 100,
    "puma": 100,
    "varnish": 200,
    "mariadb-oltp": 2,
    "postgres-connects": 5,
    "minimap2": 1,
}
SERVER = (
    "import http.server, sys; open(sys.argv[2], 'a').close(); "
    "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), "
    "http.server.SimpleHTTPRequestHandler).serve_forever()"
)


def small_load(text: str, **changes) -> RealLoad:
    """A shell script as a load, so that what surrounds a program can be tested without one."""
    command = f"sh -c {quote(text)} sh {{n}}"
    fields = {"command": command, "needs": ["sh dash"], "set": "causes", "size": 1, "count": 1}
    return RealLoad(Program("small", "a shell script", **{**fields, **changes}), 1)


def small_server(load: str, **changes) -> RealLoad:
    command = f"python3 -c {quote(SERVER)} {{port}} {{in}}/started"
    return small_load("", command=command, load=f"sh -c {quote(load)} {{in}}", **changes)


@pytest.mark.turns
@pytest.mark.parametrize("name", TINY)
def test_each_server_gives_the_same_output_under_both(name, tmp_path):
    load = RealLoad(next(one for one in read_catalogue(CATALOGUE) if one.name == name), 1)
    if problem := load.program.problem():
        pytest.skip(problem)
    load.prepare(tmp_path, TINY[name])
    for allocator in (find("glibc"), find("hakmem")):
        outcome = load.contender(allocator).run()
        assert outcome.problem == "", outcome.last_words()
        assert len(outcome.stdout.strip()) >= 32
        assert outcome.peak_rss_kb > 500
        assert outcome.cpu_s > 0
    assert load.served(find("hakmem")).startswith("yes, ")
    assert load.contender(replace(find("hakmem"), library=tmp_path / "libnone.so")).run().problem


@pytest.mark.turns
@pytest.mark.parametrize("name", TINY_SERVERS)
def test_each_server_under_load_gives_the_same_answers_again(name, tmp_path):
    program = next(one for one in read_catalogue(CATALOGUE) if one.name == name)
    load = RealLoad(replace(program, idle=0), 1)
    if problem := load.program.problem():
        pytest.skip(problem)
    load.prepare(tmp_path, TINY_SERVERS[name])
    outcome = load.contender(find("hakmem")).run()
    assert outcome.problem == "", outcome.last_words()
    assert len(outcome.stdout.strip()) >= 32
    assert outcome.cpu_s > 0


def test_missing_program_names_its_package(tmp_path):
    load = small_load("true", needs=["sh dash", "no-such-program no-package"])
    assert load.program.problem() == "no-such-program is not installed (Debian package no-package)"
    with pytest.raises(UserError, match="small: no-such-program is not installed"):
        load.prepare(tmp_path, 1)


def test_load_has_its_size(tmp_path):
    load = small_load("echo $1")
    load.prepare(tmp_path, 7)
    assert load.contender(find("glibc")).run().stdout == "7\n"


def test_other_output_than_under_glibc_does_not_count(tmp_path):
    load = small_load('test -n "$LD_PRELOAD" && echo wrong || echo right')
    load.prepare(tmp_path, 1)
    assert load.contender(find("glibc")).run().problem == ""
    said = load.contender(find("hakmem")).run().problem
    assert said == "its output differs from that of the run by glibc"
    one, other = (Outcome(0, 0, 1.0, 2.0, 9, 1, 1, text, "") for text in "ab")
    assert output_digest(one) != output_digest(other)


def test_program_that_fails_under_glibc_is_told_at_once(tmp_path):
    with pytest.raises(UserError, match="fails under glibc: exit status 4; it last said: broken"):
        small_load("echo broken >&2; exit 4").prepare(tmp_path, 1)


def test_program_with_a_malloc_of_its_own_gets_glibcs_preloaded(tmp_path):
    load = small_load("true", own_malloc=True)
    load.prepare(tmp_path, 1)
    assert load.contender(find("glibc")).preload.name == "libc.so.6"
    assert load.contender(find("hakmem")).preload == find("hakmem").library


def test_clients_of_a_server_run_without_the_library(tmp_path):
    fresh = "rm -f $0/started; echo 1 > $0/count"
    load = small_server(
        'test -z "$LD_PRELOAD" && cat "$0/count"', fresh=f"sh -c {quote(fresh)} {{in}}"
    )
    load.prepare(tmp_path, 1)
    assert not load.folder.is_relative_to(tmp_path)
    library = find("hakmem").library
    row = load.contender(Allocator("hakmem", library))
    # A copy that every user can read.
    assert row.preload == load.folder / f"hakmem-{library.name}"
    assert row.preload.stat().st_mode & 0o004 and load.folder.parent.stat().st_mode & 0o005
    outcome = row.run()
    assert (outcome.problem, outcome.stdout) == ("", "1\n")
    assert (load.folder / "started").exists() and outcome.cpu_s > 0
    folder = load.folder
    del load
    assert not folder.exists()


def test_memory_after_idle_is_that_of_all_processes_of_a_server(tmp_path):
    holds = "import os, time; os.setsid(); held = bytearray(60 << 20); time.sleep(60)"
    command = f"sh -c {quote(f'python3 -c {quote(holds)} & exec python3 -m http.server $0')}"
    load = "sh -c 'sleep 0.5; echo done'"
    server = small_load("", command=f"{command} {{port}}", load=load, idle=1)
    server.prepare(tmp_path, 1)
    # What is asked besides figures has no rest.
    assert server.expected
    outcome = server.contender(find("glibc")).run()
    assert (outcome.problem, outcome.stdout) == ("", "done\n")
    assert 60 << 10 < outcome.idle_rss_kb < 200 << 10


def test_load_that_fails_is_a_run_that_does_not_count(tmp_path):
    with pytest.raises(UserError, match="small fails under glibc: the load failed: exit status 3"):
        small_server("exit 3").prepare(tmp_path, 1)
