/* What a thread keeps of a heap, and the short ways to it, inline in the entry points: some 40 instructions each.
 * cache.c has the rest.
 *
 * A cache is found by the heap's index, and is the heap's if it has its life: that of a heap that was destroyed or
 * reset is nobody's. Each is held by itself: the owner says in `busy` or `quick` that it is at it, and a thief leaves it
 * alone then, or has the owner wait (cache.c). */
#ifndef HAK_HEAP_CACHE_H
#define HAK_HEAP_CACHE_H

#include "heap/heap.h"

#define HAK_HEAPS_OF_THREAD 32

/* A heap's cache is in one of two places of a thread: where others have the first, as heaps made a power of two apart
 * do, it may be in the second. */
HAK_INLINE uint32_t hak_heap_first_place(uint32_t index) { return index % HAK_HEAPS_OF_THREAD; }
HAK_INLINE uint32_t hak_heap_second_place(uint32_t index) {
  /* An odd number of places further */
  return (index + (index / HAK_HEAPS_OF_THREAD * 0x9e3779b1u >> 16 | 1)) % HAK_HEAPS_OF_THREAD;
}

/* Of `thief`: the owner waits before its next call; and, near its heap's limit, what the cache has is set aside, and
 * does not count: the short ways, which charge nothing, leave it alone. Such a cache may have a credit: bytes that are
 * charged, of which its mallocs take, and to which its frees add. */
#define HAK_HEAP_THIEF 1u
#define HAK_HEAP_ASIDE 2u
#define HAK_HEAP_CREDIT 4u

/* Of `owner`: no heap's, nor an arena's. */
#define HAK_HEAP_NOBODY UINT32_MAX

typedef struct hak_heap_cache {
  void **top[HAK_CODES]; /* first, as hak_tls.top; of magazines with less room. Codes of no class have none */
  uint32_t busy;  /* written by the owner: how many long ways it is in … */
  uint32_t quick; /* … and whether it is in a short one, which does not nest */
  uint32_t thief; /* registry lock */
  uint64_t life; /* of the heap */
  const hak_heap_entry *entry;
  /* Its, in tags, or HAK_HEAP_NOBODY: no heap's any more. Registry lock, read by the thread, relaxed: whoever ends the
   * life has stored it before a block of the next one is anybody's, and so before that is freed. */
  uint32_t owner;
  uint32_t calls_seen; /* the lower half of requests and frees when the thread's cache was decayed last */
  /* Relaxed: bytes live since it was folded into the heap's counts, at most; and how many fewer they are */
  int64_t most, below;
  uint64_t requests, frees;
  /* Of a cache with a credit, a lock of the heap; relaxed: bytes charged since the counts were folded, of which those
   * live since are no credit; and how much credit it may have. */
  int64_t charged, credit_most;
  /* Registry lock. */
  struct hak_heap_cache *next, *prev; /* of the heap */
  const hak_tcache *holder; /* constant */
  uint32_t calls_at_turn; /* as calls_seen, of the clock's turn */
  uint32_t theft;         /* the last one that came by */
  uint16_t magazines; /* that it has; relaxed */
  uint8_t batch[HAK_CLASS_COUNT];
} hak_heap_cache;

typedef struct hak_thread_heaps {
  hak_heap_cache *caches[HAK_HEAPS_OF_THREAD]; /* &hak_no_heap_cache, of no heap, where there is none */
  uint32_t misses[HAK_HEAPS_OF_THREAD];
  const hak_heap_entry *default_entry; /* NULL: none */
  uint64_t default_id, default_life;
  int64_t countdown; /* of what is sampled, while there is a default */
} hak_thread_heaps;

extern hak_heap_cache hak_no_heap_cache;

HAK_INLINE hak_thread_heaps *hak_thread_heaps_of(const hak_tcache *t) { return hak_load_relaxed(&t->heaps); }

/* The thread's; made where it has none. NULL: no memory. */
hak_thread_heaps *hak_thread_make_heaps(hak_tcache *cache);

HAK_INLINE hak_heap_cache *hak_heap_cache_of(const hak_tcache *t, const hak_heap *h) {
  const hak_thread_heaps *th = hak_thread_heaps_of(t);
  if (HAK_UNLIKELY(th == NULL)) return NULL;
  hak_heap_cache *k = th->caches[hak_heap_first_place(h->index)];
  if (HAK_LIKELY(k->life == h->life)) return k;
  k = th->caches[hak_heap_second_place(h->index)];
  return k->life == h->life ? k : NULL;
}

/* The heap is there: who uses it knows, or has the registry lock. A cache that ends has no life, as an entry without a
 * heap has none. */
HAK_INLINE bool hak_heap_cache_has_heap(const hak_heap_cache *k) {
  return k->life != 0 && hak_load_relaxed(&k->entry->life) == k->life;
}

/* None, of a heap that has ended, or not used since the thread's cache was decayed last. */
HAK_INLINE bool hak_heap_cache_is_idle(const hak_heap_cache *k) {
  return k == &hak_no_heap_cache || !hak_heap_cache_has_heap(k) || k->calls_seen == (uint32_t)(k->requests + k->frees);
}

/* Of a new cache. */
HAK_INLINE unsigned hak_heap_place_for(const hak_thread_heaps *th, uint32_t index) {
  unsigned first = hak_heap_first_place(index), second = hak_heap_second_place(index);
  return hak_heap_cache_is_idle(th->caches[second]) && !hak_heap_cache_is_idle(th->caches[first]) ? second : first;
}

/* In `most`: the thread is about to store 0 to `below`, which does not count. */
#define HAK_HEAP_RISES ((int64_t)1 << 62)
HAK_INLINE int64_t hak_heap_most(const hak_heap_cache *k) { return hak_load_relaxed(&k->most) & ~HAK_HEAP_RISES; }
HAK_INLINE int64_t hak_heap_live(const hak_heap_cache *k) {
  int64_t most = hak_load_relaxed(&k->most);
  return HAK_UNLIKELY(most >= HAK_HEAP_RISES) ? most & ~HAK_HEAP_RISES : most - hak_load_relaxed(&k->below);
}

/* Of a cache that has one. It changes with what is live, by one store: a fork's child, where the thread is gone, has
 * one that fits its counts. */
HAK_INLINE int64_t hak_heap_credit(const hak_heap_cache *k) { return hak_load_relaxed(&k->charged) - hak_heap_live(k); }

HAK_INLINE void hak_heap_count_alloc(hak_heap_cache *k, size_t size) {
  int64_t below = k->below - (int64_t)size;
  hak_add_own(&k->requests, 1);
  if (HAK_LIKELY(below >= 0)) {
    hak_store_relaxed(&k->below, below);
    return;
  }
  /* One store moves both: a fork's child, where the thread is gone, has the sum of before or after. */
  int64_t most = k->most - below;
  hak_store_relaxed(&k->most, most | HAK_HEAP_RISES);
  HAK_RELEASE_OWN();
  hak_store_relaxed(&k->below, 0);
  HAK_RELEASE_OWN();
  hak_store_relaxed(&k->most, most);
}

HAK_INLINE void hak_heap_count_free(hak_heap_cache *k, size_t size) {
  hak_add_own(&k->below, (int64_t)size);
  hak_add_own(&k->frees, 1);
}

/* The short ways, as hak_tcache_enter and _leave, in constants: no call waits for what the one before has stored. */
HAK_INLINE void hak_heap_enter(hak_heap_cache *k) {
  hak_store_relaxed(&k->quick, 1);
  HAK_IN_ORDER(); /* the thief's barrier is the other half */
}
HAK_INLINE void hak_heap_leave(hak_heap_cache *k) {
  HAK_RELEASE_OWN();
  hak_store_relaxed(&k->quick, 0);
}
/* Asked behind hak_heap_enter: what a thief did before is seen then. */
HAK_INLINE bool hak_heap_is_met(const hak_heap_cache *k) {
  if (HAK_UNLIKELY(hak_load_folded(&k->thief) != 0)) return true;
  HAK_ACQUIRE_OWN();
  return false;
}
/* Asked behind the thief's barrier: what the owner did before is seen then. */
HAK_INLINE bool hak_heap_is_at(const hak_heap_cache *k) {
  return (hak_load_acquire(&k->busy) | hak_load_acquire(&k->quick)) != 0;
}

HAK_INLINE bool hak_heap_is_aside(const hak_heap_cache *k) {
  return (hak_load_relaxed(&k->thief) & HAK_HEAP_ASIDE) != 0;
}
HAK_INLINE bool hak_heap_has_credit(const hak_heap_cache *k) {
  return (hak_load_relaxed(&k->thief) & HAK_HEAP_CREDIT) != 0;
}

/* The cache of the heap that the thread used last is found at once, any other in its list. NULL: it has none. */
HAK_INLINE hak_heap_cache *hak_heap_own_cache(const hak_heap *h) {
  hak_heap_cache *k = hak_tls.heap_cache;
  if (HAK_LIKELY(k != NULL) && HAK_LIKELY(k->life == h->life)) return k;
  const hak_tcache *t = hak_tls.cache;
  k = t == NULL ? NULL : hak_heap_cache_of(t, h);
  if (HAK_LIKELY(k != NULL)) hak_tls.heap_cache = k;
  return k;
}

HAK_INLINE hak_heap_cache *hak_heap_own_cache_of_owner(uint32_t owner) {
  hak_heap_cache *k = hak_tls.heap_cache;
  if (HAK_LIKELY(k != NULL) && HAK_LIKELY(hak_load_relaxed(&k->owner) == owner)) return k;
  const hak_tcache *t = hak_tls.cache;
  const hak_thread_heaps *th = t == NULL ? NULL : hak_thread_heaps_of(t);
  if (HAK_UNLIKELY(th == NULL)) return NULL;
  k = th->caches[hak_heap_first_place(owner)];
  if (HAK_UNLIKELY(hak_load_relaxed(&k->owner) != owner)) {
    k = th->caches[hak_heap_second_place(owner - HAK_OWNER_HEAPS)];
    if (hak_load_relaxed(&k->owner) != owner) return NULL; /* of no heap: an arena's, or of pieces */
  }
  hak_tls.heap_cache = k;
  return k;
}

/* A block, of its class's code, that the thread's cache of the heap has. NULL and *met NULL: take the long way. Else
 * the thread is at its cache *met, which a thief has come by: hak_heap_pop_met has the block, or none. */
HAK_INLINE void *hak_heap_pop_code(hak_heap *h, size_t code, hak_heap_cache **met) {
  hak_heap_cache *k = hak_heap_own_cache(h);
  *met = NULL;
  if (HAK_UNLIKELY(k == NULL)) return NULL;
  hak_heap_enter(k);
  if (HAK_UNLIKELY(hak_heap_is_met(k))) {
    *met = k;
    return NULL;
  }
  void *p = hak_magazine_pop(&k->top[code]);
  if (HAK_LIKELY(p != NULL)) hak_heap_count_alloc(k, hak_class_table[code - 1].size);
  hak_heap_leave(k);
  return p;
}

/* Of p, whose page map code in the main region is HAK_CODE_SAMPLED. */
HAK_INLINE uint32_t hak_heap_tag_of(const void *p) {
  size_t index = ((uintptr_t)p - hak_load_relaxed(&hak_main_base)) >> HAK_SPAN_SHIFT;
  return hak_load_relaxed(&hak_region_span_at(&hak_main_region, index)->head->tag);
}

/* Such a p. False and *met NULL: take the long way. Else as above, hak_heap_push_met takes it, or not. */
HAK_INLINE bool hak_heap_push(void *p, hak_heap_cache **met) {
  uint32_t tag = hak_heap_tag_of(p);
  size_t code = HAK_TAG_CODE(tag);
  hak_heap_cache *k = hak_heap_own_cache_of_owner(HAK_TAG_OWNER(tag));
  *met = NULL;
  if (HAK_UNLIKELY(k == NULL)) return false;
  HAK_ASSERT(hak_heap_cache_has_heap(k) && code < HAK_CODES);
  hak_heap_enter(k);
  if (HAK_UNLIKELY(hak_heap_is_met(k))) {
    *met = k;
    return false;
  }
  bool room = hak_magazine_push(&k->top[code], p);
  if (HAK_LIKELY(room)) hak_heap_count_free(k, hak_class_table[code - 1].size);
  hak_heap_leave(k);
  return room;
}

/* Ends what those have begun. Near a limit they charge; NULL or false: take the long way. */
void *hak_heap_pop_met(hak_heap_cache *cache, hak_heap *heap, unsigned class_code);
bool hak_heap_push_met(hak_heap_cache *cache, void *p);
/* The two of a request: a block that the thread's cache of the heap has, or NULL. */
HAK_INLINE void *hak_heap_pop(hak_heap *h, unsigned class_code) {
  hak_heap_cache *met;
  void *p = hak_heap_pop_code(h, class_code + 1, &met);
  return HAK_UNLIKELY(met != NULL) ? hak_heap_pop_met(met, h, class_code) : p;
}
/* Whether the thread's cache takes p, a heap's block that lies in no slab; false: take the long way. */
bool hak_heap_push_large(void *p);

#endif
