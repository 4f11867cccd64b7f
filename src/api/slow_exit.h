/* Beginning and end of every slow path, and what one does where memory is out. */
#ifndef HAK_API_SLOW_EXIT_H
#define HAK_API_SLOW_EXIT_H

#include "tcache/tcache.h"

/* Ends the program if a bad block was noted. Caller holds no lock. */
void hak_report_bad(const hak_deferred *deferred);

/* Does what lower layers left to do, and what is due by the clock: ends the program after a misuse, purges, decays the thread's
 * cache, keeps to the target, refreshes the statistics page. Caller holds no lock. */
void hak_slow_exit(hak_deferred *deferred);
/* At the beginning of an allocation's slow path: calls the program's pressure callback if it is due. `needs_spans`: the call may
 * take spans, and if the pool is full, flushes caches for them. */
void hak_slow_entry(bool needs_spans);

/* Puts into slabs what the calling thread caches, and other threads where they can be reached. Caller holds no lock. */
void hak_flush_caches(hak_deferred *deferred);
/* Where memory is out, for a caller that is about to fail: frees what caches and depots hold, and what is kept. Caller holds no lock. */
HAK_COLD void hak_reclaim(void);

#endif
