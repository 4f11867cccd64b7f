"""A load on an HTTP server, all of it from the seed: http_load.py ADDRESS SIZE SEED [KIND,...].

Sixteen connections, kept alive; one in forty requests is a connection's last. The server answers:
  GET  /page/N     a page of N rows, as text
  POST /orders     JSON back, with sums of the JSON that was sent
  PUT  /session/K  keeps the body, GET /session/K gives it back: the keys are of one connection
  GET  /blob/N     N bytes
"""

import hashlib
import json
import random
import sys
import zlib
from collections.abc import Iterator

from traffic import Connection, size_of, words_of

CONNECTIONS, LAST_ONE_IN, SESSIONS = 16, 40, 400
KINDS = ("page", "orders", "session", "blob")


def order(chance: random.Random) -> bytes:
    lines = [
        {
            "sku": f"{chance.randrange(10**6):06}",
            "count": chance.randrange(1, 9),
            "price": chance.randrange(10_000),
            "note": " ".join(words_of(chance, chance.randrange(12))),
        }
        for _ in range(size_of(chance, 12, 400))
    ]
    customer = {"name": " ".join(words_of(chance, 3)), "tags": list(words_of(chance, 5))}
    return json.dumps({"customer": customer, "lines": lines}).encode()


class Client:
    """One connection, and the requests it makes."""

    packing = "deflate"

    def __init__(self, address: int | str, number: int, seed: str, kinds: list[str]) -> None:
        self.connection = Connection(address)
        self.number, self.chance, self.kinds = number, random.Random(f"{seed} {number}"), kinds
        self.kept = 0
        self.is_last = False

    def next_request(self) -> tuple[str, bytes]:
        chance, kind = self.chance, self.chance.choice(self.kinds)
        if kind == "orders":
            return "POST /orders", order(chance)
        if kind == "session":
            # Half of them new ones, up to the most; then new values of old ones.
            key = f"/session/c{self.number}-{chance.randrange(max(self.kept, 1))}"
            if self.kept and chance.random() < 0.5:
                return f"GET {key}", b""
            if self.kept < SESSIONS:
                key, self.kept = f"/session/c{self.number}-{self.kept}", self.kept + 1
            return f"PUT {key}", " ".join(words_of(chance, size_of(chance, 150, 4000))).encode()
        size = size_of(chance, 40, 600) if kind == "page" else size_of(chance, 8000, 500_000)
        return f"GET /{kind}/{size}", b""

    def ask(self) -> None:
        head, body = self.next_request()
        self.is_last = self.chance.randrange(LAST_ONE_IN) == 0
        lines = [f"{head} HTTP/1.1", "Host: localhost", f"Accept-Encoding: {self.packing}"]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        if self.is_last:
            lines.append("Connection: close")
        self.connection.send("\r\n".join([*lines, "", ""]).encode() + body)

    def answer(self) -> bytes:
        """The status, and the body; headers have the time in them."""
        head = self.connection.until(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines if ": " in line)
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join(self.pieces())
        elif "content-length" in headers:
            body = self.connection.take(int(headers["content-length"]))
        else:
            raise SystemExit(f"the server told no length: {status}")
        if headers.get("content-encoding") == "gzip":
            body = zlib.decompress(body, wbits=31)
        code = status.split()[1]
        if code != "200":
            raise SystemExit(f"the server answered {status}")
        # A server with more connections than threads ends some.
        if self.is_last or headers.get("connection") == "close":
            self.connection.close()
        return body

    def pieces(self) -> Iterator[bytes]:
        """Of a body whose length was not known at its begin."""
        while size := int(self.connection.until(b"\r\n"), 16):
            yield self.connection.take(size)
            self.connection.until(b"\r\n")
        self.connection.until(b"\r\n")


def main() -> None:
    address, size, seed = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    kinds = sys.argv[4].split(",") if len(sys.argv) > 4 else list(KINDS)
    where = int(address) if address.isdecimal() else address
    clients = [Client(where, number, seed, kinds) for number in range(CONNECTIONS)]
    digest, total = hashlib.sha256(), 0
    for _ in range(size // CONNECTIONS + 1):
        for one in clients:
            one.ask()
        for one in clients:
            body = one.answer()
            digest.update(body)
            total += len(body)
    print(digest.hexdigest(), total)


if __name__ == "__main__":
    main()
