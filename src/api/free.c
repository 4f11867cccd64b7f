/* free and its kin: sorting out, on the slow path, whose block an address is. */
#include <errno.h>

#include "api/api.h"
#include "guard/foreign.h"
#include "guard/sample.h"
#include "heap/remote.h"
#include "heap/run_stock.h"
#include "large/huge.h"
#include "large/run.h"
#include "pool/release.h"

static HAK_COLD void free_outside_regions(void *p, const void *caller) {
  if (hak_sample_contains(p)) {
    hak_sample_free(p);
    return;
  }
  if (hak_huge_free(p)) return;
  hak_verdict verdict = hak_huge_verdict(p);
  if (HAK_UNLIKELY(verdict != HAK_VERDICT_OK)) hak_misuse_abort(verdict, p, 0, "at the call");
  hak_foreign_note(HAK_FOREIGN_FREE, p, caller);
}

static void free_run(hak_region *region, void *p) {
  bool release_due = false;
  hak_heap *h = hak_tls_front.heap;
  hak_verdict verdict =
      h != NULL ? hak_run_stock_put(h, region, p, &release_due) : hak_run_free(region, p, &release_due);
  if (HAK_UNLIKELY(verdict != HAK_VERDICT_OK))
    hak_misuse_abort(verdict, p, verdict == HAK_VERDICT_FREE_MEMORY ? 0 : hak_run_size(region, p), "at the call");
  if (release_due) hak_release_excess();
}

static HAK_NOINLINE void free_any(void *p) {
  hak_region *region = hak_region_find(p);
  if (HAK_UNLIKELY(region == NULL)) {
    free_outside_regions(p, HAK_CALLER());
    return;
  }
  uint32_t tag = hak_region_tag(region, p), owner = HAK_TAG_OWNER(tag), class_code = HAK_TAG_CODE(tag);
  if (HAK_UNLIKELY(owner == 0)) {
    if (class_code == HAK_CODE_RUN) {
      free_run(region, p);
      return;
    }
    if (class_code == HAK_CODE_RUN_BODY)
      hak_misuse_abort(HAK_VERDICT_NO_BLOCK_START, p, hak_run_size(region, p), "at the call");
    hak_misuse_abort(HAK_VERDICT_FREE_MEMORY, p, 0, "at the call");
  }
  hak_heap *self = hak_heap_grown();
  if (HAK_UNLIKELY(self == NULL))
    hak_heap_free_direct(hak_heap_by_id(owner), p, class_code);
  else if (owner == self->id)
    hak_heap_free_own(self, p, class_code);
  else
    hak_remote_free(self, owner, p, class_code);
}

/* The most common reasons first: the block belongs to the heap and class of the last ones freed here, or it can serve
 * this thread next. */
HAK_NOINLINE void hak_free_slow(void *p, size_t difference) {
  if (p == NULL) return;
  hak_heap *self = hak_tls_front.heap;
  uint32_t tag = (uint32_t)difference ^ hak_tls_front.key, owner = HAK_TAG_OWNER(tag);
  if (HAK_LIKELY(self != NULL)) {
    if (hak_remote_free_hot(self, tag, p)) return;
    if (HAK_LIKELY(difference != HAK_NO_DIFFERENCE && owner != 0 && owner != self->id)) {
      if (!hak_remote_keep(self, tag, p)) hak_remote_free(self, owner, p, HAK_TAG_CODE(tag));
      return;
    }
  }
  free_any(p);
}

size_t hak_block_size(const void *p) {
  hak_region *region = hak_region_find(p);
  if (HAK_UNLIKELY(region == NULL)) return hak_sample_contains(p) ? hak_sample_size(p) : hak_huge_size(p);
  uint32_t tag = hak_region_tag(region, p);
  if (HAK_LIKELY(HAK_TAG_OWNER(tag) != 0)) return hak_class_size(HAK_TAG_CODE(tag));
  return tag == HAK_TAG(0, HAK_CODE_RUN) ? hak_run_size(region, p) : 0;
}

size_t hak_raw_usable_size(const void *p, const void *caller) {
  if (p == NULL) return 0;
  size_t size = hak_block_size(p);
  if (HAK_UNLIKELY(size == 0)) hak_foreign_note(HAK_FOREIGN_USABLE_SIZE, p, caller);
  return size;
}

size_t hak_usable_size(const void *p, const void *caller) {
  return HAK_HARDENED ? hak_hard_usable_size(p, caller) : hak_raw_usable_size(p, caller);
}

/* Only a size larger than the block is certain to be wrong: a smaller one may come from an aligned request or a
 * shrinking realloc that stayed in place. */
void hak_free_sized(void *p, size_t size) {
  if (HAK_HARDENED) {
    hak_hard_free(p, hak_min_size(size, HAK_SIZE_UNKNOWN - 1), HAK_FAMILY_MALLOC); /* no size is "unknown" */
    return;
  }
#if HAK_CHECKS
  if (HAK_LIKELY(p != NULL)) {
    size_t actual = hak_block_size(p);
    if (HAK_UNLIKELY(size > actual && actual != 0))
      hak_misuse_abort(HAK_VERDICT_SIZE_MISMATCH, p, actual, "at the call");
  }
#else
  (void)size;
#endif
  hak_free(p);
}

HAK_EXPORT void hakmem_free(void *p) { hak_free(p); }
HAK_EXPORT void hakmem_free_sized(void *p, size_t size) { hak_free_sized(p, size); }
HAK_EXPORT void hakmem_free_aligned_sized(void *p, size_t alignment, size_t size) {
  (void)alignment;
  hak_free_sized(p, size);
}

HAK_EXPORT size_t hakmem_malloc_usable_size(void *p) { return hak_usable_size(p, HAK_CALLER()); }

HAK_EXPORT bool hakmem_is_ours(const void *p) {
  hak_region *region = hak_region_find(p);
  return region != NULL ? hak_region_tag(region, p) != 0 : hak_sample_contains(p) || hak_huge_contains(p);
}
