#include "api/background.h"

#include <string.h>

#include "api/own_threads.h"
#include "api/slow_exit.h"
#include "os/os.h"
#include "os/print.h"
#include "reclaim/decay.h"
#include "report/serve.h"

/* 1: there is a helper, or a thread is about to start it. Who sets it starts the helper; the helper sets 0 before it ends. Sequentially consistent,
 * as HAKMEM_BACKGROUND: docs/locking.md. */
static uint32_t running;

static bool wanted(void) { return hak_load_seq(&hak_config.background) != 0; }

/* A sum that changes while there is work: spans taken and returned since the start, ranges purged, and what depots hold. */
static uint64_t activity(void) {
  return hak_load_relaxed(&hak_os_stats.alloc) + hak_load_relaxed(&hak_os_stats.free) +
         hak_load_relaxed(&hak_purge_stats.purges) + hak_load_relaxed(&hak_os_stats.huge_alloc) +
         hak_decay_idle_bytes();
}

/* Sleeps until a thread returns memory to the pool while more is dirty than may stay (hak_decay_has_work), or the signal
 * comes. After it stored 1 the helper looks once more: a thread that still read 0 had changed before what is looked at
 * here, under the same lock or, for the signal, in the one order of all seq_cst operations. */
static void sleep_until_needed(void) {
  hak_store_seq(&hak_decay_sleeper, 1);
  if (!hak_decay_has_work() && hak_load_seq(&hak_report_signal_pending) == 0 && !hak_main_has_ended() && wanted()) hak_os_futex_wait(&hak_decay_sleeper, 1);
  hak_decay_stay_awake();
}

/* A thread that sets the option again meanwhile finds the 1, and starts none, or the helper finds the option set, and stays if no other has come. */
static bool ends(void) {
  if (wanted()) return false;
  hak_store_seq(&running, 0);
  return !wanted() || hak_exchange_seq(&running, 1) != 0;
}

static void *help(void *unused) {
  (void)unused;
  hak_os_name_thread("hakmem");
  hak_takes_large = true;
  uint64_t seen = activity();
  for (uint64_t quiet = 0; !ends();) {
    hak_os_drop_privileges(); /* what the program may have given up meanwhile too */
    hak_os_sleep_ms(HAK_DECAY_NEAR_MS);
    hak_end_if_alone();
    hak_deferred d = {0};
    hak_slow_exit(&d);
    if (hak_decay_step_due()) hak_decay_step(hak_os_now_ms(), true);
    uint64_t next = activity();
    quiet = next == seen ? quiet + HAK_DECAY_NEAR_MS : 0;
    seen = next;
    if (quiet < 3 * hak_decay_ms()) continue; /* pages of slabs go after two decay times at rest */
    sleep_until_needed();
    quiet = 0;
  }
  hak_thread_of_ours_ends();
  return NULL;
}

void hak_background_start(void) {
  if (!wanted() || hak_exchange_seq(&running, 1) != 0) return;
  HAK_ASSERT(hak_region_count() > 0); /* the thread reads what the start settles */
  int error = hak_thread_of_ours(help);
  if (error == 0) return;
  hak_store_seq(&running, 0);
  hak_print("hakmem: HAKMEM_BACKGROUND: no thread (%s): memory is given back without it\n", strerror(error));
}

void hak_background_follow(void) {
  if (!wanted())
    hak_decay_wake_helper();
  else if (hak_region_count() > 0)
    hak_background_start();
}

void hak_background_fork_child(bool restart) {
  hak_own_threads_fork_child();
  bool ran = running != 0;
  running = 0;
  if (ran && restart) hak_background_start();
}
