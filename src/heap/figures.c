/* Figures of heaps, for statistics. */
#include <string.h>

#include "heap/cache.h"

static void add_counts(hak_heap_counts *sum, const hak_heap_cache *k) {
  sum->live += hak_heap_live(k);
  sum->requests += hak_load_relaxed(&k->requests);
  sum->frees += hak_load_relaxed(&k->frees);
}

static void add_counts_of(hak_heap_counts *sum, const hak_thread_heaps *th) {
  for (unsigned i = 0; i < HAK_HEAPS_OF_THREAD; i++) {
    const hak_heap_cache *k = __atomic_load_n(&th->caches[i], __ATOMIC_ACQUIRE);
    if (k != &hak_no_heap_cache && hak_load_relaxed(&k->life) != 0 && hak_heap_cache_has_heap(k)) add_counts(sum, k);
  }
}

bool hak_heap_has_aside_locked(const hak_heap *h, size_t *credits) {
  hak_assert_held(&hak_heaps_lock);
  bool has = h->has_lost;
  *credits = 0;
  for (const hak_heap_cache *k = h->caches; k != NULL; k = k->next) {
    has |= hak_heap_is_aside(k);
    if (hak_heap_has_credit(k)) *credits += (size_t)hak_heap_credit(k);
  }
  return has;
}

/* Caches change heaps under the lock. */
hak_heap_counts hak_heap_cached_counts_locked(const hak_heap *h) {
  hak_heap_counts sum = {0};
  hak_assert_held(&hak_heaps_lock);
  for (const hak_heap_cache *k = h == NULL ? NULL : h->caches; k != NULL; k = k->next) add_counts(&sum, k);
  for (const hak_tcache *t = h == NULL ? hak_tcache_made() : NULL; t != NULL; t = t->next) {
    const hak_thread_heaps *th = __atomic_load_n(&t->heaps, __ATOMIC_ACQUIRE);
    if (th != NULL) add_counts_of(&sum, th);
  }
  return sum;
}

static size_t live_locked(const hak_heap *h) {
  return hak_load_relaxed(&h->live) + (size_t)hak_heap_cached_counts_locked(h).live;
}

/* In steps: others make and end heaps between them. Where the heap that the sum has come to ends there, or leaves the
 * tree, all is added again in one. */
#define SUMMED_AT_ONCE 64 /* heaps in one hold of the lock, each with the counts of its caches */
static size_t total_of(hak_heap *top) {
  for (bool at_once = false;; at_once = true) {
    size_t bytes = 0, steps = 0;
    hak_heap *shown = NULL;
    hak_lock_take(&hak_heaps_lock);
    hak_heap *h = top;
    while (h != NULL) {
      bytes += live_locked(h);
      h = hak_heap_next_below_locked(h, top);
      if (h == NULL || at_once || ++steps % SUMMED_AT_ONCE != 0) continue;
      shown = hak_heap_rest_at_locked(h, shown);
      if (!hak_heap_is_within(h, top)) break;
    }
    hak_lock_drop(&hak_heaps_lock);
    if (shown != NULL) hak_heap_show_end(shown);
    if (h == NULL) return (int64_t)bytes < 0 ? 0 : bytes;
  }
}

/* What others count while this adds up may be below 0 for a moment. */
static size_t at_least_none(uint64_t n) { return (int64_t)n < 0 ? 0 : (size_t)n; }

static void read_locked(hak_heap *h, hakmem_heap_stats *stats) {
  size_t limit = hak_load_relaxed(&h->limit);
  *stats = (hakmem_heap_stats){.id = h->id, .limit = limit == SIZE_MAX ? 0 : limit};
  if (h->life == 0) return;
  hak_heap_counts cached = hak_heap_cached_counts_locked(h);
  uint64_t requests = hak_load_relaxed(&h->requests) + cached.requests;
  stats->live = at_least_none(hak_load_relaxed(&h->live) + (uint64_t)cached.live);
  /* What was shown once stays: but for a sum of two moments, which may be more than is charged. */
  hak_heap_raise_peak(h, hak_min_size(stats->live, hak_load_relaxed(&h->out)));
  stats->peak = hak_max_size(hak_load_relaxed(&h->peak), stats->live);
  stats->blocks = at_least_none(requests - hak_load_relaxed(&h->frees) - cached.frees);
  stats->held = hak_heap_held(h);
  stats->refused = hak_load_relaxed(&h->refused);
  stats->requests = requests;
  stats->total = stats->live;
}

void hak_heap_read(hak_heap *h, hakmem_heap_stats *stats) {
  hak_lock_take(&hak_heaps_lock);
  read_locked(h, stats);
  bool is_parent = h->first_child != NULL;
  hak_lock_drop(&hak_heaps_lock);
  if (is_parent) stats->total = total_of(h);
}

bool hak_heap_read_row(hak_heap *h, hak_heap_row *row) {
  hak_heap_read(h, &row->stats);
  hak_lock_take(&hak_heaps_lock);
  bool exists = h->life != 0;
  row->parent = h->parent == NULL ? 0 : h->parent->id;
  hak_lock_drop(&hak_heaps_lock);
  memcpy(row->name, h->name, sizeof row->name);
  return exists;
}

/* One heap after the other. What moves from a cache to its heap meanwhile counts twice, or not at all. */
hak_heap_sums hak_heap_sum(void) {
  hak_heap_sums sums = {0};
  uint64_t requests = 0, frees = 0;
  for (hak_heap *h = NULL; (h = hak_heap_show_next(h, true)) != NULL;) {
    sums.count += !hak_load_relaxed(&h->is_deleted);
    sums.live += hak_load_relaxed(&h->live);
    sums.refused += hak_load_relaxed(&h->refused);
    requests += hak_load_relaxed(&h->requests);
    frees += hak_load_relaxed(&h->frees);
  }
  hak_lock_take(&hak_heaps_lock);
  hak_heap_counts cached = hak_heap_cached_counts_locked(NULL);
  hak_lock_drop(&hak_heaps_lock);
  sums.live += (uint64_t)cached.live;
  requests += cached.requests;
  frees += cached.frees;
  if ((int64_t)sums.live < 0) sums.live = 0;
  sums.blocks = requests > frees ? requests - frees : 0;
  return sums;
}
