#include "reclaim/purge.h"

#include "pool/absent.h"
#include "pool/quick.h"

struct hak_purge_stats hak_purge_stats;

static bool refused; /* relaxed */

bool hak_purge_refused(void) { return hak_load_relaxed(&refused); }

/* --- one range --- */

static bool is_whole(uintptr_t start, size_t bytes, size_t unit) { return ((start | bytes) & (unit - 1)) == 0; }

static void count(size_t bytes) {
  if (hak_config_lean()) hak_os_count(&hak_os_stats.lean_decommit);
  hak_os_count(&hak_purge_stats.purges);
  hak_add_relaxed(&hak_purge_stats.bytes, bytes);
}

static hak_pages purge_range(void *start, size_t bytes, bool lazily) {
  HAK_ASSERT(bytes > 0 && ((uintptr_t)start | bytes) % hak_os_page_size() == 0);
  hak_pages pages = HAK_PAGES_KEPT;
  bool whole_spans = is_whole((uintptr_t)start, bytes, HAK_SPAN_SIZE);
  /* A cgroup is charged for a huge page whole until it is split. */
  if (hak_budget_of_group() && !is_whole((uintptr_t)start, bytes, HAK_HUGE_PAGE)) hak_os_split_huge(start, bytes);
  if (lazily && hak_os_decommit_lazily(start, bytes))
    pages = HAK_PAGES_MUZZY;
  else if (whole_spans ? hak_os_decommit(start, bytes) : hak_os_decommit_piece(start, bytes))
    pages = HAK_PAGES_PURGED;
  hak_store_relaxed(&refused, pages == HAK_PAGES_KEPT);
  if (pages != HAK_PAGES_KEPT) count(bytes);
  return pages;
}

/* --- free spans --- */

static size_t dirty_now(void) { return hak_load_relaxed(&hak_span_pool.dirty_spans); }

/* What a program told the kernel of a block (not to give it to children, or wiped; a lock; a memory policy) outlasts a
 * purge, and would hold for whoever has the memory next: a child of fork would miss it. Such memory is a mapping of its
 * own to the kernel. Where a chunk, which no block fills, is one mapping, there is none. One whose small pages end in
 * the middle counts as having some. */
static bool is_mixed(const hak_region *r, size_t chunk) {
  size_t first = hak_max_size(chunk * HAK_CHUNK_SPANS, r->first_span);
  size_t end = hak_min_size((chunk + 1) * HAK_CHUNK_SPANS, hak_load_acquire(&r->limit) >> HAK_SPAN_SHIFT);
  return !hak_os_is_one_mapping(hak_region_address(r, first), (end - first) << HAK_SPAN_SHIFT);
}

/* In a mixed chunk: unless all of it is like what lies on either side, and no large block had it. */
static bool may_be_advised(const hak_region *r, size_t first, size_t n) {
  size_t page = hak_os_page_size(), end = first + n;
  size_t before = first > r->first_span && !hak_region_is_guard(first - 1) ? page : 0;
  size_t behind = end < hak_load_acquire(&r->limit) >> HAK_SPAN_SHIFT && !hak_region_is_guard(end) ? page : 0;
  for (size_t i = first; i < end; i++) {
    if (hak_pool_was_large(hak_region_span_at(r, i))) return true;
  }
  return !hak_os_is_one_mapping((char *)hak_region_address(r, first) - before, (n << HAK_SPAN_SHIFT) + before + behind);
}

/* After a purge, which for what is locked is refused. */
static hak_pages renew(const hak_region *r, size_t first, size_t n, hak_pages pages) {
  if (pages == HAK_PAGES_MUZZY || !may_be_advised(r, first, n)) return pages;
  if (!hak_os_renew(hak_region_address(r, first), n << HAK_SPAN_SHIFT, HAK_OS_ACCESSIBLE)) return pages;
  hak_region_advise(r, first, n);
  return HAK_PAGES_RENEWED;
}

/* One range of the chunk. Returns how many dirty spans went; 0: there is none, or the system refused it. */
static size_t purge_in_chunk(hak_region *r, size_t chunk, bool mixed, size_t keep_spans, hak_worth worth, bool lazily) {
  /* In whole huge pages: the rest may stay for now */
  size_t all = dirty_now(), wanted = all > keep_spans ? all - keep_spans : 1;
  size_t room = hak_min_size(HAK_PURGE_STEP_SPANS, hak_align_up(wanted, HAK_HUGE_PAGE_SPANS));
  size_t first, n, dirty = hak_pool_claim_dirty(r, chunk, room, worth, &first, &n);
  if (dirty == 0) return 0;
  HAK_ASSERT(n > 0 && dirty <= n && first >= r->first_span);
  HAK_SCHEDULE_POINT("purge: spans claimed");
  hak_pages pages = purge_range(hak_region_address(r, first), n << HAK_SPAN_SHIFT, lazily);
  if (HAK_UNLIKELY(mixed)) pages = renew(r, first, n, pages);
  HAK_SCHEDULE_POINT("purge: spans advised");
  hak_pool_unclaim(r, first, n, pages);
  return pages == HAK_PAGES_KEPT ? 0 : dirty;
}

/* From the highest address down, since allocation prefers low ones. What is left of a chunk of which the system refused
 * a range is skipped. At most `most`: what becomes dirty meanwhile, perhaps by a function that the program has put in
 * madvise's place, is somebody else's. */
static size_t purge_pass(size_t keep_spans, size_t most, hak_worth worth, bool lazily) {
  size_t purged = 0;
  for (unsigned i = hak_region_count(); i-- > 0 && dirty_now() > keep_spans;) {
    hak_region *r = hak_region_at(i);
    size_t end = (hak_load_acquire(&r->limit) / HAK_SPAN_SIZE + HAK_CHUNK_SPANS - 1) / HAK_CHUNK_SPANS;
    bool mixed = false;
    for (size_t chunk, last = SIZE_MAX;
         purged < most && dirty_now() > keep_spans && (chunk = hak_pool_last_dirty(r, end, worth)) < end;
         last = chunk) {
      /* Fresh pages of a process that locks all it will have would be locked too: none is renewed. */
      if (chunk != last) mixed = !r->populated && is_mixed(r, chunk);
      size_t gone = purge_in_chunk(r, chunk, mixed, keep_spans, worth, lazily);
      purged += gone;
      if (gone == 0) end = chunk;
    }
  }
  return purged;
}

/* A function that the program has put in madvise's place may free: it does not purge in the midst of a purge, or each
 * range would be a call deeper than the one before. */
static HAK_TLS bool purging;

size_t hak_purge_spans(size_t keep_spans, bool lazily) {
  if (purging) return 0;
  purging = true;
  hak_quick_settle_all();
  size_t most = dirty_now(), purged = purge_pass(keep_spans, most, HAK_WHOLE_PAGES, lazily);
  if (purged < most) purged += purge_pass(keep_spans, most - purged, HAK_ANY_RANGE, lazily);
  hak_add_relaxed(&hak_span_pool.purged_spans, purged);
  purging = false;
  return purged;
}

static bool rests(const hak_chunk *c, uint32_t now, uint32_t looks) {
  for (size_t w = 0; w < HAK_CHUNK_WORDS; w++) {
    if (now - hak_load_relaxed(&c->look[w]) < looks) return false;
  }
  return true;
}

/* khugepaged makes a huge page whole of which a part has gone. */
void hak_purge_settle_chunks(uint32_t looks) {
  uint32_t now = hak_pool_look();
  for (unsigned i = 0; i < hak_region_count(); i++) {
    hak_region *r = hak_region_at(i);
    size_t end = hak_load_acquire(&r->limit) / HAK_SPAN_SIZE / HAK_CHUNK_SPANS; /* the last one may still grow */
    for (size_t chunk = r->first_span / HAK_CHUNK_SPANS; chunk < end; chunk++) {
      const hak_chunk *c = &r->chunks[chunk];
      if (hak_load_relaxed(&c->has_split_pages) && rests(c, now, looks)) hak_pool_disable_huge(r, chunk);
    }
  }
}

/* --- where the system limits what a process may have --- */

static size_t withdraw(bool clean, uint32_t looks) {
  hak_quick_settle_all();
  size_t bytes = 0;
  for (unsigned i = 0; i < hak_region_count(); i++) {
    hak_region *r = hak_region_at(i);
    size_t end = (hak_load_acquire(&r->limit) / HAK_SPAN_SIZE + HAK_CHUNK_SPANS - 1) / HAK_CHUNK_SPANS;
    for (size_t chunk = r->first_span / HAK_CHUNK_SPANS; chunk < end; chunk++) {
      size_t at = 0, gone;
      while ((gone = hak_pool_withdraw(r, chunk, &at, clean, looks)) > 0) bytes += gone;
    }
  }
  return bytes;
}

size_t hak_purge_withdraw_all(size_t limit_bytes) {
  return withdraw(false, 0) + hak_pool_give_back_reserved(limit_bytes) + hak_meta_give_back_reserved();
}

size_t hak_purge_withdraw_idle(uint32_t looks) { return withdraw(true, looks); }

/* --- free pages inside slabs --- */

/* Static, since they are too large for the smallest stacks; one thread has them at a time. */
static const void *slab_purger; /* turn of that thread */
#define SLABS_AT_ONCE 64 /* found in one hold of a bin's lock; more are found in the next */
static hak_span *found[SLABS_AT_ONCE];
static hak_free_pages free_pages; /* of the claimed slab */
/* Both change under the bin's lock, so that at a fork a slab is claimed whole or not at all. */
static hak_span *claimed; /* NULL: none is */
static hak_arena_bin *claimed_bin;

/* Returns the bytes claimed; 0: there is nothing to purge. */
static size_t claim(hak_arena_bin *bin, hak_span *slab, uint32_t tag) {
  HAK_ASSERT(hak_load_relaxed(&slab_purger) == hak_thread_mark());
  HAK_ASSERT(claimed == NULL);
  hak_lock_take(&bin->lock);
  bool some = hak_slab_claim_free_pages(&bin->slabs, slab, tag, &free_pages);
  if (some) {
    claimed = slab;
    claimed_bin = bin;
  }
  hak_lock_drop(&bin->lock);
  size_t bytes = 0;
  for (unsigned i = 0; some && i < free_pages.count; i++) bytes += free_pages.pages[i].bytes;
  return bytes;
}

/* Puts the claimed blocks back. Caller holds the bin's lock. */
static void *unclaim(bool gone, bool *purge_due) {
  hak_span *slab = claimed;
  HAK_ASSERT(slab != NULL);
  hak_assert_held(&claimed_bin->lock);
  claimed = NULL;
  hak_store_relaxed(&claimed_bin->spare, 1);
  return hak_slab_unclaim_free_pages(&claimed_bin->slabs, slab, &free_pages, gone, purge_due);
}

/* Returns the bytes that went. */
static size_t purge_slab(hak_arena *a, unsigned c, hak_span *slab, hak_deferred *d) {
  hak_arena_bin *bin = &a->bins[c];
  if (hak_spares_large() && hak_pool_was_large(slab)) return 0;
  size_t bytes = claim(bin, slab, HAK_TAG(a->id + 1, c + 1)), purged = 0, page = hak_os_page_size();
  if (bytes == 0) return 0;
  hak_add_relaxed(&hak_span_pool.purging_slab_pages, bytes / page);
  HAK_SCHEDULE_POINT("purge: blocks claimed");
  for (unsigned i = 0; i < free_pages.count; i++) {
    if (purge_range(free_pages.pages[i].start, free_pages.pages[i].bytes, false) != HAK_PAGES_KEPT)
      purged += free_pages.pages[i].bytes;
  }
  HAK_SCHEDULE_POINT("purge: blocks advised");
  hak_add_relaxed(&hak_purge_stats.purged_slab_pages, purged / page);
  if (purged > 0) {
    hak_region *r = hak_pool_region_of(slab);
    hak_pool_disable_huge(r, hak_region_span_index(r, slab) / HAK_CHUNK_SPANS);
  }
  hak_lock_take(&bin->lock);
  void *twice = unclaim(purged > 0, &d->purge_due);
  hak_lock_drop(&bin->lock);
  /* The child of a fork in a signal handler may have forgotten them */
  size_t leaving = hak_load_relaxed(&hak_span_pool.purging_slab_pages);
  hak_sub_relaxed(&hak_span_pool.purging_slab_pages, hak_min_size(bytes / page, leaving));
  if (HAK_UNLIKELY(twice != NULL))
    hak_deferred_note(d, HAK_VERDICT_DOUBLE_FREE, twice, c, "when its pages were purged");
  return purged;
}

static size_t purge_class(hak_arena *a, unsigned c, unsigned round, bool at_once, size_t wanted, hak_deferred *d) {
  HAK_ASSERT(wanted > 0);
  HAK_ASSERT(hak_load_relaxed(&slab_purger) == hak_thread_mark()); /* found[] is its */
  hak_arena_bin *bin = &a->bins[c];
  size_t purged = 0;
  unsigned n;
  do {
    if (at_once)
      hak_lock_take(&bin->lock);
    else if (!hak_lock_try(&bin->lock))
      break; /* its thread may have been stopped; the next look finds them */
    n = hak_slab_find_sparse(&bin->slabs, c, round, at_once, found, SLABS_AT_ONCE);
    hak_lock_drop(&bin->lock);
    for (unsigned i = 0; i < n && purged < wanted; i++) purged += purge_slab(a, c, found[i], d);
  } while (n == SLABS_AT_ONCE && purged < wanted);
  return purged;
}

size_t hak_purge_slabs(hak_arena *a, unsigned round, bool at_once, size_t wanted, hak_deferred *d) {
  size_t purged = 0;
  if (!hak_turn_take(&slab_purger)) return 0; /* another thread is at it */
  for (unsigned c = 0; c < HAK_CLASS_COUNT && purged < wanted; c++) {
    if (hak_load_relaxed(&a->bins[c].slabs.slabs) != 0) purged += purge_class(a, c, round, at_once, wanted - purged, d);
  }
  HAK_ASSERT(claimed == NULL);
  hak_turn_end(&slab_purger);
  return purged;
}

/* --- fork --- */

static bool forking_is_purger; /* written while every lock is held */

void hak_purge_fork_lock(void) { forking_is_purger = hak_turn_take(&slab_purger); }

void hak_purge_fork_unlock(void) {
  if (forking_is_purger) hak_turn_end(&slab_purger);
}

/* Who claimed a slab is not there to put its blocks back; unless it is this thread, which forks in a signal handler and
 * goes on. */
void hak_purge_fork_child(void) {
  bool purge_due = false;
  const void *purger = hak_load_relaxed(&slab_purger);
  if (forking_is_purger || purger == NULL || purger == hak_thread_mark()) return;
  if (claimed != NULL) unclaim(false, &purge_due);
  forking_is_purger = true;
}
