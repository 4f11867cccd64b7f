/* The chunk index: which chunks of a region may have a free range for a request, without a look at each.
 *
 * Invariant: for each search, alignment and chunk the bound is at least the longest aligned range of spans there. A
 * search that finds less in a chunk lowers the bound; spans that come back raise it. So each chunk that is looked at in
 * vain is paid for by one change of it. Bounds lie in trees of metadata blocks, a tree for each alignment that was ever
 * asked for, and one for spans that no large block ever had; where there is no block (none yet, or no memory), the
 * bounds are the highest. Pool lock. */
#ifndef HAK_POOL_CHUNK_INDEX_H
#define HAK_POOL_CHUNK_INDEX_H

#include "pool/chunk_bits.h"

/* Which spans of a chunk are looked for: free; dirty. */
typedef enum hak_search { HAK_SEARCH_FREE, HAK_SEARCH_DIRTY, HAK_SEARCHES } hak_search;

/* A chunk is in the trees of one kind, of small or of huge pages. In those of the other kind its bounds are 0 once
 * seen. */
typedef struct hak_chunk_search {
  hak_region *region;
  hak_search search;
  bool huge;
  bool apart; /* only spans that no large block ever had; align is 1 */
  size_t spans, align; /* align: a power of two, in spans */
} hak_chunk_search;

/* Lowest (or highest) chunk from `from` on, and below `end`, whose bound is at least as many spans; `end` if none. */
size_t hak_chunk_index_find(const hak_chunk_search *s, size_t from, size_t end, bool highest);
/* The longest aligned range that was found in the chunk, where it is less than was searched for. */
void hak_chunk_index_lower(const hak_chunk_search *s, size_t chunk, size_t longest);
/* Spans [first, end) of the chunk are a free range, and no other has grown. All of the chunk: nothing is known. */
void hak_chunk_index_raise(hak_region *region, size_t chunk, size_t first, size_t end);
/* After free spans of the chunk were added, or became dirty, or whole: the free range around them is all that may have
 * grown. */
void hak_chunk_index_raise_around(hak_region *region, size_t chunk, size_t bit, size_t count);

/* Which spans of a chunk a search is for. apart: of those that no large block ever had. */
typedef struct hak_span_set {
  uint64_t words[HAK_CHUNK_WORDS];
} hak_span_set;
HAK_INLINE hak_span_set hak_spans_of_kind(const hak_chunk *c, hak_search k, bool apart) {
  hak_span_set set;
  for (size_t w = 0; w < HAK_CHUNK_WORDS; w++)
    set.words[w] = c->free[w] & (k == HAK_SEARCH_DIRTY ? c->dirty[w] : ~(uint64_t)0) & ~(apart ? c->large[w] : 0);
  return set;
}

/* What free spans hold. */
typedef enum hak_pages {
  HAK_PAGES_KEPT,
  HAK_PAGES_MUZZY /* given back lazily */,
  HAK_PAGES_PURGED,
  HAK_PAGES_RENEWED /* by another mapping */,
  HAK_PAGES_UNTOUCHED /* clean as they were */
} hak_pages;
/* Marks spans of one chunk as free, or free ones as held, with the counters that follow, but for live_spans of what
 * becomes free. Returns how many of those taken may hold something. */
void hak_pool_mark_free(hak_region *region, size_t index, size_t spans, hak_pages pages);
size_t hak_pool_mark_taken(hak_region *region, size_t index, size_t spans);
/* Counts what was given back lazily as dirty once more. Takes the pool lock. */
void hak_pool_muzzy_to_dirty(void);

/* Before the pool lock is taken: sees to the metadata blocks that the trees lacked. */
void hak_chunk_index_prepare(void);

#endif
