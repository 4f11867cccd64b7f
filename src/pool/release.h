/* The release policy: one function decides whether dirty free memory is kept, one gives pages back.
 *
 * Kept at most: max(64 MiB, live) at once, as far as whole huge pages are free, and max(2 MiB, 8 % of live) once it
 * has been idle for two epochs of 250 ms; never more than twice the first for longer than an epoch. The system call is
 * made with no lock held: a run is claimed, advised, put back. */
#ifndef HAK_POOL_RELEASE_H
#define HAK_POOL_RELEASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The decision for memory that has just become free, in spans. */
bool hak_release_over_limit(size_t dirty_spans, size_t live_spans);

/* Gives whole huge pages back until the policy is content or there are no more. Caller holds no lock. */
void hak_release_excess(void);

/* Called every so many slow paths: when an epoch has passed, gives back what has been idle for two. */
void hak_release_tick(uint64_t now_ms);

/* Gives back all dirty free memory beyond keep_bytes; returns the bytes given back. Caller holds no lock. */
size_t hak_release_all(size_t keep_bytes);

/* span_pool.c: the epoch to stamp returned spans with. */
void hak_pool_set_epoch(uint32_t epoch);

#endif
