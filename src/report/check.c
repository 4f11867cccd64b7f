/* The heap walk. Takes each lock in turn, in rank order; what it checks is the list of invariants of slab.h and
 * span_pool.h. It may run while other threads allocate: what it reads is read under the lock that it is written
 * under. */
#include <stdarg.h>
#include <stdio.h>

#include "heap/heap.h"
#include "large/huge.h"
#include "os/os.h"
#include "os/print.h"
#include "pool/quick.h"
#include "pool/span_pool.h"
#include "report/report.h"
#include "tcache/tcache.h"

static size_t faults; /* relaxed, of all walks: one that runs beside another counts the other's too */

HAK_PRINTF(2, 3) static void expect(bool holds, const char *format, ...) {
  if (holds) return;
  hak_add_relaxed(&faults, 1);
  char text[256];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  hak_print("hakmem: heap check: %s\n", text);
}

/* Bits against counters of one slab. Its bin's lock is held. */
static void check_slab(uint32_t tag, const hak_span *s) {
  const hak_region *r = hak_pool_region_of(s);
  const void *p = (const void *)s->start;
  unsigned class_code = HAK_TAG_CODE(tag) - 1, code = HAK_TAG_IS_IN_HEAP(tag) ? HAK_CODE_IN_HEAP : class_code + 1;
  expect(r != NULL && hak_region_slab_code(r, hak_region_index(r, p)) == code && s->tag == tag,
         "slab %p of owner %u has a foreign tag", p, HAK_TAG_OWNER(tag));
  expect(s->class_code == class_code, "slab %p: class %u on the list of %u", p, s->class_code, class_code);
  expect(s->bumped <= s->blocks, "slab %p: %u of %u blocks were ever allocated", p, s->bumped, s->blocks);
  size_t bits = 0, words = ((size_t)s->blocks + 63) / 64;
  for (size_t w = 0; w < words; w++) bits += hak_popcount64(s->bits[w]);
  expect(bits == hak_slab_free_count(s), "slab %p: %zu bits set, %u blocks counted free", p, bits,
         hak_slab_free_count(s));
  for (size_t i = s->bumped; i < words * 64; i++) {
    if ((s->bits[i / 64] >> (i % 64) & 1) != 0) expect(false, "slab %p: free bit %zu was never allocated", p, i);
  }
}

static void check_cached(unsigned class_code, void **blocks, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const hak_region *r = hak_region_find(blocks[i]);
    bool ours = r != NULL && hak_region_code(r, blocks[i]) == class_code + 1;
    expect(ours, "cached block %p is not of class %u", blocks[i], class_code);
    if (ours)
      expect(hak_slab_examine(hak_region_span(r, blocks[i]), blocks[i]) == HAK_VERDICT_OK,
             "cached block %p is no block, or free in its slab as well", blocks[i]);
  }
}

/* Full magazines, from the first of a list on. Returns how many. */
static unsigned check_full(unsigned class_code, void **full) {
  unsigned count = 0;
  for (; full != NULL; full = (void **)*full, count++)
    check_cached(class_code, hak_magazine_empty_top(full, class_code) + 1, hak_magazine_usable[class_code]);
  return count;
}

static void check_slab_set(const hak_slab_set *set, uint32_t tag) {
  for (unsigned list = 0; list < HAK_FULLNESS_LISTS; list++) {
    const hak_span *prev = NULL;
    for (const hak_span *s = set->lists[list]; s != NULL; prev = s, s = s->next) {
      expect(s->prev == prev, "slab %p: broken back link", (void *)s->start);
      expect(s->list == list, "slab %p: on list %u, says %u", (void *)s->start, list, s->list);
      expect(hak_slab_free_count(s) > 0, "slab %p: listed without a free block", (void *)s->start);
      check_slab(tag, s);
    }
  }
  if (set->bump_slab != NULL) check_slab(tag, set->bump_slab);
}

static void check_bin(uint32_t arena, unsigned c) {
  hak_arena_bin *b = &hak_arena_at(arena)->bins[c];
  hak_lock_take(&b->lock);
  check_slab_set(&b->slabs, HAK_TAG(arena + 1, c + 1));
  unsigned count = check_full(c, b->full);
  expect(count == b->full_count, "depot of class %u: %u magazines, %u counted", c, count, b->full_count);
  hak_lock_drop(&b->lock);
}

/* An extent, wherever the walk came upon it: the one before may have been freed since. Returns how far to go on; 0:
 * there is no extent any more, look again. */
static size_t check_extent(hak_region *r, size_t index) {
  hak_assert_held(&hak_span_pool.lock);
  const hak_span *s = hak_region_span_at(r, index), *head = s->head;
  const void *p = hak_region_address(r, index);
  unsigned code = hak_region_code_at(r, index);
  if (code == HAK_CODE_NONE || hak_code_is_class(code)) return 0;
  if (code == HAK_CODE_EXTENT_BODY) {
    bool covered = head < s && s < head + head->span_count;
    expect(covered, "span %p: it is inside of no extent", p);
    return covered ? (size_t)(head + head->span_count - s) : 1;
  }
  bool is_extent = code == HAK_CODE_EXTENT || code == HAK_CODE_EXTENT_FREED;
  expect(is_extent, "span %p: code %u is neither a slab's nor an extent's", p, code);
  if (!is_extent) return 1;
  expect(hak_align_down(s->start, HAK_SPAN_SIZE) == (uintptr_t)p && head == s, "extent %p: its metadata names %p", p,
         (void *)s->start);
  for (uint32_t i = 1; i < s->span_count; i++)
    expect(hak_region_code_at(r, index + i) == HAK_CODE_EXTENT_BODY, "extent %p: span %u has a wrong code", p, i);
  return s->span_count;
}

/* What a heap has, or several. Returns how far to go on. */
static size_t check_in_heap(hak_region *r, size_t index) {
  hak_assert_held(&hak_span_pool.lock);
  const hak_span *s = hak_region_span_at(r, index);
  if (s->head != s) return 1;
  for (uint32_t i = 1; i < s->span_count; i++)
    expect(hak_region_code_at(r, index + i) == HAK_CODE_SAMPLED && hak_region_span_at(r, index + i)->head == s,
           "span %p of owner %u: its span %u belongs elsewhere", hak_region_address(r, index), HAK_TAG_OWNER(s->tag),
           i);
  return s->span_count;
}

/* A slab of an arena's bin, listed or a full one that no list names. */
static size_t check_slab_of(hak_region *r, size_t index, uint32_t arena, unsigned code) {
  HAK_ASSERT(arena < hak_arena_count() && hak_code_is_class(code));
  const hak_span *s = hak_region_span_at(r, index);
  hak_lock *lock = &hak_arena_at(arena)->bins[code - 1].lock;
  size_t spans = 1;
  hak_lock_take(lock);
  /* The slab may have gone to the pool, or to somebody else, before the lock was taken. */
  if (hak_load_relaxed(&s->tag) == HAK_TAG(arena + 1, code) && s->head == s) {
    spans = s->span_count;
    check_slab(HAK_TAG(arena + 1, code), s);
    for (uint32_t i = 1; i < spans; i++)
      expect(hak_region_slab_code(r, index + i) == code && hak_region_span_at(r, index + i)->head == s,
             "slab %p: its span %u belongs elsewhere", (void *)s->start, i);
  }
  hak_lock_drop(lock);
  return spans;
}

/* One span with a code. Codes, heads and tags change together under the pool's lock, so that a walk which meets a slab
 * on its way to the pool, or is inside one that is new, is not misled. Returns how far to go on. */
static size_t check_held(hak_region *r, size_t index) {
  HAK_ASSERT(index >= r->first_span);
  const hak_span *s = hak_region_span_at(r, index);
  hak_lock_take(&hak_span_pool.lock);
  unsigned code = hak_region_slab_code(r, index);
  uint32_t tag = hak_load_relaxed(&s->tag), arena = HAK_TAG_OWNER(tag) - 1;
  bool is_slab = hak_code_is_class(code) && s->head == s, has_arena = arena < hak_arena_count();
  size_t spans = code == HAK_CODE_IN_HEAP  ? check_in_heap(r, index)
                 : hak_code_is_class(code) ? 1
                                           : check_extent(r, index);
  hak_lock_drop(&hak_span_pool.lock);
  expect(!is_slab || has_arena, "slab %p: tag %#x names no arena", hak_region_address(r, index), tag);
  return is_slab && has_arena ? check_slab_of(r, index, arena, code) : spans;
}

static void check_map(void) {
  for (unsigned i = 0; i < hak_region_count(); i++) {
    hak_region *r = hak_region_at(i);
    size_t end = hak_load_acquire(&r->limit) >> HAK_SPAN_SHIFT;
    for (size_t index = r->first_span; index < end;)
      index += hak_region_code_at(r, index) == HAK_CODE_NONE ? 1 : check_held(r, index);
  }
}

typedef struct span_totals {
  size_t dirty, held, untagged;
} span_totals;

static void check_chunk(const hak_region *r, size_t index, span_totals *totals) {
  hak_assert_held(&hak_span_pool.lock);
  const hak_chunk *chunk = &r->chunks[index];
  size_t free_spans = 0, dirty_spans = 0;
  for (size_t w = 0; w < HAK_CHUNK_WORDS; w++) {
    free_spans += hak_popcount64(chunk->free[w]);
    dirty_spans += hak_popcount64(chunk->dirty[w]);
    expect((chunk->dirty[w] & ~chunk->free[w]) == 0, "chunk %zu: a held span is marked dirty", index);
    expect((chunk->muzzy[w] & (~chunk->free[w] | chunk->dirty[w])) == 0, "chunk %zu: a muzzy span is held or dirty",
           index);
    for (uint64_t word = chunk->free[w]; word != 0; word &= word - 1) {
      size_t span = index * HAK_CHUNK_SPANS + w * 64 + hak_ctz64(word);
      expect(hak_region_code_at(r, span) == HAK_CODE_NONE, "free span %p has a code", hak_region_address(r, span));
    }
  }
  expect(free_spans == chunk->free_spans, "chunk %zu: %zu free bits, %u counted", index, free_spans, chunk->free_spans);
  expect(dirty_spans == chunk->dirty_spans, "chunk %zu: %zu dirty bits, %u counted", index, dirty_spans,
         chunk->dirty_spans);
  totals->dirty += dirty_spans;
  size_t first = index * HAK_CHUNK_SPANS;
  for (size_t i = 0; i < HAK_CHUNK_SPANS; i++) {
    bool nobodys = first + i < r->first_span || first + i >= r->ready_spans || hak_region_is_guard(first + i) ||
                   (chunk->absent[i / 64] >> (i % 64) & 1) != 0;
    if (nobodys || (chunk->free[i / 64] >> (i % 64) & 1) != 0) continue;
    totals->held++;
    if (hak_region_code_at(r, first + i) == HAK_CODE_NONE) totals->untagged++;
  }
}

static void check_pool(void) {
  span_totals found = {0};
  hak_lock_take(&hak_span_pool.lock);
  for (unsigned i = 0; i < hak_region_count(); i++) {
    const hak_region *r = hak_region_at(i);
    for (size_t c = r->first_span / HAK_CHUNK_SPANS; c < hak_region_chunks(r); c++) check_chunk(r, c, &found);
  }
  /* What is on quick lists is free, but not in the bitmaps. */
  size_t dirty = hak_load_relaxed(&hak_span_pool.dirty_spans) - hak_quick_spans(),
         live = hak_load_relaxed(&hak_span_pool.live_spans) + hak_quick_spans();
  expect(found.dirty == dirty, "%zu dirty spans found, %zu counted", found.dirty, dirty);
  expect(found.held == live, "%zu live spans found, %zu counted", found.held, live);
  const hak_span *range = NULL;
  const char *fault = hak_quick_fault(&range);
  expect(fault == NULL, "range %p on quick lists: %s", range == NULL ? NULL : (void *)range->start, fault);
  expect(found.untagged == hak_span_pool.claimed_spans, "%zu spans are neither free nor anybody's",
         found.untagged - hak_span_pool.claimed_spans);
  hak_lock_drop(&hak_span_pool.lock);
}

/* The calling thread's cache: nobody else's may be read. */
static void check_own_cache(void) {
  hak_tcache *t = hak_tls.cache;
  if (t == NULL) return;
  hak_tcache_enter(t);
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    const hak_tcache_bin *b = &t->bins[c];
    if (b->loaded != NULL) {
      void **empty = hak_tcache_empty_top(b);
      check_cached(c, empty + 1, (size_t)(*hak_tcache_top_of(t, c) - empty));
    }
    check_full(c, b->full);
  }
  hak_tcache_leave(t);
}

/* Bytes of its spans that it has charged. */
static size_t check_spans_of(const hak_heap *h) {
  size_t out = 0;
  for (uint32_t i = 0; i < h->span_count; i++) {
    const hak_span *s = hak_heap_span_at(h, i);
    if (s == NULL) continue;
    if (!hak_code_is_class(HAK_TAG_CODE(s->tag))) {
      out += (size_t)s->span_count << HAK_SPAN_SHIFT;
      continue;
    }
    check_slab(s->tag, s);
    out += (s->bumped - hak_slab_free_count(s)) * hak_class_size(s->class_code);
  }
  return out;
}

static size_t check_pieces_of(const hak_heap *h) {
  size_t out = 0, count = 0, live;
  const hak_piece *prev = NULL;
  for (const hak_piece *k = h->pieces; k != NULL; prev = k, k = k->next) {
    const char *fault = hak_piece_fault(k, h->owner, &live);
    expect(fault == NULL, "piece %p: %s", (void *)hak_piece_address(k), fault);
    expect(k->prev == prev, "piece %p: broken back link", (void *)hak_piece_address(k));
    out += live;
    count += k->count;
  }
  expect(count == h->piece_count, "heap %p: %zu pieces, %u counted", (const void *)h, count, h->piece_count);
  return out;
}

/* What is charged changes under the locks of the heap, but for the heaps below it. */
static void check_heap(hak_heap *h) {
  hak_heap_take_locks(h);
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    const hak_slab_set *bins = h->bins[c / HAK_HEAP_BINS];
    if (bins != NULL) check_slab_set(&bins[c % HAK_HEAP_BINS], HAK_TAG(h->owner, c + 1));
  }
  size_t out = check_spans_of(h) + check_pieces_of(h) + hak_load_relaxed(&h->mapped),
         charged = hak_load_relaxed(&h->out);
  size_t credits;
  bool exact = !hak_heap_has_aside_locked(h, &credits);
  charged -= credits;
  if (h->first_child == NULL)
    expect(exact ? out == charged : out >= charged, "heap %p: %zu bytes are in use, %zu charged", (const void *)h, out,
           charged);
  hak_heap_drop_locks(h);
}

static void check_heaps(void) {
  hak_lock_take(&hak_heaps_lock);
  for (hak_heap *h = NULL; (h = hak_heap_next_locked(h)) != NULL;) check_heap(h);
  hak_lock_drop(&hak_heaps_lock);
}

size_t hak_heap_check(void) {
  if (hak_region_count() == 0) return 0;
  size_t before = hak_load_relaxed(&faults);
  for (uint32_t i = 0; i < hak_arena_count(); i++)
    for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) check_bin(i, c);
  check_own_cache();
  check_heaps();
  check_map();
  check_pool();
  return hak_load_relaxed(&faults) - before;
}
