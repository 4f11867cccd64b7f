/* The run stock: the few runs a thread freed last, kept for its next requests of their size. They spare it the pool's
 * lock, and their memory is warm. For the pool a kept run is held; its tag says that it is freed. Owner only. */
#ifndef HAK_HEAP_RUN_STOCK_H
#define HAK_HEAP_RUN_STOCK_H

#include "heap/heap.h"
#include "misuse/misuse.h"

/* A kept run of as many spans as hold `size` bytes, its contents as they were left. NULL: none. */
void *hak_run_stock_take(hak_heap *heap, size_t size);

/* Frees the run at p for its user: keeps it, and frees the oldest kept ones to make room, or frees it where it is too
 * large to keep. Verdict and *release_due (set, never cleared) as hak_run_free's. */
hak_verdict hak_run_stock_put(hak_heap *heap, hak_region *region, void *p, bool *release_due);

/* Frees all kept runs. */
void hak_run_stock_flush(hak_heap *heap, bool *release_due);

#endif
