/* Memory budgets: HAKMEM_LIMIT, beyond which requests fail, and HAKMEM_RSS_TARGET, towards which free memory is given
 * back; without the option, towards the cgroup's limit. Owns the figures of both; reclaim/ asks for the
 * level and acts.
 *
 * `used`: what was taken from the system and not given back: held and dirty spans, huge blocks and the freed mappings
 * that are kept for them, metadata blocks. The limit counts the tables of the spans too. Metadata blocks and tables are
 * never refused, so that free and the end of a thread work at the limit. No lock of its own: words read relaxed, and
 * the pool lock. */
#ifndef HAK_POOL_BUDGET_H
#define HAK_POOL_BUDGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"
#include "os/memory_limits.h"
#include "os/os.h"
#include "pool/counters.h"

/* How far things have gone; each level does what those below it do. */
enum {
  HAK_BUDGET_FAR,     /* below 90 % of the target, or there is none */
  HAK_BUDGET_NEAR,     /* the decay is short; no freed mapping is kept, and caches stack nothing */
  HAK_BUDGET_OVER,     /* depots are emptied, thread caches keep no stacks; what the target leaves no room for goes */
  HAK_BUDGET_PURGE,    /* and that did not suffice: all free memory goes back, and as it comes */
  HAK_BUDGET_CALLBACK, /* nor did this: the program's callback is called, once a look */
  HAK_BUDGET_LEVELS
};

/* For statistics. */
typedef struct hak_budget_figures {
  size_t target;   /* bytes, a percentage or the cgroup's limit resolved; 0: none, or not yet looked for */
  size_t limit;    /* bytes; 0: none */
  size_t used;     /* bytes the limit is compared with, now; without requests that the system may still refuse */
  size_t used_peak; /* the most that was used at once */
  size_t resident; /* of the process, at the last look; 0: never looked */
  unsigned level;
  unsigned pressure;                   /* hundredths of a percent, at the last look */
  uint64_t entered[HAK_BUDGET_LEVELS]; /* times each level was reached from another one */
  uint64_t refused;                    /* requests that failed while there was a limit */
  uint64_t callbacks;                  /* calls of the program's callback */
} hak_budget_figures;

void hak_budget_state(hak_budget_figures *out);

/* Bytes of spans and mappings in use, any thread; without dirty spans, with what requests have been given and not
 * touched. */
HAK_INLINE size_t hak_budget_in_use(void) {
  return (hak_load_relaxed(&hak_span_pool.live_spans) << HAK_SPAN_SHIFT) + hak_load_relaxed(&hak_budget_held_mapped);
}

/* Of the cgroups' limits, the target and HAKMEM_LIMIT the one that has the least left. Dirty spans do not count as
 * used: they are purged before a limit is met. Reads files. */
hak_os_bound hak_budget_nearest(void);

/* --- the limit --- */

HAK_INLINE bool hak_budget_limited(void) { return HAK_UNLIKELY(hak_load_relaxed(&hak_config.limit) != 0); }
/* Whether so many spans more may be used. Caller holds the pool lock. */
bool hak_budget_admits_locked(size_t spans);
/* The same for memory outside of regions, which is counted as used at once when it is admitted. Takes the pool lock.
 * Once the system has answered, hak_budget_map_done follows. */
bool hak_budget_map(size_t bytes);
void hak_budget_map_done(size_t bytes, bool mapped);
/* A request has failed for good. */
void hak_budget_note_failure(void);

/* --- the target --- */

/* Always kept for reuse, with a target and without: giving single spans back as they come would cost a system call
 * each. */
#define HAK_BUDGET_DIRTY_LEAST HAK_HUGE_PAGE_SPANS

/* Relaxed. What may be filled before the process is at its target: what was filled at the last look, and what was left
 * to the target then. SIZE_MAX: no target, or far below that of a cgroup. */
extern size_t hak_budget_ceiling;
/* Relaxed. From here on it is time for another measurement: the ceiling, or somewhat above what was filled at the last
 * one. Far below a cgroup's target: for a look at that. SIZE_MAX: never. */
extern size_t hak_budget_watch;
/* Relaxed. Measure again at this many live spans: pages purged in a slab come back when its span is reused, without
 * raising `filled`. SIZE_MAX: nobody measures. */
extern size_t hak_budget_live_watch;
/* Relaxed. Dirty bytes tolerated above the target once purging proved futile: purged memory was taken again at once. 0
 * until then. */
extern size_t hak_budget_slack;
extern unsigned hak_budget_level_now;

HAK_INLINE unsigned hak_budget_level(void) { return hak_load_relaxed(&hak_budget_level_now); }
/* A target is measured against. One that is far is as none: pages and clocks are dealt with as ever. */
HAK_INLINE bool hak_budget_targeted(void) { return HAK_UNLIKELY(hak_load_relaxed(&hak_budget_ceiling) != SIZE_MAX); }
/* And it is a part of what the cgroup may use. To that a huge page counts whole until the system splits it: not when a
 * piece is unmapped, but at once when it is advised that the piece is free. */
HAK_INLINE bool hak_budget_of_group(void) {
  return hak_budget_targeted() && hak_load_relaxed(&hak_config.rss_target) < 0;
}

/* What depots may hold instead of `most` bytes: at most a 64th of the limit and of a target, since it counts. */
#define HAK_BUDGET_CACHED_PART 64
HAK_INLINE size_t hak_budget_cached_most(size_t most) {
  size_t limit = (size_t)hak_load_relaxed(&hak_config.limit);
  if (HAK_UNLIKELY(limit != 0)) most = hak_min_size(most, limit / HAK_BUDGET_CACHED_PART);
  return hak_min_size(most, hak_load_relaxed(&hak_budget_ceiling) / HAK_BUDGET_CACHED_PART);
}

/* Spans without those that a purge has in hand. */
HAK_INLINE size_t hak_budget_unclaimed(size_t live_spans) {
  size_t claimed = hak_load_relaxed(&hak_span_pool.claimed_spans);
  return live_spans > claimed ? live_spans - claimed : 0;
}

/* Used bytes that may be resident: without the pages that are given back inside slabs. What is being given back at the
 * moment counts as gone: it is when it is asked about next. */
HAK_INLINE size_t hak_budget_filled(size_t spans) {
  size_t bytes = (hak_budget_unclaimed(spans) << HAK_SPAN_SHIFT) + hak_load_relaxed(&hak_budget_mapped);
  size_t pages =
      hak_load_relaxed(&hak_span_pool.purged_slab_pages) + hak_load_relaxed(&hak_span_pool.purging_slab_pages);
  size_t purged = pages * hak_os_page_size();
  return bytes > purged ? bytes - purged : 0;
}

HAK_INLINE size_t hak_budget_filled_now(void) {
  return hak_budget_filled(hak_load_relaxed(&hak_span_pool.dirty_spans) + hak_load_relaxed(&hak_span_pool.live_spans));
}

HAK_INLINE bool hak_budget_purges_all(void) {
  return hak_budget_level() >= HAK_BUDGET_PURGE && hak_load_relaxed(&hak_budget_slack) == 0;
}

HAK_INLINE bool hak_budget_measurement_due(void) {
  /* At most that is filled */
  if (hak_budget_with_spans(&hak_budget_mapped) <= hak_load_relaxed(&hak_budget_watch) &&
      hak_load_relaxed(&hak_span_pool.live_spans) <= hak_load_relaxed(&hak_budget_live_watch))
    return false;
  return hak_budget_unclaimed(hak_load_relaxed(&hak_span_pool.live_spans)) > hak_load_relaxed(&hak_budget_live_watch) ||
         hak_budget_filled_now() > hak_load_relaxed(&hak_budget_watch);
}
/* Whether dirty memory may have to go because of the target. */
HAK_INLINE bool hak_budget_over_now(void) {
  if (HAK_LIKELY(hak_load_relaxed(&hak_budget_watch) == SIZE_MAX)) return false;
  return hak_load_relaxed(&hak_span_pool.dirty_spans) > HAK_BUDGET_DIRTY_LEAST &&
         (hak_budget_purges_all() || hak_budget_measurement_due());
}
/* Whether a purge is due; so many of the live spans count as dirty. */
HAK_INLINE bool hak_pool_is_over_mark(size_t dirty, size_t live, size_t sparse) {
  const hak_pool *pool = &hak_span_pool;
  bool over = dirty + sparse > hak_load_relaxed(&pool->mark_spans) &&
              (!hak_load_relaxed(&pool->mark_at_least_live) || dirty + 2 * sparse > live);
  return over || hak_budget_over_now();
}
HAK_INLINE bool hak_pool_is_over_mark_now(void) {
  const hak_pool *pool = &hak_span_pool;
  return hak_load_relaxed(&pool->mark_spans) != 0 &&
         hak_pool_is_over_mark(hak_load_relaxed(&pool->dirty_spans), hak_load_relaxed(&pool->live_spans),
                               hak_load_relaxed(&pool->sparse_spans));
}
/* Measures, where it is time to, and returns how many spans may stay dirty now; SIZE_MAX where there is no target. */
size_t hak_budget_room(void);
/* So many bytes have been given back for the target, in whatever way. */
void hak_budget_note_purged(size_t bytes);
/* The system takes nothing back: it is not asked again before the next look. */
void hak_budget_pause(void);

/* Above the target, whatever is dirty: then pages inside slabs have to go. */
extern size_t hak_budget_unpurgeable; /* relaxed: overshoot in bytes that slab purging already failed to reduce */
HAK_INLINE bool hak_budget_slab_purge_due(void) {
  size_t watch = hak_load_relaxed(&hak_budget_watch);
  if (HAK_LIKELY(watch == SIZE_MAX)) return false;
  size_t filled = hak_budget_filled_now();
  return filled > watch && filled - watch > hak_load_relaxed(&hak_budget_unpurgeable);
}
/* Measures, and returns how many bytes of them. To be told when that has been done: where it was too little, it is
 * asked for again when more is. */
size_t hak_budget_slab_bytes_wanted(void);
void hak_budget_slab_bytes_purged(void);

/* What was filled since the last look leaves nothing below the target. */
HAK_INLINE bool hak_budget_full_now(void) {
  size_t ceiling = hak_load_relaxed(&hak_budget_ceiling);
  return HAK_UNLIKELY(ceiling != SIZE_MAX) && hak_budget_filled_now() > ceiling;
}
/* That, or at level 1 or above, which only a target that is measured has. */
HAK_INLINE bool hak_budget_near_now(void) {
  return hak_budget_targeted() && (hak_budget_level() >= HAK_BUDGET_NEAR || hak_budget_full_now());
}

/* Compares the process's resident memory with the target, where there is one, and returns the level. Once a look. */
unsigned hak_budget_look(uint64_t now_ms);

/* --- the callback --- */

typedef void (*hak_pressure_callback)(size_t resident, size_t target, void *context);
void hak_budget_set_callback(hak_pressure_callback callback, void *context);

extern uint32_t hak_budget_callback_due;
HAK_INLINE bool hak_budget_must_call_back(void) {
  return HAK_UNLIKELY(hak_load_relaxed(&hak_budget_callback_due) != 0);
}
/* Calls it, unless some thread is in it. The caller holds no lock, and is where the program may allocate and free. */
HAK_COLD void hak_budget_call_back(void);

/* In the child of a fork: a call in another thread has ended with that thread. Locks nothing: the parent may have been
 * in a lock when it forked alone. */
void hak_budget_fork_child(void);

#endif
