/* The hardened build's byte for every 16 bytes of a region: 1 where a block starts that the program has.
 *
 * Set when a block of a slab is handed out, cleared when it is freed, before anything else may see the block as free. Bytes
 * of different blocks are written by different threads without disturbing each other. Of two frees of one block at the
 *  same instant both may find 1; the slab's bitmap tells then, unless the block has been handed out again. */
#ifndef HAK_API_HELD_H
#define HAK_API_HELD_H

#include "region/region.h"

HAK_INLINE uint8_t *hak_held_byte(const hak_region *r, const void *p) {
  return &r->held[((uintptr_t)p - r->base) / HAK_GRANULE];
}

HAK_INLINE void hak_held_set(hak_region *r, const void *p) {
  if (HAK_HARD(CHECKED_FREE)) hak_store_relaxed(hak_held_byte(r, p), 1);
}

/* p: an address in a slab. */
HAK_INLINE bool hak_held(const hak_region *r, const void *p) {
  return !HAK_HARD(CHECKED_FREE) || ((uintptr_t)p % HAK_GRANULE == 0 && hak_load_relaxed(hak_held_byte(r, p)) == 1);
}

/* False: it was not set. */
HAK_INLINE bool hak_held_clear(hak_region *r, const void *p) {
  if (HAK_UNLIKELY(!hak_held(r, p))) return false;
  if (HAK_HARD(CHECKED_FREE)) hak_store_relaxed(hak_held_byte(r, p), 0);
  return true;
}

#endif
