/* What a thread keeps of a heap, and the short ways to it, inline in the entry points: some 25 instructions each.
 * cache.c has the rest.
 *
 * A cache is the heap's if it has its life: that of a heap that was destroyed or reset is nobody's. Each is held by
 * itself: the owner says in `busy` or `quick` that it is at it, and a thief leaves it alone then, or has the owner wait
 * (cache.c). What it has is told by where its tops stand, which one store changes: a block is the program's, or cached,
 * for whoever counts and for a fork's child. */
#ifndef HAK_HEAP_CACHE_H
#define HAK_HEAP_CACHE_H

#include "heap/heap.h"

#define HAK_HEAPS_OF_THREAD 32
#define HAK_LOADED_WORDS ((HAK_CLASS_COUNT + 63) / 64)

/* A heap's cache is in one of two places of a thread, by the heap's owner in tags: where others have the first, as
 * heaps made a power of two apart do, it may be in the second. */
HAK_INLINE uint32_t hak_heap_first_place(uint32_t owner) { return owner % HAK_HEAPS_OF_THREAD; }
HAK_INLINE uint32_t hak_heap_second_place(uint32_t owner) {
  /* An odd number of places further */
  return (owner + (owner / HAK_HEAPS_OF_THREAD * 0x9e3779b1u >> 16 | 1)) % HAK_HEAPS_OF_THREAD;
}

/* Of `thief`: the owner waits before its next call; and, near its heap's limit, what the cache has is set aside, and
 * does not count. Such a cache may have a credit: bytes that are charged, of which its mallocs take, and to which its
 * frees add. While `thief` says any of it the short ways, which charge nothing, leave the cache alone: it is not
 * open. */
#define HAK_HEAP_THIEF 1u
#define HAK_HEAP_ASIDE 2u
#define HAK_HEAP_CREDIT 4u

/* Of `owner` and `open`: no heap's, nor an arena's. */
#define HAK_HEAP_NOBODY UINT32_MAX

typedef struct hak_heap_cache {
  void **top[HAK_CODES]; /* first, as hak_tls.top; of magazines with less room. Codes of no class have none */
  uint32_t busy;  /* written by the owner: how many long ways it is in … */
  uint32_t quick; /* … and whether it is in a short one, which does not nest */
  uint32_t open;  /* registry lock, relaxed: `owner`, for the short ways; HAK_HEAP_NOBODY: they leave it alone */
  uint32_t thief; /* registry lock */
  /* Of the heap, in tags, or HAK_HEAP_NOBODY: no heap's any more. Registry lock, read by the thread, relaxed: whoever
   * ends the life has stored it, and `open`, before a block of the next one is anybody's. */
  uint32_t owner;
  uint32_t turns; /* relaxed: calls that took the long way, or met the limit */
  uint64_t requests; /* relaxed: served since the cache is the heap's */
  uint64_t life; /* of the heap */
  const hak_heap_entry *entry;
  uint64_t loaded[HAK_LOADED_WORDS]; /* relaxed: classes that have a magazine, a bit each */
  /* Of a cache with a credit. It is what is cached and `credit_base`, below 0, which changes with what is charged, and
   * with what leaves slabs, under a lock of the heap: a fork's child has both or neither. For the owner `credit` is the
   * sum, and `credit_most` up to what it keeps. */
  int64_t credit_base, credit, credit_most;
  /* Registry lock. */
  struct hak_heap_cache *next, *prev; /* of the heap */
  const hak_tcache *holder; /* constant */
  uint32_t calls_seen;    /* the lower half of all calls when the thread's cache was decayed last */
  uint32_t calls_at_turn; /* as calls_seen, of the clock's turn */
  uint32_t theft;         /* the last one that came by */
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

/* The heap is there: who uses it knows, or has the registry lock. A cache that ends has no life, as an entry without a
 * heap has none. */
HAK_INLINE bool hak_heap_cache_has_heap(const hak_heap_cache *k) {
  return k->life != 0 && hak_load_relaxed(&k->entry->life) == k->life;
}

/* --- magazines --- */

/* Blocks of a class: of HAK_SPAN_SIZE bytes, two at least. */
HAK_INLINE unsigned hak_heap_usable(unsigned c) {
  size_t blocks = hak_class_table[c].reciprocal >> (64 - HAK_SPAN_SHIFT); /* HAK_SPAN_SIZE / size */
  return (unsigned)hak_min_size(HAK_MAGAZINE_SLOTS - 2, hak_max_size(blocks, 2));
}
HAK_INLINE void **hak_heap_empty_top(void **magazine, unsigned c) {
  return hak_magazine_empty_top_of(magazine, hak_heap_usable(c));
}
/* A large block of few spans is cached as it is; its place is that of the class as large. */
HAK_INLINE bool hak_heap_class_is_large(unsigned c) { return hak_class_size(c) > HAK_SHARED_MAX; }
HAK_INLINE size_t hak_heap_cached_size(unsigned c) {
  return hak_heap_class_is_large(c) ? hak_align_up(hak_class_size(c), HAK_SPAN_SIZE) : hak_class_size(c);
}
HAK_INLINE unsigned hak_heap_cached_count(const hak_heap_cache *k, unsigned c) {
  void **top = hak_load_relaxed(&k->top[c + 1]);
  void **magazine = (void **)hak_align_down((uintptr_t)top, HAK_MAGAZINE_BYTES);
  return top != HAK_NULL_TOP ? (unsigned)(top - hak_heap_empty_top(magazine, c)) : 0;
}
/* The first class from c on that has a magazine; HAK_CLASS_COUNT: none has. */
HAK_INLINE unsigned hak_heap_next_loaded(const hak_heap_cache *k, unsigned c) {
  for (unsigned word = c / 64; word < HAK_LOADED_WORDS; c = ++word * 64) {
    uint64_t left = hak_load_relaxed(&k->loaded[word]) >> c % 64;
    if (left != 0) return c + hak_ctz64(left);
  }
  return HAK_CLASS_COUNT;
}

/* But frees that took the short way: what these fill goes the long one. */
HAK_INLINE uint32_t hak_heap_calls(const hak_heap_cache *k) {
  return (uint32_t)hak_load_relaxed(&k->requests) + hak_load_relaxed(&k->turns);
}

/* None, of a heap that has ended, or not used since the thread's cache was decayed last. */
HAK_INLINE bool hak_heap_cache_is_idle(const hak_heap_cache *k) {
  return k == &hak_no_heap_cache || !hak_heap_cache_has_heap(k) || k->calls_seen == hak_heap_calls(k);
}

/* Of a new cache. */
HAK_INLINE unsigned hak_heap_place_for(const hak_thread_heaps *th, uint32_t owner) {
  unsigned first = hak_heap_first_place(owner), second = hak_heap_second_place(owner);
  return hak_heap_cache_is_idle(th->caches[second]) && !hak_heap_cache_is_idle(th->caches[first]) ? second : first;
}

/* The short ways, as hak_tcache_enter and _leave, in constants: no call waits for what the one before has stored.
 * False: the thread is at it, but it is not open to blocks of the owner. */
HAK_INLINE bool hak_heap_enter(hak_heap_cache *k, uint32_t owner) {
  hak_store_folded(&k->quick, 1);
  HAK_IN_ORDER(); /* the thief's barrier is the other half */
  if (HAK_UNLIKELY(hak_load_folded(&k->open) != owner)) return false;
  HAK_ACQUIRE_OWN();
  return true;
}
HAK_INLINE void hak_heap_leave(hak_heap_cache *k) {
  HAK_RELEASE_OWN();
  hak_store_folded(&k->quick, 0);
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

/* The thread's cache of the owner's heap; NULL: it has none. */
HAK_INLINE hak_heap_cache *hak_heap_find_own(uint32_t owner) {
  const hak_tcache *t = hak_tls.cache;
  const hak_thread_heaps *th = t == NULL ? NULL : hak_thread_heaps_of(t);
  if (HAK_UNLIKELY(th == NULL)) return NULL;
  hak_heap_cache *k = th->caches[hak_heap_first_place(owner)];
  if (HAK_LIKELY(hak_load_relaxed(&k->owner) == owner)) return k;
  k = th->caches[hak_heap_second_place(owner)];
  return hak_load_relaxed(&k->owner) == owner ? k : NULL; /* or of no heap: an arena's, or of pieces */
}

/* The one that the thread used last is found at once, any other in its list; the thread is at it. NULL and *met NULL:
 * it has none. NULL: the thread is at its cache *met, which is not open. */
HAK_INLINE hak_heap_cache *hak_heap_enter_own(uint32_t owner, hak_heap_cache **met) {
  hak_heap_cache *k = hak_tls.heap_cache;
  *met = NULL;
  if (HAK_LIKELY(k != NULL)) {
    if (HAK_LIKELY(hak_heap_enter(k, owner))) return k;
    *met = hak_load_relaxed(&k->owner) == owner ? k : NULL;
    if (*met != NULL) return NULL;
    hak_heap_leave(k);
  }
  k = hak_heap_find_own(owner);
  if (HAK_UNLIKELY(k == NULL)) return NULL;
  hak_tls.heap_cache = k;
  if (HAK_LIKELY(hak_heap_enter(k, owner))) return k;
  *met = k;
  return NULL;
}

/* A block, of its class's code, that the thread's cache of the heap has. NULL and *met NULL: take the long way. Else
 * the thread is at its cache *met, which a thief has come by: hak_heap_pop_met has the block, or none. */
HAK_INLINE void *hak_heap_pop_code(hak_heap *h, size_t code, hak_heap_cache **met) {
  hak_heap_cache *k = hak_heap_enter_own(h->owner, met);
  if (HAK_UNLIKELY(k == NULL)) return NULL;
  void *p = hak_magazine_pop(&k->top[code]);
  if (HAK_LIKELY(p != NULL)) hak_add_own(&k->requests, 1);
  hak_heap_leave(k);
  return p;
}

/* Of p, whose page map code in the main region is HAK_CODE_SAMPLED. */
HAK_INLINE uint32_t hak_heap_tag_of(const void *p) {
  return hak_load_relaxed(&hak_region_main_span(hak_load_folded(&hak_main_spans), (uintptr_t)p)->head->tag);
}

/* Such a p. False and *met NULL: take the long way. Else as above, hak_heap_push_met takes it, or not. */
HAK_INLINE bool hak_heap_push(void *p, hak_heap_cache **met) {
  uint32_t tag = hak_heap_tag_of(p);
  size_t code = HAK_TAG_CODE(tag);
  hak_heap_cache *k = hak_heap_enter_own(HAK_TAG_OWNER(tag), met);
  if (HAK_UNLIKELY(k == NULL)) return false;
  HAK_ASSERT(hak_heap_cache_has_heap(k) && code < HAK_CODES);
  bool room = hak_magazine_push(&k->top[code], p);
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
