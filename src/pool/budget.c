#include "pool/budget.h"

#include <errno.h>
#include <string.h>

#include "os/os.h"
#include "os/print.h"
#include "pool/chunk_index.h"

/* A percentage is of a limit that an administrator may change. */
#define RESOLVE_MS 10000
/* Without an option: of the cgroup's limit, from two steps of a purge on, and looked at where so much of the limit is
 * taken. */
#define AUTO_PERCENT 95
#define AUTO_FROM (2 * HAK_PURGE_STEP_BYTES)
#define AUTO_NEAR_PERCENT 75
#define PRESSURE_HIGH 1000 /* 10 %, in hundredths */

/* Parts of a target. */
#define MARGIN_PART 16        /* stays free below a target that the user gave … */
#define AUTO_MARGIN_PART 32   /* … and below a group's, which is below its limit already */
#define AUTO_FREE_PART 32     /* of a limit, stays free when a group's target gives way: use grows until a next look */
#define MEASURE_PART 32       /* may be filled before resident memory is read again: 5 us beside ms of touching pages */
#define AHEAD_PART 32         /* goes inside slabs beyond what is lacking: the next slab does not call again at once */
#define FUTILE_PART 32        /* more than that went and came again between two looks: purging is futile … */
#define SLACK_PART 16         /* … and the target gives way by so much */
/* So far below where a group's target is near it is far again: what swings passes it once */
#define RECEDED_PART 32

size_t hak_budget_ceiling = SIZE_MAX;
size_t hak_budget_watch = SIZE_MAX;
size_t hak_budget_live_watch = SIZE_MAX;
size_t hak_budget_unpurgeable;
size_t hak_budget_slack;
unsigned hak_budget_level_now;
uint32_t hak_budget_callback_due;

/* Relaxed; written by the thread whose look it is. Two looks at the same time would do no harm. */
static size_t target_now, resident_then;
static size_t purged_bytes, purged_then, live_then, looked_resident; /* bytes; all but the first at the last look */
static int64_t resolved_option;
static uint64_t resolved_ms;
static unsigned step; /* the level without the pressure */
static unsigned pressure_then;
static uint64_t entered[HAK_BUDGET_LEVELS];
static uint64_t refused, callbacks;

/* pool lock */
static hak_pressure_callback callback;
static void *callback_context;
static const void *calling; /* mark of the thread that is in the callback */
static uintptr_t calling_frame;
static unsigned skipped_inside;

/* --- limit --- */

static bool admits(size_t bytes) {
  size_t limit = (size_t)hak_load_relaxed(&hak_config.limit),
         used = hak_budget_with_spans(&hak_budget_mapped) + hak_budget_table_bytes();
  return limit == 0 || (bytes <= limit && used <= limit - bytes);
}

bool hak_budget_admits_locked(size_t spans) {
  hak_assert_held(&hak_span_pool.lock);
  return admits(spans << HAK_SPAN_SHIFT);
}

void hak_budget_map_done(size_t bytes, bool mapped) {
  if (mapped)
    hak_budget_count_held(bytes);
  else
    hak_sub_relaxed(&hak_budget_mapped, bytes);
}

/* Under the pool lock what was asked about is counted before anybody else asks. */
bool hak_budget_map(size_t bytes) {
  if (!hak_budget_limited()) {
    hak_add_relaxed(&hak_budget_mapped, bytes);
    return true;
  }
  hak_lock_take(&hak_span_pool.lock);
  bool admitted = admits(bytes);
  if (admitted) hak_add_relaxed(&hak_budget_mapped, bytes);
  hak_lock_drop(&hak_span_pool.lock);
  return admitted;
}

void hak_budget_note_failure(void) {
  if (hak_budget_limited()) hak_add_relaxed(&refused, 1);
}

/* --- target --- */

/* What a target is compared with; 0 when it cannot be read. A part of what a cgroup may use (percent, auto): the pages
 * that the kernel cannot take back, so that a large file that the program maps does not count. In bytes: what ps shows,
 * as the user who gave the number sees it. */
static size_t resident_now(void) {
  hak_os_resident now;
  if (!hak_os_read_resident(&now)) return 0;
  return hak_load_relaxed(&hak_config.rss_target) < 0 ? hak_max_size(now.anonymous, 1) : now.all;
}

static size_t live_now(void) { return hak_budget_filled(hak_load_relaxed(&hak_span_pool.live_spans)); }

static bool is_auto(void) { return hak_load_relaxed(&hak_config.rss_target) == HAK_SIZE_AUTO; }

/* Of the target, what is left free: for what grows between two looks without being ours or counted, while others give
 * back, and because the kernel's figure for resident memory lags by some pages a processor. Less of a group's, which is
 * below its limit already. */
static size_t margin(size_t target) { return target / (is_auto() ? AUTO_MARGIN_PART : MARGIN_PART); }

static size_t of_limit(size_t target, size_t percent) { return target / AUTO_PERCENT * percent; }

/* What may be filled although the target leaves no room for it. A part of a group's limit stays free all the same, and
 * as much as one purge brings back, for what the process grows by until it is looked at again. Where the program gave
 * the target, only what is live can be a reason to pass it. */
static size_t ceiling_with_slack(size_t target, size_t resident, size_t filled) {
  size_t slack = hak_load_relaxed(&hak_budget_slack), dirty = hak_load_relaxed(&hak_span_pool.dirty_spans)
                                                              << HAK_SPAN_SHIFT;
  if (slack == 0) return 0;
  size_t ceiling = live_now() + slack;
  if (!is_auto()) return resident - hak_min_size(resident, dirty) > target - margin(target) ? ceiling : 0;
  size_t limit = of_limit(target, 100), stays_free = hak_max_size(limit / AUTO_FREE_PART, HAK_PURGE_STEP_BYTES);
  size_t most = limit - hak_min_size(limit, stays_free);
  return hak_min_size(ceiling, filled + most > resident ? filled + most - resident : 0);
}

/* Resident memory now; 0 when it cannot be read. What is filled tells what it grows by until the next measurement; but
 * a huge page is resident as soon as a part of it is touched, so much must not be taken between two. Other threads go
 * on meanwhile, and this one may lose its processor: what is filled is the least of before and after. */
static size_t measure(size_t target) {
  size_t before = hak_budget_filled_now(), resident = resident_now(),
         filled = hak_min_size(before, hak_budget_filled_now());
  size_t wanted = target - margin(target);
  if (resident == 0) return 0;
  size_t ceiling = filled + wanted > resident ? filled + wanted - resident : 0;
  ceiling = hak_max_size(ceiling, ceiling_with_slack(target, resident, filled));
  hak_store_relaxed(&resident_then, resident);
  hak_store_relaxed(&hak_budget_ceiling, hak_min_size(ceiling, SIZE_MAX - 1));
  hak_store_relaxed(&hak_budget_watch, hak_min_size(ceiling, filled + target / MEASURE_PART));
  size_t held = hak_budget_unclaimed(hak_load_relaxed(&hak_span_pool.live_spans));
  hak_store_relaxed(&hak_budget_live_watch, held + (target / MEASURE_PART >> HAK_SPAN_SHIFT));
  return resident;
}

static bool comes_near(uint64_t now_ms);

static void measure_if_due(void) {
  size_t watch = hak_load_relaxed(&hak_budget_watch);
  if (!hak_budget_measurement_due()) return;
  if (!hak_budget_targeted()) {
    /* One thread of those that come by here. */
    if (!is_auto() || !hak_cas_acquire(&hak_budget_watch, &watch, SIZE_MAX) ||
        !comes_near(hak_os_now_ms()))
      return;
  }
  size_t target = hak_load_relaxed(&target_now);
  if (target != 0) measure(target);
}

size_t hak_budget_room(void) {
  if (HAK_LIKELY(hak_load_relaxed(&hak_budget_watch) == SIZE_MAX)) return SIZE_MAX;
  measure_if_due();
  if (HAK_LIKELY(!hak_budget_targeted())) return SIZE_MAX;
  if (hak_budget_purges_all()) return HAK_BUDGET_DIRTY_LEAST;
  size_t ceiling = hak_load_relaxed(&hak_budget_ceiling), live = live_now();
  size_t left = ceiling > live ? (ceiling - live) >> HAK_SPAN_SHIFT : 0;
  return hak_max_size(left, HAK_BUDGET_DIRTY_LEAST);
}

static size_t lacking_now(void) {
  size_t ceiling = hak_load_relaxed(&hak_budget_ceiling), filled = hak_budget_filled_now();
  return filled > ceiling ? filled - ceiling : 0;
}

size_t hak_budget_slab_bytes_wanted(void) {
  measure_if_due();
  size_t lacking = lacking_now();
  return lacking > hak_load_relaxed(&hak_budget_unpurgeable) ? lacking + hak_load_relaxed(&target_now) / AHEAD_PART : 0;
}

void hak_budget_slab_bytes_purged(void) {
  size_t lacking = lacking_now();
  hak_store_relaxed(&hak_budget_unpurgeable, lacking == 0 ? 0 : lacking + hak_load_relaxed(&target_now) / AHEAD_PART);
}

void hak_budget_note_purged(size_t bytes) { hak_add_relaxed(&purged_bytes, bytes); }

/* Once a look. Purged memory came straight back, and neither is more live than a look ago nor less resident: the target
 * is below what the process needs, and cannot be met. Then purging is only cost: allow slack. */
static void allow_slack(size_t target, size_t resident) {
  size_t all = hak_load_relaxed(&purged_bytes), went = all - hak_load_relaxed(&purged_then), live = live_now();
  size_t live_before = hak_load_relaxed(&live_then), resident_before = hak_load_relaxed(&looked_resident);
  size_t achieved = live - hak_min_size(live, live_before) + resident_before - hak_min_size(resident_before, resident);
  hak_store_relaxed(&purged_then, all);
  hak_store_relaxed(&live_then, live);
  hak_store_relaxed(&looked_resident, resident);
  if (resident <= (is_auto() ? of_limit(target, AUTO_NEAR_PERCENT) : target))
    hak_store_relaxed(&hak_budget_slack, 0);
  else if (went > achieved + target / FUTILE_PART && (is_auto() || hak_load_relaxed(&step) >= HAK_BUDGET_PURGE))
    hak_store_relaxed(&hak_budget_slack, target / SLACK_PART);
}

void hak_budget_pause(void) { hak_store_relaxed(&hak_budget_watch, SIZE_MAX); }

static void enter(unsigned level) {
  HAK_ASSERT(level < HAK_BUDGET_LEVELS);
  if (level == hak_budget_level()) return;
  hak_store_relaxed(&hak_budget_level_now, level);
  hak_add_relaxed(&entered[level], 1);
}

/* `target`: known, but far. */
static unsigned stop_measuring(size_t target, size_t watch) {
  hak_store_relaxed(&hak_budget_ceiling, SIZE_MAX);
  hak_store_relaxed(&hak_budget_watch, watch);
  hak_store_relaxed(&hak_budget_live_watch, SIZE_MAX);
  hak_store_relaxed(&hak_budget_unpurgeable, 0);
  hak_store_relaxed(&hak_budget_slack, 0);
  hak_store_relaxed(&target_now, target);
  hak_store_relaxed(&step, HAK_BUDGET_FAR);
  hak_store_relaxed(&pressure_then, 0);
  hak_store_relaxed(&hak_budget_callback_due, 0);
  enter(HAK_BUDGET_FAR);
  return HAK_BUDGET_FAR;
}

static unsigned no_target(void) { return stop_measuring(0, SIZE_MAX); }

/* The option in bytes; 0: it cannot be told of what the percentage is, or no cgroup has a limit. */
static size_t resolve(int64_t option, uint64_t now_ms) {
  HAK_ASSERT(option != 0);
  if (option > 0) {
    hak_store_relaxed(&resolved_option, option); /* what follows is another one, and is read at once */
    return (size_t)option;
  }
  bool automatic = option == HAK_SIZE_AUTO;
  size_t target = hak_load_relaxed(&target_now);
  bool changed = hak_load_relaxed(&resolved_option) != option || (automatic && target == 0);
  if (!changed && now_ms - hak_load_relaxed(&resolved_ms) < RESOLVE_MS) return target;
  if (!changed && resident_now() == 0) return target; /* no file can be opened for the moment */
  hak_store_relaxed(&resolved_option, option);
  hak_store_relaxed(&resolved_ms, now_ms);
  if (automatic) {
    size_t group = hak_os_cgroup_limit();
    return group == SIZE_MAX ? 0 : group / 100 * AUTO_PERCENT;
  }
  size_t limit = hak_os_memory_limit();
  if (limit != SIZE_MAX) return limit / 100 * (size_t)-option;
  if (changed)
    hak_print("hakmem: HAKMEM_RSS_TARGET=%d%%: the memory this is a part of cannot be read: using no target\n",
              (int)-option);
  return 0;
}

/* --- auto --- */

/* The limit is far while hak_budget_targeted says no: nothing is read before what is filled passes the watch. */

/* Until twice as much is filled as now, or what is left to where a target is near. */
static unsigned watch_growth(size_t target, size_t resident, size_t filled) {
  size_t more = hak_max_size(filled, AUTO_FROM);
  if (target != 0) {
    size_t from = of_limit(target, AUTO_NEAR_PERCENT), taken = hak_max_size(filled, resident);
    size_t left = from > taken ? from - taken : 0;
    more = hak_min_size(more, hak_max_size(left, target / MEASURE_PART));
  }
  return stop_measuring(target, filled + more);
}

/* Enough is filled to read the limit, and with it how much else is resident. Whether it is time to heed it. */
static bool comes_near(uint64_t now_ms) {
  size_t target = resolve(HAK_SIZE_AUTO, now_ms), resident = target == 0 ? 0 : resident_now();
  hak_store_relaxed(&resident_then, resident);
  /* Once: a large request that is going to fail may be counted at the moment */
  size_t filled = hak_budget_filled_now();
  if (target == 0 || hak_max_size(filled, resident) <= of_limit(target, AUTO_NEAR_PERCENT)) {
    watch_growth(target, resident, filled);
    return false;
  }
  hak_pool_muzzy_to_dirty(); /* resident still, where the kernel was to take its time */
  hak_store_relaxed(&target_now, target);
  return true;
}

static bool stays_far(uint64_t now_ms) {
  if (hak_budget_targeted()) return false;
  size_t watch = hak_load_relaxed(&hak_budget_watch);
  if (watch == SIZE_MAX) hak_store_relaxed(&hak_budget_watch, watch = AUTO_FROM); /* the first look */
  return hak_budget_filled_now() <= watch || !comes_near(now_ms);
}

static bool has_receded(size_t target, size_t resident) {
  return hak_max_size(hak_budget_filled_now(), resident) <= of_limit(target, AUTO_NEAR_PERCENT) - target / RECEDED_PART;
}

/* What is to be done beyond the level of the last look, as long as that did not suffice. */
static unsigned next_step(size_t resident, size_t target) {
  unsigned last = hak_load_relaxed(&step);
  if (resident <= target / 10 * 9) return HAK_BUDGET_FAR;
  if (resident <= target) return HAK_BUDGET_NEAR;
  return last < HAK_BUDGET_OVER ? HAK_BUDGET_OVER : last < HAK_BUDGET_CALLBACK ? last + 1 : HAK_BUDGET_CALLBACK;
}

unsigned hak_budget_look(uint64_t now_ms) {
  int64_t option = hak_load_relaxed(&hak_config.rss_target);
  if (HAK_LIKELY(option == 0)) {
    /* Whoever was measuring when the target was lifted has stored its ceiling afterwards. */
    bool lifted = hak_load_relaxed(&target_now) == 0 && hak_load_relaxed(&hak_budget_ceiling) == SIZE_MAX &&
                  hak_load_relaxed(&hak_budget_watch) == SIZE_MAX;
    hak_store_relaxed(&resolved_option, 0);
    return lifted ? HAK_BUDGET_FAR : no_target();
  }
  bool automatic = option == HAK_SIZE_AUTO;
  if (automatic && HAK_LIKELY(stays_far(now_ms))) return HAK_BUDGET_FAR;
  size_t target = resolve(option, now_ms), resident = target == 0 ? 0 : measure(target);
  /* Out of file descriptors, for the moment: what was measured last still holds. */
  if (resident == 0 && target != 0 && hak_budget_targeted()) return hak_budget_level();
  if (automatic && (resident == 0 || has_receded(target, resident)))
    return watch_growth(target, resident, hak_budget_filled_now());
  if (resident == 0) return no_target();
  hak_store_relaxed(&target_now, target);
  allow_slack(target, resident);
  hak_store_relaxed(&hak_budget_unpurgeable, 0);
  unsigned level = next_step(resident, target);
  hak_store_relaxed(&step, level);
  unsigned pressure = hak_os_memory_pressure();
  hak_store_relaxed(&pressure_then, pressure);
  if (pressure > PRESSURE_HIGH && level < HAK_BUDGET_CALLBACK) level++;
  enter(level);
  if (level == HAK_BUDGET_CALLBACK) hak_store_relaxed(&hak_budget_callback_due, 1);
  return level;
}

/* --- callback --- */

void hak_budget_set_callback(hak_pressure_callback new_callback, void *context) {
  hak_lock_take(&hak_span_pool.lock);
  callback = new_callback;
  callback_context = context;
  hak_lock_drop(&hak_span_pool.lock);
}

/* Calls that a thread in the callback may miss before it counts as out of it: one a look. */
#define SKIPPED_INSIDE_MOST 64

/* A callback that throws or jumps does not come back here. Its thread has left it when it is here again from no deeper
 * on its stack; from deeper it may be inside still, for a while. */
static bool has_left(uintptr_t frame) {
  hak_assert_held(&hak_span_pool.lock);
  HAK_ASSERT(calling != NULL);
  return calling == hak_thread_mark() && (frame >= calling_frame || skipped_inside++ >= SKIPPED_INSIDE_MOST);
}

static hak_pressure_callback begin_call(void **context, uintptr_t frame) {
  hak_pressure_callback chosen = NULL;
  hak_lock_take(&hak_span_pool.lock);
  bool due = hak_load_relaxed(&hak_budget_callback_due) != 0;
  if (due && calling != NULL && has_left(frame)) calling = NULL;
  if (calling == NULL && due) {
    chosen = callback;
    *context = callback_context;
    if (chosen != NULL) {
      calling = hak_thread_mark();
      calling_frame = frame;
      skipped_inside = 0;
    }
  }
  hak_store_relaxed(&hak_budget_callback_due, 0);
  hak_lock_drop(&hak_span_pool.lock);
  return chosen;
}

void hak_budget_call_back(void) {
  if (hak_inside_own_fork()) return; /* this thread holds every lock */
  void *context = NULL;
  hak_pressure_callback chosen = begin_call(&context, (uintptr_t)__builtin_frame_address(0));
  if (chosen == NULL) return;
  int saved = errno;
  hak_add_relaxed(&callbacks, 1);
  chosen(hak_load_relaxed(&resident_then), hak_load_relaxed(&target_now), context);
  errno = saved;
  hak_lock_take(&hak_span_pool.lock);
  calling = NULL;
  hak_lock_drop(&hak_span_pool.lock);
}

void hak_budget_fork_child(void) {
  if (calling != hak_thread_mark()) calling = NULL;
  hak_budget_forget_peak();
  if (!is_auto()) return;
  /* It may be moved to another cgroup, which pays for what it takes from here on. */
  hak_store_relaxed(&resolved_option, 0);
  if (!hak_budget_targeted())
    hak_store_relaxed(&hak_budget_watch,
                      hak_min_size(hak_load_relaxed(&hak_budget_watch), hak_budget_filled_now() + AUTO_FROM));
}

/* The part of a cgroup is passed over: the cgroup itself is looked at. */
hak_os_bound hak_budget_nearest(void) {
  size_t target = hak_load_relaxed(&target_now), limit = (size_t)hak_load_relaxed(&hak_config.limit);
  int64_t option = hak_load_relaxed(&hak_config.rss_target);
  hak_os_bound nearest = hak_os_cgroup_nearest();
  if (target != 0 && option != 0 && option != HAK_SIZE_AUTO)
    nearest = hak_os_nearer(nearest, (hak_os_bound){target, resident_now()});
  if (limit != 0)
    nearest = hak_os_nearer(nearest, (hak_os_bound){limit, hak_budget_held_now() + hak_budget_table_bytes()});
  nearest.used -= hak_min_size(nearest.used, hak_load_relaxed(&hak_span_pool.dirty_spans) << HAK_SPAN_SHIFT);
  return nearest;
}

void hak_budget_state(hak_budget_figures *out) {
  memset(out, 0, sizeof *out);
  out->target = hak_load_relaxed(&target_now);
  out->limit = (size_t)hak_load_relaxed(&hak_config.limit);
  out->used = hak_budget_held_now() + hak_budget_table_bytes();
  /* Without the pool's lock spans that are being taken may be seen twice. */
  out->used_peak = hak_max_size(hak_load_relaxed(&hak_budget_used_peak), out->used);
  out->resident = hak_load_relaxed(&resident_then);
  out->level = hak_budget_level();
  out->pressure = hak_load_relaxed(&pressure_then);
  for (unsigned i = 0; i < HAK_BUDGET_LEVELS; i++) out->entered[i] = hak_load_relaxed(&entered[i]);
  out->refused = hak_load_relaxed(&refused);
  out->callbacks = hak_load_relaxed(&callbacks);
}
