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

static void *move_block(void *p, size_t old_size, size_t size, size_t align) {
  if (align == HAK_IN_PLACE) return hak_no_memory();
  int saved = errno;
  bool was = hak_heap_suspend();
  void *q = align <= HAK_GRANULE ? hak_raw_malloc(size) : hak_raw_aligned(align, size);
  hak_heap_resume(was);
  if (q == NULL) return hak_is_in_place(p, align) ? not_moved(p, old_size, size, saved) : NULL;
  memmove(q, p, hak_min_size(old_size, size)); /* a wrong p, inside a block, is reported by free; until then q may overlap what it reads */
  hak_raw_free(p);
  return q;
}

/* A block that grows is likely to grow again: from here on as a mapping, which the kernel moves without a copy. */
#define GROWS_MAPPED_LEAST HAK_MIB

static void *grow_mapped(void *p, size_t old_size, size_t size, size_t align) {
  if (HAK_HARD(GUARDS) || align == HAK_IN_PLACE || size < GROWS_MAPPED_LEAST) return NULL;
  void *q = hak_huge_alloc(size, hak_max_size(align, hak_os_page_size()), false);
  if (q == NULL) return NULL;
  hak_sampled_count_large(q, size);
  memcpy(q, p, old_size);
  hak_raw_free(p);
  return q;
}

static bool fits(const void *p, size_t block_size, size_t size, size_t align) {
  return align == HAK_IN_PLACE ? size <= block_size : hak_resize_stays(block_size, size, align) && hak_is_in_place(p, align);
}

/* To the profile a resized block is a new one. */
static void note_resized(void *p, void *resized, size_t size) {
  hak_sampled_forget(p);
  hak_sampled_count_large(resized, size);
}

static void *resize_extent(hak_region *region, void *p, size_t size, size_t align) {
  size_t old_size = hak_extent_size(region, p), most = align == HAK_IN_PLACE ? HAK_EXTENT_LONGEST : hak_max_size(HAK_EXTENT_MAX, old_size);
  hak_deferred d = {0};
  if (size <= old_size && (align == HAK_IN_PLACE || (old_size <= align && hak_is_in_place(p, align)))) return p;
  if (size > old_size) hak_slow_entry(true);
  if (hak_is_in_place(p, align) && size > HAK_SHARED_MAX && size <= most && hak_extent_resize(region, p, size, &d.purge_due)) {
    note_resized(p, p, size);
    hak_slow_exit(&d);
    return p;
  }
  int saved = errno;
  void *moved = size > old_size ? grow_mapped(p, old_size, size, align) : NULL;
  if (moved == NULL) moved = move_block(p, old_size, size, align);
  if (moved != NULL || align == HAK_IN_PLACE || !hak_is_in_place(p, align)) return moved;
  if (size > HAK_EXTENT_LONGEST || !hak_extent_resize(region, p, size, &d.purge_due)) return NULL;
  /* Short of memory: move_block has given back what caches held, and growing in place needs less than a copy. */
  note_resized(p, p, size);
  errno = saved;
  return p;
}

void *hak_raw_resize_huge(void *p, size_t size, size_t align) {
  if (!hak_is_in_place(p, align)) return NULL;
  hak_profile_sample before = {0};
  if (hak_profile_has_samples()) before = hak_profile_set_aside(p); /* before another thread may be given its address */
  void *moved = hak_huge_resize(p, size, align != HAK_IN_PLACE && align <= hak_os_page_size());
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
static void *resize_huge(void *p, size_t old_size, size_t size, size_t align) {
  hak_deferred d = {0};
  if (align == HAK_IN_PLACE && size <= old_size) return p;
  if (size > old_size) hak_slow_entry(true);
  void *moved = hak_raw_resize_huge(p, size, align);
  if (moved != NULL) {
    hak_slow_exit(&d);
    return moved;
  }
  int saved = errno;
  moved = move_block(p, old_size, size, align);
  if (moved != NULL || align == HAK_IN_PLACE) return moved;
  /* Short of memory: move_block has given back what caches held, and growing in place needs less than a copy. */
  moved = hak_raw_resize_huge(p, size, align);
  if (moved != NULL) errno = saved;
  return moved;
}

static void *resize_outside_regions(void *p, size_t size, size_t align, const void *caller) {
  uint32_t owner = hak_huge_owner(p);
  if (owner != 0) return hak_heap_resize(NULL, owner, p, size, align);
  if (hak_sample_contains(p)) {
    size_t sampled_size = hak_sample_size(p);
    if (sampled_size == 0) hak_sample_free(p); /* no live block: it reports that */
    return align == HAK_IN_PLACE && size <= sampled_size ? p : move_block(p, sampled_size, size, align);
  }
  size_t old_size = hak_huge_size(p);
  if (old_size == 0) {
    hak_verdict verdict = hak_huge_verdict(p);
    if (HAK_UNLIKELY(verdict != HAK_VERDICT_OK)) hak_misuse_abort(verdict, p, 0, "by realloc");
    hak_foreign_note(HAK_FOREIGN_REALLOC, p, caller);
    errno = EINVAL;
    return NULL;
  }
  return size < GROWS_MAPPED_LEAST && align != HAK_IN_PLACE ? move_block(p, old_size, size, align) : resize_huge(p, old_size, size, align);
}

HAK_NOINLINE void *hak_raw_resize(void *p, size_t size, size_t align, const void *caller) {
  if (p == NULL) return hak_raw_malloc(size);
  if (size > PTRDIFF_MAX) return hak_no_memory();
  hak_region *region = hak_region_find(p);
  if (size == 0 && align != HAK_IN_PLACE && (region != NULL || hak_block_size(p) != 0)) {
    hak_raw_free(p);
    return NULL;
  }
  if (HAK_UNLIKELY(region == NULL)) return resize_outside_regions(p, size, align, caller);
  unsigned code = hak_region_slab_code(region, hak_region_index(region, p));
  if (HAK_UNLIKELY(code == HAK_CODE_IN_HEAP)) return hak_heap_resize(region, 0, p, size, align);
  if (HAK_LIKELY(hak_code_is_class(code))) {
    size_t block_size = hak_class_size(code - 1);
    if (fits(p, block_size, size, align)) return p;
    /* Behind a block of whole spans there may be room. */
    bool whole_spans = block_size > HAK_SHARED_MAX && size > HAK_SHARED_MAX && hak_region_code(region, p) != HAK_CODE_SAMPLED && hak_is_in_place(p, align);
    if (!whole_spans || !hak_arena_make_extent(hak_region_span(region, p), p, code - 1)) return move_block(p, block_size, size, align);
    code = HAK_CODE_EXTENT;
  }
  if (code == HAK_CODE_EXTENT && hak_region_span(region, p)->start == (uintptr_t)p) return resize_extent(region, p, size, align);
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
    return hak_raw_resize(p, size, HAK_GRANULE, caller);
  size_t block_size = hak_class_size((unsigned)code - 1);
  if (hak_resize_stays(block_size, size, HAK_GRANULE)) return p;
  void *q = hak_tcache_pop(size);
  if (HAK_UNLIKELY(q == NULL)) {
    q = malloc_slowly(p, block_size, size);
    if (q == NULL || q == p) return q;
  }
  memmove(q, p, hak_min_size(block_size, size)); /* as in move_block */
  if (HAK_UNLIKELY(!hak_tcache_push_code(p, code))) hak_free_slow(p, code);
  return q;
}
