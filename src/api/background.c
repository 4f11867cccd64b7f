#include "api/background.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "api/profiler.h"
#include "api/slow_exit.h"
#include "api/thread.h"
#include "config/config.h"
#include "os/os.h"
#include "os/print.h"
#include "reclaim/decay.h"
#include "report/serve.h"

#define PERIOD_MS 250
#define STACK_BYTES ((size_t)64 * HAK_KIB)

static uint32_t main_ended; /* 1: the process's first thread has, and it is this library's threads that may keep the process */
static uint32_t threads_of_ours;

static bool running; /* written by the constructor and in children, where there is one thread */

/* It moves while there is work: spans taken and returned since the start, ranges purged, and what depots hold. */
static uint64_t activity(void) {
  return hak_load_relaxed(&hak_os_stats.alloc) + hak_load_relaxed(&hak_os_stats.free) +
         hak_load_relaxed(&hak_purge_stats.purges) + hak_load_relaxed(&hak_os_stats.huge_alloc) +
         hak_decay_idle_bytes();
}

/* Until somebody returns memory to the pool while more is dirty than may stay (see hak_decay_has_work), or sends the
 * signal. What happened before the word was 1 is looked at once more: whoever read 0 had changed what is read
 * here before that, under the same lock or, the signal, in the one order of all seq_cst operations.  */
static void sleep_until_needed(void) {
  hak_store_seq(&hak_decay_sleeper, 1);
  if (!hak_decay_has_work() && hak_load_seq(&hak_report_signal_pending) == 0 && !hak_main_has_ended()) hak_os_futex_wait(&hak_decay_sleeper, 1);
  hak_decay_stay_awake();
}

static int start_thread(void *(*run)(void *), size_t stack_bytes);

bool hak_background_only(void) {
  unsigned ours = hak_load_relaxed(&threads_of_ours);
  return ours != 0 && hak_os_threads() == ours + 1;
}

bool hak_main_has_ended(void) { return hak_load_seq(&main_ended) != 0; }

void hak_background_thread_ends(void) {
  if (hak_load_relaxed(&threads_of_ours) == 0 || hak_os_tid() != hak_os_pid()) return;
  hak_store_seq(&main_ended, 1);
  hak_decay_wake_helper();
  hak_profiler_wake();
}

static void *end_process(void *unused) {
  (void)unused;
  exit(0);
}

/* libc ends a process with its last thread, and takes ours for the program's. What exit calls has a stack as large as the program's
 * threads. */
void hak_end_if_alone(void) {
  static uint32_t done;
  if (!hak_main_has_ended() || hak_os_threads() > hak_load_relaxed(&threads_of_ours) + 1) return; /* the first one counts still */
  if (hak_exchange_acquire(&done, 1) == 0 && start_thread(end_process, 0) != 0) exit(0);
}

static void *help(void *unused) {
  (void)unused;
  hak_os_name_thread("hakmem");
  hak_takes_large = true;
  uint64_t seen = activity();
  for (uint64_t quiet = 0;;) {
    hak_os_drop_privileges(); /* what the program may have given up meanwhile too */
    hak_os_sleep_ms(PERIOD_MS);
    hak_end_if_alone();
    hak_deferred d = {0};
    hak_slow_exit(&d);
    if (hak_decay_step_due()) hak_decay_step(hak_os_now_ms(), true, &d);
    uint64_t next = activity();
    quiet = next == seen ? quiet + PERIOD_MS : 0;
    seen = next;
    if (quiet < 3 * hak_decay_ms()) continue; /* two of them pages of a slab have to be at rest */
    sleep_until_needed();
    quiet = 0;
  }
  return NULL;
}

/* stack_bytes 0: what the program's threads have. */
static int start_thread(void *(*run)(void *), size_t stack_bytes) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  if (stack_bytes != 0) pthread_attr_setstacksize(&attributes, stack_bytes);
  pthread_t thread;
  int error = pthread_create(&thread, &attributes, run, NULL);
  pthread_attr_destroy(&attributes);
  return error;
}

int hak_thread_of_ours(void *(*run)(void *)) {
  int saved = errno;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* the thread's own: the program's handlers are not to run on it */
  int error = start_thread(run, hak_max_size(STACK_BYTES, PTHREAD_STACK_MIN));
  if (error == EINVAL) error = start_thread(run, 0); /* the program's thread-local variables lie in each stack */
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error == 0) hak_store_relaxed(&threads_of_ours, threads_of_ours + 1);
  errno = saved;
  return error;
}

void hak_background_start(void) {
  if (hak_config.background == 0 || running || !hak_start()) return; /* the thread reads what the start settles */
  int error = hak_thread_of_ours(help);
  running = error == 0;
  if (!running)
    hak_print("hakmem: HAKMEM_BACKGROUND: no thread (%s): memory is given back without it\n", strerror(error));
}

void hak_background_fork_child(bool restart) {
  main_ended = threads_of_ours = 0;
  bool ran = running;
  running = false;
  if (ran && restart) hak_background_start();
}
