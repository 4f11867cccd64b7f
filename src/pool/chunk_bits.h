/* Bitmaps of a chunk, a bit a span. Written under the pool's lock; single words may be read without it. */
#ifndef HAK_POOL_CHUNK_BITS_H
#define HAK_POOL_CHUNK_BITS_H

#include "region/region.h"

HAK_INLINE bool hak_bits_has(const uint64_t *words, size_t bit) { return (words[bit / 64] >> (bit % 64) & 1) != 0; }

/* Sets or clears bits [first, first + count); returns how many of them were set before. */
HAK_INLINE size_t hak_bits_change(uint64_t *words, size_t first, size_t count, bool set) {
  size_t before = 0;
  while (count > 0) {
    size_t bit = first % 64, n = hak_min_size(64 - bit, count);
    uint64_t mask = (n == 64 ? ~(uint64_t)0 : (((uint64_t)1 << n) - 1)) << bit, word = words[first / 64];
    uint64_t old = word & mask;
    before += old == 0 ? 0 : old == mask ? n : hak_popcount64(old);
    hak_store_relaxed(&words[first / 64], set ? word | mask : word & ~mask);
    first += n;
    count -= n;
  }
  return before;
}

/* First bit >= from that is set, or is not; or HAK_CHUNK_SPANS. */
HAK_INLINE size_t hak_bits_next(const uint64_t *words, size_t from, bool set) {
  uint64_t flip = set ? 0 : ~(uint64_t)0, mask = ~(uint64_t)0 << (from % 64);
  for (size_t w = from / 64; w < HAK_CHUNK_WORDS; w++, mask = ~(uint64_t)0) {
    uint64_t word = (words[w] ^ flip) & mask;
    if (word != 0) return w * 64 + hak_ctz64(word);
  }
  return HAK_CHUNK_SPANS;
}

/* First bit of those up to `bit`, which are all set as it is. */
HAK_INLINE size_t hak_bits_first_of_run(const uint64_t *words, size_t bit) {
  size_t w = bit / 64;
  uint64_t clear = ~words[w] & (((uint64_t)1 << bit % 64) - 1);
  while (clear == 0 && w > 0) clear = ~words[--w];
  return clear == 0 ? 0 : w * 64 + hak_log2(clear) + 1;
}

#endif
