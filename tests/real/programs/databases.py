"""Databases under load: what they hold is counted, summed and compared after snapshots, restarts and restores."""

import os
import re
import shutil

import accounts
import inputs
from measured import SHORT_WORKLOADS, WORKLOADS, wait_until
from registry import program
from test_databases import Redis, put_keys

DATABASE_USER = "bench"


class PersistentRedis(Redis):
    """Redis with an append-only file beside its snapshots; both are written by children it forks."""

    def append_only(self):
        # The server's own rewrites, when the file has grown, would refuse ours.
        self.cli("CONFIG", "SET", "auto-aof-rewrite-percentage", "0")
        self.cli("CONFIG", "SET", "appendonly", "yes")
        self.wait_rewritten()

    def rewrite(self):
        self.cli("BGREWRITEAOF")
        self.wait_rewritten()

    def wait_rewritten(self):
        def ended():
            state = self.info("persistence")
            return state["aof_rewrite_in_progress"] == "0" and state["aof_rewrite_scheduled"] == "0"

        wait_until(ended, "the end of a rewrite of the append-only file", 60)
        self.session.require(
            self.info("persistence")["aof_last_bgrewrite_status"] == "ok", "the append-only file was not rewritten"
        )

    def survives(self, *command):
        """The command reads everything back from a file: nothing may have changed."""
        before = self.digest(), self.cli("DBSIZE")
        self.cli(*command)
        after = self.digest(), self.cli("DBSIZE")
        self.session.require(after == before, f"{' '.join(command)} changed {before} to {after}")


LUA_LOAD = """
for i = 1, 60000 do
  redis.call('SET', 'lua:' .. i, string.rep('v', i % 500))
  redis.call('ZADD', 'lua:scores', i * 7919 % 1009, 'member' .. i)
  if i % 3 == 0 then redis.call('DEL', 'lua:' .. (i * 5 % 60000)) end
end
return redis.call('DBSIZE')
"""


@program("redis", does="600,000 requests beside BGSAVE and BGREWRITEAOF; reload, restart; digests; both checkers",
         version=("redis-server", "--version"),
         needs={"redis-server": "redis-server", "redis-benchmark": "redis-tools", "redis-cli": "redis-tools",
                "redis-check-rdb": "redis-tools"})  # fmt: skip
def redis(session):
    commands = "".join(f"{command}\n" for command in put_keys(15000)).encode()
    server = PersistentRedis(session)
    with server.server() as process:
        server.wait_ready(process)
        server.append_only()
        for _ in range(3):
            kinds = "set,get,incr,lpush,lpop,sadd,hset,spop,zadd,mset"
            with server.load("-r", "50000", "-n", "20000", "-t", kinds):
                server.bgsave()
                server.rewrite()
        server.survives("DEBUG", "LOADAOF")
        server.survives("DEBUG", "RELOAD")
        server.cli("FLUSHALL", "SYNC")
        # From here on the same commands in the same order: the keys are those under glibc.
        session.run("redis-cli", "-s", "redis.sock", "--pipe", stdin=commands)
        session.run("redis-cli", "-s", "redis.sock", "EVAL", LUA_LOAD, "0")
        loaded = server.digest()
        session.record("digest of all keys", loaded.encode())
        server.rewrite()
        server.survives("DEBUG", "LOADAOF")
        server.bgsave()
        server.shutdown()
    session.run("redis-check-rdb", "dump.rdb", compare=False)
    session.run("redis-check-aof", "appendonlydir/appendonly.aof.manifest", compare=False)
    with server.server() as process:
        server.wait_ready(process)
        session.require(server.digest() == loaded, "keys differ after a restart from the snapshot")
        server.shutdown()


def unprivileged(session):
    """Gives the session's folder to a user that is not root, and returns what makes a command one of that user's."""
    user = accounts.account()
    if user is not None:
        os.chown(session.directory, user.pw_uid, user.pw_gid)
    return accounts.as_account


class Postgres:
    """A cluster of its own in the session's folder, run by a user that is not root."""

    def __init__(self, session):
        self.session = session
        self.place = ["-h", str(session.directory), "-U", DATABASE_USER]
        self.as_account = unprivileged(session)

    def tool(self, name, *argv):
        return self.as_account([accounts.tool(name), *argv])

    def run(self, name, *argv, **options):
        return self.session.run(*self.tool(name, *argv), **options)

    def initialise(self):
        options = ["-A", "trust", "-E", "UTF8", "--no-locale", "--wal-segsize=16", "--no-sync"]
        self.run("initdb", "-D", "data", "-U", DATABASE_USER, *options, compare=False)

    def server(self):
        settings = {"listen_addresses": "", "fsync": "off", "shared_buffers": "64MB", "log_min_messages": "fatal",
                    "max_parallel_workers_per_gather": "2", "min_parallel_table_scan_size": "0"}  # fmt: skip
        options = [f"--{name}={value}" for name, value in settings.items()]
        place = f"--unix_socket_directories={self.session.directory}"
        return self.session.beside(*self.tool("postgres", "-D", "data", place, *options), timeout_s=120)

    def wait_ready(self, process):
        socket = self.session.directory / ".s.PGSQL.5432"
        pid_file = self.session.directory / "data/postmaster.pid"

        def ready():
            return process.poll() is not None or (socket.exists() and "ready" in pid_file.read_text())

        wait_until(ready, "PostgreSQL's start", 60)
        self.session.require(process.poll() is None, "PostgreSQL ended at its start")

    def bench(self, *argv):
        self.run("pgbench", *self.place, "-n", "--random-seed=42", *argv, "postgres", compare=False)

    def query(self, text, database="postgres", **options):
        return self.run("psql", *self.place, "-d", database, "-XAt", "-v", "ON_ERROR_STOP=1", "-c", text, **options)

    def stop(self):
        self.run("pg_ctl", "stop", "-D", "data", "-m", "fast", "-w", compare=False)


# TPC-B moves the same amount in each of the four tables; every client's amounts follow from the seed.
SUMS = """SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM pgbench_branches),
  (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT sum(delta) FROM pgbench_history),
  (SELECT count(*) FROM pgbench_history)"""
TRANSACTIONS = {"simple": (8, 1000), "extended": (4, 500), "prepared": (4, 1500)}
RECONNECTING = (2, 100)


@program("postgresql", does="pgbench's TPC-B in three protocols and with reconnection: sums of the four tables agree; "
                            "parallel and JIT queries; amcheck; dump and restore",
         version=("psql", "--version"),
         needs={"psql": "postgresql", "/usr/lib/postgresql": "postgresql", "setpriv": "util-linux"})  # fmt: skip
def postgresql(session):
    postgres = Postgres(session)
    postgres.initialise()
    with postgres.server() as process:
        postgres.wait_ready(process)
        postgres.run("pgbench", *postgres.place, "-i", "-q", "-s", "4", "postgres", compare=False)
        for protocol, (clients, count) in TRANSACTIONS.items():
            postgres.bench("-c", str(clients), "-j", "2", "-M", protocol, "-t", str(count))
        clients, count = RECONNECTING
        postgres.bench("-C", "-c", str(clients), "-j", "2", "-t", str(count))
        *sums, rows = postgres.query(SUMS).decode().strip().split("|")
        session.require(len(set(sums)) == 1, f"the sums of the four tables differ: {sums}")
        expected = sum(clients * count for clients, count in (*TRANSACTIONS.values(), RECONNECTING))
        session.require(rows == str(expected), f"{rows} transactions in the history, {expected} were made")
        session.note(f"{expected:,} transactions")
        session.copy(WORKLOADS / "analysis.sql")
        postgres.run("psql", *postgres.place, "-d", "postgres", "-XAt", "-v", "ON_ERROR_STOP=1", "-f", "analysis.sql")
        postgres.run("pg_amcheck", *postgres.place, "--install-missing", "--heapallindexed", "postgres")
        postgres.run("pg_dump", *postgres.place, "-Fd", "-j", "2", "-f", "dump", "postgres", compare=False)
        postgres.query("CREATE DATABASE copy")
        postgres.run("pg_restore", *postgres.place, "-j", "2", "-d", "copy", "dump", compare=False)
        postgres.query(SUMS, database="copy")
        postgres.stop()


@program("sqlite", does="50 rounds of joins and updates in WAL mode, full-text search, reload, integrity_check",
         version=("sqlite3", "--version"), needs={"sqlite3": "sqlite3"})  # fmt: skip
def sqlite(session):
    def run(database, *commands, **options):
        return session.run("sqlite3", "-batch", "-bail", database, *commands, **options)

    inputs.write_sql(session.directory, 50)
    shutil.copy(SHORT_WORKLOADS / "churn.sql", session.directory)
    run("orders.db", "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;", ".read orders.sql")
    # In a file of its own: a copy by .dump does not have the bytes of a full-text index.
    run("notes.db", "ATTACH 'orders.db' AS main_file; CREATE VIRTUAL TABLE notes USING fts5(customer, note);"
        "INSERT INTO notes SELECT customer, note FROM orders; INSERT INTO notes(notes) VALUES('optimize');"
        "SELECT count(*), max(rank) < 0 FROM notes WHERE notes MATCH 'customer AND (1 OR 7 OR abc*)';"
        "INSERT INTO notes(notes) VALUES('integrity-check'); PRAGMA integrity_check;")  # fmt: skip
    run("churn.db", ".read churn.sql")
    for database in ("orders.db", "churn.db"):
        session.write("dump.sql", run(database, ".dump"))
        run(f"copy-of-{database}", ".read dump.sql", "PRAGMA integrity_check;")
        sums = {run(name, ".sha3sum") for name in (database, f"copy-of-{database}")}
        session.require(
            len(sums) == 1 and re.fullmatch(rb"[0-9a-f]+\s*", sums.pop()), f"the copy of {database} differs"
        )
