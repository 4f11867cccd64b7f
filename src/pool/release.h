/* The release policy: one function decides whether dirty free memory is kept, one gives pages back.
 *
 * Kept at most: max(12 MiB, 12 % of live) at once, as far as whole huge pages are free or most memory is, and max(2 MiB,
 * 8 % of live) once it has been idle for two epochs of 250 ms; never more than twice the first for longer than an epoch
 * where that has not proved to be in vain. Profile speed and
 * memory-lean mode have figures of their own, and near the target of budget.h less is kept. The system call is made with
 * no lock held: a run is claimed, advised, put back. */
#ifndef HAK_POOL_RELEASE_H
#define HAK_POOL_RELEASE_H

#include "os/os.h"
#include "pool/span_pool.h"

struct hak_release_stats {
  uint64_t purges; /* runs given back */
  uint64_t bytes;
  uint64_t hole_pages; /* of them, inside slabs */
};
extern struct hak_release_stats hak_release_stats; /* relaxed */

/* Takes the profile's figures from the settings. */
void hak_release_start(void);

/* The decision for memory that has just become free, in spans. */
bool hak_release_over_limit(size_t dirty_spans, size_t live_spans);

/* The one function that gives pages back: inside a region, of spans or blocks that the caller has claimed. `may_wait`: the
 * kernel may take its time where the settings say so. Caller holds no lock. */
hak_pages hak_release_pages(void *start, size_t bytes, bool may_wait);

/* Whether many pieces go at one call: whoever claims should claim many before it has them given back. */
bool hak_release_in_batches(bool may_wait);
/* hak_release_pages for many. What became of each is in `out`. */
void hak_release_batch(const hak_os_piece *pieces, size_t count, bool may_wait, hak_pages *out);

/* Gives back until the policy is content: whole huge pages, and pieces where much is left. Caller holds no lock. */
void hak_release_excess(void);

/* How often the program has freed most of what it had. What a thread has cached of that, one block here and one there,
 * keeps as many slabs: it gives its caches back when it finds this changed. */
extern uint32_t hak_release_subsidences; /* relaxed */
/* It was the last thing that happened: the program has not come to hold more since. */
extern bool hak_release_subsided; /* relaxed */
/* Whether what is left is so little that it may be freed without caches. */
bool hak_release_nearly_empty(void);

/* Called every so many slow paths: when an epoch has passed, gives back what has been idle for two. */
void hak_release_tick(uint64_t now_ms);

/* Gives so many dirty spans back, but for what the profile keeps when idle, and nothing in profile speed. Returns how many.
 * Caller holds no lock. */
size_t hak_release_some(size_t spans);

/* Gives back all dirty free memory beyond keep_bytes; returns the bytes given back. Caller holds no lock. */
size_t hak_release_all(size_t keep_bytes);

/* The helper thread's futex word: 1 while it sleeps until there is something to do. Who frees memory and finds 1 is told
 * by hak_release_over_limit, sets 0 and wakes it in hak_release_excess. */
extern uint32_t hak_release_sleeper;
void hak_release_wake_helper(void);
/* Whether a tick will have something to give back, now or once it is idle. Takes the pool's lock: whoever returns memory
 * later finds what the caller stored before. */
bool hak_release_has_work(void);

#endif
