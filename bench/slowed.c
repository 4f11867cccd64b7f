/* A malloc that waits for a chain of STEPS multiplications by 1 before it calls hakmem's, to test `hakmem ab` on a known
 * difference (scripts/ab-self-test.sh). Linked with libhakmem.so, which the loader searches after libc: so the other calls of the bench
 * program, and libc's own, are passed on as well. */
#include <hakmem/hakmem.h>

__attribute__((visibility("default"))) void *malloc(size_t size) {
    size_t one = 1;
    for (unsigned i = 0; i < STEPS; i++) {
        __asm__ volatile("" : "+r"(size), "+r"(one)); /* the compiler cannot see that nothing changes */
        size *= one;
    }
    return hakmem_malloc(size);
}

__attribute__((visibility("default"))) void free(void *p) { hakmem_free(p); }
__attribute__((visibility("default"))) void *calloc(size_t count, size_t size) { return hakmem_calloc(count, size); }
__attribute__((visibility("default"))) void *realloc(void *p, size_t size) { return hakmem_realloc(p, size); }
