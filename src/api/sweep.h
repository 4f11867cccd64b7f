/* The hardened build's walk over its blocks: what is wrong with a block that nobody frees, or takes again, is found there.
 *
 * A live block's trailer and fill are looked at, and whether a free block still is zero, while other threads go on (api/held.h has the
 * argument). Any finding ends the program. */
#ifndef HAK_API_SWEEP_H
#define HAK_API_SWEEP_H

#include "tcache/cache.h"

/* At the end of a slow path: a little of the heap, a hundredth of a processor's time at most. Nothing in a child, which would have to ask the
 * system for each page, and may have forbidden itself to. */
void hak_sweep_some(void);
/* In the child of a fork: no other thread is at it. */
void hak_sweep_fork_child(void);
/* As if there had been no fork; for tests. */
void hak_sweep_forget_fork(void);
/* The same when a fault ends it. */
void hak_sweep_at_crash(void);
/* Whether this process is a fork's child: of what it does not know, pages may have been kept from it. */
bool hak_sweep_is_child(void);
/* When the process ends: for a tenth of a second at most, from anywhere on; and as long as locks may take to come free. */
void hak_sweep_at_exit(void);
/* Ends the program if the block is damaged that lies beside one of the same size, in its slab where a slab has several; `where` is for
 * the report. The other one is the caller's. */
void hak_sweep_neighbour(const hak_region *region, const void *p, size_t block_size, const char *where);
/* The same of the bytes before a slab's first block, which is the caller's. */
void hak_sweep_before_first(const hak_region *region, const void *p, const char *where);

#endif
