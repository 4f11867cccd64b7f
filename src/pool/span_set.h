/* Which spans of a chunk a search is for. Pool lock. */
#ifndef HAK_POOL_SPAN_SET_H
#define HAK_POOL_SPAN_SET_H

#include "pool/chunk_bits.h"
#include "pool/chunk_index.h"

HAK_INLINE uint64_t hak_spans_of(uint32_t huge_pages, size_t word) {
  uint64_t pages = huge_pages >> (word * 64 / HAK_HUGE_PAGE_SPANS);
  return (0 - (pages & 1)) >> 32 | (0 - (pages >> 1 & 1)) << 32;
}

/* The huge pages of a chunk that are small pages when they are touched. */
HAK_INLINE uint32_t hak_small_pages(const hak_chunk *c) { return c->split_pages | c->no_huge_pages; }

typedef struct hak_span_set {
  uint64_t words[HAK_CHUNK_WORDS];
} hak_span_set;

/* apart: of those that no large block ever had. */
HAK_INLINE hak_span_set hak_spans_of_kind(const hak_chunk *c, hak_search k, bool apart) {
  hak_span_set set;
  uint32_t small = k == HAK_SEARCH_INTACT ? hak_small_pages(c) : 0;
  for (size_t w = 0; w < HAK_CHUNK_WORDS; w++)
    set.words[w] = c->free[w] & (k == HAK_SEARCH_DIRTY ? c->dirty[w] : ~hak_spans_of(small, w)) & ~(apart ? c->large[w] : 0);
  return set;
}

#endif
