/* What a heap profile has: sums, stacks, and the state of sampling. Written under hak_profile_lock. */
#ifndef HAK_PROFILE_STATE_H
#define HAK_PROFILE_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "os/lock.h"

#define HAK_PROFILE_FRAMES 128
#define HAK_PROFILE_POINTS 512
#define HAK_PROFILE_LIFETIMES 7
/* Lifetimes in milliseconds below which a freed block counts; the last count is of those that lived longer. */
extern const uint32_t hak_profile_lifetime_bounds[HAK_PROFILE_LIFETIMES - 1];

typedef struct hak_profile_sums {
  double bytes, count, bytes_variance, count_variance;
} hak_profile_sums;

/* As they are written. */
HAK_INLINE uint64_t hak_profile_rounded(double estimate) { return estimate > 0 ? (uint64_t)(estimate + 0.5) : 0; }

/* Written under the lock. */
#define HAK_PROFILE_NO_STACK UINT32_MAX
typedef struct hak_profile_stack {
  uint32_t next;  /* of the same hash bucket; place in the table, 0: none */
  /* 0: the one for all that there was no room for; HAK_PROFILE_NO_STACK: none, since its label was evicted */
  uint32_t depth;
  uint64_t hash;
  uint64_t label; /* of the threads that allocated; 0: none */
  hak_profile_sums live, total, peak; /* peak: live ones at the peak numbered `peak_number`; at a later one, `live` */
  uint64_t peak_number;
  double freed[HAK_PROFILE_LIFETIMES];
  double pinned_bytes, age_ms_sum, oldest_ms; /* of the live ones, as of the dump that is being made */
  uint64_t live_samples;
  uint32_t heap_bytes; /* of the heap's name, with its end, behind the addresses; 0: the main heap */
  uint32_t room;       /* of the whole entry */
  uintptr_t pcs[];
} hak_profile_stack;

/* "": a heap without a name; NULL: the main heap. */
HAK_INLINE const char *hak_profile_heap(const hak_profile_stack *stack) {
  return stack->heap_bytes == 0 ? NULL : (const char *)(stack->pcs + stack->depth);
}

typedef struct hak_profile_state {
  size_t distance; /* mean bytes between samples */
  bool sampling;
  uint32_t era; /* counts the resets: samples of an earlier one are in no sum */
  uint64_t start_ms, start_unix_ms, stop_unix_ms; /* of the era; when sampling stopped, while it does not go on */
  uint64_t taken, dropped, stacks_dropped; /* samples */
  /* Stacks of which the label, and the heap's name, was forgotten for lack of room: all their samples had ended */
  uint64_t labels_evicted;
  size_t live_samples;
  hak_profile_sums live, total, peak;
  uint64_t peak_number; /* of the latest */
  uint64_t peak_ms;
  uint64_t interval_ms; /* of the timeline's points */
  double points[HAK_PROFILE_POINTS]; /* most live bytes in each; negative: nothing happened */
} hak_profile_state;

extern hak_lock hak_profile_lock;
extern hak_profile_state hak_profile; /* under the lock */

/* For dumps, under the lock: the next stack from *place on, which is 0 at first; NULL: no more. */
const hak_profile_stack *hak_profile_next(size_t *place);

#endif
