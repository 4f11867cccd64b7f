/* Bit and alignment arithmetic. No state. */
#ifndef HAK_BASE_BITS_H
#define HAK_BASE_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

#define HAK_KIB ((size_t)1 << 10)
#define HAK_MIB ((size_t)1 << 20)
#define HAK_GIB ((size_t)1 << 30)

HAK_INLINE unsigned hak_ctz64(uint64_t x) { return (unsigned)__builtin_ctzll(x); }
/* The same as a word; the compiler would clear and extend it, two instructions of the loop that fills magazines. */
HAK_INLINE uint64_t hak_lowest_bit(uint64_t x) {
#ifdef __x86_64__
  uint64_t n;
  __asm__("rep bsfq %1, %0" : "=r"(n) : "r"(x) : "cc"); /* tzcnt, where there is one */
  return n;
#else
  return hak_ctz64(x);
#endif
}
/* Highest set bit; x is not 0. */
HAK_INLINE unsigned hak_log2(uint64_t x) { return 63 - (unsigned)__builtin_clzll(x); }
HAK_INLINE unsigned hak_popcount64(uint64_t x) { return (unsigned)__builtin_popcountll(x); }

HAK_INLINE bool hak_is_pow2(size_t x) { return x != 0 && (x & (x - 1)) == 0; }

/* align must be a power of two. */
HAK_INLINE uintptr_t hak_align_up(uintptr_t x, size_t align) { return (x + align - 1) & ~((uintptr_t)align - 1); }
HAK_INLINE uintptr_t hak_align_down(uintptr_t x, size_t align) { return x & ~((uintptr_t)align - 1); }

/* Smallest power of two >= x, for 1 <= x <= 2^63. */
HAK_INLINE size_t hak_pow2_ceil(size_t x) { return x <= 1 ? 1 : (size_t)1 << (64 - __builtin_clzll(x - 1)); }

HAK_INLINE size_t hak_min_size(size_t a, size_t b) { return a < b ? a : b; }
HAK_INLINE size_t hak_max_size(size_t a, size_t b) { return a > b ? a : b; }

/* a * b: returns the low half. The compiler would keep both halves of the product together, in memory. */
HAK_INLINE uint64_t hak_multiply(uint64_t a, uint64_t b, uint64_t *high) {
#ifdef __x86_64__
  __asm__("mulq %2" : "+a"(a), "=d"(*high) : "r"(b) : "cc");
  return a;
#else
  __extension__ unsigned __int128 product = (unsigned __int128)a * b;
  *high = (uint64_t)(product >> 64);
  return (uint64_t)product;
#endif
}

/* Sets a bit of a bitmap; whether it was set. x86 tells by the carry of one instruction, which the compiler does not
 * think of. */
HAK_INLINE bool hak_test_and_set(uint64_t *bitmap, uint64_t bit) {
  uint64_t bits = bitmap[bit / 64];
#ifdef __x86_64__
  bool was;
  __asm__("btsq %2, %0" : "+r"(bits), "=@ccc"(was) : "r"(bit));
#else
  bool was = (bits >> (bit % 64) & 1) != 0;
  bits |= (uint64_t)1 << (bit % 64);
#endif
  bitmap[bit / 64] = bits;
  return was;
}

#endif
