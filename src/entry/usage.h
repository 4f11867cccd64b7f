/* What other allocators' interfaces (override/tcmalloc.c) ask for, in the forms that they need. */
#ifndef HAK_ENTRY_USAGE_H
#define HAK_ENTRY_USAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hakmem_stats;

/* As hakmem_stats_get, but no file about the process is read. classes: HAK_CLASS_COUNT of them, or NULL. large: NULL,
 * or is told the usable bytes of each extent and mapping of the main heap, perhaps under the pool's lock. */
typedef struct hak_usage_class {
  uint64_t live, handed_out;        /* bytes */
  uint64_t slabs, slabs_with_room;
} hak_usage_class;
void hak_usage_read(struct hakmem_stats *out, hak_usage_class *classes, void (*large)(void *context, size_t bytes),
                    void *context);
/* The figures as text that '\0' ends, cut off where `bytes`, of which there is one at least, are full. */
void hak_usage_text(char *buffer, size_t bytes);
/* Bytes of main heap's blocks in the calling thread's cache. */
size_t hak_usage_cached(void);

/* The program's blocks by usable size: of[i] counts those of 2^i to 2^(i+1) - 1 bytes. Sampled blocks and heaps' count
 * by their mean size. */
#define HAK_USAGE_SIZES 64
typedef struct hak_usage_sizes {
  uint64_t bytes;
  uint64_t of[HAK_USAGE_SIZES];
} hak_usage_sizes;
void hak_usage_count(hak_usage_sizes *sizes);

/* What the heap profile estimates to be live: bytes, blocks, and stacks that have some. 0 where there is no profile. */
typedef struct hak_usage_samples {
  uint64_t bytes, blocks, stacks;
} hak_usage_samples;
hak_usage_samples hak_usage_sampled(void);

/* hakmem_good_size of blocks that are aligned to `align`, a power of two. */
size_t hak_usage_size(size_t size, size_t align);

/* Purges `bytes` of free memory, in whole spans; all that can be purged where free spans hold less. Caller holds no
 * lock. */
void hak_usage_release(size_t bytes);

/* Sets an option, whose name begins with HAKMEM_, for a caller that does not know hakmem: what the environment or
 * hakmem_conf sets stays. A value above the highest is that; HAK_USUAL: the default. False: the option stays, or cannot
 * be set. */
bool hak_usage_set(const char *name, int64_t value);
#define HAK_USUAL INT64_MIN

#endif
