/* The stacks of a profile, and the memory that it may take. A stack is what samples of the same return addresses, label
 * and heap's name add up to. Where there is no room for one more, stacks of labels and of names that have no live
 * sample are added to those without, and their places serve again. All under hak_profile_lock. */
#ifndef HAK_PROFILE_STACKS_H
#define HAK_PROFILE_STACKS_H

#include "profile/state.h"

/* What a sample is summed up by. */
typedef struct hak_stack_origin {
  const uintptr_t *pcs;
  unsigned depth;
  uint32_t heap_bytes; /* of `heap`, with its end; 0: the main heap */
  uint64_t label;
  const char *heap;
} hak_stack_origin;

extern size_t hak_stacks_sample_bytes; /* that samples take */
extern size_t hak_stacks_live_bytes;   /* relaxed; hak_profile.live.bytes for those without the lock */

/* Whether the profile may take so many bytes more, for stacks or samples. */
bool hak_stacks_may_grow(size_t bytes);
/* What came of it, noted. */
bool hak_stacks_got(bool memory);
size_t hak_stacks_bytes_locked(void);

/* Tables, each piece once: where memory was short for one, a later start asks again; then the first stack. False: no
 * memory. */
bool hak_stacks_start(void);
bool hak_stacks_begin(void);
bool hak_stacks_has_begun(void);
/* The stacks are gone. */
void hak_stacks_clear(void);

/* The stack of a new sample: one for all where there is no room. */
hak_profile_stack *hak_stack_of(const hak_stack_origin *origin);
/* It has one live sample more; its last one has ended. */
void hak_stack_note_sample(hak_profile_stack *stack);
void hak_stack_note_idle(const hak_profile_stack *stack);
void hak_stack_settle_peak(hak_profile_stack *stack);

typedef struct hak_stacks_memory {
  const void *table;
  size_t table_bytes;
  const void *buckets;
  size_t bucket_bytes;
} hak_stacks_memory;
hak_stacks_memory hak_stacks_memory_locked(void);

#endif
