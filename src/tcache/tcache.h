/* What a thread owns besides its TLS: magazines, their stacks, counters; and its life.
 *
 * A thread's first slow paths are served by its arena, block by block, so that a thread that allocates a little holds
 * nothing. Then it gets a cache, which it gives back when it ends. What it holds, it hands out latest first; what that
 * has no room for goes back to its slabs, from which blocks come by address. Nobody but the owner touches a cache,
 * except a fork's child (for threads that are gone), statistics, which read the counters that the owner publishes at
 * its slow paths (relaxed), and a drainer, which takes what a sleeping thread keeps (reach.c). */
#ifndef HAK_TCACHE_TCACHE_H
#define HAK_TCACHE_TCACHE_H

#include "pool/budget.h"
#include "pool/meta.h"
#include "tcache/cache.h"
#include "tcache/counted.h"

/* Blocks that a cache takes from slabs first; then twice as many each time. */
#define HAK_BATCH_FIRST 4

/* Counted only while front metrics are on. Relaxed; written by the owner. */
typedef struct hak_cache_counts {
  uint64_t hits, misses, refills, flushes;
} hak_cache_counts;

/* Counted only while requests are noted. Relaxed; written by the owner. */
typedef struct hak_request_counts {
  uint64_t count, bytes;
} hak_request_counts;

typedef struct hak_tcache_bin {
  void **loaded; /* magazine, or NULL */
  void **top;    /* its last filled slot, where all calls take the slow path, or the cache is put aside */
  void **full;   /* full magazines, linked through slot 0, newest first */
  uint16_t full_count;
  uint16_t full_low;  /* least full_count since the last decay */
  uint16_t pinned;    /* magazines that may be stacked; HAK_PINNED_NOT: as many as the thread has room for */
  uint8_t batch;      /* blocks that the next refill takes from slabs */
  uint8_t capacity;   /* of the loaded magazine, in blocks; full ones have all of hak_magazine_usable */
  uint16_t slow_paths; /* refills and overflows since the last decay, or since the capacity grew */
  uint32_t published; /* relaxed, read by any thread: blocks at the last slow path */
  uint8_t sentinel;   /* the slot of the loaded magazine that a drainer emptied; 0: none */
  /* The block that was in it, where the program may have it; NULL: all up to that slot are the drainer's */
  void *displaced;
} hak_tcache_bin;

/* What two boxes above keep with a thread's cache; they alone look into it. */
struct hak_quarantine;
struct hak_thread_heaps;

typedef struct hak_tcache {
  /* Owner and drainer, see reach.c. */
  void ***top;      /* hak_tls.top of the thread that has the cache. By page map code. Written by the owner */
  uint32_t busy;    /* written by the owner: how many slow paths it is in */
  uint32_t claimed; /* reach lock: 1: the owner waits before its next slow path */
  /* A bin has a sentinel. Written by the owner in a slow path, or by the drainer that found it in none */
  uint32_t has_sentinel;
  bool waiting;     /* written by the owner: for the drainer */
  bool all_slow;    /* written by the owner: every call has to take the slow path */
  uint64_t reached_ms; /* reach lock: exit_ms when a drainer that goes by the clock took from it last */
  /* The owner; or the drainer that found it in no slow path. */
  size_t stacked_bytes; /* of all full magazines */
  hak_meta *spares;     /* spare metadata blocks */
  uint32_t spare_count;
  /* The owner alone. */
  uint32_t ending_rounds; /* life/thread.c */
  uint64_t attached_ms;   /* when the thread got it */
  uint64_t decayed_ms;    /* when the cache was decayed last */
  uint64_t random;        /* state of hak_tcache_random; 0: none yet */
  hak_count_visit last_count;
  struct hak_quarantine *quarantine; /* harden/quarantine.h; NULL: none yet */
  /* The owner; relaxed, since any thread reads them. */
  uint64_t slow_count;
  uint64_t exit_ms;               /* the last slow exit */
  hak_cache_counts *counts;       /* constant; NULL: front metrics are off */
  hak_request_counts *requests;   /* constant; NULL: requests are not noted */
  struct hak_thread_heaps *heaps; /* heap/cache.h; NULL: none yet. Set by release */
  /* The registry's lock. */
  struct hak_tcache *next;        /* of all caches ever made … */
  struct hak_tcache *next_unused; /* … and of those nobody has */
  bool used;
  hak_tcache_bin bins[HAK_CLASS_COUNT];
} hak_tcache;

/* The owner's slow paths stand between these two; they may nest, in signal handlers. No lock may be held that a drainer
 * takes: those of arenas and below. */
/* Waits for a drainer, and restores the magazines that have a sentinel. */
HAK_COLD void hak_tcache_restore(hak_tcache *cache);
HAK_INLINE bool hak_tcache_must_restore(const hak_tcache *t) {
  return (hak_load_acquire(&t->claimed) | hak_load_relaxed(&t->has_sentinel)) != 0;
}
HAK_INLINE void hak_tcache_enter(hak_tcache *t) {
  hak_add_own(&t->busy, 1);
  HAK_IN_ORDER(); /* the drainer's barrier is the other half */
  if (HAK_UNLIKELY(hak_tcache_must_restore(t))) hak_tcache_restore(t);
}
HAK_INLINE void hak_tcache_leave(hak_tcache *t) {
  HAK_ASSERT(t->busy > 0);
  HAK_RELEASE_OWN();
  hak_add_own(&t->busy, 0u - 1);
}

/* Of the loaded magazine. */
HAK_INLINE void **hak_tcache_empty_top(const hak_tcache_bin *b) {
  return hak_magazine_empty_top_of(b->loaded, b->capacity);
}

/* A thread has it, and not all of its calls take the slow path. */
HAK_INLINE bool hak_tcache_is_plain(const hak_tcache *t) { return t != NULL && !t->all_slow; }
HAK_INLINE void ***hak_tcache_top_of(hak_tcache *t, unsigned class_code) {
  return t->all_slow ? &t->bins[class_code].top : &t->top[class_code + 1];
}

/* Puts what other threads keep into slabs; of those that had no slow exit since then, once until they have one
 * (idle_since_ms UINT64_MAX: of all). `to_the_end`: unless that is so much that the rest is for the next call. A thread
 * in a slow path keeps all, and any thread the last block of a class. Nothing where the system has no membarrier.
 * Returns how many blocks. Caller holds no lock. */
size_t hak_tcache_reach(uint64_t idle_since_ms, bool to_the_end, hak_deferred *deferred);

/* Gives the calling thread, which has none, a cache. `all_slow`: every call takes the slow path. NULL: out of
 * memory. */
hak_tcache *hak_tcache_attach(bool all_slow);
/* Empties the calling thread's cache into slabs, and takes it from the thread, which has ended. */
void hak_tcache_detach(hak_deferred *deferred);

/* While a thread is forbidden to allocate and to free, every call of it takes a slow path, without its cache, and each
 * request ends its countdown. */
void hak_tcache_put_aside(void);
void hak_tcache_take_back(void);

/* A block of the class, from the cache or through it; NULL: out of memory. */
void *hak_tcache_alloc(hak_tcache *cache, unsigned class_code, hak_deferred *deferred);
/* A block of the class comes back. */
void hak_tcache_free(hak_tcache *cache, void *p, unsigned class_code, hak_deferred *deferred);
/* Whether a full magazine is there for the next refill, stacked or in the depot, or a block that is kept: a hint. */
bool hak_tcache_has_magazine(const hak_tcache *cache, unsigned class_code);
/* Any of the loaded magazine's blocks of the class; NULL when the cache has none, or all calls take the slow path. */
void *hak_tcache_pop_any(unsigned class_code);
/* Fills the cache of a class with `blocks` blocks, or a few more. */
void hak_tcache_prewarm(hak_tcache *cache, unsigned class_code, unsigned blocks, hak_deferred *deferred);

/* Puts everything cached back into slabs. */
void hak_tcache_flush(hak_tcache *cache, hak_deferred *deferred);
/* What was not used since the last call goes to its slabs, half of it; classes that were idle keep nothing. `all`: nor
 * do the others keep a stack. */
void hak_tcache_decay(hak_tcache *cache, bool all, hak_deferred *deferred);

/* A number nobody can predict who has not seen many of them. */
uint64_t hak_tcache_seed(hak_tcache *cache);
HAK_INLINE uint64_t hak_tcache_random(hak_tcache *cache) {
  uint64_t x = HAK_LIKELY(cache->random != 0) ? cache->random : hak_tcache_seed(cache);
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  cache->random = x;
  return x * 0x2545f4914f6cdd1du; /* any odd constant: the state itself stays inside */
}

/* Counts a request of `size` bytes for the class. Only while requests are noted. */
void hak_tcache_note_request(unsigned class_code, size_t size);
/* How many threads have a cache; a hint. */
size_t hak_tcache_threads(void);
/* Sums over all caches, those of ended threads included; and how many there are, and are in use. */
typedef struct hak_tcache_sums {
  uint64_t caches, used, slow_paths;
} hak_tcache_sums;
void hak_tcache_sum(hak_tcache_sums *sums);
/* Publishes how many blocks the calling thread caches, as its slow paths do for one class. */
void hak_tcache_publish(void);
/* The same of one class. published: blocks; requests: of threads without a cache too. */
typedef struct hak_class_sums {
  uint64_t published;
  hak_cache_counts counts;
  hak_request_counts requests;
} hak_class_sums;
hak_class_sums hak_tcache_sum_class(unsigned class_code);

/* Whether `is` says yes to each lock of this box and the arenas. */
bool hak_tcache_all_locks(bool (*is)(hak_lock *lock));

/* fork: this box's and the arenas' locks in rank order; fork_child, while they are held, forgets the other threads'
 * caches. */
void hak_tcache_fork_lock(void);
void hak_tcache_fork_unlock(void);
void hak_tcache_fork_child(void);
/* In the child of a fork that took no lock: a drainer of the parent is not there. */
void hak_tcache_fork_child_alone(void);

/* --- between the files of this box --- */

extern hak_lock hak_tcache_reach_lock; /* one drainer at a time, heaps' (heap/cache.c) too; before the registry's */
#define HAK_PINNED_NOT UINT16_MAX
HAK_INLINE bool hak_tcache_is_pinned(const hak_tcache_bin *b) { return b->pinned != HAK_PINNED_NOT; }
/* Of all caches, which `next` links; stored with a release, under the registry lock */
extern hak_tcache *hak_tcache_latest;
HAK_INLINE hak_tcache *hak_tcache_made(void) { return hak_load_acquire(&hak_tcache_latest); }

#endif
