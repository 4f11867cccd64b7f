#include "large/run.h"

static size_t spans_for(size_t size) { return (size + HAK_SPAN_SIZE - 1) >> HAK_SPAN_SHIFT; }

#define RUN_TAG HAK_TAG(0, HAK_CODE_RUN)
#define BODY_TAG HAK_TAG(0, HAK_CODE_RUN_BODY)

void *hak_run_alloc(size_t size, size_t align, bool *zeroed) {
  hak_span *s = hak_pool_take(spans_for(hak_max_size(size, 1)), hak_max_size(spans_for(align), 1),
                              (hak_pool_tags){RUN_TAG, BODY_TAG}, true, zeroed);
  return s == NULL ? NULL : (void *)s->start;
}

hak_verdict hak_run_free(hak_region *r, void *p, bool *release_due) {
  hak_span *s = hak_region_span(r, p);
  if (s->start != (uintptr_t)p) return HAK_VERDICT_NO_BLOCK_START;
  /* Tested again under the pool's lock: of two threads that free one run at the same time, one is told. */
  return hak_pool_give(s, 0, RUN_TAG, release_due) ? HAK_VERDICT_OK : HAK_VERDICT_FREE_MEMORY;
}

size_t hak_run_size(const hak_region *r, const void *p) {
  return (size_t)hak_region_span(r, p)->span_count << HAK_SPAN_SHIFT;
}

bool hak_run_resize(hak_region *r, void *p, size_t size, bool *release_due) {
  hak_span *s = hak_region_span(r, p);
  size_t wanted = spans_for(size), have = s->span_count;
  if (wanted > have) return wanted <= HAK_RUN_MAX_SPANS && hak_pool_extend(s, wanted - have, BODY_TAG);
  return wanted == have || hak_pool_give(s, wanted, RUN_TAG, release_due);
}
