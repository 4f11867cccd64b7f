/* The heap box: heaps beside the main one (include/hakmem/heap.h), each with memory, limit and counts of its own.
 *
 * What a heap has comes in three forms. Its first blocks, of each class HAK_HEAP_PIECE_BYTES, are bumped, whatever
 * their size, into *pieces* of 4 KiB, of spans that heaps share (pieces.c): so a heap of 5 KB holds two. Further blocks
 * of a class come from slabs of the heap (blocks.c), as an arena's do. Blocks above HAK_SHARED_MAX are whole spans, or
 * mappings (blocks.c). All spans of a heap have the page map code HAK_CODE_SAMPLED, which no thread cache of the main
 * heap takes; the tag of their first span has the heap's index. A thread that uses a heap often has a cache for it
 * (cache.c).
 *
 * Counting: `taken` is what has left pieces and slabs, in thread caches or the program's: what caches have of it is
 * told by where the tops of their magazines stand. `out` is what of it is charged, to the limits of the heap and all
 * above it, before a block is taken.
 *
 * Locks, by rank: the registry's, a bin's, the heap's own, the pieces', then the pool's. A thread holds its cache
 * against thieves (hak_heap_enter) before it takes the first. */
#ifndef HAK_HEAP_HEAP_H
#define HAK_HEAP_HEAP_H

#include "hakmem/heap.h"
#include "large/huge.h"
#include "tcache/tcache.h"

#define HAK_HEAP_NAME 64 /* with the zero */
#define HAK_HEAPS_MAX ((size_t)1 << 19)

#define HAK_HEAP_BINS (HAK_META_SIZE / sizeof(hak_slab_set)) /* of a metadata block */
#define HAK_HEAP_BIN_BLOCKS ((HAK_CLASS_COUNT + HAK_HEAP_BINS - 1) / HAK_HEAP_BINS)

/* Pieces of a span that are adjacent and one heap's; of larger blocks a piece has one. */
typedef struct hak_piece {
  struct hak_piece *next, *prev; /* of the heap; the heap's lock */
  hak_span *span;
  uint32_t owner;                   /* 0: free */
  uint16_t used : 12, count : 4;    /* granules that are bumped; pieces, 0: it belongs to the one before */
  uint16_t live;                    /* blocks */
} hak_piece;

typedef hakmem_heap hak_heap;

/* Of the table of heaps by index. Entries stay: a thread may ask of one whose heap has ended, and whose memory is
 * something else. */
typedef struct hak_heap_entry {
  hak_heap *heap; /* release. An odd number: none; the next free entry, once it may be another's */
  uint64_t life;  /* relaxed: its; 0: none */
} hak_heap_entry;

struct hakmem_heap {
  /* Read by each call, and seldom written: one cache line. */
  uint64_t id;      /* never used again */
  /* Another one from each reset on, and never that of another heap; 0: this is no heap, or one that is being reset */
  uint64_t life;
  uint32_t owner, flags; /* its index, as tags have it */
  bool is_deleted;  /* relaxed: its blocks are the main heap's, and it ends with the last */
  bool is_arena;    /* jemalloc's: a block that realloc moves leaves it. Set before a block is anyone's */
  uint32_t near_limit; /* hak_heap_near */
  size_t limit;     /* relaxed; SIZE_MAX: none */
  /* The callback; registry lock, read by any thread, relaxed. `share`: bytes up to which it is not due; SIZE_MAX: there
   * is none; HAK_HEAP_CALLED: it was called, and the sum has not fallen since, which whoever frees finds out. */
  size_t share;
  uint64_t near_since_ms, near_refused; /* relaxed; of the last drain: when it began, and `refused` then */
  hak_heap *parent; /* registry lock */
  /* Written by each thread that charges or takes: a line of their own. */
  size_t out __attribute__((aligned(64))); /* relaxed, with those below it */
  size_t taken, peak; /* relaxed; bytes of blocks, those in caches too; and the most that was live */
  /* For the peak, relaxed: what a thread that took memory had cached when that was looked at, and up to how much taken
   * it is not looked at again */
  size_t cached, looked_until;
  uint64_t blocks, requests, refused; /* relaxed; blocks as `taken`, requests without those that caches know of */
  /* Registry lock. */
  hak_heap *first_child __attribute__((aligned(64))); /* relaxed */
  hak_heap *next_sibling, *prev_sibling, *next, *prev;
  /* Walks that are at it, and heaps whose `lasting` it is: until none is, it keeps its place in the list, and its
   * memory */
  uint32_t shown;
  bool is_unlisted, is_released; /* it has left the list; its index is another's */
  hak_heap *lasting; /* the parent that it had, where it ended while it was shown */
  hak_heap *next_ended; /* relaxed; while it is in the stack of deleted heaps that have no block any more … */
  bool has_ended;   /* … relaxed; it is, or was */
  unsigned percent; /* of the callback, as the next two */
  void (*callback)(hakmem_heap *heap, size_t live, void *context);
  void *context;
  struct hak_heap_cache *caches; /* threads' caches of it; registry lock, relaxed */
  /* A fork's child: blocks that did not count are lost in caches of the parent's threads; registry lock */
  bool has_lost;
  /* The heap's own lock (hak_heap_lock). */
  hak_piece *pieces, *current;
  uint32_t piece_count;
  uint16_t locked_bins; /* all its locks: of which bins hak_heap_take_locks took them */
  uint32_t span_count, span_capacity; /* entries of `spans` */
  uint32_t spans_kept, span_levels;   /* entries when stale ones went last; blocks above one of entries */
  void *spans;       /* first ones of slabs and large blocks, a table; some may be gone (blocks.c) */
  size_t mapped;     /* relaxed: bytes in mappings of their own that are charged */
  hak_huge_set mappings; /* the lock of huge blocks */
  hak_slab_set *bins[HAK_HEAP_BIN_BLOCKS]; /* release once they can be used; each under its lock (hak_heap_bin_lock) */
  uint16_t bumped[HAK_CLASS_COUNT]; /* granules that went into pieces */
  char name[HAK_HEAP_NAME];
};

/* A request was refused: what caches have of the heap, and of those below it, does not count until the sum has fallen.
 * DRAINED: none of it does, and what is refused now is refused for good. CREDITS: there is some room since, and caches
 * may have a credit: bytes that they have charged for the next blocks. STORM: they may, since very many requests were
 * refused; until the next drain is due, a request is refused without a look at others' credits. */
enum hak_heap_near { HAK_HEAP_NOT_NEAR, HAK_HEAP_DRAINING, HAK_HEAP_DRAINED, HAK_HEAP_CREDITS, HAK_HEAP_STORM };
/* `near_limit` has that and, above these bits, how often DRAINED has ended since: so that who was in one drain does not
 * end another. */
#define HAK_HEAP_NEAR_STATE 7u
#define HAK_HEAP_NEAR_STEP 8u

#define HAK_HEAP_CALLED (SIZE_MAX - 1)
HAK_INLINE bool hak_heap_was_called(const hak_heap *h) { return hak_load_relaxed(&h->share) == HAK_HEAP_CALLED; }

#define HAK_HEAP_PIECE_BYTES ((size_t)8192) /* of a class; then it has slabs */

HAK_INLINE uint32_t hak_heap_index(const hak_heap *h) { return h->owner - HAK_OWNER_HEAPS; }

/* --- registry.c: which heaps there are, and what counts to their limits --- */

extern hak_lock hak_heaps_lock;
/* Heaps share their locks: by index a heap has one of its own, one for each of its bins, and one that is held while it
 * ends, which comes before the registry's. A fork takes them all, whatever the number of heaps, and touches no heap.
 * Neighbours by index have different ones. */
#define HAK_HEAP_LOCKS 256
typedef struct hak_shared_lock {
  hak_lock lock;
} __attribute__((aligned(64))) hak_shared_lock; /* a cache line: who has one does not disturb who has the next */
extern hak_shared_lock hak_heap_own_locks[HAK_HEAP_LOCKS], hak_heap_bin_locks[HAK_HEAP_LOCKS];
HAK_INLINE hak_lock *hak_heap_lock(const hak_heap *heap) {
  return &hak_heap_own_locks[hak_heap_index(heap) % HAK_HEAP_LOCKS].lock;
}
/* Bins of one heap follow each other, and so have different ones. */
HAK_INLINE uint32_t hak_heap_bin_place(const hak_heap *heap, unsigned class_code) {
  return (hak_heap_index(heap) * (HAK_CLASS_COUNT | 1u) + class_code) % HAK_HEAP_LOCKS;
}
HAK_INLINE hak_lock *hak_heap_bin_lock(const hak_heap *heap, unsigned class_code) {
  return &hak_heap_bin_locks[hak_heap_bin_place(heap, class_code)].lock;
}
/* Held while a heap, and those below it, lose their memory, and it begins another life: a fork has all of that or
 * nothing. No function of the program runs meanwhile. */
hak_lock *hak_heap_end_lock(const hak_heap *heap);

/* The heap of an owner in a tag; NULL: none, or no longer. Whoever holds a block of the heap sees it. */
hak_heap *hak_heap_of_owner(uint32_t owner);
/* NULL: errno says why. */
hak_heap *hak_heap_make(const hakmem_heap_options *options);
/* Whether it is one. Any value may be asked about that was a heap. */
bool hak_heap_exists(const hak_heap *heap);
/* Takes the heap, which has no child, out of the registry; is_top: and out of the sums of those above it, in which it
 * counts with all that were below. Its index is another's from the second call on, … */
void hak_heap_end_life(hak_heap *heap, bool is_top, bool stays);
void hak_heap_release(hak_heap *heap);
/* … or it stays: it keeps its place in the list, and nobody finds it until it begins another life, empty. */
void hak_heap_begin_life(hak_heap *heap, hak_heap *parent);
/* The heap, which has no child, has no parent and no limit any more, and is listed no more; it ends with its last
 * block. */
void hak_heap_set_deleted(hak_heap *heap);
/* A deleted heap that has no block any more, unlinked; NULL: there is none. */
hak_heap *hak_heap_take_ended(void);
hak_heap_entry *hak_heap_entry_of(const hak_heap *heap);
/* Its heap; NULL: none. */
hak_heap *hak_heap_at_entry(const hak_heap_entry *entry);
/* Bins', and the heap's own. */
void hak_heap_take_locks(hak_heap *heap);
void hak_heap_drop_locks(hak_heap *heap);
/* The next heap by age after the one, NULL: the first; also a deleted one. NULL: there is none. */
hak_heap *hak_heap_next_locked(const hak_heap *heap);
/* The next heap of the tree below `top`, parents first; NULL: it was the last. */
hak_heap *hak_heap_next_below_locked(hak_heap *heap, const hak_heap *top);
/* The same for walks that hold no lock: the heap that is shown stays readable, whoever ends it meanwhile, until it is
 * handed in for the next one. `deleted`: such ones too. Who leaves a walk without either keeps 1 KiB from being used
 * again, and nobody waiting. */
hak_heap *hak_heap_show_next(hak_heap *shown, bool deleted);
void hak_heap_show_end(hak_heap *shown);
/* Of a walk under the registry lock, which it drops for a moment: `at` is shown in the place of *shown, NULL: none was,
 * and returned. */
hak_heap *hak_heap_rest_at_locked(hak_heap *at, hak_heap *shown);
size_t hak_heap_count(void); /* without deleted ones */
bool hak_heap_some(void);    /* of either */
uint32_t hak_heap_indices(void); /* indices up to which heaps have theirs */

HAK_INLINE size_t hak_heap_most(const hak_heap *heap) {
  return hak_min_size(hak_load_relaxed(&heap->limit), hak_load_relaxed(&heap->share));
}
HAK_INLINE bool hak_heap_has_room(const hak_heap *heap, size_t out, size_t bytes) {
  size_t most = hak_heap_most(heap);
  return out <= most && bytes <= most - out;
}
/* Charges bytes to the heap and all above it. NULL: done; else nothing is, and the heap is returned whose limit is too
 * low, or whose callback is due. */
hak_heap *hak_heap_charge_all(hak_heap *heap, size_t bytes);
HAK_INLINE hak_heap *hak_heap_charge(hak_heap *heap, size_t bytes) {
  size_t out = hak_load_relaxed(&heap->out);
  bool done = HAK_LIKELY(heap->parent == NULL) && HAK_LIKELY(hak_heap_has_room(heap, out, bytes)) &&
              HAK_LIKELY(__atomic_compare_exchange_n(&heap->out, &out, out + bytes, false, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED));
  return done ? NULL : hak_heap_charge_all(heap, bytes);
}
/* Whom that would return now. */
hak_heap *hak_heap_refuser(hak_heap *heap, size_t bytes);
/* Whether a block for which so many bytes are to be charged is refused for good, without a look at any thread: while
 * the heap whose limit is in the way is drained, or in a storm, and no callback is due. It counts then. */
bool hak_heap_refuses(hak_heap *heap, size_t bytes);
/* The heap whose limit is in the way is in a storm of refusals: no drain is due yet. */
bool hak_heap_is_in_storm(const hak_heap *heap);
void hak_heap_uncharge(hak_heap *heap, size_t bytes);
/* The same of bytes that were charged and did not become a block: the sum has not fallen by it, and no callback is due
 * again. */
void hak_heap_charge_back(hak_heap *heap, size_t bytes);
/* Bytes that could be charged now. */
size_t hak_heap_room(const hak_heap *heap);
/* Whether caches may have a credit of the heap's; registry lock: from now on, where there is some room again. */
bool hak_heap_gives_credit(const hak_heap *heap);
bool hak_heap_begin_credit_locked(hak_heap *heap);
/* Bytes from which on the callback is due; SIZE_MAX: there is none. */
size_t hak_heap_share(const hak_heap *heap);
HAK_INLINE bool hak_heap_is_within(const hak_heap *heap, const hak_heap *above) {
  while (heap != NULL && heap != above) heap = heap->parent;
  return heap != NULL;
}
/* Both raise the peak, if more is live now: as told by what is taken, less what caches have; and `live`. */
void hak_heap_raise_peak_slowly(hak_heap *heap, size_t taken);
void hak_heap_set_peak(hak_heap *heap, size_t live);
HAK_INLINE void hak_heap_raise_peak(hak_heap *heap, size_t taken) {
  size_t peak = hak_load_relaxed(&heap->peak);
  if (taken <= peak) return;
  /* Without caches all that is taken is live */
  bool done = HAK_LIKELY(hak_load_relaxed(&heap->caches) == NULL) &&
              HAK_LIKELY(__atomic_compare_exchange_n(&heap->peak, &peak, taken, false, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED));
  if (!done) hak_heap_raise_peak_slowly(heap, taken);
}
/* So many blocks, of so many bytes, leave the heap's memory, and come back. */
HAK_INLINE void hak_heap_note_taken(hak_heap *heap, unsigned blocks, size_t bytes) {
  size_t taken = hak_add_relaxed(&heap->taken, bytes);
  hak_add_relaxed(&heap->blocks, blocks);
  hak_heap_raise_peak(heap, taken);
}
void hak_heap_note_put(hak_heap *heap, unsigned blocks, size_t bytes);
/* One that is the program's at once. */
HAK_INLINE void hak_heap_note_served(hak_heap *heap, size_t bytes) {
  hak_heap_note_taken(heap, 1, bytes);
  hak_add_relaxed(&heap->requests, 1);
}

/* How a request ended. */
typedef struct hak_heap_try {
  void *p;            /* NULL: no */
  hak_heap *refuser;  /* the heap whose limit, or callback, is in the way; NULL: memory is out */
} hak_heap_try;

/* --- pieces.c; the heap's lock --- */

#define HAK_PIECE_SIZE ((size_t)4096)
#define HAK_PIECES_MOST (HAK_SHARED_MAX / HAK_PIECE_SIZE) /* adjacent ones that a block may have */
/* What of a class goes into pieces, with the size of the class, which is what hakmem_good_size says. Aligned classes
 * too, up to HAK_PIECE_SIZE: the alignment is kept there by leaving bytes out. Takes the lock. */
hak_heap_try hak_piece_take(hak_heap *heap, unsigned class_code, size_t align);
/* The block is free again; its bytes. Another verdict than OK: nothing has changed. */
hak_verdict hak_piece_free(hak_heap *heap, hak_span *span, const void *p, size_t *bytes, bool *purge_due);
/* Bytes of the block that starts at p; 0: none does. */
size_t hak_piece_block_size(const hak_span *span, const void *p);
/* Without a lock: of the heap that has the piece; 0: none. */
uint32_t hak_piece_owner(const hak_span *span, const void *p);
void hak_piece_give_all(hak_heap *heap, bool *purge_due);
/* Gives the piece that is bumped back, if it is empty. */
void hak_piece_trim(hak_heap *heap, bool *purge_due);
/* Calls visit for each block of the piece; false: it said so. */
bool hak_piece_visit(const hak_piece *piece, bool (*visit)(void *block, size_t size, void *context), void *context,
                     size_t *count);
uintptr_t hak_piece_address(const hak_piece *piece);
/* What is wrong with it, or NULL: for the heap walk. *live: bytes of its blocks. */
const char *hak_piece_fault(const hak_piece *piece, uint32_t owner, size_t *live);
extern hak_lock hak_pieces_lock;

/* --- blocks.c: spans, slabs, large blocks, and what chooses between them --- */

/* The entry of the heap's spans, if it is still the heap's; else NULL. Under its lock. */
hak_span *hak_heap_span_at(const hak_heap *heap, uint32_t place);

/* Where a block of the size and alignment comes from: a class, or HAK_CLASS_COUNT: none, it is large. */
unsigned hak_heap_class(size_t size, size_t align);
/* Without a cache. */
hak_heap_try hak_heap_take_one(hak_heap *heap, unsigned class_code, size_t align);
hak_heap_try hak_heap_take_large(hak_heap *heap, size_t size, size_t align, bool *zeroed);
/* The short ways: of a class that has no slabs yet, from pieces, and of a heap whose blocks are not cached, from slabs;
 * NULL: take the long one. */
void *hak_heap_take_ready(hak_heap *heap, unsigned class_code);
/* The same of a block of a slab that comes back; `tag` is its slab's. False: take the long way. */
bool hak_heap_put_ready(uint32_t tag, void *p, hak_deferred *deferred);
/* Up to `wanted` blocks of a class that has slabs, for a cache; charges: each is charged. *refuser as above. Under the
 * lock of the class's bin, as the cache's part of it: a fork has both or neither. */
unsigned hak_heap_take_locked(hak_heap *heap, unsigned class_code, void **out, unsigned wanted, bool charges,
                              hak_heap **refuser);
HAK_INLINE bool hak_heap_has_slabs(const hak_heap *heap, unsigned class_code) {
  return hak_load_relaxed(&heap->bumped[class_code]) >= HAK_HEAP_PIECE_BYTES / HAK_GRANULE;
}
/* Blocks come back, under the same lock; not charged: caches had them aside. Where this was the last block of a deleted
 * heap, as of those below, it ends in a slow exit. */
void hak_heap_put_locked(hak_heap *heap, unsigned class_code, void *const *blocks, unsigned count, bool charged,
                         hak_deferred *deferred);
/* The same of large blocks, under the heap's lock. */
void hak_heap_put_large_locked(hak_heap *heap, void *const *blocks, unsigned count, bool charged,
                               hak_deferred *deferred);
/* Bytes of the large block that starts at p; 0: none does, or it is of a piece. */
size_t hak_heap_large_size(const hak_span *span, const void *p);
/* p is in a span of the heap's: class_code is that of its slab, HAK_CLASS_COUNT: it is in none. */
void hak_heap_give_one(hak_heap *heap, hak_span *span, void *p, unsigned class_code, hak_deferred *deferred);
/* A large block of whole spans, in place. .p NULL: unchanged. or_copied: the caller copies what does not grow here. */
hak_heap_try hak_heap_resize_large(hak_heap *heap, hak_span *span, void *p, size_t size, bool or_copied,
                                   hak_deferred *deferred);
/* A mapping by the kernel, which may move it to any page, where that is allowed. .p NULL: unchanged. */
hak_heap_try hak_heap_resize_mapping(hak_heap *heap, void *p, size_t size, bool may_move, bool or_copied);
/* A mapping that is the heap's. */
void hak_heap_give_mapping(hak_heap *heap, void *p, hak_deferred *deferred);
/* In the child of a fork, while all locks are held: what other threads were resizing is charged no more. */
void hak_heap_forget_lost(void);
/* Gives all memory back, blocks or not, but for mappings: how many hak_huge_free_ended has to give back, once no lock
 * is held. */
size_t hak_heap_give_all(hak_heap *heap, hak_deferred *deferred);
/* Whether a deleted heap has had its last block put back. */
extern hak_heap *hak_heaps_ended; /* relaxed */
HAK_INLINE bool hak_heap_some_ended(void) { return HAK_UNLIKELY(hak_load_relaxed(&hak_heaps_ended) != NULL); }
/* Under the lock under which blocks were put back, or all of them: a deleted heap that has none any more is to end. */
void hak_heap_note_end(hak_heap *heap);
/* Gives back what is empty and kept for the next block, of all heaps; or of some, others in each call. Caller holds no
 * lock. */
void hak_heap_trim_all(hak_deferred *deferred);
void hak_heap_trim_some(hak_deferred *deferred);
/* Ends the heaps that were deleted and have no block any more; without `waits`, unless another thread does. Caller
 * holds no lock. */
void hak_heap_end_deleted(bool waits, hak_deferred *deferred);
size_t hak_heap_held(hak_heap *heap);
/* Calls visit for each block that is a mapping; false: it said so. Then for each block, and how many those were. */
bool hak_heap_visit_mappings(const hak_heap *heap, bool (*visit)(void *block, size_t size, void *context),
                             void *context, size_t *count);
size_t hak_heap_visit_blocks(hak_heap *heap, bool (*visit)(void *block, size_t size, void *context), void *context);

/* --- cache.c: what a thread keeps of a heap --- */

/* A block of a class that has slabs from the thread's cache of the heap, or through it; a large one, of its class, from
 * the cache alone. .p NULL and no refuser: there is no cache for it. */
hak_heap_try hak_heap_cached_alloc(hak_tcache *cache, hak_heap *heap, unsigned class_code, hak_deferred *deferred);
/* The class by which a large block is cached; HAK_CLASS_COUNT: it is too large for it. */
unsigned hak_heap_large_class(size_t bytes);
/* False: there is no cache for it. */
bool hak_heap_cached_free(hak_tcache *cache, hak_heap *heap, unsigned class_code, void *p, hak_deferred *deferred);
/* Puts what the calling thread has cached of `within` and the heaps below it back; NULL: of all heaps. */
void hak_heap_flush(const hak_heap *within, hak_deferred *deferred);
/* The same of the other threads' caches. One that its thread is at is waited for, some microseconds; where that thread
 * has no processor half a second, but not at all when all heaps are meant. Nothing is taken without membarrier. */
void hak_heap_flush_others(hak_heap *within, hak_deferred *deferred);
/* Whether the heap's blocks go into caches. */
bool hak_heap_caches(const hak_heap *heap);
/* The heap has refused a request: what caches have of it, and of those below it, is set aside, and counts no more until
 * the sum has fallen. False: but for a cache whose thread has had no processor for half a second. */
bool hak_heap_drain(hak_heap *heap, hak_deferred *deferred);
/* The same of the calling thread's caches alone. */
void hak_heap_drain_own(const hak_heap *heap);
/* Whether caches have something of the heap that does not count, and what they have charged for blocks to come. */
bool hak_heap_has_aside_locked(const hak_heap *heap, size_t *credits);
HAK_INLINE bool hak_heap_is_near(const hak_heap *h) {
  return (hak_load_relaxed(&h->near_limit) & HAK_HEAP_NEAR_STATE) != HAK_HEAP_NOT_NEAR;
}
/* The word, where the heap is drained; 0: it is not. */
HAK_INLINE uint32_t hak_heap_drained(const hak_heap *h) {
  uint32_t word = hak_load_acquire(&h->near_limit);
  return (word & HAK_HEAP_NEAR_STATE) == HAK_HEAP_DRAINED ? word : 0;
}
/* Of the calling thread: what was not used since the last call goes back. Once a decay time. */
void hak_heap_decay(hak_deferred *deferred);
/* The same of other threads' caches. */
void hak_heap_decay_others(hak_deferred *deferred);
/* The thread ends: flushes, and gives the caches' memory back. */
void hak_heap_end_thread(hak_deferred *deferred);
/* What caches have of a heap, NULL: of all, and have served; racy but while they rest. */
typedef struct hak_heap_counts {
  size_t bytes;
  uint64_t blocks, requests;
} hak_heap_counts;
hak_heap_counts hak_heap_cached_locked(const hak_heap *heap);
/* The same of one cache. */
void hak_heap_add_cached(hak_heap_counts *sum, const struct hak_heap_cache *cache);

/* --- figures.c: what statistics show --- */

typedef struct hak_heap_row {
  hakmem_heap_stats stats;
  uint64_t parent; /* its id; 0: none */
  char name[HAK_HEAP_NAME];
} hak_heap_row;

/* Of a heap that stays, or is shown: one that has ended has nothing. Takes time for the heap's spans, and for the heaps
 * below it. */
void hak_heap_read(hak_heap *heap, hakmem_heap_stats *stats);
/* Of one that is shown. False: it has ended. */
bool hak_heap_read_row(hak_heap *heap, hak_heap_row *row);

/* Of all heaps, deleted ones too; `count` is without these, and `refused` of those that there are. */
typedef struct hak_heap_sums {
  uint64_t count, live, blocks, refused;
} hak_heap_sums;
hak_heap_sums hak_heap_sum(void);

/* The thread's default heap, NULL: none, or it is gone, and the thread has none from here on. Only where
 * hak_tls.in_heap. */
hak_heap *hak_heap_default(void);
/* Sets it. False: no memory. cache: the thread's. */
bool hak_heap_set_default(hak_tcache *cache, hak_heap *heap);
/* Blocks of the main heap stay there when they are resized. Between the two the thread has no default; `was`: what the
 * first returned. */
bool hak_heap_suspend(void);
void hak_heap_resume(bool was);
/* Of what is sampled while requests come from it. */
int64_t *hak_heap_countdown(void);

/* fork: the locks of ends, and all others of this box in rank order. */
void hak_heap_fork_lock_ends(void);
void hak_heap_fork_unlock_ends(void);
void hak_heap_fork_lock(void);
void hak_heap_fork_unlock(void);
/* While they are held: forgets other threads' caches. */
void hak_heap_fork_child(void);
/* In the child of a fork that took no lock: a thief of the parent is not there. */
void hak_heap_fork_child_alone(void);
bool hak_heap_all_locks(bool (*is)(hak_lock *lock));

#endif
