/* A thread's caches of heaps: their life, refill and overflow, and how they are taken back. Of a class a cache has a magazine, once the class has slabs; and one
 * for the large blocks of each number of spans, up to 256 KiB.
 *
 * A thief (hak_tcache_rob) takes what a cache has where a limit would refuse. Heaps do not go while the registry's lock is held: under it, blocks go back to a
 * heap that may have ended. Counts are written by the owner, and read by others (relaxed). */
#include "heap/cache.h"

#include <string.h>

#include "tcache/counted.h"

#define HOT_AFTER 32 /* calls of a thread for a heap, which has slabs for the class, beyond those that its place serves others */
#define MAGAZINE_LAST (HAK_MAGAZINE_SLOTS - 1)
#define MAGAZINE_BYTES HAK_SPAN_SIZE /* of a class; two blocks at least */

_Static_assert(HAK_OWNER_HEAPS % HAK_HEAPS_OF_THREAD == 0, "hak_heap_push takes an owner for an index");
_Static_assert(sizeof(hak_heap_cache) <= HAK_META_SIZE && sizeof(hak_thread_heaps) <= HAK_META_SIZE, "each is a metadata block");

hak_heap_cache hak_no_heap_cache = {.life = UINT64_MAX};

static hak_thread_heaps *make_heaps(hak_tcache *t) {
  hak_thread_heaps *th = hak_thread_heaps_of(t);
  if (th != NULL) return th;
  th = (hak_thread_heaps *)(void *)hak_meta_take();
  if (th == NULL) return NULL;
  memset(th, 0, sizeof *th);
  for (unsigned i = 0; i < HAK_HEAPS_OF_THREAD; i++) th->caches[i] = &hak_no_heap_cache;
  __atomic_store_n(&t->heaps, th, __ATOMIC_RELEASE);
  return th;
}

/* --- magazines --- */

static unsigned usable(unsigned c) {
  return (unsigned)hak_min_size(MAGAZINE_LAST - 1, hak_max_size(MAGAZINE_BYTES / hak_class_size(c), 2));
}
static void **empty_top(void **magazine, unsigned c) { return magazine + MAGAZINE_LAST - usable(c); }
/* A large block of few spans is cached as it is; its place is that of the class as large. */
static bool is_large(unsigned c) { return hak_class_size(c) > HAK_SHARED_MAX; }
static size_t bytes_of(unsigned c) { return is_large(c) ? hak_align_up(hak_class_size(c), HAK_SPAN_SIZE) : hak_class_size(c); }
/* Of a cache that has one. */
static void **magazine_of(const hak_heap_cache *k, unsigned c) { return (void **)hak_align_down((uintptr_t)k->top[c], HAK_MAGAZINE_BYTES); }
static bool has_magazine(const hak_heap_cache *k, unsigned c) { return k->top[c] != HAK_NULL_TOP; }

static bool load(hak_heap_cache *k, unsigned c) {
  if (has_magazine(k, c)) return true;
  void **magazine = (void **)hak_meta_take();
  if (magazine == NULL) return false;
  k->top[c] = empty_top(magazine, c);
  *k->top[c] = NULL;
  return true;
}

static unsigned count_of(const hak_heap_cache *k, unsigned c) { return has_magazine(k, c) ? (unsigned)(k->top[c] - empty_top(magazine_of(k, c), c)) : 0; }

/* --- counts --- */

static void count_from_zero(hak_heap_cache *k) {
  hak_store_relaxed(&k->most, 0);
  hak_store_relaxed(&k->below, 0);
  hak_store_relaxed(&k->requests, 0);
  hak_store_relaxed(&k->frees, 0);
}

/* What a cache has counted moves to its heap. One thread does so at a time: the owner, which is in a slow path, or a thief that has the cache. Under the heap's
 * lock: no fork has half of it. */
static void fold(hak_heap_cache *k) {
  hak_heap *h = k->entry->heap;
  HAK_ASSERT(hak_heap_cache_has_heap(k));
  if ((k->requests | k->frees) == 0) return;
  hak_lock_take(hak_heap_lock(h));
  hak_heap_raise_peak(h, hak_load_relaxed(&h->live) + (size_t)hak_heap_most(k));
  hak_add_relaxed(&h->live, (size_t)hak_heap_live(k));
  hak_add_relaxed(&h->requests, k->requests);
  hak_add_relaxed(&h->frees, k->frees);
  count_from_zero(k);
  hak_lock_drop(hak_heap_lock(h));
}

/* --- a cache's life; the owner, or a thief --- */

/* Puts the oldest `count` blocks of a class back. */
static void put_oldest(hak_heap_cache *k, unsigned c, unsigned count, hak_deferred *d) {
  void *blocks[HAK_MAGAZINE_SLOTS];
  hak_magazine_take_oldest(empty_top(magazine_of(k, c), c), &k->top[c], blocks, count);
  hak_heap *h = k->entry->heap;
  if (is_large(c))
    hak_heap_put_large(h, blocks, count, d);
  else
    hak_heap_put(h, c, blocks, count, d);
}

/* Under the registry lock: the heap may have ended. */
static void empty(hak_heap_cache *k, hak_deferred *d) {
  hak_assert_held(&hak_heaps_lock);
  bool exists = hak_heap_cache_has_heap(k);
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    if (!has_magazine(k, c)) continue;
    if (exists && count_of(k, c) > 0) put_oldest(k, c, count_of(k, c), d);
    hak_meta_give_one(magazine_of(k, c));
    k->top[c] = HAK_NULL_TOP;
    k->batch[c] = HAK_BATCH_FIRST;
  }
  if (exists) fold(k);
}

static void begin(hak_heap_cache *k, hak_heap *h) {
  hak_store_relaxed(&k->life, 0); /* who sums up counts takes it for nobody's meanwhile */
  k->entry = hak_heap_entry_of(h);
  count_from_zero(k);
  k->calls_seen = 0;
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    k->top[c] = HAK_NULL_TOP;
    k->batch[c] = HAK_BATCH_FIRST;
    k->size[c] = (uint16_t)(hak_class_size(c) <= HAK_SHARED_MAX ? hak_class_size(c) : 0);
  }
  hak_store_relaxed(&k->owner, hak_heap_owner(h));
  hak_store_release(&k->life, h->life);
}

/* The heap has been used as often as others of its place: it has the place now. */
static hak_heap_cache *make_cache(hak_tcache *t, hak_heap *h, hak_deferred *d) {
  hak_thread_heaps *th = make_heaps(t);
  if (th == NULL) return NULL;
  unsigned i = h->index % HAK_HEAPS_OF_THREAD;
  if (++th->misses[i] < HOT_AFTER) return NULL;
  th->misses[i] = 0;
  hak_heap_cache *k = th->caches[i];
  if (k != &hak_no_heap_cache) {
    hak_lock_take(&hak_heaps_lock);
    empty(k, d);
    hak_lock_drop(&hak_heaps_lock);
  } else if ((k = (hak_heap_cache *)(void *)hak_meta_take()) == NULL) {
    return NULL;
  }
  begin(k, h);
  __atomic_store_n(&th->caches[i], k, __ATOMIC_RELEASE);
  return k;
}

void hak_heap_fold(hak_tcache *t, const hak_heap *h) {
  if (t == NULL || hak_heap_cache_of(t, h) == NULL) return;
  hak_tcache_enter(t); /* a thief folds, too; what it does before it lets go is seen here */
  hak_heap_cache *k = hak_heap_cache_of(t, h);
  if (k != NULL) fold(k);
  hak_tcache_leave(t);
}

/* --- calls --- */

/* Not where the sum has to fall, below its limit or for a callback: what is cached would serve requests, or not be seen to be free. */
static bool has_to_fall(const hak_heap *h) {
  return hak_heap_was_called(h) || hak_load_relaxed(&h->out) > hak_load_relaxed(&h->limit);
}
static bool may_cache(const hak_heap *h) {
  if (h->flags != 0 || hak_load_relaxed(&h->is_deleted) || hak_config.hot_ring_enable == 0) return false;
  while (h != NULL && !has_to_fall(h)) h = h->parent;
  return h == NULL;
}

/* The thread's cache of the heap, with a magazine for the class; NULL: it has none, and may or can have none. */
static hak_heap_cache *cache_for(hak_tcache *t, hak_heap *h, unsigned c, hak_deferred *d) {
  if (!may_cache(h)) return NULL;
  hak_heap_cache *k = hak_heap_cache_of(t, h);
  if (k == NULL) k = make_cache(t, h, d);
  return k != NULL && load(k, c) ? k : NULL;
}

static hak_heap_try refill(hak_tcache *t, hak_heap *h, unsigned c, hak_deferred *d) {
  hak_heap_try r = {0};
  hak_heap_cache *k = cache_for(t, h, c, d);
  if (k == NULL) return r;
  HAK_ASSERT(count_of(k, c) == 0);
  unsigned n = hak_heap_take(h, c, k->top[c] + 1, (unsigned)hak_min_size(k->batch[c], usable(c)), &r.refuser);
  if (n == 0) return r;
  k->batch[c] = (uint8_t)hak_min_size(k->batch[c] * 2u, usable(c) / 2);
  k->top[c] += n - 1;
  r.p = k->top[c][1];
  hak_heap_count_alloc(k, hak_class_size(c));
  return r;
}

static void *pop(const hak_tcache *t, const hak_heap *h, unsigned c) {
  hak_heap_cache *k = hak_heap_cache_of(t, h);
  void *p = k == NULL ? NULL : hak_magazine_pop(&k->top[c]);
  if (p != NULL) hak_heap_count_alloc(k, bytes_of(c));
  return p;
}

hak_heap_try hak_heap_cached_alloc(hak_tcache *t, hak_heap *h, unsigned c, hak_deferred *d) {
  hak_tcache_enter(t);
  hak_heap_try r = {.p = pop(t, h, c)};
  if (r.p == NULL && !is_large(c)) r = refill(t, h, c, d);
  hak_tcache_leave(t);
  return r;
}

/* A request of no bytes takes a span, too: the class of 0 bytes is one of slabs, whose blocks are aligned to 16. */
unsigned hak_heap_large_class(size_t bytes) {
  return bytes > HAK_SMALL_MAX ? HAK_CLASS_COUNT : hak_class_for(hak_align_up(hak_max_size(bytes, 1), HAK_SPAN_SIZE));
}

static hak_heap_cache *make_room(hak_tcache *t, hak_heap *h, unsigned c, hak_deferred *d) {
  hak_heap_cache *k = cache_for(t, h, c, d);
  if (k != NULL && count_of(k, c) == usable(c)) put_oldest(k, c, (usable(c) + 1) / 2, d);
  return k;
}

/* It would go in twice. Of a large class all are looked at: two. */
static bool is_cached(const hak_heap_cache *k, unsigned c, const void *p) {
  for (void **at = k->top[c]; *at != NULL; at--) {
    if (*at == p) return true;
    if (!is_large(c)) break;
  }
  return false;
}

bool hak_heap_cached_free(hak_tcache *t, hak_heap *h, unsigned c, void *p, hak_deferred *d) {
  hak_tcache_enter(t);
  hak_heap_cache *k = make_room(t, h, c, d);
  if (k != NULL && HAK_CHECKS && is_cached(k, c, p)) {
    hak_deferred_note(d, HAK_VERDICT_DOUBLE_FREE, p, c, "at the call");
  } else if (k != NULL) {
    *++k->top[c] = p;
    hak_heap_count_free(k, bytes_of(c));
  }
  hak_tcache_leave(t);
  return k != NULL;
}

/* --- giving back --- */

/* What it has of `within` and the heaps below it, NULL: of all; `idle`: if it has not been used since the last such call. */
static void flush_thread(hak_thread_heaps *th, const hak_heap *within, bool idle, hak_deferred *d) {
  if (th == NULL) return;
  hak_lock_take(&hak_heaps_lock);
  for (unsigned i = 0; i < HAK_HEAPS_OF_THREAD; i++) {
    hak_heap_cache *k = th->caches[i];
    if (k == &hak_no_heap_cache) continue;
    uint32_t calls = (uint32_t)(k->requests + k->frees);
    bool stays = idle ? k->calls_seen != calls : within != NULL && hak_heap_cache_has_heap(k) && !hak_heap_is_within(k->entry->heap, within);
    if (!stays) empty(k, d);
    if (idle) k->calls_seen = calls;
  }
  hak_lock_drop(&hak_heaps_lock);
}

static void flush_own(const hak_heap *within, bool idle, hak_deferred *d) {
  hak_tcache *t = hak_tls.cache;
  if (t == NULL || hak_thread_heaps_of(t) == NULL) return;
  hak_tcache_enter(t);
  flush_thread(hak_thread_heaps_of(t), within, idle, d);
  hak_tcache_leave(t);
}

void hak_heap_flush(const hak_heap *within, hak_deferred *d) { flush_own(within, false, d); }

void hak_heap_decay(hak_deferred *d) { flush_own(NULL, true, d); }

typedef struct theft {
  const hak_heap *within;
  hak_deferred *d;
} theft;

static void take_from(hak_tcache *t, void *context) {
  const theft *of = context;
  flush_thread(hak_thread_heaps_of(t), of->within, false, of->d);
}

static bool has_any(const hak_tcache *t) { return __atomic_load_n(&t->heaps, __ATOMIC_ACQUIRE) != NULL; }

bool hak_heap_flush_others(const hak_heap *within, hak_deferred *d) {
  theft of = {within, d};
  return hak_tcache_rob(has_any, take_from, &of);
}

void hak_heap_end_thread(hak_deferred *d) {
  hak_tcache *t = hak_tls.cache;
  if (t == NULL || hak_thread_heaps_of(t) == NULL) return;
  if (hak_tls.in_heap) hak_heap_set_default(t, NULL);
  hak_tcache_enter(t);
  hak_thread_heaps *th = hak_thread_heaps_of(t);
  flush_thread(th, NULL, false, d);
  /* Readers of counts go by it under the registry lock. */
  hak_lock_take(&hak_heaps_lock);
  hak_store_relaxed(&t->heaps, NULL);
  hak_lock_drop(&hak_heaps_lock);
  for (unsigned i = 0; i < HAK_HEAPS_OF_THREAD; i++) {
    if (th->caches[i] != &hak_no_heap_cache) hak_meta_give_one(th->caches[i]);
  }
  hak_meta_give_one(th);
  hak_tcache_leave(t);
}

static void add_counts(hak_heap_counts *sum, const hak_thread_heaps *th, unsigned slot, const hak_heap *h) {
  const hak_heap_cache *k = __atomic_load_n(&th->caches[slot], __ATOMIC_ACQUIRE);
  uint64_t life = hak_load_acquire(&k->life); /* begin() releases it */
  if (life == 0) return;
  const hak_heap *of = h != NULL ? h : hak_heap_of_owner(hak_load_relaxed(&k->owner)); /* one that has ended may not be looked at */
  if (of == NULL || life != of->life) return;
  sum->live += hak_heap_live(k);
  sum->requests += hak_load_relaxed(&k->requests);
  sum->frees += hak_load_relaxed(&k->frees);
}

hak_heap_counts hak_heap_cached_counts_locked(const hak_heap *h) {
  hak_heap_counts sum = {0};
  hak_assert_held(&hak_heaps_lock);
  for (const hak_tcache *t = hak_tcache_made(); t != NULL; t = t->next) {
    const hak_thread_heaps *th = __atomic_load_n(&t->heaps, __ATOMIC_ACQUIRE);
    if (th == NULL) continue;
    unsigned first = h == NULL ? 0 : h->index % HAK_HEAPS_OF_THREAD, end = h == NULL ? HAK_HEAPS_OF_THREAD : first + 1;
    for (unsigned slot = first; slot < end; slot++) add_counts(&sum, th, slot, h);
  }
  return sum;
}

/* --- the default --- */

/* The thread's default, if it was reset; NULL: it was destroyed. */
static hak_heap *default_after_reset(hak_thread_heaps *th) {
  hak_lock_take(&hak_heaps_lock);
  hak_heap *h = hak_heap_at_entry(th->default_entry);
  if (h != NULL && h->id != th->default_id) h = NULL;
  if (h != NULL) th->default_life = h->life;
  hak_lock_drop(&hak_heaps_lock);
  return h;
}

hak_heap *hak_heap_default(void) {
  const hak_tcache *t = hak_tls.cache;
  hak_thread_heaps *th = t == NULL ? NULL : hak_thread_heaps_of(t);
  if (th == NULL || th->default_entry == NULL) return NULL;
  bool is_same = HAK_LIKELY(hak_load_relaxed(&th->default_entry->life) == th->default_life);
  hak_heap *h = is_same ? hak_heap_at_entry(th->default_entry) : default_after_reset(th);
  if (HAK_LIKELY(h != NULL) && HAK_LIKELY(!hak_load_relaxed(&h->is_deleted))) return h;
  hak_heap_set_default(hak_tls.cache, NULL); /* it was destroyed, or deleted */
  return NULL;
}

bool hak_heap_set_default(hak_tcache *t, hak_heap *h) {
  hak_thread_heaps *th = h == NULL ? hak_thread_heaps_of(t) : make_heaps(t);
  if (th == NULL) return h == NULL;
  th->default_entry = h == NULL ? NULL : hak_heap_entry_of(h);
  th->default_id = h == NULL ? 0 : h->id;
  th->default_life = h == NULL ? 0 : h->life;
  if (hak_tls.in_heap == (h != NULL)) return true;
  hak_tls.in_heap = h != NULL;
  hak_count_aside(&th->countdown, h != NULL);
  return true;
}

int64_t *hak_heap_countdown(void) { return &hak_thread_heaps_of(hak_tls.cache)->countdown; }

/* --- fork --- */

/* What other threads had cached is lost there, as of the main heap: they may have been in the middle of a push. What they counted is kept. */
void hak_heap_fork_child(void) {
  hak_heap_forget_lost();
  for (hak_tcache *t = hak_tcache_made(); t != NULL; t = t->next) {
    hak_thread_heaps *th = hak_thread_heaps_of(t);
    if (th == NULL || t == hak_tls.cache || t == hak_tls.aside) continue;
    for (unsigned i = 0; i < HAK_HEAPS_OF_THREAD; i++) {
      hak_heap_cache *k = th->caches[i];
      if (k != &hak_no_heap_cache && hak_heap_cache_has_heap(k)) fold(k);
    }
    t->heaps = NULL;
  }
}
