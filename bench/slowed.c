/* A malloc that waits for a chain of STEPS multiplications by 1 before it calls hakmem's, to test `hakmem ab` on a known
 * difference (scripts/ab-self-test.sh). Linked with libhakmem.so: preloading this library preloads both. */
#include <hakmem/hakmem.h>

__attribute__((visibility("default"))) void *malloc(size_t size) {
    size_t one = 1;
    for (unsigned i = 0; i < STEPS; i++) {
        __asm__ volatile("" : "+r"(size), "+r"(one)); /* the compiler cannot see that nothing changes */
        size *= one;
    }
    return hakmem_malloc(size);
}
