/* fork: the forking thread takes every lock in rank order, and passes through them while it holds them (os/lock.h).
 * Handlers registered before ours run inside that window and may allocate. */
#include <pthread.h>
#include <string.h>

#include "api/init.h"
#include "heap/heap.h"
#include "large/huge.h"
#include "pool/cell.h"
#include "pool/span_pool.h"
#include "report/report.h"

static void before_fork(void) {
  hak_heap_make_current(); /* now, not inside the window; failure is harmless */
  hak_heap_fork_lock();
  hak_lock_take(&hak_span_pool.lock);
  hak_lock_take(&hak_cell_lock);
  hak_lock_take(&hak_huge_lock);
  hak_store_relaxed(&hak_fork_holder, hak_thread_mark());
}

static void after_fork_parent(void) {
  hak_store_relaxed(&hak_fork_holder, NULL);
  hak_lock_drop(&hak_huge_lock);
  hak_lock_drop(&hak_cell_lock);
  hak_lock_drop(&hak_span_pool.lock);
  hak_heap_fork_unlock();
}

static void after_fork_child(void) {
  hak_store_relaxed(&hak_fork_holder, NULL);
  memset(&hak_huge_lock, 0, sizeof hak_huge_lock);
  memset(&hak_cell_lock, 0, sizeof hak_cell_lock);
  memset(&hak_span_pool.lock, 0, sizeof hak_span_pool.lock);
  hak_heap_fork_child();
  hak_heap_check_fork_child();
}

void hak_fork_register(void) { pthread_atfork(before_fork, after_fork_parent, after_fork_child); }
