/* A thread's caches of heaps: their life, refill and overflow, and how they are taken back. Of a class a cache has a
 * magazine, once the class has slabs; and one for the large blocks of each number of spans, up to 256 KiB.
 *
 * A heap lists the caches that threads have of it. A thief takes what they have where a limit would refuse, before a
 * heap is shown, deleted or has another limit, and by the clock: it stores `thief` in some of them, has every thread
 * pass a barrier, and empties those whose owner is not at them (docs/locking.md). It holds the registry's lock
 * meanwhile, under which neither heaps nor caches go; an owner that meets it waits for that. Blocks go back to a heap
 * that may have ended. Tops and counts are written by the owner, or by a thief that has the cache, and read by others
 * (relaxed). What leaves a heap's slabs into a cache, or comes back, moves the top under the lock of the bin: a fork
 * has both or neither. */
#include "heap/cache.h"

#include <string.h>

#include "tcache/counted.h"

/* Calls of a thread for a heap, which has slabs for the class, beyond those that its place serves others */
#define HOT_AFTER 32

_Static_assert(sizeof(hak_heap_cache) <= HAK_META_SIZE && sizeof(hak_thread_heaps) <= HAK_META_SIZE,
               "each is a metadata block");

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

/* Of a cache that has one. */
static void **magazine_of(const hak_heap_cache *k, unsigned c) {
  return (void **)hak_align_down((uintptr_t)k->top[c + 1], HAK_MAGAZINE_BYTES);
}
static bool has_magazine(const hak_heap_cache *k, unsigned c) { return k->top[c + 1] != HAK_NULL_TOP; }

HAK_INLINE bool load(hak_heap_cache *k, unsigned c) {
  if (has_magazine(k, c)) return true;
  void **magazine = (void **)hak_meta_take();
  if (magazine == NULL) return false;
  void **top = hak_heap_empty_top(magazine, c);
  *top = NULL;
  hak_store_relaxed(&k->top[c + 1], top);
  hak_store_relaxed(&k->loaded[c / 64], k->loaded[c / 64] | (uint64_t)1 << c % 64);
  return true;
}

static bool is_empty(const hak_heap_cache *k, unsigned c) { return *k->top[c + 1] == NULL; }
static bool is_full(const hak_heap_cache *k, unsigned c) {
  return ((uintptr_t)(k->top[c + 1] + 1) & (HAK_MAGAZINE_BYTES - 1)) == 0;
}

/* --- whose it is --- */

static bool waits(const hak_heap_cache *k) { return (hak_load_acquire(&k->thief) & HAK_HEAP_THIEF) != 0; }

/* --- counts --- */

static size_t cached_bytes(const hak_heap_cache *k) {
  hak_heap_counts sum = {0};
  hak_heap_add_cached(&sum, k);
  return sum.bytes;
}

/* Of a cache that has one, as a fork's child has it too. */
static int64_t exact_credit(const hak_heap_cache *k) { return k->credit_base + (int64_t)cached_bytes(k); }

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

/* A lock of the heap's for blocks of the class. */
static hak_lock *class_lock(const hak_heap *h, unsigned c) {
  return hak_heap_class_is_large(c) ? hak_heap_lock(h) : hak_heap_bin_lock(h, c);
}

/* Puts the oldest `count` blocks of a class back. */
static void put_oldest(hak_heap_cache *k, unsigned c, unsigned count, hak_deferred *d) {
  void *blocks[HAK_MAGAZINE_SLOTS];
  hak_heap *h = k->entry->heap;
  bool charged = !hak_heap_is_aside(k);
  hak_lock *lock = class_lock(h, c);
  hak_lock_take(lock);
  hak_magazine_take_oldest(hak_heap_empty_top(magazine_of(k, c), c), &k->top[c + 1], blocks, count);
  k->credit_base += (int64_t)(count * hak_heap_cached_size(c));
  if (hak_heap_class_is_large(c))
    hak_heap_put_large_locked(h, blocks, count, charged, d);
  else
    hak_heap_put_locked(h, c, blocks, count, charged, d);
  hak_lock_drop(lock);
}

/* Under the registry lock. The bit goes first: a child of a fork that took no lock, where the thief is not there, may
 * have too much charged, never too little. */
static void give_credit(hak_heap_cache *k) {
  hak_assert_held(&hak_heaps_lock);
  if (!hak_heap_has_credit(k) || !hak_heap_cache_has_heap(k)) return;
  hak_heap *h = k->entry->heap;
  hak_lock_take(hak_heap_lock(h));
  int64_t credit = exact_credit(k);
  HAK_ASSERT(credit >= 0);
  hak_store_relaxed(&k->thief, hak_load_relaxed(&k->thief) & ~HAK_HEAP_CREDIT);
  HAK_RELEASE_OWN();
  if (credit > 0) hak_heap_uncharge(h, (size_t)credit);
  hak_heap_note_end(h);
  hak_lock_drop(hak_heap_lock(h));
}

/* It is open to the short ways, or not, as `thief` says. */
static void set_thief(hak_heap_cache *k, uint32_t thief) {
  hak_store_release(&k->thief, thief);
  hak_store_release(&k->open, thief == 0 && hak_heap_cache_has_heap(k) ? k->owner : HAK_HEAP_NOBODY);
}

/* Under the registry lock: the heap may have ended. */
static void empty(hak_heap_cache *k, hak_deferred *d) {
  hak_assert_held(&hak_heaps_lock);
  bool exists = hak_heap_cache_has_heap(k);
  for (unsigned c = 0; (c = hak_heap_next_loaded(k, c)) < HAK_CLASS_COUNT; c++) {
    if (exists && hak_heap_cached_count(k, c) > 0) put_oldest(k, c, hak_heap_cached_count(k, c), d);
    void **magazine = magazine_of(k, c);
    hak_store_relaxed(&k->top[c + 1], HAK_NULL_TOP);
    hak_meta_give_one(magazine);
    k->batch[c] = HAK_BATCH_FIRST;
  }
  for (unsigned word = 0; word < HAK_LOADED_WORDS; word++) hak_store_relaxed(&k->loaded[word], 0);
  give_credit(k);
}

/* The heap's no more. */
static void unlink_cache(hak_heap_cache *k) {
  hak_assert_held(&hak_heaps_lock);
  if (!hak_heap_cache_has_heap(k)) return; /* its list has ended with the heap, or with its life */
  hak_add_relaxed(&k->entry->heap->requests, k->requests);
  hak_store_relaxed(k->prev != NULL ? &k->prev->next : &k->entry->heap->caches, k->next);
  if (k->next != NULL) k->next->prev = k->prev;
}

/* What the cache has counts no more to limits: each block is charged when it is handed out. */
static void set_aside(hak_heap_cache *k) {
  hak_assert_held(&hak_heaps_lock);
  if (hak_heap_is_aside(k) || !hak_heap_cache_has_heap(k)) return;
  size_t bytes = cached_bytes(k);
  if (bytes != 0) hak_heap_uncharge(k->entry->heap, bytes);
  set_thief(k, hak_load_relaxed(&k->thief) | HAK_HEAP_ASIDE);
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
  k->credit_base = -(int64_t)cached_bytes(k);
  hak_store_relaxed(&k->credit, 0);
  k->credit_most = 0;
  set_thief(k, hak_load_relaxed(&k->thief) | HAK_HEAP_CREDIT);
}

/* The other way, if a limit does not say no. */
static void take_back_in(hak_heap_cache *k) {
  hak_assert_held(&hak_heaps_lock);
  if (!hak_heap_is_aside(k) || !hak_heap_cache_has_heap(k)) return;
  give_credit(k);
  size_t bytes = cached_bytes(k);
  if (bytes == 0 || hak_heap_charge(k->entry->heap, bytes) == NULL)
    set_thief(k, 0);
  else
    begin_credit(k);
}

static void begin(hak_heap_cache *k, hak_heap *h) {
  hak_assert_held(&hak_heaps_lock);
  hak_store_relaxed(&k->life, 0); /* who sums up counts takes it for nobody's meanwhile */
  k->entry = hak_heap_entry_of(h);
  hak_store_relaxed(&k->requests, 0);
  k->credit_base = k->credit = k->credit_most = 0;
  k->turns = k->calls_seen = 0;
  for (unsigned code = 0; code < HAK_CODES; code++) k->top[code] = HAK_NULL_TOP;
  memset(k->batch, HAK_BATCH_FIRST, sizeof k->batch);
  hak_store_relaxed(&k->owner, h->owner);
  hak_store_release(&k->life, h->life);
  set_thief(k, 0);
  k->prev = NULL;
  k->next = h->caches;
  if (k->next != NULL) k->next->prev = k;
  hak_store_relaxed(&h->caches, k);
}

static hak_heap_cache *new_cache(const hak_tcache *t) {
  hak_heap_cache *k = (hak_heap_cache *)(void *)hak_meta_take();
  if (k == NULL) return NULL;
  k->busy = k->quick = k->thief = 0;
  memset(k->loaded, 0, sizeof k->loaded);
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
  unsigned first = hak_heap_first_place(h->owner);
  if (++th->misses[first] < HOT_AFTER) return NULL;
  th->misses[first] = 0;
  unsigned i = hak_heap_place_for(th, h->owner);
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

/* --- calls --- */

/* The thread's cache of the heap; NULL: it has none, and may or can have none. */
static hak_heap_cache *cache_for(hak_tcache *t, hak_heap *h, hak_deferred *d) {
  hak_heap_cache *k = hak_heap_find_own(h->owner);
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

/* Calls between two looks of an owner whether the limit is still near: a look takes the registry's lock. */
#define ASIDE_CALLS 64
/* Of the owner's calls near a limit one in ASIDE_CALLS looks whether that still is so, and whether there is credit: it
 * takes the long way. */
static bool has_turn(const hak_heap_cache *k) { return k->turns % ASIDE_CALLS == 0; }
static void end_turn(hak_heap_cache *k) { hak_add_single(&k->turns, 1); }

static bool may_have_credit(const hak_heap *h) {
  while (h != NULL && hak_heap_gives_credit(h)) h = h->parent;
  return h == NULL;
}

/* The thread has entered the cache: so a thief finds it at its cache, or the thread sees what the thief had seen. To
 * count again takes a look at all classes, and may be refused. */
HAK_INLINE void settle(hak_heap_cache *k, const hak_heap *h) {
  bool near = is_near(h), turn = has_turn(k);
  end_turn(k);
  if (HAK_LIKELY(!near && !hak_heap_is_aside(k))) return;
  if (!turn && (near == hak_heap_is_aside(k) || !near)) return;
  bool credit = near && may_have_credit(h);
  if (near != hak_heap_is_aside(k) || credit != hak_heap_has_credit(k)) settle_now(k, h, near, credit);
}

/* --- credit; the owner, in its cache --- */

/* A lock of the heap under which the cache charges. Any will do: of the bins that were made with that of the class,
 * threads have different ones. */
static hak_lock *lock_of(const hak_heap_cache *k, const hak_heap *h, unsigned c) {
  if (hak_heap_class_is_large(c)) return hak_heap_lock(h);
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
  k->credit_most = (int64_t)(2 * hak_max_size(credit, CREDIT_LEAST));
}
static void add_credit(hak_heap_cache *k, int64_t bytes) { hak_add_single(&k->credit, bytes); }

/* Under the lock under which that is charged. */
static void add_charged(hak_heap_cache *k, int64_t bytes) {
  k->credit_base += bytes;
  add_credit(k, bytes);
}

static HAK_NOINLINE hak_heap *raise_credit(hak_heap_cache *k, hak_heap *h, unsigned c) {
  hak_lock *lock = lock_of(k, h, c);
  hak_lock_take(lock);
  HAK_ASSERT(k->credit >= 0 && k->credit == exact_credit(k));
  size_t needed = hak_heap_cached_size(c) - (size_t)k->credit, room = hak_heap_room(h);
  size_t more = room > needed ? credit_of_room(room - needed) : 0;
  hak_heap *refuser = hak_heap_charge(h, needed + more);
  if (refuser != NULL && more != 0) {
    more = 0;
    refuser = hak_heap_charge(h, needed);
  }
  if (refuser == NULL) {
    add_charged(k, (int64_t)(needed + more));
    set_most(k, more);
  }
  hak_lock_drop(lock);
  return refuser;
}

/* Of a deleted heap, which ends with the last that is charged, it goes when the cache does. */
static HAK_NOINLINE void lower_credit(hak_heap_cache *k, hak_heap *h, unsigned c) {
  hak_lock *lock = lock_of(k, h, c);
  hak_lock_take(lock);
  size_t credit = (size_t)k->credit, part = credit_of_room(hak_heap_room(h) + credit);
  size_t kept = hak_max_size(part, CREDIT_LEAST);
  if (kept < credit && !hak_load_relaxed(&h->is_deleted)) {
    add_charged(k, -(int64_t)(credit - kept));
    hak_heap_uncharge(h, credit - kept);
  }
  set_most(k, part);
  hak_lock_drop(lock);
}

/* Without credit a block is charged where it leaves the cache, under one hold of a lock: a fork's child has both or
 * neither. */
static HAK_NOINLINE hak_heap_try pop_charging(hak_heap_cache *k, hak_heap *h, unsigned c) {
  hak_heap_try r = {0};
  hak_lock *lock = lock_of(k, h, c);
  hak_lock_take(lock);
  r.refuser = hak_heap_charge(h, hak_heap_cached_size(c));
  if (r.refuser == NULL) r.p = hak_magazine_pop(&k->top[c + 1]);
  hak_lock_drop(lock);
  return r;
}

static HAK_NOINLINE bool push_uncharging(hak_heap_cache *k, hak_heap *h, unsigned c, void *p) {
  hak_lock *lock = lock_of(k, h, c);
  hak_lock_take(lock);
  bool done = !hak_load_relaxed(&h->is_deleted) && hak_magazine_push(&k->top[c + 1], p);
  if (done) hak_heap_uncharge(h, hak_heap_cached_size(c));
  hak_lock_drop(lock);
  return done;
}

/* A block of a cache that is aside, which has one, is about to be the program's: it counts. */
HAK_INLINE hak_heap_try pop_aside(hak_heap_cache *k, hak_heap *h, unsigned c) {
  hak_heap_try r = {0};
  if (HAK_UNLIKELY(!hak_heap_has_credit(k))) return pop_charging(k, h, c);
  int64_t bytes = (int64_t)hak_heap_cached_size(c);
  if (HAK_UNLIKELY(k->credit < bytes) && (r.refuser = raise_credit(k, h, c)) != NULL) return r;
  add_credit(k, -bytes);
  r.p = hak_magazine_pop(&k->top[c + 1]);
  return r;
}

/* The other way. False: there is no room, or the heap was deleted, and its blocks go to their slabs. */
HAK_INLINE bool push_aside(hak_heap_cache *k, hak_heap *h, unsigned c, void *p) {
  if (HAK_UNLIKELY(!hak_heap_has_credit(k))) return push_uncharging(k, h, c, p);
  if (!hak_magazine_push(&k->top[c + 1], p)) return false;
  add_credit(k, (int64_t)hak_heap_cached_size(c));
  if (HAK_UNLIKELY(k->credit > k->credit_most)) lower_credit(k, h, c);
  return true;
}

static hak_heap_try pop(hak_heap_cache *k, hak_heap *h, unsigned c) {
  hak_heap_try r = {0};
  HAK_ASSERT(hak_heap_is_at(k) && hak_heap_cached_count(k, c) > 0);
  if (hak_heap_is_aside(k))
    r = pop_aside(k, h, c);
  else
    r.p = hak_magazine_pop(&k->top[c + 1]);
  if (r.p != NULL) hak_add_single(&k->requests, 1);
  return r;
}

/* Of a cache that is aside nothing is taken for a block that is refused. */
static hak_heap_try refill(hak_heap_cache *k, hak_heap *h, unsigned c) {
  hak_heap_try r = {0};
  HAK_ASSERT(hak_heap_cached_count(k, c) == 0);
  unsigned wanted = (unsigned)hak_min_size(k->batch[c], hak_heap_usable(c));
  bool aside = hak_heap_is_aside(k);
  size_t size = hak_heap_cached_size(c), credit = hak_heap_has_credit(k) ? (size_t)k->credit : 0;
  if (aside && credit < size && (r.refuser = hak_heap_refuser(h, size - credit)) != NULL) return r;
  hak_lock_take(hak_heap_bin_lock(h, c));
  unsigned n = hak_heap_take_locked(h, c, k->top[c + 1] + 1, wanted, !aside, &r.refuser);
  k->credit_base -= (int64_t)(n * size);
  hak_store_relaxed(&k->top[c + 1], k->top[c + 1] + n);
  hak_lock_drop(hak_heap_bin_lock(h, c));
  if (n == 0) return r;
  k->batch[c] = (uint8_t)hak_min_size(k->batch[c] * 2u, hak_heap_usable(c) / 2);
  return pop(k, h, c);
}

/* There is room for it. False: the heap was deleted, and its blocks go to their slabs. */
static bool push(hak_heap_cache *k, hak_heap *h, unsigned c, void *p) {
  HAK_ASSERT(hak_heap_is_at(k) && has_magazine(k, c) && hak_heap_cached_count(k, c) < hak_heap_usable(c));
  return hak_heap_is_aside(k) ? push_aside(k, h, c, p) : hak_magazine_push(&k->top[c + 1], p);
}

hak_heap_try hak_heap_cached_alloc(hak_tcache *t, hak_heap *h, unsigned c, hak_deferred *d) {
  hak_heap_try r = {0};
  hak_heap_cache *k = cache_for(t, h, d);
  if (k == NULL) return r;
  enter(k);
  settle(k, h);
  if (!is_empty(k, c))
    r = pop(k, h, c);
  else if (!hak_heap_class_is_large(c) && load(k, c))
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
    if (!hak_heap_class_is_large(c)) break;
  }
  return false;
}

bool hak_heap_cached_free(hak_tcache *t, hak_heap *h, unsigned c, void *p, hak_deferred *d) {
  hak_heap_cache *k = cache_for(t, h, d);
  if (k == NULL) return false;
  enter(k);
  settle(k, h);
  bool done = load(k, c);
  if (done && is_full(k, c)) put_oldest(k, c, (hak_heap_usable(c) + 1) / 2, d);
  if (done && HAK_CHECKS && is_cached(k, c, p))
    hak_deferred_note(d, HAK_VERDICT_DOUBLE_FREE, p, c, "at the call");
  else if (done)
    done = push(k, h, c, p);
  leave(k);
  return done;
}

/* The owner alone takes ASIDE away, and looks whether the limit is still near in the long way, now and then. */
static bool is_at_aside(hak_heap_cache *k) {
  HAK_ASSERT(hak_heap_is_at(k));
  if ((hak_load_acquire(&k->thief) & (HAK_HEAP_THIEF | HAK_HEAP_ASIDE)) != HAK_HEAP_ASIDE || has_turn(k)) return false;
  end_turn(k);
  return true;
}

HAK_NOINLINE void *hak_heap_pop_met(hak_heap_cache *k, hak_heap *h, unsigned c) {
  void *p = NULL;
  if (is_at_aside(k) && !is_empty(k, c)) p = pop(k, h, c).p;
  hak_heap_leave(k);
  return p;
}

HAK_NOINLINE bool hak_heap_push_met(hak_heap_cache *k, void *p) {
  unsigned c = HAK_TAG_CODE(hak_heap_tag_of(p)) - 1; /* a large block's is no class */
  bool done = is_at_aside(k) && c < HAK_CLASS_COUNT && push_aside(k, k->entry->heap, c, p);
  hak_heap_leave(k);
  return done;
}

HAK_NOINLINE bool hak_heap_push_large(void *p) {
  const hak_span *s = hak_region_span(&hak_main_region, p);
  size_t bytes = s->head == s ? hak_heap_large_size(s, p) : 0;
  unsigned c = hak_heap_large_class(bytes);
  if (bytes == 0 || c == HAK_CLASS_COUNT) return false;
  hak_heap_cache *met, *k = hak_heap_enter_own(HAK_TAG_OWNER(s->tag), &met);
  bool done = k != NULL && !(HAK_CHECKS && is_cached(k, c, p)) && hak_magazine_push(&k->top[c + 1], p);
  if (k != NULL || met != NULL) hak_heap_leave(k != NULL ? k : met);
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
    uint32_t calls = hak_heap_calls(k), seen = k->calls_seen;
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
  uint32_t calls = hak_heap_calls(k), seen = k->calls_at_turn;
  k->theft = of->number;
  if (of->idle) k->calls_at_turn = calls;
  if (of->idle && (seen != calls || hak_heap_next_loaded(k, 0) == HAK_CLASS_COUNT)) return;
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
  for (unsigned i = 0; i < of->count; i++) set_thief(of->group[i], of->group[i]->thief | HAK_HEAP_THIEF);
  of->works = hak_os_barrier();
  for (unsigned i = 0; i < of->count; i++) {
    hak_heap_cache *k = of->group[i];
    bool has = of->works && !hak_heap_is_at(k);
    of->missed |= of->works && !has;
    if (has && of->aside)
      drain(k);
    else if (has)
      empty(k, d);
    set_thief(k, k->thief & ~HAK_HEAP_THIEF);
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
  hak_store_relaxed(&k->open, HAK_HEAP_NOBODY);
  hak_store_relaxed(&k->owner, HAK_HEAP_NOBODY);
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

/* What the cache has is nobody's: it stays charged where it was, and is not live. */
static void lose(hak_heap_cache *k) {
  hak_heap_counts lost = {0};
  hak_heap_add_cached(&lost, k);
  hak_heap_note_put(k->entry->heap, (unsigned)lost.blocks, lost.bytes);
}

/* What other threads had cached is lost there, as of the main heap: they may have been in the middle of a push. */
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
      give_credit(k); /* what it is fits the tops, wherever the thread was */
      lose(k);
      k->entry->heap->has_lost |= is_aside && hak_heap_is_at(k);
      unlink_cache(k);
    }
    t->heaps = NULL;
  }
}

/* What the thief of the parent was at is lost. It may have stored `thief`, and not yet `open`. */
void hak_heap_fork_child_alone(void) {
  const hak_tcache *t = hak_tls.cache;
  const hak_thread_heaps *th = t == NULL ? NULL : hak_thread_heaps_of(t);
  for (unsigned i = 0; th != NULL && i < HAK_HEAPS_OF_THREAD; i++) {
    hak_heap_cache *k = th->caches[i];
    if (k == &hak_no_heap_cache) continue;
    if (waits(k) && !hak_heap_is_at(k)) {
      if (hak_heap_cache_has_heap(k)) {
        lose(k);
        k->entry->heap->has_lost |= hak_heap_is_aside(k);
      }
      for (unsigned code = 0; code < HAK_CODES; code++) k->top[code] = HAK_NULL_TOP;
      memset(k->loaded, 0, sizeof k->loaded);
    }
    set_thief(k, k->thief & ~HAK_HEAP_THIEF);
  }
}
