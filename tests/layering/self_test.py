"""The checks of layers and of constants find planted violations."""
import constants
import order
from layering import check_circles, check_file, check_symbols, pairs, symbols

CLEAN = '#ifndef HAK_SLAB_SLAB_H\n#define HAK_SLAB_SLAB_H\n#include <string.h>\n#include "region/region.h"\n#include "slab/slab.h"\n#if HAK_CHECKS\n#endif\n'


def main() -> None:
    assert check_file("slab/slab.c", CLEAN) == []
    assert check_file("os/os.c", '#include "hakmem/hakmem.h"\n#if defined(__linux__)\n#endif\n') == []
    planted = {
        'pool/span_pool.c': '#include "slab/slab.h"\n',
        'os/os.c': '#  include "config/config.h"\n',
        'base/bits.h': '#include "os/os.h"\n',
        'arena/arena.c': '#include "tcache/tcache.h"\n',
        'slab/slab.c': '#include "slab.h"\n',
        'large/run.c': '#ifdef __aarch64__\n#endif\n',
        'report/text.c': '#if HAK_CHECKS\n#elif defined(__x86_64__)\n#endif\n',
        'api/free.c': "\n" * 601,
        'extra/new.c': "",
    }
    for name, text in planted.items():
        problems = check_file(name, text)
        assert len(problems) == 1, (name, problems)
        assert name in problems[0]

    nm = "0000000000000010 T hak_pool_take\n0000000000000000 t local\n                 U hak_tcache_flush\n                 w weak_one\n"
    assert symbols(nm) == ({"hak_pool_take"}, {"hak_tcache_flush", "weak_one"})
    upwards = {"pool/span_pool.c": symbols(nm), "tcache/tcache.c": ({"hak_tcache_flush"}, {"hak_pool_take", "memcpy"})}
    assert check_symbols(upwards) == ["pool/span_pool.c: pool/ uses hak_tcache_flush of tcache/tcache.c"]

    # Two files that use each other, and one that leads there; one by itself is no circle.
    a, b, c = ({"a"}, {"b"}), ({"b"}, {"a", "printf"}), ({"c"}, {"a", "c"})
    assert check_circles({"x/a.c": a, "x/c.c": c}) == []
    assert check_circles({"x/a.c": a, "x/b.c": b, "x/c.c": c}) == ["a circle of files: x/a.c x/b.c", "  x/a.c uses b of x/b.c", "  x/b.c uses a of x/a.c"]
    assert pairs({"slab/slab.h": CLEAN, "slab/sparse.c": '#include "region/region.h"\n#include "os/os.h"\n'}) == {("slab", "region"), ("slab", "os")}

    beside = ["zero(add(large(n, &z)), n, z)", "v = g(&w) + w", "a[i] = g(&i)", "if (g(&z) == z) h()", "t = (c_type){g(&z), z}", "x = c ? g(&z) + z : 0",
              "h(g(&d), k(&d))", "s->n += g(&s->n)", "h(g(&d.x), d)", "h(g((void **)&p), p->q)", "for (;;) { h(g(&z), z); }"]
    after = ["h(&z, z)", "x = g(&x)", "if (g(&z) && z) h(z)", "int x = g(&y), z = y", "h(g(&z), sizeof(z))", "h(a & z, z)", "h(g(&s->x), s)", "g(&z), h(z)",
             "x = g(&z) ? z : 0", "h(g(&q), p.q)", "h(hak_load_relaxed(&z), z)", "h(looks(&z), z)"]
    order.find_readers("int looks(const int *p);")
    for expressions, is_fault in ((beside, True), (after, False)):
        for expression in expressions:
            assert bool(order.faults(f"void f(void) {{ {expression}; }}")) == is_fault, expression

    assert constants.constants("#define A 4 /* 5 */\n#define B OTHER\n#define C(x) 3\n// D = 7\nenum { E_ = 1, F = G };\n#define H HAK_MIB\n") == {"A", "E_", "H"}
    list_of = "[returning memory]\na/a.c A why\n[steering]\na/b.c B\n[heaps]\n[profiles, guards, hardened]\n[else]\na/a.c C D\na/b.c B\n"
    sections = constants.listed(list_of)
    assert constants.check({"a/a.c:A", "a/a.c:C", "a/b.c:B", "a/b.c:E"}, sections) == [
        "a/b.c:B is listed 2 times", "a/b.c:E is in no section of constants.txt", "a/a.c:D is listed, and not in the sources", "a/b.c:B has no reason"]


if __name__ == "__main__":
    main()
