/* The two ends of a slow path. What is due is a list of functions (watchers.c), so that nothing here knows who watches:
 *
 *   hak_slow_entry   the program's pressure callback, if it is due; where the pool is full, room for what comes
 *   hak_slow_exit    a wrong free ends the program; then the watchers: memory's (reclaim_turn.c) and the statistics
 *                    page's at each, the others when the clock has moved */
#include "entry/slow_exit.h"

#include "os/memory_limits.h"
#include "os/os.h"
#include "reclaim/decay.h"
#include "tcache/tcache.h"

/* Once, where memory is added to what no small program needs: which pages the system gives. Who has no files read for
 * targets has none read here. */
#define SMALL_PROGRAM_SPANS (3 * HAK_MIB / HAK_SPAN_SIZE)
static void look_at_page_sizes(void) {
  static bool looked; /* relaxed */
  if (hak_load_relaxed(&looked) || hak_load_relaxed(&hak_span_pool.live_spans) <= SMALL_PROGRAM_SPANS) return;
  hak_store_relaxed(&looked, true);
  bool asks = hak_load_relaxed(&hak_config.rss_target) != 0 && !hak_os_is_confined();
  if (hak_config.thp == HAK_THP_OFF || !asks) return;
  hak_os_page_sizes sizes = hak_os_read_page_sizes();
  hak_pool_follow_page_sizes(sizes.huge, sizes.spans);
}

/* What was accessible once and is free serves any class, without a call: a program may be forbidden to make one by
 * now. */
static HAK_COLD void make_room(void) {
  const hak_tcache *t = hak_tls.cache;
  size_t stacked = t == NULL ? 0 : hak_load_relaxed(&t->stacked_bytes);
  if (hak_decay_idle_bytes() + stacked + hak_arena_kept_bytes() < HAK_SPAN_SIZE) return;
  hak_deferred d = {0};
  hak_decay_make_room(&d);
  hak_report_bad(&d);
}

void hak_slow_entry(bool needs_spans) {
  if (hak_budget_must_call_back()) hak_budget_call_back();
  if (HAK_LIKELY(!hak_pool_is_full()) || !needs_spans) return;
  make_room();
  if (hak_pool_is_full()) look_at_page_sizes();
}

/* The coarse clock moves every few milliseconds: until then nothing new is due by it. */
static bool clock_moved(uint64_t now_ms) {
  hak_tcache *t = hak_tls.cache;
  if (t == NULL) return true;
  bool moved = now_ms != t->exit_ms;
  hak_store_relaxed(&t->exit_ms, now_ms);
  return moved;
}

HAK_INLINE void call_all(hak_watcher *const *watcher, uint64_t now_ms, bool moved, hak_deferred *d) {
  for (; *watcher != NULL; watcher++) (*watcher)(now_ms, moved, d);
}

void hak_slow_exit(hak_deferred *d) {
  hak_report_bad(d);
  uint64_t now_ms = hak_os_now_ms();
  bool moved = clock_moved(now_ms);
  call_all(hak_exit_watchers, now_ms, moved, d);
  if (HAK_UNLIKELY(moved)) call_all(hak_clock_watchers, now_ms, moved, d);
  hak_report_bad(d);
}

