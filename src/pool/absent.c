/* Everything but the calls that unmap runs under hak_span_pool.lock. */
#include "pool/absent.h"

#include "os/os.h"
#include "pool/chunk_index.h"

/* Each range that goes is one more mapping of the process's: none that is less than half a huge page. Guards stand between shorter ones. */
#define LEAST_SPANS (HAK_HARD(GUARDS) ? HAK_GUARD_PERIOD - 1 : HAK_HUGE_PAGE_SPANS / 2)

static size_t absent_spans, absent_ranges;
static struct {
  hak_region *r;
  size_t first, count; /* 0: none */
  const void *thread;  /* mark of the one that unmaps it */
} leaving;

static size_t count_in(const uint64_t *words, size_t first, size_t count) {
  size_t n = 0;
  for (size_t i = first; i < first + count; i++) n += hak_bits_has(words, i);
  return n;
}

static bool may_go(const hak_chunk *c, size_t bit, bool clean) { return hak_bits_has(c->free, bit) && !(clean && hak_bits_has(c->dirty, bit)); }

/* First range from `at` on; its length, or 0. */
static size_t find_leaving(const hak_chunk *c, size_t *at, bool clean) {
  hak_assert_held(&hak_span_pool.lock);
  size_t end;
  for (; *at < HAK_CHUNK_SPANS; *at = end + 1) {
    for (end = *at; end < HAK_CHUNK_SPANS && may_go(c, end, clean); end++) continue;
    if (end - *at >= LEAST_SPANS) return end - *at;
  }
  return 0;
}

static void make_absent(hak_chunk *c, size_t bit, size_t count) {
  hak_assert_held(&hak_span_pool.lock);
  HAK_ASSERT(count > 0 && bit + count <= HAK_CHUNK_SPANS && c->free_spans >= count);
  size_t dirty = hak_bits_change(c->dirty, bit, count, false);
  hak_bits_change(c->free, bit, count, false);
  hak_bits_change(c->muzzy, bit, count, false);
  hak_bits_change(c->absent, bit, count, true);
  c->free_spans -= (uint32_t)count;
  c->dirty_spans -= (uint32_t)dirty;
  c->absent_spans += (uint32_t)count;
  absent_spans += count;
  hak_sub_single(&hak_span_pool.dirty_spans, dirty);
}

static void make_free(hak_region *r, size_t chunk, size_t bit, size_t count) {
  hak_assert_held(&hak_span_pool.lock);
  hak_chunk *c = &r->chunks[chunk];
  hak_bits_change(c->absent, bit, count, false);
  HAK_ASSERT(c->absent_spans >= count && absent_spans >= count);
  hak_bits_change(c->free, bit, count, true);
  c->absent_spans -= (uint32_t)count;
  c->free_spans += (uint32_t)count;
  absent_spans -= count;
  hak_chunk_index_raise(r, chunk, 0, HAK_CHUNK_SPANS);
}

size_t hak_pool_withdraw(hak_region *r, size_t chunk, size_t *at, bool clean) {
  hak_chunk *c = &r->chunks[chunk];
  size_t count = 0;
  hak_lock_take(&hak_span_pool.lock);
  if (leaving.count == 0 && absent_ranges < HAK_OS_MAPPINGS_PART && c->free_spans >= LEAST_SPANS) count = find_leaving(c, at, clean);
  if (count > 0) {
    leaving.r = r;
    leaving.first = chunk * HAK_CHUNK_SPANS + *at;
    leaving.count = count;
    leaving.thread = hak_thread_mark();
    make_absent(c, *at, count);
    absent_ranges++;
  }
  hak_lock_drop(&hak_span_pool.lock);
  if (count == 0) return 0;
  /* Where the system refuses to cut a mapping in two, the pages have gone all the same. */
  bool gone = hak_os_unmap(hak_region_address(r, chunk * HAK_CHUNK_SPANS + *at), count << HAK_SPAN_SHIFT);
  hak_lock_take(&hak_span_pool.lock);
  leaving.count = 0;
  if (!gone) {
    make_free(r, chunk, *at, count);
    absent_ranges--;
  }
  hak_lock_drop(&hak_span_pool.lock);
  *at += count;
  return count << HAK_SPAN_SHIFT;
}

size_t hak_pool_give_back_reserved(size_t limit) {
  size_t bytes = 0;
  hak_lock_take(&hak_span_pool.lock);
  for (unsigned i = 0; i < hak_region_count(); i++) bytes += hak_region_give_back_reserved(hak_region_at(i), limit / HAK_SPAN_SIZE);
  hak_lock_drop(&hak_span_pool.lock);
  return bytes;
}

/* --- having them back --- */

static bool is_there(const hak_chunk *c, size_t bit) { return hak_bits_has(c->free, bit) || (hak_bits_has(c->absent, bit) && !hak_bits_has(c->lost, bit)); }

/* Absent spans [from, to) of the chunk, none of them lost: all that lie beside each other at a time. */
static bool restore_range(hak_region *r, size_t chunk, size_t from, size_t to) {
  hak_assert_held(&hak_span_pool.lock);
  HAK_ASSERT(from < to && to <= HAK_CHUNK_SPANS);
  hak_chunk *c = &r->chunks[chunk];
  for (size_t end; from < to; from = end) {
    for (end = from; end < to && hak_bits_has(c->absent, end); end++) continue;
    if (end == from) {
      end++;
      continue;
    }
    bool lost = false;
    if (hak_region_restore(r, chunk * HAK_CHUNK_SPANS + from, end - from, &lost)) {
      make_free(r, chunk, from, end - from);
      hak_bits_change(c->large, from, end - from, false); /* another mapping */
      absent_ranges -= absent_ranges > 0;
    } else {
      if (lost) {
        size_t newly = end - from - hak_bits_change(c->lost, from, end - from, true); /* a shorter range may be tried after a longer one */
        HAK_ASSERT(c->absent_spans >= newly && absent_spans >= newly);
        c->absent_spans -= (uint32_t)newly;
        absent_spans -= newly;
      }
      return false;
    }
  }
  return true;
}

static bool restore_in_chunk(hak_region *r, size_t chunk, size_t spans, size_t align) {
  HAK_ASSERT(spans > 0 && hak_is_pow2(align));
  const hak_chunk *c = &r->chunks[chunk];
  uintptr_t page = (r->base >> HAK_SPAN_SHIFT) + chunk * HAK_CHUNK_SPANS;
  size_t end;
  for (size_t at = 0; at < HAK_CHUNK_SPANS; at = end + 1) {
    for (end = at; end < HAK_CHUNK_SPANS && is_there(c, end); end++) continue;
    size_t from = hak_align_up(page + at, align) - page;
    if (from + spans > end || count_in(c->absent, from, spans) == 0) {
      /* What is free already does not fit, or the caller would have had it: further on there may be absent ones. */
      while (from + spans <= end && count_in(c->absent, from, spans) == 0) from += align;
      if (from + spans > end) continue;
    }
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
      if (c->absent_spans > 0 && c->absent_spans + c->free_spans >= spans && restore_in_chunk(r, chunk, spans, align)) return true;
    }
  }
  return false;
}

/* How far the parent had got nobody knows; in the child nobody has mapped anything there. A thread that forks in a signal handler
 * goes on with it itself. */
void hak_absent_fork_child(void) {
  if (leaving.count == 0 || leaving.thread == hak_thread_mark()) return;
  hak_os_unmap_own(hak_region_address(leaving.r, leaving.first), leaving.count << HAK_SPAN_SHIFT);
  leaving.count = 0;
}
