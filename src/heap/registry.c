/* Which heaps there are: a table by index, a list by age, a tree by parent; and what counts to their limits. */
#include <errno.h>
#include <string.h>

#include "heap/heap.h"

_Static_assert(sizeof(struct hakmem_heap) <= HAK_META_SIZE, "a heap is a metadata block");

#define CHUNK (HAK_META_SIZE / sizeof(hak_heap_entry))

hak_lock hak_heaps_lock;
/* Chunks of entries, metadata blocks that stay. Written under the lock, released; read by any thread. */
static hak_heap_entry *chunks[HAK_HEAPS_MAX / CHUNK];
static uint32_t indices;     /* used so far */
static uint32_t free_index;  /* + 1; each free entry has the next one's, as a number */
static uint64_t latest_life; /* and id */
static size_t heap_count;
static hak_heap *oldest, *newest, *deleted_heaps;

static hak_lock ends_lock;
static const void *ends_holder; /* mark of the thread that has it; relaxed, right for that thread alone */
static unsigned ends_depth;     /* the same lock */

void hak_heap_hold_ends(void) {
  if (hak_load_relaxed(&ends_holder) != hak_thread_mark()) {
    hak_lock_take(&ends_lock);
    hak_store_relaxed(&ends_holder, hak_thread_mark());
  }
  ends_depth++;
}

void hak_heap_let_end(void) {
  HAK_ASSERT(hak_load_relaxed(&ends_holder) == hak_thread_mark() && ends_depth > 0);
  if (--ends_depth > 0) return;
  hak_store_relaxed(&ends_holder, NULL);
  hak_lock_drop(&ends_lock);
}

static hak_heap_entry *entry_at(uint32_t index) {
  hak_heap_entry *chunk = index / CHUNK < sizeof chunks / sizeof *chunks ? hak_load_acquire(&chunks[index / CHUNK]) : NULL;
  return chunk == NULL ? NULL : &chunk[index % CHUNK];
}

hak_heap_entry *hak_heap_entry_of(const hak_heap *h) { return entry_at(h->index); }

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
  *index = indices++;
  return true;
}

static void begin_life_locked(hak_heap *h, hak_heap *parent) {
  hak_assert_held(&hak_heaps_lock);
  h->life = ++latest_life;
  h->caches = NULL; /* those of its last life are nobody's */
  hak_store_relaxed(&h->near_limit, HAK_HEAP_NOT_NEAR);
  h->parent = parent;
  if (parent != NULL) {
    h->next_sibling = parent->first_child;
    parent->first_child = h;
  }
  hak_heap_entry *entry = entry_at(h->index);
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
  return o->size != sizeof *o || (o->flags & ~HAKMEM_HEAP_UNCACHED) != 0 || (o->name != NULL && strnlen(o->name, HAK_HEAP_NAME) == HAK_HEAP_NAME);
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
    bool has_index = take_index(&h->index);
    if (has_index) link_locked(h, o->parent);
    hak_lock_drop(&hak_heaps_lock);
    if (has_index) return h;
    hak_meta_give_one(h);
  }
  errno = ENOMEM;
  return NULL;
}

bool hak_heap_exists(const hak_heap *h) {
  uint32_t index = h->index;
  return (uintptr_t)h % HAK_META_SIZE == 0 && index < HAK_HEAPS_MAX && hak_heap_of_owner(HAK_OWNER_HEAPS + index) == h && h->life != 0;
}

static void leave_parent(hak_heap *h) {
  hak_assert_held(&hak_heaps_lock);
  if (h->parent == NULL) return;
  hak_heap **link = &h->parent->first_child;
  while (*link != h) link = &(*link)->next_sibling;
  *link = h->next_sibling;
  for (hak_heap *above = h->parent; above != NULL; above = above->parent) hak_sub_relaxed(&above->out, hak_load_relaxed(&h->out));
  h->parent = NULL;
}

static void end_life_locked(hak_heap *h) {
  hak_assert_held(&hak_heaps_lock);
  HAK_ASSERT(h->first_child == NULL && h->life != 0);
  leave_parent(h);
  hak_heap_entry *entry = entry_at(h->index);
  hak_store_relaxed(&entry->life, 0);
  hak_store_release(&entry->heap, NULL);
  hak_store_relaxed(&h->life, 0);
}

static void unlink_locked(hak_heap *h) {
  end_life_locked(h);
  if (!h->is_deleted) hak_sub_single(&heap_count, 1);
  *(h->prev != NULL ? &h->prev->next : &oldest) = h->next;
  *(h->next != NULL ? &h->next->prev : &newest) = h->prev;
}

void hak_heap_release(hak_heap *h) {
  hak_lock_take(&hak_heaps_lock);
  hak_heap_entry *entry = entry_at(h->index);
  HAK_ASSERT(h->life == 0 && entry->heap == NULL && entry->life == 0);
  hak_store_release(&entry->heap, (hak_heap *)((uintptr_t)free_index * 2 + 1));
  free_index = h->index + 1;
  hak_lock_drop(&hak_heaps_lock);
  hak_meta_give_one(h);
}

static unsigned resetting; /* heaps between two lives; registry lock, released to who awaits that there are none */

bool hak_heap_is_resetting(void) { return hak_load_acquire(&resetting) != 0; }

void hak_heap_await_resets(void) {
  HAK_ASSERT(hak_load_relaxed(&ends_holder) == hak_thread_mark());
  while (hak_heap_is_resetting()) hak_os_sleep_ms(1);
}

void hak_heap_end_life(hak_heap *h, bool stays) {
  HAK_ASSERT(hak_load_relaxed(&ends_holder) == hak_thread_mark());
  hak_lock_take(&hak_heaps_lock);
  if (stays) {
    end_life_locked(h);
    hak_add_single(&resetting, 1);
  } else {
    unlink_locked(h);
  }
  hak_lock_drop(&hak_heaps_lock);
}

HAK_COLD void hak_heap_begin_life(hak_heap *h, hak_heap *parent) {
  HAK_ASSERT(h->life == 0 && h->pieces == NULL && h->span_count == 0 && h->mapped == 0);
  hak_lock_take(&hak_heaps_lock);
  h->out = h->live = h->peak = 0;
  h->requests = h->frees = h->refused = 0;
  memset(h->bins, 0, sizeof h->bins);
  memset(h->bumped, 0, sizeof h->bumped);
  begin_life_locked(h, parent);
  HAK_ASSERT(resetting > 0);
  hak_store_release(&resetting, resetting - 1);
  hak_lock_drop(&hak_heaps_lock);
}

/* Frees charge under the heap's locks: with all of them, none is between two heaps. */
void hak_heap_set_deleted(hak_heap *h) {
  hak_lock_take(&hak_heaps_lock);
  HAK_ASSERT(h->first_child == NULL && h->life != 0 && !h->is_deleted);
  hak_heap_take_locks(h);
  leave_parent(h);
  hak_store_relaxed(&h->limit, SIZE_MAX);
  hak_store_relaxed(&h->share, SIZE_MAX);
  hak_store_relaxed(&h->is_deleted, true);
  hak_heap_drop_locks(h);
  h->next_sibling = deleted_heaps;
  deleted_heaps = h;
  hak_sub_single(&heap_count, 1);
  hak_lock_drop(&hak_heaps_lock);
}

/* Nobody has a block of it: nobody comes by it any more, but for caches that have nothing of it. Who gave the last one back may still have a
 * lock of it. */
hak_heap *hak_heap_take_ended(void) {
  hak_lock_take(&hak_heaps_lock);
  hak_heap **link = &deleted_heaps;
  while (*link != NULL && hak_load_relaxed(&(*link)->out) != 0) link = &(*link)->next_sibling;
  hak_heap *h = *link;
  if (h != NULL) {
    hak_heap_take_locks(h);
    hak_heap_drop_locks(h);
    *link = h->next_sibling;
    unlink_locked(h);
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

/* Those of `bins`, and the heap's own, by rank, until one says no. */
static bool each_lock(hak_heap *h, uint16_t bins, bool (*call)(hak_lock *lock)) {
  for (unsigned i = 0; i < HAK_HEAP_BIN_BLOCKS; i++) {
    for (unsigned j = 0; (bins >> i & 1) != 0 && j < HAK_HEAP_BINS; j++) {
      if (!call(&h->bins[i][j].lock)) return false;
    }
  }
  return call(&h->lock);
}

static bool take(hak_lock *lock) {
  hak_lock_take(lock);
  return true;
}

static bool drop(hak_lock *lock) {
  hak_lock_drop(lock);
  return true;
}

/* Bins are made under the heap's own lock, which comes last: those that others make meanwhile have to be waited for, too. */
void hak_heap_take_locks(hak_heap *h) {
  for (;;) {
    uint16_t made = made_bins(h);
    each_lock(h, made, take);
    h->locked_bins = made;
    if (made_bins(h) == made) return;
    hak_heap_drop_locks(h);
  }
}

void hak_heap_drop_locks(hak_heap *h) { each_lock(h, h->locked_bins, drop); }

void hak_heap_fork_lock(void) {
  hak_lock_take(&hak_heaps_lock);
  for (hak_heap *h = newest; h != NULL; h = h->prev) hak_heap_take_locks(h);
  hak_lock_take(&hak_pieces_lock);
}

void hak_heap_fork_unlock(void) {
  hak_lock_drop(&hak_pieces_lock);
  for (hak_heap *h = newest; h != NULL; h = h->prev) hak_heap_drop_locks(h);
  hak_lock_drop(&hak_heaps_lock);
}

bool hak_heap_all_locks(bool (*is)(hak_lock *lock)) {
  bool all = is(&hak_heaps_lock) && is(&hak_pieces_lock);
  if (!all) return false;
  hak_lock_take(&hak_heaps_lock);
  for (hak_heap *h = newest; all && h != NULL; h = h->prev) all = h->life == 0 || each_lock(h, made_bins(h), is);
  hak_lock_drop(&hak_heaps_lock);
  return all;
}

hak_heap *hak_heap_after_locked(uint64_t id, bool deleted) {
  static uint32_t hint; /* owner that was found last, most likely the one before, or asked for once more */
  hak_assert_held(&hak_heaps_lock);
  hak_heap *near = id == 0 ? NULL : hak_heap_of_owner(hint), *h = near != NULL && near->id <= id + 1 ? near : oldest;
  while (h != NULL && (h->id <= id || h->life == 0 || (hak_load_relaxed(&h->is_deleted) && !deleted))) h = h->next;
  hint = h == NULL ? 0 : hak_heap_owner(h);
  return h;
}

size_t hak_heap_count(void) { return hak_load_relaxed(&heap_count); }

/* --- what counts --- */

static bool charge_one(hak_heap *h, size_t bytes) {
  size_t out = hak_load_relaxed(&h->out), most;
  do {
    most = hak_min_size(hak_load_relaxed(&h->limit), hak_load_relaxed(&h->share));
    if (HAK_UNLIKELY(out > most || bytes > most - out)) return false;
  } while (!__atomic_compare_exchange_n(&h->out, &out, out + bytes, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return true;
}

static void charge_back_up_to(hak_heap *heap, const hak_heap *end, size_t bytes) {
  for (hak_heap *h = heap; h != end; h = h->parent) hak_sub_relaxed(&h->out, bytes);
}

hak_heap *hak_heap_charge(hak_heap *heap, size_t bytes) {
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
  return limit == SIZE_MAX || hak_load_relaxed(&h->callback) == NULL ? SIZE_MAX : limit / 100 * percent + limit % 100 * percent / 100;
}

#define FALLS_BY 16 /* part of the limit, as hakmem/heap.h promises */
static HAK_COLD void look_again(hak_heap *h, size_t out) {
  size_t share = hak_heap_share(h), by = hak_load_relaxed(&h->limit) / FALLS_BY, called = HAK_HEAP_CALLED;
  if (share == SIZE_MAX || share < by || out > share - by) return;
  hak_cas_acquire(&h->share, &called, share == 0 ? 0 : share - 1);
}

/* What is refused next has to empty caches, which takes a barrier of all threads, some 10 us for each: so not more often than that. */
#define NEAR_LEAST_MS 10

/* The sum has fallen as far as it has to for a callback: blocks may go into caches again. */
static HAK_COLD void leave_limit(hak_heap *h, size_t out) {
  size_t most = hak_min_size(hak_load_relaxed(&h->limit), hak_heap_share(h));
  if (out > most - most / FALLS_BY || hak_os_now_ms() - hak_load_relaxed(&h->near_since_ms) < NEAR_LEAST_MS) return;
  uint32_t drained = HAK_HEAP_DRAINED;
  __atomic_compare_exchange_n(&h->near_limit, &drained, HAK_HEAP_NOT_NEAR, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void hak_heap_uncharge(hak_heap *heap, size_t bytes) {
  for (hak_heap *h = heap; h != NULL; h = h->parent) {
    HAK_ASSERT(hak_load_relaxed(&h->out) >= bytes);
    size_t out = hak_sub_relaxed(&h->out, bytes);
    if (HAK_UNLIKELY(hak_heap_was_called(h))) look_again(h, out);
    if (HAK_UNLIKELY(hak_heap_is_drained(h))) leave_limit(h, out);
  }
}

void hak_heap_raise_peak(hak_heap *h, size_t live) {
  if ((int64_t)live <= 0) return;
  /* What others have freed meanwhile is in their caches' counts: but more than the limit, or what is charged, was never live. */
  live = hak_min_size(live, hak_max_size(hak_load_relaxed(&h->limit), hak_load_relaxed(&h->out)));
  size_t peak = hak_load_relaxed(&h->peak);
  while (live > peak && !__atomic_compare_exchange_n(&h->peak, &peak, live, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

void hak_heap_note_alloc(hak_heap *h, size_t bytes) {
  hak_heap_raise_peak(h, hak_add_relaxed(&h->live, bytes));
  hak_add_relaxed(&h->requests, 1);
}

void hak_heap_note_resize(hak_heap *h, size_t before, size_t after) {
  hak_heap_raise_peak(h, hak_add_relaxed(&h->live, after - before));
}

void hak_heap_note_free(hak_heap *h, size_t bytes) {
  hak_sub_relaxed(&h->live, bytes);
  hak_add_relaxed(&h->frees, 1);
}
