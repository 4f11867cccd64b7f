/* Which spans of a chunk a search is for. Pool lock. */
#ifndef HAK_POOL_SPAN_SET_H
#define HAK_POOL_SPAN_SET_H

#include "pool/chunk_bits.h"
#include "pool/chunk_index.h"

typedef struct hak_span_set {
  uint64_t words[HAK_CHUNK_WORDS];
} hak_span_set;

/* apart: of those that no large block ever had. */
HAK_INLINE hak_span_set hak_spans_of_kind(const hak_chunk *c, hak_search k, bool apart) {
  hak_span_set set;
  for (size_t w = 0; w < HAK_CHUNK_WORDS; w++)
    set.words[w] = c->free[w] & (k == HAK_SEARCH_DIRTY ? c->dirty[w] : ~(uint64_t)0) & ~(apart ? c->large[w] : 0);
  return set;
}

#endif
