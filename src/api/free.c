/* free, below the checks of the hardened build: sorting out, on the slow path, whose block an address is. */
#include "api/api.h"
#include "api/heaps.h"
#include "api/sampling.h"
#include "api/slow_exit.h"
#include "api/thread.h"
#include "guard/foreign.h"
#include "guard/sample.h"
#include "heap/cache.h"
#include "large/dense.h"
#include "large/huge.h"
#include "large/extent.h"
#include "reclaim/decay.h"

static HAK_COLD void free_outside_regions(void *p, const void *caller) {
  uint32_t owner = hak_huge_owner(p);
  if (owner != 0) {
    hak_heap_free_mapping(owner, p);
    return;
  }
  hak_sampled_note_free(p);
  if (hak_sample_contains(p)) {
    hak_sample_free(p);
    return;
  }
  hak_deferred d = {0};
  if (hak_huge_free(p, &d.purge_due)) {
    hak_decay_wake_helper();
    hak_slow_exit(&d);
    return;
  }
  hak_verdict verdict = hak_huge_verdict(p);
  if (HAK_UNLIKELY(verdict != HAK_VERDICT_OK)) hak_misuse_abort(verdict, p, 0, "at the call");
  if (HAK_HARDENED) hak_misuse_abort(HAK_VERDICT_FOREIGN, p, 0, "at the call"); /* another thread was faster */
  hak_foreign_note(HAK_FOREIGN_FREE, p, caller);
}

size_t hak_raw_claim_extent(hak_region *region, void *p) {
  hak_verdict verdict = hak_extent_claim(region, p);
  if (HAK_UNLIKELY(verdict != HAK_VERDICT_OK))
    hak_misuse_abort(verdict, p, verdict == HAK_VERDICT_FREE_MEMORY ? 0 : hak_extent_size(region, p), "at the call");
  return hak_extent_size(region, p);
}

void hak_raw_give_extent(hak_region *region, void *p) {
  hak_deferred d = {0};
  hak_sampled_note_free(p);
  hak_dense_look(p, hak_extent_size(region, p));
  hak_extent_give(region, p, &d.purge_due);
  hak_slow_exit(&d);
}

static void free_block(void *p, unsigned class_code) {
  hak_deferred d = {0};
  hak_tcache *t = hak_thread_grown();
  if (HAK_LIKELY(t != NULL)) {
    hak_tcache_free(t, p, class_code, &d);
  } else {
    hak_forbid_look("free", p, 0);
    hak_arena_free(p, class_code, &d);
  }
  hak_slow_exit(&d);
}

static HAK_NOINLINE void free_slowly(void *p) {
  if (p == NULL) return;
  hak_region *region = hak_region_find(p);
  if (HAK_UNLIKELY(region == NULL)) {
    free_outside_regions(p, HAK_CALLER());
    return;
  }
  unsigned code = hak_region_code(region, p);
  if (HAK_LIKELY(hak_code_is_class(code)))
    free_block(p, code - 1);
  else if (code == HAK_CODE_EXTENT)
    hak_raw_claim_extent(region, p), hak_raw_give_extent(region, p);
  else if (code == HAK_CODE_SAMPLED && hak_region_slab_code(region, hak_region_index(region, p)) == HAK_CODE_IN_HEAP)
    hak_heap_free_block(region, p);
  else if (code == HAK_CODE_SAMPLED)
    hak_forbid_look("free", p, 0), hak_sampled_end(p, false);
  else if (code == HAK_CODE_EXTENT_BODY)
    hak_misuse_abort(HAK_VERDICT_NO_BLOCK_START, p, hak_extent_size(region, p), "at the call");
  else
    hak_misuse_abort(HAK_VERDICT_FREE_MEMORY, p, 0, "at the call");
}

/* The fast path looks in the main region alone; a block of a further one goes into the thread's cache as well. */
HAK_INLINE bool free_in_further(void *p) {
  const hak_region *r = hak_region_further(p);
  return HAK_UNLIKELY(r != NULL) && hak_tcache_push_code(p, hak_region_code(r, p));
}

static bool free_known(void *p, unsigned code) {
  if (code == HAK_CODE_SAMPLED) return !hak_profile_has_samples() && hak_heap_push(p);
  return hak_code_is_class(code) && hak_class_size(code - 1) > HAK_FAST_MAX && hak_tcache_push_fenced(p, code - 1);
}

HAK_NOINLINE void hak_free_slow(void *p, size_t code) {
  if (!free_known(p, (unsigned)code) && !free_in_further(p)) free_slowly(p);
}

size_t hak_block_size(const void *p) {
  hak_region *region = hak_region_find(p);
  if (HAK_UNLIKELY(region == NULL)) return hak_sample_contains(p) ? hak_sample_size(p) : hak_huge_size(p);
  unsigned code = hak_region_slab_code(region, hak_region_index(region, p));
  if (HAK_LIKELY(hak_code_is_class(code))) return hak_class_size(code - 1);
  if (HAK_UNLIKELY(code == HAK_CODE_IN_HEAP)) {
    unsigned c;
    hak_heap *h = hak_heap_at(hak_region_span(region, p), p, &c);
    return h == NULL ? 0 : hak_heap_block_size(h, hak_region_span(region, p), p, c);
  }
  return code == HAK_CODE_EXTENT ? hak_extent_size(region, p) : 0;
}

size_t hak_raw_usable_size(const void *p, const void *caller) {
  if (p == NULL) return 0;
  size_t size = hak_block_size(p);
  if (HAK_UNLIKELY(size == 0)) hak_foreign_note(HAK_FOREIGN_USABLE_SIZE, p, caller);
  return size;
}
