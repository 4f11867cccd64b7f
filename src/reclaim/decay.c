#include "reclaim/decay.h"

#include "config/config.h"
#include "large/huge.h"
#include "pool/budget.h"
#include "tcache/tcache.h"

#define SPANS_PER_MIB (HAK_MIB / HAK_SPAN_SIZE)

#define STEPS 4 /* looks in a decay time */
/* Of what became dirty so many looks ago, what may still be, in 256ths: smoothstep at 1/8, 3/8, 5/8 and 7/8. */
static const uint16_t may_stay[STEPS] = {11, 81, 175, 245};

#define MARK_SPANS (64 * SPANS_PER_MIB)
#define STRETCH_MAX 64
#define STRETCH_TIMES 4             /* as long, after refaults */
#define REFAULT_PART 4              /* more than this part of what was purged, wanted again, was purged too early */
#define REFAULT_LEAST (4 * HAK_MIB) /* bytes; less says nothing */
#define MARGIN_PART 8               /* purging stops so far below the bound that asked for it, or rests so far above */
#define NEAR_MS 250                 /* decay time near a target and in lean mode; and a target is looked at as often */

static uint64_t base_ms;      /* constant once started: of the profile or the option */
static uint64_t last_ms;      /* relaxed; of the last look, 0: none yet; written by the thread that looks */
static uint32_t stretch = 1;  /* relaxed: factor of the decay time that refaults ask for */
/* By the thread that looks: `looker` is its mark, or NULL. Taking is an acquire, dropping a release. */
static const void *looker;
static size_t backlog[STEPS]; /* spans that became dirty, the latest last */
static size_t left_dirty;     /* after the last look */
static unsigned looks;
static uint64_t purged_seen, refaults_seen;
static bool lean_mode;

uint32_t hak_decay_sleeper;

static size_t dirty_now(void) { return hak_load_relaxed(&hak_span_pool.dirty_spans); }
static size_t live_now(void) { return hak_load_relaxed(&hak_span_pool.live_spans); }
static size_t lean_target(void) { return (size_t)hak_load_relaxed(&hak_config.mem_lean_target_mb) * SPANS_PER_MIB; }
static bool goes_lazily(void) {
  return lean_mode && hak_config.mem_lean_decommit == HAK_LEAN_FREE && !hak_budget_targeted();
}

static bool helper_sleeps(void) { return hak_load_seq(&hak_decay_sleeper) != 0; }

/* Again where the helper falls asleep or wakes meanwhile: a mark that stays high would let it sleep, one that stays low would
 * have each free purge. */
static void set_mark(void) {
  bool rests = hak_load_relaxed(&stretch) > 1 && !lean_mode, sleeps;
  size_t mark = lean_mode ? lean_target() : base_ms == 0 ? 0 : rests ? SIZE_MAX : MARK_SPANS;
  do {
    sleeps = helper_sleeps();
    hak_store_seq(&hak_span_pool.mark_at_least_live, !lean_mode && !sleeps && base_ms != 0);
    hak_store_seq(&hak_span_pool.mark_spans, sleeps ? 0 : mark);
  } while (helper_sleeps() != sleeps);
}

void hak_decay_start(void) {
  lean_mode = hak_config_lean();
  base_ms = (uint64_t)hak_config.decay_ms;
  set_mark();
}

static bool has_target(void) {
  int64_t target = hak_load_relaxed(&hak_config.rss_target);
  return (target != 0 && target != HAK_SIZE_AUTO) || hak_budget_targeted();
}

uint64_t hak_decay_ms(void) {
  if (hak_budget_level() >= HAK_BUDGET_NEAR || lean_mode) return NEAR_MS;
  uint64_t ms = base_ms * hak_load_relaxed(&stretch);
  return has_target() ? hak_min_size(ms, NEAR_MS * STEPS) : ms;
}

void hak_decay_wake_helper(void) {
  if (hak_load_seq(&hak_decay_sleeper) != 0 && hak_exchange_acquire(&hak_decay_sleeper, 0) != 0) {
    set_mark();
    hak_os_futex_wake(&hak_decay_sleeper);
  }
}

void hak_decay_stay_awake(void) {
  hak_store_seq(&hak_decay_sleeper, 0);
  set_mark();
}

bool hak_decay_has_work(void) {
  set_mark();
  hak_lock_take(&hak_span_pool.lock);
  bool work = hak_span_pool.dirty_spans > 0;
  hak_lock_drop(&hak_span_pool.lock);
  return work || hak_huge_has_kept();
}

static bool was_too_early(uint64_t purged, uint64_t refaults) {
  return refaults >= REFAULT_LEAST && refaults * REFAULT_PART > purged;
}

static uint32_t longer(uint32_t factor) { return (uint32_t)hak_min_size((size_t)factor * STRETCH_TIMES, STRETCH_MAX); }

/* Once a decay time: whether what was purged was wanted again. */
static void judge_refaults(void) {
  uint64_t purged = hak_load_relaxed(&hak_purge_stats.bytes);
  uint64_t refaults = hak_load_relaxed(&hak_span_pool.refault_bytes);
  uint64_t went = purged - purged_seen, again = refaults - refaults_seen;
  purged_seen = purged;
  refaults_seen = refaults;
  hak_lock_take(&hak_span_pool.lock); /* under which others take off what they have read */
  hak_store_relaxed(&hak_span_pool.purged_spans, 0); /* what is taken from now on was not purged too early */
  hak_lock_drop(&hak_span_pool.lock);
  uint32_t factor = hak_load_relaxed(&stretch);
  if (was_too_early(went, again))
    factor = longer(factor);
  else if (again < REFAULT_LEAST && factor > 1)
    factor /= 2;
  hak_store_relaxed(&stretch, factor);
  set_mark();
}

/* What may be dirty now. `passed`: looks since the last one, that is, one unless nobody came by. */
static size_t allowed_now(uint64_t passed) {
  for (; passed > 0; passed--) {
    for (unsigned i = 0; i + 1 < STEPS; i++) backlog[i] = backlog[i + 1];
    backlog[STEPS - 1] = 0;
  }
  size_t dirty = dirty_now(), allowed = 0;
  if (dirty > left_dirty) backlog[STEPS - 1] += dirty - left_dirty;
  for (unsigned i = 0; i < STEPS; i++) allowed += backlog[i] * may_stay[i] / 256;
  return allowed;
}

/* Once a decay time: what is cached in depots and nobody needed, free pages of slabs that stayed as they were, freed mappings. */
static void decay_arenas(uint64_t now_ms, bool idle, hak_deferred *d) {
  bool over = hak_budget_level() >= HAK_BUDGET_OVER;
  for (uint32_t i = hak_arena_count(); i-- > 0;) {
    hak_arena_shrink(hak_arena_at(i), over || idle, d);
    hak_purge_slabs(hak_arena_at(i), looks / STEPS, false, SIZE_MAX, d);
  }
  hak_huge_release_idle(over ? UINT64_MAX : now_ms);
  hak_purge_settle_chunks();
}

static uint64_t step_ms(void) { return hak_max_size(hak_decay_ms() / STEPS, 1); }

/* By what the decay time is now: a target that comes near, or is set, does not wait for the end of a long one. */
static bool is_due(uint64_t now_ms) {
  uint64_t last = hak_load_relaxed(&last_ms);
  return last == 0 || now_ms < last || now_ms >= last + step_ms(); /* a clock that went back begins anew */
}

static void look(uint64_t now_ms, hak_deferred *d) {
  HAK_ASSERT(hak_load_relaxed(&looker) == hak_thread_mark());
  uint64_t last = hak_load_relaxed(&last_ms);
  uint64_t passed = last == 0 || now_ms < last ? 1 : hak_min_size((now_ms - last) / step_ms(), STEPS);
  hak_store_relaxed(&last_ms, now_ms);
  hak_pool_set_epoch(hak_pool_epoch() + 1);
  /* Nobody has come by for a decay time: nobody needs what depots and caches hold, and it is as old as what is dirty. */
  bool idle = last != 0 && passed == STEPS;
  if (idle) {
    decay_arenas(now_ms, true, d);
    left_dirty = dirty_now();
  }
  unsigned level = hak_budget_look(now_ms);
  if (level >= HAK_BUDGET_OVER) hak_decay_excess(d);
  size_t allowed = allowed_now(passed);
  if (dirty_now() > allowed) hak_purge_spans(allowed, goes_lazily());
  left_dirty = dirty_now();
  unsigned before = looks;
  looks += (unsigned)passed;
  if (looks / STEPS == before / STEPS) return;
  judge_refaults();
  if (!idle) decay_arenas(now_ms, false, d);
}

void hak_decay_tick(uint64_t now_ms, hak_deferred *d) {
  if (HAK_LIKELY(!is_due(now_ms))) return;
  const void *nobody = NULL;
  if (!hak_cas_acquire(&looker, &nobody, hak_thread_mark())) return;
  if (is_due(now_ms)) look(now_ms, d);
  hak_store_release(&looker, NULL);
}

void hak_decay_fork_child(void) {
  if (looker != hak_thread_mark()) looker = NULL;
  if (helper_sleeps()) hak_decay_stay_awake(); /* it is not there to be woken */
}

static void purge_for_target(void) {
  size_t keep = hak_budget_dirty_keep();
  if (HAK_LIKELY(dirty_now() <= keep)) return;
  /* An eighth below it, or half of the least, so that the next free does not call again at once. */
  size_t purged = hak_purge_spans(keep - hak_max_size(keep / MARGIN_PART, HAK_BUDGET_DIRTY_LEAST / 2), false);
  if (purged == 0 && hak_purge_refused()) hak_budget_rest();
  hak_budget_note_purged(purged << HAK_SPAN_SHIFT);
}

static void flush_caches(hak_deferred *d) {
  if (hak_tls.cache != NULL) hak_tcache_flush(hak_tls.cache, d);
  for (uint32_t i = hak_arena_count(); i-- > 0;) hak_arena_shrink(hak_arena_at(i), true, d);
}

/* What the rule at the free purged last, and refaults in all then; relaxed. */
static uint64_t rule_bytes, rule_refaults;

/* A load that swings faster than a decay time would meet the rule many times before refaults are judged: the rule is judged at
 * each of its turns too. */
static bool rests_after_refaults(void) {
  if (lean_mode || base_ms == 0) return false;
  uint64_t went = hak_load_relaxed(&rule_bytes);
  uint64_t again = hak_load_relaxed(&hak_span_pool.refault_bytes) - hak_load_relaxed(&rule_refaults);
  if (went == 0 || !was_too_early(went, again)) return false;
  hak_store_relaxed(&rule_bytes, 0);
  hak_store_relaxed(&stretch, longer(hak_load_relaxed(&stretch)));
  set_mark();
  return true;
}

void hak_decay_excess(hak_deferred *d) {
  hak_decay_wake_helper();
  purge_for_target();
  size_t mark = hak_load_relaxed(&hak_span_pool.mark_spans);
  size_t held = hak_load_relaxed(&hak_span_pool.mark_at_least_live) ? live_now() : 0;
  size_t limit = hak_max_size(mark, held);
  if (dirty_now() <= limit || rests_after_refaults()) return;
  /* Where the program has freed more than it holds, blocks in caches, one here and one there, would pin as many slabs. Of a low
   * mark, as without decay, each free comes by here. */
  if (dirty_now() > live_now()) flush_caches(d);
  size_t purged = hak_purge_spans(lean_mode ? limit - limit / MARGIN_PART : limit / 2, goes_lazily());
  hak_store_relaxed(&rule_refaults, hak_load_relaxed(&hak_span_pool.refault_bytes));
  hak_store_relaxed(&rule_bytes, (uint64_t)purged << HAK_SPAN_SHIFT);
  /* What the system refuses, or others are purging, is not looked for again at each free. The next look sets the mark anew. */
  size_t dirty = dirty_now();
  if (dirty > limit) hak_store_relaxed(&hak_span_pool.mark_spans, dirty + dirty / MARGIN_PART);
}

void hak_decay_for_target(hak_deferred *d) {
  size_t wanted = hak_budget_slab_bytes_wanted();
  /* Blocks in depots pin pages of as many slabs. */
  if (wanted > 0 && hak_arena_cached_bytes() != 0) hak_arena_shrink_all(d);
  for (uint32_t i = hak_arena_count(); i-- > 0 && wanted > 0;) {
    size_t purged = hak_purge_slabs(hak_arena_at(i), 0, true, wanted, d);
    wanted -= hak_min_size(wanted, purged);
    hak_budget_note_purged(purged);
  }
  hak_budget_slab_bytes_purged();
}

size_t hak_decay_all(size_t keep_bytes, hak_deferred *d) {
  size_t purged = 0;
  if (goes_lazily()) hak_pool_muzzy_to_dirty(); /* what the kernel has not taken yet is still resident */
  hak_arena_shrink_all(d);
  for (uint32_t i = hak_arena_count(); i-- > 0;) purged += hak_purge_slabs(hak_arena_at(i), 0, true, SIZE_MAX, d);
  purged += hak_huge_release();
  return purged + (hak_purge_spans(keep_bytes / HAK_SPAN_SIZE, false) << HAK_SPAN_SHIFT);
}
