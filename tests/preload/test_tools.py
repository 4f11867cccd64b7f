"""Command-line tools: sorting, compression, cryptography, transfers."""

from random import Random


def text_lines(count, seed=1):
    random = Random(seed)
    return "".join(
        f"{random.randrange(count):07d} {random.choice('abcdefgh') * random.randrange(1, 30)} {random.random()}\n"
        for _ in range(count)
    ).encode()


def test_sort(compare, needs, keep_stderr):
    needs("coreutils", "sort")
    lines = text_lines(200000)

    def workload(session):
        session.write("lines", lines)
        session.run("sort", "--parallel=2", "-S", "40M", "-o", "sorted", "lines")
        session.record_file("sorted")
        # A small buffer, so that it spills to files and merges them.
        session.run("sort", "--parallel=2", "-S", "2M", "-T", ".", "-k", "2,2", "-k", "3,3gr", "-o", "keyed", "lines")
        session.record_file("keyed")

    compare(workload, shims=[keep_stderr])


def test_gzip(compare, needs):
    needs("gzip", "gzip")
    data = text_lines(100000)

    def workload(session):
        session.write("data", data)
        # gzip holds its buffers in static storage and allocates nothing.
        packed = session.run("gzip", "-9", "-n", "-c", "data", processes=0)
        session.run("gzip", "-d", "-c", stdin=packed, processes=0)

    compare(workload)


def test_xz(compare, needs, keep_stderr):
    needs("xz-utils", "xz")
    data = text_lines(100000)

    def workload(session):
        session.write("data", data)
        packed = session.run("xz", "-T2", "-3", "--block-size=1MiB", "-c", "data")
        session.run("xz", "-T2", "-d", "-c", stdin=packed)

    compare(workload, shims=[keep_stderr])


def test_zstd(compare, needs):
    needs("zstd", "zstd")
    data = text_lines(200000)

    def workload(session):
        session.write("data", data)
        packed = session.run("zstd", "-q", "-T2", "-9", "-B1MiB", "-c", "data")
        session.run("zstd", "-q", "-d", "-c", stdin=packed)

    compare(workload)


def test_openssl(compare, needs):
    needs("openssl", "openssl")
    data = text_lines(50000)

    def workload(session):
        session.write("data", data)
        for algorithm in ("sha256", "sha512", "blake2b512", "sha3-256"):
            session.run("openssl", "dgst", f"-{algorithm}", "data")
        cipher = ("openssl", "enc", "-aes-256-cbc", "-pbkdf2", "-pass", "pass:preload")
        session.run(*cipher, "-S", "0011223344556677", "-in", "data", "-out", "data.enc")
        session.record_file("data.enc")
        session.run(*cipher, "-S", "0011223344556677", "-d", "-in", "data.enc")
        # The key is random; that the signature verifies is not.
        key = ("-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", "key.pem")
        session.run("openssl", "genpkey", *key, compare=False)
        session.run("openssl", "pkey", "-in", "key.pem", "-pubout", "-out", "public.pem")
        session.run("openssl", "dgst", "-sha256", "-sign", "key.pem", "-out", "data.sig", "data")
        session.run("openssl", "dgst", "-sha256", "-verify", "public.pem", "-signature", "data.sig", "data")
        session.run("openssl", "list", "-digest-algorithms")

    compare(workload)


def test_curl(compare, needs):
    """Transfers without a network: curl reads file: addresses."""
    needs("curl", "curl")
    data = text_lines(20000)

    def workload(session):
        session.write("data", data)
        session.run("curl", "--version")
        address = f"file://{session.directory}/data"
        transfers = [word for n in range(6) for word in ("-o", f"copy{n}", address)]
        # Parallel transfers report their speed; the copies are what counts.
        session.run("curl", "-q", "--parallel", "--parallel-max", "2", *transfers, compare=False)
        for n in range(6):
            session.record_file(f"copy{n}")

    compare(workload)
