/* The hardened build's walk over its blocks: it finds damage in blocks that nobody frees or takes again.
 *
 * A live block's trailer and fill are looked at, and whether a free block still is zero, while other threads go on
 * (harden/held.h has the argument). Any finding ends the program. */
#ifndef HAK_HARDEN_SWEEP_H
#define HAK_HARDEN_SWEEP_H

#include "tcache/cache.h"

/* At the end of a slow path: a little of the heap, a hundredth of a processor's time at most. Nothing in a fork's
 * child, which would have to ask the system for each page, and may be forbidden to. */
void hak_sweep_some(void);
/* In the child of a fork: no other thread walks. */
void hak_sweep_fork_child(void);
/* When the process ends: walks for a tenth of a second at most, from a random span on, after waiting for locks. */
void hak_sweep_at_exit(void);
/* The same when a fault ends it. */
void hak_sweep_at_crash(void);
/* p: beside a block of the caller's and as large, in its slab where a slab has several. Ends the program if p is
 * damaged; `where` is for the report. */
void hak_sweep_neighbour(const hak_region *region, const void *p, size_t block_size, const char *where);
/* The same of the bytes before a slab's first block, which is the caller's. */
void hak_sweep_before_first(const hak_region *region, const void *p, const char *where);

#endif
