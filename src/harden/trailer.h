/* The last 8 bytes of each block of the hardened build, and the bytes before them that the request leaves.
 *
 * Trailer: slack (bytes between request and trailer) << 8 | family, above 24 bits that are zero, all of it xored with a
 * key drawn from two secrets and the address. An overflow meets the 24 bits first (on a little-endian machine). The
 * key's lowest byte is 0, and so is the trailer's first: a string that fills its block ends there, and prints nothing
 * of the key. That a zero, and no more, was written right behind a full block is not seen: it changes nothing. Fill: up
 * to 32 bytes behind the request hold a pattern, which does not tell the key; what is further behind is looked at only
 * in blocks that were resized in place, of which half may lie there; a mark in the family tells these. */
#ifndef HAK_HARDEN_TRAILER_H
#define HAK_HARDEN_TRAILER_H

#include <string.h>

#include "harden/harden.h"
#include "os/os.h"

#define HAK_TRAILER_BYTES sizeof(uint64_t)
#define HAK_TRAILER_BYTES_BUILT (HAK_HARD(CANARY) ? HAK_TRAILER_BYTES : 0) /* of this build */
#define HAK_FILL_MAX ((size_t)32)
#define HAK_TRAILER_CHECK_BITS 24
#define HAK_TRAILER_RESIZED 4 /* with a family: all bytes up to the trailer are filled */

/* Drawn by hak_trailer_start; the multiplier is odd. */
extern HAK_HIDDEN uint64_t hak_trailer_secret[2];
extern HAK_HIDDEN const uint8_t hak_fill_masks[2 * HAK_FILL_MAX];

/* Before the first block. Idempotent, any thread. */
void hak_trailer_start(void);

typedef struct hak_trailer_key {
  uint64_t word; /* of the trailer */
  uint64_t fill; /* no byte of it is 0, a string's end, or ASCII */
} hak_trailer_key;

/* Both halves of a product with a secret factor: each bit of the word depends on all of the address. A string without
 * an end shows the fill: that is made of one half alone. */
HAK_INLINE hak_trailer_key hak_trailer_key_of(const void *p) {
  uint64_t mixed = (uintptr_t)p ^ hak_load_relaxed(&hak_trailer_secret[0]);
  __extension__ unsigned __int128 product = (unsigned __int128)mixed * hak_load_relaxed(&hak_trailer_secret[1]);
  uint64_t low = (uint64_t)product, high = (uint64_t)(product >> 64);
  return (hak_trailer_key){(low ^ high) << 8, high | 0x8080808080808080u};
}

typedef uint64_t hak_pair __attribute__((vector_size(16)));

HAK_INLINE hak_pair hak_pair_at(const void *p) {
  hak_pair value;
  memcpy(&value, p, sizeof value);
  return value;
}

/* ACT for each pair of what is zeroed of a block, a multiple of 16 bytes, and for some of them twice: two runs of a
 * fixed length, from both ends, are faster than one of a length that the processor cannot foresee. */
#define HAK_EACH_PAIR(first, bytes, run, ACT)                     \
  _Pragma("GCC unroll 16") for (size_t i = 0; i < (run); i++) {   \
    ACT((first)[i]);                                              \
    ACT((first)[(bytes) / sizeof(hak_pair) - (run) + i]);         \
  }
#define HAK_EACH_ZEROED_PAIR(first, bytes, ACT)                   \
  if (HAK_LIKELY((bytes) >= HAK_ZEROED_BYTES)) {                  \
    HAK_EACH_PAIR(first, HAK_ZEROED_BYTES, 8, ACT)                \
  } else if ((bytes) >= 128) {                                    \
    HAK_EACH_PAIR(first, bytes, 8, ACT)                           \
  } else if ((bytes) >= 64) {                                     \
    HAK_EACH_PAIR(first, bytes, 4, ACT)                           \
  } else if ((bytes) >= 32) {                                     \
    HAK_EACH_PAIR(first, bytes, 2, ACT)                           \
  } else {                                                        \
    ACT((first)[0]);                                              \
  }

/* Whether a free block of a slab is as it was left. */
HAK_INLINE bool hak_is_zero(const void *p, size_t block_size) {
  const hak_pair *first = (const hak_pair *)p;
  hak_pair any = {0, 0};
#define SEE(pair) any |= (pair)
  HAK_EACH_ZEROED_PAIR(first, block_size, SEE)
#undef SEE
  return (any[0] | any[1]) == 0;
}

HAK_INLINE void hak_zero(void *p, size_t block_size) {
  hak_pair *first = (hak_pair *)p;
  const hak_pair zero = {0, 0};
#define WRITE(pair) ((pair) = zero)
  HAK_EACH_ZEROED_PAIR(first, block_size, WRITE)
#undef WRITE
}

/* The masks of 16 bytes at offset `at` of a block: 0xff where a byte lies behind the request. */
HAK_INLINE hak_pair hak_fill_mask(size_t size, size_t at) {
  size_t requested = size <= at ? 0 : hak_min_size(size - at, 16);
  return hak_pair_at(hak_fill_masks + HAK_FILL_MAX - requested);
}

/* Writes (set) or compares the fill between request and `end`, where the trailer is. */
HAK_INLINE bool hak_fill(char *p, size_t size, size_t end, uint64_t pattern, bool set) {
  if (HAK_LIKELY(end >= HAK_FILL_MAX || end == 24)) {
    const hak_pair wanted = {pattern, pattern};
    /* Two windows of 16 bytes; in a block of 32 they overlap by 8, which is the pattern's period. Both are read before
     * one is written: a read of what has just been written in part would wait for it. */
    size_t first = end >= HAK_FILL_MAX ? hak_min_size(size, end - HAK_FILL_MAX) : 0;
    size_t second = end >= HAK_FILL_MAX ? first + 16 : end - 16;
    hak_pair mask[2] = {hak_fill_mask(size, first), hak_fill_mask(size, second)};
    hak_pair found[2] = {hak_pair_at(p + first), hak_pair_at(p + second)};
    hak_pair filled[2] = {(found[0] & ~mask[0]) | (wanted & mask[0]), (found[1] & ~mask[1]) | (wanted & mask[1])};
    if (set) {
      memcpy(p + first, &filled[0], sizeof filled[0]);
      memcpy(p + second, &filled[1], sizeof filled[1]);
      return true;
    }
    hak_pair different = (filled[0] ^ found[0]) | (filled[1] ^ found[1]);
    return (different[0] | different[1]) == 0;
  }
  if (HAK_LIKELY(end == sizeof pattern)) { /* a block of 16 bytes */
    uint64_t mask, found;
    memcpy(&mask, hak_fill_masks + HAK_FILL_MAX - hak_min_size(size, end), sizeof mask);
    memcpy(&found, p, sizeof found);
    if (!set) return ((found ^ pattern) & mask) == 0;
    found = (found & ~mask) | (pattern & mask);
    memcpy(p, &found, sizeof found);
    return true;
  }
  for (size_t at = size; at < end; at++) { /* a sampled block of any other size */
    char wanted = (char)(pattern >> at % sizeof pattern * 8);
    if (set)
      p[at] = wanted;
    else if (p[at] != wanted)
      return false;
  }
  return true;
}

HAK_INLINE void hak_trailer_write(void *p, size_t block_size, size_t size, hak_family family) {
  HAK_ASSERT(block_size >= HAK_TRAILER_BYTES && size <= block_size - HAK_TRAILER_BYTES && family >= HAK_FAMILY_MALLOC);
  size_t end = block_size - HAK_TRAILER_BYTES;
  uint64_t content = (uint64_t)(end - size) << 8 | (uint64_t)family;
  hak_trailer_key key = hak_trailer_key_of(p);
  hak_fill((char *)p, size, end, key.fill, true);
  /* Release: who reads this word sees its fill. */
  hak_store_release((uint64_t *)(void *)((char *)p + end), key.word ^ content << HAK_TRAILER_CHECK_BITS);
}

HAK_INLINE uint64_t hak_trailer_word(const void *p, size_t block_size) {
  return hak_load_racy((const uint64_t *)(const void *)((const char *)p + block_size - HAK_TRAILER_BYTES));
}
/* Of a block that another thread may be freeing or handing out: any value will do, as the caller looks again. */
HAK_RACY static inline uint64_t hak_trailer_glance(const void *p, size_t block_size) {
  return hak_trailer_word(p, block_size);
}

/* Whether `word` is one that may end the block. */
HAK_INLINE bool hak_trailer_fits(const void *p, size_t block_size, uint64_t word) {
  uint64_t content = word ^ hak_trailer_key_of(p).word,
           families = (HAK_FAMILY_NEW_ARRAY | HAK_TRAILER_RESIZED) - HAK_FAMILY_MALLOC;
  uint64_t checked = content & (((uint64_t)1 << HAK_TRAILER_CHECK_BITS) - 1);
  uint64_t family = content >> HAK_TRAILER_CHECK_BITS & 0xff, slack = content >> HAK_TRAILER_CHECK_BITS >> 8;
  return checked == 0 && family - HAK_FAMILY_MALLOC <= families && slack <= block_size - HAK_TRAILER_BYTES;
}

/* What lies between the fill and the trailer at `end` of a block that was resized: fills, or looks at, what is behind
 * the fill of one size up to behind that of another one. */
void hak_trailer_fill_rest(void *p, size_t size, size_t to_size, size_t end);
bool hak_trailer_rest_is_still(const void *p, size_t size, size_t to_size, size_t end);
/* Looks at all of it. */
bool hak_trailer_rest_is_whole(const void *p, size_t block_size, size_t size);

/* False: the trailer was written to, and *size is the block's; or bytes between it and the request were. */
HAK_INLINE bool hak_trailer_read(const void *p, size_t block_size, size_t *size, hak_family *family) {
  size_t end = block_size - HAK_TRAILER_BYTES;
  hak_trailer_key key = hak_trailer_key_of(p);
  uint64_t word = hak_trailer_word(p, block_size), content = (word ^ key.word) >> HAK_TRAILER_CHECK_BITS;
  __atomic_thread_fence(__ATOMIC_ACQUIRE); /* with the writer's release */
  *family = (hak_family)(content & 0xff);
  *size = block_size;
  if (HAK_UNLIKELY(!hak_trailer_fits(p, block_size, word))) return false;
  *size = end - (content >> 8);
  return hak_fill((char *)(uintptr_t)p, *size, end, key.fill, false);
}

#endif
