/* realloc: in place inside the same class, extent or mapping; otherwise allocate, copy, free. */
#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/heaps.h"
#include "api/sampling.h"
#include "api/slow_exit.h"
#include "guard/foreign.h"
#include "guard/sample.h"
#include "large/huge.h"
#include "large/extent.h"
#include "os/os.h"
#include "profile/profile.h"

/* Memory is out, and errno says so. */
static HAK_COLD void *not_moved(void *p, size_t old_size, size_t size, int saved) {
  if (size > old_size) return NULL; /* p stays */
  errno = saved; /* programs take it that shrinking cannot fail */
  return p;
}

static void *move_block(void *p, size_t old_size, size_t size) {
  int saved = errno;
  bool was = hak_heap_suspend();
  void *q = hak_raw_malloc(size);
  hak_heap_resume(was);
  if (q == NULL) return not_moved(p, old_size, size, saved);
  memmove(q, p, hak_min_size(old_size, size)); /* a wrong p, inside a block, is reported by free; until then q may overlap what it reads */
  hak_raw_free(p);
  return q;
}

/* A block that grows is likely to grow again: from here on as a mapping, which the kernel moves without a copy. */
#define GROWS_MAPPED_LEAST HAK_MIB

static void *grow_mapped(void *p, size_t old_size, size_t size) {
  if (HAK_HARD(GUARDS) || size < GROWS_MAPPED_LEAST) return NULL;
  void *q = hak_huge_alloc(size, hak_os_page_size(), false);
  if (q == NULL) return NULL;
  hak_sampled_count_large(q, size);
  memcpy(q, p, old_size);
  hak_raw_free(p);
  return q;
}

/* A block shrinks in place while at least half of it stays in use: copying costs more than what would be won. */
static bool stays(size_t block_size, size_t size) {
  return size <= block_size && (size >= block_size / 2 || block_size == HAK_GRANULE);
}

/* To the profile a resized block is a new one. */
static void note_resized(void *p, void *resized, size_t size) {
  hak_sampled_forget(p);
  hak_sampled_count_large(resized, size);
}

static void *resize_extent(hak_region *region, void *p, size_t size) {
  size_t old_size = hak_extent_size(region, p);
  hak_deferred d = {0};
  if (size > old_size) hak_slow_entry(true);
  if (size > HAK_SHARED_MAX && size <= hak_max_size(HAK_EXTENT_MAX, old_size) && hak_extent_resize(region, p, size, &d.purge_due)) {
    note_resized(p, p, size);
    hak_slow_exit(&d);
    return p;
  }
  int saved = errno;
  void *moved = size > old_size ? grow_mapped(p, old_size, size) : NULL;
  if (moved == NULL) moved = move_block(p, old_size, size);
  if (moved != NULL || size > HAK_EXTENT_LONGEST || !hak_extent_resize(region, p, size, &d.purge_due)) return moved;
  /* Short of memory: move_block has given back what caches held, and growing in place needs less than a copy. */
  note_resized(p, p, size);
  errno = saved;
  return p;
}

void *hak_raw_resize_huge(void *p, size_t size) {
  hak_profile_sample before = {0};
  if (hak_profile_has_samples()) before = hak_profile_set_aside(p); /* before another thread may be given its address */
  void *moved = hak_huge_resize(p, size);
  if (moved == NULL) {
    hak_profile_put_back(&before);
    return NULL;
  }
  hak_profile_end(&before);
  hak_sampled_count_large(moved, size);
  return moved;
}

/* The kernel moves a mapping only while it is one: it refuses where the program has given some of its pages advice, a lock
 * or a memory policy of their own. Then the block is copied, as any other. */
static void *resize_huge(void *p, size_t old_size, size_t size) {
  hak_deferred d = {0};
  if (size > old_size) hak_slow_entry(true);
  void *moved = hak_raw_resize_huge(p, size);
  if (moved != NULL) {
    hak_slow_exit(&d);
    return moved;
  }
  int saved = errno;
  moved = move_block(p, old_size, size);
  if (moved != NULL) return moved;
  /* Short of memory: move_block has given back what caches held, and growing in place needs less than a copy. */
  moved = hak_raw_resize_huge(p, size);
  if (moved != NULL) errno = saved;
  return moved;
}

static void *resize_outside_regions(void *p, size_t size, const void *caller) {
  uint32_t owner = hak_huge_owner(p);
  if (owner != 0) return hak_heap_resize(NULL, owner, p, size);
  if (hak_sample_contains(p)) {
    size_t sampled_size = hak_sample_size(p);
    if (sampled_size == 0) hak_sample_free(p); /* no live block: it reports that */
    return move_block(p, sampled_size, size);
  }
  size_t old_size = hak_huge_size(p);
  if (old_size == 0) {
    hak_verdict verdict = hak_huge_verdict(p);
    if (HAK_UNLIKELY(verdict != HAK_VERDICT_OK)) hak_misuse_abort(verdict, p, 0, "by realloc");
    hak_foreign_note(HAK_FOREIGN_REALLOC, p, caller);
    errno = EINVAL;
    return NULL;
  }
  return size < GROWS_MAPPED_LEAST ? move_block(p, old_size, size) : resize_huge(p, old_size, size);
}

static HAK_NOINLINE void *resize_slowly(void *p, size_t size, const void *caller) {
  if (p == NULL) return hak_raw_malloc(size);
  if (size > PTRDIFF_MAX) return hak_no_memory();
  hak_region *region = hak_region_find(p);
  if (size == 0 && (region != NULL || hak_block_size(p) != 0)) {
    hak_raw_free(p);
    return NULL;
  }
  if (HAK_UNLIKELY(region == NULL)) return resize_outside_regions(p, size, caller);
  unsigned code = hak_region_slab_code(region, hak_region_index(region, p));
  if (HAK_UNLIKELY(code == HAK_CODE_IN_HEAP)) return hak_heap_resize(region, 0, p, size);
  if (HAK_LIKELY(hak_code_is_class(code))) {
    size_t block_size = hak_class_size(code - 1);
    if (stays(block_size, size)) return p;
    /* Behind a block of whole spans there may be room. */
    bool whole_spans = block_size > HAK_SHARED_MAX && size > HAK_SHARED_MAX && hak_region_code(region, p) != HAK_CODE_SAMPLED;
    if (!whole_spans || !hak_arena_make_extent(hak_region_span(region, p), p, code - 1)) return move_block(p, block_size, size);
    code = HAK_CODE_EXTENT;
  }
  if (code == HAK_CODE_EXTENT && hak_region_span(region, p)->start == (uintptr_t)p) return resize_extent(region, p, size);
  bool freed = code == HAK_CODE_NONE || code == HAK_CODE_EXTENT_FREED;
  hak_misuse_abort(freed ? HAK_VERDICT_FREE_MEMORY : HAK_VERDICT_NO_BLOCK_START, p, 0, "by realloc");
}

static HAK_NOINLINE void *malloc_slowly(void *p, size_t old_size, size_t size) {
  int saved = errno;
  bool was = hak_heap_suspend();
  void *q = hak_malloc_slow(size);
  hak_heap_resume(was);
  return HAK_LIKELY(q != NULL) ? q : not_moved(p, old_size, size, saved);
}

/* Most blocks are of a class before and after, and the thread's cache has one and takes the other. */
void *hak_raw_realloc(void *p, size_t size, const void *caller) {
  size_t offset, code = hak_tcache_code(p, &offset);
  if (HAK_HARDENED || HAK_UNLIKELY(!hak_code_is_class((unsigned)code)) || HAK_UNLIKELY(size - 1 >= HAK_SHARED_MAX))
    return resize_slowly(p, size, caller);
  size_t block_size = hak_class_size((unsigned)code - 1);
  if (stays(block_size, size)) return p;
  void *q = hak_tcache_pop(size);
  if (HAK_UNLIKELY(q == NULL)) {
    q = malloc_slowly(p, block_size, size);
    if (q == NULL || q == p) return q;
  }
  memmove(q, p, hak_min_size(block_size, size)); /* as in move_block */
  if (HAK_UNLIKELY(!hak_tcache_push_code(p, code))) hak_free_slow(p, code);
  return q;
}
