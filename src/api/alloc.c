/* New blocks, below the checks of the hardened build: choice of the owner by size, and what is done where memory is out. */
#include <errno.h>

#include "api/api.h"
#include "os/callers.h"
#include "api/heaps.h"
#include "api/sampling.h"
#include "api/slow_exit.h"
#include "api/thread.h"
#include "large/extent.h"
#include "large/huge.h"
#include "large/large.h"
#include "os/os.h"
#include "reclaim/decay.h"

/* The last answer to a request. */
static void *finally(void *p) {
  if (HAK_UNLIKELY(p == NULL)) hak_budget_note_failure();
  return p;
}

static void *alloc_large(size_t size, size_t align, bool zeros, bool *zeroed) {
  if (size > PTRDIFF_MAX) return NULL;
  if (!hak_start()) {
    *zeroed = true;
    return hak_huge_alloc(size, align, zeros);
  }
  hak_deferred d = {0};
  *zeroed = false;
  void *p = HAK_HARD(GUARDS) || zeros ? NULL : hak_large_reuse(size, align);
  if (p == NULL) {
    hak_slow_entry(true); /* gives a full pool what caches and depots hold */
    p = hak_large_alloc(size, align, zeros, zeroed);
  }
  if (HAK_UNLIKELY(p == NULL)) {
    hak_reclaim();
    p = finally(hak_large_alloc(size, align, zeros, zeroed));
  }
  hak_slow_exit(&d); /* before the new pages are touched */
  return p;
}

void *hak_raw_large(size_t size, size_t align, bool zeros, bool *zeroed) {
  void *p;
  if (HAK_UNLIKELY(hak_tls.in_heap) && hak_heap_serves(size, align, zeroed, &p)) return p;
  p = alloc_large(size, align, zeros, zeroed);
  if (HAK_LIKELY(p != NULL))
    hak_sampled_count_large(p, size);
  else
    hak_forbid_look("allocation", NULL, size);
  return p;
}

static void *alloc_class_from(hak_tcache *t, unsigned class_code, hak_deferred *d) {
  if (HAK_LIKELY(t != NULL)) return hak_tcache_alloc(t, class_code, d);
  return hak_started() ? hak_arena_alloc(class_code, d) : NULL;
}

static void note_request(const void *p, unsigned class_code, size_t size) {
  if (HAK_UNLIKELY(hak_load_relaxed(&hak_requests_noted)) && p != NULL) hak_tcache_note_request(class_code, size);
}

/* What the countdown has ended for; the block, or NULL where it is any. */
static HAK_NOINLINE void *alloc_drawn(unsigned class_code, size_t size, size_t align) {
  hak_due due = hak_count_end(size);
  hak_deferred d = {0};
  if (HAK_UNLIKELY(due.forbidden)) hak_forbid_report("allocation", NULL, size);
  if (HAK_LIKELY(!due.guard && !due.profile)) {
    void *any = hak_class_size(class_code) > HAK_FAST_MAX ? hak_tcache_pop_fenced(class_code) : hak_tcache_pop_class(class_code);
    /* A thread whose work never leaves its cache comes by here alone. */
    if (any == NULL || hak_counting()) return any;
    hak_slow_exit(&d);
    if (!hak_decay_waits()) hak_count_lengthen(size);
    return any;
  }
  void *p = hak_sampled_alloc(due, hak_thread_grown(), class_code, size, align, &d);
  note_request(p, class_code, size);
  hak_slow_exit(&d);
  return p;
}

/* Near a target, whole spans are an extent, whose pages beyond the request are given back. The request is counted. */
static void *alloc_class(unsigned class_code, size_t size, size_t align) {
  bool zeroed;
  HAK_ASSERT(class_code < HAK_CLASS_COUNT && size <= HAK_SMALL_MAX);
  if (HAK_UNLIKELY(hak_tls.countdown < 0)) {
    void *drawn;
    if (HAK_UNLIKELY(hak_tls.in_heap) && hak_heap_serves(size, align, &zeroed, &drawn)) return drawn;
    drawn = alloc_drawn(class_code, size, align);
    if (drawn != NULL) return drawn;
  }
  if (!HAK_HARD(GUARDS) && HAK_UNLIKELY(size > HAK_SHARED_MAX) && hak_budget_near_now()) return alloc_large(size, align, false, &zeroed);
  hak_deferred d = {0};
  hak_tcache *t = hak_thread_grown();
  HAK_ASSERT(!hak_started() || size <= hak_class_size(class_code));
  hak_slow_entry(HAK_UNLIKELY(hak_pool_is_full()) && (t == NULL || !hak_tcache_has_magazine(t, class_code)));
  void *p = alloc_class_from(t, class_code, &d);
  note_request(p, class_code, size);
  hak_slow_exit(&d);
  if (HAK_LIKELY(p != NULL)) return p;
  hak_reclaim();
  return finally(alloc_class_from(hak_thread_grown(), class_code, &d));
}

void *hak_no_memory(void) {
  errno = ENOMEM;
  return NULL;
}

void *hak_invalid(void) {
  errno = EINVAL;
  return NULL;
}

static HAK_NOINLINE void *malloc_long(size_t size) {
  bool zeroed;
  if (HAK_UNLIKELY(hak_tls.in_heap) && HAK_UNLIKELY(hak_caller_keeps(HAK_CALLER()))) return hak_malloc_for(size, HAK_CALLER());
  return hak_or_no_memory(size <= HAK_SMALL_MAX ? alloc_class(hak_class_for(size), size, HAK_GRANULE)
                                                : hak_raw_large(size, HAK_GRANULE, false, &zeroed));
}

void *hak_malloc_for(size_t size, const void *caller) {
  bool was = hak_caller_keeps(caller) && hak_heap_suspend();
  void *p = hak_malloc_slow(size);
  hak_heap_resume(was);
  return p;
}

HAK_NOINLINE void *hak_malloc_slow(size_t size) {
  if (size > HAK_FAST_MAX && size <= HAK_SMALL_MAX && HAK_LIKELY(hak_tls.countdown >= 0)) {
    void *p = hak_tcache_pop_fenced(hak_class_for(size));
    if (HAK_LIKELY(p != NULL)) return p;
  }
  return malloc_long(size);
}

void *hak_aligned_slow(unsigned class_code, size_t size, size_t align) { return hak_or_no_memory(alloc_class(class_code, size, align)); }

void *hak_raw_aligned(size_t align, size_t size) {
  int class_code = hak_class_for_aligned(size, align);
  if (class_code >= 0) {
    void *p = hak_count_request(size) ? hak_tcache_pop_class((unsigned)class_code) : NULL;
    return HAK_LIKELY(p != NULL) ? p : hak_aligned_slow((unsigned)class_code, size, align);
  }
  bool zeroed;
  return hak_or_no_memory(hak_raw_large(size, align, false, &zeroed));
}
