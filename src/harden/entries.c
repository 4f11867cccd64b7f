#include "harden/harden.h"

#include <errno.h>
#include <string.h>

#include "entry/entry.h"
#include "entry/heaps.h"
#include "entry/sampling.h"
#include "entry/slow_exit.h"
#include "entry/where.h"
#include "guard/empty.h"
#include "guard/sample.h"
#include "harden/held.h"
#include "harden/quarantine.h"
#include "harden/sweep.h"
#include "harden/trailer.h"
#include "large/extent.h"
#include "large/huge.h"
#include "life/thread.h"
#include "os/callers.h"
#include "os/os.h"
#include "os/stack.h"

#define TRAILER_BYTES HAK_TRAILER_BYTES_BUILT

/* --- trailer --- */

/* Takes the mark off the family of a block that was resized, after looking at all that the mark says is filled. */
static HAK_COLD hak_family plain_family(const void *p, size_t block_size, size_t size, hak_family family) {
  if ((family & HAK_TRAILER_RESIZED) == 0) return family;
  if (!hak_trailer_rest_is_whole(p, block_size, size)) hak_misuse_abort(HAK_VERDICT_OVERFLOW, p, size, "at the call");
  return (hak_family)(family & ~HAK_TRAILER_RESIZED);
}

/* What was asked for when the block was made; a damaged trailer or fill ends the program. */
HAK_INLINE size_t read_trailer(const void *p, size_t block_size, const char *where, hak_family *family) {
  size_t size;
  if (HAK_UNLIKELY(!hak_trailer_read(p, block_size, &size, family)))
    hak_misuse_abort(HAK_VERDICT_OVERFLOW, p, size, where);
  return size;
}

/* Whether a block of the same size lies before the one at p: not before a slab's first, and by chance where blocks are
 * whole spans. */
static bool has_neighbour(const hak_region *r, const void *p, size_t block_size) {
  if (block_size < HAK_SPAN_SIZE) return (uintptr_t)p != hak_region_span(r, p)->start;
  size_t index = hak_region_index(r, p), before = index - block_size / HAK_SPAN_SIZE;
  return hak_region_slab_code(r, before) == hak_region_slab_code(r, index) &&
         hak_load_relaxed(&hak_region_span_at(r, before)->head) == hak_region_span_at(r, before);
}

static HAK_COLD void doubt_before(const hak_region *r, const void *p, size_t block_size) {
  if (!has_neighbour(r, p, block_size))
    hak_sweep_before_first(r, p, "at the call");
  else
    hak_sweep_neighbour(r, (const char *)p - block_size, block_size,
                        "when the block behind it was freed: that one may have written before itself");
}

/* What is written before a block meets the trailer of the one before, or what is to stay zero. */
HAK_INLINE void check_before(const hak_region *r, const void *p, size_t block_size) {
  if (!HAK_HARD(CANARY) || !HAK_HARD(CHECKED_FREE)) return;
  if (HAK_UNLIKELY((uintptr_t)p % HAK_SPAN_SIZE < block_size) && !has_neighbour(r, p, block_size)) {
    hak_sweep_before_first(r, p, "at the call");
    return;
  }
  const char *before = (const char *)p - block_size;
  /* A child may not have the other's page: where p begins a page, the trailer before lies in another one. */
  if (HAK_UNLIKELY((uintptr_t)p % HAK_PAGE_LEAST == 0) && hak_load_relaxed(&hak_forked)) return;
  uint64_t word = hak_trailer_glance(before, block_size);
  if (HAK_LIKELY(hak_trailer_fits(before, block_size, word))) return;
  if (word != 0 || hak_held(r, before)) doubt_before(r, p, block_size);
}

/* The program's and its libraries' C++ runtime; NULL: there is none. */
extern int uncaught_exceptions(void) __asm__("_ZSt19uncaught_exceptionsv") __attribute__((weak));

/* Whether it is certain that who made a block and who frees it do not belong together. Where a constructor throws, the
 * compiler calls the class's own operator delete, on what any operator new has made. */
static HAK_COLD bool is_mismatch(void) {
  return (uncaught_exceptions == NULL || uncaught_exceptions() == 0) && hak_operators_known();
}

/* Ends the program unless a block of `size` bytes and `family` may be freed so. */
HAK_INLINE void check_request(const void *p, size_t size, hak_family family, size_t said, hak_family freed_as) {
  if (HAK_UNLIKELY(family != freed_as)) {
    if (is_mismatch()) hak_misuse_abort(HAK_VERDICT_KIND_MISMATCH, p, size, "at the call");
    return; /* another's operator new may have asked for more than the program did */
  }
  if (HAK_UNLIKELY(said != HAK_SIZE_UNKNOWN && said != size))
    hak_misuse_abort(HAK_VERDICT_SIZE_MISMATCH, p, size, "at the call");
}

/* The same of the block at p, of block_size bytes. */
HAK_INLINE void check_block(const void *p, size_t block_size, size_t said, hak_family freed_as) {
  if (!HAK_HARD(CANARY)) return;
  hak_family family;
  size_t size = read_trailer(p, block_size, "at the call", &family);
  if (HAK_UNLIKELY(family != freed_as)) family = plain_family(p, block_size, size, family);
  check_request(p, size, family, said, freed_as);
}

/* --- who has a block --- */

HAK_NOINLINE void *hak_held_set_slow(void *p) {
  hak_held_set(hak_region_find_slow(p), p);
  return p;
}

__attribute__((noreturn)) static HAK_COLD void report_not_held(const hak_region *r, const void *p) {
  const hak_span *s = hak_region_span(r, p);
  bool start = hak_slab_block_index(s, p) < s->blocks;
  hak_misuse_abort(start ? HAK_VERDICT_DOUBLE_FREE : HAK_VERDICT_NO_BLOCK_START, p, hak_class_size(s->class_code),
                   "at the call");
}

/* --- entry points --- */

HAK_INLINE void *pop(unsigned class_code) {
  if (HAK_UNLIKELY(hak_tls.countdown < 0)) return NULL;
  return HAK_HARD(RANDOM) ? hak_tcache_pop_any(class_code) : hak_tcache_pop_class(class_code);
}

/* Makes a block of a slab the program's. */
HAK_INLINE void *hand_out(hak_region *r, void *p, size_t block_size, size_t size, hak_family family) {
  HAK_ASSERT(size + TRAILER_BYTES <= block_size);
  hak_held_begin(r, p);
  if (HAK_HARD(ZERO) && HAK_UNLIKELY(!hak_is_zero(p, block_size)))
    hak_misuse_abort(HAK_VERDICT_WRITTEN_AFTER_FREE, p, block_size, "when the block was to be used again");
  if (HAK_HARD(CANARY)) hak_trailer_write(p, block_size, size, family);
  hak_held_set(r, p);
  return p;
}

/* A block of so many bytes. A small request without an alignment is counted. */
static void *attempt(size_t total, size_t align, bool *zeroed) {
  if (total > HAK_SMALL_MAX) return hak_raw_large(total, hak_max_size(align, hak_os_page_size()), false, zeroed);
  int class_code = align == HAK_ANY_ALIGN ? (int)hak_class_for(total) : hak_class_for_aligned(total, align);
  if (class_code < 0) return hak_raw_aligned(align, total);
  if (align != HAK_ANY_ALIGN) hak_count_request(total);
  void *p = pop((unsigned)class_code);
  if (p != NULL) return p;
  return align == HAK_ANY_ALIGN ? hak_malloc_slow(total) : hak_aligned_slow((unsigned)class_code, total, align);
}

/* Any block; a small request without an alignment is counted. *zeroed: the request reads as zero. */
static void *obtain(size_t size, size_t align, hak_family family, bool *zeroed) {
  if (HAK_UNLIKELY(size > PTRDIFF_MAX - 2 * TRAILER_BYTES)) return hak_no_memory();
  /* A guarded block has exactly so many: its trailer is a whole word */
  size_t total = hak_align_up(size + TRAILER_BYTES, sizeof(uint64_t));
  bool large = total > HAK_SMALL_MAX;
  int saved = errno; /* the first attempt may set it */
  void *p = attempt(total, align, zeroed);
  if (HAK_UNLIKELY(p == NULL) && hak_quarantine_flush()) p = attempt(total, align, zeroed);
  errno = p == NULL ? ENOMEM : saved;
  if (HAK_UNLIKELY(p == NULL)) return NULL;
  hak_where w = hak_where_is(p);
  /* A small request may be an extent, if it is aligned, or a guarded block. */
  if (!large && w.kind == HAK_KIND_SLAB) {
    *zeroed = HAK_HARD(ZERO) && size <= HAK_ZEROED_BYTES;
    return hand_out(w.region, p, w.size, size, family);
  }
  if (!large && w.kind == HAK_KIND_GUARDED)
    hak_sample_tell(p, size, family);
  else if (HAK_HARD(CANARY))
    hak_trailer_write(p, w.size, size, family);
  return p;
}

/* A request of no bytes is not counted yet; a block that has some may serve it as well. */
static HAK_NOINLINE void *alloc_slow(size_t size, size_t align, hak_family family, bool *zeroed) {
  *zeroed = false;
  void *p = size == 0 && HAK_HARD(GUARDS) ? hak_empty_alloc(align, family) : NULL;
  if (p != NULL) {
    hak_sampled_count_large(p, TRAILER_BYTES);
    return p;
  }
  if (size == 0 && align == HAK_ANY_ALIGN) hak_count_request(TRAILER_BYTES);
  return obtain(size, align, family, zeroed);
}

static HAK_NOINLINE bool alloc_in_default(size_t size, size_t align, bool *zeroed, void **p) {
  hak_deferred d = {0};
  bool serves;
  do {
    serves = hak_heap_serves(size, align, zeroed, p, &d);
    if (d.slow) hak_slow_exit(&d);
  } while (HAK_UNLIKELY(hak_slow_again(&d)));
  return serves;
}

/* counted: the entry point has counted the request, if it has no alignment. *zeroed: it reads as zero. */
HAK_INLINE void *alloc(size_t size, size_t align, hak_family family, bool counted, bool *zeroed) {
  void *p;
  if (HAK_UNLIKELY(hak_tls.in_heap)) {
    if ((!counted || align != HAK_ANY_ALIGN) && size <= HAK_SMALL_MAX) hak_count_request(size);
    if (alloc_in_default(size, hak_max_size(align, HAK_GRANULE), zeroed, &p)) return hak_or_no_memory(p);
  }
  if (HAK_LIKELY(align == HAK_ANY_ALIGN) && HAK_LIKELY(size - 1 < HAK_SMALL_MAX - TRAILER_BYTES)) { /* and not 0 */
    unsigned class_code = hak_class_for(size + TRAILER_BYTES);
    if (!counted) hak_count_request(size + TRAILER_BYTES);
    p = pop(class_code);
    *zeroed = HAK_HARD(ZERO) && size <= HAK_ZEROED_BYTES;
    if (HAK_LIKELY(p != NULL)) return hand_out(hak_region_find(p), p, hak_class_size(class_code), size, family);
  }
  return alloc_slow(size, align, family, zeroed);
}

static HAK_NOINLINE void *alloc_in_main(size_t size, size_t align, hak_family family) {
  bool was = hak_heap_suspend();
  void *p = hak_hard_alloc(size, align, family);
  hak_heap_resume(was);
  return p;
}

void *hak_hard_alloc(size_t size, size_t align, hak_family family) {
  bool zeroed;
  if (HAK_UNLIKELY(hak_tls.in_heap) && HAK_UNLIKELY(hak_caller_keeps(HAK_CALLER())))
    return alloc_in_main(size, align, family);
  return alloc(size, align, family, HAK_HARD_FAST, &zeroed);
}

void *hak_hard_alloc_for(size_t size, hak_family family, const void *caller) {
  return hak_caller_keeps(caller) ? alloc_in_main(size, 0, family) : hak_hard_alloc(size, 0, family);
}

void *hak_hard_calloc(size_t align, size_t count, size_t size) {
  size_t bytes;
  bool zeroed;
  if (HAK_UNLIKELY(__builtin_mul_overflow(count, size, &bytes))) return hak_no_memory();
  bool is_kept = HAK_UNLIKELY(hak_tls.in_heap) && HAK_UNLIKELY(hak_caller_keeps(HAK_CALLER()));
  zeroed = false;
  void *p =
      is_kept ? alloc_in_main(bytes, align, HAK_FAMILY_MALLOC) : alloc(bytes, align, HAK_FAMILY_MALLOC, false, &zeroed);
  if (p != NULL && !zeroed) hak_clear(p, bytes);
  return p;
}

static HAK_NOINLINE void end_sample(void *p, unsigned class_code) {
  hak_deferred d = {0};
  hak_sampled_end(p, class_code, true, &d);
  hak_slow_exit(&d);
}

/* The profile counts a sampled block as freed when the program frees it; then it is in quarantine as any other. */
HAK_INLINE void free_from_slab(hak_region *r, void *p, unsigned class_code, bool sampled, size_t said,
                               hak_family family) {
  size_t block_size = hak_class_size(class_code);
  if (HAK_UNLIKELY(!hak_held_take(r, p))) report_not_held(r, p);
  check_block(p, block_size, said, family);
  check_before(r, p, block_size);
  if (HAK_HARD(ZERO)) hak_zero(p, block_size);
  hak_held_unset(r, p);
  if (sampled) end_sample(p, class_code);
  hak_tcache *t = HAK_HARD(QUARANTINE) ? hak_thread_cache() : NULL;
  if (t == NULL || !hak_quarantine_put(t, p, class_code)) hak_raw_free(p);
}

/* What lies outside of regions and is no block. */
__attribute__((noreturn)) static HAK_COLD void report_no_block(const hak_where *w, const void *p, const char *where) {
  hak_verdict verdict = w->what == HAK_INSIDE        ? HAK_VERDICT_NO_BLOCK_START
                        : w->what == HAK_FREE_MEMORY ? HAK_VERDICT_FREE_MEMORY
                                                     : HAK_VERDICT_FOREIGN;
  hak_misuse_abort(verdict, p, 0, where);
}

static void free_empty(const void *p, size_t said, hak_family family) {
  hak_sampled_note_free(p);
  hak_verdict verdict;
  hak_family made = (hak_family)hak_empty_free(p, &verdict);
  if (made == 0) hak_misuse_abort(verdict, p, 0, "at the call");
  check_request(p, 0, made, said, family);
}

static HAK_NOINLINE void free_slowly(void *p, size_t said, hak_family family) {
  if (p == NULL) return;
  hak_where w = hak_where_is(p);
  if (w.kind == HAK_KIND_EMPTY) {
    free_empty(p, said, family);
    return;
  }
  if (w.kind == HAK_KIND_SLAB && !hak_where_in_heap(&w)) {
    free_from_slab(w.region, p, w.class_code, w.sampled, said, family);
    return;
  }
  if (w.kind == HAK_KIND_EXTENT && w.what == HAK_BLOCK && !hak_where_in_heap(&w)) {
    hak_deferred d = {0};
    size_t bytes = hak_raw_claim_extent(w.region, p);
    check_block(p, bytes, said, family);
    hak_raw_give_extent(w.region, p, &d);
    hak_slow_exit(&d);
    return;
  }
  /* What is guarded reports the rest itself, and a heap's block has no trailer. */
  if (w.kind == HAK_KIND_GUARDED && HAK_HARD(CANARY) && w.what == HAK_BLOCK)
    check_request(p, w.size, (hak_family)hak_sample_look(p, "at the call"), said, family);
  else if (w.region == NULL && w.kind != HAK_KIND_GUARDED && w.what != HAK_BLOCK)
    report_no_block(&w, p, "at the call");
  else if (w.kind == HAK_KIND_HUGE && !hak_where_in_heap(&w))
    check_block(p, w.size, said, family);
  hak_raw_free(p); /* says what is wrong */
}

void hak_hard_free(void *p, size_t said, hak_family family) {
  hak_region *r = hak_region_find(p);
  unsigned code = HAK_LIKELY(r != NULL) ? hak_region_code(r, p) : HAK_CODE_NONE;
  if (HAK_LIKELY(hak_code_is_class(code)))
    free_from_slab(r, p, code - 1, false, said, family);
  else
    free_slowly(p, said, family);
}

typedef struct live_block {
  size_t block_size;
  size_t size; /* that was asked for */
  hak_family family;
  bool guarded;
  bool resized; /* in place: all bytes up to the trailer are filled */
} live_block;

__attribute__((noreturn)) static HAK_COLD void report_not_live(const hak_where *w, const void *p, const char *where) {
  if (w->kind == HAK_KIND_GUARDED) hak_sample_free((void *)(uintptr_t)p); /* it reports that */
  if (w->region == NULL) report_no_block(w, p, where);
  hak_misuse_abort(HAK_VERDICT_FREE_MEMORY, p, 0, where);
}

/* What is no live block of ours ends the program. */
static live_block live_block_at(const hak_where *w, const void *p, const char *where) {
  live_block b = {.block_size = w->size, .family = HAK_FAMILY_MALLOC};
  if (w->what != HAK_BLOCK || (w->kind == HAK_KIND_SLAB && !hak_held(w->region, p))) report_not_live(w, p, where);
  if (w->kind == HAK_KIND_GUARDED)
    return (live_block){b.block_size, b.block_size, (hak_family)hak_sample_look(p, where), true, false};
  b.size = HAK_HARD(CANARY) ? read_trailer(p, b.block_size, where, &b.family) : b.block_size;
  b.resized = (b.family & HAK_TRAILER_RESIZED) != 0;
  b.family = (hak_family)(b.family & ~HAK_TRAILER_RESIZED);
  return b;
}

static hak_family expect_live_empty(const void *p, const char *where) {
  hak_verdict verdict;
  hak_family made = (hak_family)hak_empty_tag(p, &verdict);
  if (made == 0) hak_misuse_abort(verdict == HAK_VERDICT_DOUBLE_FREE ? HAK_VERDICT_FREE_MEMORY : verdict, p, 0, where);
  return made;
}

size_t hak_hard_usable_size(const void *p) {
  if (p == NULL) return 0;
  hak_where w = hak_where_is(p);
  if (HAK_UNLIKELY(hak_where_in_heap(&w))) return hak_where_size(&w, p); /* blocks of heaps have no trailers */
  if (HAK_UNLIKELY(w.kind == HAK_KIND_EMPTY)) {
    expect_live_empty(p, "by malloc_usable_size");
    return 0;
  }
  live_block b = live_block_at(&w, p, "by malloc_usable_size");
  if (b.resized && !hak_trailer_rest_is_whole(p, b.block_size, b.size))
    hak_misuse_abort(HAK_VERDICT_OVERFLOW, p, b.size, "by malloc_usable_size");
  return b.size;
}

/* A block that others look at meanwhile: for a moment fill and trailer do not fit each other. What stays behind the
 * request is looked at by free. */
static void resize_in_place(const hak_where *w, void *p, const live_block *b, size_t size) {
  if (!HAK_HARD(CANARY)) return;
  hak_region *r = w->region;
  bool in_slab = w->kind == HAK_KIND_SLAB;
  hak_family family = (hak_family)(b->family | HAK_TRAILER_RESIZED);
  size_t end = b->block_size - HAK_TRAILER_BYTES;
  if (b->resized && !hak_trailer_rest_is_still(p, b->size, size, end))
    hak_misuse_abort(HAK_VERDICT_OVERFLOW, p, b->size, "by realloc");
  if (in_slab)
    hak_held_begin(r, p);
  else
    hak_lock_take(&hak_huge_lock);
  hak_trailer_fill_rest(p, size, b->resized ? b->size : end, end);
  hak_trailer_write(p, b->block_size, size, family);
  if (in_slab)
    hak_held_set(r, p);
  else
    hak_lock_drop(&hak_huge_lock);
}

/* A huge block shrinks: until its trailer is written it ends as one that has just been made (harden/sweep.c). */
static void forget_end(void *p, size_t block_size, size_t total) {
  size_t end = hak_align_up(total, hak_os_page_size());
  if (!HAK_HARD(CANARY) || end >= block_size) return;
  hak_lock_take(&hak_huge_lock);
  memset((char *)p + end - HAK_TRAILER_BYTES, 0, HAK_TRAILER_BYTES);
  hak_lock_drop(&hak_huge_lock);
}

static void *new_place(size_t size, size_t align) {
  bool was = hak_heap_suspend();
  void *q = align <= HAK_GRANULE ? hak_malloc(size) : hak_aligned_as(align, size, HAK_FAMILY_MALLOC);
  hak_heap_resume(was);
  return q;
}

static void *resize_empty(void *p, size_t size, size_t align) {
  hak_family made = expect_live_empty(p, "by realloc");
  if (align == HAK_IN_PLACE) return size == 0 ? p : hak_no_memory();
  if (made != HAK_FAMILY_MALLOC && is_mismatch()) hak_misuse_abort(HAK_VERDICT_KIND_MISMATCH, p, 0, "by realloc");
  void *q = size == 0 ? NULL : new_place(size, align);
  if (q != NULL || size == 0) free_empty(p, HAK_SIZE_UNKNOWN, made);
  return q;
}

/* Whether the block stays for `total` bytes: a huge one gives pages back. */
static bool stays(const hak_where *w, const void *p, const live_block *b, size_t total, size_t align) {
  if (b->guarded || total > b->block_size) return false;
  if (align == HAK_IN_PLACE) return true;
  if (!hak_is_in_place(p, align)) return false;
  if (HAK_HARD(GUARDS) && w->kind == HAK_KIND_HUGE) return b->block_size - total < hak_os_page_size();
  return hak_resize_stays(b->block_size, total, align);
}

void *hak_hard_resize(void *p, size_t size, size_t align) {
  if (p == NULL) return hak_malloc(size);
  if (HAK_UNLIKELY(size > PTRDIFF_MAX - TRAILER_BYTES)) return hak_no_memory();
  hak_where w = hak_where_is(p);
  if (HAK_UNLIKELY(w.kind == HAK_KIND_EMPTY)) return resize_empty(p, size, align);
  if (HAK_UNLIKELY(hak_where_in_heap(&w))) return hak_raw_resize(p, size, align, NULL);
  live_block b = live_block_at(&w, p, "by realloc");
  if (align == HAK_IN_PLACE && size <= b.size) return p;
  if (size == 0) {
    hak_hard_free(p, HAK_SIZE_UNKNOWN, b.family);
    return NULL;
  }
  if (HAK_UNLIKELY(b.family != HAK_FAMILY_MALLOC) && align != HAK_IN_PLACE && is_mismatch())
    hak_misuse_abort(HAK_VERDICT_KIND_MISMATCH, p, b.size, "by realloc");
  size_t total = size + TRAILER_BYTES;
  if (stays(&w, p, &b, total, align)) {
    resize_in_place(&w, p, &b, size);
    return p;
  }
  if (total > (HAK_HARD(GUARDS) ? HAK_SMALL_MAX : HAK_EXTENT_MAX / 2) && w.kind == HAK_KIND_HUGE &&
      hak_is_in_place(p, align)) {
    forget_end(p, b.block_size, total);
    /* NULL also where the kernel cannot move it: then it is copied */
    void *moved = hak_raw_resize_huge(NULL, p, total, align, NULL);
    if (moved != NULL) {
      if (HAK_HARD(CANARY)) hak_trailer_write(moved, hak_huge_size(moved), size, b.family);
      return moved;
    }
  }
  if (align == HAK_IN_PLACE) return hak_no_memory();
  int saved = errno;
  void *q = new_place(size, align);
  if (q == NULL && (!hak_is_in_place(p, align) || (size > b.size && (b.guarded || total > b.block_size)))) return NULL;
  if (q == NULL) { /* programs take it that shrinking cannot fail */
    errno = saved;
    if (b.guarded)
      hak_sample_tell(p, size, b.family);
    else
      resize_in_place(&w, p, &b, size);
    return p;
  }
  memcpy(q, p, hak_min_size(b.size, size));
  hak_hard_free(p, HAK_SIZE_UNKNOWN, b.family);
  return q;
}
