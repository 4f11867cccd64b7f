#include "reclaim/decay.h"

#include "large/guard_pages.h"
#include "large/huge.h"
#include "large/kept.h"
#include "large/quarantine.h"
#include "pool/meta.h"
#include "reclaim/keep.h"

static hak_keep rule = {.mib = HAK_MIB / HAK_SPAN_SIZE};
static const void *looker; /* turn of the thread that looks */
static bool lean_mode;

static bool limited; /* relaxed: what was seen at the start, at a trim, or when the system refused last */
static bool commit_asked;

/* What threads that spare large blocks' pages left to others, which take it up when they come by: a goal, and what is
 * kept. After a decay time without one of those, but not before LARGE_WAITS_MS, nobody spares them: what is free goes
 * back before two decay times are over, or soon after LARGE_WAITS_MS. A thread whose faults a monitor resolves takes no
 * slow path meanwhile, and is not at rest (042). Relaxed. */
#define LARGE_WAITS_MS 1600
static size_t left_goal = SIZE_MAX;
static bool has_left;
static uint64_t others_ms; /* when one of them came by last */

uint32_t hak_decay_sleeper;
size_t hak_decay_goal = SIZE_MAX;
size_t hak_decay_worth_spans = HAK_BUDGET_DIRTY_LEAST;
bool hak_decay_kept_due;

static size_t dirty_now(void) { return hak_load_relaxed(&hak_span_pool.dirty_spans); }
static size_t live_now(void) { return hak_load_relaxed(&hak_span_pool.live_spans); }
static bool purges_lazily(void) {
  return lean_mode && hak_config.mem_lean_decommit == HAK_LEAN_FREE && !hak_budget_targeted();
}

static size_t reserved_now(void) { return hak_keep_reserved(&rule, live_now()); }

/* Sequentially consistent, as the store of hakmem_option_set: set_mark tells why. */
static uint64_t base_ms(void) { return lean_mode ? HAK_DECAY_NEAR_MS : (uint64_t)hak_load_seq(&hak_config.decay_ms); }

static bool helper_sleeps(void) { return hak_load_seq(&hak_decay_sleeper) != 0; }

/* Spans: a step in which what a program that frees much has cached is flushed. */
#define FLUSH_SPANS 64

/* The program has taken no span and no mapping for TAKES_NONE_MS: it may be a server that frees what it had, and then
 * waits. What caches hold, and what is dirty, would stay as long as it waits. */
#define TAKES_NONE_MS 16
static bool takes_none;               /* sequentially consistent: set_mark tells why */
static uint64_t taken_seen, taken_ms; /* relaxed: spans and mappings taken in all, and when there were more last */

/* Retries if what it goes by changed meanwhile: a mark that stays high would let the helper sleep, one that stays low
 * would have each free purge. */
static void set_mark(void) {
  uint64_t ms;
  bool sleeps, none;
  do {
    ms = base_ms();
    sleeps = helper_sleeps();
    none = hak_load_seq(&takes_none);
    size_t most = hak_keep_mark(&rule, none, hak_budget_in_use() >> HAK_SPAN_SHIFT);
    size_t lean = (size_t)hak_load_relaxed(&hak_config.mem_lean_target_mb) * (HAK_MIB / HAK_SPAN_SIZE),
           mark = lean_mode ? lean
                  : ms == 0 ? 0
                            : most;
    hak_store_seq(&hak_span_pool.mark_at_least_live, !lean_mode && !sleeps && ms != 0);
    hak_store_seq(&hak_span_pool.mark_spans, hak_max_size(sleeps ? 0 : mark, reserved_now()));
  } while (helper_sleeps() != sleeps || base_ms() != ms || hak_load_seq(&takes_none) != none);
}

void hak_decay_reserve(size_t spans) {
  hak_keep_reserve(&rule, spans, live_now());
  set_mark();
}

void hak_decay_start(void) {
  lean_mode = hak_config_lean();
  hak_store_relaxed(&limited, hak_os_is_limited(HAK_OS_ADDRESS_SPACE) || hak_os_is_limited(HAK_OS_DATA));
  set_mark();
}

static bool has_target(void) {
  int64_t target = hak_load_relaxed(&hak_config.rss_target);
  return (target != 0 && target != HAK_SIZE_AUTO) || hak_budget_targeted();
}

uint64_t hak_decay_ms(void) {
  if (hak_budget_level() >= HAK_BUDGET_NEAR) return HAK_DECAY_NEAR_MS;
  return has_target() ? hak_min_size(base_ms(), HAK_DECAY_NEAR_MS * HAK_KEEP_LOOKS) : base_ms();
}

void hak_decay_wake_helper(void) {
  if (hak_load_seq(&hak_decay_sleeper) != 0 && hak_exchange_acquire(&hak_decay_sleeper, 0) != 0) {
    set_mark();
    hak_os_futex_wake(&hak_decay_sleeper);
  }
}

bool hak_decay_waits(void) {
  return hak_decay_step_due() || dirty_now() > hak_max_size(hak_decay_worth_spans, reserved_now()) ||
         hak_kept_bytes() != 0;
}

size_t hak_decay_idle_bytes(void) {
  return hak_load_relaxed(&hak_depot_bytes) + hak_kept_bytes();
}

void hak_decay_stay_awake(void) {
  hak_store_seq(&hak_decay_sleeper, 0);
  set_mark();
}

bool hak_decay_has_work(void) {
  set_mark();
  hak_lock_take(&hak_span_pool.lock);
  bool work = hak_span_pool.dirty_spans > reserved_now();
  hak_lock_drop(&hak_span_pool.lock);
  hak_lock_take(&hak_huge_lock);
  work |= hak_kept_bytes() > 0;
  hak_lock_drop(&hak_huge_lock);
  return work;
}

/* Of spans alone: that pages inside slabs were wanted again is no reason to leave spans. Near a target nothing stays
 * beyond the curve. While slow paths come by, calls for the floor are not worth it. */
static hak_keep_now seen_now(bool idle) {
  const hak_pool *pool = &hak_span_pool;
  uint64_t slab_bytes = hak_load_relaxed(&hak_purge_stats.purged_slab_pages) * hak_os_page_size();
  bool by_age_alone = lean_mode || base_ms() == 0;
  return (hak_keep_now){
      .live = live_now(),
      .dirty = dirty_now(),
      .peak = hak_load_relaxed(&pool->recent_peak),
      .in_use = hak_budget_in_use() >> HAK_SPAN_SHIFT,
      .purged = (hak_load_relaxed(&hak_purge_stats.bytes) - slab_bytes) >> HAK_SPAN_SHIFT,
      .refaults = hak_load_relaxed(&pool->refault_bytes) >> HAK_SPAN_SHIFT,
      .room = hak_budget_level() >= HAK_BUDGET_NEAR ? 0 : SIZE_MAX,
      .floor = by_age_alone || idle || hak_load_relaxed(&hak_config.background) != 0 ? 0 : hak_decay_worth_spans,
      .by_age_alone = by_age_alone,
  };
}

/* What was purged before the last look is no refault when it is taken. Under the lock, as others take off what they
 * have read. */
static void next_interval(const hak_keep_look *at) {
  hak_pool *pool = &hak_span_pool;
  uint64_t purged = seen_now(at->idle).purged;
  hak_lock_take(&pool->lock);
  size_t young = hak_keep_next_interval(&rule, at, pool->recent_peak, purged);
  hak_store_relaxed(&pool->purged_spans, hak_min_size(hak_load_relaxed(&pool->purged_spans), young));
  hak_store_relaxed(&pool->recent_peak, pool->live_spans);
  hak_lock_drop(&pool->lock);
}

static bool is_limited(size_t *address_space) {
  *address_space = hak_os_limit(HAK_OS_ADDRESS_SPACE);
  bool now = *address_space != SIZE_MAX || hak_os_is_limited(HAK_OS_DATA) || hak_os_commit_is_limited();
  hak_store_relaxed(&limited, now);
  hak_store_relaxed(&hak_kept_no_mappings, now);
  return now;
}

size_t hak_decay_for_limit(void) {
  size_t address_space, reserved = 0;
  if (!is_limited(&address_space)) return 0;
  if (HAK_HARD(GUARDS)) {
    hak_mapping_quarantine_release(); /* the addresses of freed blocks count */
    reserved = hak_guard_pages_give_back_reserved();
  }
  return reserved + hak_purge_withdraw_all(address_space);
}

/* Sandboxes may forbid to ask for limits later; files are read all the same. Not before there is something to withdraw:
 * what was purged, so that a program that gives nothing back makes no calls. */
static void withdraw_idle(void) {
  if (!commit_asked && hak_load_relaxed(&hak_purge_stats.purges) != 0) {
    commit_asked = true;
    if (hak_os_commit_is_limited()) hak_store_relaxed(&limited, true);
  }
  if (HAK_UNLIKELY(hak_load_relaxed(&limited)) && !hak_spares_large()) hak_purge_withdraw_idle(HAK_KEEP_LOOKS);
}

/* Twice a decay time: free pages of slabs that stayed as they were since the time before. */
static void decay_slabs(unsigned round, hak_deferred *d) {
  for (uint32_t i = hak_arena_count(); i-- > 0;) hak_purge_slabs(hak_arena_at(i), round, false, SIZE_MAX, d);
}

/* Once a decay time: what is cached in depots and nobody needed. */
static void decay_arenas(bool idle, hak_deferred *d) {
  bool over = hak_budget_level() >= HAK_BUDGET_OVER;
  for (uint32_t i = hak_arena_count(); i-- > 0;) hak_arena_shrink(hak_arena_at(i), over || idle, d);
  hak_kept_turn();
  hak_purge_settle_chunks(HAK_KEEP_LOOKS);
  hak_meta_purge(over || idle);
  withdraw_idle();
}

static void leave_to_others(size_t goal) {
  hak_store_relaxed(&left_goal, hak_min_size(goal, hak_load_relaxed(&left_goal)));
  hak_store_relaxed(&has_left, true);
}

static void purge_to_goal(size_t most_spans) {
  HAK_ASSERT(hak_load_relaxed(&looker) == hak_thread_mark());
  size_t goal = hak_load_relaxed(&hak_decay_goal), dirty = dirty_now();
  if (goal == SIZE_MAX) return;
  size_t purged =
      dirty > goal ? hak_purge_spans(hak_max_size(goal, dirty - hak_min_size(dirty, most_spans)), purges_lazily()) : 0;
  hak_keep_note_purged(&rule, purged);
  dirty = dirty_now();
  if (dirty > goal && purged > 0) return;
  if (dirty > goal && hak_spares_large()) leave_to_others(goal);
  /* What the system refuses is not looked for again at each free. The next look sets the mark anew. */
  if (dirty > goal && hak_load_relaxed(&rule.mark_purges))
    hak_store_relaxed(&hak_span_pool.mark_spans, dirty + HAK_PURGE_STEP_SPANS);
  hak_store_relaxed(&rule.mark_purges, false);
  hak_store_relaxed(&hak_decay_goal, SIZE_MAX);
}

static void release_kept(uint64_t now_ms, size_t most_bytes) {
  HAK_ASSERT(hak_load_relaxed(&looker) == hak_thread_mark());
  uint64_t ms = hak_budget_level() >= HAK_BUDGET_OVER ? 0 : hak_decay_ms();
  bool left = false;
  if (hak_spares_large()) {
    hak_store_relaxed(&hak_decay_kept_due, false);
    leave_to_others(SIZE_MAX);
    return;
  }
  hak_kept_release(now_ms > ms ? now_ms - ms : 0, most_bytes, &left);
  hak_store_relaxed(&hak_decay_kept_due, left);
}

void hak_decay_step(uint64_t now_ms, bool all) {
  if (!hak_turn_take(&looker)) return;
  size_t most = all || hak_budget_near_now() ? SIZE_MAX : HAK_PURGE_STEP_SPANS;
  if (hak_load_relaxed(&hak_decay_kept_due)) release_kept(now_ms, most == SIZE_MAX ? most : HAK_PURGE_STEP_BYTES);
  purge_to_goal(most);
  hak_turn_end(&looker);
}

/* Where little has come free since the last look, live blocks pin what is sparse, not caches. */
static void look_at_gives(void) {
  static uint64_t given_seen; /* of who looks */
  uint64_t given = hak_load_relaxed(&hak_os_stats.free);
  if (given - given_seen < FLUSH_SPANS) hak_store_relaxed(&hak_span_pool.frees_much, false);
  given_seen = given;
}

static void look(uint64_t now_ms, uint64_t decay_ms, hak_deferred *d) {
  HAK_ASSERT(hak_load_relaxed(&looker) == hak_thread_mark());
  hak_keep_look at = hak_keep_begin(&rule, now_ms, decay_ms);
  hak_pool_set_look(hak_pool_look() + 1);
  look_at_gives();
  /* Nobody has come by for a decay time: nobody needs what depots and caches hold, and it is as old as what is dirty.
   * Of threads that took no slow path for so long some at a look, and all where nobody did. */
  uint64_t idle_ms = hak_decay_cache_ms();
  if (idle_ms <= now_ms) hak_tcache_reach(now_ms - idle_ms, at.idle, d);
  if (at.idle) {
    decay_arenas(true, d);
    hak_keep_all_old(&rule, dirty_now());
  }
  if (hak_budget_look(now_ms) >= HAK_BUDGET_OVER) hak_decay_excess(d);
  next_interval(&at);
  release_kept(now_ms, 0);
  if (hak_load_relaxed(&rule.reserved_to) != 0 && reserved_now() == 0) hak_decay_reserve(0); /* it is all in use */
  hak_keep_now now = seen_now(at.idle);
  size_t keep = hak_keep_at_look(&rule, &at, &now);
  if (dirty_now() > keep) hak_store_relaxed(&hak_decay_goal, hak_min_size(keep, hak_load_relaxed(&hak_decay_goal)));
  purge_to_goal(at.steps * HAK_PURGE_STEP_SPANS);
  now = seen_now(at.idle);
  hak_keep_end(&rule, &at, &now);
  if (at.time_over) set_mark();
  if (at.time_over && !at.idle) decay_arenas(false, d);
  /* What depots and caches have just put back was free as long as they were idle. */
  if (at.idle) decay_slabs(at.slab_round - 1, d);
  if (at.slabs_due) decay_slabs(at.slab_round, d);
}

static void divide_work(uint64_t now_ms) {
  if (hak_takes_large) {
    hak_store_relaxed(&others_ms, now_ms);
    hak_store_relaxed(&hak_large_left_to_others, true);
  } else if (hak_load_relaxed(&hak_large_left_to_others)) {
    uint64_t last = hak_load_relaxed(&others_ms), waits_ms = hak_max_size(base_ms(), LARGE_WAITS_MS);
    hak_store_relaxed(&hak_large_left_to_others, now_ms < last || now_ms - last <= waits_ms);
  }
  if (!hak_load_relaxed(&has_left) || hak_spares_large()) return;
  hak_store_relaxed(&has_left, false);
  hak_store_relaxed(&hak_decay_goal, hak_min_size(hak_load_relaxed(&left_goal), hak_load_relaxed(&hak_decay_goal)));
  hak_store_relaxed(&left_goal, SIZE_MAX);
  hak_store_relaxed(&hak_decay_kept_due, true);
}

/* Not only once the clock has moved: then nobody would know which side of a rest it lies on. */
void hak_decay_note_takes(uint64_t now_ms) {
  uint64_t taken = hak_load_relaxed(&hak_os_stats.alloc) + hak_load_relaxed(&hak_os_stats.huge_alloc);
  if (HAK_LIKELY(taken == hak_load_relaxed(&taken_seen)) && HAK_LIKELY(now_ms >= hak_load_relaxed(&taken_ms))) return;
  hak_store_relaxed(&taken_seen, taken);
  hak_store_relaxed(&taken_ms, now_ms);
}

/* Where the system takes nothing back the mark stays as that has left it. */
static void follow_takes(uint64_t now_ms) {
  hak_decay_note_takes(now_ms);
  bool none = now_ms - hak_load_relaxed(&taken_ms) >= TAKES_NONE_MS;
  if ((!none && HAK_LIKELY(!hak_load_relaxed(&takes_none))) || hak_purge_refused()) return;
  hak_store_seq(&takes_none, none);
  set_mark(); /* each time: it falls with what is held */
}

bool hak_decay_tick(uint64_t now_ms, hak_deferred *d) {
  follow_takes(now_ms);
  divide_work(now_ms);
  if (HAK_LIKELY(!hak_keep_due(&rule, now_ms, hak_decay_ms())) || !hak_turn_take(&looker)) return false;
  uint64_t decay_ms = hak_decay_ms();
  bool due = hak_keep_due(&rule, now_ms, decay_ms);
  if (due) look(now_ms, decay_ms, d);
  hak_turn_end(&looker);
  return due;
}

void hak_decay_fork_child(void) {
  if (looker != hak_thread_mark()) looker = NULL;
  if (helper_sleeps()) hak_decay_stay_awake(); /* it is not there to be woken */
}

static void purge_for_target(void) {
  size_t keep = hak_budget_room();
  if (HAK_LIKELY(dirty_now() <= keep)) return;
  hak_takes_large = true;
  /* A step below it, or half of it, so that the next free does not call again at once. */
  size_t purged = hak_purge_spans(keep - hak_min_size(keep / 2, HAK_PURGE_STEP_SPANS), false);
  if (purged == 0 && hak_purge_refused()) hak_budget_pause();
  hak_budget_note_purged(purged << HAK_SPAN_SHIFT);
}

static void flush_caches(hak_deferred *d) {
  if (hak_tls.cache != NULL) hak_tcache_flush(hak_tls.cache, d);
  for (uint32_t i = hak_arena_count(); i-- > 0;) hak_arena_shrink(hak_arena_at(i), true, d);
}

void hak_decay_make_room(hak_deferred *d) {
  flush_caches(d);
  hak_pool_note_emptied();
}

static size_t sparse_now(void) { return hak_load_relaxed(&hak_span_pool.sparse_spans); }

/* Cached blocks pin slabs, each of the last few that a program frees one. Where it has freed more than may stay, caches
 * are flushed, and keep nothing spare until it frees less. And again when FLUSH_SPANS have come free since, or as many
 * more are dirty or sparse than the flush, or a purge since, left. */
static void free_sparse(size_t most, hak_deferred *d) {
  static size_t left;    /* relaxed */
  static uint64_t given; /* relaxed: spans in all, at the last flush */
  size_t now = dirty_now() + sparse_now();
  uint64_t given_now = hak_load_relaxed(&hak_os_stats.free);
  if (now < hak_load_relaxed(&left)) hak_store_relaxed(&left, now);
  bool some = given_now - hak_load_relaxed(&given) >= FLUSH_SPANS || now >= hak_load_relaxed(&left) + FLUSH_SPANS;
  if (now <= most || !some) return;
  hak_store_relaxed(&hak_span_pool.frees_much, true);
  flush_caches(d);
  hak_store_relaxed(&left, dirty_now() + sparse_now());
  hak_store_relaxed(&given, hak_load_relaxed(&hak_os_stats.free));
}

/* The mark, or what is held and not sparse where that is more. */
static size_t most_dirty(void) {
  size_t mark = hak_load_relaxed(&hak_span_pool.mark_spans), live = live_now(), sparse = sparse_now();
  bool at_least_live = hak_load_relaxed(&hak_span_pool.mark_at_least_live);
  return at_least_live && live > sparse ? hak_max_size(mark, live - sparse) : mark;
}

void hak_decay_excess(hak_deferred *d) {
  /* What this thread's own look has just purged is no work for it. Who returns more is told so by the mark. */
  bool kept = hak_kept_bytes() != 0;
  if (kept || dirty_now() > reserved_now()) hak_decay_wake_helper();
  if (kept) hak_store_relaxed(&hak_decay_kept_due, true);
  purge_for_target();
  /* Hundreds of MiB come free before the clock moves */
  if (hak_load_relaxed(&takes_none) && !hak_purge_refused()) set_mark();
  if (hak_load_relaxed(&hak_decay_goal) != SIZE_MAX) return; /* slow paths are at it */
  if (hak_load_relaxed(&hak_span_pool.mark_spans) > 0) free_sparse(most_dirty(), d);
  size_t limit = most_dirty();
  if (dirty_now() <= limit) return;
  hak_keep_now now = seen_now(false);
  if (hak_keep_raise_mark(&rule, &now)) {
    set_mark();
    return;
  }
  hak_store_relaxed(&hak_decay_goal, hak_keep_at_mark(&rule, &now, limit));
}

void hak_decay_follow(hak_deferred *d) {
  set_mark();
  if (lean_mode || base_ms() != 0) return;
  hak_decay_excess(d);
  hak_decay_step(hak_os_now_ms(), true);
}

#define END_STEPS 4 /* that the end of a thread purges: what the mark lets stay */

void hak_decay_thread_end(uint64_t lived_ms, hak_deferred *d) {
  uint64_t decay_ms = hak_decay_ms();
  if (decay_ms == 0 || hak_load_relaxed(&hak_config.background) != 0) return; /* it goes as it comes; the helper does */
  if (lived_ms < decay_ms || hak_tcache_threads() > 1) return;
  flush_caches(d);
  hak_keep_now now = seen_now(true);
  size_t keep = hak_keep_at_thread_end(&rule, &now);
  keep = hak_max_size(keep, now.dirty - hak_min_size(now.dirty, END_STEPS * HAK_PURGE_STEP_SPANS));
  if (now.dirty <= keep || !hak_turn_take(&looker)) return;
  hak_keep_note_purged(&rule, hak_purge_spans(keep, purges_lazily()));
  hak_turn_end(&looker);
}

static size_t purge_slabs(size_t wanted, hak_deferred *d) {
  size_t purged = 0;
  for (uint32_t i = hak_arena_count(); i-- > 0 && purged < wanted;)
    purged += hak_purge_slabs(hak_arena_at(i), 0, true, wanted - purged, d);
  return purged;
}

void hak_decay_for_target(hak_deferred *d) {
  size_t wanted = hak_budget_slab_bytes_wanted();
  if (wanted > 0) {
    bool left;
    hak_takes_large = true;
    hak_kept_release(UINT64_MAX, SIZE_MAX, &left);
    /* Blocks in caches and depots pin pages of as many slabs. */
    hak_tcache_reach(UINT64_MAX, true, d);
    if (hak_load_relaxed(&hak_depot_bytes) != 0) hak_arena_shrink_all(d);
    hak_budget_note_purged(purge_slabs(wanted, d));
  }
  hak_budget_slab_bytes_purged();
}

size_t hak_decay_all(size_t keep_bytes, hak_deferred *d) {
  size_t purged = 0;
  if (hak_load_relaxed(&rule.reserved_to) != 0) hak_decay_reserve(0);
  hak_takes_large = true;
  if (purges_lazily()) hak_pool_muzzy_to_dirty(); /* what the kernel has not taken yet is still resident */
  hak_arena_shrink_all(d);
  purged += purge_slabs(SIZE_MAX, d);
  bool left;
  hak_huge_free_lost(SIZE_MAX, &d->purge_due);
  purged += hak_kept_release(UINT64_MAX, SIZE_MAX, &left);
  purged += hak_purge_spans(keep_bytes / HAK_SPAN_SIZE, false) << HAK_SPAN_SHIFT;
  purged += hak_meta_purge(true);
  if (keep_bytes == 0) hak_decay_for_limit();
  return purged;
}
