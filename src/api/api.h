/* The entry points' shared parts. The thin inline wrappers here are what both hakmem_… (api/) and the malloc family
 * (override/) are made of, so that each has the fast path in its own body. */
#ifndef HAK_API_API_H
#define HAK_API_API_H

#include "hakmem/hakmem.h"
#include "heap/front.h"

/* Slow halves; they set errno. */
void *hak_malloc_slow(size_t size);
/* Reached by a tail call from an entry point, so that its return address is the program's (in unoptimised builds it
 * is the entry point's). */
__attribute__((nothrow)) void hak_free_slow(void *p, size_t difference);

void *hak_calloc(size_t count, size_t size);
void *hak_realloc(void *p, size_t size, const void *caller);
void *hak_reallocarray(void *p, size_t count, size_t size, const void *caller);
void *hak_aligned(size_t alignment, size_t size); /* alignment: power of two; else EINVAL */
void *hak_memalign(size_t alignment, size_t size);
int hak_posix_memalign(void **out, size_t alignment, size_t size);
void *hak_pvalloc(size_t size);
size_t hak_usable_size(const void *p, const void *caller);
/* Frees p after checking that a request of `size` (aligned so) could have got this block. */
void hak_free_sized(void *p, size_t size);

/* Only for builds that test the measuring instrument (CMake's HAKMEM_TEST_SLOWDOWN): malloc waits for a chain of
 * `steps` multiplications by 1 before it looks at the size. The compiler cannot see that nothing changes. */
HAK_INLINE size_t hak_slowed(size_t size, unsigned steps) {
  size_t one = 1;
  for (unsigned i = 0; i < steps; i++) {
    __asm__ volatile("" : "+r"(size), "+r"(one));
    size *= one;
  }
  return size;
}

HAK_INLINE void *hak_malloc(size_t size) {
  if (HAK_TEST_SLOWDOWN) size = hak_slowed(size, HAK_TEST_SLOWDOWN);
  void *p = hak_front_pop(size);
  return HAK_LIKELY(p != 0) ? p : hak_malloc_slow(size);
}

#define HAK_CALLER() __builtin_return_address(0)

HAK_INLINE void hak_free(void *p) {
  size_t difference;
  if (HAK_UNLIKELY(!hak_front_push(p, &difference))) hak_free_slow(p, difference);
}

#endif
