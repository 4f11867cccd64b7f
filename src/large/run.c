#include "large/run.h"

static size_t spans_for(size_t size) { return (size + HAK_SPAN_SIZE - 1) >> HAK_SPAN_SHIFT; }

static void tag_run(hak_region *r, hak_span *s) {
  hak_region_set_tags(r, s, HAK_TAG(0, HAK_CODE_RUN), HAK_TAG(0, HAK_CODE_RUN_BODY));
}

void *hak_run_alloc(size_t size, size_t align, bool *zeroed) {
  hak_span *s = hak_pool_take(spans_for(hak_max_size(size, 1)), hak_max_size(spans_for(align), 1), zeroed);
  if (s == NULL) return NULL;
  hak_region *r = hak_pool_region_of(s);
  void *p = hak_span_address(r, s);
  s->start = (uintptr_t)p;
  s->class_code = HAK_CODE_RUN;
  tag_run(r, s);
  return p;
}

hak_verdict hak_run_free(hak_region *r, void *p, bool *release_due) {
  hak_span *s = hak_region_span(r, p);
  if (s->start != (uintptr_t)p) return HAK_VERDICT_NO_BLOCK_START;
  hak_region_set_tags(r, s, 0, 0);
  *release_due |= hak_pool_give(s, s->span_count);
  return HAK_VERDICT_OK;
}

size_t hak_run_size(const hak_region *r, const void *p) {
  return (size_t)hak_region_span(r, p)->span_count << HAK_SPAN_SHIFT;
}

bool hak_run_resize(hak_region *r, void *p, size_t size, bool *release_due) {
  hak_span *s = hak_region_span(r, p);
  size_t wanted = spans_for(size), have = s->span_count;
  if (wanted == have) return true;
  if (wanted > have) {
    bool zeroed;
    if (wanted > HAK_RUN_MAX_SPANS || !hak_pool_extend(s, wanted - have, &zeroed)) return false;
    tag_run(r, s);
    return true;
  }
  hak_span *tail = s + wanted;
  tail->span_count = (uint32_t)(have - wanted);
  hak_region_set_tags(r, tail, 0, 0);
  s->span_count = (uint32_t)wanted;
  *release_due |= hak_pool_give(tail, have - wanted);
  return true;
}
