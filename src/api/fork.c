/* fork: the forking thread takes every lock in rank order, and passes through them while it holds them (os/lock.h).
 * Handlers registered before ours run inside that window and may allocate. */
#include <pthread.h>

#include "api/background.h"
#include "api/profiler.h"
#include "api/init.h"
#include "api/sweep.h"
#include "api/thread.h"
#include "guard/sample.h"
#include "large/huge.h"
#include "os/memory_limits.h"
#include "os/os.h"
#include "pool/budget.h"
#include "pool/meta.h"
#include "pool/span_pool.h"
#include "profile/profile.h"
#include "reclaim/decay.h"
#include "report/page.h"
#include "report/report.h"

/* Written between the handlers of one fork: nothing was locked. */
static bool alone;
bool hak_forked;

/* A lone thread that forks while it holds a lock does so in a signal handler: both copies go on with what it was at. Where the other
 * threads are the library's, which hold locks for microseconds, one that does not come free is held by this thread. */
static bool is_alone(void) {
  return hak_os_single_threaded() || (hak_background_only() && !hak_fork_may_lock());
}

static void before_fork(void) {
  hak_store_relaxed(&alone, is_alone());
  if (hak_load_relaxed(&alone)) return;
  hak_thread_cache(); /* now, not inside the window; failure is harmless */
  /* fork waits for this one after the handlers, and fflush(NULL) holds it while it waits for a stream whose user may wait
   * for our locks: taken first, it is waited for while we hold none. */
  hak_os_streams_lock();
  hak_lock_take(&hak_heap_check_lock);
  hak_thread_fork_lock();
  hak_lock_take(&hak_profile_lock);
  hak_tcache_fork_lock();
  hak_purge_fork_lock();
  hak_lock_take(&hak_span_pool.lock);
  hak_lock_take(&hak_meta_lock);
  hak_lock_take(&hak_huge_lock);
  hak_lock_take(&hak_sample_lock);
  hak_lock_take(&hak_memory_limits_lock);
  hak_store_relaxed(&hak_fork_holder, hak_thread_mark());
}

static void drop_locks(void) {
  hak_store_relaxed(&hak_fork_holder, NULL);
  hak_lock_drop(&hak_memory_limits_lock);
  hak_lock_drop(&hak_sample_lock);
  hak_lock_drop(&hak_huge_lock);
  hak_lock_drop(&hak_meta_lock);
  hak_lock_drop(&hak_span_pool.lock);
  hak_purge_fork_unlock();
  hak_tcache_fork_unlock();
  hak_lock_drop(&hak_profile_lock);
  hak_thread_fork_unlock();
  hak_lock_drop(&hak_heap_check_lock);
}

static void after_fork_parent(void) {
  if (hak_load_relaxed(&alone)) return;
  drop_locks();
  hak_os_streams_unlock();
}

/* libc allocates for a thread. A signal handler that forks may have interrupted this one in the middle of a push or a pop: meanwhile
 * it has no cache. */
static void restart_threads(void) {
  static hak_thread interrupted; /* too large for the smallest stacks */
  interrupted = hak_tls;
  for (unsigned code = 0; code < HAK_CODES; code++) hak_tls.top[code] = HAK_NULL_TOP;
  hak_tls.cache = NULL;
  hak_tls.phase = HAK_THREAD_ENDED;
  hak_background_fork_child(true);
  hak_profiler_fork_child(true);
  hak_tls = interrupted;
}

/* Our locks are dropped like in the parent, not reset: a thread that a handler before this one has started may wait. The
 * streams' libc resets itself, if it took it. */
static void after_fork_child(void) {
  hak_store_relaxed(&hak_forked, true);
  hak_stats_page_fork_child();
  hak_budget_fork_child();
  hak_decay_fork_child();
  if (HAK_HARD_SWEEP) hak_sweep_fork_child();
  if (hak_load_relaxed(&alone)) {
    hak_tcache_fork_child_alone();
    hak_background_fork_child(false); /* a thread needs memory, and this one may be inside the allocator */
    hak_profiler_fork_child(false);
    return;
  }
  hak_purge_fork_child();
  hak_tcache_fork_child();
  hak_pool_fork_child();
  hak_meta_fork_child();
  drop_locks();
  hak_os_streams_reset();
  restart_threads();
}

bool hak_fork_may_lock(void) {
  hak_lock *const locks[] = {&hak_heap_check_lock, &hak_profile_lock, &hak_span_pool.lock,      &hak_meta_lock,
                             &hak_huge_lock,       &hak_sample_lock,  &hak_memory_limits_lock};
  for (size_t i = 0; i < sizeof locks / sizeof locks[0]; i++) {
    if (!hak_lock_comes_free(locks[i])) return false;
  }
  return hak_thread_all_locks(hak_lock_comes_free) && hak_tcache_all_locks(hak_lock_comes_free);
}

void hak_fork_register(void) {
  static uint32_t registered;
  if (__atomic_exchange_n(&registered, 1, __ATOMIC_RELAXED) == 0)
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}
