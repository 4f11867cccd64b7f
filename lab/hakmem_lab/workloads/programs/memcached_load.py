"""A load on memcached, all of it from the seed: memcached_load.py PORT SIZE SEED.

Sixty connections, most of which end after some time; several keys are asked for at once, as by
caches of web pages. Prints a digest of all answers.
"""

import hashlib
import random
import sys

from traffic import Connection, size_of

CONNECTIONS, LAST_ONE_IN = 60, 150
BLOB = random.Random(0).randbytes(1 << 20)


class Client:
    def __init__(self, port: int, number: int, seed: str) -> None:
        self.connection = Connection(port)
        self.number, self.chance = number, random.Random(f"{seed} {number}")
        self.kept = 0

    def key(self, number: int) -> str:
        # Lengths of keys differ too.
        return f"c{self.number}:{'user:profile:'[: number % 14]}{number}"

    def ask(self) -> None:
        chance = self.chance
        # By a power of it, recent keys are asked for more often.
        old = int(self.kept * (1 - chance.random() ** 2))
        kind = chance.randrange(10)
        if kind < 4 or not self.kept:
            size = size_of(chance, 400, 60_000)
            at = chance.randrange(len(BLOB) - size)
            is_new = chance.randrange(3) > 0
            key = self.key(self.kept if is_new else old)
            self.kept += is_new
            data = b"set %b 0 0 %d\r\n%b\r\n" % (key.encode(), size, BLOB[at : at + size])
        elif kind < 5:
            data = f"delete {self.key(old)}\r\n".encode()
        else:
            many = 1 if kind < 9 else chance.randrange(2, 30)
            keys = " ".join(self.key(max(old - i, 0)) for i in range(many))
            data = f"get {keys}\r\n".encode()
        self.connection.send(data)

    def answer(self) -> bytes:
        """One line, or values with their lengths before them and END behind."""
        one, parts = self.connection, []
        while True:
            line = one.until(b"\r\n")
            parts.append(line)
            if not line.startswith(b"VALUE "):
                break
            parts.append(one.take(int(line.rsplit(b" ", 1)[1]) + 2))
        if line not in (b"END", b"STORED", b"DELETED", b"NOT_FOUND"):
            raise SystemExit(f"memcached answered {line!r}")
        if self.chance.randrange(LAST_ONE_IN) == 0:
            one.close()
        return b"\n".join(parts)


def main() -> None:
    port, size, seed = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    clients = [Client(port, number, seed) for number in range(CONNECTIONS)]
    digest = hashlib.sha256()
    for _ in range(size // CONNECTIONS + 1):
        for one in clients:
            one.ask()
        for one in clients:
            digest.update(one.answer())
    print(digest.hexdigest())


main()
