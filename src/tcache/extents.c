/* Extents that a thread freed lately, for its next requests of their size: the pool costs a lock and a search. */
#include <string.h>

#include "config/config.h"
#include "large/run.h"
#include "tcache/tcache.h"

/* Larger ones cost more to touch than the pool costs. */
#define EXTENT_SPANS_MAX ((uint32_t)(HAK_MIB / HAK_SPAN_SIZE))
#define EXTENTS_SPANS_MAX ((uint32_t)(2 * HAK_MIB / HAK_SPAN_SIZE))

static void *remove_at(hak_tcache *t, unsigned i) {
  void *p = t->extents[i].p;
  t->extent_spans -= t->extents[i].spans;
  t->extent_count--;
  memmove(&t->extents[i], &t->extents[i + 1], (t->extent_count - i) * sizeof t->extents[0]);
  return p;
}

void *hak_tcache_take_extent(hak_tcache *t, size_t size) {
  size_t spans = hak_run_spans(size);
  for (unsigned i = t->extent_count; i-- > 0;) {
    if (t->extents[i].spans != spans) continue;
    void *p = remove_at(t, i);
    t->extents_used = true;
    hak_run_reuse(p, size);
    return p;
  }
  return NULL;
}

bool hak_tcache_put_extent(hak_tcache *t, void *p, size_t bytes, hak_deferred *d) {
  uint32_t spans = (uint32_t)(bytes >> HAK_SPAN_SHIFT);
  if (spans > EXTENT_SPANS_MAX || hak_config.hot_ring_enable == 0) return false;
  while (t->extent_count == HAK_TCACHE_EXTENTS || t->extent_spans + spans > EXTENTS_SPANS_MAX)
    hak_run_give(remove_at(t, 0), &d->purge_due);
  t->extents[t->extent_count++] = (hak_cached_extent){p, spans};
  t->extent_spans += spans;
  return true;
}

void hak_tcache_flush_extents(hak_tcache *t, hak_deferred *d) {
  while (t->extent_count > 0) hak_run_give(remove_at(t, t->extent_count - 1), &d->purge_due);
}
