"""Archives and compression, and a program whose purpose is to stress malloc."""

import hashlib

from measured import WorkloadFailed
from registry import program

# How each packs and unpacks; all write to standard output.
PACKERS = {
    "xz": (("xz", "-T0", "-3", "--block-size=4MiB", "-c"), ("xz", "-T0", "-d", "-c")),
    "zstd": (("zstd", "-q", "-T0", "-12", "-c"), ("zstd", "-q", "-d", "-c")),
    "bzip2": (("bzip2", "-9", "-c"), ("bzip2", "-d", "-c")),
    "gzip": (("gzip", "-9", "-n", "-c"), ("gzip", "-d", "-c")),
}
# gzip holds its buffers in static storage and allocates nothing.
SILENT = {"gzip"}
# Some 20 MB. All of /usr/include would be ten times that on a machine with many packages.
HEADERS = ("c++", "linux")


@program("compression", does="tar of the headers of C++ and Linux; xz -T0, zstd -T0, bzip2, gzip and back",
         version=("xz", "--version"),
         needs={"tar": "tar", "xz": "xz-utils", "zstd": "zstd", "bzip2": "bzip2", "gzip": "gzip"})  # fmt: skip
def compression(session):
    session.run("tar", "--sort=name", "-C", "/usr/include", "-cf", "data.tar", *HEADERS)
    data = (session.directory / "data.tar").read_bytes()
    session.record("the archive", data)
    for name, (pack, unpack) in PACKERS.items():
        processes = 0 if name in SILENT else 1
        packed = session.run(*pack, "data.tar", processes=processes)
        unpacked = session.run(*unpack, stdin=packed, processes=processes, compare=False)
        if hashlib.sha256(unpacked).digest() != hashlib.sha256(data).digest():
            raise WorkloadFailed(f"{name} gives other bytes back")
    session.run("tar", "-C", "/usr/include", "-df", "data.tar")
    session.run("tar", "-tvf", "data.tar")
    session.note(f"{len(data) >> 20} MiB")


@program("stress-ng", does="malloc, calloc, realloc, memalign and free in 4 processes of 3 threads, verified",
         version=("stress-ng", "--version"), needs={"stress-ng": "stress-ng"})  # fmt: skip
def stress_ng(session):
    workers = ("--malloc", "4", "--malloc-pthreads", "2", "--malloc-bytes", "512M")
    session.run("stress-ng", *workers, "--verify", "--seed", "1", "--timeout", "20", "--log-file", "log", compare=False)
    log = (session.directory / "log").read_text(errors="replace")
    session.require("successful run completed" in log and "fail:" not in log, f"stress-ng did not pass:\n{log}")
    session.record("verified", b"successful run completed")
