/* Counted allocation: how samples are found without an instruction on the fast path.
 *
 * Off, malloc and free use one magazine of a class, and nobody can tell how often. While something is sampled, requests have codes of
 * their own (HAK_CODES + class), and with them a magazine of their own in each thread: malloc pops from that one, free pushes to the
 * other, with the same instructions as ever. So the blocks of the first are used up one by one whatever the program frees,
 * and when the slow path finds it empty it knows how many allocations there were. It fills it again, from what was freed
 * last, with no more blocks than there are allocations before the next sample: which is drawn in advance, for each class by itself,
 * as a number of allocations. (An exponential distance in bytes for all allocations together, and one for each class, are the
 * same: it has no memory.)
 *
 * Two samplers share the count: guarded blocks, one of N blocks, and the heap profile, one of N bytes. Only the owner touches a
 * thread's state. */
#ifndef HAK_TCACHE_COUNTED_H
#define HAK_TCACHE_COUNTED_H

#include "tcache/tcache.h"

/* What an allocation is drawn for. */
typedef struct hak_due {
  bool guard, profile;
  double distance; /* mean bytes between the profile's samples when it was drawn */
} hak_due;

typedef struct hak_counting_rates {
  double guard_blocks;  /* one block of so many; 0: none */
  size_t guard_max;     /* blocks of a class up to so many bytes */
  double profile_bytes; /* one sample in so many bytes; 0: none */
  /* Samples of a thread, about; beyond it their distance doubles until there are fewer. 0: any number. */
  uint32_t guard_a_second, profile_a_second;
} hak_counting_rates;

extern HAK_HIDDEN uint32_t hak_counting_on;
HAK_INLINE bool hak_counting(void) { return HAK_UNLIKELY(hak_load_relaxed(&hak_counting_on) != 0); }

/* Turns it on for good. Before other threads run. */
void hak_counting_start(const hak_counting_rates *rates);

/* As hak_tcache_alloc, while it is on; NULL also where the allocation is drawn: *due says for what, and hak_tcache_alloc is not counted. */
void *hak_tcache_alloc_counted(hak_tcache *cache, unsigned class_code, hak_due *due, hak_deferred *deferred);
/* The same of a request that no cache serves, of any size; cache: NULL where the thread has none. */
void hak_count_uncached(hak_tcache *cache, size_t bytes, hak_due *due);

/* A block of the class, counted, if it and others were freed into the cache since malloc's magazine was filled: without what else a slow path
 * does. NULL: there is none, or the allocation is drawn. */
void *hak_tcache_count_ready(unsigned class_code);

#endif
