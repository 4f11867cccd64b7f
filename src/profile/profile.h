/* The heap profile: sampled blocks that are live, and what the samples sum up to for each stack they were allocated on,
 * each label of their threads and each name of heaps that they are in.
 *
 * A sample that was drawn with probability p stands for 1/p blocks; what is estimated is unbiased, and so is the
 * variance that is kept beside it, (1 - p) / p^2 of a squared value for each sample. One lock over all of it; what runs
 * under it allocates nothing and is as long as a dump. Its memory is bounded by what the program holds; what finds no
 * room is counted. */
#ifndef HAK_PROFILE_PROFILE_H
#define HAK_PROFILE_PROFILE_H

#include "profile/state.h"

/* There is a profile, which may have stopped. */
HAK_INLINE bool hak_profile_made(void) { return hak_load_relaxed(&hak_profile.distance) != 0; }

/* Samples that are live, of eras before too: written under the lock. Whoever frees one sees it counted, since its
 * allocation is. */
extern HAK_HIDDEN size_t hak_profile_occupied;
HAK_INLINE bool hak_profile_has_samples(void) { return HAK_UNLIKELY(hak_load_relaxed(&hak_profile_occupied) != 0); }

/* Begins an era; while it samples, only the distance changes. False: no memory. */
bool hak_profile_start(size_t distance_bytes);
/* What is drawn from here on is no sample; frees of those there are count still. */
void hak_profile_stop(void);
/* Begins an era, whether it samples or not. */
void hak_profile_reset(void);

/* p is a block of the calling thread, of `size` bytes, drawn with that probability. `companion`: a block that lies
 * where p would without the profile, or NULL. `owner`: the number of the heap that p is in, which another one may have
 * after it; 0: the main heap. The profile sums up by the heap's name, which it copies, for a program may make a heap
 * for each request. False: there is no room, or sampling has stopped, and p is no sample. */
bool hak_profile_note_alloc(void *p, void *companion, size_t size, double probability, uint32_t owner,
                            const char *heap_name);
/* The heap's blocks are freed, all at once. Before another heap has the number. */
void hak_profile_forget_heap(uint32_t owner);
/* A live sample, in a table by address. */
typedef struct hak_profile_sample {
  uintptr_t block; /* 0: none */
  void *companion;
  size_t size;
  double probability;
  uint64_t born_ms;
  hak_profile_stack *stack; /* while the era is `era` */
  uint32_t era;
  uint32_t owner; /* heap's number; 0: the main heap */
} hak_profile_sample;

/* A sample ends in two steps, for what may fail in between: p's sample, or none, has left the table, so that another
 * block may have the address, and is still summed up; then it is none any more, or p's again. */
hak_profile_sample hak_profile_set_aside(const void *p);
void hak_profile_end(const hak_profile_sample *aside);
void hak_profile_put_back(const hak_profile_sample *aside);
/* p, which may be a sample, is none any more. Returns its companion, which is the caller's to free, or NULL. */
void *hak_profile_note_free(const void *p);

/* A block was drawn, and there was no memory to make it a sample. */
void hak_profile_note_dropped(void);

/* Live bytes as of some moment; any thread. */
size_t hak_profile_live_bytes(void);
uint64_t hak_profile_start_unix_ms(void); /* of the era */

/* --- for dumps, under the lock --- */

/* Brings the stacks' peaks and what is derived from the live samples up to date. */
void hak_profile_settle(uint64_t now_ms);

/* Memory of samples and stacks, without labels. */
size_t hak_profile_bytes_locked(void);

/* A tracer listens to samples. */
bool hak_profile_listened(void);

/* For statistics: its memory in bytes, and where its tables are; 0 bytes: it is not made yet. False: there is no such
 * one. */
size_t hak_profile_own_bytes(void);
bool hak_profile_mapping(size_t number, uintptr_t *address, size_t *bytes);

/* --- labels.c: texts of labels (hakmem_label_name), by number, for what profiles write; under the lock --- */

#define HAK_LABEL_TEXT_MAX 255

typedef struct hak_label_name {
  uint32_t next; /* of the same hash bucket; place in the table, 0: none */
  uint32_t room; /* bytes of the text, with its end */
  uint64_t label;
  char text[];
} hak_label_name;

/* In place of an earlier one. False: no memory. The text has at most HAK_LABEL_TEXT_MAX bytes. */
bool hak_label_set_name_locked(uint64_t label, const char *text);
/* NULL: it has none. */
const char *hak_label_name_locked(uint64_t label);
/* The next name from *place on, which is 0 at first; NULL: no more. */
const hak_label_name *hak_label_next_locked(size_t *place);

/* Memory of the names, from its beginning on. */
const void *hak_labels_memory_locked(size_t *bytes);

#endif
