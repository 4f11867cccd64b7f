/* Who watches slow exits: all that is due at them. */
#include "entry/reclaim_turn.h"
#include "entry/slow_exit.h"
#include "harden/sweep.h"
#include "report/serve.h"
#include "watch/outside.h"

static void sweep(uint64_t now_ms, bool moved, hak_deferred *d) {
  (void)now_ms, (void)moved, (void)d;
  if (HAK_HARD_SWEEP) hak_sweep_some();
}

static void look_outside(uint64_t now_ms, bool moved, hak_deferred *d) {
  (void)moved, (void)d;
  hak_outside_look(now_ms);
}

static void report(uint64_t now_ms, bool moved, hak_deferred *d) {
  (void)moved, (void)d;
  hak_report_tick(now_ms);
}

hak_watcher *const hak_exit_watchers[] = {hak_reclaim_turn, report, NULL};
hak_watcher *const hak_clock_watchers[] = {sweep, look_outside, NULL};
