import os
import subprocess
import tarfile
from dataclasses import replace

import pytest
from hakmem.allocators.peers import Allocator, find
from hakmem.errors import UserError
from hakmem.running.launching import Outcome

from hakmem_lab.real_programs import SERVERS, Needed, RealLoad, output_digest, with_server_cost
from hakmem_lab.workloads import inputs, postgres_load, redis_load, server
from hakmem_lab.workloads.server import DriverError

TINY = {"redis": 200, "postgres": 5}


def small_load(text: str, **changes) -> RealLoad:
    """A shell script as a load, so that what surrounds a program can be tested without one."""
    fields = {
        "name": "small",
        "title": "a shell script",
        "needs": (Needed("sh", "dash"),),
        "command": lambda _folder, size: ("/bin/sh", "-c", text, "sh", str(size)),
    }
    return RealLoad(**{**fields, **changes})


def outcome_of(stdout: str) -> Outcome:
    return Outcome(0, 0, 1.0, 2.0, 1000, 10, 1, stdout, "")


@pytest.mark.parametrize("name", SERVERS)
def test_each_program_gives_the_same_output_under_both(name, tmp_path):
    load = replace(SERVERS[name])
    if problem := load.problem():
        pytest.skip(problem)
    load.prepare(tmp_path, TINY.get(name, 1))
    assert len(load.expected) >= 32
    for allocator in (find("glibc"), find("hakmem")):
        outcome = load.contender(allocator).run()
        assert outcome.problem == "", outcome.last_words()
        assert outcome.peak_rss_kb > 500
        assert outcome.cpu_s > 0
    assert load.served(find("hakmem")).startswith("yes, ")
    assert load.contender(replace(find("hakmem"), library=tmp_path / "libnone.so")).run().problem


def test_missing_program_names_its_package(tmp_path):
    load = small_load("true", needs=(Needed("sh", "dash"), Needed("no-such-program", "no-package")))
    assert load.problem() == "no-such-program is not installed (Debian package no-package)"
    with pytest.raises(UserError, match="small: no-such-program is not installed"):
        load.prepare(tmp_path, 1)


def test_load_must_be_prepared(tmp_path):
    load = small_load("echo $1")
    with pytest.raises(UserError, match="small is not prepared"):
        load.contender(find("glibc"))
    load.prepare(tmp_path, 7)
    assert load.contender(find("glibc")).run().stdout == "7\n"


def test_other_output_than_under_glibc_does_not_count(tmp_path):
    load = small_load('test -n "$LD_PRELOAD" && echo wrong || echo right')
    load.prepare(tmp_path, 1)
    assert load.contender(find("glibc")).run().problem == ""
    said = load.contender(find("hakmem")).run().problem
    assert said == "its output differs from that of the run by glibc"


def test_program_that_fails_under_glibc_is_told_at_once(tmp_path):
    with pytest.raises(UserError, match="fails under glibc: exit status 4; it last said: broken"):
        small_load("echo broken >&2; exit 4").prepare(tmp_path, 1)


def test_driver_runs_without_the_library_and_is_told_of_it(tmp_path):
    text = (
        'test -z "$LD_PRELOAD" || exit 9; echo "Throughput = 12 ops/s"; echo "Checksum = abc";'
        'echo "Server: peak_rss_kb=777 cpu_s=0.5 minor_faults=3 major_faults=0";'
        'echo "library=$HAKLAB_PRELOAD tunables=$GLIBC_TUNABLES"'
    )
    load = small_load(text, is_server=True)
    load.prepare(tmp_path, 1)
    library = find("hakmem").library
    allocator = Allocator("hakmem", library, settings={"GLIBC_TUNABLES": "glibc.pthread.rseq=0"})
    outcome = load.contender(allocator).run()
    assert outcome.problem == ""
    assert f"library={library} tunables=glibc.pthread.rseq=0" in outcome.stdout
    assert (outcome.peak_rss_kb, outcome.cpu_s, outcome.minor_faults) == (777, 0.5, 3)
    assert load.served(find("glibc")) == "nothing preloaded"


def test_program_with_a_malloc_of_its_own_gets_glibcs_preloaded(tmp_path):
    load = small_load("true", brings_malloc=True)
    load.prepare(tmp_path, 1)
    assert load.contender(find("glibc")).preload.name == "libc.so.6"
    assert load.contender(find("hakmem")).preload == find("hakmem").library


def test_servers_line_is_required():
    assert "told no costs" in with_server_cost(outcome_of("Throughput = 1 ops/s")).problem
    assert output_digest(outcome_of("Checksum = 1f\n"), True) == "1f"
    assert output_digest(outcome_of("a"), False) != output_digest(outcome_of("b"), False)


def test_inputs_depend_on_the_size_alone(tmp_path):
    for name, write in (("orders.sql", inputs.write_sql), ("problem.smt2", inputs.write_smt)):
        texts = []
        for size in (4, 4, 5):
            write(tmp_path, size)
            texts.append((tmp_path / name).read_text())
        assert texts[0] == texts[1] != texts[2]


def test_rate_of_redis_is_all_requests_over_all_time():
    names = redis_load.TESTS.split(",")
    rows = [f'"{name}","{100 if name == "set" else 300}"' for name in names]
    text = "\n".join(['"test","rps"', *rows])
    assert redis_load.throughput(text, 1000) == pytest.approx(7 / (1 / 100 + 6 / 300))
    with pytest.raises(DriverError, match="gave 6 rates"):
        redis_load.throughput("\n".join(['"test","rps"', *rows[1:]]), 1000)


def test_postgres_wants_its_packed_database(tmp_path):
    with pytest.raises(DriverError, match=r"postgres\.tar is missing: prepare first"):
        postgres_load.unpack(tmp_path, tmp_path)
    with tarfile.open(tmp_path / postgres_load.PACKED, "w") as packed:
        (tmp_path / "data").mkdir()
        packed.add(tmp_path / "data", "data")
    (tmp_path / "there").mkdir()
    postgres_load.unpack(tmp_path, tmp_path / "there")
    assert (tmp_path / "there" / "data").is_dir()


def test_server_of_root_is_given_to_another_user(monkeypatch):
    monkeypatch.setattr(postgres_load.os, "geteuid", lambda: 0)
    command = postgres_load.as_account(["postgres", "-D", "x"])
    assert command[0] == "setpriv"
    assert "--reuid=0" not in command
    assert command[-3:] == ["postgres", "-D", "x"]
    monkeypatch.setattr(postgres_load.os, "geteuid", lambda: 1000)
    assert postgres_load.as_account(["postgres"]) == ["postgres"]


def test_folder_of_a_killed_driver_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "SCRATCH", tmp_path)
    gone = subprocess.run(["/bin/sh", "-c", "echo $$"], capture_output=True, text=True, check=True)
    left = tmp_path / f"hakmem-redis-{gone.stdout.strip()}-abc"
    of_the_living = tmp_path / f"hakmem-redis-{os.getpid()}-abc"
    left.mkdir()
    of_the_living.mkdir()
    with server.scratch("redis") as folder:
        assert folder.is_dir()
        assert not left.exists()
    assert not folder.exists()
    assert of_the_living.exists()


def test_server_that_does_not_start_is_one_line(monkeypatch, tmp_path):
    load = replace(SERVERS["redis"])
    if problem := load.problem():
        pytest.skip(problem)
    load.prepare(tmp_path, 200)
    fake = tmp_path / "tools" / "redis-server"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho cannot bind\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    outcome = load.contender(find("glibc")).run()
    assert outcome.problem == "exit status 1"
    said = "redis_load: the server ended at its start: exit status 1; it last said: cannot bind"
    assert said in outcome.stderr


def test_redis_requests_too_quick_for_its_clock_have_a_rate():
    text = "test,rps\n" + "".join(f"{kind},inf\n" for kind in redis_load.TESTS.split(","))
    assert redis_load.throughput(text, 50) == pytest.approx(50_000)
