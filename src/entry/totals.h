/* What each thread has been given and has given back, in usable bytes since it began: of builds that count it
 * (HAK_TOTALS, a constant, as HAK_HARDENED is). Only the owner writes; a program may have a pointer to the numbers, and
 * read them. */
#ifndef HAK_ENTRY_TOTALS_H
#define HAK_ENTRY_TOTALS_H

#include "tcache/cache.h"

#ifndef HAK_TOTALS
#define HAK_TOTALS 0
#endif

typedef struct hak_thread_totals {
  uint64_t allocated, deallocated;
  int64_t base, peak; /* the most that the difference has been, beyond `base`, what it was when that was reset */
} hak_thread_totals;

extern HAK_HIDDEN HAK_TLS hak_thread_totals hak_totals;
extern HAK_HIDDEN uint64_t hak_empty_reallocs; /* relaxed: realloc of a block to 0 bytes */
/* What that does. Set before the first one. */
typedef enum hak_empty_realloc { HAK_EMPTY_FREES, HAK_EMPTY_ALLOCATES, HAK_EMPTY_ABORTS } hak_empty_realloc;
extern HAK_HIDDEN hak_empty_realloc hak_empty_realloc_does;

/* Bits: what blocks are filled with whole, for debugging. Set before the first one; zero goes before junk. And: some
 * thread wants to be called (below). */
enum { HAK_FILL_ZERO = 1, HAK_FILL_NEW = 2, HAK_FILL_FREED = 4, HAK_FILL_CALLS = 8 };
extern HAK_HIDDEN uint8_t hak_fill_bits;
/* Bytes from `from` on of the new block at p; all of one that is freed next. */
HAK_COLD void hak_fill_new(void *p, size_t from);
HAK_COLD void hak_fill_freed(void *p);

/* Requests of malloc from so many bytes on come from a heap of their own; SIZE_MAX: none do. Set once. */
extern HAK_HIDDEN size_t hak_oversize;
extern HAK_HIDDEN struct hakmem_heap *hak_oversize_heap;
/* Whether such a new block is filled with zeros: it is asked for as one that reads so, which touches no pages. */
HAK_INLINE bool hak_fills_with_zeros(size_t size) {
  return HAK_TOTALS && HAK_UNLIKELY((hak_fill_bits & HAK_FILL_ZERO) != 0) && size > HAK_SHARED_MAX;
}
/* Counts the block, and fills it. */
void *hak_totals_malloc_slow(size_t size);

/* Of the calling thread: what it resizes stays in its arena, wherever the thread's requests go. */
extern HAK_HIDDEN HAK_TLS bool hak_resizes_in_arena;

/* Called in the thread that has set it, when it has been given or has given back so many bytes since the last call. It
 * must not allocate. */
#define HAK_ACTIVITY_BYTES 65536
typedef struct hak_activity {
  void (*callback)(void *context, uint64_t allocated, uint64_t deallocated);
  void *context;
} hak_activity;
hak_activity hak_activity_get(void);
void hak_activity_set(hak_activity activity);

/* Size of the block at p, 0 when there is none of ours. */
size_t hak_block_size(const void *p);
void *hak_totals_realloc(void *p, size_t size, const void *caller);
/* A block of whole spans, or a mapping, gives back what is behind `size`; others stay as they are. Totals do not count
 * it. */
void hak_totals_shrink(void *p, size_t size);

/* Usable bytes of the block at p; 0: none of ours. */
HAK_INLINE size_t hak_totals_size(const void *p) {
  size_t offset, code = hak_tcache_code(p, &offset);
  return HAK_LIKELY(hak_code_is_class((unsigned)code)) ? hak_class_size((unsigned)code - 1) : hak_block_size(p);
}
HAK_INLINE void hak_totals_count(size_t bytes) {
  hak_thread_totals *t = &hak_totals;
  t->allocated += bytes;
  int64_t net = (int64_t)(t->allocated - t->deallocated) - t->base;
  if (HAK_UNLIKELY(net > t->peak)) t->peak = net;
}
/* Returns p. */
HAK_INLINE void *hak_totals_add(void *p) {
  if (HAK_TOTALS && HAK_LIKELY(p != 0)) hak_totals_count(hak_totals_size(p));
  return p;
}
/* Bytes of a new block that are to be zero, or to be copied, where the program asks for `size`: all that it has, as
 * growth may promise zeros from the usable size on (rallocx), and what is before is to be zero from the allocation
 * on. */
HAK_INLINE size_t hak_totals_whole(const void *p, size_t size) { return HAK_TOTALS ? hak_totals_size(p) : size; }
/* Of a block that the program has not asked to be zero. */
HAK_INLINE void *hak_totals_new(void *p) {
  hak_totals_add(p);
  if (HAK_TOTALS && HAK_UNLIKELY(hak_fill_bits != 0) && p != 0) hak_fill_new(p, 0);
  return p;
}
HAK_INLINE void hak_totals_take(void *p) {
  if (!HAK_TOTALS || HAK_UNLIKELY(p == 0)) return;
  hak_totals.deallocated += hak_totals_size(p);
  if (HAK_UNLIKELY(hak_fill_bits != 0)) hak_fill_freed(p);
}

#endif
