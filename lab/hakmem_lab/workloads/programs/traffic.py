"""What loads on servers of HTTP and the like share: connections that are used by turns.

A request is sent on every connection, then every answer is read: several are under way at a time,
and all follows from the seed.
"""

import random
import socket
from collections.abc import Iterator

Address = str | int
WORDS = 4000


def connect(address: Address) -> socket.socket:
    """To a port of this machine, or to the path of a socket."""
    if isinstance(address, int):
        made = socket.create_connection(("127.0.0.1", address), 60)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(60)
    made.connect(address)
    return made


class Connection:
    """One that is made anew when it is first used, and after close()."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.socket: socket.socket | None = None
        self.rest = b""

    def send(self, data: bytes) -> None:
        if self.socket is None:
            self.socket = connect(self.address)
        self.socket.sendall(data)

    def more(self) -> None:
        part = self.socket.recv(1 << 18)
        if not part:
            raise SystemExit("the server closed a connection")
        self.rest += part

    def until(self, mark: bytes) -> bytes:
        """What comes before the mark, which is taken away."""
        while mark not in self.rest:
            self.more()
        found, _, self.rest = self.rest.partition(mark)
        return found

    def take(self, count: int) -> bytes:
        parts, missing = [self.rest], count - len(self.rest)
        while missing > 0:
            part = self.socket.recv(max(missing, 1 << 16))
            if not part:
                raise SystemExit("the server closed a connection")
            parts.append(part)
            missing -= len(part)
        found = b"".join(parts)
        self.rest = found[count:]
        return found[:count]

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
        self.socket, self.rest = None, b""


def size_of(chance: random.Random, middle: int, most: int) -> int:
    """As sizes of documents are: half below the middle, few of them large."""
    return min(int(chance.lognormvariate(0, 1) * middle) + 1, most)


def words_of(chance: random.Random, count: int) -> Iterator[str]:
    """Few of them often, most of them seldom."""
    for _ in range(count):
        yield f"w{int(WORDS * chance.random() ** 3):x}"
