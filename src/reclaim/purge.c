#include "reclaim/purge.h"

#include "base/schedule.h"
#include "config/config.h"
#include "pool/budget.h"

#define CLAIM_SPANS 256 /* 16 MiB a call: bounds how long a claimed range is missing from the pool */
#define BATCH_PIECES 32
#define BATCH_SLABS 16
#define SLABS_AT_A_TIME 64 /* looked for under one lock */

struct hak_purge_stats hak_purge_stats;

static bool refused; /* relaxed */

bool hak_purge_refused(void) { return hak_load_relaxed(&refused); }

/* Batches are static, since they are too large for the smallest stacks; one thread has them at a time. */
static const void *batch_taker; /* mark of the thread that has them */

static bool take_batch(void) {
  const void *nobody = NULL;
  return hak_cas_acquire(&batch_taker, &nobody, hak_thread_mark());
}

static void drop_batch(void) { hak_store_release(&batch_taker, NULL); }

/* --- one range, and many at one call --- */

static bool is_whole(uintptr_t start, size_t bytes, size_t unit) { return ((start | bytes) & (unit - 1)) == 0; }

/* A cgroup is charged for a huge page whole until it is split. */
static bool is_split_first(const void *start, size_t bytes) {
  return hak_budget_of_group() && !is_whole((uintptr_t)start, bytes, HAK_HUGE_PAGE);
}

static void count(size_t bytes) {
  if (hak_config_lean()) hak_os_count(&hak_os_stats.lean_decommit);
  hak_os_count(&hak_purge_stats.purges);
  hak_add_relaxed(&hak_purge_stats.bytes, bytes);
}

static hak_pages purge_range(void *start, size_t bytes, bool lazily) {
  hak_pages pages = HAK_PAGES_KEPT;
  bool whole_spans = is_whole((uintptr_t)start, bytes, HAK_SPAN_SIZE);
  if (is_split_first(start, bytes)) hak_os_split_huge(start, bytes);
  if (lazily && hak_os_decommit_lazily(start, bytes))
    pages = HAK_PAGES_STALE;
  else if (whole_spans ? hak_os_decommit(start, bytes) : hak_os_decommit_piece(start, bytes))
    pages = HAK_PAGES_GONE;
  hak_store_relaxed(&refused, pages == HAK_PAGES_KEPT);
  if (pages != HAK_PAGES_KEPT) count(bytes);
  return pages;
}

/* Near a target files are read anyhow: a program that lets this pass its filter is not killed for another one. */
static bool heeds_filters(void) { return hak_config.batch_advice != HAK_BATCH_ADVICE_ALWAYS; }

/* Not at a limit, where what is claimed is missing; nor where ranges have proved to go one by one. */
static bool may_batch(bool lazily) {
  int64_t asked = hak_config.batch_advice;
  bool wanted = asked >= HAK_BATCH_ADVICE_ON || (asked == HAK_BATCH_ADVICE_AUTO && hak_budget_targeted());
  return wanted && !lazily && !hak_budget_limited() && hak_os_knows_pieces() && !(heeds_filters() && hak_os_found_filter());
}

#define BATCH_LEAST 2
#define REFUSALS_MAX 2 /* locked memory is refused; where there is much of it, each batch would end at its first range */

static size_t purge_together(const hak_os_piece *pieces, size_t n) {
  bool split_first = false;
  for (size_t i = 0; i < n && !split_first; i++) split_first = is_split_first(pieces[i].start, pieces[i].bytes);
  n = split_first ? hak_os_split_huge_pieces(pieces, n) : n;
  return n == 0 ? 0 : hak_os_decommit_pieces(pieces, n);
}

/* What became of each is in `out`. */
static void purge_ranges(const hak_os_piece *pieces, size_t n, bool lazily, hak_pages *out) {
  bool together = n >= BATCH_LEAST && may_batch(lazily) && (!heeds_filters() || hak_os_is_unfiltered());
  for (size_t i = 0, refusals = 0; i < n; i++, refusals++) {
    size_t gone = together && refusals < REFUSALS_MAX ? purge_together(pieces + i, n - i) : 0;
    if (gone > 0) hak_store_relaxed(&refused, false);
    for (; gone > 0; gone--, i++) {
      out[i] = HAK_PAGES_GONE;
      count(pieces[i].bytes);
    }
    if (i < n) out[i] = purge_range(pieces[i].start, pieces[i].bytes, lazily);
  }
}

/* --- free spans --- */

typedef struct span_range {
  hak_region *region;
  size_t dirty; /* of its spans */
} span_range;
typedef struct span_batch {
  size_t room, count, spans;
  bool lazily, kept; /* kept: the system refused some */
  hak_os_piece *pieces;
  span_range *ranges;
  hak_pages *pages;
} span_batch;
static hak_os_piece many_pieces[BATCH_PIECES];
static span_range many_ranges[BATCH_PIECES];
static hak_pages many_pages[BATCH_PIECES];

static size_t dirty_now(void) { return hak_load_relaxed(&hak_span_pool.dirty_spans); }

static bool is_full(const span_batch *b) { return b->count == b->room || b->spans + HAK_LONG_RUN_SPANS > CLAIM_SPANS; }

/* No more than what is asked for, in whole huge pages: the rest may stay for now. */
static size_t claim_room(const span_batch *b, size_t keep_spans) {
  size_t dirty = dirty_now(), wanted = dirty > keep_spans ? dirty - keep_spans : 1;
  return hak_min_size(CLAIM_SPANS - b->spans, hak_align_up(wanted, HAK_HUGE_PAGE_SPANS));
}

/* Claims one range of the chunk; false: there is none. */
static bool add_range(span_batch *b, hak_region *r, size_t chunk, size_t keep_spans, hak_worth worth) {
  size_t first, n, dirty = hak_pool_claim_dirty(r, chunk, claim_room(b, keep_spans), worth, &first, &n);
  if (dirty == 0) return false;
  b->pieces[b->count] = (hak_os_piece){hak_region_address(r, first), n << HAK_SPAN_SHIFT};
  b->ranges[b->count++] = (span_range){r, dirty};
  b->spans += n;
  return true;
}

/* Returns how many dirty spans went. */
static size_t purge_batch(span_batch *b) {
  size_t purged = 0;
  if (b->count > 0) HAK_SCHEDULE_POINT("purge: spans claimed");
  purge_ranges(b->pieces, b->count, b->lazily, b->pages);
  if (b->count > 0) HAK_SCHEDULE_POINT("purge: spans advised");
  for (size_t i = 0; i < b->count; i++) {
    hak_region *r = b->ranges[i].region;
    size_t first = ((uintptr_t)b->pieces[i].start - r->base) >> HAK_SPAN_SHIFT;
    hak_pool_unclaim(r, first, b->pieces[i].bytes >> HAK_SPAN_SHIFT, b->pages[i]);
    if (b->pages[i] == HAK_PAGES_KEPT)
      b->kept = true;
    else
      purged += b->ranges[i].dirty;
  }
  b->count = b->spans = 0;
  return purged;
}

/* From the highest address down, since allocation prefers low ones. What is left of a chunk of which the system refused a range
 * is skipped. */
static size_t purge_pass(size_t keep_spans, hak_worth worth, bool lazily) {
  size_t purged = 0;
  hak_os_piece piece;
  span_range range;
  hak_pages pages;
  span_batch b = {.room = 1, .lazily = lazily, .pieces = &piece, .ranges = &range, .pages = &pages};
  bool many = may_batch(lazily) && take_batch();
  if (many) b = (span_batch){BATCH_PIECES, 0, 0, lazily, false, many_pieces, many_ranges, many_pages};
  for (unsigned i = hak_region_count(); i-- > 0 && dirty_now() > keep_spans;) {
    hak_region *r = hak_region_at(i);
    size_t end = (hak_load_acquire(&r->limit) / HAK_SPAN_SIZE + HAK_CHUNK_SPANS - 1) / HAK_CHUNK_SPANS;
    for (size_t chunk = end; chunk-- > r->first_span / HAK_CHUNK_SPANS && dirty_now() > keep_spans;) {
      b.kept = false;
      while (!b.kept && dirty_now() > keep_spans && add_range(&b, r, chunk, keep_spans, worth)) {
        if (is_full(&b)) purged += purge_batch(&b);
      }
    }
  }
  purged += purge_batch(&b);
  if (many) drop_batch();
  return purged;
}

size_t hak_purge_spans(size_t keep_spans, bool lazily) {
  size_t purged = purge_pass(keep_spans, HAK_WHOLE_PAGES, lazily);
  if (dirty_now() > keep_spans) purged += purge_pass(keep_spans, HAK_LONG_RUNS, lazily);
  if (dirty_now() > keep_spans) purged += purge_pass(keep_spans, HAK_ANY_RUN, lazily);
  hak_add_relaxed(&hak_span_pool.purged_spans, purged);
  return purged;
}

/* khugepaged makes a huge page whole of which a part has gone: a chunk with such pages, to which nothing came back for so many
 * epochs, gets ordinary pages. */
#define SETTLED_EPOCHS 8

void hak_purge_settle_chunks(void) {
  uint32_t now = hak_pool_epoch();
  for (unsigned i = 0; i < hak_region_count(); i++) {
    hak_region *r = hak_region_at(i);
    size_t end = hak_load_acquire(&r->limit) / HAK_SPAN_SIZE / HAK_CHUNK_SPANS; /* the last one may still grow */
    for (size_t chunk = r->first_span / HAK_CHUNK_SPANS; chunk < end; chunk++) {
      const hak_chunk *c = &r->chunks[chunk];
      if (hak_load_relaxed(&c->split) && now - hak_load_relaxed(&c->epoch) >= SETTLED_EPOCHS) hak_pool_make_small(r, chunk);
    }
  }
}

/* --- free pages inside slabs --- */

/* Slabs of one arena whose pages go together. Those from `closed` to `count` are claimed; both change under the bin's lock, so
 * that at a fork each is claimed whole or not at all. */
typedef struct claimed_slab {
  hak_span *slab;
  unsigned class_code;
  size_t bytes;
  hak_holes holes;
} claimed_slab;
static struct slab_batch {
  unsigned room, count, closed, piece_count;
  size_t bytes;
  hak_arena *arena;
  claimed_slab slabs[BATCH_SLABS];
  hak_os_piece pieces[BATCH_SLABS * HAK_HOLES_MAX];
  hak_pages pages[BATCH_SLABS * HAK_HOLES_MAX];
  hak_span *found[SLABS_AT_A_TIME];
} batch;
static hak_arena_bin *bin_of(unsigned c) { return &batch.arena->bins[c]; }

/* Claims what is in slabs of a class while there is room; returns how many were looked at. */
static unsigned claim(unsigned c, hak_span *const *found, unsigned n, size_t wanted) {
  HAK_ASSERT(hak_load_relaxed(&batch_taker) == hak_thread_mark());
  hak_arena_bin *bin = bin_of(c);
  unsigned i = 0;
  hak_lock_take(&bin->lock);
  if (batch.closed == batch.count) batch.closed = batch.count = batch.piece_count = 0;
  for (; i < n && batch.count < batch.room && batch.bytes < wanted; i++) {
    claimed_slab *next = &batch.slabs[batch.count];
    next->holes.pages = batch.pieces + batch.piece_count;
    if (!hak_slab_claim_holes(&bin->slabs, found[i], HAK_TAG(batch.arena->id + 1, c + 1), 0, &next->holes)) continue;
    next->slab = found[i];
    next->class_code = c;
    next->bytes = 0;
    for (unsigned k = 0; k < next->holes.count; k++) next->bytes += next->holes.pages[k].bytes;
    batch.count++;
    batch.piece_count += next->holes.count;
    batch.bytes += next->bytes;
  }
  hak_lock_drop(&bin->lock);
  return i;
}

/* Puts the blocks of the next slab back. Caller holds the bin's lock. */
static void *close_next(bool gone, bool *purge_due) {
  HAK_ASSERT(batch.closed < batch.count);
  const claimed_slab *s = &batch.slabs[batch.closed++];
  hak_store_relaxed(&bin_of(s->class_code)->spare, 1);
  return hak_slab_close_holes(&bin_of(s->class_code)->slabs, s->slab, &s->holes, gone, purge_due);
}

/* The child of a fork in a signal handler may have forgotten them meanwhile. */
static void note_left(size_t pages) {
  size_t leaving = hak_load_relaxed(&hak_span_pool.leaving_hole_pages);
  hak_sub_relaxed(&hak_span_pool.leaving_hole_pages, hak_min_size(pages, leaving));
}

/* Returns the bytes that went. */
static size_t purge_claimed(hak_deferred *d) {
  size_t purged = 0, page = hak_os_page_size();
  if (batch.closed == batch.count) return 0;
  hak_add_relaxed(&hak_span_pool.leaving_hole_pages, batch.bytes / page);
  HAK_SCHEDULE_POINT("purge: blocks claimed");
  purge_ranges(batch.pieces, batch.piece_count, false, batch.pages);
  HAK_SCHEDULE_POINT("purge: blocks advised");
  for (unsigned piece = 0; batch.closed < batch.count;) {
    const claimed_slab *s = &batch.slabs[batch.closed];
    size_t bytes = 0;
    for (unsigned end = piece + s->holes.count; piece < end; piece++)
      bytes += batch.pages[piece] == HAK_PAGES_KEPT ? 0 : batch.pieces[piece].bytes;
    hak_add_relaxed(&hak_purge_stats.hole_pages, bytes / page);
    if (bytes > 0) hak_pool_note_hole(s->slab);
    hak_arena_bin *bin = bin_of(s->class_code);
    hak_lock_take(&bin->lock);
    void *twice = close_next(bytes > 0, &d->purge_due);
    hak_lock_drop(&bin->lock);
    note_left(s->bytes / page);
    if (HAK_UNLIKELY(twice != NULL)) hak_deferred_note(d, HAK_VERDICT_DOUBLE_FREE, twice, s->class_code, "when its pages were purged");
    purged += bytes;
  }
  batch.bytes = 0;
  return purged;
}

static size_t purge_class(unsigned c, unsigned round, bool at_once, size_t wanted, hak_deferred *d) {
  size_t purged = 0;
  unsigned n;
  do {
    hak_arena_bin *bin = bin_of(c);
    if (at_once)
      hak_lock_take(&bin->lock);
    else if (!hak_lock_try(&bin->lock))
      break; /* its thread may have been stopped; the next look finds them */
    n = hak_slab_find_hollow(&bin->slabs, c, round, at_once, batch.found, SLABS_AT_A_TIME);
    hak_lock_drop(&bin->lock);
    for (unsigned i = 0; i < n && purged + batch.bytes < wanted;) {
      i += claim(c, batch.found + i, n - i, wanted - purged);
      if (batch.count == batch.room || i == n) purged += purge_claimed(d);
    }
  } while (n == SLABS_AT_A_TIME && purged + batch.bytes < wanted);
  return purged + purge_claimed(d);
}

size_t hak_purge_slabs(hak_arena *a, unsigned round, bool at_once, size_t wanted, hak_deferred *d) {
  size_t purged = 0;
  if (!take_batch()) return 0; /* another thread is at it */
  batch.arena = a;
  batch.room = may_batch(false) ? BATCH_SLABS : 1;
  for (unsigned c = 0; c < HAK_FRONT_CLASSES && purged < wanted; c++) {
    if (hak_load_relaxed(&a->bins[c].slabs.slabs) != 0) purged += purge_class(c, round, at_once, wanted - purged, d);
  }
  drop_batch();
  return purged;
}

/* --- fork --- */

static bool forking_has_batch; /* written while every lock is held */

void hak_purge_fork_lock(void) { forking_has_batch = take_batch(); }

void hak_purge_fork_unlock(void) {
  if (forking_has_batch) drop_batch();
}

/* Who had it is not there to put the blocks back; unless it is this thread, which forks in a signal handler and goes on. */
void hak_purge_fork_child(void) {
  bool purge_due = false;
  const void *taker = hak_load_relaxed(&batch_taker);
  if (forking_has_batch || taker == NULL || taker == hak_thread_mark()) return;
  while (batch.closed < batch.count) close_next(false, &purge_due);
  batch.bytes = 0;
  forking_has_batch = true;
}
