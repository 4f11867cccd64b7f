/* The heap box: what a thread owns besides its front, and its life: made, active, parked, adopted.
 *
 * States: ACTIVE (a thread owns it), WARM and PARKED (nobody does). A thread that ends leaves its heap WARM: what its
 * front held stays with the heap, for the next thread. Only the latest few are; older ones are trimmed and PARKED. The
 * slow lock protects slabs and their bitmaps. The owner holds it in refill and flush; a sender that finds the heap
 * without owner, or its inbox backed up, holds it to drain the inbox into the bitmaps. Heaps are never freed and ids
 * never reassigned, so a tag always names a valid heap. Adoption hands a heap, id included, to a new thread.
 *
 * Lock ranks: registry < slow locks < pool < cells. */
#ifndef HAK_HEAP_HEAP_H
#define HAK_HEAP_HEAP_H

#include "heap/front.h"
#include "os/lock.h"
#include "pool/budget.h"
#include "pool/cell.h"
#include "pool/release.h"
#include "slab/slab.h"

enum { HAK_HEAP_ACTIVE, HAK_HEAP_WARM, HAK_HEAP_PARKED };

#define HAK_EMERGENCY_ID 1u
#define HAK_MAX_HEAPS (1u << 20)
#define HAK_OPEN_PACKETS 8

struct hak_packet;

/* Counted only while front metrics are on. */
typedef struct hak_front_counts {
  uint64_t hits, misses, refills, flushes;
} hak_front_counts;

/* Counted only while requests are noted. Relaxed; written by the owner. */
typedef struct hak_request_counts {
  uint64_t count, bytes;
} hak_request_counts;

typedef struct hak_bin {
  /* owner only */
  void **magazine; /* loaded, or NULL */
  void **full;     /* full magazines, linked through slot 0, newest first */
  uint16_t full_count;
  bool activity;           /* a refill or flush since the last tick. No counter: one that wraps would seem idle in its own flush */
  uint32_t capacity;       /* blocks the class may cache now, loaded magazine included */
  uint64_t refill_ms;      /* when blocks were taken from slabs last */
  uint32_t refill_count;   /* the heap's slow_count then */
  uint16_t events;         /* since counted_ms, see refill.c */
  uint64_t counted_ms;
  uint16_t usable;         /* slots of the loaded magazine in use: its NULL sits at slot 63 - usable */
  uint8_t batch;           /* blocks the next refill takes */
  uint8_t young;           /* blocks still to be taken one by one before the class has a magazine */
  uint32_t returned_blocks; /* in the packets of the next line */
  struct hak_packet *returned; /* packets of this class taken from the inbox and not yet loaded */
  /* slow lock */
  hak_slab_set slabs;
} hak_bin;

#define HAK_RUN_STOCK 8

typedef struct hak_kept_run {
  void *p;
  uint32_t spans;
} hak_kept_run;

typedef struct hak_heap {
  /* constant once published */
  uint32_t id;
  bool shared; /* nobody's own: PARKED for good, and not on the list */
  hak_front_counts *counts; /* NULL: front metrics are off */
  hak_request_counts *requests; /* NULL: requests are not noted */
  /* owner only (while parked: holder of the registry lock) */
  hak_front *front; /* stored relaxed: report/peek.c reads it */
  hak_cell *cells; /* spare magazines and packets */
  struct hak_packet *open[HAK_OPEN_PACKETS];
  /* The cursor into one open packet while frees of its owner and class follow each other; its header's count stands
   * still meanwhile. */
  uint32_t hot_tag; /* or HAK_TAG_NONE */
  void **hot_cursor;
  void **hot_end;
  uint32_t slow_count;
  uint32_t subsidences;   /* hak_release_subsidences that the front has followed */
  uint64_t last_slow_ms;  /* when what is due by the clock was done last */
  uint64_t last_tick_ms; /* read by any thread */
  uint64_t thin_classes;  /* bit c: no magazine, so that whoever works with the class comes to the tick; see refill.c */
  uint64_t thin_begun_ms;
  uint32_t thin_cause;    /* the class that was freed */
  bool thin_in_vain;      /* the last time its pages did not go */
  uint32_t ending_rounds;
  uint32_t returned_bytes; /* in the bins' returned packets */
  uint32_t grown_bytes;    /* what the bins' capacities have grown by */
  hak_kept_run run_stock[HAK_RUN_STOCK]; /* the oldest first; see run_stock.h */
  uint32_t run_stock_count;
  uint32_t run_stock_spans;
  uint32_t run_stock_hits; /* since the last tick that looked */
  uint64_t random;                   /* state of hak_heap_random; 0: none yet */
  uint32_t until_sample;             /* requests until the next guarded one; 0: to be drawn */
  bool recording;                    /* the unwinder is at work for this thread, and may allocate */
  struct hak_quarantine *quarantine; /* hardened build: freed blocks that wait */
  hak_front shadow;        /* the front in counted or switched-off mode, and while warm */
  /* registry lock */
  struct hak_heap *next_parked;
  bool listed; /* on the parked list */
  uint64_t parked_ms;
  /* any thread */
  HAK_ALIGNED(HAK_CACHE_LINE) uintptr_t inbox; /* packets: pointer | saturating weight in the low 9 bits */
  uint32_t state;
  HAK_ALIGNED(HAK_CACHE_LINE) struct hak_packet *homecoming; /* this heap's empty packets */
  HAK_ALIGNED(HAK_CACHE_LINE) hak_lock lock;                 /* the slow lock */
  uint64_t last_holes_ms; /* any thread: when hak_heap_give_holes looked last, and how often */
  uint32_t hole_rounds;
  size_t fresh_spans_seen; /* relaxed, any thread: of the pool, at that look */
  uint64_t spare_classes; /* written under the slow lock, read by any: bit c: class c may have free blocks in its slabs */
  hak_bin bins[HAK_FRONT_CLASSES];
} hak_heap;

/* What a batch of puts found; acted on when no lock is held. */
typedef struct hak_outcome {
  bool release_due;
  hak_verdict verdict; /* the first bad one */
  void *bad;
  unsigned bad_class;
  uint64_t classes; /* bit c: a block of class c went into its slab */
} hak_outcome;

extern hak_heap hak_emergency_heap;
extern hak_lock hak_registry_lock;

/* Makes the allocator ready; idempotent, any thread. False: no address space at all. */
bool hak_heap_start(void);
bool hak_heap_started(void);
/* Called before that, with no lock held, perhaps more than once. The api box defines it: fork handlers, which have to be
 * registered before other libraries' (those wait for threads that may wait for our locks). */
extern void (*const hak_heap_at_start)(void);
/* Called while the thread's heap is still its own, before it is parked; the api box defines it, for blocks that it keeps
 * back from the heap. */
extern void (*const hak_heap_before_park)(void);

/* Called every so many slow paths, with no lock held; the api box defines it, for reports. */
extern void (*const hak_heap_at_tick)(uint64_t now_ms);

/* The calling thread's heap, made or adopted if it has none. NULL: the thread has ended or memory is out; then the
 * emergency heap serves. */
hak_heap *hak_heap_make_current(void);
HAK_INLINE hak_heap *hak_heap_current(void) {
  hak_heap *h = hak_tls_front.heap;
  return HAK_LIKELY(h != 0) ? h : hak_heap_make_current();
}

/* The same, but NULL too while the thread is young: then a shared heap serves it. Counts the call. */
hak_heap *hak_heap_grow_up(void);
HAK_INLINE hak_heap *hak_heap_grown(void) {
  hak_heap *h = hak_tls_front.heap;
  return HAK_LIKELY(h != 0) ? h : hak_heap_grow_up();
}

hak_heap *hak_heap_by_id(uint32_t id);
uint32_t hak_heap_id_limit(void); /* ids are 1 … limit - 1 */

/* A block of the class for a thread with a heap, front first … */
void *hak_heap_alloc(hak_heap *heap, unsigned class_code);
/* … and for one that has none, or has it no more: of whole cache lines, from a shared heap's slabs. */
void *hak_heap_alloc_unowned(unsigned class_code, size_t size);

/* Frees a block whose tag names `heap`, the caller's own: immediate double-free check, push, flush. */
void hak_heap_free_own(hak_heap *heap, void *p, unsigned class_code);
/* Frees a block straight into its slab under the owner's slow lock. Needs no memory and no heap. One without owner keeps
 * no empty slab. */
void hak_heap_free_direct(hak_heap *owner, void *p, unsigned class_code);
/* The same where that lock is not taken; false, and nothing done, where it is. */
bool hak_heap_try_free_direct(hak_heap *owner, void *p, unsigned class_code);

/* A number nobody can predict who has not seen many of them. */
uint64_t hak_heap_seed(hak_heap *heap);
HAK_INLINE uint64_t hak_heap_random(hak_heap *heap) {
  uint64_t x = HAK_LIKELY(heap->random != 0) ? heap->random : hak_heap_seed(heap);
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  heap->random = x;
  return x * 0x2545f4914f6cdd1du; /* any odd constant: the state itself stays inside */
}

/* The slot of a bin's loaded magazine that holds its NULL; there must be a magazine. */
HAK_INLINE void **hak_bin_empty_top(const hak_bin *bin) {
  return bin->magazine + (HAK_MAGAZINE_SLOTS - 1) - bin->usable;
}

/* Pops any of the loaded magazine's blocks of the class; NULL when the front has none. */
HAK_INLINE void *hak_heap_pop_any(hak_front *front, unsigned class_code) {
  void **top = front->top[class_code];
  if (HAK_UNLIKELY(*top == 0)) return 0;
  hak_heap *h = front->heap;
  uint64_t count = (uint64_t)(top - hak_bin_empty_top(&h->bins[class_code]));
  void **chosen = top - ((hak_heap_random(h) >> 32) * count >> 32);
  void *p = *chosen;
  *chosen = *top;
  front->top[class_code] = top - 1;
  return p;
}

/* Fills the front of a class with `blocks` blocks, or a few more, so that the loaded magazine is at least half full; the
 * block with the lowest address is popped first where blocks are smaller than a page. */
void hak_heap_prewarm(hak_heap *heap, unsigned class_code, unsigned blocks);

/* Returns every cached block to its slab and every open packet to its owner. The heap is the caller's own. */
void hak_heap_flush_all(hak_heap *heap);
/* flush_all, plus the empty slabs kept for carving; used when memory is short and by malloc_trim. */
void hak_heap_trim(hak_heap *heap);
/* Gives the empty slabs that a heap keeps to carve back to the pool. Any thread; takes heap->lock, so that what senders
 * left meanwhile is to be looked at again. */
void hak_heap_trim_slabs(hak_heap *heap);
/* The same of these classes. Caller holds heap->lock. */
void hak_heap_trim_slabs_locked(hak_heap *heap, uint64_t classes, hak_outcome *outcome);

/* fork: all locks of this box in rank order; fork_child, while they are held, parks the other threads' heaps. */
void hak_heap_fork_lock(void);
/* Whether each of them, asked for one after the other, is. */
bool hak_heap_all_locks(bool (*is)(hak_lock *lock));
void hak_heap_fork_unlock(void);
void hak_heap_fork_child(void);

/* For tests and the thread destructor: ends the calling thread's use of its heap now. */
void hak_heap_park_current(void);

/* Gives the free pages of any heap's slabs back, of those that nothing happened to since the last look, which was a second
 * ago or, where they are many, 50 ms. Returns the bytes. Caller holds no lock. */
size_t hak_heap_give_holes(hak_heap *heap, uint64_t now_ms);
/* Whether slabs have to rest longer than from one look to the next, since their pages were wanted again. */
bool hak_heap_holes_wait(void);
/* How long. */
uint64_t hak_heap_holes_rest_ms(void);
/* The same of all. */
size_t hak_heap_give_all_holes(hak_heap *heap);
/* Around a fork, while all heaps' locks are held; and in its child, before unlock. */
void hak_heap_holes_fork_lock(void);
void hak_heap_holes_fork_unlock(void);
void hak_heap_holes_fork_child(void);
/* Gives back as much of them, of any heap, as the process is above its target. Caller holds no lock. */
HAK_COLD void hak_heap_give_holes_for_target(void);
/* Before dirty memory that the program will want at once goes because of the target: pages inside slabs of classes that it is
 * not at work with, once in a while. Caller holds no lock. */
HAK_COLD void hak_heap_make_room_for_target(void);
/* What is to be done once no lock is held, after memory was taken or returned. */
HAK_INLINE void hak_heap_settle_budget(bool release_due) {
  bool targeted = HAK_UNLIKELY(hak_load_relaxed(&hak_budget_watch) != SIZE_MAX);
  bool over = targeted && hak_budget_over_now();
  if (over) hak_heap_make_room_for_target();
  if (HAK_UNLIKELY(release_due) || over) hak_release_excess();
  if (targeted && hak_budget_holes_due()) hak_heap_give_holes_for_target();
}

/* What a thread that is awake does for those that are not, a bounded part each time: takes in what was freed for them,
 * gives their slabs' free pages back, trims warm heaps and kept mappings that are idle. Caller holds no lock. */
void hak_heap_help(uint64_t now_ms);
/* Takes in what waits for other threads' heaps, a bounded number of them. Caller holds no lock. */
void hak_heap_drain_others(void);
/* Trims the warm heaps; `idle_only`: those that have been warm for a second. Caller holds no lock. */
void hak_heap_trim_warm(bool idle_only, uint64_t now_ms);
/* Whether there are any. Takes the registry lock. */
bool hak_heap_has_warm(void);

/* --- between the files of this box --- */

#define HAK_THIN_TAKES 200
#define HAK_THIN_MS 200
/* Whether mostly free slabs of a class are so many bytes, and half of its slabs. */
HAK_INLINE bool hak_heap_has_thin_slabs(const hak_slab_set *set, unsigned c, size_t bytes) {
  uint32_t hollow = hak_load_relaxed(&set->hollow);
  return HAK_UNLIKELY((uint64_t)hollow * hak_class_table[c].spans >= bytes / HAK_SPAN_SIZE) &&
         hollow >= hak_load_relaxed(&set->slabs) / 2;
}
/* Whether thinning out is over; then classes are young for so many requests at most. */
void hak_heap_thin_no_more(hak_heap *heap, uint64_t now_ms, unsigned young_takes);

/* Class c may have free blocks in its slabs. Caller holds the slow lock. */
HAK_INLINE void hak_heap_note_spare(hak_heap *h, unsigned c) {
  uint64_t spare = hak_load_relaxed(&h->spare_classes), bit = (uint64_t)1 << c;
  if ((spare & bit) == 0) hak_store_relaxed(&h->spare_classes, spare | bit);
}

/* A misuse that was found; and with what the target and the release policy ask for. Caller holds no lock. */
void hak_outcome_report(const hak_outcome *outcome, const char *where);
void hak_outcome_settle(const hak_outcome *outcome, const char *where);
void hak_heap_put_locked(hak_heap *heap, void *p, unsigned class_code, hak_outcome *outcome);
/* Several of one class; the first bad one ends it. */
void hak_heap_put_all_locked(hak_heap *heap, void *const *blocks, unsigned count, unsigned class_code,
                             hak_outcome *outcome);
/* Room for one more block of the class on the loaded magazine, swapping or flushing. False: no magazine to be had. */
bool hak_heap_make_room(hak_heap *heap, unsigned class_code);
/* The same without flushing: false when the class's capacity is used up. */
bool hak_heap_push_full(hak_heap *heap, unsigned class_code);
hak_cell *hak_heap_take_cell(hak_heap *heap);
void hak_heap_give_cell(hak_heap *heap, void *cell);
/* Now and then, at the end of a slow path for the class (HAK_FRONT_CLASSES: for none): what is due by the clock. */
void hak_heap_tick(hak_heap *heap, unsigned class_code, uint64_t now_ms);
void hak_heap_init_bins(hak_heap *heap);
/* A shared heap with its slow lock taken, one that nobody else is in if there is any. */
hak_heap *hak_heap_lock_shared(void);
/* While requests are noted, of a block the heap has handed out. The owner, or for shared heaps the holder of the lock. */
HAK_INLINE void hak_heap_note_request(const hak_heap *heap, unsigned class_code, size_t size) {
  if (heap->requests == 0) return;
  hak_request_counts *noted = &heap->requests[class_code];
  hak_store_relaxed(&noted->count, noted->count + 1);
  hak_store_relaxed(&noted->bytes, noted->bytes + size);
}
/* Flushes what is too much for a heap without owner to keep, and sends its open packets. */
void hak_heap_slim(hak_heap *heap);

#endif
