#include "api/own_threads.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "os/os.h"

#define STACK_BYTES ((size_t)64 * HAK_KIB)

static uint32_t main_ended; /* 1: the process's first thread has ended, and the library's threads may be all that keeps the process */
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

static void *end_process(void *unused) {
  (void)unused;
  exit(0);
}

/* libc ends a process with its last thread, and counts the library's. exit runs on a new thread, with a stack as large as the
 * program's threads have. */
void hak_end_if_alone(void) {
  static uint32_t done;
  if (!hak_main_has_ended() || hak_os_threads() > hak_load_relaxed(&threads_of_ours) + 1) return; /* the ended first thread still counts */
  if (hak_exchange_acquire(&done, 1) == 0 && start_thread(end_process, 0) != 0) exit(0);
}

int hak_thread_of_ours(void *(*run)(void *)) {
  int saved = errno;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* the thread inherits it: the program's handlers must not run there */
  int error = start_thread(run, hak_max_size(STACK_BYTES, PTHREAD_STACK_MIN));
  if (error == EINVAL) error = start_thread(run, 0); /* the program's thread-local variables, in each stack, leave too little */
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error == 0) hak_add_relaxed(&threads_of_ours, 1);
  errno = saved;
  return error;
}

void hak_thread_of_ours_ends(void) { hak_sub_relaxed(&threads_of_ours, 1); }

void hak_own_threads_fork_child(void) { main_ended = threads_of_ours = 0; }
