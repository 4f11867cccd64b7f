/* What a thread does for memory at the end of its slow path: what its cache has not used goes back, what is due by the
 * decay time, a target or a limit is purged, by whoever comes by. And what is done where memory is out. */
#include "entry/reclaim_turn.h"

#include "entry/slow_exit.h"
#include "heap/heap.h"
#include "large/huge.h"
#include "large/kept.h"
#include "large/quarantine.h"
#include "os/os.h"
#include "reclaim/decay.h"
#include "reclaim/keep.h"
#include "tcache/counted.h"

static void decay_cache(uint64_t now_ms, hak_deferred *d) {
  hak_tcache *t = hak_tls.cache;
  if (t == NULL || now_ms - t->decayed_ms < hak_decay_cache_ms()) return;
  t->decayed_ms = now_ms;
  hak_tcache_decay(t, hak_budget_level() >= HAK_BUDGET_OVER || hak_config_lean(), d);
  hak_heap_decay(d);
}

static void flush_heaps(hak_deferred *d) {
  if (hak_heap_indices() == 0) return;
  hak_heap_flush(NULL, d);
  hak_heap_flush_others(NULL, d);
  hak_heap_end_deleted(true, d);
  hak_heap_trim_all(d);
}

/* One thread at a time: others would stand in line to do it again. In a fork's child that one may not be there: it is
 * waited for so long. */
#define FLUSH_MS 1000
static void flush_heaps_once(uint64_t now_ms, hak_deferred *d) {
  static uint64_t since; /* relaxed; 0: nobody does */
  uint64_t before = hak_load_relaxed(&since);
  bool is_late = (int64_t)(now_ms - before) > FLUSH_MS; /* this thread may have looked at the clock before that one */
  if ((before != 0 && !is_late) || !hak_cas_acquire(&since, &before, now_ms)) return;
  flush_heaps(d);
  hak_store_relaxed(&since, 0);
}

static void keep_to_target(uint64_t now_ms, hak_deferred *d) {
  if (HAK_LIKELY(hak_load_relaxed(&hak_budget_watch) == SIZE_MAX)) return;
  if (hak_budget_over_now()) hak_decay_excess(d);
  if (!hak_budget_slab_purge_due()) return;
  /* Also where a target is far, each time a program has doubled, before it is measured whether it still is: threads'
   * caches of heaps are not to be what it grows by. */
  flush_heaps_once(now_ms, d);
  hak_decay_for_target(d);
}

/* Once a decay time, behind a look: what sleeping threads' caches have of heaps, and what empty heaps keep. */
static void decay_heaps(uint64_t now_ms, hak_deferred *d) {
  static uint64_t last_ms; /* relaxed */
  if (now_ms - hak_load_relaxed(&last_ms) < hak_decay_cache_ms() || !hak_heap_some()) return;
  hak_store_relaxed(&last_ms, now_ms);
  hak_heap_decay_others(d);
  hak_heap_trim_some(d);
}

/* When the thread comes by a slow path again, at the latest: soon, where a step is left to do; and about as often as
 * looks are due, where it goes on as it did. */
static HAK_NOINLINE void set_countdown(uint64_t now_ms, const hak_deferred *d) {
  hak_tcache *t = hak_tls.cache;
  if (HAK_LIKELY(d->from_cache == 0) || t == NULL || hak_counting() || hak_decay_waits())
    hak_count_shorten(hak_decay_step_due() ? HAK_COUNT_STEP_BYTES : HAK_COUNT_OFF_BYTES);
  else
    hak_count_lengthen(d->from_cache, &t->last_count, now_ms, hak_decay_cache_ms() / HAK_KEEP_LOOKS);
}

void hak_flush_caches(hak_deferred *d) {
  flush_heaps(d);
  if (hak_tls.cache != NULL) hak_tcache_flush(hak_tls.cache, d);
  hak_tcache_reach(UINT64_MAX, true, d);
}

/* What others are purging counts until it is gone, and a request would be refused while memory is free. A purge has
 * 16 MiB in hand, for a millisecond, or until its thread has a processor again. */
#define PURGES_MS 500
static void wait_for_purges(void) {
  for (unsigned ms = 0; ms < PURGES_MS && hak_load_relaxed(&hak_span_pool.claimed_spans) > 0; ms++) hak_os_sleep_ms(1);
}

/* Memory was out: for a request that is about to fail. */
static HAK_COLD void reclaim(hak_deferred *d) {
  d->memory = HAK_MEMORY_RECLAIMED;
  bool left;
  hak_huge_free_lost(SIZE_MAX, &d->purge_due);
  hak_kept_release(UINT64_MAX, SIZE_MAX, &left);
  if (HAK_HARD(GUARDS)) hak_mapping_quarantine_release();
  hak_flush_caches(d);
  hak_arena_shrink_all(d);
  hak_report_bad(d);
  hak_decay_excess(d);
  hak_decay_for_limit();
  if (!hak_budget_limited()) return;
  hak_decay_all(0, d); /* what is free but does not fit counts against the limit */
  wait_for_purges();
}

static void purge(hak_deferred *d) { d->memory == HAK_MEMORY_OUT ? reclaim(d) : hak_decay_excess(d); }

#define LOST_AT_ONCE 64 /* mappings in one turn of the clock, a call of the system each: below a millisecond */

void hak_reclaim_turn(uint64_t now_ms, bool moved, hak_deferred *d) {
  bool looked = false;
  if (moved) {
    decay_cache(now_ms, d);
    looked = hak_decay_tick(now_ms, d);
    if (looked) decay_heaps(now_ms, d);
    hak_huge_free_lost(LOST_AT_ONCE, &d->purge_due);
  } else if (d->from_cache == 0) {
    hak_decay_note_takes(now_ms);
  }
  if (HAK_UNLIKELY(hak_heap_some_ended())) hak_heap_end_deleted(false, d);
  /* Depots and kept mappings do not count towards the mark: the helper purges them. */
  if (hak_decay_idle_bytes() != 0) hak_decay_wake_helper();
  keep_to_target(now_ms, d);
  if (HAK_UNLIKELY(d->purge_due)) purge(d);
  if (hak_decay_step_due() && !looked) hak_decay_step(now_ms, false);
  set_countdown(now_ms, d);
}
