"""Servers over loopback, their answers compared."""

import re
import socket
import time
from random import Random

from measured import WORKLOADS, wait_until
from registry import program

CERTIFICATE = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem",
               "-days", "2", "-subj", "/CN=localhost")  # fmt: skip
# wrk's, in each of its runs.
CONNECTIONS = 64


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for probe in sockets:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in sockets]
    for probe in sockets:
        probe.close()
    return ports


def connects(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except OSError:
        return False


def text_file(seed, size_bytes):
    random = Random(seed)
    lines = (f"{n} {random.random()} {'abcdefgh'[n % 8] * (n % 60)}\n" for n in range(size_bytes // 20))
    return "".join(lines).encode()[:size_bytes]


class Nginx:
    """A master with two workers: files, gzip, a proxy with a cache, TLS."""

    def __init__(self, session):
        self.session = session
        self.plain, self.tls, backend = free_ports(3)
        settings = (WORKLOADS / "nginx.conf").read_text()
        for name, value in {"PLAIN": self.plain, "TLS": self.tls, "BACKEND": backend}.items():
            settings = settings.replace(f"@{name}@", str(value))
        session.write("nginx.conf", settings)

    def command(self, *argv):
        return ("nginx", "-p", f"{self.session.directory}/", "-c", "nginx.conf", "-e", "stderr", *argv)

    def signal(self, name):
        self.session.run(*self.command("-s", name), compare=False)

    def load(self, address, requests, *options):
        """ApacheBench on one address; every answer must be complete and of the same length."""
        said = self.session.run("ab", "-q", "-k", "-c", "32", "-n", str(requests), *options, address, compare=False)
        text = said.decode()
        figures = dict(
            re.findall(r"^(Complete requests|Failed requests|Non-2xx responses):\s+(\d+)", text, re.MULTILINE)
        )
        expected = {"Complete requests": str(requests), "Failed requests": "0"}
        self.session.require(figures == expected, f"ab {address}: {figures}")

    def wrk(self, address, name, seconds, reload=False):
        """wrk's threads on one address; each answer must have the bytes of files/NAME.txt. Returns how many came."""
        self.session.copy(WORKLOADS / "answers.lua")
        lost = 0
        with self.session.beside(
            "wrk", "-t", "2", "-c", str(CONNECTIONS), "-d", f"{seconds}s", "--timeout", "60s", "-s", "answers.lua",
            address, "--", f"files/{name}.txt",
        ):  # fmt: skip
            if reload:
                time.sleep(seconds / 3)
                self.signal("reload")
                # A worker that ends may close a connection on which a request is under way.
                lost = CONNECTIONS
        lines = (self.session.directory / "wrk.sums").read_text().splitlines()
        sums = {kind: int(count) for kind, count in map(str.split, lines)}
        right = sums.pop("right")
        read_errors = sums.pop("read")
        self.session.require(
            right > 0 and not any(sums.values()) and read_errors <= lost,
            f"wrk {address}: {right} right, {read_errors} read errors, {sums}",
        )
        return right

    def fetch(self, address, *options):
        self.session.write("curl.out", b"")
        self.session.run("curl", "-q", "-sS", "-k", "--fail", "-o", "curl.out", *options, address, compare=False)
        path = address.split("/", 3)[3]
        self.session.record(f"answer to {path}", (self.session.directory / "curl.out").read_bytes())


@program("nginx", does="30,600 requests from ab, 9 s of wrk: files, gzip, TLS and a caching proxy, across reloads",
         version=("nginx", "-v"),
         needs={"nginx": "nginx", "ab": "apache2-utils", "wrk": "wrk", "curl": "curl", "openssl": "openssl"})  # fmt: skip
def nginx(session):
    nginx = Nginx(session)
    sizes = {"small": 300, "page": 40_000, "large": 3_000_000}
    for seed, (name, size) in enumerate(sizes.items()):
        session.write(f"files/{name}.txt", text_file(seed, size))
    session.write("temp/keep", b"")
    session.run("openssl", *CERTIFICATE, compare=False)
    plain, tls = f"http://127.0.0.1:{nginx.plain}", f"https://127.0.0.1:{nginx.tls}"
    with session.beside(*nginx.command()) as process:
        wait_until(lambda: process.poll() is not None or connects(nginx.plain), "nginx's answer")
        for _ in range(3):
            nginx.load(f"{plain}/small.txt", 5000)
            nginx.load(f"{plain}/page.txt", 1500, "-H", "Accept-Encoding: gzip")
            nginx.load(f"{plain}/proxy/page.txt", 2000)
            nginx.load(f"{tls}/small.txt", 1500)
            nginx.load(f"{plain}/large.txt", 200)
            # New workers beside the old ones, which end when their clients have gone.
            nginx.signal("reload")
            for site in (plain, tls, f"{plain}/proxy"):
                for name in sizes:
                    nginx.fetch(f"{site}/{name}.txt", "--compressed")
        answers = nginx.wrk(f"{plain}/small.txt", "small", 3)
        answers += nginx.wrk(f"{plain}/proxy/page.txt", "page", 3, reload=True)
        answers += nginx.wrk(f"{tls}/page.txt", "page", 3)
        session.note(f"wrk got {answers:,} right answers")
        nginx.signal("quit")


@program("openssl", does="s_server and curl: 60 files over TLS; speed of six algorithms; keys, signatures",
         version=("openssl", "version"), needs={"openssl": "openssl", "curl": "curl"})  # fmt: skip
def openssl(session):
    (port,) = free_ports(1)
    count = 60
    session.run("openssl", *CERTIFICATE, compare=False)
    for n in range(1, count + 1):
        session.write(f"file{n}", text_file(n, 7919 * n))
    # It ends by itself after as many connections.
    serve = ("openssl", "s_server", "-accept", str(port), "-cert", "cert.pem", "-key", "key.pem", "-WWW", "-quiet")
    with session.beside(*serve, "-naccept", str(count)):
        wanted = f"https://127.0.0.1:{port}/file[1-{count}]"
        session.run("curl", "-q", "-sS", "-k", "--retry", "20", "--retry-connrefused", "--retry-delay", "1",
                    "-o", "got#1", wanted, compare=False)  # fmt: skip
    for n in range(1, count + 1):
        session.record_file(f"got{n}")
    for algorithm in ("sha256", "aes-256-gcm", "chacha20-poly1305"):
        session.run(
            "openssl", "speed", "-seconds", "1", "-bytes", "16384", "-multi", "2", "-evp", algorithm, compare=False
        )
    for algorithm in ("rsa2048", "ecdsap256", "ecdhx25519"):
        session.run("openssl", "speed", "-seconds", "1", "-multi", "2", algorithm, compare=False)
    for kind in (("RSA", "-pkeyopt", "rsa_keygen_bits:3072"), ("EC", "-pkeyopt", "ec_paramgen_curve:P-384")):
        session.run("openssl", "genpkey", "-algorithm", *kind, "-out", "own.pem", compare=False)
        session.run("openssl", "pkey", "-in", "own.pem", "-pubout", "-out", "public.pem")
        session.run("openssl", "dgst", "-sha384", "-sign", "own.pem", "-out", "signature", "file9")
        session.run("openssl", "dgst", "-sha384", "-verify", "public.pem", "-signature", "signature", "file9")
