/* mallocx and its kin. Blocks are the core's, and any of its frees takes them. */
#include <errno.h>
#include <string.h>

#include "entry/heaps.h"
#include "entry/sampling.h"
#include "entry/slow_exit.h"
#include "je/je.h"
#include "life/thread.h"

HAK_EXPORT void *mallocx(size_t size, int flags);
HAK_EXPORT void *rallocx(void *p, size_t size, int flags);
HAK_EXPORT size_t xallocx(void *p, size_t size, size_t extra, int flags);
HAK_EXPORT size_t sallocx(const void *p, int flags);
HAK_EXPORT void dallocx(void *p, int flags);
HAK_EXPORT void sdallocx(void *p, size_t size, int flags);

#define NO_TCACHE 1

/* Calls without a cache: what is due by the clock is looked at once in UNCACHED_CALLS of them, as a magazine's blocks
 * pass between two looks elsewhere; and once in UNCACHED_FLUSHES the thread's cache goes back: whoever frees so wants
 * slabs to become empty, and what it holds would keep them. */
#define UNCACHED_CALLS 32
#define UNCACHED_FLUSHES 512
static HAK_TLS unsigned uncached_calls;

static void end_uncached(hak_deferred *d) {
  if (HAK_UNLIKELY(uncached_calls++ % UNCACHED_CALLS == 0) || d->purge_due || d->verdict != HAK_VERDICT_OK)
    hak_slow_exit(d);
  if (HAK_UNLIKELY(uncached_calls % UNCACHED_FLUSHES == 0)) hakmem_thread_idle();
}

/* A block from slabs, whatever the thread's cache has: of the fullest of the arena's, so that whoever moves blocks
 * there empties others. NULL: take another way. */
static void *take_uncached(size_t size, size_t align) {
  int c = size > HAK_SHARED_MAX  ? -1
          : align <= HAK_GRANULE ? (int)hak_class_for(size)
                                 : hak_class_for_aligned(size, align);
  if (c < 0 || hak_tls.in_heap || hak_tls.phase == HAK_THREAD_FORBIDDEN || !hak_count_request(size))
    return NULL;
  hak_deferred d = {0};
  hak_slow_entry(hak_pool_is_full());
  void *p = hak_arena_alloc((unsigned)c, &d);
  end_uncached(&d);
  return p;
}

/* Back to its slab at once. False: it is no block of a class, or more has to be done. */
static bool give_uncached(void *p) {
  size_t offset, code = hak_tcache_code(p, &offset);
  if (!hak_code_is_class((unsigned)code) || hak_class_size((unsigned)code - 1) > HAK_SHARED_MAX ||
      hak_tls.phase == HAK_THREAD_FORBIDDEN)
    return false;
  hak_deferred d = {0};
  hak_totals_take(p);
  hak_arena_free(p, (unsigned)code - 1, &d);
  end_uncached(&d);
  return true;
}

/* All of a block that is new: growth promises zeros from its usable size on. */
static void *zero(void *p, bool zeroed) {
  if (p != NULL && !zeroed) hak_clear(p, hak_totals_size(p));
  return p;
}

/* The main heap, or the thread's default. */
static void *alloc_plain(size_t size, size_t align, int flags) {
  bool zeros = (flags & HAK_JE_ZERO) != 0;
  unsigned cache = HAK_JE_TCACHE(flags);
  void *p = cache == NO_TCACHE  ? take_uncached(size, align)
            : cache > NO_TCACHE ? hak_je_tcache_pop(cache - 2, size, align)
                                : NULL;
  if (p != NULL) return zero(hak_totals_new(p), !zeros);
  if (zeros) return hak_aligned_calloc(align, 1, size);
  return align <= HAK_GRANULE ? hak_malloc(size) : hak_aligned(align, size);
}

/* Of the main heap, whatever the thread's is, and however large. */
static void *alloc_main(size_t size, size_t align, int flags) {
  bool was = hak_heap_suspend(), zeroed, zeros = (flags & HAK_JE_ZERO) != 0;
  void *p = size < hak_oversize || zeros ? alloc_plain(size, align, flags)
                                         : hak_totals_new(hak_raw_large(size, align, false, &zeroed));
  hak_heap_resume(was);
  return p;
}

static void *alloc_in(unsigned arena, size_t size, size_t align, int flags) {
  bool zeroed = false;
  if (hak_je_arena_is_main(arena)) return alloc_main(size, align, flags);
  hak_je_arena *a = hak_je_arena_at(arena);
  hakmem_heap *heap = a == NULL ? NULL : hak_load_acquire(&a->heap);
  if (heap == NULL) return NULL; /* no such arena */
  void *p = hak_heap_alloc(heap, size, hak_max_size(align, HAK_GRANULE), true, &zeroed);
  return (flags & HAK_JE_ZERO) == 0 ? hak_totals_new(p) : zero(hak_totals_add(p), zeroed);
}

void *mallocx(size_t size, int flags) {
  if (HAK_LIKELY(flags == 0) && HAK_LIKELY(!hak_tls.in_heap)) return hak_malloc(size);
  size_t align = HAK_JE_ALIGN(flags);
  if (size > PTRDIFF_MAX || align > PTRDIFF_MAX / 2 || !hak_start()) return hak_no_memory();
  if (hak_fills_with_zeros(size)) flags |= HAK_JE_ZERO;
  return hak_or_no_memory(HAK_JE_ARENA(flags) != 0 ? alloc_in(HAK_JE_ARENA(flags) - 1, size, align, flags)
                                                   : alloc_plain(size, align, flags));
}

size_t sallocx(const void *p, int flags) {
  (void)flags;
  return hak_usable_size(p, HAK_CALLER());
}

void dallocx(void *p, int flags) {
  unsigned cache = HAK_JE_TCACHE(flags);
  if (cache == NO_TCACHE ? give_uncached(p) : cache > NO_TCACHE && hak_je_tcache_push(cache - 2, p)) return;
  hak_free(p);
}

void sdallocx(void *p, size_t size, int flags) {
  if (HAK_JE_TCACHE(flags) != 0 && size <= hak_totals_size(p))
    dallocx(p, flags);
  else
    hak_free_sized(p, size);
}

/* --- resizing --- */

static void fill_zero(void *p, size_t from, size_t to) {
  if (to > from) hak_clear((char *)p + from, to - from);
}

/* ZERO: what the new block has beyond `before` is zero. */
static void *move(void *p, size_t before, size_t size, int flags) {
  bool large = size > HAK_SHARED_MAX; /* it may read as zero without having been touched */
  void *q = mallocx(size, large ? flags : flags & ~HAK_JE_ZERO);
  if (q == NULL) return NULL;
  size_t after = hak_totals_size(q);
  memcpy(q, p, hak_min_size(before, after));
  if (!large && (flags & HAK_JE_ZERO) != 0) fill_zero(q, before, after);
  dallocx(p, flags);
  return q;
}

static bool is_elsewhere(const void *p, int flags) {
  unsigned index, arena = HAK_JE_ARENA(flags) - 1;
  if (HAK_JE_ARENA(flags) == 0 || !hak_je_arena_of(p, &index)) return false;
  return hak_je_arena_is_main(arena) ? !hak_je_arena_is_main(index) : index != arena;
}

static bool grow_in_place(void *p, size_t size) {
  int saved = errno;
  bool grown = size <= PTRDIFF_MAX && hak_raw_resize(p, size, HAK_IN_PLACE, HAK_CALLER()) != NULL;
  errno = saved;
  return grown;
}

/* Counts that a block has been resized, or moved by the kernel, and makes what it has more zero: is_zero where it reads
 * so. Returns its size. */
static size_t note_resized(void *p, size_t before, bool zeros, bool is_zero) {
  size_t after = hak_totals_size(p);
  hak_totals.deallocated += before;
  hak_totals_count(after);
  bool filled = hak_fill_bits != 0 && after > before;
  if (filled) hak_fill_new(p, before);
  if (zeros && (filled || !is_zero)) fill_zero(p, before, after);
  return after;
}

/* A large block that is to have zeros behind what it has: pages that nobody has touched, where that takes no larger
 * copy than those zeros are. NULL: it has to be moved. */
static void *grow_zeroed(void *p, size_t before, size_t size, size_t align) {
  void *q = hak_resize_mapping(p, size, align);
  /* Aligned so: it lacks the page of its colour */
  bool by_kernel = q != NULL, by_chance = align > HAK_COLOUR_BYTES && (uintptr_t)p % HAK_SPAN_SIZE != 0;
  if (q == NULL && size / 2 < before && !by_chance && grow_in_place(p, size)) q = p;
  if (q != NULL) note_resized(q, before, true, by_kernel);
  return q;
}

/* The arena is the block's where flags name one, else the thread's. */
static void *resize(void *p, size_t before, size_t size, size_t align, int flags) {
  void *q = align > HAK_GRANULE ? hak_resize(p, size, align, HAK_CALLER()) : hak_realloc(p, size, HAK_CALLER());
  if (q != NULL && align > HAK_GRANULE && hak_fill_bits != 0) hak_fill_new(q, before);
  if (q != NULL && (flags & HAK_JE_ZERO) != 0) fill_zero(q, before, hak_totals_size(q));
  return q;
}

void *rallocx(void *p, size_t size, int flags) {
  size_t align = HAK_JE_ALIGN(flags), before = hak_totals_size(p);
  if (size > PTRDIFF_MAX - HAK_SPAN_SIZE || align > PTRDIFF_MAX / 2) return hak_no_memory();
  if (size == 0) size = 1;
  /* A small block has the size that nallocx says: realloc would leave it where it is until half of it is enough. */
  size_t wanted = before <= HAK_SHARED_MAX ? hak_good_size(size, align) : before;
  bool here = (uintptr_t)p % align == 0 && !is_elsewhere(p, flags);
  if (!here || wanted < before || ((align > HAK_GRANULE || HAK_JE_TCACHE(flags) > NO_TCACHE) && wanted != before))
    return move(p, before, size, flags);
  bool grows_zeroed = (flags & HAK_JE_ZERO) != 0 && size > before && size > HAK_SHARED_MAX;
  /* A callback of the program may call this while another call waits for it */
  bool resized_in_arena = hak_resizes_in_arena;
  hak_resizes_in_arena = HAK_JE_ARENA(flags) != 0;
  void *q = grows_zeroed ? grow_zeroed(p, before, size, align) : resize(p, before, size, align, flags);
  hak_resizes_in_arena = resized_in_arena;
  return q == NULL && grows_zeroed ? move(p, before, size, flags) : q;
}

size_t xallocx(void *p, size_t size, size_t extra, int flags) {
  size_t before = hak_totals_size(p), align = HAK_JE_ALIGN(flags);
  if (extra > SIZE_MAX - size) extra = SIZE_MAX - size;
  if ((uintptr_t)p % align != 0 || (before >= size && before <= size + extra)) return before;
  bool is_mapping = hak_region_find(p) == NULL; /* what the kernel adds is zero */
  if (before > size + extra)
    hak_totals_shrink(p, size + extra);
  else if (!grow_in_place(p, size + extra) && extra != 0)
    grow_in_place(p, size);
  return hak_totals_size(p) == before ? before : note_resized(p, before, (flags & HAK_JE_ZERO) != 0, is_mapping);
}
