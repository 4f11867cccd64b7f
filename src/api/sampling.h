/* Sampled blocks among the program's: guarded ones (HAKMEM_GUARD_SAMPLE) and those of the heap profile (HAKMEM_HEAP_PROFILE), both
 * found by the countdown in malloc (tcache/counted.h). */
#ifndef HAK_API_SAMPLING_H
#define HAK_API_SAMPLING_H

#include "profile/profile.h"
#include "tcache/counted.h"
#include "tcache/tcache.h"

/* A block that is due, guarded or the profile's; NULL: there is none to be had. cache: NULL where the thread has none. align: power of two. */
void *hak_sampled_alloc(hak_due due, hak_tcache *cache, unsigned class_code, size_t size, size_t align, hak_deferred *deferred);
/* Counts p, no block of a slab, which has been allocated, or resized, with `size` bytes … */
void hak_sampled_count_large(void *p, size_t size);
/* … and is about to be freed or resized. */
HAK_INLINE void hak_sampled_forget(const void *p) {
  if (hak_profile_has_samples()) hak_profile_note_free(p);
}

/* p, in a heap, was drawn: profile/profile.h. */
void hak_sampled_note_in_heap(void *p, size_t size, double probability, uint32_t owner, const char *heap_name);

/* Frees p, in a slab of sampled blocks. */
void hak_sampled_free(void *p);
/* For the quarantine: p is no sample any more, and is still to be freed. */
void hak_sampled_end(void *p);

#endif
