/* Everything but the calls that unmap runs under hak_span_pool.lock. */
#include "pool/absent.h"

#include "os/os.h"
#include "pool/chunk_index.h"

/* Each range that goes is one more mapping of the process's: none that is less than half a huge page. Guards stand
 * between shorter ones. */
#define LEAST_SPANS (HAK_HARD(GUARDS) ? HAK_GUARD_PERIOD - 1 : HAK_HUGE_PAGE_SPANS / 2)

static size_t absent_spans, absent_ranges;
static struct {
  hak_region *r;
  size_t first, count; /* 0: none */
  const void *thread;  /* mark of the one that unmaps it */
} leaving;

/* First range from `at` on; its length, or 0. */
static size_t find_leaving(const hak_chunk *c, size_t *at, bool clean, uint32_t looks) {
  hak_assert_held(&hak_span_pool.lock);
  hak_span_set set = hak_spans_of_kind(c, HAK_SEARCH_FREE, false);
  for (size_t w = 0; w < HAK_CHUNK_WORDS && clean; w++)
    set.words[w] &= hak_pool_look() - c->look[w] >= looks ? ~c->dirty[w] : 0;
  for (size_t end; (*at = hak_bits_next(set.words, *at, true)) < HAK_CHUNK_SPANS; *at = end) {
    end = hak_bits_next(set.words, *at, false);
    if (end - *at >= LEAST_SPANS) return end - *at;
  }
  return 0;
}

static void set_absent(hak_region *r, size_t index, size_t count, bool absent) {
  hak_assert_held(&hak_span_pool.lock);
  hak_chunk *c = &r->chunks[index / HAK_CHUNK_SPANS];
  HAK_ASSERT(absent || (c->absent_spans >= count && absent_spans >= count));
  hak_bits_change(c->absent, index % HAK_CHUNK_SPANS, count, absent);
  if (absent) {
    hak_pool_mark_taken(r, index, count);
    hak_sub_single(&hak_span_pool.live_spans, count);
    c->absent_spans += (uint32_t)count;
    absent_spans += count;
    absent_ranges++;
  } else {
    c->absent_spans -= (uint32_t)count;
    absent_spans -= count;
    absent_ranges -= absent_ranges > 0; /* one may come back in parts */
    hak_pool_mark_free(r, index, count, HAK_PAGES_UNTOUCHED);
  }
}

size_t hak_pool_withdraw(hak_region *r, size_t chunk, size_t *at, bool clean, uint32_t looks) {
  const hak_chunk *c = &r->chunks[chunk];
  size_t count = 0;
  hak_lock_take(&hak_span_pool.lock);
  if (leaving.count == 0 && absent_ranges < HAK_OS_MAPPINGS_PART && c->free_spans >= LEAST_SPANS)
    count = find_leaving(c, at, clean, looks);
  size_t first = chunk * HAK_CHUNK_SPANS + *at;
  if (count > 0) {
    leaving.r = r;
    leaving.first = first;
    leaving.count = count;
    leaving.thread = hak_thread_mark();
    set_absent(r, first, count, true);
  }
  hak_lock_drop(&hak_span_pool.lock);
  if (count == 0) return 0;
  /* Where the system refuses to cut a mapping in two, the pages have gone all the same. */
  bool gone = hak_os_unmap(hak_region_address(r, first), count << HAK_SPAN_SHIFT);
  hak_lock_take(&hak_span_pool.lock);
  leaving.count = 0;
  if (!gone) set_absent(r, first, count, false);
  hak_lock_drop(&hak_span_pool.lock);
  *at += count;
  return count << HAK_SPAN_SHIFT;
}

size_t hak_pool_give_back_reserved(size_t limit) {
  size_t bytes = 0;
  hak_lock_take(&hak_span_pool.lock);
  for (unsigned i = 0; i < hak_region_count(); i++)
    bytes += hak_region_give_back_reserved(hak_region_at(i), limit / HAK_SPAN_SIZE);
  hak_lock_drop(&hak_span_pool.lock);
  return bytes;
}

/* --- having them back --- */

/* Absent spans [from, to) of the chunk, none of them lost: all that lie beside each other at a time. */
static bool restore_range(hak_region *r, size_t chunk, size_t from, size_t to) {
  hak_assert_held(&hak_span_pool.lock);
  HAK_ASSERT(from < to && to <= HAK_CHUNK_SPANS);
  hak_chunk *c = &r->chunks[chunk];
  for (size_t end; (from = hak_bits_next(c->absent, from, true)) < to; from = end) {
    end = hak_min_size(hak_bits_next(c->absent, from, false), to);
    size_t count = end - from;
    bool lost = false;
    if (!hak_region_restore(r, chunk * HAK_CHUNK_SPANS + from, count, &lost)) {
      /* A shorter range may be tried after a longer one */
      if (lost) count -= hak_bits_change(c->lost, from, count, true);
      HAK_ASSERT(!lost || (c->absent_spans >= count && absent_spans >= count));
      c->absent_spans -= lost ? (uint32_t)count : 0;
      absent_spans -= lost ? count : 0;
      return false;
    }
    set_absent(r, chunk * HAK_CHUNK_SPANS + from, count, false);
    hak_bits_change(c->large, from, count, false); /* another mapping */
  }
  return true;
}

static bool restore_in_chunk(hak_region *r, size_t chunk, size_t spans, size_t align) {
  HAK_ASSERT(spans > 0 && hak_is_pow2(align));
  const hak_chunk *c = &r->chunks[chunk];
  uintptr_t page = (r->base >> HAK_SPAN_SHIFT) + chunk * HAK_CHUNK_SPANS;
  hak_span_set there;
  for (size_t w = 0; w < HAK_CHUNK_WORDS; w++) there.words[w] = c->free[w] | (c->absent[w] & ~c->lost[w]);
  /* What another thread is unmapping is there still, or a fork's child unmaps it: it comes back once that is done. */
  if (leaving.count > 0 && leaving.r == r && leaving.first / HAK_CHUNK_SPANS == chunk)
    hak_bits_change(there.words, leaving.first % HAK_CHUNK_SPANS, leaving.count, false);
  size_t end;
  for (size_t at = 0; (at = hak_bits_next(there.words, at, true)) < HAK_CHUNK_SPANS; at = end) {
    end = hak_bits_next(there.words, at, false);
    size_t from = hak_align_up(page + at, align) - page;
    /* What is free already does not fit, or the caller would have had it: further on there may be absent ones. */
    while (from + spans <= end && hak_bits_next(c->absent, from, true) >= from + spans) from += align;
    if (from + spans > end) continue;
    /* At least as much as went at once, so that a call serves many spans. */
    if (restore_range(r, chunk, from, hak_min_size(hak_max_size(from + spans, from + LEAST_SPANS), end))) return true;
    if (restore_range(r, chunk, from, from + spans)) return true;
  }
  return false;
}

bool hak_pool_restore(size_t spans, size_t align) {
  hak_assert_held(&hak_span_pool.lock);
  for (unsigned i = 0; i < hak_region_count() && absent_spans > 0; i++) {
    hak_region *r = hak_region_at(i);
    size_t end = (r->ready_spans + HAK_CHUNK_SPANS - 1) / HAK_CHUNK_SPANS;
    for (size_t chunk = r->first_span / HAK_CHUNK_SPANS; chunk < end; chunk++) {
      const hak_chunk *c = &r->chunks[chunk];
      if (c->absent_spans > 0 && c->absent_spans + c->free_spans >= spans && restore_in_chunk(r, chunk, spans, align))
        return true;
    }
  }
  return false;
}

/* How far the parent had got nobody knows; in the child nobody has mapped anything there. A thread that forks in a
 * signal handler goes on with it itself. */
void hak_absent_fork_child(void) {
  if (leaving.count == 0 || leaving.thread == hak_thread_mark()) return;
  hak_os_unmap_own(hak_region_address(leaving.r, leaving.first), leaving.count << HAK_SPAN_SHIFT);
  leaving.count = 0;
}
