/* Slow half of the mutex: waiting, waking, and the fork bypass. Owns hak_fork_holder. */
#include "os/lock.h"

#include <stddef.h>

#include "os/os.h"

/* Looks at a lock before a thread sleeps. Sections are a few hundred instructions: a short spin usually ends a wait. */
#define SPINS 64
/* A holder that keeps the lock for so long has no processor, or is the thread itself, in a signal handler. */
#define COMES_FREE_MS 500

const void *hak_fork_holder;
bool hak_forked;

bool hak_inside_own_fork(void) {
  const void *holder = hak_load_relaxed(&hak_fork_holder);
  return holder != NULL && holder == hak_thread_mark();
}

void hak_lock_slow(hak_lock *lock) {
  HAK_ASSERT(hak_load_relaxed(&lock->state) <= 2);
  /* This thread holds every lock since its fork handler ran; handlers registered before ours may allocate now. */
  if (hak_inside_own_fork()) return;
  for (int spin = 0; spin < SPINS; spin++) {
    uint32_t expected = 0;
    if (hak_load_relaxed(&lock->state) == 0 && hak_cas_acquire(&lock->state, &expected, 1)) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  while (hak_exchange_acquire(&lock->state, 2) != 0) hak_os_futex_wait(&lock->state, 2);
}

bool hak_lock_comes_free(hak_lock *lock) {
  if (hak_inside_own_fork()) return true;
  for (unsigned waited = 0; !hak_lock_try(lock); waited++) {
    if (waited == COMES_FREE_MS) return false;
    hak_os_sleep_ms(1);
  }
  hak_lock_drop(lock);
  return true;
}

void hak_lock_wake(hak_lock *lock) { hak_os_futex_wake(&lock->state); }
