"""The checks of layers and of constants find planted violations."""
import constants
import order
from layering import Rules, check_circles, check_file, check_headers, check_symbols, check_variables, symbols

CLEAN = '#ifndef HAK_SLAB_SLAB_H\n#define HAK_SLAB_SLAB_H\n#include <string.h>\n#include "region/region.h"\n#include "slab/slab.h"\n#if HAK_CHECKS\n#endif\n'


def main() -> None:
    rules = Rules("[edges]\nbase:\nos: base\nslab: region\nreport: slab\n[variables]\nhak_one report\nhak_two report=writes\n")
    assert check_file("slab/slab.c", CLEAN, rules) == []
    assert check_file("os/os.c", '#include "hakmem/hakmem.h"\n#include "base/bits.h"\n#if defined(__linux__)\n#endif\n', rules) == []
    planted = {
        'pool/span_pool.c': '#include "slab/slab.h"\n',
        'os/os.c': '#  include "config/config.h"\n',
        'base/bits.h': '#include "os/os.h"\n',
        'report/page.c': '#include "region/region.h"\n',
        'slab/slab.c': '#include "slab.h"\n',
        'large/run.c': '#ifdef __aarch64__\n#endif\n',
        'report/text.c': '#if HAK_CHECKS\n#elif defined(__x86_64__)\n#endif\n',
        'extra/new.c': '#include "base/bits.h"\n',
    }
    for name, text in planted.items():
        problems = check_file(name, text, rules)
        assert len(problems) == 1, (name, problems)
        assert name in problems[0]

    header = "extern int hak_one, x;\nextern int hak_one;\nextern HAK_HIDDEN struct t hak_two;\nextern const char *const hak_three[4];\n"
    readers = {"slab/slab.h": header, "slab/slab.c": "hak_one = 1;", "report/a.c": "f(hak_one, hak_three); hak_two.a[1] += 2; /* hak_one = 1 */ g(\"hak_one++\");"}
    assert check_variables(readers, rules) == []
    assert check_variables({"slab/slab.h": header, "report/b.c": "hak_store_relaxed(&hak_one, 1);"}, rules) == ["report/b.c: changes hak_one of slab/"]
    assert check_variables({"slab/slab.h": header, "os/b.c": "if (hak_two.a == 1) f(&hak_two);"}, rules) == ["os/b.c: reads hak_two of slab/"]
    assert rules.unused() == ["report/ may use slab/, and does not"]

    nm = "0000000000000010 T hak_pool_take\n0000000000000000 t local\n                 U hak_tcache_flush\n                 w weak_one\n"
    assert symbols(nm) == ({"hak_pool_take"}, {"hak_tcache_flush", "weak_one"})
    upwards = {"region/region.c": symbols(nm), "slab/slab.c": ({"hak_tcache_flush"}, {"hak_pool_take", "memcpy"})}
    assert check_symbols(upwards, rules) == ["region/region.c: region/ uses hak_tcache_flush of slab/slab.c"]

    # Two files that use each other, and one that leads there; one by itself is no circle.
    a, b, c = ({"a"}, {"b"}), ({"b"}, {"a", "printf"}), ({"c"}, {"a", "c"})
    assert check_circles({"x/a.c": a, "x/c.c": c}) == []
    assert check_circles({"x/a.c": a, "x/b.c": b, "x/c.c": c}) == ["a circle of files: x/a.c x/b.c", "  x/a.c uses b of x/b.c", "  x/b.c uses a of x/a.c"]
    assert check_headers({"x/a.h": "", "x/a.c": '#include "x/a.h"\n#include "x/b.h"\n', "x/b.h": "", "x/c.c": '#include "x/b.h"\n'}) == []
    assert check_headers({"x/a.h": "", "x/a.c": '#include "x/b.h"\n', "x/b.h": "", "x/b.c": '#include "x/a.h"\n'}) == ["a circle of files: x/a x/b"]

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
