/* The entry points: each goes to the allocator or, in the hardened build, through its checks (harden.c). The public
 * names are here, and what the malloc family shares with them beyond the inline wrappers of api.h. */
#include <errno.h>
#include <string.h>

#include "entry/entry.h"
#include "entry/heaps.h"
#include "entry/usage.h"
#include "entry/where.h"
#include "guard/sample.h"
#include "large/dense.h"
#include "large/extent.h"
#include "large/huge.h"
#include "life/init.h"
#include "life/thread.h"
#include "os/callers.h"
#include "os/os.h"

HAK_LINK_INIT;

static void *calloc_large(size_t bytes, size_t align, const void *caller) {
  bool zeroed = false, was = HAK_UNLIKELY(hak_tls.in_heap) && hak_caller_keeps(caller) && hak_heap_suspend();
  void *p = hak_raw_large(bytes, align, true, &zeroed);
  hak_heap_resume(was);
  if (p != NULL && !zeroed) hak_large_clear(p, hak_totals_whole(p, bytes));
  return hak_or_no_memory(hak_totals_add(p));
}

void *hak_calloc(size_t count, size_t size) {
  if (HAK_HARDENED) return hak_hard_calloc(HAK_ANY_ALIGN, count, size);
  size_t bytes;
  if (HAK_UNLIKELY(__builtin_mul_overflow(count, size, &bytes))) return hak_no_memory();
  if (HAK_UNLIKELY(bytes > HAK_SHARED_MAX)) return calloc_large(bytes, HAK_GRANULE, HAK_CALLER());
  void *p = HAK_TOTALS ? hak_malloc(bytes) : hak_tcache_pop(bytes);
  if (!HAK_TOTALS && HAK_UNLIKELY(p == NULL))
    p = HAK_UNLIKELY(hak_tls.in_heap) ? hak_malloc_for(bytes, HAK_CALLER()) : hak_malloc_slow(bytes);
  return HAK_LIKELY(p != NULL) ? memset(p, 0, hak_totals_whole(p, bytes)) : p;
}

void *hak_realloc(void *p, size_t size, const void *caller) {
  if (HAK_TOTALS) return hak_totals_realloc(p, size, caller);
  return HAK_HARDENED ? hak_hard_resize(p, size, HAK_GRANULE) : hak_raw_realloc(p, size, caller);
}

void *hak_resize(void *p, size_t size, size_t align, const void *caller) {
  size_t before = HAK_TOTALS ? hak_totals_size(p) : 0;
  void *q = HAK_HARDENED ? hak_hard_resize(p, size, align) : hak_raw_resize(p, size, align, caller);
  if (HAK_TOTALS && q != NULL) hak_totals.deallocated += before;
  return HAK_TOTALS ? hak_totals_add(q) : q;
}

size_t hak_usable_size(const void *p, const void *caller) {
  return HAK_HARDENED ? hak_hard_usable_size(p) : hak_raw_usable_size(p, caller);
}

/* Only a size larger than the block is certain to be wrong: a smaller one may come from an aligned request or a
 * shrinking realloc that stayed in place. */
void hak_free_sized(void *p, size_t size) {
  if (HAK_HARDENED) {
    /* No real size is HAK_SIZE_UNKNOWN */
    hak_hard_free(p, hak_min_size(size, HAK_SIZE_UNKNOWN - 1), HAK_FAMILY_MALLOC);
    return;
  }
  size_t actual = HAK_CHECKS && HAK_LIKELY(p != NULL) ? hak_block_size(p) : 0;
  if (HAK_UNLIKELY(size > actual && actual != 0)) hak_misuse_abort(HAK_VERDICT_SIZE_MISMATCH, p, actual, "at the call");
  hak_free(p);
}

/* --- aligned allocation in its historical forms --- */

void *hak_aligned(size_t align, size_t size) {
  if (HAK_UNLIKELY(!hak_is_pow2(align))) return hak_invalid();
  if (hak_fills_with_zeros(size)) return hak_aligned_calloc(align, 1, size);
  return hak_aligned_as(align, size, HAK_FAMILY_MALLOC);
}

void *hak_aligned_calloc(size_t align, size_t count, size_t size) {
  size_t bytes;
  if (HAK_UNLIKELY(!hak_is_pow2(align))) return hak_invalid();
  if (align <= HAK_GRANULE) return hak_calloc(count, size);
  if (HAK_HARDENED) return hak_hard_calloc(align, count, size);
  if (__builtin_mul_overflow(count, size, &bytes)) return hak_no_memory();
  if (hak_class_for_aligned(bytes, align) < 0) return calloc_large(bytes, align, NULL);
  void *p = hak_aligned_as(align, bytes, HAK_FAMILY_MALLOC);
  return p == NULL ? NULL : memset(p, 0, hak_totals_whole(p, bytes));
}

int hak_posix_memalign(void **out, size_t alignment, size_t size) {
  if (!hak_is_pow2(alignment) || alignment % sizeof(void *) != 0) return EINVAL;
  int saved = errno;
  void *p = hak_aligned(alignment, size);
  errno = saved;
  if (p == NULL) return ENOMEM;
  *out = p;
  return 0;
}

void *hak_memalign(size_t alignment, size_t size) {
  /* No power of two is this large; up to the largest the error is ENOMEM */
  if (alignment > SIZE_MAX / 2 + 1) return hak_invalid();
  return hak_aligned(hak_pow2_ceil(hak_max_size(alignment, HAK_GRANULE)), size);
}

void *hak_pvalloc(size_t size) {
  size_t page = hak_os_page_size();
  if (size > PTRDIFF_MAX) return hak_no_memory();
  return hak_aligned(page, hak_align_up(hak_max_size(size, 1), page));
}

/* --- the public names --- */

HAK_EXPORT void *hakmem_malloc(size_t size) { return hak_malloc(size); }

HAK_EXPORT void *hakmem_calloc(size_t count, size_t size) { return hak_calloc(count, size); }

/* The guard is behind what a sampled block was asked for, and any block may be sampled, or have been. */
size_t hak_usage_size(size_t size, size_t align) {
  if (size > PTRDIFF_MAX - HAK_SPAN_SIZE || align > PTRDIFF_MAX / 2) return 0;
  if (HAK_HARD(CANARY)) return size; /* the usable size is the request */
  if (!hak_start()) return 0;
  return hak_sample_on() && size <= HAK_SAMPLE_BYTES_MAX ? hak_max_size(size, 1) : hak_good_size(size, align);
}

HAK_EXPORT size_t hakmem_good_size(size_t size) { return hak_usage_size(size, HAK_GRANULE); }

HAK_EXPORT void *hakmem_alloc_at_least(size_t size, size_t *actual) {
  void *p = hak_malloc(size);
  *actual = p == NULL ? 0 : hak_usable_size(p, HAK_CALLER());
  return p;
}

HAK_EXPORT void *hakmem_reallocarray(void *p, size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) return hak_no_memory();
  return hak_realloc(p, bytes, HAK_CALLER());
}

HAK_EXPORT void *hakmem_realloc(void *p, size_t size) { return hak_realloc(p, size, HAK_CALLER()); }

HAK_EXPORT void *hakmem_expand(void *p, size_t size) {
  return p != NULL ? hak_resize(p, size, HAK_IN_PLACE, HAK_CALLER()) : hak_invalid();
}

HAK_EXPORT void *hakmem_aligned_calloc(size_t alignment, size_t count, size_t size) {
  return hak_aligned_calloc(alignment, count, size);
}

HAK_EXPORT void *hakmem_aligned_realloc(void *p, size_t alignment, size_t size) {
  if (p == NULL || !hak_is_pow2(alignment)) return hak_aligned(alignment, size);
  return alignment <= HAK_GRANULE ? hak_realloc(p, size, HAK_CALLER()) : hak_resize(p, size, alignment, HAK_CALLER());
}

HAK_EXPORT void *hakmem_aligned_alloc(size_t alignment, size_t size) { return hak_aligned(alignment, size); }
HAK_EXPORT int hakmem_posix_memalign(void **out, size_t alignment, size_t size) {
  return hak_posix_memalign(out, alignment, size);
}
HAK_EXPORT void *hakmem_memalign(size_t alignment, size_t size) { return hak_memalign(alignment, size); }
HAK_EXPORT void *hakmem_valloc(size_t size) { return hak_aligned(hak_os_page_size(), size); }
HAK_EXPORT void *hakmem_pvalloc(size_t size) { return hak_pvalloc(size); }

HAK_EXPORT void hakmem_free(void *p) { hak_free(p); }
HAK_EXPORT void hakmem_free_sized(void *p, size_t size) { hak_free_sized(p, size); }
HAK_EXPORT void hakmem_free_aligned_sized(void *p, size_t alignment, size_t size) {
  (void)alignment;
  hak_free_sized(p, size);
}

HAK_EXPORT size_t hakmem_malloc_usable_size(void *p) { return hak_usable_size(p, HAK_CALLER()); }

HAK_EXPORT bool hakmem_is_ours(const void *p) {
  hak_where w = hak_where_is(p);
  return w.what >= HAK_INSIDE || w.kind == HAK_KIND_GUARDED;
}
