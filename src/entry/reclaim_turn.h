/* What a thread does for memory at the end of its slow path, and where memory is out. */
#ifndef HAK_ENTRY_RECLAIM_TURN_H
#define HAK_ENTRY_RECLAIM_TURN_H

#include "tcache/tcache.h"

/* A watcher of each slow exit. Where memory was out, it frees what caches and depots hold, and what is kept. */
void hak_reclaim_turn(uint64_t now_ms, bool moved, hak_deferred *deferred);

/* Puts into slabs what the calling thread caches, and other threads where they can be reached. Caller holds no lock. */
void hak_flush_caches(hak_deferred *deferred);

#endif
