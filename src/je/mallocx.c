/* mallocx and its kin. Blocks are the core's, and any of its frees takes them. */
#include <errno.h>
#include <string.h>

#include "api/heaps.h"
#include "api/sampling.h"
#include "api/slow_exit.h"
#include "api/thread.h"
#include "api/usage.h"
#include "je/je.h"
#include "large/extent.h"
#include "large/huge.h"
#include "profile/profile.h"
#include "tcache/counted.h"

HAK_EXPORT void *mallocx(size_t size, int flags);
HAK_EXPORT void *rallocx(void *p, size_t size, int flags);
HAK_EXPORT size_t xallocx(void *p, size_t size, size_t extra, int flags);
HAK_EXPORT size_t sallocx(const void *p, int flags);
HAK_EXPORT void dallocx(void *p, int flags);
HAK_EXPORT void sdallocx(void *p, size_t size, int flags);

#define NO_TCACHE 1
#define ARENA_MAIN 1

/* A block from slabs, whatever the thread's cache has: of the fullest of the arena's, so that whoever moves blocks there empties others. NULL: take
 * another way. */
static void *take_uncached(size_t size, size_t align) {
  int c = size > HAK_SHARED_MAX ? -1 : hak_class_for_aligned(size, align);
  if (c < 0 || !hak_started() || hak_tls.in_heap || hak_tls.phase == HAK_THREAD_FORBIDDEN || !hak_count_request(size)) return NULL;
  hak_deferred d = {0};
  hak_slow_entry(hak_pool_is_full());
  void *p = hak_arena_alloc((unsigned)c, &d);
  hak_slow_exit(&d);
  return p;
}

/* Whoever frees so wants slabs to become empty: what the thread's cache holds would keep them. */
#define UNCACHED_FREES 256
static HAK_TLS unsigned uncached_frees;

/* Back to its slab at once. False: it is no block of a class, or more has to be done. */
static bool give_uncached(void *p) {
  size_t offset, code = hak_tcache_code(p, &offset);
  if (uncached_frees++ % UNCACHED_FREES == 0) hakmem_thread_idle();
  if (!hak_code_is_class((unsigned)code) || hak_class_size((unsigned)code - 1) > HAK_SHARED_MAX || hak_tls.phase == HAK_THREAD_FORBIDDEN) return false;
  hak_deferred d = {0};
  hak_totals_take(p);
  hak_arena_free(p, (unsigned)code - 1, &d);
  hak_slow_exit(&d);
  return true;
}

static void *zero(void *p, size_t size, bool zeroed) {
  if (p != NULL && !zeroed) memset(p, 0, size);
  return p;
}

/* A heap's first blocks are as large as they are asked to be: here a program may use all that nallocx says. */
static size_t size_in_heap(size_t size, int flags) { return hak_max_size(size, hak_usage_size(size, HAK_JE_ALIGN(flags))); }

/* The main heap, or the thread's default. */
static void *alloc_plain(size_t size, size_t align, int flags) {
  bool zeros = (flags & HAK_JE_ZERO) != 0, zeroed = false;
  if (HAK_UNLIKELY(hak_tls.in_heap)) size = size_in_heap(size, flags);
  if (HAK_JE_TCACHE(flags) == NO_TCACHE) {
    void *p = take_uncached(size, align);
    if (p != NULL) return zero(hak_totals_new(p), zeros ? size : 0, false);
  }
  if (HAK_JE_TCACHE(flags) > NO_TCACHE) {
    void *p = hak_je_tcache_pop(HAK_JE_TCACHE(flags) - 2, size, align);
    if (p != NULL) return zero(hak_totals_new(p), zeros ? size : 0, false);
  }
  if (align <= HAK_GRANULE) return zeros ? hak_calloc(1, size) : hak_malloc(size);
  if (!zeros || size <= HAK_SMALL_MAX) return zero(hak_aligned(align, size), zeros ? size : 0, false);
  void *p = hak_totals_add(hak_raw_large(size, align, true, &zeroed));
  return zero(p, size, zeroed);
}

static void *alloc_in(unsigned arena, size_t size, size_t align, int flags) {
  bool zeroed = false;
  hak_je_arena *a = hak_je_arena_at(arena);
  hakmem_heap *heap = a == NULL ? NULL : hak_load_acquire(&a->heap);
  if (arena == 0) {
    bool was = hak_heap_suspend();
    void *p = size < hak_oversize ? alloc_plain(size, align, flags) : zero(hak_totals_add(hak_raw_large(size, align, (flags & HAK_JE_ZERO) != 0, &zeroed)), size, zeroed || (flags & HAK_JE_ZERO) == 0);
    hak_heap_resume(was);
    return p;
  }
  if (heap == NULL) return NULL; /* no such arena */
  size = size_in_heap(size, flags);
  void *p = hak_heap_alloc(heap, size, hak_max_size(align, HAK_GRANULE), true, &zeroed);
  return (flags & HAK_JE_ZERO) == 0 ? hak_totals_new(p) : zero(hak_totals_add(p), size, zeroed);
}

void *mallocx(size_t size, int flags) {
  if (HAK_LIKELY(flags == 0) && HAK_LIKELY(!hak_tls.in_heap)) return hak_malloc(size);
  size_t align = HAK_JE_ALIGN(flags);
  if (size > PTRDIFF_MAX || align > PTRDIFF_MAX / 2 || !hak_start()) return hak_no_memory();
  return hak_or_no_memory(HAK_JE_ARENA(flags) != 0 ? alloc_in(HAK_JE_ARENA(flags) - 1, size, align, flags) : alloc_plain(size, align, flags));
}

size_t sallocx(const void *p, int flags) {
  (void)flags;
  return hak_usable_size(p, HAK_CALLER());
}

void dallocx(void *p, int flags) {
  unsigned cache = HAK_JE_TCACHE(flags);
  if (cache == NO_TCACHE ? give_uncached(p) : cache > NO_TCACHE && hak_je_tcache_push(cache - 2, p)) return;
  hak_free(p);
}

void sdallocx(void *p, size_t size, int flags) {
  if (HAK_JE_TCACHE(flags) != 0 && size <= hak_totals_size(p))
    dallocx(p, flags);
  else
    hak_free_sized(p, size);
}

/* --- resizing --- */

static void *move(void *p, size_t before, size_t size, int flags) {
  void *q = mallocx(size, flags & ~HAK_JE_ZERO);
  if (q == NULL) return NULL;
  memcpy(q, p, hak_min_size(before, size));
  dallocx(p, flags);
  return q;
}

static bool is_elsewhere(const void *p, int flags) {
  unsigned index;
  return HAK_JE_ARENA(flags) != 0 && hak_je_arena_of(p, &index) && index != HAK_JE_ARENA(flags) - 1;
}

void *rallocx(void *p, size_t size, int flags) {
  size_t align = HAK_JE_ALIGN(flags), before = hak_totals_size(p);
  void *q;
  if (size == 0) size = 1;
  /* A small block has the size that nallocx says: realloc would leave it where it is until half of it is enough. */
  size_t wanted = before <= HAK_SHARED_MAX ? hak_usage_size(size, HAK_JE_ALIGN(flags)) : before;
  bool here = (uintptr_t)p % align == 0 && !is_elsewhere(p, flags);
  if (!here || wanted < before || ((align > HAK_GRANULE || HAK_JE_TCACHE(flags) > NO_TCACHE) && wanted != before))
    q = move(p, before, size, flags);
  else if (align > HAK_GRANULE)
    q = hak_resize_stays(before, size, HAK_GRANULE) ? p : move(p, before, size, flags);
  else
    q = hak_realloc(p, hakmem_heap_of(p) == NULL ? size : size_in_heap(size, flags), HAK_CALLER());
  size_t after = q == NULL || (flags & HAK_JE_ZERO) == 0 ? 0 : hak_totals_size(q);
  if (after > before) memset((char *)q + before, 0, after - before);
  return q;
}

/* An extent, or a mapping, of the main heap gives back what is behind `size`; other blocks stay as they are. */
static void shrink_in_place(void *p, size_t size) {
  hak_region *r = hak_region_find(p);
  if (r == NULL && size > HAK_SMALL_MAX && hak_huge_size(p) != 0 && hak_huge_owner(p) == 0) hak_raw_resize_huge(NULL, p, size, HAK_IN_PLACE);
  if (r == NULL || size <= HAK_SHARED_MAX || hak_region_slab_code(r, hak_region_index(r, p)) != HAK_CODE_EXTENT) return;
  hak_deferred d = {0};
  if (hak_region_span(r, p)->start == (uintptr_t)p && hak_extent_resize(r, p, size, &d.purge_due)) {
    hak_sampled_forget(p);
    hak_sampled_count_large(p, size);
  }
  hak_slow_exit(&d);
}

static bool grow_in_place(void *p, size_t size) {
  int saved = errno;
  bool grown = size <= PTRDIFF_MAX && hak_raw_resize(p, size, HAK_IN_PLACE, HAK_CALLER()) != NULL;
  errno = saved;
  return grown;
}

size_t xallocx(void *p, size_t size, size_t extra, int flags) {
  size_t before = hak_totals_size(p), align = HAK_JE_ALIGN(flags), after = before;
  if (extra > SIZE_MAX - size) extra = SIZE_MAX - size;
  if ((uintptr_t)p % align != 0 || (before >= size && before <= size + extra)) return before;
  if (before > size + extra)
    shrink_in_place(p, size + extra);
  else if (!grow_in_place(p, size + extra) && extra != 0)
    grow_in_place(p, size);
  after = hak_totals_size(p);
  if (after == before) return before;
  hak_totals.deallocated += before;
  hak_totals.allocated += after;
  if (after > before && hak_fill_bits != 0) hak_fill_new(p, before);
  if (after > before && (flags & HAK_JE_ZERO) != 0) memset((char *)p + before, 0, after - before);
  return after;
}
