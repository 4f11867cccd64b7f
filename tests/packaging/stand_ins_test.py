"""stand_ins_test.py CXX: the package's stand-ins for symbolic and pydemumble say what these say, of a program with inlined functions."""
import subprocess
import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

STAND_INS = Path(__file__).resolve().parents[2] / "packaging/debian/stand-ins"
SOURCE = """#include <cstdio>
#include <cstdlib>
#include <vector>
namespace shop {
struct item { char text[40]; };
static std::vector<item *> kept;
inline __attribute__((always_inline)) item *made(int n) {
  item *one = static_cast<item *>(std::malloc(sizeof(item)));
  one->text[0] = static_cast<char>(n);
  return one;
}
template <typename T> __attribute__((noinline)) void keep(T n) { kept.push_back(made(static_cast<int>(n))); }
}
int main(int argc, char **) {
  for (int i = 0; i < argc * 10; i++) shop::keep<long>(i);
  std::printf("%zu\\n", shop::kept.size());
}
"""
PROBE = """
import sys
from symbolic.debuginfo import Archive
one = next(Archive.open(sys.argv[1]).iter_objects())
cache = one.make_symcache()
print(sorted(one.features & {"debug", "symtab"}))
for address in map(int, sys.argv[2:]):
    print(address, [(l.symbol, l.full_path, l.line) for l in cache.lookup(address)])
"""


def run(*command: object) -> str:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, timeout=50).stdout


def main(cxx: str) -> None:
    from pydemumble import demangle

    spec = spec_from_file_location("stand_in", STAND_INS / "pydemumble.py")
    stand_in = module_from_spec(spec)
    spec.loader.exec_module(stand_in)

    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "shop.cc"), Path(folder, "shop")
        source.write_text(SOURCE)
        # clang's and gcc's tables differ in names of C functions alone.
        run(cxx, "-g", "-O1", "-std=c++17", "-fPIE", "-pie", source, "-o", program)
        symbols = [line.split() for line in run("nm", program).splitlines() if len(line.split()) == 3]
        keep = next((int(address, 16), name) for address, _, name in symbols if "keep" in name and "shop" in name)
        main_at = next(int(address, 16) for address, _, name in symbols if name == "main")
        addresses = [keep[0] + step for step in range(0, 40, 4)] + [main_at + 2]
        ours = run(sys.executable, "-c", f"import sys; sys.path.insert(0, {str(STAND_INS)!r})\n{PROBE}", program, *addresses)
        theirs = run(sys.executable, "-c", PROBE, program, *addresses)
    for mine, real in zip(ours.splitlines(), theirs.splitlines(), strict=True):
        if mine != real:
            raise SystemExit(f"stand-in: {mine}\nsymbolic: {real}")
    for inlined in ("made", "keep"):
        assert any(inlined in line for line in ours.splitlines()), f"{inlined} is nowhere:\n{ours}"
    for name in (keep[1], "_ZNSt6vectorIiSaIiEE9push_backERKi", "main", "_ZnotMangled", "_RNvC3abc4main"):
        real = demangle(name) or name
        if stand_in.demangle(name) != real:
            raise SystemExit(f"{name}: the stand-in says {stand_in.demangle(name)}, pydemumble {real}")


main(sys.argv[1])
