/* free, below the checks of the hardened build:
 *
 *   hak_free_slow    the entry: short ways of heaps, whole spans and further regions; else, with the one slow exit
 *     give           asks hak_where_is whose block it is: a heap's, a mapping, a slab's, the profile's, an extent
 *       hak_heap_free, hak_huge_free, hak_tcache_free, hak_arena_free, hak_sampled_end, hak_raw_give_extent
 *                    each takes the locks it needs, and leaves work in *d; or misuse is reported */
#include "entry/entry.h"
#include "entry/heaps.h"
#include "entry/sampling.h"
#include "entry/slow_exit.h"
#include "guard/foreign.h"
#include "guard/sample.h"
#include "heap/cache.h"
#include "large/dense.h"
#include "large/extent.h"
#include "large/huge.h"
#include "life/thread.h"
#include "reclaim/decay.h"

/* A mapping; or what is none of ours, which is told, and not freed. */
static HAK_COLD void free_outside_regions(const hak_where *w, void *p, const void *caller, hak_deferred *d) {
  hak_sampled_note_free(p);
  if (w->kind == HAK_KIND_GUARDED) {
    hak_sample_free(p);
    return;
  }
  if (w->what == HAK_BLOCK && hak_huge_free(p, &d->purge_due)) {
    hak_decay_wake_helper();
    return;
  }
  if (w->what == HAK_INSIDE) hak_misuse_abort(HAK_VERDICT_NO_BLOCK_START, p, 0, "at the call");
  if (w->what == HAK_FREE_MEMORY || w->what == HAK_BLOCK)
    hak_misuse_abort(HAK_VERDICT_FREE_MEMORY, p, 0, "at the call");
  if (HAK_HARDENED) hak_misuse_abort(HAK_VERDICT_FOREIGN, p, 0, "at the call"); /* another thread was faster */
  hak_foreign_note(HAK_FOREIGN_FREE, p, caller);
}

HAK_INLINE void claim_extent(hak_region *region, void *p) {
  hak_verdict verdict = hak_extent_claim(region, p);
  if (HAK_UNLIKELY(verdict != HAK_VERDICT_OK))
    hak_misuse_abort(verdict, p, verdict == HAK_VERDICT_FREE_MEMORY ? 0 : hak_extent_size(region, p), "at the call");
}

HAK_INLINE void give_claimed(hak_region *region, void *p, bool *purge_due) {
  hak_sampled_note_free(p);
  hak_dense_look(p, hak_extent_size(region, p));
  hak_extent_give(region, p, purge_due);
}

/* Not inline: `give` may be deep in a stack (tests lifecycle.shallow_…). */
HAK_NOINLINE size_t hak_raw_claim_extent(hak_region *region, void *p) {
  claim_extent(region, p);
  return hak_extent_size(region, p);
}

HAK_NOINLINE void hak_raw_give_extent(hak_region *region, void *p, hak_deferred *d) {
  give_claimed(region, p, &d->purge_due);
}

static void free_block(void *p, unsigned class_code, hak_deferred *d) {
  hak_tcache *t = hak_thread_grown();
  if (HAK_LIKELY(t != NULL)) {
    hak_tcache_free(t, p, class_code, d);
  } else {
    hak_forbid_look("free", p, 0);
    hak_arena_free(p, class_code, d);
  }
}

static void give(void *p, const void *caller, hak_deferred *d) {
  hak_where w = hak_where_is(p);
  if (HAK_UNLIKELY(hak_where_in_heap(&w)) && (w.kind != HAK_KIND_HUGE || w.what == HAK_BLOCK)) {
    hak_heap_free(&w, p, d);
  } else if (HAK_UNLIKELY(w.region == NULL)) {
    free_outside_regions(&w, p, caller, d);
  } else if (HAK_LIKELY(w.kind == HAK_KIND_SLAB) && HAK_LIKELY(!w.sampled)) {
    free_block(p, w.class_code, d);
  } else if (w.kind == HAK_KIND_SLAB) {
    hak_forbid_look("free", p, 0);
    hak_sampled_end(p, w.class_code, false, d);
  } else if (w.kind == HAK_KIND_EXTENT && w.what == HAK_BLOCK) {
    hak_raw_claim_extent(w.region, p);
    hak_raw_give_extent(w.region, p, d);
  } else {
    hak_misuse_abort(w.what == HAK_INSIDE ? HAK_VERDICT_NO_BLOCK_START : HAK_VERDICT_FREE_MEMORY, p,
                     w.what == HAK_INSIDE ? w.size : 0, "at the call");
  }
}

/* The fast path looks in the main region alone; a block of a further one goes into the thread's cache as well. */
HAK_INLINE bool free_in_further(void *p) {
  const hak_region *r = hak_region_further(p);
  return HAK_UNLIKELY(r != NULL) && hak_tcache_push_code(p, hak_region_code(r, p));
}

HAK_INLINE bool keep_whole(void *p, size_t code) {
  return hak_code_is_class((unsigned)code) && hak_class_size((unsigned)code - 1) > HAK_SHARED_MAX &&
         HAK_LIKELY(hak_tcache_is_plain(hak_tls.cache)) &&
         hak_arena_keep(hak_region_span(&hak_main_region, p), p, (unsigned)code - 1);
}

static HAK_NOINLINE void purge_now(void) {
  hak_deferred d = {.purge_due = true};
  hak_slow_exit(&d);
}

/* An extent in the main region, where nothing comes due by it: no way out of a slow path is taken. */
static HAK_NOINLINE void give_extent(void *p) {
  bool purge_due = false;
  claim_extent(&hak_main_region, p);
  give_claimed(&hak_main_region, p, &purge_due);
  if (HAK_UNLIKELY(purge_due)) purge_now();
}

/* Behind hak_heap_push. */
static bool give_beside(void *p, hak_heap_cache *met) {
  return (met != NULL && hak_heap_push_met(met, p)) || hak_heap_free_ready(p);
}

HAK_INLINE bool give_in_heap(void *p) {
  hak_heap_cache *met;
  return !hak_profile_has_samples() && (hak_heap_push(p, &met) || give_beside(p, met));
}

static HAK_NOINLINE void free_slowly(void *p) {
  if (p == NULL) return;
  hak_deferred d = {0};
  give(p, HAK_CALLER(), &d);
  hak_slow_exit(&d);
}

static HAK_NOINLINE void free_in_heap_long(void *p, hak_heap_cache *met) {
  if (!give_beside(p, met)) free_slowly(p);
}

static HAK_NOINLINE void free_in_heap(void *p) {
  hak_heap_cache *met;
  if (hak_profile_has_samples())
    free_slowly(p);
  else if (HAK_UNLIKELY(!hak_heap_push(p, &met)))
    free_in_heap_long(p, met);
}

static HAK_NOINLINE void free_beyond(void *p) {
  if (!free_in_further(p)) free_slowly(p);
}

static HAK_NOINLINE void free_of_class(void *p, size_t code) {
  if (!keep_whole(p, code)) free_slowly(p);
}

HAK_NOINLINE void hak_free_slow(void *p, size_t code) {
  if (code == HAK_CODE_SAMPLED)
    free_in_heap(p);
  else if (code == HAK_CODE_NONE)
    free_beyond(p);
  else if (code == HAK_CODE_EXTENT)
    give_extent(p);
  else
    free_of_class(p, code);
}

void hak_give_any(void *p, const void *caller, hak_deferred *d) {
  size_t offset, code = hak_tcache_code(p, &offset);
  if (hak_tcache_push_code(p, code)) return;
  if (code == HAK_CODE_SAMPLED ? give_in_heap(p) : keep_whole(p, code) || free_in_further(p)) return;
  give(p, caller, d);
}

/* Of a slab in the main region the page map says it, as it does to hak_where_is; else 0. */
HAK_INLINE size_t size_in_slab(const void *p) {
  size_t offset, code = hak_tcache_code(p, &offset);
  return HAK_LIKELY(hak_code_is_class((unsigned)code)) ? hak_class_size((unsigned)code - 1) : 0;
}

static HAK_NOINLINE size_t size_of_any(const void *p) {
  hak_where w = hak_where_is(p);
  return hak_where_size(&w, p);
}

size_t hak_block_size(const void *p) {
  size_t size = size_in_slab(p);
  return HAK_LIKELY(size != 0) ? size : size_of_any(p);
}

static HAK_NOINLINE size_t usable_of_none(const void *p, const void *caller) {
  if (p != NULL) hak_foreign_note(HAK_FOREIGN_USABLE_SIZE, p, caller);
  return 0;
}

size_t hak_raw_usable_size(const void *p, const void *caller) {
  size_t size = hak_block_size(p);
  return HAK_LIKELY(size != 0) ? size : usable_of_none(p, caller);
}
