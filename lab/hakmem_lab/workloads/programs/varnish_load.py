"""A load on varnish, with its backend, all of it from the seed: varnish_load.py FOLDER PORT SIZE
SEED.

Twenty thousand pages and blobs, of which few are asked for often: more than the cache may hold. Now
and then one is purged, or asked for by nobody who keeps the connection.
"""

import hashlib
import os
import random
import sys
from contextlib import suppress
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from threading import Thread

from http_load import Client, size_of
from traffic import words_of

CLIENTS, OBJECTS = 24, 20_000


class Backends(ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 100


class Backend(StreamRequestHandler):
    """Answers with what follows from the name, request after request."""

    def handle(self) -> None:
        with suppress(OSError):
            while head := self.rfile.readline():
                while self.rfile.readline().strip():
                    pass
                body = content(head.decode().split()[1].partition("?")[0])
                lines = (
                    f'HTTP/1.1 200 OK\r\nETag: "{len(body)}"\r\nContent-Length: {len(body)}\r\n\r\n'
                )
                self.wfile.write(lines.encode() + body)
                self.wfile.flush()


def content(path: str) -> bytes:
    chance = random.Random(path)
    if path.startswith("/page/"):
        return " ".join(words_of(chance, size_of(chance, 1500, 12_000))).encode()
    return chance.randbytes(16) * size_of(chance, 900, 20_000)


class Visitor(Client):
    packing = "gzip"

    def next_request(self) -> tuple[str, bytes]:
        chance = self.chance
        number = int(OBJECTS * chance.random() ** 3)
        method = "PURGE" if chance.randrange(50) == 0 else "GET"
        query = f"?visit={chance.randrange(1000)}" if chance.randrange(4) == 0 else ""
        return f"{method} /{'page' if number % 3 else 'blob'}/{number}{query}", b""


def main() -> None:
    folder, port, size, seed = sys.argv[1:]
    path = Path(folder) / "backend"
    path.unlink(missing_ok=True)
    with Backends(str(path), Backend) as backend:
        path.chmod(0o777)
        Thread(target=backend.serve_forever, daemon=True).start()
        clients = [Visitor(int(port), number, seed, []) for number in range(CLIENTS)]
        digest = hashlib.sha256()
        for _ in range(int(size) // CLIENTS + 1):
            for one in clients:
                one.ask()
            for one in clients:
                digest.update(one.answer())
    print(digest.hexdigest(), flush=True)
    path.unlink()
    # Threads of connections that varnish keeps open are not waited for.
    os._exit(0)


main()
