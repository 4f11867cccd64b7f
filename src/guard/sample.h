/* Guarded blocks: each has pages of its own, ends where they end, with an inaccessible page behind, and stays
 * inaccessible after it is freed. A fault there, or a second free, prints the block, its size, and the stacks of its
 * allocation and of its free; then the program ends as it would have. What the pages have before the block, and the few
 * bytes that alignment leaves behind it, are filled with a pattern.
 *
 * HAKMEM_GUARD_SAMPLE=1/N turns it on; which blocks are guarded is drawn by tcache/counted.h. The hardened build guards
 * the first blocks. */
#ifndef HAK_GUARD_SAMPLE_H
#define HAK_GUARD_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "os/lock.h"
#include "os/os.h"
#include "tcache/counted.h"

/* The slots' addresses; size 0 until hak_sample_start. */
extern HAK_HIDDEN uintptr_t hak_sample_base;
extern HAK_HIDDEN size_t hak_sample_bytes;
extern hak_lock hak_sample_lock;

/* Reserves slots for so many blocks at a time, once. `stacks`: the stacks of a block's allocation and free are kept for
 * the report, from now on. One caller at a time. */
#define HAK_SAMPLE_SLOTS ((size_t)1024) /* of HAKMEM_GUARD_SAMPLE */
#define HAK_SAMPLE_BYTES_MAX HAK_COUNT_GUARD_MAX
void hak_sample_start(size_t blocks, bool stacks);

/* Acquire: who sees their size sees all that hak_sample_start has set up. */
HAK_INLINE bool hak_sample_on(void) { return hak_load_acquire(&hak_sample_bytes) != 0; }
HAK_INLINE bool hak_sample_contains(const void *p) {
  size_t bytes = hak_load_acquire(&hak_sample_bytes);
  return (uintptr_t)p - hak_load_relaxed(&hak_sample_base) < bytes;
}

/* A guarded block, contents undefined; NULL: too large, or all are live. align: power of two. Only while on. */
void *hak_sample_alloc(size_t size, size_t align);
/* A live block ends where one of `size` bytes does, no more than it has, and has a tag, at first 0. Only by who owns
 * it. */
void hak_sample_tell(void *p, size_t size, unsigned tag);
/* Only for addresses inside. Ends the program when it is no live block's start, or when a byte of its pages beside it
 * was written. */
void hak_sample_free(void *p);
/* The tag of a live block, whose pages are looked at as when it is freed; `where` is for the report. */
unsigned hak_sample_look(const void *p, const char *where);
/* The same of all live blocks; `may_read` says whether a page that others may have taken away is there. */
void hak_sample_look_at_all(const char *where, bool (*may_read)(const void *p, size_t bytes));
/* After a fault at p, says which guarded block that is of, if it is of one. */
bool hak_sample_explain(const void *p);

/* For reports: a line for each return address. */
void hak_sample_print_frames(const uintptr_t *frames, unsigned depth);

/* Whether there has been a guarded block. */
bool hak_sample_has_been_used(void);

/* Statistics, at one moment. */
typedef struct hak_sample_figures {
  size_t live_count, live_bytes, accessible_bytes; /* bytes asked for; whole pages */
  const void *table;
  size_t table_bytes;
} hak_sample_figures;
void hak_sample_read(hak_sample_figures *figures);
/* Size that was asked for; 0: no live block. */
size_t hak_sample_size(const void *p);

#endif
