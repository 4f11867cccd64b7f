/* What reclaim/ does with free spans: claims, puts back, and what a purge makes of huge pages. Under
 * hak_span_pool.lock. */
#include "os/os.h"
#include "pool/absent.h"
#include "pool/budget.h"
#include "pool/chunk_index.h"
#include "pool/span_pool.h"
#include "region/first_touch.h"

typedef struct range {
  size_t bit, end;
} range;

/* Last free and dirty range of the chunk that is worth it, cut to whole huge pages where those are asked for. Empty:
 * none. */
static range last_dirty_range(const hak_chunk *c, hak_worth worth, bool apart) {
  hak_assert_held(&hak_span_pool.lock);
  hak_span_set dirty = hak_spans_of_kind(c, HAK_SEARCH_DIRTY, apart);
  range last = {0, 0};
  size_t end;
  for (size_t at = 0; (at = hak_bits_next(dirty.words, at, true)) < HAK_CHUNK_SPANS; at = end) {
    end = hak_bits_next(dirty.words, at, false);
    range found = {at, end};
    if (worth == HAK_WHOLE_PAGES)
      found = (range){hak_align_up(at, HAK_HUGE_PAGE_SPANS), hak_align_down(end, HAK_HUGE_PAGE_SPANS)};
    if (found.bit < found.end) last = found;
  }
  return last;
}

/* Over what is free and clean beside it in its huge pages. A fault there made all of the page resident; and the system
 * uses a huge page again only where a whole one has been given back in one call. */
static range widened(const hak_chunk *c, range r, bool apart) {
  HAK_ASSERT(r.bit < r.end && r.end <= HAK_CHUNK_SPANS);
  hak_span_set set = hak_spans_of_kind(c, HAK_SEARCH_FREE, apart);
  size_t least = hak_align_down(r.bit, HAK_HUGE_PAGE_SPANS), most = hak_align_up(r.end, HAK_HUGE_PAGE_SPANS);
  while (r.bit > least && hak_bits_has(set.words, r.bit - 1)) r.bit--;
  while (r.end < most && hak_bits_has(set.words, r.end)) r.end++;
  return r;
}

/* Of chunks of one kind. There is no index of whole pages apart: those bounds are of all. */
static hak_chunk_search search_for(hak_region *r, bool huge, hak_worth worth, bool apart) {
  size_t spans = worth == HAK_WHOLE_PAGES ? HAK_HUGE_PAGE_SPANS : 1;
  return (hak_chunk_search){.region = r,
                            .search = HAK_SEARCH_DIRTY,
                            .huge = huge,
                            .apart = apart && spans == 1,
                            .spans = spans,
                            .align = spans};
}

size_t hak_pool_last_dirty(hak_region *r, size_t end, hak_worth worth) {
  bool apart = hak_spares_large();
  hak_chunk_search small = search_for(r, false, worth, apart), huge = search_for(r, true, worth, apart);
  hak_lock_take(&hak_span_pool.lock);
  size_t of_small = hak_chunk_index_find(&small, 0, end, true), of_huge = hak_chunk_index_find(&huge, 0, end, true);
  hak_lock_drop(&hak_span_pool.lock);
  return of_small == end ? of_huge : of_huge == end ? of_small : hak_max_size(of_small, of_huge);
}

/* Until something comes back to the chunk, it is not looked at again. */
static void note_none(hak_region *r, size_t chunk, hak_worth worth, bool apart) {
  hak_assert_held(&hak_span_pool.lock);
  const hak_chunk *c = &r->chunks[chunk];
  if (apart && worth == HAK_WHOLE_PAGES) {
    range all = last_dirty_range(c, worth, false);
    if (all.bit < all.end) return;
  }
  for (unsigned huge = 0; huge < 2; huge++) {
    hak_chunk_search s = search_for(r, huge != 0, worth, apart);
    hak_chunk_index_lower(&s, chunk, c->huge == (huge != 0) ? s.spans - 1 : 0);
  }
}

size_t hak_pool_claim_dirty(hak_region *r, size_t chunk_index, size_t max_spans, hak_worth worth, size_t *first,
                            size_t *count) {
  size_t dirty_spans = 0;
  HAK_ASSERT(max_spans > 0);
  const hak_chunk *c = &r->chunks[chunk_index];
  hak_lock_take(&hak_span_pool.lock);
  range dirty = {0, 0};
  bool apart = hak_spares_large();
  if (c->dirty_spans != 0) dirty = last_dirty_range(c, worth, apart);
  bool found = dirty.bit < dirty.end;
  if (found) {
    dirty.bit = hak_max_size(dirty.bit, dirty.end - hak_min_size(dirty.end, max_spans));
    /* What is claimed counts as used: at a limit, requests would be refused because of it. */
    if ((c->huge || c->was_huge) && !hak_budget_limited()) dirty = widened(c, dirty, apart);
    *count = dirty.end - dirty.bit;
    *first = chunk_index * HAK_CHUNK_SPANS + dirty.bit;
    dirty_spans = c->dirty_spans;
    hak_pool_mark_taken(r, *first, *count);
    for (size_t i = 0; i < *count; i++) hak_region_span_at(r, *first + i)->claimer = hak_thread_mark();
    dirty_spans -= c->dirty_spans;
    hak_add_single(&hak_span_pool.claimed_spans, *count);
  } else {
    note_none(r, chunk_index, worth, apart);
  }
  hak_lock_drop(&hak_span_pool.lock);
  return dirty_spans;
}

static void unclaim_locked(hak_region *r, size_t first, size_t count, hak_pages pages) {
  hak_assert_held(&hak_span_pool.lock);
  HAK_ASSERT(count > 0 && hak_span_pool.claimed_spans >= count);
  hak_chunk *c = &r->chunks[first / HAK_CHUNK_SPANS];
  hak_sub_single(&hak_span_pool.live_spans, count);
  hak_sub_single(&hak_span_pool.claimed_spans, count);
  if (pages == HAK_PAGES_RENEWED) hak_bits_change(c->large, first % HAK_CHUNK_SPANS, count, false);
  if (pages == HAK_PAGES_MUZZY || pages == HAK_PAGES_PURGED || pages == HAK_PAGES_RENEWED) {
    bool splits = (first | count) % HAK_HUGE_PAGE_SPANS != 0 || hak_huge_pages_are_dear(); /* none come back */
    if (c->huge && splits) hak_store_relaxed(&c->has_split_pages, true);
    hak_span_pool.passed_over -= hak_min_size(hak_span_pool.passed_over, count);
  }
  hak_pool_mark_free(r, first, count, pages);
}

void hak_pool_unclaim(hak_region *r, size_t first, size_t count, hak_pages pages) {
  hak_lock_take(&hak_span_pool.lock);
  unclaim_locked(r, first, count, pages);
  hak_lock_drop(&hak_span_pool.lock);
}

void hak_pool_disable_huge(hak_region *r, size_t chunk_index) {
  hak_chunk *c = &r->chunks[chunk_index];
  hak_lock_take(&hak_span_pool.lock);
  bool was_huge = c->huge;
  if (was_huge) {
    hak_chunk_end_huge(c);
    hak_chunk_index_raise(r, chunk_index, 0, HAK_CHUNK_SPANS);
  }
  size_t first = hak_max_size(chunk_index * HAK_CHUNK_SPANS, r->first_span);
  size_t end = hak_min_size((chunk_index + 1) * HAK_CHUNK_SPANS, r->ready_spans);
  if (was_huge) hak_store_relaxed(&c->small_spans, (uint16_t)(end - chunk_index * HAK_CHUNK_SPANS));
  hak_lock_drop(&hak_span_pool.lock);
  if (was_huge) hak_os_small_pages(hak_region_address(r, first), (end - first) << HAK_SPAN_SHIFT);
}

bool hak_pool_was_large(const hak_span *span) {
  const hak_region *r = hak_pool_region_of(span);
  size_t index = hak_region_span_index(r, span);
  uint64_t word = hak_load_relaxed(&r->chunks[index / HAK_CHUNK_SPANS].large[index % HAK_CHUNK_SPANS / 64]);
  return (word >> (index % 64) & 1) != 0;
}

static bool is_claimed_by_another(hak_region *r, size_t index) {
  const hak_chunk *c = &r->chunks[index / HAK_CHUNK_SPANS];
  size_t bit = index % HAK_CHUNK_SPANS;
  bool untagged = !hak_bits_has(c->free, bit) && !hak_bits_has(c->absent, bit) && !hak_region_is_guard(index) &&
                  hak_region_code_at(r, index) == HAK_CODE_NONE;
  return untagged && hak_region_span_at(r, index)->claimer != hak_thread_mark();
}

/* Claimed spans are the only ones that are neither free nor tagged. How far the system had got with them nobody knows.
 * A thread that forks in a signal handler goes on with the purge that it interrupted, and puts its own back. */
void hak_pool_fork_child(void) {
  hak_assert_held(&hak_span_pool.lock);
  hak_absent_fork_child();
  hak_store_relaxed(&hak_span_pool.purging_slab_pages, 0);
  for (unsigned i = 0; i < hak_region_count() && hak_span_pool.claimed_spans > 0; i++) {
    hak_region *r = hak_region_at(i);
    for (size_t index = r->first_span; index < r->ready_spans; index++) {
      if (is_claimed_by_another(r, index)) unclaim_locked(r, index, 1, HAK_PAGES_KEPT);
    }
  }
}
