#include "reclaim/decay.h"

#include "large/quarantine.h"
#include "large/huge.h"
#include "large/kept.h"
#include "pool/meta.h"

#define STEPS 4 /* looks in a decay time */
/* Of what became dirty so many looks ago, what may still be, in 256ths: smoothstep at 1/8, 3/8, 5/8 and 7/8. */
static const uint16_t may_stay[STEPS] = {11, 81, 175, 245};

#define SLAB_STEPS 2 /* looks */
_Static_assert(STEPS % SLAB_STEPS == 0, "a decay time has whole rounds of slabs");
#define MARK_SPANS HAK_CHUNK_SPANS
#define WINDOW (2 * STEPS - 1) /* looks: what the load had in use then may stay where it swings; gone before two decay times are over */
#define REFAULT_PART 4              /* more than this part of what was purged, wanted again, was purged too early */
#define REFAULT_LEAST (HAK_PURGE_STEP_BYTES / 2) /* less is a fifth of a percent of a CPU */
#define REFAULT_MOST (2 * HAK_PURGE_STEP_BYTES) /* and so much is worth it up to this part of what the program holds: */
#define REFAULT_HELD_PART 8

/* Where nobody has come by for a decay time the next call may be as far off: so many steps at once, a fiftieth of that time, and 40 ms at
 * most. */
#define RESTED_STEPS_MAX 32
#define RESTED_STEP_MS 64

static uint64_t last_ms;      /* relaxed; of the last look, 0: none yet; written by the thread that looks */
/* The load swings: refaults have shown so, and the window does. Relaxed. */
static bool swings;
static size_t rule_rest; /* relaxed; dirty spans that the rule at the free leaves, since it purged too early. 0 where nothing swings */
/* By the thread that looks: whose turn it is. */
static const void *looker;
static size_t backlog[STEPS]; /* spans that became dirty, the latest last */
static size_t left_dirty;     /* after the last look */
static size_t peaks[WINDOW];  /* the most spans held between two looks, the latest last */
static unsigned looks;
static uint64_t purged_seen, refaults_seen;
static uint64_t purged_at_look; /* bytes, in all, when the last look began */
static size_t most_missing; /* at a look since refaults were judged */
static bool lean_mode;
/* What the rule at the free purged last, and refaults in all then; relaxed. */
static uint64_t rule_bytes, rule_refaults;
static bool rule_at_it; /* relaxed: and the goal is its */

static bool limited; /* relaxed: what was seen at the start, at a trim, or when the system refused last */
static bool commit_asked;

/* What threads that spare large blocks' pages left to others, which take it up when they come by: a goal, and what is kept. After a decay time
 * without one of those, nobody spares them: what is free goes back before two are over. Relaxed. */
static size_t left_goal = SIZE_MAX;
static bool has_left;
static uint64_t others_ms; /* when one of them came by last */

uint32_t hak_decay_sleeper;
size_t hak_decay_goal = SIZE_MAX;
size_t hak_decay_worth_spans = HAK_BUDGET_DIRTY_LEAST;
bool hak_decay_kept_due;

static size_t reserved_to; /* relaxed; spans in use and free, up to which free ones stay: hak_decay_reserve */

static size_t dirty_now(void) { return hak_load_relaxed(&hak_span_pool.dirty_spans); }
static size_t live_now(void) { return hak_load_relaxed(&hak_span_pool.live_spans); }
static bool goes_lazily(void) {
  return lean_mode && hak_config.mem_lean_decommit == HAK_LEAN_FREE && !hak_budget_targeted();
}

static size_t reserved_now(void) {
  size_t to = hak_load_relaxed(&reserved_to), live = live_now();
  return to > live ? to - live : 0;
}

/* Sequentially consistent, as the store of hakmem_option_set: set_mark tells why. */
static uint64_t base_ms(void) { return lean_mode ? HAK_DECAY_NEAR_MS : (uint64_t)hak_load_seq(&hak_config.decay_ms); }

static bool helper_sleeps(void) { return hak_load_seq(&hak_decay_sleeper) != 0; }

/* Retries if the helper slept or woke meanwhile, or the decay time is another: a mark that stays high would let the helper sleep, one that
 * stays low would have each free purge. */
static void set_mark(void) {
  size_t rest = hak_max_size(MARK_SPANS, hak_load_relaxed(&rule_rest));
  uint64_t ms;
  bool sleeps;
  do {
    ms = base_ms();
    sleeps = helper_sleeps();
    size_t lean = (size_t)hak_load_relaxed(&hak_config.mem_lean_target_mb) * (HAK_MIB / HAK_SPAN_SIZE), mark = lean_mode ? lean : ms == 0 ? 0 : rest;
    hak_store_seq(&hak_span_pool.mark_at_least_live, !lean_mode && !sleeps && ms != 0);
    hak_store_seq(&hak_span_pool.mark_spans, hak_max_size(sleeps ? 0 : mark, reserved_now()));
  } while (helper_sleeps() != sleeps || base_ms() != ms);
}

void hak_decay_reserve(size_t spans) {
  hak_store_relaxed(&reserved_to, spans == 0 ? 0 : live_now() + spans);
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
  return has_target() ? hak_min_size(base_ms(), HAK_DECAY_NEAR_MS * STEPS) : base_ms();
}

void hak_decay_wake_helper(void) {
  if (hak_load_seq(&hak_decay_sleeper) != 0 && hak_exchange_acquire(&hak_decay_sleeper, 0) != 0) {
    set_mark();
    hak_os_futex_wake(&hak_decay_sleeper);
  }
}

bool hak_decay_waits(void) {
  return hak_decay_step_due() || dirty_now() > hak_max_size(hak_decay_worth_spans, reserved_now()) || hak_kept_bytes() != 0;
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

/* Of spans. Pages inside slabs go whether the load swings or not: that they were wanted again is no reason to leave spans. */
static uint64_t refaults_now(void) { return hak_load_relaxed(&hak_span_pool.refault_bytes); }
static uint64_t purged_now(void) {
  return hak_load_relaxed(&hak_purge_stats.bytes) - hak_load_relaxed(&hak_purge_stats.purged_slab_pages) * hak_os_page_size();
}

/* To a program of 200 MiB, 24 that stay for seconds are more than as many refaults are in these seconds. */
static size_t refaults_worth(void) {
  return hak_max_size(REFAULT_LEAST, hak_min_size(hak_budget_in_use() / REFAULT_HELD_PART, REFAULT_MOST));
}

static bool was_too_early(uint64_t purged, uint64_t refaults) {
  return refaults >= refaults_worth() && refaults * REFAULT_PART > purged;
}

static size_t window_peak(void) {
  size_t peak = hak_load_relaxed(&hak_span_pool.recent_peak);
  for (unsigned i = 0; i < WINDOW; i++) peak = hak_max_size(peak, hak_load_relaxed(&peaks[i]));
  return peak;
}

/* What the load had in use in the window, and has not now. */
static size_t missing(void) {
  size_t peak = window_peak(), live = live_now();
  return peak > live ? peak - live : 0;
}

/* Of figures a look, the latest last, those that so many looks push out go. */
static void pass(size_t *figures, size_t count, uint64_t passed) {
  HAK_ASSERT(hak_load_relaxed(&looker) == hak_thread_mark() && passed <= count);
  for (size_t i = 0; i < count; i++) hak_store_relaxed(&figures[i], i + passed < count ? hak_load_relaxed(&figures[i + passed]) : 0);
}

/* What was purged before the last look, and is taken from now on, was not purged too early: a load that comes back so late would have left
 * the window too. Under the lock, as others take off what they have read. */
static void pass_window(uint64_t passed, uint64_t into_window) {
  uint64_t purged = purged_now(), young = passed == STEPS ? 0 : purged - purged_at_look;
  purged_at_look = purged;
  pass(peaks, WINDOW, into_window);
  hak_lock_take(&hak_span_pool.lock);
  hak_store_relaxed(&hak_span_pool.purged_spans, hak_min_size(hak_load_relaxed(&hak_span_pool.purged_spans), (size_t)(young >> HAK_SPAN_SHIFT)));
  hak_store_relaxed(&peaks[WINDOW - 1], hak_span_pool.recent_peak);
  hak_store_relaxed(&hak_span_pool.recent_peak, hak_span_pool.live_spans);
  hak_lock_drop(&hak_span_pool.lock);
}

/* Once a decay time: whether what was purged was wanted again, and whether the load still swings. */
static void judge_refaults(void) {
  HAK_ASSERT(hak_load_relaxed(&looker) == hak_thread_mark());
  uint64_t purged = purged_now(), refaults = refaults_now();
  uint64_t went = purged - purged_seen, again = refaults - refaults_seen;
  purged_seen = purged;
  refaults_seen = refaults;
  if (was_too_early(went, again))
    hak_store_relaxed(&swings, true);
  else if (again < refaults_worth() && most_missing < refaults_worth() / HAK_SPAN_SIZE)
    hak_store_relaxed(&swings, false);
  most_missing = 0;
  size_t most = hak_load_relaxed(&swings) ? window_peak() : 0;
  hak_store_relaxed(&rule_rest, hak_min_size(hak_load_relaxed(&rule_rest), most));
  set_mark();
}

/* What may be dirty now. `passed`: looks since the last one, that is, one unless nobody came by. */
static size_t allowed_now(uint64_t passed, bool idle) {
  pass(backlog, STEPS, passed);
  size_t dirty = dirty_now(), allowed = 0;
  if (dirty > left_dirty) backlog[STEPS - 1] += dirty - left_dirty;
  for (unsigned i = 0; i < STEPS; i++) allowed += backlog[i] * may_stay[i] / 256;
  if (hak_budget_level() >= HAK_BUDGET_NEAR) return allowed;
  allowed = hak_max_size(allowed, reserved_now());
  if (lean_mode || base_ms() == 0) return allowed;
  if (hak_load_relaxed(&swings)) allowed = hak_max_size(allowed, missing());
  return idle || hak_load_relaxed(&hak_config.background) != 0 ? allowed : hak_max_size(allowed, hak_decay_worth_spans);
}

static bool is_limited(size_t *address_space) {
  *address_space = hak_os_limit(HAK_OS_ADDRESS_SPACE);
  bool now = *address_space != SIZE_MAX || hak_os_is_limited(HAK_OS_DATA) || hak_os_commit_is_limited();
  hak_store_relaxed(&limited, now);
  hak_store_relaxed(&hak_kept_no_mappings, now);
  return now;
}

size_t hak_decay_for_limit(void) {
  size_t address_space;
  if (!is_limited(&address_space)) return 0;
  if (HAK_HARD(GUARDS)) hak_mapping_quarantine_release(); /* the addresses of freed blocks count */
  return hak_purge_withdraw_all(address_space);
}

/* Sandboxes may forbid to ask for limits later; files are read all the same. Not before there is something to withdraw: what was
 * purged, so that a program that gives nothing back makes no calls. */
static void withdraw_idle(void) {
  if (!commit_asked && hak_load_relaxed(&hak_purge_stats.purges) != 0) {
    commit_asked = true;
    if (hak_os_commit_is_limited()) hak_store_relaxed(&limited, true);
  }
  if (HAK_UNLIKELY(hak_load_relaxed(&limited)) && !hak_spares_large()) hak_purge_withdraw_idle(STEPS);
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
  hak_purge_settle_chunks(STEPS);
  hak_meta_purge(over || idle);
  withdraw_idle();
}

static uint64_t step_ms(void) { return hak_max_size(hak_decay_ms() / STEPS, 1); }

/* By what the decay time is now: a target that comes near, or is set, does not wait for the end of a long one. */
static bool is_due(uint64_t now_ms) {
  uint64_t last = hak_load_relaxed(&last_ms);
  return last == 0 || now_ms < last || now_ms >= last + step_ms(); /* a clock that went back begins anew */
}

static void leave_to_others(size_t goal) {
  hak_store_relaxed(&left_goal, hak_min_size(goal, hak_load_relaxed(&left_goal)));
  hak_store_relaxed(&has_left, true);
}

/* Between two looks, what goes is not to make up for what becomes dirty. */
static void purge_to_goal(size_t most_spans) {
  HAK_ASSERT(hak_load_relaxed(&looker) == hak_thread_mark());
  size_t goal = hak_load_relaxed(&hak_decay_goal), dirty = dirty_now();
  if (goal == SIZE_MAX) return;
  size_t purged = dirty > goal ? hak_purge_spans(hak_max_size(goal, dirty - hak_min_size(dirty, most_spans)), goes_lazily()) : 0;
  if (hak_load_relaxed(&rule_at_it)) hak_add_relaxed(&rule_bytes, (uint64_t)purged << HAK_SPAN_SHIFT);
  left_dirty -= hak_min_size(left_dirty, purged);
  dirty = dirty_now();
  if (dirty > goal && purged > 0) return;
  if (dirty > goal && hak_spares_large()) leave_to_others(goal);
  /* What the system refuses is not looked for again at each free. The next look sets the mark anew. */
  if (dirty > goal && hak_load_relaxed(&rule_at_it)) hak_store_relaxed(&hak_span_pool.mark_spans, dirty + HAK_PURGE_STEP_SPANS);
  hak_store_relaxed(&rule_at_it, false);
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

static void look(uint64_t now_ms, hak_deferred *d) {
  HAK_ASSERT(hak_load_relaxed(&looker) == hak_thread_mark());
  uint64_t last = hak_load_relaxed(&last_ms), passed = 1, into_window = 1;
  if (last != 0 && now_ms >= last) {
    passed = hak_min_size((now_ms - last) / step_ms(), STEPS);
    into_window = hak_min_size(now_ms / step_ms() - last / step_ms(), WINDOW); /* none of the time between two looks is lost */
  }
  hak_store_relaxed(&last_ms, now_ms);
  hak_pool_set_look(hak_pool_look() + 1);
  /* Nobody has come by for a decay time: nobody needs what depots and caches hold, and it is as old as what is dirty. */
  bool idle = last != 0 && passed == STEPS;
  /* What threads keep that came by no slow path for a decay time; some threads a look, and all after a rest. */
  uint64_t asleep_ms = hak_decay_cache_ms();
  if (asleep_ms <= now_ms) hak_tcache_reach(now_ms - asleep_ms, idle, d);
  if (idle) {
    decay_arenas(true, d);
    left_dirty = dirty_now();
  }
  unsigned level = hak_budget_look(now_ms);
  if (level >= HAK_BUDGET_OVER) hak_decay_excess(d);
  pass_window(passed, into_window);
  most_missing = hak_max_size(most_missing, missing());
  release_kept(now_ms, 0);
  if (hak_load_relaxed(&reserved_to) != 0 && reserved_now() == 0) hak_decay_reserve(0); /* it is all in use */
  size_t allowed = allowed_now(passed, idle);
  if (dirty_now() > allowed) hak_store_relaxed(&hak_decay_goal, hak_min_size(allowed, hak_load_relaxed(&hak_decay_goal)));
  uint64_t steps = idle ? hak_min_size((now_ms - last) / RESTED_STEP_MS + 1, RESTED_STEPS_MAX) : 1;
  purge_to_goal(steps * HAK_PURGE_STEP_SPANS);
  left_dirty = dirty_now();
  unsigned before = looks;
  looks += (unsigned)passed;
  bool whole_time = looks / STEPS != before / STEPS;
  if (whole_time) judge_refaults();
  if (whole_time && !idle) decay_arenas(false, d);
  /* What depots and caches have just put back was as long at rest as they were. */
  if (idle) decay_slabs(looks / SLAB_STEPS - 1, d);
  if (looks / SLAB_STEPS != before / SLAB_STEPS) decay_slabs(looks / SLAB_STEPS, d);
}

static void divide_work(uint64_t now_ms) {
  if (hak_takes_large) {
    hak_store_relaxed(&others_ms, now_ms);
    hak_store_relaxed(&hak_large_left_to_others, true);
  } else if (hak_load_relaxed(&hak_large_left_to_others)) {
    uint64_t last = hak_load_relaxed(&others_ms);
    hak_store_relaxed(&hak_large_left_to_others, now_ms < last || now_ms - last <= base_ms());
  }
  if (!hak_load_relaxed(&has_left) || hak_spares_large()) return;
  hak_store_relaxed(&has_left, false);
  hak_store_relaxed(&hak_decay_goal, hak_min_size(hak_load_relaxed(&left_goal), hak_load_relaxed(&hak_decay_goal)));
  hak_store_relaxed(&left_goal, SIZE_MAX);
  hak_store_relaxed(&hak_decay_kept_due, true);
}

bool hak_decay_tick(uint64_t now_ms, hak_deferred *d) {
  divide_work(now_ms);
  if (HAK_LIKELY(!is_due(now_ms)) || !hak_turn_take(&looker)) return false;
  bool due = is_due(now_ms);
  if (due) look(now_ms, d);
  hak_turn_end(&looker);
  return due;
}

void hak_decay_fork_child(void) {
  if (looker != hak_thread_mark()) looker = NULL;
  if (helper_sleeps()) hak_decay_stay_awake(); /* it is not there to be woken */
}

static void purge_for_target(void) {
  size_t keep = hak_budget_dirty_keep();
  if (HAK_LIKELY(dirty_now() <= keep)) return;
  hak_takes_large = true;
  /* A step below it, or half of it, so that the next free does not call again at once. */
  size_t purged = hak_purge_spans(keep - hak_min_size(keep / 2, HAK_PURGE_STEP_SPANS), false);
  if (purged == 0 && hak_purge_refused()) hak_budget_rest();
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

/* A load that swings faster than a decay time would meet the rule many times before refaults are judged: the rule is judged at
 * each of its turns too. */
static bool rests_after_refaults(void) {
  if (lean_mode || base_ms() == 0) return false;
  uint64_t went = hak_load_relaxed(&rule_bytes);
  uint64_t again = refaults_now() - hak_load_relaxed(&rule_refaults);
  if (went == 0 || !was_too_early(went, again)) return false;
  hak_store_relaxed(&rule_bytes, 0);
  hak_store_relaxed(&swings, true);
  hak_store_relaxed(&rule_rest, window_peak());
  set_mark();
  return true;
}

void hak_decay_excess(hak_deferred *d) {
  hak_decay_wake_helper();
  if (hak_kept_bytes() != 0) hak_store_relaxed(&hak_decay_kept_due, true);
  purge_for_target();
  size_t mark = hak_load_relaxed(&hak_span_pool.mark_spans);
  size_t held = hak_load_relaxed(&hak_span_pool.mark_at_least_live) ? live_now() : 0;
  size_t limit = hak_max_size(mark, held);
  if (hak_load_relaxed(&hak_decay_goal) != SIZE_MAX) return; /* slow paths are at it */
  if (dirty_now() <= limit || rests_after_refaults()) return;
  /* Cached blocks pin slabs: flush first where the program has freed more than it holds. With a low mark, as without decay, each free
   * comes by here. */
  if (dirty_now() > live_now()) flush_caches(d);
  hak_store_relaxed(&rule_refaults, refaults_now());
  hak_store_relaxed(&rule_bytes, 0);
  hak_store_relaxed(&rule_at_it, true);
  hak_store_relaxed(&hak_decay_goal, hak_max_size(limit / 2, reserved_now()));
}

void hak_decay_follow(hak_deferred *d) {
  set_mark();
  if (lean_mode || base_ms() != 0) return;
  hak_decay_excess(d);
  hak_decay_step(hak_os_now_ms(), true);
}

void hak_decay_for_target(hak_deferred *d) {
  size_t wanted = hak_budget_slab_bytes_wanted();
  bool left;
  hak_takes_large = true;
  if (wanted > 0) hak_kept_release(UINT64_MAX, SIZE_MAX, &left);
  /* Blocks in caches and depots pin pages of as many slabs. */
  if (wanted > 0) hak_tcache_reach(UINT64_MAX, true, d);
  if (wanted > 0 && hak_load_relaxed(&hak_depot_bytes) != 0) hak_arena_shrink_all(d);
  for (uint32_t i = hak_arena_count(); i-- > 0 && wanted > 0;) {
    size_t purged = hak_purge_slabs(hak_arena_at(i), 0, true, wanted, d);
    wanted -= hak_min_size(wanted, purged);
    hak_budget_note_purged(purged);
  }
  hak_budget_slab_bytes_purged();
}

size_t hak_decay_all(size_t keep_bytes, hak_deferred *d) {
  size_t purged = 0;
  if (hak_load_relaxed(&reserved_to) != 0) hak_decay_reserve(0);
  hak_takes_large = true;
  if (goes_lazily()) hak_pool_muzzy_to_dirty(); /* what the kernel has not taken yet is still resident */
  hak_arena_shrink_all(d);
  for (uint32_t i = hak_arena_count(); i-- > 0;) purged += hak_purge_slabs(hak_arena_at(i), 0, true, SIZE_MAX, d);
  bool left;
  purged += hak_kept_release(UINT64_MAX, SIZE_MAX, &left);
  purged += hak_purge_spans(keep_bytes / HAK_SPAN_SIZE, false) << HAK_SPAN_SHIFT;
  purged += hak_meta_purge(true);
  if (keep_bytes == 0) hak_decay_for_limit();
  return purged;
}
