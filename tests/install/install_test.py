"""install_test.py CMAKE BUILD CC CXX: installs into a temporary prefix and builds and runs programs against it."""
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
# What each example prints; the lines that end in 1 say that the memory was hakmem's.
EXAMPLE_OUTPUTS = {
    "allocator_cc": r"pages 10000, name hakmem's: 1, content hakmem's: 1\ncounters aligned: 1\npurged at once: 1",
    "heap_classes_cc": r"in the query: [1-3] blocks, its row: 1\nrefused: 1\nlive in the tenant's heap: 1",
    "heap_plugin_c": "",
    "heap_query_c": r"small: \d+ bytes, 0\nlarge: \d+ bytes, -1",
    "heap_request_c": "",
    "pmr_cc": r"distinct words: 13 13 13 13\ndefault resource hakmem's: 1",
}
SERVERS = {"profile_http_c", "profile_http_cc"}  # each serves its heap profile until it is ended


def run(*command: str | Path, **options) -> str:
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=100, **options)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")
    return result.stdout


def expect(what: str, output: str, pattern: str) -> None:
    if not re.fullmatch(pattern, output.strip()):
        raise SystemExit(f"{what}: {output!r}, expected {pattern!r}")


def environment_without_preload() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("HAKMEM_")}


def with_pkg_config(prefix: Path, library: Path, work: Path, cc: str, cxx: str) -> None:
    # Without the variables that lead to another installation of the same name.
    environment = dict(environment_without_preload(), PKG_CONFIG_LIBDIR=str(library / "pkgconfig"))
    flags = run("pkg-config", "--cflags", "--libs", "hakmem", env=environment).split()
    if not any(str(prefix) in os.path.realpath(f[2:]) for f in flags if f.startswith("-L")):
        raise SystemExit(f"pkg-config does not lead to where the library was installed ({prefix}): {flags}")
    expect("pkg-config version", run("pkg-config", "--modversion", "hakmem", env=environment), r"\d+\.\d+\.\d+")
    program = work / "with_pkg_config"
    run(cc, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", HERE / "consumer/program.c", "-o", program, *flags)
    output = run(program, env=dict(environment, LD_LIBRARY_PATH=str(library)))
    expect("pkg-config", output, r"version \d+\.\d+\.\d+ ours 1 1 served 1")
    static = run("pkg-config", "--static", "--libs", "--cflags", "hakmem", env=environment).split()
    program = work / "static_with_pkg_config"
    run(cxx, "-static", HERE / "consumer/unnamed.cc", "-o", program, *static)
    expect("pkg-config --static", run(program, input="x\n", env=environment), "read 2 ours 1 1 1")


def look_at_server(program: Path, environment: dict[str, str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen([program, str(port)], env=environment) as server:
        try:
            body = fetched(f"http://127.0.0.1:{port}/debug/pprof/heap", server)
        finally:
            server.kill()
    # Names of profile.proto's table of strings, which both forms of the profile have.
    for name in (b"inuse_space", b"alloc_objects", b"freed_later"):
        if name not in body:
            raise SystemExit(f"{program.name}: {len(body)} bytes without {name!r}")


def fetched(url: str, server: subprocess.Popen) -> bytes:
    """What the server gives once it listens."""
    for _ in range(200):
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return answer.read()
        except urllib.error.URLError:
            if server.poll() is not None:
                raise SystemExit(f"{server.args[0]} ended: {server.returncode}")
            time.sleep(0.05)
    raise SystemExit(f"{server.args[0]} does not answer")


def with_cmake(prefix: Path, library: Path, work: Path, cmake: str, cc: str, cxx: str) -> None:
    build = work / "consumer"
    run(cmake, "-S", HERE / "consumer", "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_C_COMPILER={cc}",
        f"-DCMAKE_CXX_COMPILER={cxx}", "-DCMAKE_BUILD_TYPE=Release", f"-DHAKMEM_EXAMPLES={EXAMPLES}")
    run(cmake, "--build", build)
    for name in ("shared", "archive", "static"):
        output = run(build / name, env=dict(environment_without_preload(), LD_LIBRARY_PATH=str(library)))
        expect(name, output, r"version \d+\.\d+\.\d+ ours 1 1 1 served 1 threw 1")
    for name in ("unnamed_archive", "unnamed_static"):
        expect(name, run(build / name, input="x\n", env=environment_without_preload()), "read 2 ours 1 1 1")
    environment = dict(environment_without_preload(), LD_LIBRARY_PATH=str(library))
    for library_kind in ("", "_archive"):
        for name, wanted in EXAMPLE_OUTPUTS.items():
            program = f"example_{name}{library_kind}"
            expect(program, run(build / program, env=environment), wanted)
        for name in SERVERS:
            look_at_server(build / f"example_{name}{library_kind}", environment)
    needed = {n: run("readelf", "-d", build / n) for n in ("shared", "archive", "static")}
    for name, wanted in (("shared", True), ("archive", False), ("static", False)):
        if ("libhakmem.so" in needed[name]) != wanted:
            raise SystemExit(f"{name}: libhakmem.so in NEEDED is not {wanted}")


def examples_are_all_here() -> None:
    present, tested = {path.name.replace(".", "_") for path in EXAMPLES.iterdir()}, set(EXAMPLE_OUTPUTS) | SERVERS
    if present != tested:
        raise SystemExit(f"examples/ holds {present}, this test runs {tested}")


def main(cmake: str, build: str, cc: str, cxx: str) -> None:
    if shutil.which("pkg-config") is None:
        print("pkg-config is not installed")
        sys.exit(77)
    examples_are_all_here()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary).resolve()
        prefix = work / "prefix"
        run(cmake, "--install", build, "--prefix", prefix)
        library = next(prefix.rglob("libhakmem.so")).parent
        for header in ("hakmem.h", "hakmem.hpp"):
            if not (prefix / "include/hakmem" / header).is_file():
                raise SystemExit(f"{header} was not installed")
        jemalloc = library / "hakmem/je/libjemalloc.so.2"
        if not jemalloc.is_file() or (library / "libhakmem-je.so").resolve() != jemalloc:
            raise SystemExit("libhakmem-je.so was not installed as libjemalloc.so.2")
        with_cmake(prefix, library, work, cmake, cc, cxx)
        with_pkg_config(prefix, library, work, cc, cxx)


if __name__ == "__main__":
    main(*sys.argv[1:5])
