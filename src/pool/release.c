#include "pool/release.h"

#include "os/os.h"
#include "pool/span_pool.h"

/* Constants of the design; docs/tuning of later versions will make them budgets. In spans. */
#define BURST_KEEP_SPANS ((size_t)64 * HAK_MIB / HAK_SPAN_SIZE)
#define IDLE_KEEP_SPANS ((size_t)2 * HAK_MIB / HAK_SPAN_SIZE)
#define IDLE_KEEP_PERCENT 8
#define EPOCH_MS 250
#define IDLE_EPOCHS 2
#define CLAIM_SPANS 256 /* 16 MiB a call: bounds how long a claimed run is missing from the pool */
/* Regret: memory given back at once is taken again within the window. Then so much is kept as the last two windows
 * held at most, for as long as windows go on in which it is used. */
#define WINDOW_MS 1000
#define REGRET_SPANS ((size_t)1 * HAK_MIB / HAK_SPAN_SIZE)

static uint64_t epoch_end_ms; /* relaxed; the thread whose compare-and-swap moves it runs the epoch's work */
static uint32_t epoch;
static bool was_far_over; /* relaxed: at the last tick */

/* pool lock */
static uint64_t window_end_ms;
static size_t previous_peak_spans;
static bool regretting;

/* Relaxed. After giving back did not suffice: what has to be dirty for the next attempt. */
static size_t patience_spans;

static size_t burst_limit(size_t live_spans) { return hak_max_size(BURST_KEEP_SPANS, live_spans); }

bool hak_release_over_limit(size_t dirty_spans, size_t live_spans) {
  return dirty_spans > hak_max_size(burst_limit(live_spans), hak_load_relaxed(&patience_spans));
}

static size_t dirty_now(void) { return hak_load_relaxed(&hak_span_pool.dirty_spans); }

/* Gives one run of the chunk back; returns its spans, 0 when there is none or the system refused. */
static size_t give_back_one(hak_region *r, size_t chunk, bool whole) {
  size_t first, count;
  if (!hak_pool_claim_dirty(r, chunk, CLAIM_SPANS, whole, &first, &count)) return 0;
  bool gone = hak_os_decommit(hak_region_address(r, first), count << HAK_SPAN_SHIFT);
  hak_pool_unclaim(r, first, count, gone);
  return gone ? count : 0;
}

/* Purges chunks from the highest address down (allocation prefers low ones) until dirty <= keep. Chunks that got
 * a span back within the last `idle_epochs` epochs are skipped. */
static size_t give_back_pass(size_t keep_spans, uint32_t idle_epochs, bool whole) {
  size_t given = 0;
  uint32_t now = hak_load_relaxed(&epoch);
  for (unsigned i = hak_region_count(); i-- > 0;) {
    hak_region *r = hak_region_at(i);
    size_t end = (hak_load_acquire(&r->limit) / HAK_SPAN_SIZE + HAK_CHUNK_SPANS - 1) / HAK_CHUNK_SPANS;
    for (size_t chunk = end; chunk-- > r->first_span / HAK_CHUNK_SPANS;) {
      if (now - hak_load_relaxed(&r->chunks[chunk].epoch) < idle_epochs) continue;
      size_t n;
      while (dirty_now() > keep_spans && (n = give_back_one(r, chunk, whole)) > 0) given += n;
      if (dirty_now() <= keep_spans) return given;
    }
  }
  return given;
}

/* Whole huge pages first: one that is given back in part is small pages from then on, and single spans cost a system
 * call each. */
static size_t give_back(size_t keep_spans, uint32_t idle_epochs) {
  size_t given = give_back_pass(keep_spans, idle_epochs, true);
  if (dirty_now() > keep_spans) given += give_back_pass(keep_spans, idle_epochs, false);
  return given;
}

/* How much may stay dirty now, beside `live`. */
static size_t limit_now(uint64_t now_ms) {
  hak_pool *pool = &hak_span_pool;
  hak_lock_take(&pool->lock);
  size_t live = pool->live_spans;
  if (pool->regret_spans >= REGRET_SPANS) regretting = true;
  if (now_ms >= window_end_ms) {
    regretting = pool->regret_spans >= REGRET_SPANS;
    previous_peak_spans = pool->peak_spans;
    pool->peak_spans = live;
    pool->returned_spans = pool->regret_spans = 0;
    window_end_ms = now_ms + WINDOW_MS;
  }
  size_t limit = burst_limit(live);
  size_t peak = hak_max_size(pool->peak_spans, previous_peak_spans);
  if (regretting && peak > live) limit = hak_max_size(limit, peak - live);
  hak_lock_drop(&pool->lock);
  return limit;
}

static void note_returned(size_t spans) {
  hak_lock_take(&hak_span_pool.lock);
  hak_span_pool.returned_spans += spans;
  hak_lock_drop(&hak_span_pool.lock);
}

/* Whole huge pages only. Where slabs empty in no order there are few at first, and in a moment there are many; what
 * stays in pieces is given back by the tick. */
void hak_release_excess(void) {
  size_t limit = limit_now(hak_os_now_ms());
  /* Down to seven eighths of the limit, so that the next free does not call again at once. */
  if (dirty_now() > limit) note_returned(give_back_pass(limit / 8 * 7, 0, true));
  size_t dirty = dirty_now();
  hak_store_relaxed(&patience_spans, dirty > limit ? dirty + limit / 8 : 0);
}

void hak_release_tick(uint64_t now_ms) {
  uint64_t end = hak_load_relaxed(&epoch_end_ms);
  if (now_ms < end) return;
  if (!__atomic_compare_exchange_n(&epoch_end_ms, &end, now_ms + EPOCH_MS, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    return;
  hak_pool_set_epoch(hak_add_relaxed(&epoch, 1));
  size_t live = hak_load_relaxed(&hak_span_pool.live_spans);
  /* Pieces in chunks that are never idle. A program that frees everything passes here for a moment. */
  bool far_over = dirty_now() > 2 * burst_limit(live);
  if (far_over && hak_load_relaxed(&was_far_over)) give_back(burst_limit(live), 0);
  hak_store_relaxed(&was_far_over, far_over);
  size_t keep = hak_max_size(IDLE_KEEP_SPANS, live * IDLE_KEEP_PERCENT / 100);
  if (dirty_now() > keep) give_back(keep, IDLE_EPOCHS);
}

size_t hak_release_all(size_t keep_bytes) { return give_back(keep_bytes / HAK_SPAN_SIZE, 0) << HAK_SPAN_SHIFT; }
