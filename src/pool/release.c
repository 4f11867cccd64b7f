#include "pool/release.h"

#include "config/config.h"
#include "os/os.h"
#include "pool/budget.h"
#include "pool/span_pool.h"
#include "pool/trial.h"

#define SPANS_PER_MIB (HAK_MIB / HAK_SPAN_SIZE)

/* What each profile keeps, docs/tuning.md. Free memory beyond the first two, whichever is more, goes back at once;
 * beyond the next two when its chunk has been idle for so many epochs. */
typedef struct policy {
  size_t burst_spans;
  unsigned burst_percent; /* of live memory */
  size_t subsided_spans;  /* in place of burst_spans while the program has freed most of what it had: it may be about to rest */
  size_t idle_spans;
  unsigned idle_percent;
  uint32_t idle_epochs;
  bool regrets; /* keeps what swings, see REGRET_SPANS */
  bool lazily;
} policy;

static const policy balanced_policy = {
    .burst_spans = 12 * SPANS_PER_MIB,
    .burst_percent = 12,
    .subsided_spans = 4 * SPANS_PER_MIB,
    .idle_spans = 2 * SPANS_PER_MIB,
    .idle_percent = 8,
    .idle_epochs = 2,
    .regrets = true,
};
static const policy speed_policy = {
    .burst_spans = 256 * SPANS_PER_MIB,
    .burst_percent = 100,
    .subsided_spans = 256 * SPANS_PER_MIB,
    .idle_spans = 64 * SPANS_PER_MIB,
    .idle_percent = 50,
    .idle_epochs = 40,
    .regrets = true,
};
static policy lean_policy = {.idle_epochs = 1}; /* its target can change */

/* Constant once the allocator has started. */
static const policy *current = &balanced_policy;

#define EPOCH_MS 250
#define CLAIM_SPANS 256 /* 16 MiB a call: bounds how long a claimed run is missing from the pool */
/* Regret: memory given back at once is taken again within the window. Then so much is kept as the last two windows
 * held at most, for as long as windows go on in which it is used; and an eighth more, since what is free is not always
 * where it is wanted. Where that was in vain, windows are longer and it is a quarter, then half; but what is beyond an
 * eighth goes from time to time all the same, the more seldom the more of it was in vain, so that memory does not creep. */
#define WINDOW_MS 1000
#define WINDOW_MAX_MS 16000
#define SLACK_PART 8
#define PAST_MS 1500
#define REGRET_SPANS ((size_t)1 * HAK_MIB / HAK_SPAN_SIZE)

static uint64_t epoch_end_ms; /* relaxed; the thread whose compare-and-swap moves it runs the epoch's work */
static uint32_t epoch;
#define FAR_OVER_EPOCHS 2
static uint32_t far_over_epochs; /* relaxed: on end */

/* pool lock */
static uint64_t window_end_ms, looked_ms, slack_cut_ms;
static size_t previous_peak_spans;
static bool regretting; /* read by any thread */

/* Relaxed: the system did not take back what it was offered last, such as locked pages. */
static bool refused;

/* Relaxed. After giving back did not suffice: what has to be dirty for the next attempt. */
static size_t patience_spans;
/* Relaxed. Below so much live memory the program has freed most of what it had; 0: not looked for. */
static size_t low_spans;

uint32_t hak_release_sleeper;
struct hak_release_stats hak_release_stats;
uint32_t hak_release_subsidences;
bool hak_release_subsided;

void hak_release_start(void) {
  lean_policy.lazily = hak_config.mem_lean_decommit == HAK_LEAN_FREE;
  current = hak_config_lean() ? &lean_policy : hak_config.profile == HAK_PROFILE_SPEED ? &speed_policy : &balanced_policy;
}

static size_t lean_target(void) { return (size_t)hak_load_relaxed(&hak_config.mem_lean_target_mb) * SPANS_PER_MIB; }

static size_t burst_limit(size_t live_spans) {
  if (current == &lean_policy) return lean_target();
  size_t least = hak_load_relaxed(&hak_release_subsided) ? current->subsided_spans : current->burst_spans;
  return hak_max_size(least, live_spans * current->burst_percent / 100);
}

/* What idle memory is given back down to. */
static size_t idle_limit(size_t live_spans) {
  return hak_max_size(current->idle_spans, live_spans * current->idle_percent / 100);
}

bool hak_release_over_limit(size_t dirty_spans, size_t live_spans) {
  if (HAK_UNLIKELY(hak_load_relaxed(&hak_release_sleeper) != 0) && dirty_spans > idle_limit(live_spans)) return true;
  return dirty_spans > hak_max_size(burst_limit(live_spans), hak_load_relaxed(&patience_spans)) ||
         live_spans < hak_load_relaxed(&low_spans) || hak_budget_over(dirty_spans, live_spans);
}

/* Held, less what has been given back inside slabs. */
static size_t live_now(void) {
  size_t live = hak_load_relaxed(&hak_span_pool.live_spans);
  size_t holes = hak_load_relaxed(&hak_span_pool.hole_pages) * hak_os_page_size() / HAK_SPAN_SIZE;
  return live > holes ? live - holes : 0;
}

static size_t dirty_now(void) { return hak_load_relaxed(&hak_span_pool.dirty_spans); }

static bool goes_lazily(bool may_wait) { return may_wait && current->lazily && !hak_budget_targeted(); }

static bool is_whole(uintptr_t start, size_t bytes, size_t unit) { return ((start | bytes) & (unit - 1)) == 0; }

static bool is_split_first(const void *start, size_t bytes) {
  return hak_budget_of_group() && !is_whole((uintptr_t)start, bytes, HAK_HUGE_PAGE_SPANS * HAK_SPAN_SIZE);
}

static void count_gone(size_t bytes) {
  if (current == &lean_policy) hak_os_count(&hak_os_stats.lean_decommit);
  hak_os_count(&hak_release_stats.purges);
  hak_add_relaxed(&hak_release_stats.bytes, bytes);
}

hak_pages hak_release_pages(void *start, size_t bytes, bool may_wait) {
  hak_pages pages = HAK_PAGES_KEPT;
  bool whole_spans = is_whole((uintptr_t)start, bytes, HAK_SPAN_SIZE);
  if (is_split_first(start, bytes)) hak_os_split_huge(start, bytes);
  if (goes_lazily(may_wait) && hak_os_decommit_lazily(start, bytes))
    pages = HAK_PAGES_STALE;
  else if (whole_spans ? hak_os_decommit(start, bytes) : hak_os_decommit_piece(start, bytes))
    pages = HAK_PAGES_GONE;
  hak_store_relaxed(&refused, pages == HAK_PAGES_KEPT);
  if (pages != HAK_PAGES_KEPT) count_gone(bytes);
  return pages;
}

/* Near a target files are read anyhow: a program that lets this pass its filter is not killed for another one. */
static bool heeds_filters(void) { return hak_config.batch_advice != HAK_BATCH_ADVICE_ALWAYS; }

/* Not at a limit, where what is claimed is missing; nor where it has proved to go one by one. */
bool hak_release_in_batches(bool may_wait) {
  int64_t asked = hak_config.batch_advice;
  bool due = asked >= HAK_BATCH_ADVICE_ON || (asked == HAK_BATCH_ADVICE_AUTO && hak_budget_targeted());
  return due && !goes_lazily(may_wait) && !hak_budget_limited() && hak_os_knows_pieces() && !(heeds_filters() && hak_os_found_filter());
}

/* Below that, asking whether it may be done costs as much as it saves: calls are dear where processors are interrupted. */
#define BATCH_LEAST 2
#define BATCH_LEAST_ALONE 8
/* Locked memory is refused; where there is much of it, each batch would end at its first piece. */
#define REFUSALS_MAX 2

static bool goes_in_batches(size_t count, bool may_wait) {
  bool worth_it = count >= (hak_os_single_threaded() ? BATCH_LEAST_ALONE : BATCH_LEAST);
  return worth_it && hak_release_in_batches(may_wait) && (!heeds_filters() || hak_os_is_unfiltered());
}

static size_t give_together(const hak_os_piece *pieces, size_t count) {
  bool split_first = false;
  for (size_t i = 0; i < count && !split_first; i++) split_first = is_split_first(pieces[i].start, pieces[i].bytes);
  size_t n = split_first ? hak_os_split_huge_pieces(pieces, count) : count;
  return n == 0 ? 0 : hak_os_decommit_pieces(pieces, n);
}

void hak_release_batch(const hak_os_piece *pieces, size_t count, bool may_wait, hak_pages *out) {
  bool together = goes_in_batches(count, may_wait);
  for (size_t i = 0, refusals = 0; i < count; i++) {
    size_t gone = together && refusals < REFUSALS_MAX ? give_together(pieces + i, count - i) : 0;
    if (gone > 0) hak_store_relaxed(&refused, false);
    for (; gone > 0; gone--, i++) {
      out[i] = HAK_PAGES_GONE;
      count_gone(pieces[i].bytes);
    }
    if (i == count) return;
    out[i] = hak_release_pages(pieces[i].start, pieces[i].bytes, may_wait);
    refusals++;
  }
}

/* What may be given back now: chunks that have been idle for so many epochs, which runs of them, and whether the kernel may
 * take its time. */
typedef struct terms {
  uint32_t idle_epochs;
  hak_worth worth;
  bool may_wait;
} terms;

/* Runs that are claimed to go together. */
#define BATCH_RUNS 32
typedef struct batch {
  size_t room, count, spans;
  bool kept; /* the system refused some */
  hak_os_piece pieces[BATCH_RUNS];
  uint16_t dirty[BATCH_RUNS]; /* spans, at most CLAIM_SPANS; small, for it lies on the stack */
} batch;

/* What is left would cut a long run to a short one. */
static bool is_full(const batch *b) { return b->count == b->room || b->spans + HAK_LONG_RUN_SPANS > CLAIM_SPANS; }

/* Claims one run of the chunk; false: there is none. */
static bool add_run(batch *b, hak_region *r, size_t chunk, terms t) {
  size_t first, count, dirty = hak_pool_claim_dirty(r, chunk, CLAIM_SPANS - b->spans, t.worth, &first, &count);
  if (dirty == 0) return false;
  b->pieces[b->count] = (hak_os_piece){hak_region_address(r, first), count << HAK_SPAN_SHIFT};
  b->dirty[b->count++] = (uint16_t)dirty;
  b->spans += count;
  return true;
}

/* Gives them back; returns how many dirty spans went. */
static size_t give_back_batch(batch *b, terms t) {
  hak_pages pages[BATCH_RUNS];
  size_t given = 0;
  hak_release_batch(b->pieces, b->count, t.may_wait, pages);
  for (size_t i = 0; i < b->count; i++) {
    hak_region *r = hak_region_find(b->pieces[i].start);
    size_t first = hak_region_index(r, b->pieces[i].start);
    hak_pool_unclaim(r, first, b->pieces[i].bytes >> HAK_SPAN_SHIFT, pages[i]);
    if (pages[i] == HAK_PAGES_KEPT)
      b->kept = true;
    else
      given += b->dirty[i];
  }
  b->count = b->spans = 0;
  return given;
}

/* Purges chunks from the highest address down (allocation prefers low ones) until dirty <= keep. Chunks that got
 * a span back too lately are skipped, and what is left of those that the system refused a run of. */
static size_t give_back_pass(size_t keep_spans, terms t) {
  size_t given = 0;
  batch b;
  b.room = hak_release_in_batches(t.may_wait) ? BATCH_RUNS : 1;
  b.count = b.spans = 0;
  uint32_t now = hak_load_relaxed(&epoch);
  for (unsigned i = hak_region_count(); i-- > 0 && dirty_now() > keep_spans;) {
    hak_region *r = hak_region_at(i);
    size_t end = (hak_load_acquire(&r->limit) / HAK_SPAN_SIZE + HAK_CHUNK_SPANS - 1) / HAK_CHUNK_SPANS;
    for (size_t chunk = end; chunk-- > r->first_span / HAK_CHUNK_SPANS && dirty_now() > keep_spans;) {
      if (now - hak_load_relaxed(&r->chunks[chunk].epoch) < t.idle_epochs) continue;
      b.kept = false;
      while (!b.kept && dirty_now() > keep_spans && add_run(&b, r, chunk, t)) {
        if (is_full(&b)) given += give_back_batch(&b, t);
      }
    }
  }
  return given + give_back_batch(&b, t);
}

/* Whole huge pages first: one that is given back in part is small pages from then on, and single spans cost a system
 * call each. */
static size_t give_back(size_t keep_spans, uint32_t idle_epochs, bool may_wait) {
  size_t given = give_back_pass(keep_spans, (terms){idle_epochs, HAK_WHOLE_PAGES, may_wait});
  if (dirty_now() > keep_spans) given += give_back_pass(keep_spans, (terms){idle_epochs, HAK_ANY_RUN, may_wait});
  return given;
}

/* What went at once, and was taken again. */
static hak_trial rest_of_bursts;
static const hak_trial_least least_spans = {.vain = REGRET_SPANS / 4, .given = 16 * SPANS_PER_MIB};
static size_t burst_given_spans; /* relaxed: in all */

/* Nobody has come by for so long: what the windows showed is past. Caller holds the pool lock. */
static bool is_past(uint64_t now_ms) { return now_ms >= looked_ms + PAST_MS; }

static void forget_regret(uint64_t now_ms) {
  hak_lock_take(&hak_span_pool.lock);
  if (is_past(now_ms)) {
    hak_store_relaxed(&regretting, false);
    hak_span_pool.returned_spans = 0; /* what is taken from now on was not given back too early */
  }
  hak_lock_drop(&hak_span_pool.lock);
}

/* What is kept beyond the peak. Caller holds the pool lock. */
static size_t slack_of(size_t peak, uint64_t rest_ms, uint64_t now_ms) {
  if (rest_ms == 0) return peak / SLACK_PART;
  if (now_ms >= slack_cut_ms + hak_max_size(rest_ms, WINDOW_MAX_MS)) {
    slack_cut_ms = now_ms;
    return peak / SLACK_PART;
  }
  return peak / (rest_ms <= WINDOW_MS ? 4 : 2);
}

/* How much may stay dirty now, beside `live`. */
static size_t limit_now(uint64_t now_ms) {
  hak_pool *pool = &hak_span_pool;
  hak_lock_take(&pool->lock);
  size_t live = live_now();
  bool regrets = pool->regret_spans >= REGRET_SPANS, past = looked_ms != 0 && is_past(now_ms);
  hak_trial_judge(&rest_of_bursts, least_spans, now_ms, hak_load_relaxed(&burst_given_spans), pool->vain_spans);
  uint64_t rest_ms = hak_load_relaxed(&rest_of_bursts.rest_ms);
  if (past || now_ms >= window_end_ms) {
    hak_store_relaxed(&regretting, regrets && !past);
    previous_peak_spans = past ? live : pool->peak_spans;
    pool->peak_spans = live;
    pool->returned_spans = pool->regret_spans = 0;
    window_end_ms = now_ms + hak_max_size(WINDOW_MS, hak_min_size(rest_ms, WINDOW_MAX_MS));
  } else if (regrets) {
    hak_store_relaxed(&regretting, true);
  }
  looked_ms = now_ms;
  size_t limit = burst_limit(live);
  size_t peak = hak_max_size(pool->peak_spans, previous_peak_spans);
  peak += slack_of(peak, rest_ms, now_ms);
  if (current->regrets && regretting && peak > live) limit = hak_max_size(limit, peak - live);
  hak_lock_drop(&pool->lock);
  return limit;
}

/* What one way of giving back has given, and what was taken again. */
typedef struct gifts {
  hak_trial trial;
  size_t spans;         /* relaxed: in all */
  uint64_t last_ms;     /* pool lock: when some went last */
  uint64_t old_ms;      /* what is taken after so long, and four rests, was not given back too early */
  size_t *left, *again; /* pool lock, counted by the pool: not taken again since, in this trial; and taken again, in all */
} gifts;

/* What went after a rest, and in pieces at once. */
static gifts rested = {.old_ms = 60000, .left = &hak_span_pool.rested_spans, .again = &hak_span_pool.unrest_spans};
static gifts at_once = {.old_ms = 10000, .left = &hak_span_pool.pieces_spans, .again = &hak_span_pool.rejoined_spans};

static uint64_t rest_of(const gifts *g) { return hak_load_relaxed(&g->trial.rest_ms); }

/* Whether the rest has passed since they last went. */
static bool judge(gifts *g, uint64_t now_ms) {
  hak_lock_take(&hak_span_pool.lock);
  bool anew = hak_trial_judge(&g->trial, least_spans, now_ms, hak_load_relaxed(&g->spans), *g->again);
  uint64_t since = now_ms - hak_min_size(now_ms, g->last_ms); /* now may be stale */
  if (anew || since >= hak_max_size(g->old_ms, 4 * rest_of(g))) *g->left = 0;
  bool has_rested = since >= rest_of(g);
  hak_lock_drop(&hak_span_pool.lock);
  return has_rested;
}

static void note(gifts *g, size_t spans, uint64_t now_ms) {
  if (spans == 0) return;
  hak_add_relaxed(&g->spans, spans);
  hak_lock_take(&hak_span_pool.lock);
  *g->left += spans;
  g->last_ms = now_ms;
  hak_lock_drop(&hak_span_pool.lock);
}

static void note_returned(size_t spans) {
  hak_add_relaxed(&burst_given_spans, spans);
  hak_lock_take(&hak_span_pool.lock);
  hak_span_pool.returned_spans += spans;
  hak_lock_drop(&hak_span_pool.lock);
}

/* What the target leaves no room for, in pieces too. */
static void give_back_for_target(void) {
  size_t keep = hak_budget_dirty_keep();
  if (HAK_LIKELY(dirty_now() <= keep)) return;
  /* An eighth below it, or half of the least, so that the next free does not call again at once. */
  size_t given = give_back(keep - hak_max_size(keep / 8, HAK_BUDGET_DIRTY_LEAST / 2), 0, false);
  if (given == 0 && hak_load_relaxed(&refused)) hak_budget_rest();
  hak_budget_note_given(given << HAK_SPAN_SHIFT);
}

void hak_release_wake_helper(void) {
  if (hak_load_seq(&hak_release_sleeper) != 0 && hak_exchange_acquire(&hak_release_sleeper, 0) != 0)
    hak_os_futex_wake(&hak_release_sleeper);
}

/* The program has freed most of what it had when half of it is gone, and at least so much. */
#define SUBSIDED_SPANS (8 * SPANS_PER_MIB)

/* Relaxed; most that was live, as far as it was looked at, since the last subsidence. */
static size_t high_spans;

#define NEARLY_EMPTY_SPANS (128 * SPANS_PER_MIB)

bool hak_release_nearly_empty(void) { return live_now() <= NEARLY_EMPTY_SPANS; }

/* After so many epochs in which somebody came by, the program is at work, if with less than it once had. */
#define SUBSIDED_EPOCHS 40

static uint32_t subsided_epoch; /* relaxed: of the last subsidence, and when it was */
static uint64_t subsided_ms;

static size_t low_of(size_t high) {
  bool swings = current->regrets && hak_load_relaxed(&regretting);
  return swings || high < SUBSIDED_SPANS ? 0 : hak_min_size(high / 2, high - SUBSIDED_SPANS + 1);
}

static void watch_live(uint64_t now_ms) {
  size_t live = live_now(), high = hak_load_relaxed(&high_spans);
  bool subsided = live < low_of(high);
  if (subsided) {
    hak_store_relaxed(&subsided_epoch, hak_load_relaxed(&epoch));
    hak_store_relaxed(&subsided_ms, now_ms);
    hak_add_relaxed(&hak_release_subsidences, 1);
  }
  if (subsided || live > high) {
    high = live;
    hak_store_relaxed(&high_spans, live);
    hak_store_relaxed(&hak_release_subsided, subsided);
  }
  hak_store_relaxed(&low_spans, low_of(high));
}

/* Long runs first: each is a call. The others where more than `enough` is left. */
static size_t give_back_pieces(size_t keep, size_t enough) {
  size_t given = give_back_pass(keep, (terms){0, HAK_LONG_RUNS, true});
  if (dirty_now() > enough) given += give_back_pass(keep, (terms){0, HAK_ANY_RUN, true});
  return given;
}

/* Of so little the pieces are few; not while the program is about to free the rest, or to begin anew. */
#define FEW_SPANS (32 * SPANS_PER_MIB)
#define FEW_AFTER_MS 20

static bool rests_now(uint64_t now_ms) {
  return live_now() <= FEW_SPANS && hak_load_relaxed(&hak_release_subsided) &&
         now_ms >= hak_load_relaxed(&subsided_ms) + FEW_AFTER_MS;
}

/* Pieces of huge pages go too beyond so many limits, when more is free than live: before that, much of it becomes whole
 * in a moment, and a piece costs the kernel more than it is worth. Where that was in vain before they rest first, but
 * for so much that it is no swing. */
#define PIECES_FROM_LIMITS 2
#define NO_SWING_TIMES 4

static bool pieces_due(size_t limit, uint64_t now_ms) {
  size_t dirty = dirty_now(), live = live_now();
  if (dirty <= PIECES_FROM_LIMITS * limit || (live > FEW_SPANS && dirty <= live)) return false;
  return judge(&at_once, now_ms) || dirty > NO_SWING_TIMES * hak_max_size(limit, live);
}

/* Whole huge pages first. Where slabs empty in no order there are few at first, and in a moment there are many; what stays
 * in pieces is given back by the tick, unless it is so much that a program that never comes here again must not keep it. */
void hak_release_excess(void) {
  hak_release_wake_helper();
  give_back_for_target();
  uint64_t now_ms = hak_os_now_ms();
  size_t limit = limit_now(now_ms);
  /* Down to seven eighths of the limit, so that the next free does not call again at once. */
  size_t keep = limit / 8 * 7, given = 0;
  if (dirty_now() > limit) given = give_back_pass(keep, (terms){0, HAK_WHOLE_PAGES, true});
  if (dirty_now() > limit && (current == &lean_policy || rests_now(now_ms)))
    given += give_back_pieces(keep, keep);
  else if (pieces_due(limit, now_ms))
    note(&at_once, give_back_pieces(keep, PIECES_FROM_LIMITS * limit), now_ms);
  if (given > 0) note_returned(given);
  watch_live(now_ms);
  size_t dirty = dirty_now();
  hak_store_relaxed(&patience_spans, dirty > limit ? dirty + limit / 8 : 0);
}

/* A chunk that nothing came back to for so many epochs, and of which a part is given back, stays so. */
#define SETTLED_EPOCHS 8

static void settle_chunks(uint32_t now) {
  for (unsigned i = 0; i < hak_region_count(); i++) {
    hak_region *r = hak_region_at(i);
    size_t end = hak_load_acquire(&r->limit) / HAK_SPAN_SIZE / HAK_CHUNK_SPANS; /* the last one may still grow */
    for (size_t chunk = r->first_span / HAK_CHUNK_SPANS; chunk < end; chunk++) {
      const hak_chunk *c = &r->chunks[chunk];
      if (hak_load_relaxed(&c->in_pieces) && now - hak_load_relaxed(&c->epoch) >= SETTLED_EPOCHS)
        hak_pool_make_small(r, chunk);
    }
  }
}

void hak_release_tick(uint64_t now_ms) {
  uint64_t end = hak_load_relaxed(&epoch_end_ms);
  if (now_ms < end) return;
  if (!__atomic_compare_exchange_n(&epoch_end_ms, &end, now_ms + EPOCH_MS, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    return;
  /* What nobody has come by for is as old as the clock says. */
  uint32_t passed = end == 0 ? 1 : 1 + (uint32_t)((now_ms - end) / EPOCH_MS), begun = hak_add_relaxed(&epoch, passed);
  hak_pool_set_epoch(begun);
  forget_regret(now_ms);
  unsigned level = hak_budget_look(now_ms);
  if (level >= HAK_BUDGET_OVER) give_back_for_target();
  size_t live = live_now();
  uint32_t rest = 0, far_over = hak_load_relaxed(&far_over_epochs);
  if (current->regrets) {
    judge(&at_once, now_ms);
    judge(&rested, now_ms);
    rest = (uint32_t)(rest_of(&rested) / EPOCH_MS);
  }
  /* Pieces in chunks that are never idle. A program that frees everything passes here for a moment. */
  size_t given = 0;
  /* A program that has just woken up is far over for a moment. */
  far_over = dirty_now() <= 2 * burst_limit(live) ? 0 : far_over == 0 ? 1 : far_over + passed;
  if (far_over >= hak_max_size(FAR_OVER_EPOCHS, rest)) {
    given = give_back(burst_limit(live), 0, true);
    far_over = 0;
  }
  hak_store_relaxed(&far_over_epochs, far_over);
  bool near = level >= HAK_BUDGET_NEAR;
  size_t keep = near ? 0 : idle_limit(live);
  uint32_t idle_epochs = near ? 1 : (uint32_t)hak_max_size(current->idle_epochs, rest);
  if (dirty_now() > keep) given += give_back(keep, idle_epochs, true);
  note(&rested, given, now_ms);
  if (given > 0) hak_store_relaxed(&patience_spans, 0); /* of what is left more may be whole by now */
  settle_chunks(begun);
  watch_live(now_ms);
  if (begun - hak_load_relaxed(&subsided_epoch) >= SUBSIDED_EPOCHS) hak_store_relaxed(&hak_release_subsided, false);
}

bool hak_release_has_work(void) {
  hak_lock_take(&hak_span_pool.lock);
  bool work = hak_span_pool.dirty_spans > idle_limit(live_now());
  hak_lock_drop(&hak_span_pool.lock);
  return work;
}

size_t hak_release_some(size_t spans) {
  size_t dirty = dirty_now(), least = idle_limit(live_now());
  if (current == &speed_policy || dirty <= least) return 0;
  size_t keep = hak_max_size(dirty > spans ? dirty - spans : 0, least);
  return give_back(keep, 0, true);
}

size_t hak_release_all(size_t keep_bytes) {
  if (current->lazily) hak_pool_stale_to_dirty(); /* what the kernel has not taken yet is still resident */
  return give_back(keep_bytes / HAK_SPAN_SIZE, 0, false) << HAK_SPAN_SHIFT;
}
