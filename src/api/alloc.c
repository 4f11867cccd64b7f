/* malloc, calloc and what is new beside them: choice of the owner by size, and zeroing. */
#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/init.h"
#include "api/sampling.h"
#include "api/slow_exit.h"
#include "api/thread.h"
#include "large/dense.h"
#include "large/guard_pages.h"
#include "large/huge.h"
#include "large/extent.h"
#include "large/kept.h"
#include "os/os.h"
#include "pool/budget.h"
#include "reclaim/decay.h"

HAK_LINK_INIT;

/* What others are purging counts until it is gone, and a request would be refused while memory is free: some calls of
 * the system are waited for. */
#define CLAIM_WAITS_MS 50

static void wait_for_purges(void) {
  for (unsigned ms = 0; ms < CLAIM_WAITS_MS && hak_load_relaxed(&hak_span_pool.claimed_spans) > 0; ms++) hak_os_sleep_ms(1);
}

/* Frees what caches hold, for a caller that is about to fail. */
static void reclaim(void) {
  hak_deferred d = {0};
  bool left;
  hak_kept_release(UINT64_MAX, SIZE_MAX, &left, &d.purge_due);
  if (HAK_HARD(GUARDS)) hak_guard_pages_release();
  hak_tcache *t = hak_tls.cache;
  if (t != NULL) hak_tcache_flush(t, &d);
  hak_tcache_reach(UINT64_MAX, true, &d);
  hak_arena_shrink_all(&d);
  hak_slow_exit(&d);
  hak_decay_for_limit();
  if (!hak_budget_limited()) return;
  hak_decay_all(0, &d); /* what is free but does not fit counts against the limit */
  wait_for_purges();
}

/* The last answer to a request. */
static void *finally(void *p) {
  if (HAK_UNLIKELY(p == NULL)) hak_budget_note_failure();
  return p;
}

/* Where regions are full, or none fits, a mapping may still be had. Where the system grants no address space any more, as
 * under an RLIMIT_AS that was set while the program ran, there is what was reserved at the start. */
static void *alloc_large_once(size_t size, size_t align, bool zeros, bool *zeroed) {
  bool extent_first = !HAK_HARD(GUARDS) && size <= HAK_EXTENT_MAX && align <= HAK_EXTENT_MAX;
  *zeroed = false;
  void *p = HAK_HARD(GUARDS) ? NULL : hak_kept_alloc(size, align);
  if (p != NULL) return p;
  if (extent_first) p = hak_extent_alloc(size, align, zeros, zeroed);
  if (p == NULL) {
    p = hak_huge_alloc(size, align, zeros);
    *zeroed = true;
  }
  bool extent_last = !extent_first && size <= HAK_EXTENT_LONGEST && align <= HAK_HUGE_PAGE;
  return p != NULL || !extent_last ? p : hak_extent_alloc(size, align, zeros, zeroed);
}

static void *alloc_large(size_t size, size_t align, bool zeros, bool *zeroed) {
  if (size > PTRDIFF_MAX) return NULL;
  if (!hak_start()) {
    *zeroed = true;
    return hak_huge_alloc(size, align, zeros);
  }
  hak_deferred d = {0};
  hak_slow_entry(true);
  void *p = alloc_large_once(size, align, zeros, zeroed);
  if (HAK_UNLIKELY(p == NULL)) {
    reclaim();
    p = finally(alloc_large_once(size, align, zeros, zeroed));
  }
  hak_slow_exit(&d); /* before the new pages are touched */
  return p;
}

void *hak_raw_large(size_t size, size_t align, bool zeros, bool *zeroed) {
  void *p = alloc_large(size, align, zeros, zeroed);
  if (HAK_LIKELY(p != NULL)) hak_sampled_count_large(p, size);
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
  if (HAK_UNLIKELY(hak_tls.countdown < 0)) {
    void *drawn = alloc_drawn(class_code, size, align);
    if (drawn != NULL) return drawn;
  }
  if (!HAK_HARD(GUARDS) && HAK_UNLIKELY(size > HAK_SHARED_MAX) && hak_budget_near_now()) return alloc_large(size, align, false, &zeroed);
  hak_deferred d = {0};
  hak_tcache *t = hak_thread_grown();
  hak_slow_entry(HAK_UNLIKELY(hak_pool_is_full()) && (t == NULL || !hak_tcache_has_magazine(t, class_code)));
  void *p = alloc_class_from(t, class_code, &d);
  note_request(p, class_code, size);
  hak_slow_exit(&d);
  if (HAK_LIKELY(p != NULL)) return p;
  reclaim();
  return finally(alloc_class_from(hak_thread_grown(), class_code, &d));
}

static void *or_enomem(void *p) {
  if (HAK_UNLIKELY(p == NULL)) errno = ENOMEM;
  return p;
}

static HAK_NOINLINE void *malloc_long(size_t size) {
  bool zeroed;
  return or_enomem(size <= HAK_SMALL_MAX ? alloc_class(hak_class_for(size), size, HAK_GRANULE)
                                         : hak_raw_large(size, HAK_GRANULE, false, &zeroed));
}

HAK_NOINLINE void *hak_malloc_slow(size_t size) {
  if (size > HAK_FAST_MAX && size <= HAK_SMALL_MAX && HAK_LIKELY(hak_tls.countdown >= 0)) {
    void *p = hak_tcache_pop_fenced(hak_class_for(size));
    if (HAK_LIKELY(p != NULL)) return p;
  }
  return malloc_long(size);
}

void *hak_calloc(size_t count, size_t size) {
  if (HAK_HARDENED) return hak_hard_calloc(count, size);
  size_t bytes;
  if (HAK_UNLIKELY(__builtin_mul_overflow(count, size, &bytes))) return or_enomem(NULL);
  if (HAK_LIKELY(bytes <= HAK_SHARED_MAX)) {
    void *p = hak_malloc(bytes);
    return HAK_LIKELY(p != NULL) ? memset(p, 0, bytes) : p;
  }
  bool zeroed = false;
  void *p = hak_raw_large(bytes, HAK_GRANULE, true, &zeroed);
  /* To write to all of a block that will be sparse costs its memory. */
  if (p != NULL && !zeroed && !(hak_dense_is_sparse(bytes) && hak_extent_zero(p, bytes))) memset(p, 0, bytes);
  return or_enomem(p);
}

void *hak_aligned_slow(unsigned class_code, size_t size, size_t align) { return or_enomem(alloc_class(class_code, size, align)); }

void *hak_raw_aligned(size_t align, size_t size) {
  int class_code = hak_class_for_aligned(size, align);
  if (class_code >= 0) {
    void *p = hak_count_request(size) ? hak_tcache_pop_class((unsigned)class_code) : NULL;
    return HAK_LIKELY(p != NULL) ? p : hak_aligned_slow((unsigned)class_code, size, align);
  }
  bool zeroed;
  return or_enomem(hak_raw_large(size, align, false, &zeroed));
}

void *hak_aligned(size_t align, size_t size) {
  if (HAK_LIKELY(hak_is_pow2(align))) return hak_aligned_as(align, size, HAK_FAMILY_MALLOC);
  errno = EINVAL;
  return NULL;
}

HAK_EXPORT void *hakmem_malloc(size_t size) { return hak_malloc(size); }

HAK_EXPORT void *hakmem_calloc(size_t count, size_t size) { return hak_calloc(count, size); }

HAK_EXPORT size_t hakmem_good_size(size_t size) {
  if (HAK_HARD(CANARY)) return size > PTRDIFF_MAX - HAK_SPAN_SIZE ? 0 : size; /* all that may be used */
  if (size <= HAK_SMALL_MAX) return hak_start() ? hak_class_size(hak_class_for(size)) : 0;
  size_t spans = hak_align_up(size, HAK_SPAN_SIZE);
  if (size <= HAK_EXTENT_MAX) return spans - size < HAK_EXTENT_COLOURED ? spans : spans - HAK_EXTENT_COLOURED;
  return size > PTRDIFF_MAX - HAK_SPAN_SIZE ? 0 : hak_align_up(size, hak_os_page_size());
}

HAK_EXPORT void *hakmem_alloc_at_least(size_t size, size_t *actual) {
  void *p = hak_malloc(size);
  *actual = p == NULL ? 0 : hak_usable_size(p, HAK_CALLER());
  return p;
}
