#include "watch/background.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "entry/slow_exit.h"
#include "heap/heap.h"
#include "os/os.h"
#include "os/print.h"
#include "reclaim/decay.h"
#include "report/serve.h"

/* Small: a program may lock all of its memory (mlockall). */
#define STACK_BYTES ((size_t)64 * HAK_KIB)
/* Between two turns of the helper while there is work: at the default decay time, a second, a look is due as often. */
#define PERIOD_MS 250

/* 1: the process's first thread has ended, and the library's threads may be all that keeps the process */
static uint32_t main_ended;
static uint32_t threads_of_ours;

bool hak_own_threads_only(void) {
  unsigned ours = hak_load_relaxed(&threads_of_ours);
  return ours != 0 && hak_os_threads() == ours + 1;
}

bool hak_main_has_ended(void) { return hak_load_seq(&main_ended) != 0; }

bool hak_own_threads_see_end(void) {
  if (hak_load_relaxed(&threads_of_ours) == 0 || hak_os_tid() != hak_os_pid()) return false;
  hak_store_seq(&main_ended, 1);
  return true;
}

/* stack_bytes 0: what the program's threads have. libc keeps what it allocates for a thread (its table of thread-local
 * blocks), for later threads too: no heap of the calling thread's may have that. */
static int start_thread(void *(*run)(void *), size_t stack_bytes) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  if (stack_bytes != 0) pthread_attr_setstacksize(&attributes, stack_bytes);
  pthread_t thread;
  bool was = hak_heap_suspend();
  int error = pthread_create(&thread, &attributes, run, NULL);
  hak_heap_resume(was);
  pthread_attr_destroy(&attributes);
  return error;
}

static void *end_process(void *unused) {
  (void)unused;
  exit(0);
}

/* libc ends a process with its last thread, and counts the library's. exit runs on a new thread, with a stack as large
 * as the program's threads have. */
void hak_end_if_alone(void) {
  static uint32_t done;
  /* The ended first thread still counts */
  if (!hak_main_has_ended() || hak_os_threads() > hak_load_relaxed(&threads_of_ours) + 1) return;
  if (hak_exchange_acquire(&done, 1) == 0 && start_thread(end_process, 0) != 0) exit(0);
}

int hak_thread_of_ours(void *(*run)(void *)) {
  int saved = errno;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* the thread inherits it: the program's handlers must not run there */
  int error = start_thread(run, hak_max_size(STACK_BYTES, PTHREAD_STACK_MIN));
  /* The program's thread-local variables, in each stack, leave too little */
  if (error == EINVAL) error = start_thread(run, 0);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error == 0) hak_add_relaxed(&threads_of_ours, 1);
  errno = saved;
  return error;
}

/* --- the helper --- */

/* 1: there is a helper, or a thread is about to start it. Who sets it starts the helper; the helper sets 0 before it
 * ends. Sequentially consistent, as HAKMEM_BACKGROUND: docs/locking.md. */
static uint32_t running;

static bool wanted(void) { return hak_load_seq(&hak_config.background) != 0; }

/* A sum that changes while there is work: spans taken and returned since the start, ranges purged, and what depots
 * hold. */
static uint64_t activity(void) {
  return hak_load_relaxed(&hak_os_stats.alloc) + hak_load_relaxed(&hak_os_stats.free) +
         hak_load_relaxed(&hak_purge_stats.purges) + hak_load_relaxed(&hak_os_stats.huge_alloc) +
         hak_decay_idle_bytes();
}

/* Sleeps until a thread returns memory to the pool while more is dirty than may stay (hak_decay_has_work), or the
 * signal comes. After it stored 1 the helper looks once more: a thread that still read 0 had changed before what is
 * looked at here, under the same lock or, for the signal, in the one order of all seq_cst operations. */
static void sleep_until_needed(void) {
  hak_store_seq(&hak_decay_sleeper, 1);
  if (!hak_decay_has_work() && hak_load_seq(&hak_report_signal_pending) == 0 && !hak_main_has_ended() && wanted())
    hak_os_futex_wait(&hak_decay_sleeper, 1);
  hak_decay_stay_awake();
}

/* A thread that sets the option again meanwhile finds the 1, and starts none, or the helper finds the option set, and
 * stays if no other has come. */
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
    hak_os_sleep_ms(PERIOD_MS);
    hak_end_if_alone();
    hak_deferred d = {0};
    hak_slow_exit(&d);
    if (hak_decay_step_due()) hak_decay_step(hak_os_now_ms(), true);
    uint64_t next = activity();
    quiet = next == seen ? quiet + PERIOD_MS : 0;
    seen = next;
    if (quiet < 3 * hak_decay_ms()) continue; /* pages of slabs go after two decay times at rest */
    sleep_until_needed();
    quiet = 0;
  }
  hak_sub_relaxed(&threads_of_ours, 1);
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
  bool ran = running != 0;
  running = main_ended = threads_of_ours = 0;
  if (ran && restart) hak_background_start();
}
