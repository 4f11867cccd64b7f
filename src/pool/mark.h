/* Marks in the bitmaps of chunks, with the counters that follow them. */
#ifndef HAK_POOL_MARK_H
#define HAK_POOL_MARK_H

#include "region/region.h"

/* Marks free spans of one chunk as held. Returns how many of them may hold something. Caller holds the pool lock. */
size_t hak_pool_mark_taken(hak_region *region, size_t index, size_t spans);
/* Counts what was given back lazily as dirty once more. Takes the pool lock. */
void hak_pool_muzzy_to_dirty(void);

#endif
