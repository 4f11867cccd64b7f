/* realloc: in place inside the same class, extent or mapping; otherwise allocate, copy, free. Blocks of a heap stay the
 * heap's; those of jemalloc's arenas, the main heap among them, go where the thread allocates. */
#include <errno.h>
#include <string.h>

#include "entry/entry.h"
#include "entry/heaps.h"
#include "entry/sampling.h"
#include "entry/slow_exit.h"
#include "guard/foreign.h"
#include "guard/sample.h"
#include "heap/cache.h"
#include "large/extent.h"
#include "large/huge.h"
#include "os/os.h"
#include "profile/profile.h"

/* Memory is out, and errno says so. */
static HAK_COLD void *not_moved(void *p, size_t old_size, size_t size, int saved) {
  if (size > old_size) return NULL; /* p stays */
  errno = saved; /* programs take it that shrinking cannot fail */
  return p;
}

static void *new_place(size_t size, size_t align, hak_deferred *d) {
  bool was = hak_heap_suspend();
  void *q = hak_take_any(size, align, d);
  hak_heap_resume(was);
  return q;
}

/* Where a block of h, NULL: the main heap, is moved to. */
static hak_heap *goes_to(hak_heap *h) {
  if (!HAK_TOTALS || hak_resizes_in_arena || (h != NULL && !h->is_arena)) return h;
  hak_heap *threads = HAK_UNLIKELY(hak_tls.in_heap) ? hak_heap_default() : NULL;
  return threads != NULL && threads->is_arena ? threads : NULL;
}

/* h: the block's heap; NULL: the main one. */
static void *move_block(hak_heap *h, void *p, size_t old_size, size_t size, size_t align, hak_deferred *d) {
  if (align == HAK_IN_PLACE) return hak_no_memory();
  int saved = errno;
  bool stays = hak_is_in_place(p, align), zeroed;
  hak_heap *to = goes_to(h);
  void *q = to == NULL ? new_place(size, align, d)
                       : hak_heap_take_any(to, size, align, size > old_size || !stays, &zeroed, d);
  if (q == NULL) {
    if (d->memory != HAK_MEMORY_OUT) errno = ENOMEM; /* else the entry asks once more */
    return stays ? not_moved(p, old_size, size, saved) : NULL;
  }
  /* A wrong p, inside a block, is reported by free; until then q may overlap what it reads */
  memmove(q, p, hak_min_size(old_size, hak_totals_whole(q, size)));
  hak_give_any(p, NULL, d);
  return q;
}

/* A block that grows is likely to grow again: from here on as a mapping, which the kernel moves without a copy. */
#define GROWS_MAPPED_LEAST HAK_MIB

static void *grow_mapped(void *p, size_t old_size, size_t size, size_t align, hak_deferred *d) {
  if (HAK_HARD(GUARDS) || align == HAK_IN_PLACE || size < GROWS_MAPPED_LEAST || goes_to(NULL) != NULL) return NULL;
  void *q = hak_huge_alloc(size, hak_max_size(align, hak_os_page_size()), false);
  if (q == NULL) return NULL;
  hak_sampled_count_large(q, size);
  memcpy(q, p, old_size);
  hak_give_any(p, NULL, d);
  return q;
}

static bool fits(const void *p, size_t block_size, size_t size, size_t align) {
  if (align == HAK_IN_PLACE) return size <= block_size;
  if (!hak_resize_stays(block_size, size, align) || !hak_is_in_place(p, align)) return false;
  return align <= HAK_GRANULE || block_size >= hak_good_size(size, align); /* less where it is aligned by chance */
}

void *hak_raw_resize_huge(hak_heap *h, void *p, size_t size, size_t align, hak_deferred *d) {
  if (!hak_is_in_place(p, align)) return NULL;
  hak_profile_sample before = {0};
  if (hak_profile_has_samples()) before = hak_profile_set_aside(p); /* before another thread may be given its address */
  bool may_move = align != HAK_IN_PLACE && align <= hak_os_page_size();
  void *moved = h == NULL ? hak_huge_resize(p, size, may_move) : hak_heap_resize(h, NULL, p, size, may_move, true, d);
  if (moved == NULL) {
    hak_profile_put_back(&before);
    return NULL;
  }
  hak_profile_end(&before);
  if (h == NULL)
    hak_sampled_count_large(moved, size);
  else
    hak_heap_count_resized(h, moved, size);
  return moved;
}

/* Of a heap, NULL: the main one. The kernel moves it within the heap only. */
static void *resize_mapping(hak_heap *h, void *p, size_t size, size_t align, hak_deferred *d) {
  if (!hak_is_in_place(p, align)) return NULL;
  return hak_raw_resize_huge(h, p, size, h == NULL || goes_to(h) == h ? align : HAK_IN_PLACE, d);
}

void *hak_resize_mapping(void *p, size_t size, size_t align) {
  hak_where w = hak_where_is(p);
  if (size > PTRDIFF_MAX || w.kind != HAK_KIND_HUGE || w.what != HAK_BLOCK) return NULL;
  hak_deferred d = {0};
  hak_slow_entry(true);
  void *q = resize_mapping(hak_where_heap(&w), p, size, align, &d);
  hak_slow_exit(&d);
  return q;
}

/* A large block where it is, or moved by the kernel. NULL: it is as it was. The kernel moves a mapping only while it is
 * one: it refuses where the program has given some of its pages advice, a lock or a memory policy of their own. */
static void *resize_by_pages(hak_region *region, void *p, size_t size, size_t align, hak_deferred *d) {
  if (region == NULL) return hak_raw_resize_huge(NULL, p, size, align, d);
  bool by_chance = align > HAK_COLOUR_BYTES && (uintptr_t)p % HAK_SPAN_SIZE != 0; /* it lacks the page of its colour */
  if (by_chance || !hak_is_in_place(p, align) || size > HAK_EXTENT_LONGEST ||
      !hak_extent_resize(region, p, size, &d->purge_due))
    return NULL;
  hak_sampled_forget(p); /* to the profile a resized block is a new one */
  hak_sampled_count_large(p, size);
  return p;
}

/* region: of an extent; NULL: a huge block. */
static void *resize_large(hak_region *region, void *p, size_t old_size, size_t size, size_t align, hak_deferred *d) {
  size_t most = region == NULL || align == HAK_IN_PLACE ? PTRDIFF_MAX : hak_max_size(HAK_EXTENT_MAX, old_size);
  bool grows = size > old_size,
       fixed = align == HAK_IN_PLACE || (region != NULL && old_size <= align && hak_is_in_place(p, align));
  if (!grows && fixed) return p;
  if (grows) hak_slow_entry(true);
  void *q = size > HAK_SHARED_MAX && size <= most ? resize_by_pages(region, p, size, align, d) : NULL;
  if (q == NULL && grows && region != NULL) q = grow_mapped(p, old_size, size, align, d);
  return q != NULL ? q : move_block(NULL, p, old_size, size, align, d);
}

/* --- blocks of heaps --- */

/* In whole spans, or, s NULL, a mapping: where it is, or moved by the kernel. NULL: it is as it was. */
static void *resize_large_of_heap(hak_heap *h, hak_span *s, void *p, size_t size, size_t align, hak_deferred *d) {
  if (s == NULL && align != HAK_IN_PLACE) return size > HAK_SMALL_MAX ? resize_mapping(h, p, size, align, d) : NULL;
  return hak_is_in_place(p, align) ? hak_heap_resize_in_place(h, s, p, size, align != HAK_IN_PLACE, d) : NULL;
}

static void *resize_of_heap(const hak_where *w, void *p, size_t size, size_t align, hak_deferred *d) {
  hak_heap *h = hak_where_heap(w);
  size_t old_size = h == NULL ? 0 : hak_where_size(w, p);
  if (old_size == 0)
    hak_misuse_abort(h == NULL ? HAK_VERDICT_FREE_MEMORY : HAK_VERDICT_NO_BLOCK_START, p, 0, "by realloc");
  if (align == HAK_IN_PLACE && size <= old_size) return p;
  int saved = errno;
  bool large = w->kind == HAK_KIND_HUGE || (w->kind == HAK_KIND_EXTENT && old_size >= HAK_SPAN_SIZE);
  void *q = large ? resize_large_of_heap(h, w->kind == HAK_KIND_HUGE ? NULL : w->head, p, size, align, d) : NULL;
  if (q == NULL) q = fits(p, old_size, size, align) ? p : move_block(h, p, old_size, size, align, d);
  errno = q == NULL && d->memory != HAK_MEMORY_OUT ? ENOMEM : saved;
  return q;
}

/* --- all --- */

static void *resize_outside_regions(const hak_where *w, void *p, size_t size, size_t align, const void *caller,
                                    hak_deferred *d) {
  if (w->kind == HAK_KIND_GUARDED) {
    if (w->what != HAK_BLOCK) hak_sample_free(p); /* it reports that */
    return align == HAK_IN_PLACE && size <= w->size ? p : move_block(NULL, p, w->size, size, align, d);
  }
  if (w->what == HAK_FOREIGN) {
    hak_foreign_note(HAK_FOREIGN_REALLOC, p, caller);
    return hak_invalid();
  }
  if (w->what != HAK_BLOCK)
    hak_misuse_abort(w->what == HAK_INSIDE ? HAK_VERDICT_NO_BLOCK_START : HAK_VERDICT_FREE_MEMORY, p, 0, "by realloc");
  return size < GROWS_MAPPED_LEAST && align != HAK_IN_PLACE ? move_block(NULL, p, w->size, size, align, d)
                                                            : resize_large(NULL, p, w->size, size, align, d);
}

static void *resize_in_slab(const hak_where *w, void *p, size_t size, size_t align, hak_deferred *d) {
  if (fits(p, w->size, size, align)) return p;
  /* Behind a block of whole spans there may be room. */
  bool whole_spans = w->size > HAK_SHARED_MAX && size > HAK_SHARED_MAX && !w->sampled && hak_is_in_place(p, align);
  if (!whole_spans || !hak_arena_make_extent(w->head, p, w->class_code))
    return move_block(NULL, p, w->size, size, align, d);
  return resize_large(w->region, p, hak_extent_size(w->region, p), size, align, d);
}

static void *resize(void *p, size_t size, size_t align, const void *caller, hak_deferred *d) {
  hak_where w = hak_where_is(p);
  if (size == 0 && align != HAK_IN_PLACE && (w.region != NULL || w.what == HAK_BLOCK)) {
    hak_give_any(p, caller, d);
    return NULL;
  }
  if (HAK_UNLIKELY(hak_where_in_heap(&w))) return resize_of_heap(&w, p, size, align, d);
  if (HAK_UNLIKELY(w.region == NULL)) return resize_outside_regions(&w, p, size, align, caller, d);
  if (HAK_LIKELY(w.kind == HAK_KIND_SLAB)) return resize_in_slab(&w, p, size, align, d);
  if (w.kind == HAK_KIND_EXTENT && w.what == HAK_BLOCK) return resize_large(w.region, p, w.size, size, align, d);
  hak_misuse_abort(w.what == HAK_FREE_MEMORY ? HAK_VERDICT_FREE_MEMORY : HAK_VERDICT_NO_BLOCK_START, p, 0,
                   "by realloc");
}

HAK_NOINLINE void *hak_raw_resize(void *p, size_t size, size_t align, const void *caller) {
  if (p == NULL) return HAK_UNLIKELY(hak_tls.in_heap) ? hak_malloc_for(size, caller) : hak_raw_malloc(size);
  if (size > PTRDIFF_MAX) return hak_no_memory();
  hak_deferred d = {0};
  void *q;
  do {
    q = resize(p, size, align, caller, &d);
    hak_slow_exit(&d);
  } while (HAK_UNLIKELY(hak_slow_again(&d))); /* p is as it was, and where it is it needs less than a copy */
  return q;
}

static HAK_NOINLINE void *malloc_slowly(void *p, size_t old_size, size_t size) {
  int saved = errno;
  bool was = goes_to(NULL) == NULL && hak_heap_suspend();
  void *q = hak_malloc_slow(size);
  hak_heap_resume(was);
  return HAK_LIKELY(q != NULL) ? q : not_moved(p, old_size, size, saved);
}

/* A block of a heap, of which the thread has a cache; NULL: take the long way. */
static void *resize_in_cache(void *p, size_t size) {
  uint32_t tag = hak_heap_tag_of(p);
  unsigned code = HAK_TAG_CODE(tag), c = hak_class_for(size);
  const hak_heap_cache *k = hak_code_is_class(code) ? hak_heap_find_own(HAK_TAG_OWNER(tag)) : NULL;
  if (k == NULL || hak_load_relaxed(&k->entry->heap->is_deleted)) return NULL;
  if (hak_resize_stays(hak_class_size(code - 1), size, HAK_GRANULE)) return p;
  void *q = hak_count_request(size) ? hak_heap_pop(k->entry->heap, c) : NULL;
  if (HAK_UNLIKELY(q == NULL)) {
    hak_tls.countdown += HAK_COUNTED_BYTES(size);
    return NULL;
  }
  memmove(q, p, hak_min_size(hak_class_size(code - 1), size)); /* as in move_block */
  hak_free_slow(p, HAK_CODE_SAMPLED);
  return q;
}

static HAK_NOINLINE void *resize_otherwise(void *p, size_t size, size_t code, const void *caller) {
  bool quick = !HAK_HARDENED && !HAK_TOTALS && code == HAK_CODE_SAMPLED && size - 1 < HAK_SHARED_MAX;
  void *q = quick && !hak_tls.in_heap && !hak_profile_has_samples() ? resize_in_cache(p, size) : NULL;
  return q != NULL ? q : hak_raw_resize(p, size, HAK_GRANULE, caller);
}

/* The thread's cache has one class, and takes the other. */
static HAK_NOINLINE void *move_in_cache(void *p, size_t size, size_t code) {
  size_t block_size = hak_class_size((unsigned)code - 1);
  void *q = hak_tcache_pop(size);
  if (HAK_UNLIKELY(q == NULL)) {
    q = malloc_slowly(p, block_size, size);
    if (q == NULL || q == p) return q;
  }
  memmove(q, p, hak_min_size(block_size, hak_totals_whole(q, size))); /* as in move_block */
  if (HAK_UNLIKELY(!hak_tcache_push_code(p, code))) hak_free_slow(p, code);
  return q;
}

/* Most blocks are of a class before and after; or there is none yet. No register is saved before it is known what is to
 * be done. */
void *hak_raw_realloc(void *p, size_t size, const void *caller) {
  size_t offset, code = hak_tcache_code(p, &offset);
  if (!HAK_HARDENED && !HAK_TOTALS && p == NULL && HAK_LIKELY(!hak_tls.in_heap)) return hak_raw_malloc(size);
  if (HAK_HARDENED || HAK_UNLIKELY(!hak_code_is_class((unsigned)code)) || HAK_UNLIKELY(size - 1 >= HAK_SHARED_MAX))
    return resize_otherwise(p, size, code, caller);
  return hak_resize_stays(hak_class_size((unsigned)code - 1), size, HAK_GRANULE) ? p : move_in_cache(p, size, code);
}
