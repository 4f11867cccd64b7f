"""SQLite through its shell, and Redis under load with a snapshot by fork."""

import re
import socket
import subprocess

from preload import WorkloadFailed, wait_until


def test_sqlite3(compare, needs, workloads):
    needs("sqlite3", "sqlite3")

    def workload(session):
        session.run("sqlite3", "-batch", "churn.db", stdin=(workloads / "churn.sql").read_bytes())
        session.run("sqlite3", "-batch", "churn.db", ".dump")
        session.run("sqlite3", "-batch", "churn.db", ".sha3sum")
        session.record_file("churn.db")

    compare(workload)


class Redis:
    """A redis-server of one session, and the clients that talk to it."""

    def __init__(self, session):
        self.session = session
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def server(self):
        return self.session.beside(
            "redis-server",
            "--bind", "127.0.0.1", "--port", str(self.port), "--unixsocket", "redis.sock",
            "--save", "", "--appendonly", "no", "--dbfilename", "dump.rdb",
            *self.allow_debug(), "--daemonize", "no",
        )  # fmt: skip

    @staticmethod
    def major():
        told = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
        return int(re.search(r"\bv=(\d+)\.", told)[1])

    def allow_debug(self):
        """Redis 7 has to be told; Redis 6 (Debian 11) does not know the option."""
        return ("--enable-debug-command", "local") if self.major() >= 7 else ()

    def cli(self, *argv):
        reply = self.session.run("redis-cli", "-s", "redis.sock", *argv, compare=False)
        text = reply.decode().strip()
        # redis-cli ends with status 0 even where the server refused.
        if text.startswith("ERR"):
            raise WorkloadFailed(f"redis-cli {argv}: {text}")
        return text

    def wait_ready(self, process):
        wait_until(lambda: process.poll() is not None or self.answers(), "redis-server's answer")
        if process.poll() is not None:
            raise WorkloadFailed("redis-server ended at its start")

    def answers(self):
        """Asked over the port by the test itself: a client would fail, not wait."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64) == b"+PONG\r\n"
        except OSError:
            return False

    def load(self, *argv):
        return self.session.beside(
            "redis-benchmark", "-h", "127.0.0.1", "-p", str(self.port),
            "-n", "50000", "-c", "20", "-q", "-d", "100", "-P", "4", "-t", "set,get,lpush,hset", *argv,
        )  # fmt: skip

    def bgsave(self):
        """One snapshot to its end; the forked child must report success."""
        self.cli("BGSAVE")
        wait_until(lambda: self.info("persistence")["rdb_bgsave_in_progress"] == "0", "the end of BGSAVE")
        state = self.info("persistence")
        if state["rdb_last_bgsave_status"] != "ok" or state["rdb_last_bgsave_time_sec"] == "-1":
            raise WorkloadFailed(f"BGSAVE failed: {state}")

    def info(self, section):
        lines = self.cli("INFO", section).splitlines()
        return dict(line.strip().split(":", 1) for line in lines if ":" in line)

    def digest(self):
        return self.cli("DEBUG", "DIGEST")

    def shutdown(self):
        self.session.run("redis-cli", "-s", "redis.sock", "SHUTDOWN", "NOSAVE", compare=False)


def put_keys(count):
    """Commands for keys of every type, small and large encodings."""
    for i in range(count):
        yield f"SET string:{i} {'s' * (i % 700)}{i}"
        yield f"RPUSH list:{i % 97} {'l' * (i % 90)}{i}"
        yield f"HSET hash:{i % 89} field:{i} {'h' * (i % 120)}{i}"
        yield f"SADD set:{i % 83} member:{i}"
        yield f"ZADD zset:{i % 79} {i * 7919 % 1000} member:{i}"
        if i % 3 == 0:
            yield f"DEL string:{i * 5 % count}"
        if i % 7 == 0:
            yield f"APPEND string:{i} {'a' * 3000}"


def test_redis(compare, needs):
    """Debian links redis-server with jemalloc; the preload must take its place."""
    needs("redis-server", "redis-server")
    needs("redis-tools", "redis-cli", "redis-benchmark")
    commands = "".join(f"{command}\n" for command in put_keys(8000)).encode()

    def workload(session):
        redis = Redis(session)
        with redis.server() as process:
            redis.wait_ready(process)
            # A snapshot while clients write: fork with a busy heap.
            with redis.load("-r", "20000"):
                redis.bgsave()
            # Synchronous by default; Redis 6.0 does not know the word.
            redis.cli("FLUSHALL")
            with redis.load():
                redis.bgsave()
            # Redis 6's redis-benchmark leaves keys by chance, under any malloc.
            if redis.major() < 7:
                redis.cli("FLUSHALL")
            session.run("redis-cli", "-s", "redis.sock", "--pipe", stdin=commands)
            session.run("redis-cli", "-s", "redis.sock", "DBSIZE")
            loaded = redis.digest()
            session.record("digest of all keys", loaded.encode())
            redis.cli("DEBUG", "RELOAD")
            if redis.digest() != loaded:
                raise WorkloadFailed("DEBUG RELOAD changed the keys")
            redis.bgsave()
            redis.shutdown()
        with redis.server() as process:
            redis.wait_ready(process)
            if redis.digest() != loaded:
                raise WorkloadFailed("keys differ after a restart from the snapshot")
            redis.shutdown()

    compare(workload)
