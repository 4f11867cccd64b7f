"""A load on redis-server of one kind, all of it from the seed: redis_load.py SOCKET KIND SIZE SEED.

Twenty connections send pipelines by turns and have keys of their own, so that every answer is known
whatever comes first; now and then one ends and another begins. Printed: a digest of all answers,
and the number of keys.
"""

import hashlib
import random
import socket
import sys
from collections.abc import Iterator
from itertools import islice

CONNECTIONS, PIPELINE, KEPT_FOR = 20, 16, 200
REFUSALS = (b"-ERR ", b"-WRONGTYPE ", b"-OOM ")
BLOB = random.Random(0).randbytes(1 << 20)


def value(chance: random.Random, middle: int, most: int) -> bytes:
    """Sizes as caches have them: half below the middle, few of them large."""
    size = min(int(chance.lognormvariate(0, 1) * middle) + 1, most)
    at = chance.randrange(len(BLOB) - size)
    return BLOB[at : at + size]


def growth(size: int, chance: random.Random) -> Iterator[tuple]:
    """New keys of all types, and what is there grows: two writes for each look."""
    for number in range(size):
        old = chance.randrange(number + 1)
        kind = chance.randrange(12)
        if kind < 3:
            yield "SET", f"s:{number}", value(chance, 200, 16_000)
        elif kind < 4:
            yield "APPEND", f"s:{old}", value(chance, 60, 500)
        elif kind < 6:
            yield "HSET", f"h:{old // 40}", f"field{number}", value(chance, 40, 400)
        elif kind < 7:
            yield "RPUSH", f"l:{old // 60}", value(chance, 80, 800)
        elif kind < 8:
            yield "ZADD", f"z:{old // 80}", number, f"member:{number}"
        elif kind < 9:
            yield "GET", f"s:{old}"
        elif kind < 10:
            yield "HGET", f"h:{old // 40}", f"field{old}"
        elif kind < 11:
            yield "LRANGE", f"l:{old // 60}", 0, 20
        else:
            yield "ZRANGE", f"z:{old // 80}", 0, 20, "WITHSCORES"


def replacement(size: int, chance: random.Random) -> Iterator[tuple]:
    """As many keys as a third of the size; then any of them gets another value, of another size."""
    keys = size // 3 + 1
    for number in range(keys):
        yield "SET", f"s:{number}", value(chance, 300, 20_000)
    for _ in range(size - keys):
        key, kind = f"s:{int(keys * chance.random())}", chance.randrange(8)
        if kind < 5:
            yield "SET", key, value(chance, 300, 20_000)
        elif kind < 6:
            yield "APPEND", key, value(chance, 100, 1000)
        else:
            yield "GET", key


def change(size: int, chance: random.Random) -> Iterator[tuple]:
    """Three working sets, each of other sizes. Of one nine keys in ten go when the next comes."""
    for phase, (share, middle, most) in enumerate(((2, 60, 300), (8, 900, 9000), (3, 200, 2000))):
        keys = list(range(size // share))
        for number in keys:
            if phase == 2:
                yield "HSET", f"{phase}:{number // 5}", number, value(chance, middle, most)
            else:
                yield "SET", f"{phase}:{number}", value(chance, middle, most)
            if number % 4 == 0:
                old = chance.randrange(number + 1)
                yield ("HGET", f"2:{old // 5}", old) if phase == 2 else ("GET", f"{phase}:{old}")
        if phase < 2:
            chance.shuffle(keys)
            for number in keys[: len(keys) * 9 // 10]:
                yield "DEL", f"{phase}:{number}"


def flush(size: int, chance: random.Random) -> Iterator[tuple]:
    """As growth; all is thrown away behind it."""
    return growth(size, chance)


KINDS = {one.__name__: one for one in (growth, replacement, change, flush)}


class Connection:
    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.sent = 0

    def send(self, commands: list[tuple]) -> int:
        self.sent += 1
        parts = []
        for words in (*commands, ("ECHO", f"behind {self.sent}")):
            parts.append(b"*%d\r\n" % len(words))
            for word in words:
                data = word if isinstance(word, bytes) else str(word).encode()
                parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
        self.socket.sendall(b"".join(parts))
        return len(commands)

    def answers(self) -> bytes:
        """All up to the last one, which is known."""
        mark, found = b"\r\nbehind %d\r\n" % self.sent, b""
        while not found.endswith(mark):
            part = self.socket.recv(1 << 18)
            if not part:
                raise SystemExit("redis closed the connection")
            found += part
        if found.startswith(REFUSALS) or any(b"\r\n" + one in found for one in REFUSALS):
            raise SystemExit("redis refused a command")
        return found


def main() -> None:
    path, kind, size, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    digest = hashlib.sha256()
    own = [random.Random(f"{seed} {number}") for number in range(CONNECTIONS)]
    streams = [KINDS[kind](size // CONNECTIONS, chance) for chance in own]
    open_ones, ended = [Connection(path) for _ in streams], []
    busy = list(range(CONNECTIONS))
    while busy:
        for number in busy:
            if open_ones[number].sent == KEPT_FOR + 20 * number:
                open_ones[number] = Connection(path)
            batch = islice(streams[number], PIPELINE)
            sent = open_ones[number].send(
                [(name, f"c{number}:{key}", *rest) for name, key, *rest in batch]
            )
            if sent < PIPELINE:
                ended.append(number)
        for number in busy:
            digest.update(open_ones[number].answers())
        busy = [number for number in busy if number not in ended]
    print(digest.hexdigest())
    last = Connection(path)
    last.send([("DBSIZE",), *([("FLUSHALL",)] if kind == "flush" else [])])
    print(last.answers().decode())


main()
