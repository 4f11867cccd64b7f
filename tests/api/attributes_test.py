"""attributes_test.py INCLUDE CC CXX [CLANG CLANGXX]: what compilers know of the functions from the header's attributes.
Nothing is run: each claim is a piece of code that compiles without a warning, or with the one expected."""
import subprocess
import sys

# Gone where the compiler knows that the condition is false.
HEAD = """
#include <hakmem/hakmem.h>
#include <string.h>
extern void unknown(void) __attribute__((error("this is not known")));
extern void use(void *p);
#define KNOWN(condition) do { if (!(condition)) unknown(); } while (0)
#define SIZE(p) __builtin_object_size(p, 0)
"""
NOTHING = "(size_t)-1"

SIZES = {
    "hakmem_malloc(10)": "10",
    "hakmem_calloc(3, 5)": "15",
    "hakmem_realloc(q, 20)": "20",
    "hakmem_reallocarray(q, 3, 7)": "21",
    "hakmem_aligned_alloc(64, 128)": "128",
    "hakmem_memalign(64, 100)": "100",
    "hakmem_valloc(100)": "100",
    # These give more than was asked for, and the program may use it.
    "hakmem_pvalloc(100)": NOTHING,
    "hakmem_alloc_at_least(10, &actual)": NOTHING,
}
# Whatever frees a block of whatever gives one.
PROPER = """
void proper(size_t n) {
  size_t actual;
  void *p = hakmem_malloc(n);
  use(p), p = hakmem_realloc(p, 2 * n), use(p), hakmem_free(p);
  p = hakmem_calloc(n, n), use(p), p = hakmem_reallocarray(p, n, 3), use(p), hakmem_free_sized(p, 3 * n);
  p = hakmem_aligned_alloc(64, n), use(p), hakmem_free_aligned_sized(p, 64, n);
  p = hakmem_memalign(64, n), use(p), hakmem_free(p);
  p = hakmem_valloc(n), use(p), hakmem_free(p);
  p = hakmem_pvalloc(n), use(p), hakmem_free(p);
  p = hakmem_alloc_at_least(n, &actual), use(p), hakmem_free(p);
  if (hakmem_posix_memalign(&p, 64, n) == 0) hakmem_free(p);
  use((void *)hakmem_version());
}
"""
MIXED = {
    "free of hakmem_malloc's": "void f(void) { void *p = hakmem_malloc(10); use(p); free(p); }",
    "free of hakmem_realloc's": "void f(void *p) { p = hakmem_realloc(p, 10); use(p); free(p); }",
    "hakmem_free of malloc's": "void f(void) { void *p = malloc(10); use(p); hakmem_free(p); }",
}
MISMATCHES = MIXED | {
    "fclose of hakmem_alloc_at_least's":
        "void f(void) { size_t n; void *p = hakmem_alloc_at_least(10, &n); use(p); fclose((FILE *)p); }",
    "hakmem_free of fopen's": 'void f(void) { FILE *p = fopen("x", "r"); use(p); hakmem_free(p); }',
}
problems: list[str] = []


def complaints(compiler: list[str], code: str) -> str:
    """What the compiler says; "" if nothing."""
    command = [*compiler, "-Wall", "-Wextra", "-Wpedantic", "-O2", "-c", "-o", "/dev/null", "-"]
    done = subprocess.run(command, input=HEAD + "#include <stdlib.h>\n" + code + "\n", capture_output=True, text=True, timeout=60)
    return done.stderr or ("" if done.returncode == 0 else f"exit status {done.returncode}")


def expect(compiler: list[str], what: str, code: str, wanted: str) -> None:
    said = complaints(compiler, code)
    if (said != "") if wanted == "" else (wanted not in said):
        problems.append(f"{compiler[0]}: {what}: expected {wanted or 'no warning'}, got {said or 'none'}")


def claims(values: dict[str, object], claim: str) -> str:
    calls = (f"void f{i}(void *q, size_t n) {{ size_t actual; void *p = {call}; KNOWN({claim.format(value)}); use(p); "
             "(void)q, (void)n, (void)actual; }" for i, (call, value) in enumerate(values.items()))
    return "\n".join(calls)


def check(compiler: list[str], knows_deallocators: bool) -> None:
    expect(compiler, "proper use", PROPER, "")
    expect(compiler, "sizes", claims(SIZES, "SIZE(p) == {}"), "")
    # The claims are able to fail.
    expect(compiler, "another size", claims({"hakmem_malloc(10)": 11}, "SIZE(p) == {}"), "not known")
    expect(compiler, "a block that is lost", "void f(void *p) { hakmem_realloc(p, 10); }", "unused")
    for what, code in MIXED.items():
        expect(compiler, what, code, "mismatched" if knows_deallocators else "")
        expect([*compiler, "-DHAKMEM_MIXED_FAMILIES"], f"{what}, allowed", code, "")
    for what, code in MISMATCHES.items() if knows_deallocators else ():
        expect(compiler, what, code, "mismatched")


def is_clang(compiler: str) -> bool:
    return "clang" in subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout


def main(include: str, *compilers: str) -> None:
    for i, compiler in enumerate(compilers):
        language = ["-x", "c++", "-std=c++17"] if i % 2 else ["-x", "c", "-std=c11"]
        check([compiler, *language, "-D_GNU_SOURCE", f"-I{include}"], not is_clang(compiler))
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
