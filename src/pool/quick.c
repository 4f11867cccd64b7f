#include "pool/quick.h"

hak_quick hak_quick_lists;

HAK_INLINE void free_range(hak_span *span, size_t keep, uint32_t look) {
  hak_region *r = hak_region_around(span); /* the metadata of a region lies inside it */
  size_t spans = span->span_count - keep, index = hak_region_span_index(r, span) + keep;
  HAK_ASSERT(hak_region_code_at(r, index) != HAK_CODE_NONE && hak_span_pool.live_spans >= spans);
  hak_pool_set_codes(r, index, spans, HAK_CODE_NONE);
  if (keep == 0) hak_store_relaxed(&span->tag, HAK_TAG_NONE);
  span->span_count = (uint16_t)keep;
  for (size_t at = index, n; at < index + spans; at += n) {
    n = hak_pool_in_chunk(at, index + spans);
    hak_pool_mark_free(r, at, n, HAK_PAGES_KEPT);
    for (size_t w = at / 64; w <= (at + n - 1) / 64; w++) {
      uint32_t *seen = &r->chunks[w / HAK_CHUNK_WORDS].look[w % HAK_CHUNK_WORDS];
      if ((int32_t)(look - *seen) > 0) hak_store_relaxed(seen, look);
    }
  }
  hak_sub_single(&hak_span_pool.live_spans, spans);
}

void hak_pool_free_range(hak_span *span, size_t keep, uint32_t look) { free_range(span, keep, look); }

bool hak_quick_settle(void) {
  hak_assert_held(&hak_span_pool.lock);
  if (hak_quick_lists.ranges == 0) return false;
  for (unsigned i = 0; i < HAK_QUICK_LISTS; i++) {
    for (hak_span *s = hak_quick_lists.lists[i], *next; s != NULL; s = next) {
      next = s->next;
      hak_quick_count(s->span_count, false);
      free_range(s, 0, hak_load_relaxed(&s->place));
    }
    hak_quick_lists.lists[i] = NULL;
  }
  HAK_ASSERT(hak_quick_lists.ranges == 0 && hak_quick_lists.spans == 0);
  return true;
}

void hak_quick_settle_all(void) {
  hak_lock_take(&hak_span_pool.lock);
  hak_quick_settle();
  hak_lock_drop(&hak_span_pool.lock);
}

bool hak_quick_meets(const hak_region *r, size_t first, size_t end) {
  hak_assert_held(&hak_span_pool.lock);
  for (size_t i = first; i < end && hak_quick_lists.ranges > 0; i++) {
    if (hak_region_code_at(r, i) == HAK_CODE_NONE) continue;
    if (hak_load_relaxed(&hak_region_span_at(r, i)->head->tag) == HAK_QUICK_TAG) return true;
  }
  return false;
}

const char *hak_quick_fault(const hak_span **range) {
  hak_assert_held(&hak_span_pool.lock);
  size_t spans = 0;
  unsigned ranges = 0;
  for (unsigned i = 0; i < HAK_QUICK_LISTS; i++) {
    for (const hak_span *s = hak_quick_lists.lists[i]; s != NULL; s = s->next, ranges++) {
      *range = s;
      const hak_region *r = hak_region_around(s);
      unsigned code = hak_region_code_at(r, hak_region_span_index(r, s));
      if (s->tag != HAK_QUICK_TAG || s->head != s || code != HAK_CODE_EXTENT_FREED) return "is somebody's as well";
      if (s->span_count % HAK_QUICK_LISTS != i) return "is on the list of another length";
      spans += s->span_count;
    }
  }
  *range = NULL;
  return spans != hak_quick_lists.spans || ranges != hak_quick_lists.ranges ? "are not as many as counted" : NULL;
}
