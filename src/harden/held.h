/* The hardened build's byte for every 16 bytes of a region: HAK_HELD where a block starts that the program has.
 *
 * Set when a block of a slab is handed out, taken back when it is freed, before anything else may see the block as
 * free. Bytes of different blocks are written by different threads without disturbing each other. Of two frees of one
 * block at the same instant both may find it held; the slab's bitmap tells then, unless the block has been handed out
 * again.
 *
 * While a block is neither, because a thread writes its trailer or its zeros (also in place), the byte says
 * HAK_CHANGING. So any thread may look at a block: where the byte says HAK_HELD the trailer is whole; where it says
 * HAK_NOT_HELD the block reads as zeros, and its end as the last trailer or zero (harden/sweep.c):
 *
 *   writer   1 byte = CHANGING   2 release fence       3 contents   4 byte = HELD or NOT_HELD (release)
 *   reader   a byte (acquire)    b contents            c acquire fence   d byte again
 *
 * If b sees a byte of 3, then by 2 and c, d sees that 1 or what came later. If a sees a 4, b sees its 3. What looks
 * damaged between an a and a d that say the same is damage, or there was a whole round of 1 to 4 between them: the
 * reader looks again, a millisecond later each time, and the writer is a thread that frees the block, waits for the
 * quarantine to end, and gets it again, or resizes it twice. */
#ifndef HAK_HARDEN_HELD_H
#define HAK_HARDEN_HELD_H

#include "tcache/cache.h"

enum { HAK_NOT_HELD, HAK_HELD, HAK_CHANGING };

HAK_INLINE uint8_t *hak_held_byte(const hak_region *r, size_t offset) { return hak_region_held_byte(r, offset); }

HAK_INLINE size_t hak_held_offset(const hak_region *r, const void *p) { return (uintptr_t)p - r->base; }

HAK_INLINE void hak_held_set(hak_region *r, const void *p) {
  if (HAK_HARD(CHECKED_FREE)) hak_store_release(hak_held_byte(r, hak_held_offset(r, p)), HAK_HELD);
}

/* Before a thread changes a block that the program does not have; then it sets the byte. */
HAK_INLINE void hak_held_begin(hak_region *r, const void *p) {
  if (!HAK_HARD(CHECKED_FREE)) return;
  hak_store_relaxed(hak_held_byte(r, hak_held_offset(r, p)), HAK_CHANGING);
  __atomic_thread_fence(__ATOMIC_RELEASE);
}
HAK_INLINE void hak_held_unset(hak_region *r, const void *p) {
  if (HAK_HARD(CHECKED_FREE)) hak_store_release(hak_held_byte(r, hak_held_offset(r, p)), HAK_NOT_HELD);
}

/* p: an address in a slab, at `offset` of its region. */
HAK_INLINE bool hak_held_at(const hak_region *r, const void *p, size_t offset) {
  if (!HAK_HARD(CHECKED_FREE)) return true;
  return (uintptr_t)p % HAK_GRANULE == 0 && hak_load_relaxed(hak_held_byte(r, offset)) == HAK_HELD;
}
HAK_INLINE bool hak_held(const hak_region *r, const void *p) { return hak_held_at(r, p, hak_held_offset(r, p)); }

/* False: it was not set. */
HAK_INLINE bool hak_held_clear_at(hak_region *r, const void *p, size_t offset) {
  if (HAK_UNLIKELY(!hak_held_at(r, p, offset))) return false;
  if (HAK_HARD(CHECKED_FREE)) hak_store_relaxed(hak_held_byte(r, offset), HAK_NOT_HELD);
  return true;
}
/* The same, and the block's contents may change until hak_held_unset. */
HAK_INLINE bool hak_held_take(hak_region *r, const void *p) {
  if (HAK_UNLIKELY(!hak_held(r, p))) return false;
  hak_held_begin(r, p);
  return true;
}

/* Sets the byte of a block of any region; returns p. The slow half is for regions beside the main one. */
void *hak_held_set_slow(void *p);
HAK_INLINE void *hak_held_set_any(void *p) {
  size_t offset = (uintptr_t)p - hak_load_folded(&hak_main_base);
  if (HAK_UNLIKELY(offset >= hak_load_folded(&hak_main_limit))) return hak_held_set_slow(p);
  hak_store_relaxed(hak_held_byte(&hak_main_region, offset), HAK_HELD);
  return p;
}

#endif
