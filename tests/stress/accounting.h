/* Where every block is, by a walk over all heaps: the strict companion of hakmem_heap_check() for moments when no other
 * thread uses the allocator. */
#ifndef TESTS_STRESS_ACCOUNTING_H
#define TESTS_STRESS_ACCOUNTING_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* After every block was freed, every other thread has ended, and the caller ran hakmem_malloc_trim: 0 when no heap
 * holds a block, no inbox a packet, and the pool's count of held spans is that of the empty slabs kept for carving.
 * Otherwise the number of faults, each printed to stderr. */
size_t accounting_check_nothing_live(void);

/* Blocks handed out by heaps (those cached in fronts and packets included). */
size_t accounting_blocks_out(void);

/* Packets waiting in parked heaps' inboxes. */
size_t accounting_stranded_packets(void);

/* Heaps made so far, the emergency heap included. */
size_t accounting_heaps(void);

size_t accounting_live_spans(void);

#ifdef __cplusplus
}
#endif
#endif
