/* Which heaps there are: a table by index, a list by age, a tree by parent; and what counts to their limits. */
#include <errno.h>
#include <string.h>

#include "heap/cache.h"

_Static_assert(sizeof(struct hakmem_heap) <= HAK_META_SIZE, "a heap is a metadata block");

#define CHUNK (HAK_META_SIZE / sizeof(hak_heap_entry))
#define END_LOCKS 32 /* who ends heaps all the time does so on one CPU of as many */

_Static_assert(HAK_CLASS_COUNT < HAK_HEAP_LOCKS, "the bins of a heap have different locks");

hak_lock hak_heaps_lock, hak_pieces_lock;
/* Chunks of entries, metadata blocks that stay. Written under the lock, released; read by any thread. */
static hak_heap_entry *chunks[HAK_HEAPS_MAX / CHUNK];
static uint32_t indices;     /* used so far; relaxed */
static uint32_t free_index;  /* + 1; each free entry has the next one's, as a number */
static uint64_t latest_life; /* and id */
static size_t heap_count, deleted_count; /* relaxed; without deleted ones, and these */
static hak_heap *oldest, *newest;
/* A stack: pushed under a heap's locks (release), popped under the registry lock, so by one at a time: none comes back
 * meanwhile */
hak_heap *hak_heaps_ended;

hak_shared_lock hak_heap_own_locks[HAK_HEAP_LOCKS], hak_heap_bin_locks[HAK_HEAP_LOCKS];
static hak_shared_lock end_locks[END_LOCKS];

hak_lock *hak_heap_end_lock(const hak_heap *h) {
  return &end_locks[h == NULL ? 0 : hak_heap_index(h) % END_LOCKS].lock;
}

static hak_heap_entry *entry_at(uint32_t index) {
  hak_heap_entry *chunk =
      index / CHUNK < sizeof chunks / sizeof *chunks ? hak_load_acquire(&chunks[index / CHUNK]) : NULL;
  return chunk == NULL ? NULL : &chunk[index % CHUNK];
}

hak_heap_entry *hak_heap_entry_of(const hak_heap *h) { return entry_at(hak_heap_index(h)); }

hak_heap *hak_heap_at_entry(const hak_heap_entry *entry) {
  hak_heap *h = hak_load_acquire(&entry->heap);
  return (uintptr_t)h % 2 == 0 ? h : NULL;
}

hak_heap *hak_heap_of_owner(uint32_t owner) {
  const hak_heap_entry *entry = owner < HAK_OWNER_HEAPS ? NULL : entry_at(owner - HAK_OWNER_HEAPS);
  return entry == NULL ? NULL : hak_heap_at_entry(entry);
}

/* --- life --- */

static bool take_index(uint32_t *index) {
  hak_assert_held(&hak_heaps_lock);
  if (free_index != 0) {
    *index = free_index - 1;
    free_index = (uint32_t)((uintptr_t)entry_at(*index)->heap / 2);
    return true;
  }
  if (indices == HAK_HEAPS_MAX) return false;
  if (chunks[indices / CHUNK] == NULL) {
    hak_heap_entry *chunk = (hak_heap_entry *)(void *)hak_meta_take();
    if (chunk == NULL) return false;
    memset(chunk, 0, HAK_META_SIZE);
    hak_store_release(&chunks[indices / CHUNK], chunk);
  }
  *index = indices;
  hak_add_single(&indices, 1);
  return true;
}

static void begin_life_locked(hak_heap *h, hak_heap *parent) {
  hak_assert_held(&hak_heaps_lock);
  h->life = ++latest_life;
  h->has_lost = false;
  hak_store_relaxed(&h->near_limit, (h->near_limit & ~HAK_HEAP_NEAR_STATE) + HAK_HEAP_NEAR_STEP);
  h->parent = parent;
  if (parent != NULL) {
    h->prev_sibling = NULL;
    h->next_sibling = parent->first_child;
    if (h->next_sibling != NULL) h->next_sibling->prev_sibling = h;
    hak_store_relaxed(&parent->first_child, h);
  }
  hak_heap_entry *entry = entry_at(hak_heap_index(h));
  hak_store_relaxed(&entry->life, h->life);
  hak_store_release(&entry->heap, h);
}

static void link_locked(hak_heap *h, hak_heap *parent) {
  begin_life_locked(h, parent);
  h->id = h->life;
  h->prev = newest;
  if (newest != NULL)
    newest->next = h;
  else
    oldest = h;
  newest = h;
  hak_add_single(&heap_count, 1);
}

static bool is_wrong(const hakmem_heap_options *o) {
  return o->size != sizeof *o || (o->flags & ~HAKMEM_HEAP_UNCACHED) != 0 ||
         (o->name != NULL && strnlen(o->name, HAK_HEAP_NAME) == HAK_HEAP_NAME);
}

hak_heap *hak_heap_make(const hakmem_heap_options *options) {
  static const hakmem_heap_options none = {.size = sizeof none};
  const hakmem_heap_options *o = options == NULL ? &none : options;
  if (is_wrong(o)) {
    errno = EINVAL;
    return NULL;
  }
  hak_heap *h = (hak_heap *)(void *)hak_meta_take();
  if (h != NULL) {
    memset(h, 0, sizeof *h);
    h->flags = o->flags;
    h->limit = o->limit == 0 ? SIZE_MAX : o->limit;
    h->share = SIZE_MAX;
    if (o->name != NULL) strcpy(h->name, o->name);
    hak_lock_take(&hak_heaps_lock);
    uint32_t index = 0;
    bool has_index = take_index(&index);
    h->owner = h->mappings.owner = HAK_OWNER_HEAPS + index;
    if (has_index) link_locked(h, o->parent);
    hak_lock_drop(&hak_heaps_lock);
    if (has_index) return h;
    hak_meta_give_one(h);
  }
  errno = ENOMEM;
  return NULL;
}

bool hak_heap_exists(const hak_heap *h) {
  uint32_t owner = h->owner;
  return (uintptr_t)h % HAK_META_SIZE == 0 && owner - HAK_OWNER_HEAPS < HAK_HEAPS_MAX &&
         hak_heap_of_owner(owner) == h && h->life != 0;
}

static void leave_parent(hak_heap *h, bool counts) {
  hak_assert_held(&hak_heaps_lock);
  if (h->parent == NULL) return;
  hak_heap **link = h->prev_sibling != NULL ? &h->prev_sibling->next_sibling : &h->parent->first_child;
  hak_store_relaxed(link, h->next_sibling);
  if (h->next_sibling != NULL) h->next_sibling->prev_sibling = h->prev_sibling;
  size_t out = hak_load_relaxed(&h->out);
  for (hak_heap *above = h->parent; counts && out != 0 && above != NULL; above = above->parent)
    hak_sub_relaxed(&above->out, out);
  h->parent = NULL;
}

/* What threads have cached of a life that ends is nobody's. */
static void disown_caches_locked(hak_heap *h) {
  hak_assert_held(&hak_heaps_lock);
  for (hak_heap_cache *k = h->caches; k != NULL; k = k->next) {
    hak_store_relaxed(&k->open, HAK_HEAP_NOBODY);
    hak_store_relaxed(&k->owner, HAK_HEAP_NOBODY);
  }
  hak_store_relaxed(&h->caches, NULL);
}

static void end_life_locked(hak_heap *h, bool counts) {
  hak_assert_held(&hak_heaps_lock);
  HAK_ASSERT(h->first_child == NULL && h->life != 0);
  leave_parent(h, counts);
  hak_heap_entry *entry = entry_at(hak_heap_index(h));
  hak_store_relaxed(&entry->life, 0);
  hak_store_release(&entry->heap, NULL);
  hak_store_relaxed(&h->life, 0);
  disown_caches_locked(h);
}

static void leave_list(hak_heap *h) {
  if (h->is_unlisted) return;
  h->is_unlisted = true;
  *(h->prev != NULL ? &h->prev->next : &oldest) = h->next;
  *(h->next != NULL ? &h->next->prev : &newest) = h->prev;
}

/* Returns what has to be given back once the lock is dropped: heaps that have ended, linked by `next`. */
static hak_heap *hide_locked(hak_heap *h) {
  hak_heap *goes = NULL;
  hak_assert_held(&hak_heaps_lock);
  for (hak_heap *last = h; last != NULL; h = last) {
    HAK_ASSERT(h->shown > 0);
    bool ends = --h->shown == 0 && h->is_released;
    last = ends ? h->lasting : NULL;
    if (!ends) continue;
    leave_list(h);
    h->next = goes;
    goes = h;
  }
  return goes;
}

static void give_chain(hak_heap *h) {
  for (hak_heap *next; h != NULL; h = next) {
    next = h->next;
    hak_meta_give_one(h);
  }
}

/* Before it leaves its parent. Who has been shown it may have asked it for that one. */
static void keep_parent(hak_heap *h) {
  if (h->shown == 0 || h->parent == NULL) return;
  h->lasting = h->parent;
  h->parent->shown++;
}

/* Where walks are at it, it stays in the list. */
static void unlink_locked(hak_heap *h, bool counts) {
  keep_parent(h);
  end_life_locked(h, counts);
  hak_sub_single(h->is_deleted ? &deleted_count : &heap_count, 1);
  if (h->shown == 0) leave_list(h);
}

void hak_heap_release(hak_heap *h) {
  hak_lock_take(&hak_heaps_lock);
  hak_heap_entry *entry = entry_at(hak_heap_index(h));
  HAK_ASSERT(h->life == 0 && entry->heap == NULL && entry->life == 0);
  hak_store_release(&entry->heap, (hak_heap *)((uintptr_t)free_index * 2 + 1));
  free_index = hak_heap_index(h) + 1;
  h->is_released = true;
  h->shown++;
  hak_heap *goes = hide_locked(h);
  hak_lock_drop(&hak_heaps_lock);
  give_chain(goes);
}

void hak_heap_end_life(hak_heap *h, bool is_top, bool stays) {
  hak_lock_take(&hak_heaps_lock);
  stays ? end_life_locked(h, is_top) : unlink_locked(h, is_top);
  hak_lock_drop(&hak_heaps_lock);
}

HAK_COLD void hak_heap_begin_life(hak_heap *h, hak_heap *parent) {
  HAK_ASSERT(h->life == 0 && h->pieces == NULL && h->span_count == 0 && h->mappings.root == NULL);
  hak_lock_take(&hak_heaps_lock);
  h->out = h->taken = h->peak = h->cached = h->looked_until = 0;
  h->blocks = h->requests = h->refused = 0;
  memset(h->bins, 0, sizeof h->bins);
  memset(h->bumped, 0, sizeof h->bumped);
  begin_life_locked(h, parent);
  hak_lock_drop(&hak_heaps_lock);
}

/* Frees charge under the heap's locks: with all of them, none is between two heaps. */
void hak_heap_set_deleted(hak_heap *h) {
  hak_lock_take(&hak_heaps_lock);
  HAK_ASSERT(h->first_child == NULL && h->life != 0 && !h->is_deleted);
  hak_heap_take_locks(h);
  keep_parent(h);
  leave_parent(h, true);
  hak_store_relaxed(&h->limit, SIZE_MAX);
  hak_store_relaxed(&h->share, SIZE_MAX);
  hak_store_relaxed(&h->is_deleted, true);
  hak_heap_note_end(h);
  hak_heap_drop_locks(h);
  hak_sub_single(&heap_count, 1);
  hak_add_single(&deleted_count, 1);
  hak_lock_drop(&hak_heaps_lock);
}

/* Two threads that give back the last blocks, under two locks, may both find that there is none left. */
void hak_heap_note_end(hak_heap *h) {
  if (HAK_LIKELY(!hak_load_relaxed(&h->is_deleted)) || hak_load_relaxed(&h->out) != 0 ||
      hak_exchange_acquire(&h->has_ended, true))
    return;
  hak_heap *first = hak_load_relaxed(&hak_heaps_ended);
  do hak_store_relaxed(&h->next_ended, first);
  while (!__atomic_compare_exchange_n(&hak_heaps_ended, &first, h, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

/* Nobody has a block of it: nobody comes by it any more, but for caches that have nothing of it. Who gave the last one
 * back may still have a lock of it. */
hak_heap *hak_heap_take_ended(void) {
  hak_lock_take(&hak_heaps_lock);
  hak_heap *h = hak_load_acquire(&hak_heaps_ended);
  while (h != NULL && !__atomic_compare_exchange_n(&hak_heaps_ended, &h, hak_load_relaxed(&h->next_ended), true,
                                                   __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
  }
  if (h != NULL) {
    hak_heap_take_locks(h);
    hak_heap_drop_locks(h);
    unlink_locked(h, true);
  }
  hak_lock_drop(&hak_heaps_lock);
  return h;
}

/* --- locks --- */

static uint16_t made_bins(const hak_heap *h) {
  unsigned made = 0;
  for (unsigned i = 0; i < HAK_HEAP_BIN_BLOCKS; i++) made |= (unsigned)(hak_load_acquire(&h->bins[i]) != NULL) << i;
  return (uint16_t)made;
}

static void take(hak_lock *lock) { hak_lock_take(lock); }
static void drop(hak_lock *lock) { hak_lock_drop(lock); }

/* The locks of those of the `bins` that have one, by place: some of the last classes come first. */
static void each_bin_lock(const hak_heap *h, uint16_t bins, void (*call)(hak_lock *lock)) {
  unsigned first = HAK_HEAP_LOCKS - hak_heap_bin_place(h, 0);
  for (unsigned n = 0; n < 2; n++) {
    unsigned from = n == 0 ? first : 0, end = n == 0 ? HAK_CLASS_COUNT : (unsigned)hak_min_size(first, HAK_CLASS_COUNT);
    for (unsigned c = from; c < end; c++) {
      if ((bins >> c / HAK_HEAP_BINS & 1) != 0) call(hak_heap_bin_lock(h, c));
    }
  }
}

/* Bins are made under the heap's own lock, which comes last: those that others make meanwhile have to be waited for,
 * too. */
void hak_heap_take_locks(hak_heap *h) {
  for (;;) {
    uint16_t made = made_bins(h);
    each_bin_lock(h, made, take);
    hak_lock_take(hak_heap_lock(h));
    h->locked_bins = made;
    if (made_bins(h) == made) return;
    hak_heap_drop_locks(h);
  }
}

void hak_heap_drop_locks(hak_heap *h) {
  uint16_t locked = h->locked_bins;
  hak_lock_drop(hak_heap_lock(h));
  each_bin_lock(h, locked, drop);
}

/* --- fork --- */

static bool each_of(hak_shared_lock *locks, size_t count, bool (*call)(hak_lock *lock)) {
  for (size_t i = 0; i < count; i++) {
    if (!call(&locks[i].lock)) return false;
  }
  return true;
}

static bool each_shared_lock(bool (*call)(hak_lock *lock)) {
  return each_of(hak_heap_bin_locks, HAK_HEAP_LOCKS, call) && each_of(hak_heap_own_locks, HAK_HEAP_LOCKS, call);
}

static bool take_one(hak_lock *lock) { return hak_lock_take(lock), true; }
static bool drop_one(hak_lock *lock) { return hak_lock_drop(lock), true; }
/* A handler of the program that runs in fork's window may have made the first heap, and keeps what it takes. */
static bool drop_if_held(hak_lock *lock) { return hak_load_relaxed(&lock->state) == 0 || drop_one(lock); }

void hak_heap_fork_lock_ends(void) { each_of(end_locks, END_LOCKS, take_one); }
void hak_heap_fork_unlock_ends(void) { each_of(end_locks, END_LOCKS, drop_one); }

static bool fork_has_shared; /* registry lock */

/* With the registry lock nobody makes the first heap. */
void hak_heap_fork_lock(void) {
  hak_lock_take(&hak_heaps_lock);
  fork_has_shared = indices != 0;
  if (fork_has_shared) each_shared_lock(take_one);
  hak_lock_take(&hak_pieces_lock);
}

void hak_heap_fork_unlock(void) {
  hak_lock_drop(&hak_pieces_lock);
  if (indices != 0) each_shared_lock(fork_has_shared ? drop_one : drop_if_held);
  hak_lock_drop(&hak_heaps_lock);
}

bool hak_heap_all_locks(bool (*is)(hak_lock *lock)) {
  return each_of(end_locks, END_LOCKS, is) && is(&hak_heaps_lock) &&
         (hak_load_relaxed(&indices) == 0 || each_shared_lock(is)) && is(&hak_pieces_lock);
}

/* --- walks --- */

static hak_heap *next_locked(const hak_heap *h) {
  hak_assert_held(&hak_heaps_lock);
  return h == NULL ? oldest : h->next;
}

hak_heap *hak_heap_next_locked(const hak_heap *h) {
  hak_heap *next = next_locked(h);
  while (next != NULL && next->life == 0) next = next->next;
  return next;
}

hak_heap *hak_heap_next_below_locked(hak_heap *h, const hak_heap *top) {
  hak_assert_held(&hak_heaps_lock);
  if (h->first_child != NULL) return h->first_child;
  while (h != top && h->next_sibling == NULL) h = h->parent;
  return h == top ? NULL : h->next_sibling;
}

/* Heaps passed by in one hold of the lock, each a cache miss: some microseconds. */
#define PASSED_AT_ONCE 64
static hak_heap *step(hak_heap *shown, bool deleted, bool *suits) {
  hak_lock_take(&hak_heaps_lock);
  hak_heap *h = next_locked(shown);
  for (unsigned steps = PASSED_AT_ONCE;; h = h->next) {
    *suits = h == NULL || (h->life != 0 && (deleted || !hak_load_relaxed(&h->is_deleted)));
    if (*suits || --steps == 0) break;
  }
  if (h != NULL) h->shown++;
  hak_heap *goes = shown == NULL ? NULL : hide_locked(shown);
  hak_lock_drop(&hak_heaps_lock);
  give_chain(goes);
  return h;
}

hak_heap *hak_heap_show_next(hak_heap *shown, bool deleted) {
  bool suits;
  do shown = step(shown, deleted, &suits);
  while (!suits);
  return shown;
}

void hak_heap_show_end(hak_heap *shown) {
  hak_lock_take(&hak_heaps_lock);
  hak_heap *goes = hide_locked(shown);
  hak_lock_drop(&hak_heaps_lock);
  give_chain(goes);
}

hak_heap *hak_heap_rest_at_locked(hak_heap *h, hak_heap *shown) {
  h->shown++;
  hak_heap *goes = shown == NULL ? NULL : hide_locked(shown);
  hak_lock_drop(&hak_heaps_lock);
  give_chain(goes);
  hak_lock_take(&hak_heaps_lock);
  return h;
}

uint32_t hak_heap_indices(void) { return hak_load_relaxed(&indices); }

size_t hak_heap_count(void) { return hak_load_relaxed(&heap_count); }
bool hak_heap_some(void) { return (hak_load_relaxed(&heap_count) | hak_load_relaxed(&deleted_count)) != 0; }

bool hak_heap_caches(const hak_heap *h) {
  return h->flags == 0 && !hak_load_relaxed(&h->is_deleted) && hak_config.hot_ring_enable != 0;
}

/* --- what counts --- */

static bool charge_one(hak_heap *h, size_t bytes) {
  size_t out = hak_load_relaxed(&h->out);
  do {
    if (HAK_UNLIKELY(!hak_heap_has_room(h, out, bytes))) return false;
  } while (!__atomic_compare_exchange_n(&h->out, &out, out + bytes, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return true;
}

static void charge_back_up_to(hak_heap *heap, const hak_heap *end, size_t bytes) {
  for (hak_heap *h = heap; h != end; h = h->parent) hak_sub_relaxed(&h->out, bytes);
}

/* Below 0: the sum has to fall. */
static int64_t room_of_one(const hak_heap *h) {
  return (int64_t)(hak_min_size(hak_heap_most(h), INT64_MAX) - hak_load_relaxed(&h->out));
}

size_t hak_heap_room(const hak_heap *h) {
  int64_t room = INT64_MAX;
  for (; h != NULL; h = h->parent) room = room_of_one(h) < room ? room_of_one(h) : room;
  return room < 0 ? 0 : (size_t)room;
}

hak_heap *hak_heap_refuser(hak_heap *heap, size_t bytes) {
  for (hak_heap *h = heap; h != NULL; h = h->parent) {
    if (!hak_heap_has_room(h, hak_load_relaxed(&h->out), bytes)) return h;
  }
  return NULL;
}

/* Where a heap above would refuse, those below it are not charged for a moment: others' requests would be refused by
 * these, which have room. */
hak_heap *hak_heap_charge_all(hak_heap *heap, size_t bytes) {
  hak_heap *refuser = heap->parent == NULL ? NULL : hak_heap_refuser(heap, bytes);
  if (refuser != NULL) return refuser;
  for (hak_heap *h = heap; h != NULL; h = h->parent) {
    if (HAK_LIKELY(charge_one(h, bytes))) continue;
    charge_back_up_to(heap, h, bytes);
    return h;
  }
  return NULL;
}

void hak_heap_charge_back(hak_heap *heap, size_t bytes) { charge_back_up_to(heap, NULL, bytes); }

size_t hak_heap_share(const hak_heap *h) {
  size_t limit = hak_load_relaxed(&h->limit), percent = hak_load_relaxed(&h->percent);
  return limit == SIZE_MAX || hak_load_relaxed(&h->callback) == NULL
             ? SIZE_MAX
             : limit / 100 * percent + limit % 100 * percent / 100;
}

#define FALLS_BY 16 /* part of the limit, as hakmem/heap.h promises */
static HAK_COLD void look_again(hak_heap *h, size_t out) {
  size_t share = hak_heap_share(h), by = hak_load_relaxed(&h->limit) / FALLS_BY, called = HAK_HEAP_CALLED;
  if (share == SIZE_MAX || share < by || out > share - by) return;
  hak_cas_acquire(&h->share, &called, share == 0 ? 0 : share - 1);
}

/* What is refused next has to empty caches, which takes a barrier of all threads, some 10 us for each: so not more
 * often than that. */
#define NEAR_LEAST_MS 10

static bool has_waited(const hak_heap *h) {
  return hak_os_now_ms() - hak_load_relaxed(&h->near_since_ms) >= NEAR_LEAST_MS;
}

static bool end_drained(hak_heap *h, uint32_t word, uint32_t state) {
  uint32_t next = (word & ~HAK_HEAP_NEAR_STATE) + HAK_HEAP_NEAR_STEP + state;
  return __atomic_compare_exchange_n(&h->near_limit, &word, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* The sum has fallen as far as it has to for a callback: blocks may go into caches again. */
static HAK_COLD void leave_limit(hak_heap *h, size_t out, uint32_t word) {
  size_t limit = hak_load_relaxed(&h->limit);
  if (HAK_LIKELY(out > limit - limit / FALLS_BY)) return;
  size_t most = hak_min_size(limit, hak_heap_share(h));
  if (out <= most - most / FALLS_BY && has_waited(h)) end_drained(h, word, HAK_HEAP_NOT_NEAR);
}

/* The sum is looked at between two looks that find it drained, with no end of that between them. */
static bool refuses_drained(const hak_heap *h, size_t bytes) {
  uint32_t drained = hak_heap_drained(h);
  return drained != 0 && !hak_heap_has_room(h, hak_load_acquire(&h->out), bytes) && hak_heap_drained(h) == drained;
}

bool hak_heap_refuses(hak_heap *heap, size_t bytes) {
  hak_heap *h = hak_heap_refuser(heap, bytes);
  if (h == NULL || hak_load_relaxed(&h->share) < hak_load_relaxed(&h->limit)) return false;
  /* Below it the thread may have a credit, which the long way gives back first. */
  bool is_storm = h == heap && hak_load_relaxed(&h->first_child) == NULL && hak_heap_is_in_storm(h);
  if (!is_storm && !refuses_drained(h, bytes)) return false;
  hak_add_relaxed(&h->refused, 1);
  return true;
}

/* Refusals since a drain, while the next is not due, each exact: what all threads charge then passes from core to core
 * at each call. From there on credits make up for it. */
#define STORM_REFUSALS 1024

static bool has_refused_many(const hak_heap *h) {
  return hak_load_relaxed(&h->refused) - hak_load_relaxed(&h->near_refused) >= STORM_REFUSALS;
}

bool hak_heap_is_in_storm(const hak_heap *h) {
  return (hak_load_relaxed(&h->near_limit) & HAK_HEAP_NEAR_STATE) == HAK_HEAP_STORM && !has_waited(h);
}

/* While the sum has to fall, each free is seen at once. */
static bool gives_credit(const hak_heap *h, uint32_t word) {
  uint32_t state = word & HAK_HEAP_NEAR_STATE;
  if (hak_heap_was_called(h) || room_of_one(h) < 0) return false;
  return state != HAK_HEAP_DRAINING && (state != HAK_HEAP_DRAINED || has_waited(h) || has_refused_many(h));
}

bool hak_heap_gives_credit(const hak_heap *h) { return gives_credit(h, hak_load_acquire(&h->near_limit)); }

/* Limits and callbacks change under the lock. */
bool hak_heap_begin_credit_locked(hak_heap *h) {
  hak_assert_held(&hak_heaps_lock);
  uint32_t word = hak_load_acquire(&h->near_limit);
  bool drained = (word & HAK_HEAP_NEAR_STATE) == HAK_HEAP_DRAINED;
  return gives_credit(h, word) && (!drained || end_drained(h, word, has_waited(h) ? HAK_HEAP_CREDITS : HAK_HEAP_STORM));
}

void hak_heap_uncharge(hak_heap *heap, size_t bytes) {
  for (hak_heap *h = heap; h != NULL; h = h->parent) {
    HAK_ASSERT(hak_load_relaxed(&h->out) >= bytes);
    size_t out = hak_sub_relaxed(&h->out, bytes);
    if (HAK_UNLIKELY(hak_heap_was_called(h))) look_again(h, out);
    uint32_t word = hak_load_acquire(&h->near_limit);
    if (HAK_UNLIKELY((word & HAK_HEAP_NEAR_STATE) >= HAK_HEAP_DRAINED)) leave_limit(h, out, word);
  }
}

void hak_heap_note_put(hak_heap *h, unsigned blocks, size_t bytes) {
  hak_sub_relaxed(&h->taken, bytes);
  hak_sub_relaxed(&h->blocks, blocks);
}
