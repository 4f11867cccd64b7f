/* New blocks, below the entry points and the checks of the hardened build. The shape of a request that no cache has a
 * block for:
 *
 *   hak_malloc_slow …        the entry: counts, ends in the one slow exit; where memory was out, once more behind it
 *     hak_take               by size: class, or large; in a thread with a default heap, that heap
 *       take_class           a sample that is due; else the thread's cache, or its arena   no lock is held on the way,
 *       take_large           kept mapping, extent, new mapping                            and no exit is taken */
#include <errno.h>

#include "entry/entry.h"
#include "entry/heaps.h"
#include "entry/sampling.h"
#include "entry/slow_exit.h"
#include "large/extent.h"
#include "large/huge.h"
#include "large/large.h"
#include "life/thread.h"
#include "os/callers.h"
#include "os/os.h"
#include "reclaim/decay.h"

/* The exit takes back what is free, and the entry asks once more; the last time there is none. */
static HAK_COLD void *out_of_memory(hak_deferred *d) {
  if (d->memory == HAK_MEMORY_LAST_TRY) hak_budget_note_failure();
  hak_deferred_note_out(d);
  return NULL;
}

/* The thread's cache; NULL: it has none. The first request starts the library. */
HAK_INLINE hak_tcache *grown(void) {
  return HAK_LIKELY(hak_tls.cache != NULL) || hak_start() ? hak_thread_grown() : NULL;
}

static void *take_large(size_t size, size_t align, bool zeros, bool *zeroed, hak_deferred *d) {
  if (size > PTRDIFF_MAX) return NULL;
  if (!hak_start()) {
    *zeroed = true;
    return hak_huge_alloc(size, align, zeros);
  }
  *zeroed = false;
  void *p = HAK_HARD(GUARDS) || zeros ? NULL : hak_large_reuse(size, align);
  if (p == NULL) {
    hak_slow_entry(true); /* gives a full pool what caches and depots hold */
    p = hak_large_alloc(size, align, zeros, zeroed);
  }
  return HAK_LIKELY(p != NULL) ? p : out_of_memory(d);
}

/* An extent whose size was freed lately. */
HAK_INLINE void *take_quick(size_t size) {
  return HAK_HARD(GUARDS) || size <= HAK_SMALL_MAX || size > HAK_EXTENT_MAX ? NULL : hak_extent_take_quick(size);
}

static void *take_counted_large(size_t size, size_t align, bool zeros, bool *zeroed, hak_deferred *d) {
  void *p;
  if (HAK_UNLIKELY(hak_tls.in_heap) && hak_heap_serves(size, align, zeroed, &p, d)) return p;
  grown(); /* the clock is looked at where a thread has a cache */
  p = zeros || align > HAK_GRANULE ? NULL : take_quick(size);
  if (p != NULL)
    d->from_cache = size;
  else
    p = take_large(size, align, zeros, zeroed, d);
  if (HAK_LIKELY(p != NULL))
    hak_sampled_count_large(p, size);
  else if (d->memory != HAK_MEMORY_OUT)
    hak_forbid_look("allocation", NULL, size);
  return p;
}

void *hak_raw_large(size_t size, size_t align, bool zeros, bool *zeroed) {
  hak_deferred d = {0};
  void *p;
  do {
    p = take_counted_large(size, align, zeros, zeroed, &d);
    hak_slow_exit(&d); /* before the new pages are touched */
  } while (HAK_UNLIKELY(hak_slow_again(&d)));
  return p;
}

static void *take_class_from(hak_tcache *t, unsigned class_code, hak_deferred *d) {
  if (HAK_LIKELY(t != NULL)) return hak_tcache_alloc(t, class_code, d);
  return hak_started() ? hak_arena_alloc(class_code, d) : NULL;
}

static void note_request(const void *p, unsigned class_code, size_t size) {
  if (HAK_UNLIKELY(hak_load_relaxed(&hak_requests_noted)) && p != NULL) hak_tcache_note_request(class_code, size);
}

/* Not where calls are counted, or a thread must not allocate. */
HAK_INLINE void *take_kept(unsigned class_code) {
  return HAK_LIKELY(hak_tcache_is_plain(hak_tls.cache)) ? hak_arena_take_kept(class_code) : NULL;
}

/* What the countdown has ended for; the block, or NULL where it is any. */
static HAK_NOINLINE void *take_drawn(unsigned class_code, size_t size, size_t align, hak_deferred *d) {
  hak_due due = hak_count_end(size);
  if (HAK_UNLIKELY(due.forbidden) && d->memory != HAK_MEMORY_LAST_TRY) hak_forbid_report("allocation", NULL, size);
  if (HAK_LIKELY(!due.guard && !due.profile)) {
    void *any = hak_class_size(class_code) > HAK_SHARED_MAX ? take_kept(class_code) : hak_tcache_pop_class(class_code);
    if (any != NULL) d->from_cache = size; /* a thread whose work never leaves its cache comes by here alone */
    return any;
  }
  void *p = hak_sampled_alloc(due, grown(), class_code, size, align, d);
  note_request(p, class_code, size);
  return p;
}

/* Near a target, whole spans are an extent, whose pages beyond the request are given back. The request is counted. */
static void *take_class(unsigned class_code, size_t size, size_t align, hak_deferred *d) {
  bool zeroed;
  HAK_ASSERT(class_code < HAK_CLASS_COUNT && size <= HAK_SMALL_MAX);
  if (HAK_UNLIKELY(hak_tls.countdown < 0)) {
    void *drawn;
    if (HAK_UNLIKELY(hak_tls.in_heap) && hak_heap_serves(size, align, &zeroed, &drawn, d)) return drawn;
    drawn = take_drawn(class_code, size, align, d);
    if (drawn != NULL) return drawn;
  }
  if (!HAK_HARD(GUARDS) && HAK_UNLIKELY(size > HAK_SHARED_MAX) && hak_budget_near_now())
    return take_large(size, align, false, &zeroed, d);
  hak_tcache *t = grown();
  HAK_ASSERT(!hak_started() || size <= hak_class_size(class_code));
  hak_slow_entry(HAK_UNLIKELY(hak_pool_is_full()) && (t == NULL || !hak_tcache_has_magazine(t, class_code)));
  void *p = take_class_from(t, class_code, d);
  note_request(p, class_code, size);
  return HAK_LIKELY(p != NULL) ? p : out_of_memory(d);
}

void *hak_no_memory(void) {
  errno = ENOMEM;
  return NULL;
}

void *hak_invalid(void) {
  errno = EINVAL;
  return NULL;
}

void *hak_take(size_t size, size_t align, hak_deferred *d) {
  bool zeroed;
  int c = align > HAK_GRANULE     ? hak_class_for_aligned(size, align)
          : size <= HAK_SMALL_MAX ? (int)hak_class_for(size)
                                  : -1;
  return c < 0 ? take_counted_large(size, align, false, &zeroed, d) : take_class((unsigned)c, size, align, d);
}

static HAK_NOINLINE void *malloc_long(size_t size) {
  if (HAK_UNLIKELY(hak_tls.in_heap) && HAK_UNLIKELY(hak_caller_keeps(HAK_CALLER())))
    return hak_malloc_for(size, HAK_CALLER());
  hak_deferred d = {0};
  void *p;
  do {
    p = hak_take(size, HAK_GRANULE, &d);
    hak_slow_exit(&d);
  } while (HAK_UNLIKELY(hak_slow_again(&d)));
  return hak_or_no_memory(p);
}

HAK_INLINE void *pop_whole(size_t size) {
  return size > HAK_SHARED_MAX && size <= HAK_SMALL_MAX && HAK_LIKELY(hak_tls.countdown >= 0)
             ? take_kept(hak_class_for(size))
             : NULL;
}

/* Larger requests than the fast path's are counted when they are served. */
HAK_INLINE void *pop_extent(size_t size) {
  void *p = hak_tls.countdown < HAK_COUNTED_BYTES(size) ? NULL : take_quick(size);
  if (HAK_LIKELY(p != NULL)) hak_tls.countdown -= HAK_COUNTED_BYTES(size);
  return p;
}

void *hak_malloc_for(size_t size, const void *caller) {
  bool was = hak_caller_keeps(caller) && hak_heap_suspend();
  void *p = hak_malloc_slow(size);
  hak_heap_resume(was);
  return p;
}

static HAK_NOINLINE void *malloc_large(size_t size) {
  void *p = pop_extent(size);
  return HAK_LIKELY(p != NULL) ? p : malloc_long(size);
}

HAK_NOINLINE void *hak_malloc_slow(size_t size) {
  if (size > HAK_SMALL_MAX) return malloc_large(size);
  void *p = pop_whole(size);
  return HAK_LIKELY(p != NULL) ? p : malloc_long(size);
}

void *hak_aligned_slow(unsigned class_code, size_t size, size_t align) {
  hak_deferred d = {0};
  void *p;
  do {
    p = take_class(class_code, size, align, &d);
    hak_slow_exit(&d);
  } while (HAK_UNLIKELY(hak_slow_again(&d)));
  return hak_or_no_memory(p);
}

HAK_INLINE void *aligned_of_class(int class_code, size_t size, size_t align) {
  void *p = hak_count_request(size) ? hak_tcache_pop_class((unsigned)class_code) : NULL;
  return HAK_LIKELY(p != NULL) ? p : hak_aligned_slow((unsigned)class_code, size, align);
}

static HAK_NOINLINE void *aligned_otherwise(size_t align, size_t size) {
  int class_code = hak_class_for_aligned(size, align);
  if (class_code >= 0) return aligned_of_class(class_code, size, align);
  bool zeroed;
  return hak_or_no_memory(hak_raw_large(size, align, false, &zeroed));
}

/* Nearly all without a call, and so without a register saved. */
void *hak_raw_aligned(size_t align, size_t size) {
  return HAK_LIKELY(hak_aligned_is_ordinary(size, align))
             ? aligned_of_class(hak_class_for_aligned(size, align), size, align)
             : aligned_otherwise(align, size);
}

/* Below the entries, with the short ways first. */
void *hak_take_any(size_t size, size_t align, hak_deferred *d) {
  void *p = NULL;
  if (align <= HAK_GRANULE) {
    p = hak_tcache_pop(size);
    if (p == NULL) p = pop_whole(size);
  } else {
    int c = hak_class_for_aligned(size, align);
    if (c >= 0 && hak_count_request(size)) p = hak_tcache_pop_class((unsigned)c);
  }
  return HAK_LIKELY(p != NULL) ? p : hak_take(size, align, d);
}
