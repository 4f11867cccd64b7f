/* What sleeping threads keep: a drainer takes blocks out of the caches of other threads, and puts them into slabs.
 *
 * Owner and drainer exclude each other without an atomic step of the owner. The owner's slow path stores `busy`, then
 * reads `claimed`; the drainer stores `claimed`, has every thread pass a barrier (membarrier), then reads `busy`. So
 * the drainer sees that the owner is in a slow path, and leaves the cache alone, or the owner's next slow path sees the
 * drainer, and waits. Then the drainer has to itself what slow paths alone touch: stacked magazines, spares, and
 * loaded magazines where the owner's calls all take the slow path.
 *
 * Any other loaded magazine belongs to the fast path as well. There the drainer puts a sentinel, a NULL, into a slot
 * below the top: no pop gets past it. After one more barrier, a top above the slot and the NULL still in it say that
 * nobody did before: what lies below, and the block that the sentinel displaced, is the drainer's. Else the program may
 * have that block: the drainer takes nothing, and the owner's next slow path, which has no operation in flight, sees
 * whether the block was popped. docs/locking.md has the argument, models/reach.pml the search.
 *
 * The drainer holds the reach lock, for which owners wait, while it puts sentinels and copies; it flushes what it took
 * without. */
#include <string.h>

#include "tcache/tcache.h"

/* Magazines that share barriers, and so caches: one has one of each class, and its stacks */
#define SENTINELS_MAX (HAK_CLASS_COUNT + 1)
/* Of a call that does not go to the end, about: as many as these have */
#define IDLE_BLOCKS (SENTINELS_MAX * HAK_MAGAZINE_SLOTS)

hak_lock hak_tcache_reach_lock;
/* Mark of the thread that has the lock and is at caches; relaxed, right for that thread alone */
static const void *drainer_mark;

/* Blocks of a partial magazine, the loaded one, on their way to slabs. */
typedef struct partial {
  struct partial *next;
  uint32_t class_code, count;
  void *blocks[HAK_MAGAZINE_SLOTS - 2];
} partial;
_Static_assert(sizeof(partial) <= HAK_META_SIZE, "a partial is a metadata block");

/* What was taken and belongs to nobody but the drainer. */
typedef struct drained {
  void **full[HAK_CLASS_COUNT]; /* stacks */
  partial *partials, *unused;
  hak_meta *spares;
  size_t blocks;
} drained;

/* Under the reach lock: too large for the smallest stacks. */
static hak_tcache *batch[SENTINELS_MAX];
static unsigned batch_size, sentinel_count;
static struct {
  hak_tcache *t;
  uint32_t class_code, count; /* blocks up to the sentinel's slot; 0: in doubt */
} sentinels[SENTINELS_MAX];
static hak_tcache *next_by_turn; /* where the next call that does not go to the end begins */

static unsigned slot_of(void *const *magazine, void *const *slot) { return (unsigned)(slot - magazine); }

/* The owner's top, or NULL where it is not in the loaded magazine: a fork's child that starts threads has put it
 * aside. */
static void **top_in(const hak_tcache *t, unsigned c) {
  void **top = hak_load_relaxed(&t->top[c + 1]), **magazine = t->bins[c].loaded;
  return ((uintptr_t)top & ~(uintptr_t)(HAK_MAGAZINE_BYTES - 1)) == (uintptr_t)magazine ? top : NULL;
}

/* --- the owner --- */

/* Nothing is in flight: what was in doubt can be told. */
static void restore_bin(hak_tcache *t, unsigned c) {
  hak_tcache_bin *b = &t->bins[c];
  HAK_ASSERT(b->loaded != NULL && b->sentinel > 0 && b->sentinel < HAK_MAGAZINE_SLOTS);
  void **slot = b->loaded + b->sentinel, **top = t->top[c + 1];
  if (b->displaced == NULL && (*slot != NULL || top < slot)) {
    /* The drainer found an older NULL: on machines that reorder stores the top may come before the block below it. Or,
     * in a child of a fork that took no lock, the parent's drainer was about to put a sentinel, or has not noted yet
     * what it took out. */
  } else if (b->displaced == NULL) { /* the drainer's up to the slot */
    void **empty = hak_tcache_empty_top(b);
    memmove(empty + 1, slot + 1, (size_t)(top - slot) * sizeof *slot);
    *empty = NULL;
    t->top[c + 1] = empty + (top - slot);
  } else if (*slot == NULL && top >= slot) {
    /* Not popped: a pop would have left the top below, and a push something in the slot */
    *slot = b->displaced;
  }
  b->displaced = NULL;
  b->sentinel = 0;
}

void hak_tcache_restore(hak_tcache *t) {
  hak_store_relaxed(&t->waiting, true);
  while (hak_load_acquire(&t->claimed) != 0) {
    hak_lock_take(&hak_tcache_reach_lock);
    hak_lock_drop(&hak_tcache_reach_lock);
  }
  hak_store_relaxed(&t->waiting, false);
  if (t->has_sentinel == 0) return;
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    if (t->bins[c].sentinel != 0) restore_bin(t, c);
  }
  hak_store_relaxed(&t->has_sentinel, 0);
}

/* --- the drainer, with the lock --- */

/* Whether a thread has the cache, and its top can be read: it may have ended without its destructors, and its memory be
 * gone. With `claimed` set and `busy` seen to be 0: it is not on its way through them. */
static bool is_readable(const hak_tcache *t) {
  void ***top = hak_load_relaxed(&t->top);
  return top != NULL && hak_os_is_readable((const uint32_t *)(const void *)top);
}

/* Blocks of the loaded magazine beyond the last one, which the owner may have in hand. */
static unsigned reachable(const hak_tcache *t, unsigned c) {
  const hak_tcache_bin *b = &t->bins[c];
  if (t->all_slow || HAK_HARD(RANDOM)) return 0; /* hak_tcache_pop_any takes from anywhere */
  if (b->loaded == NULL || b->sentinel != 0) return 0;
  void **top = top_in(t, c), **empty = hak_tcache_empty_top(b);
  return top == NULL || top <= empty + 1 ? 0 : (unsigned)(top - empty - 1);
}

/* A hint, while the owner may be at it: magazines that may have blocks to reach into. Of the owner's storage, which
 * goes with it, nothing is read. */
HAK_RACY static unsigned worth(const hak_tcache *t) {
  unsigned n = hak_load_racy(&t->stacked_bytes) != 0 || hak_load_racy(&t->spares) != NULL;
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    if (HAK_HARD(RANDOM) && !hak_load_racy(&t->all_slow)) continue;
    n += hak_load_racy(&t->bins[c].loaded) != NULL && hak_load_racy(&t->bins[c].sentinel) == 0;
  }
  return n;
}

static partial *take_partial(drained *h, unsigned c, unsigned count) {
  partial *p = h->unused;
  if (p == NULL) return NULL;
  h->unused = p->next;
  p->next = h->partials;
  h->partials = p;
  p->class_code = c;
  p->count = count;
  h->blocks += count;
  return p;
}

/* The loaded magazine of a cache whose owner comes to it in slow paths alone, whole. */
static void take_loaded(hak_tcache *t, unsigned c, drained *h) {
  hak_tcache_bin *b = &t->bins[c];
  if (b->loaded == NULL || !t->all_slow) return;
  void **magazine = b->loaded, **empty = hak_tcache_empty_top(b);
  unsigned count = (unsigned)(b->top - empty);
  if (count == hak_magazine_usable[c]) {
    *magazine = h->full[c];
    h->full[c] = magazine;
    h->blocks += count;
  } else {
    partial *p = count == 0 ? NULL : take_partial(h, c, count);
    if (count > 0 && p == NULL) return;
    if (count > 0) memcpy(p->blocks, empty + 1, count * sizeof *empty);
    hak_meta *spare = (hak_meta *)(void *)magazine;
    spare->next = h->spares;
    h->spares = spare;
  }
  b->loaded = NULL;
  b->top = HAK_NULL_TOP;
  hak_store_relaxed(&b->published, b->full_count * (uint32_t)hak_magazine_usable[c]);
}

static void take_stacks(hak_tcache *t, bool pinned_too, drained *h) {
  hak_assert_held(&hak_tcache_reach_lock);
  HAK_ASSERT(t->claimed == 1 && t != hak_tls.cache);
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    hak_tcache_bin *b = &t->bins[c];
    if (!pinned_too && hak_tcache_is_pinned(b)) continue;
    take_loaded(t, c, h);
    if (b->full == NULL) continue;
    unsigned blocks = b->full_count * (unsigned)hak_magazine_usable[c];
    void **last = b->full;
    while (*last != NULL) last = *last;
    *last = h->full[c];
    HAK_ASSERT(blocks > 0 && t->stacked_bytes >= blocks * hak_class_size(c));
    h->full[c] = b->full;
    h->blocks += blocks;
    b->full = NULL;
    b->full_count = b->full_low = 0;
    hak_store_relaxed(&t->stacked_bytes, t->stacked_bytes - blocks * hak_class_size(c));
    hak_store_relaxed(&b->published, b->published > blocks ? b->published - blocks : 0);
  }
  if (t->spares == NULL) return;
  hak_meta *last = t->spares;
  while (last->next != NULL) last = last->next;
  last->next = h->spares;
  h->spares = t->spares;
  hak_store_relaxed(&t->spares, NULL);
  t->spare_count = 0;
}

/* First the note, then the NULL: whatever becomes of the drainer, the owner finds out. */
static void put_sentinel(hak_tcache *t, unsigned c) {
  HAK_ASSERT(t->claimed == 1 && t->bins[c].sentinel == 0 && sentinel_count < SENTINELS_MAX);
  hak_tcache_bin *b = &t->bins[c];
  unsigned n = reachable(t, c);
  void **slot = hak_tcache_empty_top(b) + n;
  b->sentinel = (uint8_t)slot_of(b->loaded, slot);
  hak_store_relaxed(&t->has_sentinel, 1);
  b->displaced = __atomic_exchange_n(slot, NULL, __ATOMIC_ACQ_REL);
  sentinels[sentinel_count].t = t;
  sentinels[sentinel_count].class_code = c;
  sentinels[sentinel_count++].count = n;
}

static void put_sentinels(hak_tcache *t, bool pinned_too, const drained *h) {
  unsigned most = 0;
  for (const partial *p = h->unused; p != NULL && most < SENTINELS_MAX; p = p->next) most++;
  for (unsigned c = 0; c < HAK_CLASS_COUNT && sentinel_count < most; c++) {
    if (reachable(t, c) > 0 && (pinned_too || !hak_tcache_is_pinned(&t->bins[c]))) put_sentinel(t, c);
  }
}

static void **sentinel_slot(unsigned i) {
  const hak_tcache_bin *b = &sentinels[i].t->bins[sentinels[i].class_code];
  return b->loaded + b->sentinel;
}

/* After a barrier. */
static void look_at_tops(void) {
  hak_assert_held(&hak_tcache_reach_lock);
  for (unsigned i = 0; i < sentinel_count; i++) {
    void **top = top_in(sentinels[i].t, sentinels[i].class_code);
    if (top == NULL || top <= sentinel_slot(i)) sentinels[i].count = 0;
  }
}

/* After another one: a push that the top tells of is seen in the slot. */
static void copy_blocks(drained *h) {
  for (unsigned i = 0; i < sentinel_count; i++) {
    hak_tcache *t = sentinels[i].t;
    unsigned c = sentinels[i].class_code, n = sentinels[i].count;
    hak_tcache_bin *b = &t->bins[c];
    void **slot = sentinel_slot(i);
    if (n == 0 || hak_load_acquire(slot) != NULL) continue; /* in doubt */
    partial *p = take_partial(h, c, n); /* put_sentinels has seen that there are enough */
    HAK_ASSERT(p != NULL && n <= sizeof p->blocks / sizeof *p->blocks);
    memcpy(p->blocks, slot - n + 1, (n - 1) * sizeof *slot);
    p->blocks[n - 1] = b->displaced;
    b->displaced = NULL;
    void **top = top_in(t, c);
    hak_store_relaxed(&b->published, top == NULL ? 0 : (uint32_t)(top - slot));
  }
}

static void end_claim(hak_tcache *t) {
  HAK_ASSERT(t->claimed == 1);
  hak_store_release(&t->claimed, 0);
}

static void end_claims(void) {
  while (batch_size > 0) end_claim(batch[--batch_size]);
}

/* Leaves in the batch those that the drainer has to itself. False: no system call, nothing is taken. */
static bool keep_idle(void) {
  hak_assert_held(&hak_tcache_reach_lock);
  HAK_ASSERT(batch_size > 0 && batch_size <= SENTINELS_MAX);
  for (unsigned i = 0; i < batch_size; i++) hak_store_relaxed(&batch[i]->claimed, 1);
  if (!hak_os_barrier()) return false;
  unsigned kept = 0;
  for (unsigned i = 0; i < batch_size; i++) {
    hak_tcache *t = batch[i];
    if (hak_load_acquire(&t->busy) == 0 && is_readable(t))
      batch[kept++] = t;
    else
      end_claim(t);
  }
  batch_size = kept;
  return true;
}

/* False: no system call. */
static bool drain_batch(bool pinned_too, drained *h) {
  sentinel_count = 0;
  bool works = keep_idle();
  if (works) {
    /* All of these first: put_sentinels counts the partials that are left. */
    for (unsigned i = 0; i < batch_size; i++) take_stacks(batch[i], pinned_too, h);
    for (unsigned i = 0; i < batch_size; i++) put_sentinels(batch[i], pinned_too, h);
    if (sentinel_count > 0 && hak_os_barrier()) {
      look_at_tops();
      if (hak_os_barrier()) copy_blocks(h);
    }
  }
  end_claims();
  return works;
}

/* --- the drainer, without it --- */

static void flush_drained(drained *h, hak_deferred *d) {
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    for (void **magazine = h->full[c], **next; magazine != NULL; magazine = next) {
      next = *magazine;
      hak_arena_flush(hak_magazine_empty_top(magazine, c) + 1, hak_magazine_usable[c], c, d);
      hak_meta_give_one(magazine);
    }
    h->full[c] = NULL;
  }
  while (h->partials != NULL) {
    partial *p = h->partials;
    h->partials = p->next;
    hak_arena_flush(p->blocks, p->count, p->class_code, d);
    p->next = h->unused;
    h->unused = p;
  }
  hak_meta_give(h->spares);
  h->spares = NULL;
}

static void give_partials(drained *h) {
  for (partial *p = h->unused, *next; p != NULL; p = next) {
    next = p->next;
    hak_meta_give_one(p);
  }
}

/* For so many magazines. */
static void get_partials(drained *h, unsigned count) {
  for (const partial *p = h->unused; p != NULL && count > 0; p = p->next) count--;
  for (; count > 0; count--) {
    partial *p = (partial *)(void *)hak_meta_take();
    if (p == NULL) return;
    p->next = h->unused;
    h->unused = p;
  }
}

static bool is_others(const hak_tcache *t) { return hak_load_relaxed(&t->used) && t != hak_tls.cache; }

/* Whether the clock, or whoever wants all, asks for what this one keeps. */
static bool is_asked_for(const hak_tcache *t, uint64_t idle_since_ms) {
  uint64_t exit_ms = hak_load_relaxed(&t->exit_ms);
  return is_others(t) && (idle_since_ms == UINT64_MAX || (exit_ms <= idle_since_ms && exit_ms != t->reached_ms));
}

/* The next caches from *at on, as many as share barriers; returns how many of their magazines there are to reach into.
 * Moves *at behind them. */
static unsigned choose(hak_tcache **at, uint64_t idle_since_ms) {
  unsigned magazines = 0;
  hak_assert_held(&hak_tcache_reach_lock);
  batch_size = 0;
  for (hak_tcache *t = *at; t != NULL; *at = t = t->next) {
    if (!is_asked_for(t, idle_since_ms)) continue;
    unsigned n = worth(t);
    HAK_ASSERT(n <= SENTINELS_MAX);
    if (magazines + n > SENTINELS_MAX) break;
    if (idle_since_ms != UINT64_MAX) t->reached_ms = hak_load_relaxed(&t->exit_ms);
    if (n == 0) continue;
    magazines += n;
    batch[batch_size++] = t;
  }
  return magazines;
}

size_t hak_tcache_reach(uint64_t idle_since_ms, bool to_the_end, hak_deferred *d) {
  drained h = {0};
  hak_tcache *at = to_the_end ? hak_tcache_made() : NULL;
  bool pinned_too = idle_since_ms == UINT64_MAX;
  for (bool more = true; more;) {
    HAK_SCHEDULE_POINT("reach: looks for caches");
    hak_lock_take(&hak_tcache_reach_lock);
    hak_store_relaxed(&drainer_mark, hak_thread_mark());
    if (at == NULL) at = next_by_turn != NULL ? next_by_turn : hak_tcache_made();
    get_partials(&h, choose(&at, idle_since_ms));
    more = at != NULL;
    if (batch_size > 0) more &= drain_batch(pinned_too, &h);
    if (!to_the_end) {
      next_by_turn = at;
      more &= h.blocks < IDLE_BLOCKS;
    }
    hak_store_relaxed(&drainer_mark, NULL);
    hak_lock_drop(&hak_tcache_reach_lock);
    HAK_SCHEDULE_POINT("reach: blocks in hand");
    flush_drained(&h, d);
  }
  give_partials(&h);
  return h.blocks;
}

/* A drainer of the parent has ended with its thread, perhaps in the middle, and with the lock. Where this thread has
 * that, it may be on the way to its first step or from its last: alone, it does not need it there. */
void hak_tcache_fork_child_alone(void) {
  if (drainer_mark != hak_thread_mark()) {
    drainer_mark = NULL;
    hak_tcache_reach_lock.state = 0;
  }
  hak_tcache *t = hak_tls.cache;
  if (t == NULL || t->claimed == 0) return;
  t->has_sentinel = 1; /* the next slow path finds out what was done to the one cache that matters here */
  t->claimed = 0;
  if (t->busy > t->waiting) return; /* it was in a slow path before the drainer came: all is its own */
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    hak_tcache_bin *b = &t->bins[c];
    b->full = NULL; /* perhaps linked to what was taken from others; lost as theirs */
    b->full_count = b->full_low = 0;
    if (!t->all_slow) continue;
    b->loaded = NULL;
    b->top = HAK_NULL_TOP;
  }
  t->stacked_bytes = 0;
  t->spares = NULL;
  t->spare_count = 0;
}
