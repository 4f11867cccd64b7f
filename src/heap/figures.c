/* Figures of heaps, for statistics. */
#include <string.h>

#include "heap/cache.h"

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
      bytes += hak_load_relaxed(&h->taken) - hak_heap_cached_locked(h).bytes;
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
  hak_heap_counts cached = hak_heap_cached_locked(h);
  stats->live = at_least_none(hak_load_relaxed(&h->taken) - cached.bytes);
  /* What was shown once stays: but for a sum of two moments, which may be more than is charged. */
  hak_heap_set_peak(h, hak_min_size(stats->live, hak_load_relaxed(&h->out)));
  stats->peak = hak_max_size(hak_load_relaxed(&h->peak), stats->live);
  stats->blocks = at_least_none(hak_load_relaxed(&h->blocks) - cached.blocks);
  stats->held = hak_heap_held(h);
  stats->refused = hak_load_relaxed(&h->refused);
  stats->requests = hak_load_relaxed(&h->requests) + cached.requests;
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

/* One heap after the other. What moves from a heap to a cache meanwhile counts twice, or not at all. */
hak_heap_sums hak_heap_sum(void) {
  hak_heap_sums sums = {0};
  for (hak_heap *h = NULL; (h = hak_heap_show_next(h, true)) != NULL;) {
    sums.count += !hak_load_relaxed(&h->is_deleted);
    sums.live += hak_load_relaxed(&h->taken);
    sums.blocks += hak_load_relaxed(&h->blocks);
    sums.refused += hak_load_relaxed(&h->refused);
  }
  hak_lock_take(&hak_heaps_lock);
  hak_heap_counts cached = hak_heap_cached_locked(NULL);
  hak_lock_drop(&hak_heaps_lock);
  sums.live = at_least_none(sums.live - cached.bytes);
  sums.blocks = at_least_none(sums.blocks - cached.blocks);
  return sums;
}
