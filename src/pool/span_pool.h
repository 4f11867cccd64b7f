/* The span pool: every free span, for any class and any extent.
 *
 * Invariants: a span is either held by somebody (bit clear in `free`) or free (bit set); the free bitmaps are the
 * whole truth, so neighbours coalesce by construction. A free span's tag is 0, a held one's is not, except while its
 * pages are being given back; tags change together with the bits, under the lock, so that a fork never sees half. A
 * clean free span reads as zero; one given back lazily is neither clean nor dirty. Dirty spans are preferred to clean
 * ones, low addresses to high ones, and memory already accessible to new. Slabs of blocks that share one are kept apart
 * from large blocks, which a program may have registered with userfaultfd or a device: they come last to clean spans
 * that a large block ever had, and pass over some that are dirty.
 *
 * A chunk is of small or of huge pages. Spans that will be used to the last byte come from huge pages, those that may
 * stay mostly untouched from small ones; dirty spans of either kind go before clean ones. One lock, rank below heap
 * locks. Ranges of large blocks that came back lately are on quick lists, in no bitmap (quick.h). */
#ifndef HAK_POOL_SPAN_POOL_H
#define HAK_POOL_SPAN_POOL_H

#include "pool/counters.h"
#include "pool/chunk_index.h"
#include "region/region.h"

/* Largest extent that is asked for first, in spans (32 MiB); and the longest that the pool serves, as its metadata
 * count: beyond a chunk one takes no search, but what is free behind the last span in use. */
#define HAK_EXTENT_MAX_SPANS (HAK_HARD(GUARDS) ? HAK_GUARD_PERIOD / 2 : 512)
#define HAK_LONGEST_SPANS ((size_t)UINT16_MAX)

/* What the system has said of its pages (os/memory_limits.h): `huge` false, no span asks for huge ones from now on;
 * `spans`, memory that is not accessible yet gets pages of 64 KiB. */
void hak_pool_follow_page_sizes(bool huge, bool spans);

/* Whether a large block ever had the span. */
bool hak_pool_was_large(const hak_span *span);

HAK_INLINE bool hak_pool_is_full(void) {
  return hak_load_relaxed(&hak_span_pool.live_spans) >= hak_load_relaxed(&hak_span_pool.full_spans);
}
/* Caches were emptied because it was full. */
void hak_pool_note_emptied(void);

/* Takes `spans` adjacent spans aligned to align_spans (a power of two; absolute addresses) and tags them. The first
 * span's metadata is returned with start (its address), head, span_count and tag set. `dense`: all of it is going to be
 * used. *zeroed tells whether all of it reads as zero. NULL: out of memory. */
hak_span *hak_pool_take(size_t spans, size_t align_spans, hak_pool_tags tags, bool dense, bool *zeroed);

/* Takes the `extra` spans right behind `span`, if they are free or not accessible yet, for growth in place, and marks
 * them. */
bool hak_pool_extend(hak_span *span, size_t extra, unsigned body_code);

/* Gives spans that the caller holds other tags. */
void hak_pool_retag(hak_span *span, hak_pool_tags tags);

/* Claims adjacent spans as hak_pool_take would take them, for memory that is made ready before it is asked for;
 * hak_pool_unclaim puts them back. `huge`: of huge pages, where there are any; else as for memory that will be used to
 * the last byte. NULL: out of memory. */
hak_span *hak_pool_claim_free(size_t spans, bool huge, bool *zeroed);

/* Returns the spans of `span` beyond the first `keep`; 0: all. Clears their codes. False, and nothing changed, when
 * span is not held with head tag `tag`: somebody else has returned it. Sets *purge_due when more is dirty than the
 * mark. */
bool hak_pool_give(hak_span *span, size_t keep, uint32_t tag, bool *purge_due);

/* Which dirty free extents are worth a call: any, or only what fills huge pages. */
typedef enum hak_worth { HAK_ANY_RANGE, HAK_WHOLE_PAGES } hak_worth;
/* For reclaim/: the highest chunk below `end` that may have one; `end` if none. */
size_t hak_pool_last_dirty(hak_region *region, size_t end, hak_worth worth);
/* Claims one of the chunk (removed from the free map so nobody takes it). Returns how many of its spans are
 * dirty; 0: there is none … */
size_t hak_pool_claim_dirty(hak_region *region, size_t chunk_index, size_t max_spans, hak_worth worth, size_t *first,
                            size_t *count);
/* … and puts it back. */
void hak_pool_unclaim(hak_region *region, size_t first, size_t count, hak_pages pages);
/* Makes a chunk one of small pages, when part of a huge page of it has gone: the kernel would put it back, in time,
 * with all the memory around it. Who has huge pages enabled again meanwhile gets small ones. Caller holds no lock. */
void hak_pool_disable_huge(hak_region *region, size_t chunk_index);
/* In the child of a fork, with the lock held: puts back what other threads had claimed. */
void hak_pool_fork_child(void);

#endif
