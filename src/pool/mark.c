#include "pool/mark.h"

#include "pool/chunk_bits.h"
#include "pool/chunk_index.h"
#include "pool/counters.h"

size_t hak_pool_mark_taken(hak_region *r, size_t index, size_t spans) {
  hak_assert_held(&hak_span_pool.lock);
  HAK_ASSERT(index >= r->first_span && index + spans <= r->ready_spans);
  hak_chunk *c = &r->chunks[index / HAK_CHUNK_SPANS];
  size_t bit = index % HAK_CHUNK_SPANS;
  HAK_ASSERT(spans > 0 && bit + spans <= HAK_CHUNK_SPANS);
  size_t were_free = hak_bits_change(c->free, bit, spans, false);
  HAK_ASSERT(were_free == spans);
  size_t dirty = hak_bits_change(c->dirty, bit, spans, false), muzzy = hak_bits_change(c->muzzy, bit, spans, false);
  HAK_ASSERT(c->free_spans >= spans && c->dirty_spans >= dirty && hak_span_pool.dirty_spans >= dirty);
  c->free_spans -= (uint32_t)spans;
  c->dirty_spans -= (uint32_t)dirty;
  hak_add_single(&hak_span_pool.live_spans, spans);
  hak_sub_single(&hak_span_pool.dirty_spans, dirty);
  return dirty + muzzy;
}

void hak_pool_muzzy_to_dirty(void) {
  hak_lock_take(&hak_span_pool.lock);
  for (unsigned i = 0; i < hak_region_count(); i++) {
    hak_region *r = hak_region_at(i);
    for (size_t chunk = r->first_span / HAK_CHUNK_SPANS; chunk < hak_region_chunks(r); chunk++) {
      hak_chunk *c = &r->chunks[chunk];
      size_t spans = 0;
      for (size_t w = 0; w < HAK_CHUNK_WORDS; w++) {
        HAK_ASSERT((c->muzzy[w] & (c->dirty[w] | ~c->free[w])) == 0);
        spans += hak_popcount64(c->muzzy[w]);
        c->dirty[w] |= c->muzzy[w];
        c->muzzy[w] = 0;
      }
      if (spans == 0) continue;
      c->dirty_spans += (uint32_t)spans;
      hak_add_single(&hak_span_pool.dirty_spans, spans);
      hak_chunk_index_raise(r, chunk, 0, HAK_CHUNK_SPANS);
    }
  }
  hak_lock_drop(&hak_span_pool.lock);
}
