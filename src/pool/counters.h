/* What the process holds of the system: spans, by the pool, and what is mapped beside them; and the lock of the pool,
 * under which spans change hands. The other files of this box are built on it. */
#ifndef HAK_POOL_COUNTERS_H
#define HAK_POOL_COUNTERS_H

#include "os/lock.h"
#include "region/region.h"

/* A step of a purge: 16 MiB, half a millisecond or one. A call purges no more, so that a claimed range is soon back in
 * the pool, nor does a slow path. */
#define HAK_PURGE_STEP_SPANS (16 * HAK_MIB / HAK_SPAN_SIZE)
#define HAK_PURGE_STEP_BYTES (HAK_PURGE_STEP_SPANS << HAK_SPAN_SHIFT)

typedef struct hak_pool {
  hak_lock lock;
  size_t live_spans;  /* held */
  size_t dirty_spans; /* free and dirty */
  size_t claimed_spans; /* held by a purge: untagged */
  /* Taken clean for small blocks while dirty ones were left to large blocks, and not made up for by a purge */
  size_t passed_over;
  size_t purged_slab_pages; /* relaxed, any thread: purged inside slabs that are held … */
  size_t purging_slab_pages; /* … and those that are about to be */
  size_t sparse_spans; /* relaxed, any thread: of arenas' slabs on the list of the emptiest */
  size_t huge_from_spans; /* huge pages are used where more than that is held; SIZE_MAX: never */
  size_t peak_spans; /* most that was held at once */
  size_t recent_peak; /* the same, since reclaim/ looked last; read by any thread */
  /* A purge is due when more than this is dirty; with mark_at_least_live, when more than live_spans is, too. Sparse
   * slabs count as dirty. Relaxed; written by reclaim/. */
  size_t mark_spans;
  bool mark_at_least_live;
  bool frees_much; /* relaxed; written by reclaim/: caches were flushed, and keep nothing spare for a while */
  /* For the refault feedback of reclaim/: purged and not taken again since; bytes taken again of those, in all.
   * Relaxed. */
  size_t purged_spans, refault_bytes;
  /* With so many held, nearly all that is accessible, caches are emptied before more becomes accessible; SIZE_MAX: not
   * again before more has. Relaxed. */
  size_t full_spans;
  uint32_t look; /* relaxed; of decay, which returned spans are stamped with */
} hak_pool;
extern hak_pool hak_span_pool;

/* Caches are to keep nothing spare. */
HAK_INLINE bool hak_pool_frees_much(void) { return HAK_UNLIKELY(hak_load_relaxed(&hak_span_pool.frees_much)); }

HAK_INLINE uint32_t hak_pool_look(void) { return hak_load_relaxed(&hak_span_pool.look); }
HAK_INLINE void hak_pool_set_look(uint32_t look) { hak_store_relaxed(&hak_span_pool.look, look); }

/* Of a range: the tag of its first span, its page map code, and that of the others. */
typedef struct hak_pool_tags {
  uint32_t head;
  unsigned head_code, body_code;
} hak_pool_tags;

/* The metadata of a region lies inside the region. */
HAK_INLINE hak_region *hak_pool_region_of(const hak_span *span) { return hak_region_around(span); }

/* More is held, under the lock. */
HAK_INLINE void hak_pool_note_live(void) {
  size_t live = hak_span_pool.live_spans;
  hak_assert_held(&hak_span_pool.lock);
  if (HAK_UNLIKELY(live > hak_span_pool.peak_spans)) hak_span_pool.peak_spans = live;
  if (HAK_UNLIKELY(live > hak_span_pool.recent_peak)) hak_store_relaxed(&hak_span_pool.recent_peak, live);
}

/* A turn: one thread at a time, whose mark the word is; or NULL. For others the work stays due. */
HAK_INLINE bool hak_turn_take(const void **turn) {
  const void *nobody = NULL;
  return hak_cas_acquire(turn, &nobody, hak_thread_mark());
}
HAK_INLINE void hak_turn_end(const void **turn) { hak_store_release(turn, NULL); }

/* Who hears through userfaultfd of pages that go would wait for itself when it gives them back. So threads that take
 * small blocks alone leave the pages of large ones to those that take large ones, or ask for a trim, while there are
 * such. */
extern HAK_HIDDEN HAK_TLS bool hak_takes_large;
extern bool hak_large_left_to_others; /* relaxed; written by reclaim/ */
HAK_INLINE bool hak_spares_large(void) { return !hak_takes_large && hak_load_relaxed(&hak_large_left_to_others); }

/* --- outside of regions --- */

extern size_t hak_budget_mapped; /* relaxed: used bytes outside of regions */
/* Counts memory outside of regions that is not asked about, and takes it off again. */
void hak_budget_count_mapped(size_t bytes);
void hak_budget_count_held(size_t bytes); /* what was counted as used already, and has come now */
void hak_budget_count_unmapped(size_t bytes);

/* What is held now, spans and mappings, may be the most so far. After spans were taken, under the pool lock, or a
 * mapping came. */
extern size_t hak_budget_held_mapped; /* relaxed: of hak_budget_mapped, what the system has given */
extern size_t hak_budget_held_peak;   /* relaxed: the most that hak_budget_held_now was */
void hak_budget_raise_peak(size_t held);
HAK_INLINE size_t hak_budget_with_spans(const size_t *mapped) {
  size_t spans = hak_load_relaxed(&hak_span_pool.live_spans) + hak_load_relaxed(&hak_span_pool.dirty_spans);
  return (spans << HAK_SPAN_SHIFT) + hak_load_relaxed(mapped);
}
HAK_INLINE size_t hak_budget_held_now(void) { return hak_budget_with_spans(&hak_budget_held_mapped); }
HAK_INLINE void hak_budget_note_peak(void) {
  size_t held = hak_budget_held_now();
  if (HAK_UNLIKELY(held > hak_load_relaxed(&hak_budget_held_peak))) hak_budget_raise_peak(held);
}
/* In the child of a fork, whose peak begins here. */
void hak_budget_forget_peak(void);
extern size_t hak_budget_used_peak; /* relaxed: bytes, tables included, which only grow */
/* Bytes of the tables of the spans that are accessible. */
size_t hak_budget_table_bytes(void);

#endif
