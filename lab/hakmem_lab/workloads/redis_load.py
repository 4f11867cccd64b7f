"""redis-server under an allocator, redis-benchmark as its client, over a Unix socket.

After the measured requests a fixed set of keys is stored, and the digest that the server computes
over them is the checksum.
"""

import csv
import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from hakmem_lab.workloads.server import (
    DriverError,
    client,
    given_library,
    print_results,
    run_driver,
    scratch,
    started,
)

TESTS = "set,get,incr,lpush,sadd,hset,zadd"
FIXED_KEYS = 3000
# redis-benchmark counts time in these.
CLIENT_GRAIN_S = 0.001


def server_command(folder: Path) -> list[str]:
    return [
        *("redis-server", "--port", "0", "--unixsocket", str(folder / "redis.sock")),
        *("--dir", str(folder), "--save", "", "--appendonly", "no", "--daemonize", "no"),
        *("--enable-debug-command", "local", "--loglevel", "warning"),
    ]


def answers(cli: list[str]) -> bool:
    try:
        return client([*cli, "ping"]).strip() == "PONG"
    except DriverError:
        return False


def fixed_commands() -> Iterator[str]:
    """Keys of every type, in small and in large encodings."""
    for i in range(FIXED_KEYS):
        yield f"SET string:{i} {'s' * (i % 700)}{i}"
        yield f"RPUSH list:{i % 37} {'l' * (i % 90)}{i}"
        yield f"HSET hash:{i % 31} field:{i} {'h' * (i % 120)}{i}"
        yield f"SADD set:{i % 29} member:{i}"
        yield f"ZADD zset:{i % 23} {i * 7919 % 1000} member:{i}"
        if i % 3 == 0:
            yield f"DEL string:{i * 5 % FIXED_KEYS}"


def throughput(text: str, requests: int) -> float:
    """All requests over all time, from the client's CSV: a row and a rate for each kind."""
    rates = [float(row["rps"]) for row in csv.DictReader(io.StringIO(text))]
    if len(rates) != len(TESTS.split(",")) or min(rates) <= 0:
        raise DriverError(f"redis-benchmark gave {len(rates)} rates")
    # The rate of what took no whole millisecond is infinite.
    return len(rates) * requests / sum(max(requests / rate, CLIENT_GRAIN_S) for rate in rates)


def run(size: int) -> None:
    with scratch("redis") as folder:
        cli = ["redis-cli", "-s", str(folder / "redis.sock")]
        with started(server_command(folder), given_library(), folder / "log") as server:
            server.wait_ready(partial(answers, cli))
            load = ["redis-benchmark", "-s", str(folder / "redis.sock"), "-n", str(size)]
            load += ["-c", "20", "-P", "16", "-d", "200", "-r", "50000", "-t", TESTS, "--csv"]
            speed = throughput(client(load), size)
            client([*cli, "flushall", "sync"])
            client([*cli, "--pipe"], "".join(f"{line}\n" for line in fixed_commands()))
            checksum = client([*cli, "debug", "digest"]).strip()
            if len(checksum) != 40 or set(checksum) == {"0"}:
                raise DriverError(f"the server gave no digest: {checksum}")
            client([*cli, "shutdown", "nosave"])
            server.wait_stopped()
        print_results(speed, checksum, server)


@click.command()
@click.option("--size", type=click.IntRange(1), required=True, help="Requests of each kind.")
def main(size: int) -> None:
    """Run redis-server once under the allocator that HAKLAB_PRELOAD names."""
    run_driver(partial(run, size))


if __name__ == "__main__":
    main()
