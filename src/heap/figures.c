/* Figures of heaps, for statistics. */
#include <string.h>

#include "heap/heap.h"

static size_t live_locked(const hak_heap *h) { return hak_load_relaxed(&h->live) + (size_t)hak_heap_cached_counts_locked(h).live; }

static size_t total_locked(const hak_heap *top) {
  size_t bytes = 0;
  hak_assert_held(&hak_heaps_lock);
  for (const hak_heap *h = top;;) {
    bytes += live_locked(h);
    if (h->first_child != NULL) {
      h = h->first_child;
      continue;
    }
    while (h != top && h->next_sibling == NULL) h = h->parent;
    if (h == top) return bytes;
    h = h->next_sibling;
  }
}

static void read_locked(hak_heap *h, hakmem_heap_stats *stats) {
  hak_heap_counts cached = hak_heap_cached_counts_locked(h);
  size_t limit = hak_load_relaxed(&h->limit), live = hak_load_relaxed(&h->live) + (size_t)cached.live;
  uint64_t requests = hak_load_relaxed(&h->requests) + cached.requests;
  *stats = (hakmem_heap_stats){
      .id = h->id,
      .live = live,
      .peak = hak_max_size(hak_load_relaxed(&h->peak), live),
      .blocks = (size_t)(requests - hak_load_relaxed(&h->frees) - cached.frees),
      .held = hak_heap_held(h),
      .limit = limit == SIZE_MAX ? 0 : limit,
      .total = total_locked(h),
      .refused = hak_load_relaxed(&h->refused),
      .requests = requests,
  };
}

void hak_heap_read(hak_heap *h, hakmem_heap_stats *stats) {
  hak_lock_take(&hak_heaps_lock);
  read_locked(h, stats);
  hak_lock_drop(&hak_heaps_lock);
}

bool hak_heap_read_after(uint64_t id, hak_heap_row *row) {
  hak_lock_take(&hak_heaps_lock);
  hak_heap *h = hak_heap_after_locked(id, false);
  if (h != NULL) {
    read_locked(h, &row->stats);
    row->parent = h->parent == NULL ? 0 : h->parent->id;
    memcpy(row->name, h->name, sizeof row->name);
  }
  hak_lock_drop(&hak_heaps_lock);
  return h != NULL;
}

bool hak_heap_next(uint64_t *id, size_t *out) {
  hak_lock_take(&hak_heaps_lock);
  const hak_heap *h = hak_heap_after_locked(*id, false);
  if (h != NULL) {
    *id = h->id;
    *out = hak_load_relaxed(&h->out);
  }
  hak_lock_drop(&hak_heaps_lock);
  return h != NULL;
}

/* One heap in each hold of the lock. What moves from a cache to its heap meanwhile counts twice, or not at all. */
hak_heap_sums hak_heap_sum(void) {
  hak_heap_sums sums = {0};
  uint64_t requests = 0, frees = 0, id = 0;
  hak_lock_take(&hak_heaps_lock);
  for (hak_heap *h; (h = hak_heap_after_locked(id, true)) != NULL; hak_lock_take(&hak_heaps_lock)) {
    id = h->id;
    sums.count += !hak_load_relaxed(&h->is_deleted);
    sums.live += hak_load_relaxed(&h->live);
    sums.refused += hak_load_relaxed(&h->refused);
    requests += hak_load_relaxed(&h->requests);
    frees += hak_load_relaxed(&h->frees);
    hak_lock_drop(&hak_heaps_lock);
  }
  hak_heap_counts cached = hak_heap_cached_counts_locked(NULL);
  hak_lock_drop(&hak_heaps_lock);
  sums.live += (uint64_t)cached.live;
  requests += cached.requests;
  frees += cached.frees;
  if ((int64_t)sums.live < 0) sums.live = 0;
  sums.blocks = requests > frees ? requests - frees : 0;
  return sums;
}
