/* The entry points' shared parts. The thin inline wrappers here are what both hakmem_… (entry/) and the malloc family
 * (override/) are made of, so that each has the fast path in its own body. */
#ifndef HAK_ENTRY_ENTRY_H
#define HAK_ENTRY_ENTRY_H

#include <string.h>

#include "hakmem/hakmem.h"
#include "entry/totals.h"
#include "harden/harden.h"
#include "harden/held.h"
#include "large/large.h"
#include "os/os.h"
#include "tcache/cache.h"

/* Slow halves; they set errno. The request is counted, if a class serves it. */
void *hak_malloc_slow(size_t size);
void *hak_aligned_slow(unsigned class_code, size_t size, size_t alignment);
/* Reached by a tail call from an entry point, so that its return address is the program's (in unoptimised builds it
 * is the entry point's). */
__attribute__((nothrow)) void hak_free_slow(void *p, size_t code);

void *hak_calloc(size_t count, size_t size);
void *hak_realloc(void *p, size_t size, const void *caller);
/* A live block so that it has `size` bytes: at an address aligned to `align`, a power of two; or, HAK_IN_PLACE, where
 * it is, with at least what it has. */
#define HAK_IN_PLACE ((size_t)0)
HAK_INLINE bool hak_is_in_place(const void *p, size_t align) {
  return align == HAK_IN_PLACE || ((uintptr_t)p & (align - 1)) == 0;
}
/* A block shrinks in place while at least half of it stays in use, as copying costs more than what would be won; and
 * where its alignment leaves no smaller place. */
HAK_INLINE bool hak_resize_stays(size_t block_size, size_t size, size_t align) {
  return size <= block_size && (size >= block_size / 2 || block_size <= align);
}
void *hak_resize(void *p, size_t size, size_t align, const void *caller);
void *hak_aligned_calloc(size_t alignment, size_t count, size_t size);
void *hak_aligned(size_t alignment, size_t size); /* alignment: power of two; else EINVAL */
void *hak_memalign(size_t alignment, size_t size);
int hak_posix_memalign(void **out, size_t alignment, size_t size);
void *hak_pvalloc(size_t size);
size_t hak_usable_size(const void *p, const void *caller);
/* Frees p after checking that a request of `size` (aligned so) could have got this block. */
void hak_free_sized(void *p, size_t size);

/* Makes the bytes at p, a new block or the end of one, read as zero. */
HAK_INLINE void hak_clear(void *p, size_t bytes) {
  if (HAK_LIKELY(bytes <= HAK_SHARED_MAX))
    memset(p, 0, bytes);
  else
    hak_large_clear(p, bytes);
}

/* Whether an option is set whose purpose needs files of /proc or of a cgroup to be read. */
bool hak_asks_for_files(void);

/* NULL, and errno says ENOMEM, or EINVAL. */
HAK_COLD void *hak_no_memory(void);
HAK_COLD void *hak_invalid(void);
HAK_INLINE void *hak_or_no_memory(void *p) { return HAK_LIKELY(p != 0) ? p : hak_no_memory(); }

/* The allocator below the hardened build's checks; in the default build, what the functions above are. */
/* zeros: they were asked for; *zeroed: the block reads as zero. Does not set errno. */
void *hak_raw_large(size_t size, size_t alignment, bool zeros, bool *zeroed);
void *hak_raw_aligned(size_t alignment, size_t size);
void *hak_raw_realloc(void *p, size_t size, const void *caller);
void *hak_raw_resize(void *p, size_t size, size_t align, const void *caller);
/* p, a huge block of the heap (NULL: the main one, which defers nothing), by the kernel. NULL: it cannot, and p is as
 * it was. */
void *hak_raw_resize_huge(struct hakmem_heap *heap, void *p, size_t size, size_t align, hak_deferred *deferred);
/* A mapping, of any heap, where it is, or moved by the kernel: what it has more is zero. NULL: it is none, or the
 * kernel cannot. */
void *hak_resize_mapping(void *p, size_t size, size_t align);
size_t hak_raw_usable_size(const void *p, const void *caller);
/* The two steps of a free of an extent. Of threads that free it at once one comes out of the first, with its size. */
size_t hak_raw_claim_extent(hak_region *region, void *p);
void hak_raw_give_extent(hak_region *region, void *p, hak_deferred *deferred);

/* What the slow halves are made of, below the entry points: they leave work in *deferred, and end in no slow exit. A
 * block for a request that is counted if a class serves it; the same with the short ways before it, of a request that
 * is not counted; and a block comes back, by whatever way is the shortest. */
void *hak_take(size_t size, size_t align, hak_deferred *deferred);
void *hak_take_any(size_t size, size_t align, hak_deferred *deferred);
void hak_give_any(void *p, const void *caller, hak_deferred *deferred);

/* What the hardened build has in place of them (harden/entries.c). */
/* align: a power of two, or that of malloc. */
void *hak_hard_alloc(size_t size, size_t align, hak_family family);
void *hak_hard_calloc(size_t align, size_t count, size_t size);
void *hak_hard_resize(void *p, size_t size, size_t align);
/* size: what the caller says the block's is, or HAK_SIZE_UNKNOWN. */
void hak_hard_free(void *p, size_t size, hak_family family);
/* The size that was asked for: a program may write all of it, and nothing more. */
size_t hak_hard_usable_size(const void *p);

HAK_INLINE void *hak_raw_malloc(size_t size) {
  void *p = hak_tcache_pop(size);
  return HAK_LIKELY(p != 0) ? p : hak_malloc_slow(size);
}
/* The same, in totals: a block from the cache is of the request's class. */
HAK_INLINE void *hak_counted_malloc(size_t size) {
  void *p = hak_tcache_pop(size);
  if (HAK_UNLIKELY(p == 0)) return hak_totals_malloc_slow(size);
  hak_totals_count(hak_class_size(hak_class_for(size)));
  if (HAK_UNLIKELY(hak_fill_bits != 0)) hak_fill_new(p, 0);
  return p;
}

/* family: of the caller; only the hardened build looks at it. */
HAK_INLINE void *hak_malloc_as(size_t size, hak_family family) {
  if (!HAK_HARDENED) return HAK_TOTALS ? hak_counted_malloc(size) : hak_raw_malloc(size);
  void *p = HAK_HARD_FAST ? hak_tcache_pop(size) : 0;
  if (!HAK_LIKELY(p != 0)) return hak_hard_alloc(size, 0, family);
  return hak_held_set_any(p);
}
HAK_INLINE void *hak_malloc(size_t size) { return hak_malloc_as(size, HAK_FAMILY_MALLOC); }

/* The slow halves under a default heap, which serves the request unless the caller is one that keeps the block
 * (os/callers.h). */
void *hak_malloc_for(size_t size, const void *caller);
void *hak_hard_alloc_for(size_t size, hak_family family, const void *caller);

/* alignment: power of two. */
HAK_INLINE void *hak_aligned_as(size_t alignment, size_t size, hak_family family) {
  return HAK_HARDENED ? hak_hard_alloc(size, alignment, family) : hak_totals_new(hak_raw_aligned(alignment, size));
}

#define HAK_CALLER() __builtin_return_address(0)

HAK_INLINE void hak_raw_free(void *p) {
  size_t offset, code = hak_tcache_code(p, &offset);
  if (HAK_UNLIKELY(!hak_tcache_push_code(p, code))) hak_free_slow(p, code);
}

/* size: what a sized form was told, looked at by the hardened build only. */
HAK_INLINE void hak_free_as(void *p, size_t size, hak_family family) {
  size_t code, offset;
  hak_totals_take(p);
  if (!HAK_HARDENED)
    hak_raw_free(p);
  else if (!HAK_HARD_FAST || !hak_code_is_class((unsigned)(code = hak_tcache_code(p, &offset))) ||
           !hak_held_clear_at(&hak_main_region, p, offset))
    hak_hard_free(p, size, family);
  else if (!HAK_LIKELY(hak_tcache_push_code(p, code)))
    hak_free_slow(p, code);
}
HAK_INLINE void hak_free(void *p) { hak_free_as(p, HAK_SIZE_UNKNOWN, HAK_FAMILY_MALLOC); }

#endif
