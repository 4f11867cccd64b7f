/* Heaps among the entry points (heap/heap.h). */
#ifndef HAK_ENTRY_HEAPS_H
#define HAK_ENTRY_HEAPS_H

#include "entry/where.h"

/* A block of the heap, and the request counted; NULL: refused, or out of memory. counts: a refusal does. Does not set
 * errno. An entry, … */
void *hak_heap_alloc(hak_heap *heap, size_t size, size_t align, bool counts, bool *zeroed);
/* … and below one. */
void *hak_heap_take_any(hak_heap *heap, size_t size, size_t align, bool counts, bool *zeroed, hak_deferred *deferred);
/* Counts a block that has been resized to `size` bytes, as a request: to the profile it is a new one. */
void hak_heap_count_resized(hak_heap *heap, void *p, size_t size);
/* Whether the calling thread has a default heap, which has answered the request: *p, or NULL. Only where
 * hak_tls.in_heap. */
bool hak_heap_serves(size_t size, size_t align, bool *zeroed, void **p, hak_deferred *deferred);

/* Frees p, a block of a heap, or what a wild free takes for one. */
void hak_heap_free(const hak_where *where, void *p, hak_deferred *deferred);
/* The same of p whose page map code in the main region is HAK_CODE_SAMPLED, where nothing of its heap is cached, or p
 * is large. False: take the long way. */
bool hak_heap_free_ready(void *p);
/* p in whole spans from `span` on, where it is, or, NULL, a mapping, which the kernel may move where `may_move` says
 * so. NULL: there is no room, or a limit is in the way though all that caches had of it is back. or_copied: the caller
 * copies the block then, so growth counts twice as a copy does, and a refusal is the copy's to count. */
void *hak_heap_resize(hak_heap *heap, hak_span *span, void *p, size_t size, bool may_move, bool or_copied,
                      hak_deferred *deferred);
/* The same where it is; to the profile a resized block is a new one. */
void *hak_heap_resize_in_place(hak_heap *heap, hak_span *span, void *p, size_t size, bool or_copied,
                               hak_deferred *deferred);

/* The two halves of a destroy and, where the heap `stays`, of a reset. All its memory goes back but mappings, of which
 * there are so many; no function of the program is called. Then these, and what is deferred: with no lock held. */
size_t hak_heap_empty(hak_heap *heap, bool stays, hak_deferred *deferred);
void hak_heap_finish(size_t mappings, hak_deferred *deferred);

#endif
