/* The end of every slow path. */
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

#endif
