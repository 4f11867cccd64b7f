/* The thread cache: the fast path of malloc and free, a few instructions each, shared by every entry point.
 *
 * Each thread has, in initial-exec TLS, for every page map code a pointer `top` to the last filled slot of its loaded
 * magazine of that class. The slot below a magazine's lowest usable one holds NULL: a pop that finds NULL is an empty
 * magazine. A magazine ends at a multiple of 1,024 bytes: a push whose slot would lie there is a full one. Every code
 * that is no class of the thread's (free memory, extents, blocks of whole spans, all codes of a thread without a cache)
 * has its top at the last slot of a read-only empty magazine, so both tests lead to the slow path, which sorts it out.
 *
 * A block of any arena goes into the magazine of whoever frees it. Only the owning thread writes its TLS; there is no
 * lock and no fence here. A drainer that takes what a sleeping thread keeps reads its tops, and puts NULL into slots of
 * its magazines (reach.c): so slot and top are accessed once each, in this order. */
#ifndef HAK_TCACHE_CACHE_H
#define HAK_TCACHE_CACHE_H

#include "arena/arena.h"

typedef enum hak_thread_phase {
  HAK_THREAD_FRESH, /* no cache yet: its arena serves it block by block, until it has come by often enough */
  HAK_THREAD_CACHED,
  HAK_THREAD_ENDED, /* its destructor has run: its arena serves it */
  HAK_THREAD_FORBIDDEN, /* to allocate and to free: its cache is put aside, and its arena serves it */
} hak_thread_phase;

/* What countdowns are drawn by. */
typedef struct hak_count_rates {
  float guard_rate, profile_bytes; /* guards of a request; bytes of a sample. While no distance has grown; 0: none */
} hak_count_rates;

/* Of counted allocation. */
typedef struct hak_count_state {
  uint64_t random;                     /* 0: nothing is drawn yet */
  uint16_t guard_shift, profile_shift; /* by what powers of two the samplers' distances had grown when it was */
  uint32_t generation;                 /* of the rates that it was drawn by; 0: by none */
  hak_count_rates rates;
  int64_t given; /* all countdowns so far, whole: what the last one lacks of it has been asked for */
} hak_count_state;

struct hak_tcache;

/* Only the thread writes them. */
typedef struct hak_thread {
  /* The fast path; slow paths set them. */
  void **top[HAK_CODES]; /* first: an index alone addresses it */
  /* Bytes that may be asked for before the slow path looks whether to take a sample (counted.h); negative: it has
   * to. */
  int64_t countdown;
  /* counted.c */
  hak_count_state count;
  /* The thread's life: tcache.c, aside.c, life/thread.c. */
  struct hak_tcache *cache;
  struct hak_tcache *aside; /* while forbidden, with the phase of before */
  uint16_t phase, phase_aside;
  uint16_t calls; /* slow paths without a cache */
  /* heap/default.c */
  bool in_heap; /* what malloc serves comes from a heap, the thread's default: each request ends the countdown */
  /* The program: hakmem_label_set. */
  uint64_t label; /* of what the thread allocates, for the heap profile; 0: none */
  struct hak_heap_cache *heap_cache; /* of the heap used last; NULL: none, or no `cache` */
} hak_thread;

extern HAK_HIDDEN HAK_TLS hak_thread hak_tls;

/* The read-only empty magazine. Its last slot is where idle tops point. */
extern HAK_HIDDEN void *const hak_null_magazine[HAK_MAGAZINE_SLOTS];
#define HAK_NULL_TOP ((void **)&hak_null_magazine[HAK_MAGAZINE_SLOTS - 1])

/* Pops a block of the code's class, or NULL when the cache has none. */
HAK_INLINE void *hak_tcache_pop_code(unsigned code) {
  void **top = hak_tls.top[code];
  void *p = *top;
  HAK_IN_ORDER();
  if (HAK_LIKELY(p != 0)) hak_tls.top[code] = top - 1;
  return p;
}
HAK_INLINE void *hak_tcache_pop_class(unsigned class_code) { return hak_tcache_pop_code(class_code + 1); }

/* What a request takes from the countdown: the sum that its class is looked up with, so that it costs nothing to
 * have. */
#define HAK_COUNTED_BYTES(size) ((int64_t)((size) + HAK_GRANULE - 1))
/* Counts a request. False: take the slow path, which looks whether a sample is due. */
HAK_INLINE bool hak_count_request(size_t size) { return (hak_tls.countdown -= HAK_COUNTED_BYTES(size)) >= 0; }

/* Counts a request of at most HAK_SMALL_MAX bytes and pops a block for it; NULL: take the slow path. Larger ones are
 * not counted. */
HAK_INLINE void *hak_tcache_pop(size_t size) {
  if (HAK_UNLIKELY(size > HAK_SMALL_MAX)) return 0;
  int64_t bytes = HAK_COUNTED_BYTES(size);
  HAK_OPAQUE(bytes); /* else the sum is made twice, in one instruction more */
  hak_tls.countdown -= bytes;
  if (HAK_UNLIKELY(hak_tls.countdown < 0)) return 0;
  return hak_tcache_pop_code(hak_code_of_granules[(size_t)bytes / HAK_GRANULE]);
}

/* Page map code of an address in the main region, and its offset there. Elsewhere HAK_CODE_NONE. */
HAK_INLINE size_t hak_tcache_code(const void *p, size_t *offset) {
  uintptr_t base = hak_load_folded(&hak_main_base);
  *offset = (uintptr_t)p - base;
  if (HAK_UNLIKELY(*offset >= hak_load_folded(&hak_main_limit))) return HAK_CODE_NONE;
  return hak_region_main_code(base, *offset);
}

/* Pushes a block under its code if that is a class and the magazine has room. */
HAK_INLINE bool hak_tcache_push_code(void *p, size_t code) {
  void **top = hak_tls.top[code];
#if HAK_CHECKS
  /* The block freed last: the slow path reports the double free. */
  if (!HAK_HARD(CHECKED_FREE) && HAK_UNLIKELY(*top == p)) return false;
#endif
  top++;
  if (HAK_UNLIKELY(((uintptr_t)top & (HAK_MAGAZINE_BYTES - 1)) == 0)) return false;
  *top = p;
  HAK_IN_ORDER();
  hak_tls.top[code] = top;
  return true;
}

#endif
