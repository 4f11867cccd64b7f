"""The golden checks themselves: each must fail on what it is there to find."""
import constant_code
import exports
import fast_path_shape
import instructions
import steady_state

MAP = "{\n global:\n  malloc; free; # calloc;\n  _Znwm;\n local: *;\n};"
CALLGRIND = """
ob=(1) /lib/libhakmem.so.0
fl=(1) a.c
fn=(1) malloc
10 5
+1 10
cfn=(2) hak_malloc_slow
calls=1 30
12 700
fn=(2)
30 600
ob=(2) /lib/libc.so.6
fn=(1)
5 99
ob=(1)
fn=(3) free
1 20
"""


def main() -> None:
    assert exports.listed(MAP) == {"malloc", "free", "_Znwm"}
    assert exports.differences({"a", "b"}, {"b", "c"}) == ["listed but not exported: a", "exported but not listed: c"]
    header = ("/* void hakmem_said(void); */\n#define HAKMEM_X \\\n  hakmem_macro(1)\nvoid hakmem_a(void *p) X;\n"
              "void *hakmem_b(size_t n)\n    Y(hakmem_a(1));\nconst char *hakmem_c(void);\nstruct s hakmem_d(void);\n")  # fmt: skip
    assert exports.declared(header) == {"hakmem_a", "hakmem_b", "hakmem_c", "hakmem_d"}, exports.declared(header)
    assert exports.undeclared({"malloc", "hakmem_a"}, {"hakmem_b"}) == [
        "declared but not listed: hakmem_b", "listed but in no header: hakmem_a"]  # fmt: skip

    clean = ["mov 0x10(%rip),%rax        # 1234 <hak_main_base>", "jmp 4000 <hak_free_slow>"]
    assert not fast_path_shape.check({"malloc": clean, "free": clean})
    assert fast_path_shape.check({"malloc": clean + ["call 1000 <f>"], "free": clean})
    assert fast_path_shape.check({"malloc": ["cmp $0x0,0x10(%rip)        # 12 <hak_config+0x8>"], "free": clean})
    assert fast_path_shape.check({"malloc": clean}), "free is missing"
    slow_call = ["ret", "call 1000 <f>"]
    assert not fast_path_shape.check({"malloc": clean, "free": clean, "_Znwm": clean + slow_call})
    assert fast_path_shape.check({"malloc": clean, "free": clean, "_Znwm": slow_call[1:] + slow_call})

    costs, total = instructions.self_costs(CALLGRIND, "libhakmem.so")
    assert costs == {"malloc": 15, "hak_malloc_slow": 600, "free": 20}, costs
    assert total == 15 + 600 + 99 + 20
    good = {"16": {"malloc": 15.0, "free": 18.0, "pair": 45.0}}
    assert not instructions.problems(good, good)
    assert instructions.problems({"16": {"malloc": 16.0, "free": 18.0, "pair": 45.0}}, good)
    assert instructions.problems({"16": {"malloc": 14.0, "free": 18.0, "pair": 45.0}}, good), "better is a change too"
    assert not instructions.problems({"16": {"malloc": 15.0, "free": 18.0, "pair": 45.16}}, good), "the clock asked"
    assert instructions.problems({}, good), "nothing was measured"

    segments = ("  LOAD           0x004000 0x0000000000004000 0x0000000000004000 0x001000 0x001000 R E 0x1000\n"
                "  LOAD           0x008000 0x0000000000008000 0x0000000000008000 0x002000 0x002000 RW  0x1000\n"
                "  GNU_RELRO      0x008000 0x0000000000008000 0x0000000000008000 0x001000 0x001000 R   0x1\n")  # fmt: skip
    fixed = "".join(f"{0x8000 + 8 * i:012x}  000000000008 R_X86_64_RELATIVE                         4{i:03x}\n" for i in range(60))
    assert not constant_code.check(segments, fixed)
    for target in ("4010", "8010"):
        wild = f"000000009000  000000000008 R_X86_64_RELATIVE                         {target}\n"
        assert len(constant_code.check(segments, fixed + wild)) == 1
    assert not constant_code.check(segments, fixed + wild.replace("8010", "9100")), "data may lead to data"
    assert constant_code.check(segments, ""), "nothing was found"

    assert not steady_state.compare({"mmap": 3}, {"mmap": 3})
    assert steady_state.compare({"mmap": 3}, {"mmap": 4})
    assert steady_state.compare({}, {"madvise": 1})


if __name__ == "__main__":
    main()
