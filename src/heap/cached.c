/* What threads' caches have of heaps: told by where the tops of their magazines stand. */
#include "heap/cache.h"

hak_heap_cache hak_no_heap_cache = {.life = UINT64_MAX, .open = HAK_HEAP_NOBODY, .owner = HAK_HEAP_NOBODY};

void hak_heap_add_cached(hak_heap_counts *sum, const hak_heap_cache *k) {
  for (unsigned c = 0; (c = hak_heap_next_loaded(k, c)) < HAK_CLASS_COUNT; c++) {
    unsigned count = hak_heap_cached_count(k, c);
    sum->blocks += count;
    sum->bytes += count * hak_heap_cached_size(c);
  }
  sum->requests += hak_load_relaxed(&k->requests);
}

static void add_cached_of(hak_heap_counts *sum, const hak_thread_heaps *th) {
  for (unsigned i = 0; i < HAK_HEAPS_OF_THREAD; i++) {
    const hak_heap_cache *k = __atomic_load_n(&th->caches[i], __ATOMIC_ACQUIRE);
    if (k != &hak_no_heap_cache && hak_load_relaxed(&k->life) != 0 && hak_heap_cache_has_heap(k))
      hak_heap_add_cached(sum, k);
  }
}

bool hak_heap_has_aside_locked(const hak_heap *h, size_t *credits) {
  hak_assert_held(&hak_heaps_lock);
  bool has = h->has_lost;
  *credits = 0;
  for (const hak_heap_cache *k = h->caches; k != NULL; k = k->next) {
    has |= hak_heap_is_aside(k);
    if (hak_heap_has_credit(k)) *credits += (size_t)hak_load_relaxed(&k->credit);
  }
  return has;
}

/* Caches change heaps under the lock. */
hak_heap_counts hak_heap_cached_locked(const hak_heap *h) {
  hak_heap_counts sum = {0};
  hak_assert_held(&hak_heaps_lock);
  for (const hak_heap_cache *k = h == NULL ? NULL : h->caches; k != NULL; k = k->next) hak_heap_add_cached(&sum, k);
  for (const hak_tcache *t = h == NULL ? hak_tcache_made() : NULL; t != NULL; t = t->next) {
    const hak_thread_heaps *th = __atomic_load_n(&t->heaps, __ATOMIC_ACQUIRE);
    if (th != NULL) add_cached_of(&sum, th);
  }
  return sum;
}

void hak_heap_set_peak(hak_heap *h, size_t live) {
  size_t peak = hak_load_relaxed(&h->peak);
  while (live > peak && !__atomic_compare_exchange_n(&h->peak, &peak, live, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

/* What the thread has cached is looked at when a heap has grown by so much, and taken to be the same until then. */
#define GROWN_BY 16 /* part of what is taken */
static size_t cached_lately(hak_heap *h, size_t taken) {
  if (taken > hak_load_relaxed(&h->looked_until)) {
    hak_heap_counts cached = {0};
    const hak_heap_cache *k = hak_heap_find_own(h->owner);
    if (k != NULL) hak_heap_add_cached(&cached, k);
    hak_store_relaxed(&h->looked_until, taken + taken / GROWN_BY);
    hak_store_relaxed(&h->cached, cached.bytes);
  }
  return hak_load_relaxed(&h->cached);
}

/* What caches have aside is not charged: more than a limit, or than what is charged, was never live. */
void hak_heap_raise_peak_slowly(hak_heap *h, size_t taken) {
  bool caches = hak_load_relaxed(&h->caches) != NULL;
  size_t cached = caches ? hak_min_size(cached_lately(h, taken), taken) : 0, live = taken - cached;
  for (const hak_heap *above = caches ? h : NULL; above != NULL; above = above->parent)
    live = hak_min_size(live, hak_max_size(hak_load_relaxed(&above->limit), hak_load_relaxed(&above->out)));
  hak_heap_set_peak(h, live);
}
