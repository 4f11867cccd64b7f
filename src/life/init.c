/* Constructor and destructor: fork handlers, settings, prewarming, reports at exit.
 * malloc works before the first and after the second.
 *
 * The constructor runs before all others, libc's too (-z initfirst; override/first.c): prepare handlers run in the
 * reverse order of their registration, and one that waits for a thread that allocates would wait for ever if ours had
 * run before it. So the constructor uses nothing of libc that libc's constructor sets up, which is environ, argv and
 * program_invocation_name. */
#include "life/init.h"

#include <stdlib.h>

#include "hakmem/hakmem.h"
#include "entry/slow_exit.h"
#include "guard/sample.h"
#include "harden/sweep.h"
#include "harden/trailer.h"
#include "life/thread.h"
#include "os/os.h"
#include "os/print.h"
#include "report/serve.h"
#include "watch/background.h"
#include "watch/crash.h"
#include "watch/profiler.h"
#include "watch/samplers.h"

const char hak_init_linked = 1;

static void prewarm(void) {
  hak_deferred d = {0};
  hak_tcache *t = NULL;
  for (unsigned c = 0; hak_class_size(c) <= HAK_SHARED_MAX; c++) {
    int64_t blocks = hak_config.prewarm[hak_class_group(hak_class_size(c))];
    if (blocks > 0 && hak_start() && (t = hak_thread_grown()) != NULL) hak_tcache_prewarm(t, c, (unsigned)blocks, &d);
  }
  if (t != NULL) hak_slow_exit(&d);
}

static void load_settings(char **variables) {
  if (hak_config_loaded()) return;
  /* A malloc before this constructor found no environment in libc, and has settled the slab layout. */
  int64_t tiny_max_class = hak_config.tiny_max_class;
  bool late = hak_started();
  hak_config_load(variables);
  if (late && hak_config.tiny_max_class != tiny_max_class) {
    hak_print("hakmem: HAKMEM_TINY_MAX_CLASS was read after the first allocation: using %lld\n",
              (long long)tiny_max_class);
    hak_config.tiny_max_class = tiny_max_class;
  }
}

/* Priorities up to 100 are the implementation's; a test installs its fake system at 101. */
__attribute__((constructor(102))) void hak_start_first(int argc, char **argv, char **variables) {
  (void)argc, (void)argv;
  static bool done;
  if (done) return;
  done = true;
  load_settings(hak_os_environment(variables));
  hak_start_classes();
  hak_fork_register();
  if (HAK_HARD(CANARY)) hak_trailer_start();
  if (HAK_HARD_SWEEP) at_quick_exit(hak_sweep_at_exit);
  if (hak_config.heap_profile != 0) hak_start();
  hak_sampling_start();
  if (HAK_HARD(GUARDS)) hak_crash_start();
  hak_budget_look(hak_os_now_ms()); /* the target holds from the start */
  if (hak_report_wanted_at_exit() || hak_profiler_wanted_at_exit()) hak_os_keep_stderr();
  if (hak_config.verbose) {
    hak_print("hakmem: version %s\n", HAKMEM_VERSION_STRING);
    hak_config_print();
  }
  if (hak_config.hot_ring_enable) prewarm();
  hak_report_start();
  if (hak_config.background != 0 && hak_start()) hak_background_start();
  hak_profiler_start();
}

__attribute__((destructor)) static void on_unload(void) {
  bool may_lock = hak_fork_may_lock();
  hak_profiler_at_exit(may_lock);
  if (hak_report_wanted_at_exit()) hak_report_at_exit(may_lock);
  if (HAK_HARD_SWEEP)
    hak_sweep_at_exit();
  else if (may_lock && !hak_load_relaxed(&hak_forked)) /* a child would copy pages of the heap, and its parent looks */
    hak_thread_check_cached();
}
