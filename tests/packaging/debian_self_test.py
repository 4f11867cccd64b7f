"""debian_self_test.py LIBRARY: each check of debian_test.py tells of a fault that is put in."""
import sys
import tempfile
from pathlib import Path

import debian_test as checks


def expect(what: str, found: object, *words: str) -> None:
    told = "\n".join(found)
    if not all(word in told for word in words):
        raise SystemExit(f"{what}: not told: {told!r}")


symbols = "lib.so.0 libhakmem0 #MINVER#\n gone@Base 0.1.0\n kept@Base 9.0.0\n"
expect("symbols", checks.symbols_differ(symbols, "lib.so.0", {"kept", "new"}, "0.1.0"), "lists gone", "exports new", "9.0.0")
expect("no list", checks.symbols_differ("", "lib.so.0", set(), "0.1.0"), "no list")
expect("version", checks.other_versions("7.8.9", {"rules": "VERSION = 7.8.9"}), "rules")
header = checks.headers()
page = (checks.DEBIAN / "man/libhakmem.3").read_text()
expect("page", checks.page_differs(page.replace(".Fn hakmem_purge void", ".Fn hakmem_purged void"), header), "lacks hakmem_purge", "has hakmem_purged")
expect("format", checks.page_differs(page.replace("PROFILE_PROTO", "PROFILE_OLD"), header), "lacks .Dv HAKMEM_PROFILE_PROTO")
known = 'LIBRARIES = ("hardened", "new")'
expect("libraries", checks.libraries_differ("TARGETS = hakmem\n", "usr/lib/*/libhakmem.so.*\n", known), "install lacks libhakmem-new", "hakmem_new is not built", "libhakmem-new is not beside")
expect("programs", checks.programs_differ("PROGRAMS = old\nPRELOADED = a.so\n", {"x": 'bench_program("new")'}), "starts new", "old is installed")
project = 'dependencies = [\n    "click>=8",\n    "surely-not>=1",\n]\n'
expect("dependencies", checks.dependencies_differ((checks.DEBIAN / "control").read_text(), project), "surely-not")
with tempfile.TemporaryDirectory() as folder:
    wrong = Path(folder, "hakmem.conf")
    example = (checks.DEBIAN / "examples/hakmem.conf").read_text()
    wrong.write_text(example.replace("Environment=LD_PRELOAD", "Environment=LD_PRELAOD"))
    # The library is given as the third word, and would serve whatever the example says: the variable's name is what counts.
    expect("drop-in without the variable", checks.drop_in_fails(wrong, Path("/nonexistent.so")), "hakmem.conf")
    wrong.write_text(example.replace("[Service]", "[Servcie]"))
    expect("drop-in of no service", checks.drop_in_fails(wrong, Path(sys.argv[1])), "hakmem.conf")
    bad = Path(folder, "bad.3")
    bad.write_text(page.replace(".Sh NAME", ".Sh NAME\n.Zz"))
    if checks.shutil.which("mandoc") or checks.shutil.which("man"):
        expect("page that does not render", checks.lint(bad), "bad.3")
expect("preload", checks.preload_fails(Path("/nonexistent/libhakmem.so")), "not served")
