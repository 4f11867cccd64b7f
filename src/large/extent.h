/* Extents: blocks of 256 KiB to 32 MiB, and to 4 GiB where no mapping is to be had, as whole spans from the pool. An
 * extent starts in its first span, at the span's address or, where there is room behind what was asked for, at a
 * colour; so its page map code tells an interior address from its start and every free is checked at the call. No lock
 * of its own. */
#ifndef HAK_LARGE_EXTENT_H
#define HAK_LARGE_EXTENT_H

#include "misuse/misuse.h"
#include "pool/quick.h"
#include "pool/span_pool.h"

#define HAK_EXTENT_MAX ((size_t)HAK_EXTENT_MAX_SPANS * HAK_SPAN_SIZE)
/* And where the system refuses a mapping of its own: a whole chunk, 64 MiB. Chunks begin at huge pages, so alignment up
 * to one always fits. Hardened build: what lies between two guards. Where the process may have no mapping more at all,
 * up to 4 GiB, aligned to 2 GiB at most: growing the region takes none. */
#define HAK_EXTENT_CHUNK ((size_t)(HAK_HARD(GUARDS) ? HAK_GUARD_PERIOD - 1 : HAK_CHUNK_SPANS) * HAK_SPAN_SIZE)
#define HAK_EXTENT_LONGEST_SPANS ((size_t)(HAK_HARD(GUARDS) ? HAK_GUARD_PERIOD - 1 : HAK_LONGEST_SPANS))
#define HAK_EXTENT_LONGEST (HAK_EXTENT_LONGEST_SPANS * HAK_SPAN_SIZE)

#define HAK_EXTENT_TAG HAK_TAG(0, HAK_CODE_EXTENT)
#define HAK_EXTENT_TAGS ((hak_pool_tags){HAK_EXTENT_TAG, HAK_CODE_EXTENT, HAK_CODE_EXTENT_BODY})

/* Of a span that an extent had: it came back, and is free. */
HAK_INLINE bool hak_extent_is_quick(const hak_span *head) { return hak_load_relaxed(&head->tag) == HAK_QUICK_TAG; }

/* Whether what is asked for is noted, for statistics: of extents in their span's `summary`, of blocks by thread cache
 * and class. Set once, before the first block. */
extern HAK_HIDDEN bool hak_requests_noted;

/* Where a block leaves a page of its spans, it starts at a colour, any multiple of 64 in that page but 0; so that large
 * blocks do not all lie in the same cache sets. */
#define HAK_EXTENT_COLOURED 4096

/* Spans of an extent that holds `size` bytes. */
HAK_INLINE size_t hak_extent_spans(size_t size) {
  return hak_spans_of(hak_max_size(size, 1));
}

/* The least that a block in whole spans has, where it is aligned so. */
HAK_INLINE size_t hak_extent_least(size_t size, size_t align) {
  size_t spans = hak_extent_spans(size) << HAK_SPAN_SHIFT;
  return align > HAK_COLOUR_BYTES || spans - size < HAK_EXTENT_COLOURED ? spans : spans - HAK_EXTENT_COLOURED;
}

/* An extent that came back lately, where one has as many spans, for a request that was counted; NULL: none has. */
void *hak_extent_take_quick(size_t size);
/* size: at most HAK_EXTENT_LONGEST. align: power of two, no more either. zeros: they were asked for; *zeroed: the
 * memory reads as zero. NULL: out of memory. */
void *hak_extent_alloc(size_t size, size_t align, bool zeros, bool *zeroed);
HAK_INLINE bool hak_extent_is_coloured(const hak_span *s) { return s->start % HAK_SPAN_SIZE != 0; }
HAK_INLINE size_t hak_extent_usable(const hak_span *s, bool coloured) {
  return ((size_t)s->span_count << HAK_SPAN_SHIFT) - (coloured ? HAK_EXTENT_COLOURED : 0);
}
HAK_INLINE size_t hak_extent_size(const hak_region *r, const void *p) {
  const hak_span *s = hak_region_span(r, p);
  return hak_extent_usable(s, hak_extent_is_coloured(s));
}
/* The first half of freeing an extent: marks it as no longer the user's. Of two threads that free one extent at the
 * same time, one is told. */
HAK_INLINE hak_verdict hak_extent_claim(hak_region *r, void *p) {
  if (hak_region_span(r, p)->start != (uintptr_t)p) return HAK_VERDICT_NO_BLOCK_START;
  HAK_SCHEDULE_POINT("extent: looked at, not claimed");
  bool won = hak_region_change_code(r, hak_region_index(r, p), HAK_CODE_EXTENT, HAK_CODE_EXTENT_FREED);
  return won ? HAK_VERDICT_OK : HAK_VERDICT_FREE_MEMORY;
}
/* The second half: gives it to the pool. */
HAK_INLINE void hak_extent_give(hak_region *r, void *p, bool *purge_due) {
  HAK_SCHEDULE_POINT("extent: claimed, not given");
  hak_pool_give_large(r, hak_region_span(r, p), HAK_EXTENT_TAG, purge_due);
}
/* Resizes in place; false when that cannot be done (nothing changed). */
bool hak_extent_resize(hak_region *region, void *p, size_t size, bool *purge_due);

#endif
