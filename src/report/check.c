/* The heap walk. Takes each lock in turn, in rank order; what it checks is the list of invariants of slab.h and
 * span_pool.h. Exact while nobody else allocates; runs are read without a lock, so another thread that frees one at
 * this moment can cause a false report. */
#include <stdarg.h>
#include <stdio.h>

#include "heap/heap.h"
#include "os/print.h"
#include "pool/span_pool.h"
#include "report/report.h"

hak_lock hak_heap_check_lock;
static size_t faults;

HAK_PRINTF(2, 3) static void expect(bool holds, const char *format, ...) {
  if (holds) return;
  faults++;
  char text[256];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  hak_print("hakmem: heap check: %s\n", text);
}

/* Bits against counters of one slab. */
static void check_slab(const hak_heap *h, unsigned class_code, const hak_span *s) {
  const hak_region *r = hak_pool_region_of(s);
  const void *p = (const void *)s->start;
  expect(r != NULL && hak_region_tag(r, p) == HAK_TAG(h->id, class_code), "slab %p of heap %u has a foreign tag", p,
         h->id);
  expect(s->class_code == class_code, "slab %p: class %u on the list of %u", p, s->class_code, class_code);
  expect(s->carved <= s->blocks, "slab %p: %u of %u blocks carved", p, s->carved, s->blocks);
  size_t bits = 0, words = ((size_t)s->blocks + 63) / 64;
  for (size_t w = 0; w < words; w++) {
    bits += hak_popcount64(s->bits[w]);
    expect(((s->summary >> w & 1) != 0) == (s->bits[w] != 0), "slab %p: summary bit %zu is wrong", p, w);
  }
  expect(bits == s->free_count, "slab %p: %zu bits set, %u blocks counted free", p, bits, s->free_count);
  for (size_t i = s->carved; i < words * 64; i++) {
    if ((s->bits[i / 64] >> (i % 64) & 1) != 0) expect(false, "slab %p: free bit %zu was never carved", p, i);
  }
}

static void check_heap(hak_heap *h) {
  hak_lock_take(&h->lock);
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) {
    const hak_slab_set *set = &h->bins[c].slabs;
    for (unsigned list = 0; list < HAK_FULLNESS_LISTS; list++) {
      const hak_span *prev = NULL;
      for (const hak_span *s = set->lists[list]; s != NULL; prev = s, s = s->next) {
        expect(s->prev == prev, "slab %p: broken back link", (void *)s->start);
        expect(s->list == list, "slab %p: on list %u, says %u", (void *)s->start, list, s->list);
        expect(s->free_count > 0, "slab %p: listed without a free block", (void *)s->start);
        check_slab(h, c, s);
      }
    }
    if (set->carving != NULL) check_slab(h, c, set->carving);
  }
  hak_lock_drop(&h->lock);
}

/* One span with a tag: a slab, its own or a full one that no list names, or a run. Returns how far to go on. */
static size_t check_tagged(hak_region *r, size_t index) {
  const hak_span *s = &r->spans[index];
  const void *p = hak_region_address(r, index);
  uint32_t tag = hak_load_relaxed(&r->tags[index]), owner = HAK_TAG_OWNER(tag), code = HAK_TAG_CODE(tag);
  if (owner == 0) {
    bool run = code == HAK_CODE_RUN || code == HAK_CODE_RUN_KEPT;
    expect(run, "span %p: tag %#x is neither a slab nor the start of a run", p, tag);
    if (!run) return 1;
    expect(s->start == (uintptr_t)p && s->head == s, "run %p: its metadata names %p", p, (void *)s->start);
    for (uint32_t i = 1; i < s->span_count; i++)
      expect(hak_load_relaxed(&r->tags[index + i]) == HAK_CODE_RUN_BODY, "run %p: span %u has a wrong tag", p, i);
    return s->span_count;
  }
  bool named = owner < hak_heap_id_limit() && code < HAK_FRONT_CLASSES;
  expect(named, "span %p: tag %#x names no heap or class", p, tag);
  if (!named) return 1;
  hak_heap *h = hak_heap_by_id(owner);
  hak_lock_take(&h->lock);
  size_t spans = 1;
  /* Read again: the slab may have gone to the pool, or to somebody else, before the lock was taken. */
  if (hak_load_relaxed(&r->tags[index]) == tag && s->head == s && s->tag == tag) {
    spans = s->span_count;
    check_slab(h, code, s);
    for (uint32_t i = 1; i < spans; i++)
      expect(hak_load_relaxed(&r->tags[index + i]) == tag && r->spans[index + i].head == s,
             "slab %p: its span %u belongs elsewhere", p, i);
  }
  hak_lock_drop(&h->lock);
  return spans;
}

static void check_tags(void) {
  for (unsigned i = 0; i < hak_region_count(); i++) {
    hak_region *r = hak_region_at(i);
    size_t end = hak_load_acquire(&r->limit) >> HAK_SPAN_SHIFT;
    for (size_t index = r->first_span; index < end;)
      index += hak_load_relaxed(&r->tags[index]) == 0 ? 1 : check_tagged(r, index);
  }
}

typedef struct span_totals {
  size_t dirty, held, untagged;
} span_totals;

static void check_chunk(const hak_region *r, size_t index, span_totals *totals) {
  const hak_chunk *chunk = &r->chunks[index];
  size_t free_spans = 0, dirty_spans = 0;
  for (size_t w = 0; w < HAK_CHUNK_WORDS; w++) {
    free_spans += hak_popcount64(chunk->free[w]);
    dirty_spans += hak_popcount64(chunk->dirty[w]);
    expect((chunk->dirty[w] & ~chunk->free[w]) == 0, "chunk %zu: a held span is marked dirty", index);
    expect((chunk->blank[w] & ~chunk->dirty[w]) == 0, "chunk %zu: a blank span is not dirty", index);
    expect((chunk->stale[w] & (~chunk->free[w] | chunk->dirty[w])) == 0, "chunk %zu: a stale span is held or dirty", index);
    for (uint64_t word = chunk->free[w]; word != 0; word &= word - 1) {
      size_t span = index * HAK_CHUNK_SPANS + w * 64 + hak_ctz64(word);
      expect(hak_load_relaxed(&r->tags[span]) == 0, "free span %p has a tag", hak_region_address(r, span));
    }
  }
  expect(free_spans == chunk->free_spans, "chunk %zu: %zu free bits, %u counted", index, free_spans, chunk->free_spans);
  expect(dirty_spans == chunk->dirty_spans, "chunk %zu: %zu dirty bits, %u counted", index, dirty_spans,
         chunk->dirty_spans);
  totals->dirty += dirty_spans;
  size_t first = index * HAK_CHUNK_SPANS;
  for (size_t i = 0; i < HAK_CHUNK_SPANS; i++) {
    bool nobodys = first + i < r->first_span || first + i >= r->ready_spans || hak_region_is_guard(first + i);
    if (nobodys || (chunk->free[i / 64] >> (i % 64) & 1) != 0) continue;
    totals->held++;
    if (hak_load_relaxed(&r->tags[first + i]) == 0) totals->untagged++;
  }
}

static void check_pool(void) {
  span_totals found = {0};
  hak_lock_take(&hak_span_pool.lock);
  for (unsigned i = 0; i < hak_region_count(); i++) {
    const hak_region *r = hak_region_at(i);
    size_t chunks = (r->ready_spans + HAK_CHUNK_SPANS - 1) / HAK_CHUNK_SPANS;
    for (size_t c = r->first_span / HAK_CHUNK_SPANS; c < chunks; c++) check_chunk(r, c, &found);
  }
  size_t dirty = hak_load_relaxed(&hak_span_pool.dirty_spans), live = hak_load_relaxed(&hak_span_pool.live_spans);
  expect(found.dirty == dirty, "%zu dirty spans found, %zu counted", found.dirty, dirty);
  expect(found.held == live, "%zu live spans found, %zu counted", found.held, live);
  expect(found.untagged == hak_span_pool.claimed_spans, "%zu spans are neither free nor anybody's",
         found.untagged - hak_span_pool.claimed_spans);
  hak_lock_drop(&hak_span_pool.lock);
}

static void check_cached(unsigned class_code, void **blocks, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const hak_region *r = hak_region_find(blocks[i]);
    bool ours = r != NULL && HAK_TAG_CODE(hak_region_tag(r, blocks[i])) == class_code;
    expect(ours, "cached block %p is not of class %u", blocks[i], class_code);
    if (ours)
      expect(hak_slab_examine(hak_region_span(r, blocks[i]), blocks[i]) == HAK_VERDICT_OK,
             "cached block %p is no block, or free in its slab as well", blocks[i]);
  }
}

/* The calling thread's front: nobody else's may be read. */
static void check_own_front(void) {
  hak_heap *h = hak_tls_front.heap;
  if (h == NULL) return;
  hak_lock_take(&h->lock);
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) {
    hak_bin *bin = &h->bins[c];
    if (bin->magazine == NULL) continue;
    void **empty = hak_bin_empty_top(bin);
    check_cached(c, empty + 1, (size_t)(h->front->top[c] - empty));
    for (void **full = bin->full; full != NULL; full = (void **)*full)
      check_cached(c, full + 1, HAK_MAGAZINE_SLOTS - 1);
  }
  hak_lock_drop(&h->lock);
}

size_t hak_heap_check(void) {
  if (!hak_heap_started()) return 0;
  hak_lock_take(&hak_heap_check_lock);
  faults = 0;
  for (uint32_t id = HAK_EMERGENCY_ID; id < hak_heap_id_limit(); id++) check_heap(hak_heap_by_id(id));
  check_own_front();
  check_tags();
  check_pool();
  size_t found = faults;
  hak_lock_drop(&hak_heap_check_lock);
  return found;
}
