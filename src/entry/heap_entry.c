/* Heaps: the entry points of include/hakmem/heap.h. */
#include <errno.h>
#include <string.h>

#include "entry/entry.h"
#include "entry/heaps.h"
#include "entry/slow_exit.h"
#include "heap/cache.h"
#include "large/extent.h"
#include "large/huge.h"
#include "life/init.h"
#include "life/thread.h"
#include "os/callers.h"
#include "profile/profile.h"

HAK_LINK_INIT;

static void expect_heap(const hak_heap *h) {
  if (HAK_UNLIKELY(!hak_heap_exists(h) || hak_load_relaxed(&h->is_deleted)))
    hak_misuse_abort(HAK_VERDICT_NO_HEAP, h, 0, "at the call");
}

HAK_EXPORT hakmem_heap *hakmem_heap_new(const hakmem_heap_options *options) {
  if (!hak_start()) return hak_no_memory();
  if (options != NULL && options->size == sizeof *options && options->parent != NULL) expect_heap(options->parent);
  return hak_heap_make(options);
}

static HAK_NOINLINE void *malloc_slowly(hak_heap *heap, size_t size) {
  bool zeroed;
  return hak_or_no_memory(hak_heap_alloc(heap, size, HAK_GRANULE, true, &zeroed));
}

/* The request has counted, and does so again. */
static HAK_NOINLINE void *malloc_again(hak_heap *heap, size_t size) {
  hak_tls.countdown += HAK_COUNTED_BYTES(size);
  return malloc_slowly(heap, size);
}

/* The request has counted. A piece, and a slab's block where the heap has no caches, need no slow path; but the
 * countdown may ask for one, which counts by itself. */
static HAK_NOINLINE void *malloc_counted(hak_heap *heap, size_t size) {
  void *p = hak_tls.countdown < 0 ? NULL : hak_heap_take_ready(heap, hak_class_for(size));
  return HAK_LIKELY(p != NULL) ? p : malloc_again(heap, size);
}

/* Near its limit: a block that is set aside, or none, for good. */
static HAK_NOINLINE void *malloc_met(hak_heap *heap, size_t size, hak_heap_cache *met) {
  unsigned c = hak_class_for(size);
  void *p = hak_heap_pop_met(met, heap, c);
  if (HAK_LIKELY(p != NULL)) return p;
  size_t bytes = hak_class_size(c), credit = hak_heap_has_credit(met) ? (size_t)met->credit : 0;
  return bytes > credit && hak_heap_refuses(heap, bytes - credit) ? hak_no_memory() : malloc_counted(heap, size);
}

HAK_INLINE void *malloc_in(hak_heap *heap, size_t size) {
  if (HAK_UNLIKELY(size > HAK_SHARED_MAX)) return malloc_slowly(heap, size);
  int64_t bytes = HAK_COUNTED_BYTES(size);
  HAK_OPAQUE(bytes); /* as in hak_tcache_pop */
  hak_tls.countdown -= bytes;
  if (HAK_UNLIKELY(hak_tls.countdown < 0)) return malloc_counted(heap, size);
  hak_heap_cache *met;
  void *p = hak_heap_pop_code(heap, hak_code_of_granules[(size_t)bytes / HAK_GRANULE], &met);
  if (HAK_LIKELY(p != NULL)) return p;
  return met != NULL ? malloc_met(heap, size, met) : malloc_counted(heap, size);
}

HAK_EXPORT void *hakmem_heap_malloc(hakmem_heap *heap, size_t size) { return malloc_in(heap, size); }

static HAK_NOINLINE void *calloc_large(hak_heap *heap, size_t bytes) {
  bool zeroed;
  void *p = hak_heap_alloc(heap, bytes, HAK_GRANULE, true, &zeroed);
  if (p != NULL && !zeroed) hak_clear(p, hak_totals_whole(p, bytes));
  return hak_or_no_memory(p);
}

HAK_EXPORT void *hakmem_heap_calloc(hakmem_heap *heap, size_t count, size_t size) {
  size_t bytes;
  if (HAK_UNLIKELY(__builtin_mul_overflow(count, size, &bytes))) return hak_no_memory();
  if (HAK_UNLIKELY(bytes > HAK_SHARED_MAX)) return calloc_large(heap, bytes);
  void *p = malloc_in(heap, bytes);
  return HAK_LIKELY(p != NULL) ? memset(p, 0, hak_totals_whole(p, bytes)) : NULL;
}

HAK_EXPORT void *hakmem_heap_aligned_alloc(hakmem_heap *heap, size_t alignment, size_t size) {
  bool zeroed;
  if (HAK_UNLIKELY(!hak_is_pow2(alignment))) return hak_invalid();
  return hak_or_no_memory(hak_heap_alloc(heap, size, hak_max_size(alignment, HAK_GRANULE), true, &zeroed));
}

HAK_EXPORT void *hakmem_heap_realloc(hakmem_heap *heap, void *p, size_t size) {
  return p == NULL ? hakmem_heap_malloc(heap, size) : hak_realloc(p, size, HAK_CALLER());
}

/* What caches hold of it and those below goes back, but of a thread that was stopped while it was at one. */
static void flush_all(hak_heap *h) {
  hak_deferred d = {0};
  hak_heap_flush(h, &d);
  hak_heap_flush_others(h, &d);
  hak_slow_exit(&d);
}

/* Where the sum is above it by now, it has to fall first. */
static void set_share_locked(hak_heap *h) {
  hak_assert_held(&hak_heaps_lock);
  size_t share = hak_heap_share(h);
  bool is_above = share != SIZE_MAX && hak_load_relaxed(&h->out) >= share;
  hak_store_relaxed(&h->share, share == SIZE_MAX ? SIZE_MAX : is_above ? HAK_HEAP_CALLED : share - 1);
}

static void set_share(hak_heap *h) {
  hak_lock_take(&hak_heaps_lock);
  set_share_locked(h);
  hak_lock_drop(&hak_heaps_lock);
}

/* Where the sum is above the limit, or has to fall for the callback, no cache has a credit from here on. */
static void drain_if_above(hak_heap *h) {
  hak_deferred d = {0};
  if (!hak_heap_was_called(h) && hak_load_relaxed(&h->out) <= hak_load_relaxed(&h->limit)) return;
  hak_heap_drain(h, &d);
  hak_slow_exit(&d);
}

/* The heaps below a heap that ends are nobody else's to use. */
static hak_heap *lowest(hak_heap *h) {
  while (h->first_child != NULL) h = h->first_child;
  return h;
}

/* The lowest first. */
size_t hak_heap_empty(hak_heap *top, bool stays, hak_deferred *d) {
  size_t mappings = 0;
  hak_lock *end = hak_heap_end_lock(top);
  hak_lock_take(end);
  hak_heap *parent = top->parent, *h = lowest(top), *above;
  for (; h != top; h = lowest(above)) {
    above = h->parent;
    hak_heap_end_life(h, false, false);
    if (hak_profile_has_samples()) hak_profile_forget_heap(h->owner);
    mappings += hak_heap_give_all(h, d);
    hak_heap_release(h);
  }
  hak_heap_end_life(top, true, stays);
  if (hak_profile_has_samples()) hak_profile_forget_heap(top->owner);
  mappings += hak_heap_give_all(top, d);
  stays ? hak_heap_begin_life(top, parent) : hak_heap_release(top);
  if (stays) set_share(top);
  hak_lock_drop(end);
  return mappings;
}

void hak_heap_finish(size_t mappings, hak_deferred *d) {
  hak_huge_free_ended(mappings, &d->purge_due);
  hak_slow_exit(d);
}

static void end_or_reset(hak_heap *heap, bool stays) {
  if (heap == NULL) return;
  expect_heap(heap);
  hak_deferred d = {0};
  int saved = errno;
  size_t mappings = hak_heap_empty(heap, stays, &d);
  hak_heap_finish(mappings, &d);
  errno = saved;
}

HAK_EXPORT void hakmem_heap_destroy(hakmem_heap *heap) { end_or_reset(heap, false); }
HAK_EXPORT void hakmem_heap_reset(hakmem_heap *heap) { end_or_reset(heap, true); }

HAK_EXPORT void hakmem_heap_delete(hakmem_heap *heap) {
  if (heap == NULL) return;
  expect_heap(heap);
  hak_deferred d = {0};
  int saved = errno;
  flush_all(heap);
  for (hak_heap *h = lowest(heap), *above; h != NULL; h = above == NULL ? NULL : lowest(above)) {
    above = h == heap ? NULL : h->parent;
    hak_heap_set_deleted(h);
  }
  hak_heap_end_deleted(false, &d);
  hak_slow_exit(&d);
  errno = saved;
}

HAK_EXPORT hakmem_heap *hakmem_heap_of(const void *p) {
  hak_where w = hak_where_is(p);
  hak_heap *h = hak_where_heap(&w);
  return h == NULL || hak_load_relaxed(&h->is_deleted) ? NULL : h;
}

HAK_EXPORT const char *hakmem_heap_name(const hakmem_heap *heap) { return heap->name; }
HAK_EXPORT hakmem_heap *hakmem_heap_parent(const hakmem_heap *heap) { return heap->parent; }

HAK_EXPORT void hakmem_heap_set_limit(hakmem_heap *heap, size_t limit) {
  flush_all(heap);
  hak_lock_take(&hak_heaps_lock);
  hak_store_relaxed(&heap->limit, limit == 0 ? SIZE_MAX : limit);
  set_share_locked(heap);
  hak_lock_drop(&hak_heaps_lock);
  flush_all(heap);
  drain_if_above(heap);
}

HAK_EXPORT int hakmem_heap_set_callback(hakmem_heap *heap, unsigned percent,
                                        void (*callback)(hakmem_heap *, size_t, void *), void *context) {
  if (callback != NULL && (percent == 0 || percent > 100)) return EINVAL;
  flush_all(heap);
  hak_lock_take(&hak_heaps_lock);
  hak_store_relaxed(&heap->callback, callback);
  hak_store_relaxed(&heap->percent, percent);
  heap->context = context;
  set_share_locked(heap);
  hak_lock_drop(&hak_heaps_lock);
  drain_if_above(heap);
  return 0;
}

HAK_EXPORT hakmem_heap *hakmem_heap_get_default(void) { return hak_tls.in_heap ? hak_heap_default() : NULL; }

HAK_EXPORT hakmem_heap *hakmem_heap_set_default(hakmem_heap *heap) {
  hak_heap *before = hakmem_heap_get_default();
  if (heap == before) return before;
  hak_callers_find();
  hak_tcache *t = hak_thread_cache();
  if (t == NULL || !hak_heap_set_default(t, heap)) errno = ENOMEM;
  return before;
}

HAK_EXPORT void hakmem_heap_get_stats(hakmem_heap *heap, hakmem_heap_stats *stats, size_t size) {
  hakmem_heap_stats all;
  hak_heap_read(heap, &all);
  memcpy(stats, &all, hak_min_size(size, sizeof all));
}

HAK_EXPORT size_t hakmem_heap_visit(hakmem_heap *heap, bool (*visit)(void *block, size_t size, void *context),
                                    void *context) {
  flush_all(heap);
  return hak_heap_visit_blocks(heap, visit, context);
}

HAK_EXPORT size_t hakmem_heap_list(bool (*visit)(hakmem_heap *heap, void *context), void *context) {
  if (visit == NULL) return hak_heap_count();
  size_t count = 0;
  for (hak_heap *h = NULL; (h = hak_heap_show_next(h, false)) != NULL;) {
    count++;
    if (visit(h, context)) continue;
    hak_heap_show_end(h);
    break;
  }
  return count;
}
