/* Where every block is, by a walk over all arenas: the strict companion of hakmem_heap_check() for moments when no other
 * thread uses the allocator. */
#ifndef TESTS_STRESS_ACCOUNTING_H
#define TESTS_STRESS_ACCOUNTING_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* After every block was freed, every other thread has ended, and the caller ran hakmem_malloc_trim: 0 when no slab has
 * handed out a block, no depot holds one, and the pool's count of held spans is that of the empty slabs kept for their class.
 * Otherwise the number of faults, each printed to stderr. */
size_t accounting_check_nothing_live(void);

/* 0 when the depots' bytes are what the process-wide counter says; otherwise 1, printed. */
size_t accounting_check_depots(void);

/* Blocks that slabs have handed out (those in thread caches and depots included). */
size_t accounting_blocks_out(void);

/* Of them, those in depots. */
size_t accounting_blocks_in_depots(void);

/* Thread caches made so far. */
size_t accounting_caches(void);

size_t accounting_live_spans(void);

/* Takes what other threads keep; returns how many blocks. */
size_t accounting_reach(void);

#ifdef __cplusplus
}
#endif
#endif
