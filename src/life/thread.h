/* Start of the allocator, and the life of a thread as the allocator sees it. */
#ifndef HAK_LIFE_THREAD_H
#define HAK_LIFE_THREAD_H

#include "tcache/tcache.h"

/* Makes the allocator ready; idempotent, any thread. False: no address space at all. */
bool hak_start(void);
bool hak_started(void);

/* The calling thread's cache, made if it has none. NULL: the thread has ended or memory is out. */
hak_tcache *hak_thread_make_cache(void);
HAK_INLINE hak_tcache *hak_thread_cache(void) {
  hak_tcache *t = hak_tls.cache;
  return HAK_LIKELY(t != 0) ? t : hak_thread_make_cache();
}

/* The same, but NULL too while the thread is young: then its arena serves it block by block. Counts the call. Starts
 * nothing: a free never has to, and a request calls hak_start before. */
hak_tcache *hak_thread_grow_up(void);
HAK_INLINE hak_tcache *hak_thread_grown(void) {
  hak_tcache *t = hak_tls.cache;
  return HAK_LIKELY(t != 0) ? t : hak_thread_grow_up();
}

/* Ends the calling thread's use of its cache now; for tests. */
void hak_thread_end(void);

/* At the end of the process: returns to slabs what the calling thread caches, and the latest thousand blocks of the
 * depots, and ends the program if one was freed wrongly. Purges nothing. */
void hak_thread_check_cached(void);

/* Sets up the table of size classes before a first allocation, for readers of statistics. */
void hak_start_classes(void);

/* Registers the fork handlers; the second call does nothing. */
void hak_fork_register(void);
/* Whether every lock comes free: not in a signal handler that has interrupted this thread under one. Waits up to half a
 * second for those of other threads. */
bool hak_fork_may_lock(void);

#endif
