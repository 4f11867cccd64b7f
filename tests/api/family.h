// The functions under test by either family of names: F(malloc) is malloc in the override tests, hakmem_malloc elsewhere.
#ifndef HAKMEM_TESTS_FAMILY_H
#define HAKMEM_TESTS_FAMILY_H

#include <malloc.h>
#include <stdlib.h>

#include "hakmem/hakmem.h"

#if HAKMEM_TEST_OVERRIDE
#define F(name) name
extern "C" {
// Not in this glibc's headers.
void cfree(void *p);
void free_sized(void *p, size_t size);
void free_aligned_sized(void *p, size_t alignment, size_t size);
}
#else
#define F(name) hakmem_##name
#endif

// The hardened build knows exact sizes, and does not use a block again at once.
#ifndef HAKMEM_TEST_HARDENED
#define HAKMEM_TEST_HARDENED 0
#endif

// Keeps the compiler from knowing what a value is.
template <typename T>
T opaque(T value) {
  __asm__ volatile("" : "+r"(value));
  return value;
}

#endif
