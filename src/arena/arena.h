/* The arena box: the shared caches and slabs that threads on one CPU use, one arena a concurrency id.
 *
 * For each class an arena has one lock, a set of slabs, and a depot: full magazines of their blocks that other arenas'
 * threads freed, on their way back. Blocks of whole spans have no magazines: the set keeps some of their slabs empty.
 * A slab belongs to the arena that made it (tag in its metadata) until it is empty. A
 * block may lie in any thread's cache and in any depot: who owns it is settled when it is flushed into its slab's
 * bitmap.
 *
 * The concurrency id is only a hint: a thread that runs on another CPU a moment later takes another lock than it might
 * have, and nothing else follows. Locks of bins are taken one at a time; ranks: these < pool < metadata blocks. No
 * function here makes a system call or reports misuse while it holds a lock: both are returned in hak_deferred. */
#ifndef HAK_ARENA_ARENA_H
#define HAK_ARENA_ARENA_H

#include <string.h>

#include "os/cpu.h"
#include "slab/slab.h"

#define HAK_ARENAS_MAX 64

/* A magazine: 128 slots aligned to 1,024 bytes. The usable ones are the last, as many as its capacity; the slot below
 * them holds NULL while the magazine is loaded. Slot 0 links full ones. */
#define HAK_MAGAZINE_SLOTS 128
#define HAK_MAGAZINE_BYTES (HAK_MAGAZINE_SLOTS * sizeof(void *))
#define HAK_MAGAZINE_BLOCK_BYTES (256 * HAK_KIB) /* of large blocks a magazine holds fewer */

typedef struct hak_arena_bin {
  HAK_ALIGNED(HAK_CACHE_LINE) hak_lock lock;
  uint32_t full_count; /* read by any thread, as a hint */
  uint32_t full_low;  /* least full_count since the depot was shrunk last: what nobody needed */
  void **full;        /* newest first */
  hak_slab_set slabs;
  uint32_t spare;     /* relaxed, read by any thread: there may be free blocks */
} hak_arena_bin;

typedef struct hak_arena {
  uint32_t id;
  hak_arena_bin bins[HAK_CLASS_COUNT];
} hak_arena;

/* Relaxed: bytes of blocks in all depots and of their magazines. */
extern size_t hak_depot_bytes;

/* The capacity of a full magazine of the class, and the most of a loaded one; fixed from hak_arena_start on. */
extern HAK_HIDDEN uint8_t hak_magazine_usable[HAK_CLASS_COUNT];
/* The slot below the first usable one: of a magazine with that capacity; of a full one of the class. */
HAK_INLINE void **hak_magazine_empty_top_of(void **magazine, unsigned capacity) {
  return magazine + (HAK_MAGAZINE_SLOTS - 1) - capacity;
}
HAK_INLINE void **hak_magazine_empty_top(void **magazine, unsigned class_code) {
  return hak_magazine_empty_top_of(magazine, hak_magazine_usable[class_code]);
}

/* The short steps of whoever has one to himself: *top is its last filled slot; who counts reads it, relaxed. NULL: it
 * is empty; false: it is full, or p was put there last. */
HAK_INLINE void *hak_magazine_pop(void ***top) {
  void **slot = *top, *p = *slot;
  if (HAK_LIKELY(p != NULL)) hak_store_folded(top, slot - 1);
  return p;
}
HAK_INLINE bool hak_magazine_push(void ***top, void *p) {
  void **slot = *top;
  if (HAK_UNLIKELY(((uintptr_t)(slot + 1) & (HAK_MAGAZINE_BYTES - 1)) == 0) || (HAK_CHECKS && HAK_UNLIKELY(*slot == p)))
    return false;
  slot[1] = p;
  hak_store_folded(top, slot + 1);
  return true;
}
/* Takes the oldest `count` blocks out of a magazine with that empty top. */
HAK_INLINE void hak_magazine_take_oldest(void **empty, void ***top, void **out, unsigned count) {
  HAK_ASSERT(count > 0 && count <= *top - empty);
  memcpy(out, empty + 1, count * sizeof *out);
  hak_store_relaxed(top, *top - count);
  memmove(empty + 1, empty + 1 + count, (size_t)(*top - empty) * sizeof *out);
}

void hak_arena_start(void);
uint32_t hak_arena_count(void);
hak_arena *hak_arena_at(uint32_t index);
/* Of the CPU the thread runs on; made where there is none yet. Never NULL. */
hak_arena *hak_arena_current(void);

/* From now on there is an arena of sampled blocks, whose slabs the page map marks; no thread's current one, nobody's
 * victim. */
void hak_arena_start_sampled(void);
/* A block of the class from it; NULL: out of memory. hak_arena_free takes it back. */
void *hak_arena_alloc_sampled(unsigned class_code);

/* A full magazine of the class from the arena's depot; NULL: the depot is empty. */
void **hak_arena_take_magazine(hak_arena *arena, unsigned class_code);
/* Up to `wanted` blocks from the arena's slabs, as hak_slab_set_take gives them; else from depots and other arenas;
 * else from a new slab. 0: out of memory. */
unsigned hak_arena_take(hak_arena *arena, unsigned class_code, void **out, unsigned wanted, hak_deferred *deferred);

/* Whether the block that a full magazine was given last is of another arena than the calling thread's. */
bool hak_arena_is_foreign(void *const *magazine, unsigned class_code);
/* Puts a full magazine into the depot of the arena that owns that block. False: the depots hold all they may, or it is
 * no block. */
bool hak_arena_put_magazine(void **magazine, unsigned class_code);
/* Puts blocks into their slabs, each to its own arena. */
void hak_arena_flush(void *const *blocks, unsigned count, unsigned class_code, hak_deferred *deferred);

/* The short ways of blocks of whole spans, which no thread caches: one that the current arena keeps; and a block that
 * is freed, which its own keeps; its page map code is the class's. NULL or false: take the long way. */
void *hak_arena_take_kept(unsigned class_code);
bool hak_arena_keep(hak_span *slab, void *p, unsigned class_code);
/* The spans that all arenas keep so: a walk, for who is short of memory. */
size_t hak_arena_kept_bytes(void);
/* One block, for a thread without a cache. */
void *hak_arena_alloc(unsigned class_code, hak_deferred *deferred);
void hak_arena_free(void *p, unsigned class_code, hak_deferred *deferred);

/* Makes an extent, which can be resized in place, of the program's block p, of a class of whole spans, in that slab.
 * False: p is none. */
bool hak_arena_make_extent(hak_span *slab, const void *p, unsigned class_code);
/* Flushes what nobody took from the depots since the last call; `all`: everything. Empty slabs go to the pool. */
void hak_arena_shrink(hak_arena *arena, bool all, hak_deferred *deferred);
/* The same of all arenas, everything: slabs too that another arena's depot empties. */
void hak_arena_shrink_all(hak_deferred *deferred);

/* At the program's end: flushes so many magazines out of depots at most, the latest first, so that wrong frees show. */
void hak_arena_check_depots(unsigned magazines, hak_deferred *deferred);

/* Whether `is` says yes to each lock of this box. */
bool hak_arena_all_locks(bool (*is)(hak_lock *lock));

/* fork: all locks of this box in rank order. */
void hak_arena_fork_lock(void);
void hak_arena_fork_unlock(void);

#endif
