/* Heaps: the entry points of include/hakmem/heap.h, and what malloc, free and realloc do with blocks of heaps. */
#include "api/heaps.h"

#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/forbid.h"
#include "api/reclaim.h"
#include "api/sampling.h"
#include "api/slow_exit.h"
#include "api/thread.h"
#include "heap/cache.h"
#include "large/huge.h"
#include "tcache/counted.h"

/* --- requests --- */

static hak_heap_try attempt(hak_heap *h, hak_tcache *t, unsigned c, size_t size, size_t align, bool *zeroed, hak_deferred *d) {
  hak_heap_try r = {0};
  if (c < HAK_CLASS_COUNT && t != NULL && hak_heap_has_slabs(h, c)) {
    r = hak_heap_cached_alloc(t, h, c, d);
    if (r.p != NULL || r.refuser != NULL) return r;
  }
  hak_heap_fold(t, h);
  return c < HAK_CLASS_COUNT ? hak_heap_take_one(h, c, size, align) : hak_heap_take_large(h, size, align, zeroed);
}

/* What is asked for is more than the heap's share, and all that caches held of it is back. */
static void call_back(hak_heap *h) {
  hak_lock_take(&hak_heaps_lock);
  void (*callback)(hakmem_heap *, size_t, void *) = h->callback;
  void *context = h->context;
  bool due = callback != NULL && !h->was_called;
  hak_store_relaxed(&h->was_called, due || h->was_called);
  hak_store_relaxed(&h->share, SIZE_MAX);
  hak_lock_drop(&hak_heaps_lock);
  if (due) callback(h, hak_load_relaxed(&h->out), context);
}

#define TRIES 4 /* at the caches of threads that are in a slow path */

/* What the caches hold of the refuser's does not count. */
static hak_heap_try take_back(hak_heap_try r, hak_heap *h, hak_tcache *t, unsigned c, size_t size, size_t align, bool *zeroed, hak_deferred *d) {
  while (r.p == NULL && r.refuser != NULL) {
    hak_heap *refuser = r.refuser;
    hak_heap_flush(refuser, d);
    r = attempt(h, t, c, size, align, zeroed, d);
    for (unsigned tries = 0; r.p == NULL && r.refuser != NULL && tries < TRIES; tries++) {
      if (tries > 0) hak_os_sleep_ms(1);
      bool missed = hak_heap_flush_others(r.refuser, d);
      r = attempt(h, t, c, size, align, zeroed, d);
      if (!missed) break;
    }
    if (r.p != NULL || r.refuser == NULL) return r;
    if (hak_load_relaxed(&r.refuser->share) >= hak_load_relaxed(&r.refuser->limit)) return r;
    call_back(r.refuser);
    r = attempt(h, t, c, size, align, zeroed, d);
  }
  return r;
}

static HAK_NOINLINE void *alloc_slowly(hak_heap *h, size_t size, size_t align, bool *zeroed) {
  hak_deferred d = {0};
  unsigned c = hak_heap_class(size, align);
  hak_tcache *t = hak_thread_grown();
  *zeroed = false;
  if (!hak_start() || size > PTRDIFF_MAX) return NULL;
  hak_slow_entry(hak_pool_is_full());
  hak_heap_try r = attempt(h, t, c, size, align, zeroed, &d);
  if (HAK_UNLIKELY(r.p == NULL && r.refuser != NULL)) r = take_back(r, h, t, c, size, align, zeroed, &d);
  if (HAK_UNLIKELY(r.p == NULL && r.refuser == NULL)) {
    hak_reclaim();
    r = attempt(h, t, c, size, align, zeroed, &d);
  }
  if (HAK_UNLIKELY(r.p == NULL && r.refuser != NULL)) hak_add_relaxed(&r.refuser->refused, 1);
  hak_slow_exit(&d);
  return r.p;
}

static void note_due(hak_due due, void *p, size_t size) {
  if (due.forbidden) hak_forbid_report("allocation", NULL, size);
  if (due.profile && p != NULL) hak_sampled_note(p, size, due.probability);
}

static void *alloc(hak_heap *h, size_t size, size_t align, bool *zeroed) {
  *zeroed = false;
  if (HAK_LIKELY(size <= HAK_SHARED_MAX) && HAK_LIKELY(align <= HAK_GRANULE)) {
    unsigned c = hak_class_for(size);
    void *p = hak_heap_pop(h, c);
    if (HAK_LIKELY(p != NULL)) return p;
    hak_heap_fold(hak_tls.cache, h);
    if ((p = hak_heap_take_ready(h, c, size)) != NULL) return p;
  }
  return alloc_slowly(h, size, align, zeroed);
}

/* A request counts in the main way, or in the default's. */
static void *alloc_counted(hak_heap *h, size_t size, size_t align, bool *zeroed) {
  hak_due due = {0};
  if (HAK_UNLIKELY(hak_tls.in_heap))
    due = hak_count_end_aside(hak_heap_countdown(), size);
  else if (HAK_UNLIKELY(!hak_count_request(size)))
    due = hak_count_end(size);
  void *p = alloc(h, size, align, zeroed);
  if (HAK_UNLIKELY(due.profile || due.forbidden)) note_due(due, p, size);
  return p;
}

bool hak_heap_serves(size_t size, size_t align, bool *zeroed, void **p) {
  hak_heap *h = hak_heap_default();
  if (h == NULL) return false;
  *p = alloc_counted(h, size, align, zeroed);
  return true;
}

bool hak_heap_suspend(void) {
  bool was = hak_tls.in_heap;
  if (HAK_LIKELY(!was)) return false;
  hak_tls.in_heap = false;
  hak_count_allow();
  return true;
}

void hak_heap_resume(bool was) {
  if (HAK_LIKELY(!was)) return;
  hak_tls.in_heap = true;
  hak_count_forbid();
}

/* --- frees --- */

static void look_at_deleted(hak_heap *h, uint64_t id) {
  if (HAK_LIKELY(!hak_load_relaxed(&h->is_deleted)) || hak_load_relaxed(&h->out) != 0 || !hak_heap_end_deleted(h, id)) return;
  hak_deferred d = {0};
  hak_heap_give_all(h, &d);
  hak_heap_release(h);
  hak_slow_exit(&d);
}

void hak_heap_free_block(hak_region *region, void *p) {
  hak_span *s = hak_region_span(region, p);
  unsigned c;
  hak_heap *h = hak_heap_at(s, p, &c);
  if (HAK_UNLIKELY(h == NULL)) hak_misuse_abort(HAK_VERDICT_FREE_MEMORY, p, 0, "at the call");
  hak_forbid_look("free", p, 0);
  hak_sampled_forget(p);
  hak_deferred d = {0};
  bool slow = false;
  hak_tcache *t = hak_tls.cache;
  if (HAK_LIKELY(c < HAK_CLASS_COUNT && t != NULL) && hak_heap_cached_free(t, h, c, p, &d)) {
    if (slow) hak_slow_exit(&d);
    return;
  }
  uint64_t id = h->id;
  hak_heap_fold(t, h);
  hak_heap_give_one(h, s, p, c, &d);
  hak_slow_exit(&d);
  look_at_deleted(h, id);
}

void hak_heap_free_mapping(uint32_t owner, void *p) {
  hak_heap *h = hak_heap_of_owner(owner);
  size_t bytes = hak_huge_size(p);
  if (h == NULL || bytes == 0) hak_misuse_abort(HAK_VERDICT_FREE_MEMORY, p, 0, "at the call");
  hak_forbid_look("free", p, 0);
  hak_sampled_forget(p);
  hak_deferred d = {0};
  uint64_t id = h->id;
  hak_heap_fold(hak_tls.cache, h);
  hak_heap_give_mapping(h, p, bytes, &d);
  hak_slow_exit(&d);
  look_at_deleted(h, id);
}

size_t hak_heap_size_at(const hak_region *region, const void *p) {
  const hak_span *s = hak_region_span(region, p);
  unsigned c;
  hak_heap *h = hak_heap_at(s, p, &c);
  return h == NULL ? 0 : hak_heap_block_size(h, s, p, c);
}

/* --- realloc --- */

static void *resize(hak_heap *h, void *p, size_t before, size_t size) {
  if (size <= before && (size >= before / 2 || before == HAK_GRANULE)) return p;
  bool zeroed;
  /* The blocks of a heap that was deleted are the main heap's. */
  void *q = hak_load_relaxed(&h->is_deleted) ? hak_malloc(size) : alloc_counted(h, size, HAK_GRANULE, &zeroed);
  if (q == NULL) return size > before ? NULL : p; /* programs take it that shrinking cannot fail */
  memcpy(q, p, hak_min_size(before, size));
  hak_free(p);
  return q;
}

static void *resize_in_span(hak_heap *h, hak_span *s, void *p, unsigned c, size_t before, size_t size) {
  if (c < HAK_CLASS_COUNT || before < HAK_SPAN_SIZE || hak_load_relaxed(&h->is_deleted)) return resize(h, p, before, size);
  hak_deferred d = {0};
  hak_heap_fold(hak_tls.cache, h);
  bool done = hak_heap_resize_large(h, s, p, size, &d);
  hak_slow_exit(&d);
  return done ? p : resize(h, p, before, size);
}

static void *resize_mapping(hak_heap *h, void *p, size_t size) {
  hak_deferred d = {0};
  hak_heap *refuser;
  void *moved = size <= HAK_SMALL_MAX ? NULL : hak_heap_resize_mapping(h, p, size, &refuser);
  hak_slow_exit(&d);
  return moved != NULL ? moved : resize(h, p, hak_huge_size(p), size);
}

void *hak_heap_resize(const hak_region *region, uint32_t owner, void *p, size_t size) {
  unsigned c;
  hak_span *s = owner != 0 ? NULL : hak_region_span(region, p);
  hak_heap *h = owner != 0 ? hak_heap_of_owner(owner) : hak_heap_at(s, p, &c);
  size_t before = h == NULL ? 0 : owner != 0 ? hak_huge_size(p) : hak_heap_size_at(region, p);
  if (before == 0) hak_misuse_abort(h == NULL ? HAK_VERDICT_FREE_MEMORY : HAK_VERDICT_NO_BLOCK_START, p, 0, "by realloc");
  int saved = errno;
  void *q = owner != 0 ? resize_mapping(h, p, size) : resize_in_span(h, s, p, c, before, size);
  errno = q == NULL ? ENOMEM : saved;
  return q;
}

/* --- the public names --- */

static void expect_heap(const hak_heap *h) {
  if (HAK_UNLIKELY(!hak_heap_exists(h) || hak_load_relaxed(&h->is_deleted))) hak_misuse_abort(HAK_VERDICT_NO_HEAP, h, 0, "at the call");
}

static void *or_enomem(void *p) {
  if (HAK_UNLIKELY(p == NULL)) errno = ENOMEM;
  return p;
}

HAK_EXPORT hakmem_heap *hakmem_heap_new(const hakmem_heap_options *options) {
  if (!hak_start()) return or_enomem(NULL);
  if (options != NULL && options->size == sizeof *options && options->parent != NULL) expect_heap(options->parent);
  return hak_heap_make(options);
}

static HAK_NOINLINE void *malloc_long(hak_heap *heap, size_t size) {
  bool zeroed;
  return or_enomem(alloc_counted(heap, size, HAK_GRANULE, &zeroed));
}

HAK_EXPORT void *hakmem_heap_malloc(hakmem_heap *heap, size_t size) {
  if (HAK_LIKELY(size <= HAK_SHARED_MAX)) {
    int64_t bytes = HAK_COUNTED_BYTES(size), left = hak_tls.countdown - bytes;
    void *p = HAK_UNLIKELY(left < 0) ? NULL : hak_heap_pop(heap, hak_code_of_granules[(size_t)bytes / HAK_GRANULE] - 1u);
    if (HAK_LIKELY(p != NULL)) {
      hak_tls.countdown = left;
      return p;
    }
  }
  return malloc_long(heap, size);
}

HAK_EXPORT void *hakmem_heap_calloc(hakmem_heap *heap, size_t count, size_t size) {
  size_t bytes;
  bool zeroed;
  if (HAK_UNLIKELY(__builtin_mul_overflow(count, size, &bytes))) return or_enomem(NULL);
  void *p = alloc_counted(heap, bytes, HAK_GRANULE, &zeroed);
  if (p != NULL && !zeroed) memset(p, 0, bytes);
  return or_enomem(p);
}

HAK_EXPORT void *hakmem_heap_aligned_alloc(hakmem_heap *heap, size_t alignment, size_t size) {
  bool zeroed;
  if (HAK_UNLIKELY(!hak_is_pow2(alignment))) {
    errno = EINVAL;
    return NULL;
  }
  return or_enomem(alloc_counted(heap, size, hak_max_size(alignment, HAK_GRANULE), &zeroed));
}

HAK_EXPORT void *hakmem_heap_realloc(hakmem_heap *heap, void *p, size_t size) {
  return p == NULL ? hakmem_heap_malloc(heap, size) : hak_realloc(p, size, HAK_CALLER());
}

static hak_heap *lowest(hak_heap *h) {
  while (h->first_child != NULL) h = h->first_child;
  return h;
}

HAK_EXPORT void hakmem_heap_destroy(hakmem_heap *heap) {
  if (heap == NULL) return;
  expect_heap(heap);
  hak_deferred d = {0};
  int saved = errno;
  for (bool last = false; !last;) {
    hak_heap_hold_ends();
    hak_heap *h = lowest(heap);
    hak_heap_unlink(h);
    hak_heap_let_end();
    last = h == heap;
    hak_heap_give_all(h, &d);
    hak_heap_release(h);
  }
  hak_slow_exit(&d);
  errno = saved;
}

HAK_EXPORT void hakmem_heap_delete(hakmem_heap *heap) {
  if (heap == NULL) return;
  expect_heap(heap);
  hak_deferred d = {0};
  int saved = errno;
  hak_heap_flush(heap, &d);
  hak_heap_flush_others(heap, &d);
  for (bool last = false; !last;) {
    hak_heap_hold_ends();
    hak_heap *h = lowest(heap);
    uint64_t id = h->id;
    last = h == heap;
    hak_heap_fold(hak_tls.cache, h);
    hak_heap_set_deleted(h);
    hak_heap_let_end();
    look_at_deleted(h, id);
  }
  hak_slow_exit(&d);
  errno = saved;
}

static hak_heap *heap_of(const void *p) {
  hak_region *region = hak_region_find(p);
  if (region == NULL) return hak_heap_of_owner(hak_huge_owner(p));
  if (hak_region_slab_code(region, hak_region_index(region, p)) != HAK_CODE_IN_HEAP) return NULL;
  unsigned c;
  return hak_heap_at(hak_region_span(region, p), p, &c);
}

HAK_EXPORT hakmem_heap *hakmem_heap_of(const void *p) {
  hak_heap *h = heap_of(p);
  return h == NULL || hak_load_relaxed(&h->is_deleted) ? NULL : h;
}

HAK_EXPORT const char *hakmem_heap_name(const hakmem_heap *heap) { return heap->name; }
HAK_EXPORT hakmem_heap *hakmem_heap_parent(const hakmem_heap *heap) { return heap->parent; }

static void set_share_locked(hak_heap *h) {
  hak_assert_held(&hak_heaps_lock);
  size_t share = hak_heap_share(h);
  hak_store_relaxed(&h->was_called, false);
  hak_store_relaxed(&h->share, share == SIZE_MAX || share == 0 ? share : share - 1);
}

HAK_EXPORT void hakmem_heap_set_limit(hakmem_heap *heap, size_t limit) {
  hak_lock_take(&hak_heaps_lock);
  hak_store_relaxed(&heap->limit, limit == 0 ? SIZE_MAX : limit);
  set_share_locked(heap);
  hak_lock_drop(&hak_heaps_lock);
}

HAK_EXPORT int hakmem_heap_set_callback(hakmem_heap *heap, unsigned percent, void (*callback)(hakmem_heap *, size_t, void *), void *context) {
  if (callback != NULL && (percent == 0 || percent > 100)) return EINVAL;
  hak_lock_take(&hak_heaps_lock);
  heap->callback = callback;
  heap->context = context;
  heap->percent = percent;
  set_share_locked(heap);
  hak_lock_drop(&hak_heaps_lock);
  return 0;
}

HAK_EXPORT hakmem_heap *hakmem_heap_get_default(void) { return hak_tls.in_heap ? hak_heap_default() : NULL; }

HAK_EXPORT hakmem_heap *hakmem_heap_set_default(hakmem_heap *heap) {
  hak_heap *before = hakmem_heap_get_default();
  if (heap == before) return before;
  hak_tcache *t = hak_thread_cache();
  if (t == NULL || !hak_heap_set_default(t, heap)) errno = ENOMEM;
  return before;
}

static size_t total_of(hak_heap *h) {
  size_t bytes = hak_load_relaxed(&h->live) + (size_t)hak_heap_cached_counts(h).live;
  for (hak_heap *child = h->first_child; child != NULL; child = child->next_sibling) bytes += total_of(child);
  return bytes;
}

HAK_EXPORT void hakmem_heap_get_stats(hakmem_heap *heap, hakmem_heap_stats *stats, size_t size) {
  hak_heap_fold(hak_tls.cache, heap);
  hak_heap_counts cached = hak_heap_cached_counts(heap);
  size_t limit = hak_load_relaxed(&heap->limit);
  hakmem_heap_stats all = {
      .id = heap->id,
      .live = hak_load_relaxed(&heap->live) + (size_t)cached.live,
      .held = hak_heap_held(heap),
      .limit = limit == SIZE_MAX ? 0 : limit,
      .total = total_of(heap),
      .refused = hak_load_relaxed(&heap->refused),
      .requests = hak_load_relaxed(&heap->requests) + cached.requests,
  };
  all.peak = hak_max_size(hak_load_relaxed(&heap->peak), all.live);
  all.blocks = (size_t)(all.requests - hak_load_relaxed(&heap->frees) - cached.frees);
  memcpy(stats, &all, hak_min_size(size, sizeof all));
}

HAK_EXPORT size_t hakmem_heap_visit(hakmem_heap *heap, bool (*visit)(void *block, size_t size, void *context), void *context) {
  hak_deferred d = {0};
  hak_heap_flush(heap, &d);
  hak_heap_flush_others(heap, &d);
  hak_slow_exit(&d);
  return hak_heap_visit_blocks(heap, visit, context);
}

HAK_EXPORT size_t hakmem_heap_list(bool (*visit)(hakmem_heap *heap, void *context), void *context) {
  if (visit == NULL) return hak_heap_count();
  size_t count = 0;
  uint64_t id = 0;
  for (bool goes_on = true; goes_on;) {
    hak_heap_hold_ends();
    hak_heap *h = hak_heap_after(id);
    if (h != NULL) id = h->id;
    count += h != NULL;
    goes_on = h != NULL && visit(h, context);
    hak_heap_let_end();
  }
  return count;
}
