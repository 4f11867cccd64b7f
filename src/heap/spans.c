/* The spans that are a heap's: an array of the first ones of its slabs and large blocks. What leaves the heap leaves its entry behind: it is good
 * while the span has the heap's tag and says that it is in this place. Stale ones go when the array is full. */
#include <string.h>

#include "heap/heap.h"

#define FIRST_CAPACITY (HAK_META_SIZE / sizeof(hak_span *))

hak_span *hak_heap_span_at(const hak_heap *h, uint32_t place) {
  HAK_ASSERT(place < h->span_count);
  hak_span *s = h->spans[place];
  bool ours = HAK_TAG_OWNER(hak_load_relaxed(&s->tag)) == hak_heap_owner(h) && hak_load_relaxed(&s->place) == place;
  return ours ? s : NULL;
}

static void drop_stale(hak_heap *h) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < h->span_count; i++) {
    hak_span *s = hak_heap_span_at(h, i);
    if (s == NULL) continue;
    hak_store_relaxed(&s->place, kept);
    h->spans[kept++] = s;
  }
  h->span_count = kept;
}

static size_t bytes_of(uint32_t capacity) { return hak_align_up(capacity * sizeof(hak_span *), hak_os_page_size()); }

static void give_array(hak_heap *h) {
  if (h->span_capacity == FIRST_CAPACITY)
    hak_meta_give_one(h->spans);
  else if (h->span_capacity != 0 && hak_os_unmap_own(h->spans, bytes_of(h->span_capacity)))
    hak_budget_count_unmapped(bytes_of(h->span_capacity));
  h->spans = NULL;
  h->span_capacity = 0;
}

bool hak_heap_make_span_room(hak_heap *h) {
  hak_assert_held(&h->lock);
  if (HAK_LIKELY(h->span_count < h->span_capacity)) return true;
  drop_stale(h);
  if (h->span_count < h->span_capacity - h->span_capacity / 4) return true;
  uint32_t capacity = h->span_capacity == 0 ? FIRST_CAPACITY : h->span_capacity * 2;
  hak_span **larger = h->span_capacity == 0 ? (hak_span **)(void *)hak_meta_take() : hak_os_map(bytes_of(capacity), hak_os_page_size());
  if (larger == NULL) return h->span_count < h->span_capacity;
  if (h->span_capacity != 0) {
    hak_budget_count_mapped(bytes_of(capacity));
    memcpy(larger, h->spans, h->span_count * sizeof *larger);
  }
  give_array(h);
  h->spans = larger;
  h->span_capacity = capacity;
  return true;
}

void hak_heap_add_span(hak_heap *h, hak_span *s) {
  hak_assert_held(&h->lock);
  HAK_ASSERT(h->span_count < h->span_capacity && s->head == s);
  hak_store_relaxed(&s->place, h->span_count);
  h->spans[h->span_count++] = s;
}

void hak_heap_give_spans(hak_heap *h, bool *purge_due) {
  for (uint32_t i = 0; i < h->span_count; i++) {
    hak_span *s = hak_heap_span_at(h, i);
    if (s != NULL) hak_pool_give(s, 0, s->tag, purge_due);
  }
  h->span_count = 0;
  give_array(h);
}
