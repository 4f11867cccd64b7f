/* The hardened build's byte for every 16 bytes of a region: 1 where a block starts that the program has.
 *
 * Set when a block of a slab is handed out, cleared when it is freed, before anything else may see the block as free. Bytes
 * of different blocks are written by different threads without disturbing each other. Of two frees of one block at the
 * same instant both may find 1; the slab's bitmap tells then, unless the block has been handed out again. */
#ifndef HAK_API_HELD_H
#define HAK_API_HELD_H

#include "region/region.h"

HAK_INLINE uint8_t *hak_held_byte(const hak_region *r, size_t offset) { return &r->held[offset / HAK_GRANULE]; }

HAK_INLINE size_t hak_held_offset(const hak_region *r, const void *p) { return (uintptr_t)p - r->base; }

HAK_INLINE void hak_held_set(hak_region *r, const void *p) {
  if (HAK_HARD(CHECKED_FREE)) hak_store_relaxed(hak_held_byte(r, hak_held_offset(r, p)), 1);
}

/* p: an address in a slab, at `offset` of its region. */
HAK_INLINE bool hak_held_at(const hak_region *r, const void *p, size_t offset) {
  if (!HAK_HARD(CHECKED_FREE)) return true;
  return (uintptr_t)p % HAK_GRANULE == 0 && hak_load_relaxed(hak_held_byte(r, offset)) == 1;
}
HAK_INLINE bool hak_held(const hak_region *r, const void *p) { return hak_held_at(r, p, hak_held_offset(r, p)); }

/* False: it was not set. */
HAK_INLINE bool hak_held_clear_at(hak_region *r, const void *p, size_t offset) {
  if (HAK_UNLIKELY(!hak_held_at(r, p, offset))) return false;
  if (HAK_HARD(CHECKED_FREE)) hak_store_relaxed(hak_held_byte(r, offset), 0);
  return true;
}
HAK_INLINE bool hak_held_clear(hak_region *r, const void *p) { return hak_held_clear_at(r, p, hak_held_offset(r, p)); }

/* Sets the byte of a block of any region; returns p. The slow half is for regions beside the main one. */
void *hak_held_set_slow(void *p);
HAK_INLINE void *hak_held_set_any(void *p) {
  size_t offset = (uintptr_t)p - hak_load_folded(&hak_main_base);
  if (HAK_UNLIKELY(offset >= hak_load_folded(&hak_main_limit))) return hak_held_set_slow(p);
  hak_store_relaxed(hak_held_byte(&hak_main_region, offset), 1);
  return p;
}

#endif
