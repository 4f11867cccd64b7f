/* A futex mutex, and the rule that lets a forking thread pass through locks it already holds.
 *
 * States: 0 free, 1 held, 2 held with waiters. The exchange or compare-and-swap that takes the lock is an
 * acquire and pairs with the release exchange in hak_unlock. Lock ranks are in docs/locking.md. */
#ifndef HAK_OS_LOCK_H
#define HAK_OS_LOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/assert.h"
#include "base/atomic.h"
#include "base/compiler.h"

typedef struct hak_lock {
  uint32_t state;
#if HAK_ASSERTS
  const void *owner; /* mark of the holder; relaxed: only the holder may rely on it */
#endif
} hak_lock;

/* Identity of the thread that is inside fork() and holds every lock, or NULL (written in life/thread.c only). */
extern const void *hak_fork_holder;
/* This process is a fork's child. Relaxed. */
extern bool hak_forked;

/* An address that differs between threads alive at the same time. */
const void *hak_thread_mark(void);

void hak_lock_slow(hak_lock *lock);
void hak_lock_wake(hak_lock *lock);
bool hak_inside_own_fork(void);
/* Waits up to half a second until the lock is free. False: this thread holds it, in a signal handler that has
 * interrupted it there; or the holder, whose section lasts microseconds, had no processor for so long. */
bool hak_lock_comes_free(hak_lock *lock);

/* hak_assert_held: the calling thread holds the lock. In release builds both are nothing. */
#if HAK_ASSERTS
#define hak_lock_note_owner(lock, mark) hak_store_relaxed(&(lock)->owner, (mark))
#define hak_assert_held(lock) HAK_ASSERT(hak_load_relaxed(&(lock)->owner) == hak_thread_mark())
#else
#define hak_lock_note_owner(lock, mark) ((void)0)
#define hak_assert_held(lock) ((void)0)
#endif

HAK_INLINE void hak_lock_take(hak_lock *lock) {
  uint32_t expected = 0;
  if (HAK_UNLIKELY(!hak_cas_acquire(&lock->state, &expected, 1))) hak_lock_slow(lock);
  hak_lock_note_owner(lock, hak_thread_mark());
}

HAK_INLINE void hak_lock_drop(hak_lock *lock) {
  /* Inside its own fork a thread keeps everything; the fork handler releases all locks for good. */
  if (HAK_UNLIKELY(hak_load_relaxed(&hak_fork_holder) != 0) && hak_inside_own_fork()) return;
  hak_assert_held(lock);
  hak_lock_note_owner(lock, 0);
  if (HAK_UNLIKELY(hak_exchange_release(&lock->state, 0) == 2)) hak_lock_wake(lock);
}

/* True when the lock was taken. Never waits. */
HAK_INLINE bool hak_lock_try(hak_lock *lock) {
  uint32_t expected = 0;
  bool taken = hak_cas_acquire(&lock->state, &expected, 1);
  if (taken) hak_lock_note_owner(lock, hak_thread_mark());
  return taken;
}

#endif
