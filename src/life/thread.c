#include "life/thread.h"

#include <limits.h>
#include <pthread.h>

#include "entry/sampling.h"
#include "entry/slow_exit.h"
#include "guard/sample.h"
#include "harden/quarantine.h"
#include "harden/sweep.h"
#include "harden/trailer.h"
#include "heap/heap.h"
#include "large/dense.h"
#include "large/extent.h"
#include "large/guard_pages.h"
#include "large/huge.h"
#include "os/memory_limits.h"
#include "os/os.h"
#include "profile/profile.h"
#include "reclaim/decay.h"
#include "report/page.h"
#include "watch/background.h"
#include "watch/outside.h"
#include "watch/profiler.h"
#include "watch/samplers.h"

/* A thread is young for so many slow paths, those of as many blocks as a magazine holds, allocated and freed: it has no
 * cache, which would be some 20 KB with the magazines and blocks in it, and threads of a large pool may never need one.
 * A block straight from the arena costs some 50 ns. */
#define YOUNG_CALLS (2 * HAK_MAGAZINE_SLOTS)

/* Thread ends are seen by a pthread key; its destructor asks to be called again until the last round but one, so that
 * other keys' destructors, which may allocate and free, come first. */
#define END_IN_ROUND (PTHREAD_DESTRUCTOR_ITERATIONS - 1)
static pthread_key_t end_key;
static bool end_key_made; /* release after the key */

enum { COLD, READY };
static uint32_t start_state; /* READY is stored (release) when all is set up; acquire in hak_started */
static hak_lock start_lock;

bool hak_started(void) { return hak_load_acquire(&start_state) == READY; }

void hak_thread_end(void) {
  hak_deferred d = {0};
  hak_forbid_end();
  if (HAK_HARDENED) hak_quarantine_flush(); /* else nobody could use the blocks before the cache is another thread's */
  if (hak_tls.in_heap && hak_tls.cache != NULL) hak_heap_set_default(hak_tls.cache, NULL);
  uint64_t lived_ms = hak_tls.cache == NULL ? 0 : hak_os_now_ms() - hak_tls.cache->attached_ms;
  hak_heap_end_thread(&d);
  hak_tcache_detach(&d);
  hak_decay_thread_end(lived_ms, &d);
  hak_slow_exit(&d);
  if (!hak_own_threads_see_end()) return;
  hak_decay_wake_helper();
  hak_profiler_wake();
}

static void on_thread_end(void *memory) {
  hak_tcache *t = memory;
  hak_forbid_end();
  if (hak_tls.cache != t) return;
  if (hak_load_acquire(&end_key_made) && ++t->ending_rounds < END_IN_ROUND && pthread_setspecific(end_key, t) == 0)
    return;
  hak_thread_end();
}

/* libc's list of destructors of C++ thread_local objects, which is for everybody; NULL: not in this libc. */
extern int __cxa_thread_atexit_impl(void (*function)(void *), void *argument, void *library) __attribute__((weak));
extern void *__dso_handle;

/* glibc allocates 32 bytes for the entry, and aborts if it gets none: so one such block is cached first. */
static void watch_end_without_key(hak_tcache *t) {
  unsigned class_code = hak_class_for(4 * sizeof(void *));
  hak_deferred d = {0};
  void *p = __cxa_thread_atexit_impl == NULL ? NULL : hak_tcache_alloc(t, class_code, &d);
  if (p == NULL) return;
  hak_tcache_free(t, p, class_code, &d);
  __cxa_thread_atexit_impl(on_thread_end, t, &__dso_handle);
}

/* Slabs have huge pages once a program holds so much: below, 2 MiB more or less are much of it. */
#define HUGE_FROM (16 * HAK_MIB)
static size_t huge_pages_from(void) {
  if (hak_config.thp == HAK_THP_OFF || HAK_HARD(GUARDS)) return SIZE_MAX; /* no huge page is without a guard */
  return hak_config.thp == HAK_THP_ON ? 0 : HUGE_FROM / HAK_SPAN_SIZE;
}

static void init_classes_locked(void) {
  static bool done;
  hak_assert_held(&start_lock);
  if (!done) hak_size_class_init((unsigned)hak_config.tiny_max_class);
  done = true;
}

void hak_start_classes(void) {
  hak_lock_take(&start_lock);
  init_classes_locked();
  hak_lock_drop(&start_lock);
}

static bool start_locked(void) {
  hak_assert_held(&start_lock);
  hak_config_load(hak_os_environment(NULL));
  init_classes_locked();
  hak_arena_start();
  hak_span_pool.huge_from_spans = huge_pages_from();
  hak_decay_start();
  hak_store_relaxed(&hak_requests_noted, hak_config.stats != HAK_STATS_OFF || hak_config.stats_page != 0);
  if (!hak_region_init((size_t)hak_config.reserve_mb * HAK_MIB)) return false;
  if (HAK_HARD(GUARDS)) hak_guard_pages_start();
  return true;
}

/* Under no lock: a program may interpose pthread_key_create, and allocate there. The cache that serves it, and other
 * threads that come by meanwhile, are watched without the key. */
static void make_end_key(void) {
  static uint32_t asked;
  if (hak_exchange_acquire(&asked, 1) != 0) return;
  if (pthread_key_create(&end_key, on_thread_end) == 0) hak_store_release(&end_key_made, true);
}

bool hak_start(void) {
  if (HAK_LIKELY(hak_started())) return true;
  hak_fork_register();
  if (HAK_HARD(CANARY)) hak_trailer_start();
  make_end_key();
  HAK_SCHEDULE_POINT("start: not ready");
  hak_lock_take(&start_lock);
  if (start_state != READY) hak_store_release(&start_state, start_locked() ? READY : COLD);
  hak_lock_drop(&start_lock);
  return hak_started();
}

static bool bypasses(void) { return hak_config.front_metrics != 0 || hak_config.hot_ring_enable == 0; }

static hak_tcache *make_cache(void) {
  hak_tcache *t = hak_tcache_attach(bypasses());
  if (t == NULL) return NULL;
  if (hak_config.map_names == 1) hak_os_leave_unnamed(); /* reservation, tables and metadata have their names */
  /* Attached first: glibc may allocate inside, and then finds the cache in place. */
  if (!hak_load_acquire(&end_key_made) || pthread_setspecific(end_key, t) != 0) watch_end_without_key(t);
  return t;
}

hak_tcache *hak_thread_make_cache(void) {
  return hak_tls.phase < HAK_THREAD_ENDED && hak_start() ? make_cache() : NULL;
}

/* The process's first thread has its cache at once: most programs have one thread. */
static bool begins_young(void) {
  static uint32_t begun; /* relaxed */
  if (HAK_HARDENED || bypasses()) return false;
  return hak_load_relaxed(&begun) != 0 || hak_exchange_acquire(&begun, 1) != 0;
}

hak_tcache *hak_thread_grow_up(void) {
  if (hak_tls.phase >= HAK_THREAD_ENDED || !hak_started()) return NULL;
  if (hak_tls.calls == 0 && !begins_young()) hak_tls.calls = YOUNG_CALLS;
  if (hak_tls.calls < YOUNG_CALLS) {
    hak_tls.calls++;
    return NULL;
  }
  hak_tcache *t = make_cache();
  if (HAK_UNLIKELY(t == NULL)) hak_tls.calls = 1; /* memory is out: young again, so that few slow paths ask for it */
  return t;
}

/* A thousand blocks, each of which may be a few cache misses: a fraction of a millisecond. */
#define CHECKED_MAGAZINES 16

void hak_thread_check_cached(void) {
  if (!HAK_CHECKS || !hak_started()) return;
  hak_deferred d = {0};
  if (hak_tls.cache != NULL) hak_tcache_flush(hak_tls.cache, &d);
  hak_arena_check_depots(CHECKED_MAGAZINES, &d);
  hak_report_bad(&d);
}

/* --- fork ---
 *
 * The forking thread takes every lock in rank order, and passes through them while it holds them (os/lock.h). Handlers
 * registered before ours run inside that window and may allocate. */

/* In rank order: locks, and boxes that have several. */
static const struct fork_lock {
  hak_lock *lock;
  void (*take)(void), (*drop)(void);
} fork_locks[] = {
    {NULL, hak_heap_fork_lock_ends, hak_heap_fork_unlock_ends},
    {&hak_sampling_lock},
    {&start_lock},
    {&hak_profile_lock},
    {NULL, hak_tcache_fork_lock, hak_tcache_fork_unlock},
    {NULL, hak_heap_fork_lock, hak_heap_fork_unlock},
    {NULL, hak_purge_fork_lock, hak_purge_fork_unlock},
    {&hak_span_pool.lock},
    {&hak_meta_lock},
    {&hak_huge_lock},
    {&hak_sample_lock},
    {&hak_memory_limits_lock},
};
#define FORK_LOCKS (sizeof fork_locks / sizeof fork_locks[0])

/* Of the fork under way: its prepare handler took no lock. */
static bool alone;

/* A lone thread that forks while it holds a lock does so in a signal handler: both copies go on with the interrupted
 * call. Where the other threads are the library's, which hold locks for microseconds, one that does not come free is
 * held by this thread. */
static bool is_alone(void) {
  return hak_os_single_threaded() || (hak_own_threads_only() && !hak_fork_may_lock());
}

static HAK_COLD void before_fork(void) {
  hak_store_relaxed(&alone, is_alone());
  if (hak_load_relaxed(&alone)) return;
  hak_thread_cache(); /* now, not inside the window; failure is harmless */
  /* fork waits for this one after the handlers, and fflush(NULL) holds it while it waits for a stream whose user may
   * wait for our locks: taken first, it is waited for while we hold none. */
  hak_os_streams(HAK_OS_STREAMS_LOCK);
  for (size_t i = 0; i < FORK_LOCKS; i++)
    fork_locks[i].lock != NULL ? hak_lock_take(fork_locks[i].lock) : fork_locks[i].take();
  hak_store_relaxed(&hak_fork_holder, hak_thread_mark());
}

static HAK_COLD void drop_locks(void) {
  HAK_ASSERT(hak_load_relaxed(&hak_fork_holder) == hak_thread_mark());
  hak_store_relaxed(&hak_fork_holder, NULL);
  for (size_t i = FORK_LOCKS; i-- > 0;)
    fork_locks[i].lock != NULL ? hak_lock_drop(fork_locks[i].lock) : fork_locks[i].drop();
}

static HAK_COLD void after_fork_parent(void) {
  if (hak_load_relaxed(&alone)) return;
  drop_locks();
  hak_os_streams(HAK_OS_STREAMS_UNLOCK);
}

/* libc allocates for a thread. A signal handler that forks may have interrupted this one in the middle of a push or a
 * pop: meanwhile it has no cache. */
static void restart_threads(void) {
  static hak_thread interrupted; /* too large for the smallest stacks */
  interrupted = hak_tls;
  for (unsigned code = 0; code < HAK_CODES; code++) hak_tls.top[code] = HAK_NULL_TOP;
  hak_tls.cache = NULL;
  hak_tls.heap_cache = NULL;
  hak_tls.phase = HAK_THREAD_ENDED;
  hak_background_fork_child(true);
  hak_profiler_fork_child(true);
  hak_tls = interrupted;
}

/* Our locks are dropped like in the parent, not reset: a thread that an earlier handler has started may wait. libc
 * resets the streams' lock itself, if it took it. */
static HAK_COLD void after_fork_child(void) {
  hak_store_relaxed(&hak_forked, true);
  hak_stats_page_fork_child();
  hak_budget_fork_child();
  hak_decay_fork_child();
  hak_outside_fork_child();
  if (HAK_HARD_SWEEP) hak_sweep_fork_child();
  if (hak_load_relaxed(&alone)) {
    hak_heap_fork_child_alone();
    hak_tcache_fork_child_alone();
    hak_background_fork_child(false); /* a thread needs memory, and this one may be inside the allocator */
    hak_profiler_fork_child(false);
    return;
  }
  hak_purge_fork_child();
  hak_pool_fork_child();
  hak_meta_fork_child();
  hak_heap_fork_child();
  hak_tcache_fork_child();
  drop_locks();
  hak_os_streams(HAK_OS_STREAMS_RESET);
  restart_threads();
}

bool hak_fork_may_lock(void) {
  for (size_t i = 0; i < FORK_LOCKS; i++) {
    if (fork_locks[i].lock != NULL && !hak_lock_comes_free(fork_locks[i].lock)) return false;
  }
  return hak_tcache_all_locks(hak_lock_comes_free) && hak_heap_all_locks(hak_lock_comes_free);
}

void hak_fork_register(void) {
  static uint32_t registered;
  if (hak_exchange_acquire(&registered, 1) == 0) pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}
