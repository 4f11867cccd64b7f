/* Counted allocation: how samples are found among all requests.
 *
 * Each thread has a countdown of bytes, from which every request takes its size and HAK_GRANULE - 1: two instructions
 * of the fast path (tcache/cache.h). Where it ends, the slow path asks whether somebody wants this request, and draws
 * the next one. Off, it is a long one, and nobody does.
 *
 * Countdowns are exponentially distributed, so a request ends one with the probability 1 - e^(-taken / mean), whatever
 * came before. Two samplers share them: the heap profile, one sample in R bytes, and guarded blocks, one of N blocks.
 * The mean is short enough for both; of the countdowns that end each accepts as many as it should have, independently
 * of the other (thinning). Only the owner touches a thread's state.
 *
 * Samplers come and go while threads run. A thread that has been counting by earlier rates ends its countdown by these,
 * so that no request is passed over, and draws the next one by the new rates; one that has not been begins at its next
 * slow path or at its countdown's end. */
#ifndef HAK_TCACHE_COUNTED_H
#define HAK_TCACHE_COUNTED_H

#include "tcache/cache.h"

/* What a request is drawn for. */
typedef struct hak_due {
  bool guard, profile;
  bool forbidden; /* the thread may not ask */
  double probability; /* of its being a sample of the profile */
} hak_due;

typedef struct hak_counting_rates {
  double guard_blocks;  /* one block of so many; 0: none */
  double profile_bytes; /* one sample in so many bytes; 0: none */
  /* Samples of the process, about; beyond it their distance doubles until there are fewer. 0: any number. */
  uint32_t guard_a_second, profile_a_second;
} hak_counting_rates;

#define HAK_COUNT_GUARD_MAX HAK_SHARED_MAX /* guarded are requests of up to so many bytes */

/* The rates' generation, even; odd while they are written; 0: nothing is sampled. */
extern HAK_HIDDEN uint32_t hak_counting_on;
HAK_INLINE bool hak_counting(void) { return HAK_UNLIKELY(hak_load_acquire(&hak_counting_on) != 0); }

/* While nothing is sampled, the process's first so many requests are for guarded blocks. Before other threads run. */
void hak_counting_guard_first(uint32_t blocks);

/* Turns it on, or off with rates of 0; one caller at a time. The calling thread is counted from its next request on. */
void hak_counting_start(const hak_counting_rates *rates);

/* A request of `size` bytes, counted, has ended the thread's countdown: the next one begins. */
hak_due hak_count_end(size_t size);

/* While nothing is sampled, a thread comes by a slow path, which it might take none else of, after so many bytes: there
 * memory that waits goes back. While steps of that are due (reclaim/decay.h), sooner. */
#define HAK_COUNT_OFF_BYTES (1024 * 1024)
#define HAK_COUNT_STEP_BYTES ((int64_t)HAK_SHARED_MAX) /* a request of the fast path */
/* At a slow path: what the thread asks for from now on may be little, whatever its last countdown was drawn for … */
void hak_count_shorten_to(int64_t most);
HAK_INLINE void hak_count_shorten(int64_t most) {
  if (HAK_UNLIKELY(hak_tls.countdown > most)) hak_count_shorten_to(most);
}
/* When the thread came by last for a countdown alone, and what it had asked for until then. */
typedef struct hak_count_visit {
  uint64_t ms, asked;
} hak_count_visit;
/* … and where a countdown was all that led there, the next one is longer: blocks as large as `size` come from the
 * thread's cache, or from quick lists. Not where that would take longer than within_ms, as the thread has asked since
 * `last`. */
void hak_count_lengthen(size_t size, hak_count_visit *last, uint64_t now_ms, uint64_t within_ms);
/* Bytes that the calling thread has asked for since it began, each request with HAK_GRANULE - 1 more. */
HAK_INLINE uint64_t hak_count_asked(void) { return (uint64_t)(hak_tls.count.given - hak_tls.countdown); }

/* Each request of the calling thread ends its countdown, and is forbidden, from the first call on to the second. */
void hak_count_forbid(void);
void hak_count_allow(void);

/* The same of a thread whose requests are served elsewhere, which counts by *aside from the first call to the second;
 * … */
void hak_count_aside(int64_t *aside, bool begins);
/* … and of a request there that has ended its countdown. */
hak_due hak_count_end_aside(int64_t *aside, size_t size);

extern HAK_HIDDEN uint64_t hak_count_seeds; /* relaxed; where the next thread's random numbers begin */

#endif
