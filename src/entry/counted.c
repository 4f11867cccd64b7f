/* Builds that count what threads are given (totals.h): malloc, realloc and what shrinks in place, with the counts. */
#include "entry/totals.h"

#include <string.h>

#include "entry/entry.h"
#include "entry/heaps.h"
#include "entry/sampling.h"
#include "entry/slow_exit.h"
#include "entry/where.h"
#include "large/extent.h"

HAK_TLS hak_thread_totals hak_totals;
uint64_t hak_empty_reallocs;
hak_empty_realloc hak_empty_realloc_does;

HAK_TLS bool hak_resizes_in_arena;
uint8_t hak_fill_bits;
size_t hak_oversize = SIZE_MAX;
struct hakmem_heap *hak_oversize_heap;

void *hak_totals_malloc_slow(size_t size) {
  bool zeroed;
  void *p = HAK_UNLIKELY(size >= hak_oversize) && !hak_tls.in_heap
                ? hak_heap_alloc(hak_oversize_heap, size, HAK_GRANULE, true, &zeroed)
                : NULL;
  if (p == NULL && hak_fills_with_zeros(size)) return hak_calloc(1, size);
  return hak_totals_new(p != NULL ? p : hak_malloc_slow(size));
}

static HAK_TLS struct {
  hak_activity activity;
  uint64_t told; /* sum of both totals at the last call */
} own;

hak_activity hak_activity_get(void) { return own.activity; }

void hak_activity_set(hak_activity activity) {
  own.activity = activity;
  own.told = hak_totals.allocated + hak_totals.deallocated;
  if (activity.callback != NULL) __atomic_fetch_or(&hak_fill_bits, HAK_FILL_CALLS, __ATOMIC_RELAXED);
}

static void tell(void) {
  uint64_t sum = hak_totals.allocated + hak_totals.deallocated;
  if (own.activity.callback == NULL || sum - own.told < HAK_ACTIVITY_BYTES) return;
  own.told = sum;
  own.activity.callback(own.activity.context, hak_totals.allocated, hak_totals.deallocated);
}

#define NEW_BYTE 0xa5
#define FREED_BYTE 0x5a

static void fill(void *p, size_t bytes) {
  (hak_fill_bits & HAK_FILL_ZERO) != 0 ? hak_clear(p, bytes) : (void)memset(p, NEW_BYTE, bytes);
}

void hak_fill_new(void *p, size_t from) {
  size_t size = hak_block_size(p);
  if ((hak_fill_bits & (HAK_FILL_ZERO | HAK_FILL_NEW)) != 0 && size > from)
    fill((char *)p + from, size - from);
  tell();
}

void hak_fill_freed(void *p) {
  if ((hak_fill_bits & HAK_FILL_FREED) != 0) memset(p, FREED_BYTE, hak_block_size(p));
  tell();
}

static size_t size_for_empty(void) {
  hak_add_relaxed(&hak_empty_reallocs, 1);
  if (hak_empty_realloc_does == HAK_EMPTY_ABORTS) hak_fatal("realloc of a block to 0 bytes");
  return hak_empty_realloc_does == HAK_EMPTY_ALLOCATES;
}

void *hak_totals_realloc(void *p, size_t size, const void *caller) {
  size_t before = p == NULL ? 0 : hak_totals_size(p);
  if (HAK_UNLIKELY(size == 0) && p != NULL) size = size_for_empty();
  void *q = hak_raw_realloc(p, size, caller);
  if (q == NULL && size != 0) return NULL;
  hak_totals.deallocated += before;
  hak_totals_add(q);
  if (HAK_UNLIKELY(hak_fill_bits != 0) && q != NULL) hak_fill_new(q, before);
  return q;
}

/* A large block of a heap. */
static void shrink_in_heap(const hak_where *w, void *p, size_t size, hak_deferred *d) {
  hak_heap *h = hak_where_heap(w);
  if (h != NULL) hak_heap_resize_in_place(h, w->head, p, size, false, d);
}

/* Whole spans that a slab's one block has, and does not need, make it an extent. */
static bool make_extent(const hak_where *w, void *p, size_t size) {
  if (w->kind != HAK_KIND_SLAB || w->size <= HAK_SHARED_MAX || w->sampled) return false;
  size_t colour = w->head->start % HAK_SPAN_SIZE != 0 ? HAK_EXTENT_COLOURED : 0;
  return hak_extent_spans(size + colour) < w->head->span_count && hak_arena_make_extent(w->head, p, w->class_code);
}

void hak_totals_shrink(void *p, size_t size) {
  hak_where w = hak_where_is(p);
  if (w.region == NULL) {
    hak_resize_mapping(p, hak_max_size(size, 1), HAK_IN_PLACE);
    return;
  }
  hak_deferred d = {0};
  size = hak_max_size(size, HAK_SHARED_MAX + 1); /* what is smaller is in slabs */
  bool extent = w.kind == HAK_KIND_EXTENT && w.what == HAK_BLOCK;
  if (extent && hak_where_in_heap(&w)) shrink_in_heap(&w, p, size, &d);
  if (!hak_where_in_heap(&w) && (extent || make_extent(&w, p, size)) &&
      hak_extent_resize(w.region, p, size, &d.purge_due)) {
    hak_sampled_forget(p);
    hak_sampled_count_large(p, size);
  }
  hak_slow_exit(&d);
}
