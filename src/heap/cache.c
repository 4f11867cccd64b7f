/* A thread's caches of heaps: their life, refill and overflow, and how they are taken back. Of a class a cache has a
 * magazine, once the class has slabs; and one for the large blocks of each number of spans, up to 256 KiB.
 *
 * A heap lists the caches that threads have of it. A thief takes what they have where a limit would refuse, before a
 * heap is shown, deleted or has another limit, and by the clock: it stores `thief` in some of them, has every thread
 * pass a barrier, and empties those whose owner is not at them (docs/locking.md). It holds the registry's lock
 * meanwhile, under which neither heaps nor caches go; an owner that meets it waits for that. Blocks go back to a heap
 * that may have ended. Counts are written by the owner, and read by others (relaxed). */
#include "heap/cache.h"

#include <string.h>

#include "tcache/counted.h"

/* Calls of a thread for a heap, which has slabs for the class, beyond those that its place serves others */
#define HOT_AFTER 32
#define MAGAZINE_LAST (HAK_MAGAZINE_SLOTS - 1)
#define MAGAZINE_BYTES HAK_SPAN_SIZE /* of a class; two blocks at least */

_Static_assert(HAK_OWNER_HEAPS % HAK_HEAPS_OF_THREAD == 0, "hak_heap_push takes an owner for an index");
_Static_assert(sizeof(hak_heap_cache) <= HAK_META_SIZE && sizeof(hak_thread_heaps) <= HAK_META_SIZE,
               "each is a metadata block");

hak_heap_cache hak_no_heap_cache = {.life = UINT64_MAX, .owner = HAK_HEAP_NOBODY};

hak_thread_heaps *hak_thread_make_heaps(hak_tcache *t) {
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
static size_t bytes_of(unsigned c) {
  return is_large(c) ? hak_align_up(hak_class_size(c), HAK_SPAN_SIZE) : hak_class_size(c);
}
/* Of a cache that has one. */
static void **magazine_of(const hak_heap_cache *k, unsigned c) {
  return (void **)hak_align_down((uintptr_t)k->top[c + 1], HAK_MAGAZINE_BYTES);
}
static bool has_magazine(const hak_heap_cache *k, unsigned c) { return k->top[c + 1] != HAK_NULL_TOP; }

HAK_INLINE bool load(hak_heap_cache *k, unsigned c) {
  if (has_magazine(k, c)) return true;
  void **magazine = (void **)hak_meta_take();
  if (magazine == NULL) return false;
  k->top[c + 1] = empty_top(magazine, c);
  *k->top[c + 1] = NULL;
  hak_add_single(&k->magazines, 1);
  return true;
}

static unsigned count_of(const hak_heap_cache *k, unsigned c) {
  return has_magazine(k, c) ? (unsigned)(k->top[c + 1] - empty_top(magazine_of(k, c), c)) : 0;
}

static bool is_empty(const hak_heap_cache *k, unsigned c) { return *k->top[c + 1] == NULL; }
static bool is_full(const hak_heap_cache *k, unsigned c) {
  return ((uintptr_t)(k->top[c + 1] + 1) & (HAK_MAGAZINE_BYTES - 1)) == 0;
}

/* --- whose it is --- */

static bool waits(const hak_heap_cache *k) { return (hak_load_acquire(&k->thief) & HAK_HEAP_THIEF) != 0; }

/* --- counts --- */

static void count_from_zero(hak_heap_cache *k) {
  hak_store_relaxed(&k->most, 0);
  hak_store_relaxed(&k->below, 0);
  hak_store_relaxed(&k->requests, 0);
  hak_store_relaxed(&k->frees, 0);
}

/* What a cache has counted moves to its heap. One thread does so at a time: the owner, which has entered the cache, or
 * a thief that has it. Under the heap's lock: no fork has half of it. */
static void fold(hak_heap_cache *k) {
  hak_heap *h = k->entry->heap;
  HAK_ASSERT(hak_heap_cache_has_heap(k));
  if ((k->requests | k->frees) == 0) return;
  hak_lock_take(hak_heap_lock(h));
  hak_heap_raise_peak(h, hak_load_relaxed(&h->live) + (size_t)hak_heap_most(k));
  hak_add_relaxed(&h->live, (size_t)hak_heap_live(k));
  hak_store_relaxed(&k->charged, hak_heap_credit(k));
  hak_add_relaxed(&h->requests, k->requests);
  hak_add_relaxed(&h->frees, k->frees);
  count_from_zero(k);
  hak_lock_drop(hak_heap_lock(h));
}

/* --- the owner and thieves --- */

/* No lock may be held that a thief takes. May nest: a thief leaves a cache alone whose owner is at it, and waits for
 * nobody with the lock. */
HAK_INLINE void enter(hak_heap_cache *k) {
  hak_add_own(&k->busy, 1);
  HAK_IN_ORDER(); /* the thief's barrier is the other half */
  while (HAK_UNLIKELY(waits(k))) {
    hak_lock_take(&hak_heaps_lock);
    hak_lock_drop(&hak_heaps_lock);
  }
}

static void leave(hak_heap_cache *k) {
  HAK_ASSERT(k->busy > 0);
  HAK_RELEASE_OWN();
  hak_add_own(&k->busy, 0u - 1);
}

/* --- a cache's life; the owner, or a thief --- */

/* Puts the oldest `count` blocks of a class back. */
static void put_oldest(hak_heap_cache *k, unsigned c, unsigned count, hak_deferred *d) {
  void *blocks[HAK_MAGAZINE_SLOTS];
  hak_magazine_take_oldest(empty_top(magazine_of(k, c), c), &k->top[c + 1], blocks, count);
  hak_heap_from from = hak_heap_is_aside(k) ? HAK_HEAP_FROM_ASIDE : HAK_HEAP_FROM_CACHE;
  if (is_large(c))
    hak_heap_put_large(k->entry->heap, blocks, count, from, d);
  else
    hak_heap_put(k->entry->heap, c, blocks, count, from, d);
}

/* Under the registry lock. The bit goes first: a child of a fork that took no lock, where the thief is not there, may
 * have too much charged, never too little. */
static void give_credit(hak_heap_cache *k) {
  hak_assert_held(&hak_heaps_lock);
  if (!hak_heap_has_credit(k) || !hak_heap_cache_has_heap(k)) return;
  hak_heap *h = k->entry->heap;
  hak_lock_take(hak_heap_lock(h));
  int64_t credit = hak_heap_credit(k);
  HAK_ASSERT(credit >= 0);
  hak_store_relaxed(&k->thief, hak_load_relaxed(&k->thief) & ~HAK_HEAP_CREDIT);
  HAK_RELEASE_OWN();
  if (credit > 0) hak_heap_uncharge(h, (size_t)credit);
  hak_heap_note_end(h);
  hak_lock_drop(hak_heap_lock(h));
}

/* Under the registry lock: the heap may have ended. */
static void empty(hak_heap_cache *k, hak_deferred *d) {
  hak_assert_held(&hak_heaps_lock);
  bool exists = hak_heap_cache_has_heap(k);
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    if (!has_magazine(k, c)) continue;
    if (exists && count_of(k, c) > 0) put_oldest(k, c, count_of(k, c), d);
    hak_meta_give_one(magazine_of(k, c));
    k->top[c + 1] = HAK_NULL_TOP;
    k->batch[c] = HAK_BATCH_FIRST;
  }
  hak_store_relaxed(&k->magazines, 0);
  give_credit(k);
  if (exists) fold(k);
}

static void unlink_cache(hak_heap_cache *k) {
  hak_assert_held(&hak_heaps_lock);
  if (!hak_heap_cache_has_heap(k)) return; /* its list has ended with the heap, or with its life */
  *(k->prev != NULL ? &k->prev->next : &k->entry->heap->caches) = k->next;
  if (k->next != NULL) k->next->prev = k->prev;
}

static size_t cached_bytes(const hak_heap_cache *k) {
  size_t bytes = 0;
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) bytes += count_of(k, c) * bytes_of(c);
  return bytes;
}

/* What the cache has counts no more to limits: each block is charged when it is handed out. */
static void set_aside(hak_heap_cache *k) {
  hak_assert_held(&hak_heaps_lock);
  if (hak_heap_is_aside(k) || !hak_heap_cache_has_heap(k)) return;
  size_t bytes = cached_bytes(k);
  fold(k);
  if (bytes != 0) hak_heap_uncharge(k->entry->heap, bytes);
  hak_store_relaxed(&k->thief, hak_load_relaxed(&k->thief) | HAK_HEAP_ASIDE);
}

/* Nor has it charged anything but for the program's blocks. */
static void drain(hak_heap_cache *k) {
  set_aside(k);
  give_credit(k);
}

/* Of a cache that is aside: none yet. Not where a drain has begun, of its heap or one above. */
static void begin_credit(hak_heap_cache *k) {
  hak_assert_held(&hak_heaps_lock);
  if (!hak_heap_is_aside(k) || hak_heap_has_credit(k) || !hak_heap_cache_has_heap(k)) return;
  for (hak_heap *h = k->entry->heap; h != NULL; h = h->parent) {
    if (!hak_heap_begin_credit_locked(h)) return;
  }
  hak_store_relaxed(&k->charged, hak_heap_live(k));
  hak_store_relaxed(&k->credit_most, 0);
  hak_store_relaxed(&k->thief, hak_load_relaxed(&k->thief) | HAK_HEAP_CREDIT);
}

/* The other way, if a limit does not say no. */
static void take_back_in(hak_heap_cache *k) {
  hak_assert_held(&hak_heaps_lock);
  if (!hak_heap_is_aside(k) || !hak_heap_cache_has_heap(k)) return;
  give_credit(k);
  size_t bytes = cached_bytes(k);
  if (bytes == 0 || hak_heap_charge(k->entry->heap, bytes) == NULL)
    hak_store_relaxed(&k->thief, 0);
  else
    begin_credit(k);
}

static void begin(hak_heap_cache *k, hak_heap *h) {
  hak_assert_held(&hak_heaps_lock);
  hak_store_relaxed(&k->thief, 0);
  hak_store_relaxed(&k->life, 0); /* who sums up counts takes it for nobody's meanwhile */
  k->entry = hak_heap_entry_of(h);
  count_from_zero(k);
  k->charged = k->credit_most = 0;
  k->calls_seen = 0;
  for (unsigned code = 0; code < HAK_CODES; code++) k->top[code] = HAK_NULL_TOP;
  memset(k->batch, HAK_BATCH_FIRST, sizeof k->batch);
  hak_store_relaxed(&k->owner, hak_heap_owner(h));
  hak_store_release(&k->life, h->life);
  k->prev = NULL;
  k->next = h->caches;
  if (k->next != NULL) k->next->prev = k;
  h->caches = k;
}

static hak_heap_cache *new_cache(const hak_tcache *t) {
  hak_heap_cache *k = (hak_heap_cache *)(void *)hak_meta_take();
  if (k == NULL) return NULL;
  k->busy = k->quick = k->thief = 0;
  k->magazines = 0;
  k->theft = k->calls_at_turn = 0;
  k->holder = t;
  return k;
}

/* Where the sum has to fall, below its limit or for a callback, or a request was refused: what is cached would count
 * against the program. */
HAK_INLINE bool has_to_fall(const hak_heap *h) {
  bool full = hak_heap_was_called(h) || hak_load_relaxed(&h->out) > hak_load_relaxed(&h->limit);
  return full || hak_heap_is_near(h);
}
HAK_INLINE bool is_near(const hak_heap *h) {
  while (h != NULL && !has_to_fall(h)) h = h->parent;
  return h != NULL;
}

/* The heap has been used as often as others of its place: it has the place now. A thief that sets aside what caches
 * have of it finds this one under the lock, or has been there before, and this one is found to be near the limit. */
static hak_heap_cache *make_cache(hak_tcache *t, hak_heap *h, hak_deferred *d) {
  hak_thread_heaps *th = hak_thread_make_heaps(t);
  if (th == NULL) return NULL;
  unsigned first = hak_heap_first_place(h->index);
  if (++th->misses[first] < HOT_AFTER) return NULL;
  th->misses[first] = 0;
  unsigned i = hak_heap_place_for(th, h->index);
  hak_heap_cache *k = th->caches[i];
  bool is_new = k == &hak_no_heap_cache;
  if (is_new && (k = new_cache(t)) == NULL) return NULL;
  enter(k);
  hak_lock_take(&hak_heaps_lock);
  if (!is_new) {
    empty(k, d);
    unlink_cache(k);
  }
  begin(k, h);
  if (is_near(h)) set_aside(k);
  hak_lock_drop(&hak_heaps_lock);
  leave(k);
  __atomic_store_n(&th->caches[i], k, __ATOMIC_RELEASE);
  return k;
}

void hak_heap_fold(const hak_tcache *t, const hak_heap *h) {
  hak_heap_cache *k = t == NULL ? NULL : hak_heap_cache_of(t, h);
  if (k == NULL || (hak_load_relaxed(&k->requests) | hak_load_relaxed(&k->frees)) == 0) return;
  enter(k); /* a thief folds, too; what it does before it lets go is seen here */
  fold(k);
  leave(k);
}

/* --- calls --- */

/* The thread's cache of the heap; NULL: it has none, and may or can have none. */
static hak_heap_cache *cache_for(hak_tcache *t, hak_heap *h, hak_deferred *d) {
  hak_heap_cache *k = hak_heap_own_cache(h);
  if (HAK_LIKELY(k != NULL)) return HAK_LIKELY(!hak_load_relaxed(&h->is_deleted)) ? k : NULL;
  return hak_heap_caches(h) ? make_cache(t, h, d) : NULL;
}

/* Asked again under the lock: a drain that has begun since may have passed by what is aside, which must stay so. */
static HAK_NOINLINE void settle_now(hak_heap_cache *k, const hak_heap *h, bool near, bool credit) {
  hak_lock_take(&hak_heaps_lock);
  if (!near && !is_near(h))
    take_back_in(k);
  else if (credit)
    set_aside(k), begin_credit(k);
  else
    drain(k);
  hak_lock_drop(&hak_heaps_lock);
}

/* Who frees what others have allocated counts below 0. What these have counted is added up now and then, and so is
 * this: else the heap's peak would be the sum of all that passed. */
#define BELOW_MOST ((int64_t)HAK_MIB)
HAK_INLINE void fold_below(hak_heap_cache *k) {
  if (HAK_UNLIKELY(hak_heap_live(k) < -BELOW_MOST)) fold(k);
}

/* Calls between two looks of an owner whether the limit is still near: a look takes the registry's lock. */
#define ASIDE_CALLS 64
/* The owner's calls, of which one in ASIDE_CALLS looks whether the limit is near, and whether there is credit. */
static bool has_turn(const hak_heap_cache *k) { return (k->requests + k->frees) % ASIDE_CALLS == 0; }

static bool may_have_credit(const hak_heap *h) {
  while (h != NULL && hak_heap_gives_credit(h)) h = h->parent;
  return h == NULL;
}

/* The thread has entered the cache: so a thief finds it at its cache, or the thread sees what the thief had seen. To
 * count again takes a look at all classes, and may be refused. */
HAK_INLINE void settle(hak_heap_cache *k, const hak_heap *h) {
  bool near = is_near(h);
  if (HAK_LIKELY(!near && !hak_heap_is_aside(k))) return;
  if (near == hak_heap_is_aside(k) || !near) {
    if (!has_turn(k)) return;
  }
  bool credit = near && may_have_credit(h);
  if (near != hak_heap_is_aside(k) || credit != hak_heap_has_credit(k)) settle_now(k, h, near, credit);
}

/* --- credit; the owner, in its cache --- */

/* A lock of the heap under which the cache charges. Any will do: of the bins that were made with that of the class,
 * threads have different ones. */
static hak_lock *lock_of(const hak_heap_cache *k, const hak_heap *h, unsigned c) {
  if (is_large(c)) return hak_heap_lock(h);
  unsigned other = (unsigned)(c / HAK_HEAP_BINS * HAK_HEAP_BINS + (uintptr_t)k / HAK_META_SIZE % HAK_HEAP_BINS);
  return hak_heap_bin_lock(h, other < HAK_CLASS_COUNT ? other : c);
}

/* A thread's part of the room: the next one has that part of what is left, so all have less than the room. */
#define CREDIT_PART 4
#define CREDIT_MOST HAK_SPAN_SIZE /* many small blocks, or two of the largest that are cached by class */
static size_t credit_of_room(size_t room) { return hak_min_size(room / CREDIT_PART, CREDIT_MOST); }

/* Of what it has freed itself a thread keeps a few small blocks' bytes whatever room there is. */
#define CREDIT_LEAST 2048
static void set_most(hak_heap_cache *k, size_t credit) {
  hak_store_relaxed(&k->credit_most, (int64_t)(2 * hak_max_size(credit, CREDIT_LEAST)));
}

/* What is charged changes together with what the cache says of it, under a lock of the heap: a fork's child has both
 * or none. */
static HAK_NOINLINE hak_heap *raise_credit(hak_heap_cache *k, hak_heap *h, unsigned c, size_t bytes) {
  hak_lock *lock = lock_of(k, h, c);
  hak_lock_take(lock);
  size_t needed = bytes - (size_t)hak_heap_credit(k), room = hak_heap_room(h);
  size_t more = room > needed ? credit_of_room(room - needed) : 0;
  hak_heap *refuser = hak_heap_charge(h, needed + more);
  if (refuser != NULL && more != 0) {
    more = 0;
    refuser = hak_heap_charge(h, needed);
  }
  if (refuser == NULL) {
    hak_store_relaxed(&k->charged, k->charged + (int64_t)(needed + more));
    set_most(k, more);
  }
  hak_lock_drop(lock);
  return refuser;
}

/* Of a deleted heap, which ends with the last that is charged, it goes when the cache does. */
static HAK_NOINLINE void lower_credit(hak_heap_cache *k, hak_heap *h, unsigned c) {
  hak_lock *lock = lock_of(k, h, c);
  hak_lock_take(lock);
  size_t credit = (size_t)hak_heap_credit(k), part = credit_of_room(hak_heap_room(h) + credit);
  size_t kept = hak_max_size(part, CREDIT_LEAST);
  if (kept < credit && !hak_load_relaxed(&h->is_deleted)) {
    hak_store_relaxed(&k->charged, k->charged - (int64_t)(credit - kept));
    hak_heap_uncharge(h, credit - kept);
  }
  set_most(k, part);
  hak_lock_drop(lock);
}

/* Without credit a block is charged and counts under one hold of a lock: a fork's child has both or none. */
static HAK_NOINLINE hak_heap *charge_block(hak_heap_cache *k, hak_heap *h, unsigned c, size_t bytes) {
  hak_lock *lock = lock_of(k, h, c);
  hak_lock_take(lock);
  hak_heap *refuser = hak_heap_charge(h, bytes);
  if (refuser == NULL) hak_heap_count_alloc(k, bytes);
  hak_lock_drop(lock);
  return refuser;
}

static HAK_NOINLINE bool uncharge_block(hak_heap_cache *k, hak_heap *h, unsigned c, size_t bytes) {
  hak_lock *lock = lock_of(k, h, c);
  hak_lock_take(lock);
  bool stays = !hak_load_relaxed(&h->is_deleted);
  if (stays) {
    hak_heap_uncharge(h, bytes);
    hak_heap_count_free(k, bytes);
  }
  hak_lock_drop(lock);
  return stays;
}

/* A block of a cache that is aside is about to be the program's: it counts. */
HAK_INLINE hak_heap *charge_aside(hak_heap_cache *k, hak_heap *h, unsigned c, size_t bytes) {
  if (HAK_UNLIKELY(!hak_heap_has_credit(k))) return charge_block(k, h, c, bytes);
  hak_heap *refuser = HAK_LIKELY(hak_heap_credit(k) >= (int64_t)bytes) ? NULL : raise_credit(k, h, c, bytes);
  if (HAK_LIKELY(refuser == NULL)) hak_heap_count_alloc(k, bytes);
  return refuser;
}

/* A block that the program had is in such a cache. False: the heap was deleted, and it must not be. */
HAK_INLINE bool uncharge_aside(hak_heap_cache *k, hak_heap *h, unsigned c, size_t bytes) {
  if (HAK_UNLIKELY(!hak_heap_has_credit(k))) return uncharge_block(k, h, c, bytes);
  hak_heap_count_free(k, bytes);
  if (HAK_UNLIKELY(hak_heap_credit(k) > k->credit_most)) lower_credit(k, h, c);
  return true;
}

static hak_heap_try refill(hak_heap_cache *k, hak_heap *h, unsigned c) {
  hak_heap_try r = {0};
  HAK_ASSERT(count_of(k, c) == 0);
  unsigned wanted = (unsigned)hak_min_size(k->batch[c], usable(c));
  bool aside = hak_heap_is_aside(k);
  if (aside && (r.refuser = charge_aside(k, h, c, bytes_of(c))) != NULL) return r;
  unsigned n = hak_heap_take(h, c, k->top[c + 1] + 1, wanted, !aside, &r.refuser);
  if (n == 0) {
    if (aside) uncharge_aside(k, h, c, bytes_of(c)); /* memory is out */
    return r;
  }
  if (!aside) hak_heap_count_alloc(k, hak_class_size(c));
  k->batch[c] = (uint8_t)hak_min_size(k->batch[c] * 2u, usable(c) / 2);
  k->top[c + 1] += n - 1;
  r.p = k->top[c + 1][1];
  return r;
}

static hak_heap_try pop(hak_heap_cache *k, hak_heap *h, unsigned c) {
  hak_heap_try r = {0};
  HAK_ASSERT(hak_heap_is_at(k) && count_of(k, c) > 0);
  if (hak_heap_is_aside(k))
    r.refuser = charge_aside(k, h, c, bytes_of(c));
  else
    hak_heap_count_alloc(k, bytes_of(c));
  if (r.refuser == NULL) r.p = hak_magazine_pop(&k->top[c + 1]);
  return r;
}

/* There is room for it. False: the heap was deleted, and its blocks go to their slabs. */
static bool push(hak_heap_cache *k, hak_heap *h, unsigned c, void *p) {
  HAK_ASSERT(hak_heap_is_at(k) && has_magazine(k, c) && count_of(k, c) < usable(c));
  if (hak_heap_is_aside(k)) {
    if (!uncharge_aside(k, h, c, bytes_of(c))) return false;
  } else {
    hak_heap_count_free(k, bytes_of(c));
  }
  *++k->top[c + 1] = p;
  return true;
}

hak_heap_try hak_heap_cached_alloc(hak_tcache *t, hak_heap *h, unsigned c, hak_deferred *d) {
  hak_heap_try r = {0};
  hak_heap_cache *k = cache_for(t, h, d);
  if (k == NULL) return r;
  enter(k);
  settle(k, h);
  if (!is_empty(k, c))
    r = pop(k, h, c);
  else if (!is_large(c) && load(k, c))
    r = refill(k, h, c);
  leave(k);
  return r;
}

/* A request of no bytes takes a span, too: the class of 0 bytes is one of slabs, whose blocks are aligned to 16. */
unsigned hak_heap_large_class(size_t bytes) {
  return bytes > HAK_SMALL_MAX ? HAK_CLASS_COUNT : hak_class_for(hak_align_up(hak_max_size(bytes, 1), HAK_SPAN_SIZE));
}

/* It would go in twice. Of a large class all are looked at: two. */
static bool is_cached(const hak_heap_cache *k, unsigned c, const void *p) {
  for (void **at = k->top[c + 1]; *at != NULL; at--) {
    if (*at == p) return true;
    if (!is_large(c)) break;
  }
  return false;
}

bool hak_heap_cached_free(hak_tcache *t, hak_heap *h, unsigned c, void *p, hak_deferred *d) {
  hak_heap_cache *k = cache_for(t, h, d);
  if (k == NULL) return false;
  enter(k);
  settle(k, h);
  fold_below(k);
  bool done = load(k, c);
  if (done && is_full(k, c)) put_oldest(k, c, (usable(c) + 1) / 2, d);
  if (done && HAK_CHECKS && is_cached(k, c, p))
    hak_deferred_note(d, HAK_VERDICT_DOUBLE_FREE, p, c, "at the call");
  else if (done)
    done = push(k, h, c, p);
  leave(k);
  return done;
}

/* The owner alone takes ASIDE away, and looks whether the limit is still near in the long way, now and then. */
static bool is_at_aside(const hak_heap_cache *k) {
  HAK_ASSERT(hak_heap_is_at(k));
  return (hak_load_acquire(&k->thief) & (HAK_HEAP_THIEF | HAK_HEAP_ASIDE)) == HAK_HEAP_ASIDE && !has_turn(k);
}

HAK_NOINLINE void *hak_heap_pop_met(hak_heap_cache *k, hak_heap *h, unsigned c) {
  void *p = NULL;
  if (is_at_aside(k) && !is_empty(k, c) && charge_aside(k, h, c, bytes_of(c)) == NULL)
    p = hak_magazine_pop(&k->top[c + 1]);
  hak_heap_leave(k);
  return p;
}

HAK_NOINLINE bool hak_heap_push_met(hak_heap_cache *k, void *p) {
  unsigned c = HAK_TAG_CODE(hak_heap_tag_of(p)) - 1;
  bool done = is_at_aside(k) && hak_magazine_push(&k->top[c + 1], p);
  if (done && !(done = uncharge_aside(k, k->entry->heap, c, hak_class_size(c)))) k->top[c + 1]--;
  hak_heap_leave(k);
  return done;
}

HAK_NOINLINE bool hak_heap_push_large(void *p) {
  const hak_span *s = hak_region_span(&hak_main_region, p);
  size_t bytes = s->head == s ? hak_heap_large_size(s, p) : 0;
  unsigned c = hak_heap_large_class(bytes);
  hak_heap_cache *k = bytes == 0 || c == HAK_CLASS_COUNT ? NULL : hak_heap_own_cache_of_owner(HAK_TAG_OWNER(s->tag));
  if (k == NULL) return false;
  hak_heap_enter(k);
  bool done = !hak_heap_is_met(k) && !(HAK_CHECKS && is_cached(k, c, p)) && hak_magazine_push(&k->top[c + 1], p);
  if (done) hak_heap_count_free(k, bytes);
  hak_heap_leave(k);
  return done;
}

/* --- giving back --- */

static bool is_of(const hak_heap_cache *k, const hak_heap *within) { /* registry lock */
  return within == NULL || (hak_heap_cache_has_heap(k) && hak_heap_is_within(k->entry->heap, within));
}

/* What the calling thread has of `within` and the heaps below it, NULL: of all; `idle`: if it has not been used since
 * the last such call. */
static void flush_own(const hak_heap *within, bool idle, hak_deferred *d) {
  const hak_tcache *t = hak_tls.cache;
  hak_thread_heaps *th = t == NULL ? NULL : hak_thread_heaps_of(t);
  for (unsigned i = 0; th != NULL && i < HAK_HEAPS_OF_THREAD; i++) {
    hak_heap_cache *k = th->caches[i];
    if (k == &hak_no_heap_cache) continue;
    uint32_t calls = (uint32_t)(k->requests + k->frees), seen = k->calls_seen;
    if (idle) k->calls_seen = calls;
    if (idle && seen != calls) continue;
    enter(k);
    hak_lock_take(&hak_heaps_lock);
    if (is_of(k, within)) empty(k, d);
    hak_lock_drop(&hak_heaps_lock);
    leave(k);
  }
}

void hak_heap_flush(const hak_heap *within, hak_deferred *d) { flush_own(within, false, d); }
void hak_heap_decay(hak_deferred *d) { flush_own(NULL, true, d); }

/* --- thieves, one at a time (the reach lock) --- */

#define GROUP 64 /* caches that share a barrier, and a hold of the registry's lock */

typedef struct theft {
  uint32_t number; /* caches that it came by have it */
  bool idle;       /* of what was not used since the clock's last turn */
  bool aside;      /* sets aside what caches have; else empties them */
  bool missed;     /* an owner was at its cache */
  bool works;      /* the system has the barrier */
  unsigned count;
  hak_heap_cache *group[GROUP];
} theft;

static uint32_t thefts;
typedef enum theft_kind { ALL, IDLE, ASIDE } theft_kind;

static void begin_theft(theft *of, theft_kind kind) {
  hak_assert_held(&hak_tcache_reach_lock);
  of->number = ++thefts == 0 ? ++thefts : thefts;
  of->idle = kind == IDLE;
  of->aside = kind == ASIDE;
  of->missed = false;
  of->works = true;
}

static void choose(theft *of, hak_heap_cache *k) {
  hak_assert_held(&hak_heaps_lock);
  if (k->theft == of->number || k->holder == hak_tls.cache || of->count == GROUP) return;
  if (of->aside && hak_heap_is_aside(k) && !hak_heap_has_credit(k)) return;
  uint32_t calls = (uint32_t)(hak_load_relaxed(&k->requests) + hak_load_relaxed(&k->frees)), seen = k->calls_at_turn;
  k->theft = of->number;
  if (of->idle) k->calls_at_turn = calls;
  if (of->idle && (seen != calls || hak_load_relaxed(&k->magazines) == 0)) return;
  of->group[of->count++] = k;
}

/* Those that this theft did not come by, as many as a group takes. Heaps list their caches; of all heaps those that
 * threads have are looked at. */
static void choose_of_heaps(theft *of, hak_heap *top) {
  for (hak_heap *h = top; h != NULL && of->count < GROUP; h = hak_heap_next_below_locked(h, top)) {
    for (hak_heap_cache *k = h->caches; k != NULL; k = k->next) choose(of, k);
  }
}

static void choose_of_threads(theft *of) {
  for (const hak_tcache *t = hak_tcache_made(); t != NULL && of->count < GROUP; t = t->next) {
    const hak_thread_heaps *th = __atomic_load_n(&t->heaps, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; th != NULL && i < HAK_HEAPS_OF_THREAD; i++) {
      hak_heap_cache *k = __atomic_load_n(&th->caches[i], __ATOMIC_ACQUIRE);
      if (k != &hak_no_heap_cache) choose(of, k);
    }
  }
}

/* The owner was not at it when all threads had seen `thief`, or it is left alone. */
static void rob_group(theft *of, hak_deferred *d) {
  for (unsigned i = 0; i < of->count; i++)
    hak_store_relaxed(&of->group[i]->thief, of->group[i]->thief | HAK_HEAP_THIEF);
  of->works = hak_os_barrier();
  for (unsigned i = 0; i < of->count; i++) {
    hak_heap_cache *k = of->group[i];
    bool has = of->works && !hak_heap_is_at(k);
    of->missed |= of->works && !has;
    if (has && of->aside)
      drain(k);
    else if (has)
      empty(k, d);
    hak_store_release(&k->thief, k->thief & ~HAK_HEAP_THIEF);
  }
}

/* `within` NULL: all heaps. The reach lock keeps another theft, which would have another number, from coming
 * between. */
static bool rob(hak_heap *within, theft_kind kind, hak_deferred *d) {
  theft of;
  hak_lock_take(&hak_tcache_reach_lock);
  begin_theft(&of, kind);
  do {
    hak_lock_take(&hak_heaps_lock);
    of.count = 0;
    if (within != NULL)
      choose_of_heaps(&of, within);
    else
      choose_of_threads(&of);
    if (of.count > 0) rob_group(&of, d);
    hak_lock_drop(&hak_heaps_lock);
  } while (of.count == GROUP && of.works);
  hak_lock_drop(&hak_tcache_reach_lock);
  return of.missed;
}

/* An owner is at its cache for a microsecond, as long as a barrier takes, or has no processor. False: it is left alone,
 * at once or after OWNER_MS. */
#define AT_ONCE 8
#define OWNER_MS 500 /* an owner that is at its cache for so long lies in a signal handler, or has stopped */
static bool rob_all(hak_heap *within, theft_kind kind, unsigned patience_ms, hak_deferred *d) {
  for (unsigned tries = 0; rob(within, kind, d); tries++) {
    if (tries == AT_ONCE + patience_ms) return false;
    if (tries >= AT_ONCE) hak_os_sleep_ms(1);
  }
  return true;
}

/* All heaps are meant where memory is to go back: no count depends on it, and the thread is not waited for. */
void hak_heap_flush_others(hak_heap *within, hak_deferred *d) {
  rob_all(within, ALL, within == NULL ? 0 : OWNER_MS, d);
}
void hak_heap_decay_others(hak_deferred *d) { rob(NULL, IDLE, d); }

void hak_heap_drain_own(const hak_heap *within) {
  const hak_tcache *t = hak_tls.cache;
  hak_thread_heaps *th = t == NULL ? NULL : hak_thread_heaps_of(t);
  for (unsigned i = 0; th != NULL && i < HAK_HEAPS_OF_THREAD; i++) {
    hak_heap_cache *k = th->caches[i];
    if (k == &hak_no_heap_cache || (hak_heap_is_aside(k) && !hak_heap_has_credit(k))) continue;
    enter(k);
    hak_lock_take(&hak_heaps_lock);
    if (is_of(k, within)) drain(k);
    hak_lock_drop(&hak_heaps_lock);
    leave(k);
  }
}

bool hak_heap_drain(hak_heap *h, hak_deferred *d) {
  uint32_t before = hak_load_relaxed(&h->near_limit), draining;
  hak_store_relaxed(&h->near_since_ms, hak_os_now_ms());
  hak_store_relaxed(&h->near_refused, hak_load_relaxed(&h->refused));
  do {
    if ((before & HAK_HEAP_NEAR_STATE) == HAK_HEAP_DRAINED) return true;
    draining = (before & ~HAK_HEAP_NEAR_STATE) | HAK_HEAP_DRAINING;
  /* The thief's barrier is behind it: who is not at its cache then sees it */
  } while (before != draining && !hak_cas_acquire(&h->near_limit, &before, draining));
  hak_heap_drain_own(h);
  bool all = rob_all(h, ASIDE, OWNER_MS, d);
  uint32_t drained = (draining & ~HAK_HEAP_NEAR_STATE) | HAK_HEAP_DRAINED;
  if (all) __atomic_compare_exchange_n(&h->near_limit, &draining, drained, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
  return all;
}

static void end_cache(hak_heap_cache *k, hak_deferred *d) {
  enter(k);
  hak_lock_take(&hak_heaps_lock);
  empty(k, d);
  unlink_cache(k);
  hak_store_relaxed(&k->life, 0);
  hak_lock_drop(&hak_heaps_lock);
  leave(k);
}

void hak_heap_end_thread(hak_deferred *d) {
  hak_tcache *t = hak_tls.cache;
  if (t == NULL || hak_thread_heaps_of(t) == NULL) return;
  hak_thread_heaps *th = hak_thread_heaps_of(t);
  for (unsigned i = 0; i < HAK_HEAPS_OF_THREAD; i++) {
    if (th->caches[i] != &hak_no_heap_cache) end_cache(th->caches[i], d);
  }
  /* Readers of counts, and thieves, go by it under the registry lock. */
  hak_tls.heap_cache = NULL;
  hak_lock_take(&hak_heaps_lock);
  hak_store_relaxed(&t->heaps, NULL);
  hak_lock_drop(&hak_heaps_lock);
  for (unsigned i = 0; i < HAK_HEAPS_OF_THREAD; i++) {
    if (th->caches[i] != &hak_no_heap_cache) hak_meta_give_one(th->caches[i]);
  }
  hak_meta_give_one(th);
}

/* --- fork --- */

/* What other threads had cached is lost there, as of the main heap: they may have been in the middle of a push. What
 * they counted is kept. */
void hak_heap_fork_child(void) {
  hak_deferred d = {0};
  hak_heap_forget_lost();
  for (hak_tcache *t = hak_tcache_made(); t != NULL; t = t->next) {
    hak_thread_heaps *th = hak_thread_heaps_of(t);
    if (th == NULL || t == hak_tls.cache || t == hak_tls.aside) continue;
    for (unsigned i = 0; i < HAK_HEAPS_OF_THREAD; i++) {
      hak_heap_cache *k = th->caches[i];
      if (k == &hak_no_heap_cache || !hak_heap_cache_has_heap(k)) continue;
      bool is_aside = hak_heap_is_aside(k); /* and so not charged: it goes back, unless its thread was at it */
      if (is_aside && !hak_heap_is_at(k)) empty(k, &d);
      give_credit(k); /* what it is fits the counts, wherever the thread was */
      fold(k);
      k->entry->heap->has_lost |= is_aside && hak_heap_is_at(k);
      unlink_cache(k);
    }
    t->heaps = NULL;
  }
}

/* What the thief of the parent was at is lost. */
void hak_heap_fork_child_alone(void) {
  const hak_tcache *t = hak_tls.cache;
  const hak_thread_heaps *th = t == NULL ? NULL : hak_thread_heaps_of(t);
  for (unsigned i = 0; th != NULL && i < HAK_HEAPS_OF_THREAD; i++) {
    hak_heap_cache *k = th->caches[i];
    if (k == &hak_no_heap_cache || !waits(k)) continue;
    if (!hak_heap_is_at(k)) {
      if (hak_heap_cache_has_heap(k)) k->entry->heap->has_lost |= hak_heap_is_aside(k);
      for (unsigned code = 0; code < HAK_CODES; code++) k->top[code] = HAK_NULL_TOP;
      k->magazines = 0;
    }
    k->thief &= ~HAK_HEAP_THIEF;
  }
}
