/* Arenas, their depots, and the way of a block between a cache and its slab. */
#include "arena/arena.h"

#include <string.h>

#include "large/extent.h"
#include "pool/budget.h"
#include "pool/meta.h"
#include "pool/span_pool.h"

#define SLOTS (HAK_MAGAZINE_SLOTS - 1)
/* Half of its slots suffice where they hold so much: a thread has a loaded magazine of each class. */
#define MAGAZINE_MANY_BYTES (16 * HAK_KIB)
#define KEPT_BYTES (2 * HAK_SMALL_MAX) /* in empty slabs that an arena keeps of a class of whole spans */
#define DEPOT_BYTES (16 * HAK_MIB) /* what all depots may hold, until they decay: a program may have freed all it had */
#define VICTIMS_MAX 8 /* arenas asked before a new slab is made */

_Static_assert((HAK_MAGAZINE_BYTES & (HAK_MAGAZINE_BYTES - 1)) == 0 && HAK_MAGAZINE_BYTES == HAK_META_SIZE,
               "a magazine is a metadata block, aligned to its size");
_Static_assert(SLOTS <= UINT8_MAX, "hak_magazine_usable has bytes");

size_t hak_depot_bytes;
uint8_t hak_magazine_usable[HAK_CLASS_COUNT];

static hak_arena first;
static hak_arena *arenas[HAK_ARENAS_MAX + 1] = {&first}; /* one of sampled blocks beside them */
static uint32_t arena_count = 1; /* release after the entry is written; acquire in readers */
static hak_lock arenas_lock;

/* Of a class of whole spans an arena keeps as much as a magazine has, or what is pinned. */
static void init_kept(hak_arena *a) {
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    if (hak_class_size(c) > HAK_SHARED_MAX) a->bins[c].slabs.kept_most = hak_magazine_usable[c];
  }
}

void hak_arena_start(void) {
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    size_t most = hak_class_size(c) > HAK_SHARED_MAX ? KEPT_BYTES : HAK_MAGAZINE_BLOCK_BYTES;
    size_t usable = most / hak_class_size(c);
    size_t pinned = hak_config_pinned(hak_class_group(hak_class_size(c)));
    usable = hak_min_size(usable, hak_max_size(SLOTS / 2, MAGAZINE_MANY_BYTES / hak_class_size(c)));
    usable = hak_min_size(usable, SLOTS);
    hak_magazine_usable[c] = (uint8_t)(pinned == 0 ? usable : hak_min_size(usable, pinned));
    HAK_ASSERT(hak_magazine_usable[c] > 0 && hak_magazine_usable[c] <= SLOTS);
  }
  init_kept(&first);
  hak_os_cpu_start();
}

uint32_t hak_arena_count(void) { return hak_load_acquire(&arena_count); }

hak_arena *hak_arena_at(uint32_t index) {
  HAK_ASSERT(index < hak_arena_count());
  return arenas[index];
}

static hak_os_refusal arenas_refused, sampled_refused; /* memory for an arena, and for a slab of sampled blocks */

/* Of the arena of sampled blocks; 0, which is some CPU's: there is none. Written once, under the arenas' lock, before
 * arena_count counts it: who sees the arena knows what it is. */
static uint32_t sampled_id;

/* False: no memory. */
static bool make_locked(bool sampled) {
  hak_assert_held(&arenas_lock);
  HAK_ASSERT(arena_count < sizeof arenas / sizeof *arenas);
  hak_arena *a = hak_meta_take_block((sizeof *a + HAK_META_SIZE - 1) / HAK_META_SIZE);
  if (a == NULL) {
    hak_os_note_refusal(&arenas_refused);
    return false;
  }
  a->id = arena_count;
  for (unsigned c = 0; sampled && c < HAK_CLASS_COUNT; c++) a->bins[c].slabs.sampled = true;
  if (sampled)
    hak_store_relaxed(&sampled_id, a->id);
  else
    init_kept(a);
  arenas[a->id] = a;
  hak_store_release(&arena_count, a->id + 1);
  return true;
}

/* The index, or that of an arena in place of the sampled blocks': which may be the last for which there was memory, or
 * made since the caller looked. */
static uint32_t at_most(uint32_t index) { return index == hak_load_relaxed(&sampled_id) ? 0 : index; }

/* Adds arenas until there are more than `index`; the last one where memory is short. None inside a fork, which has the
 * locks of those that there were: another thread may take one of a new arena meanwhile, and the fork's end would drop
 * it. */
static HAK_COLD hak_arena *add(uint32_t index) {
  HAK_ASSERT(index <= HAK_ARENAS_MAX);
  if (hak_inside_own_fork() || hak_os_refused_lately(&arenas_refused)) return arenas[at_most(hak_arena_count() - 1)];
  HAK_SCHEDULE_POINT("arena: missing");
  hak_lock_take(&arenas_lock);
  while (arena_count <= index && make_locked(false)) {}
  if (arena_count > index) hak_store_relaxed(&arenas_refused, 0);
  hak_arena *chosen = arenas[at_most((uint32_t)hak_min_size(index, arena_count - 1))];
  hak_lock_drop(&arenas_lock);
  return chosen;
}

static bool is_sampled(uint32_t id) { return HAK_UNLIKELY(id == hak_load_relaxed(&sampled_id)) && id != 0; }

void hak_arena_start_sampled(void) {
  if (hak_load_relaxed(&sampled_id) != 0 || hak_inside_own_fork()) return;
  hak_lock_take(&arenas_lock);
  if (sampled_id == 0) make_locked(true); /* memory is out: no block is sampled */
  hak_lock_drop(&arenas_lock);
}

hak_arena *hak_arena_current(void) {
  uint32_t count = hak_arena_count(); /* first: who sees the arena of sampled blocks counted knows which one it is */
  uint32_t id = hak_os_cpu() % HAK_ARENAS_MAX, sampled = hak_load_relaxed(&sampled_id);
  if (HAK_UNLIKELY(sampled != 0) && id >= sampled) id++;
  return HAK_LIKELY(id < count) ? arenas[id] : add(id);
}

static hak_arena_bin *bin_of(hak_arena *a, unsigned c) {
  HAK_ASSERT(c < HAK_CLASS_COUNT);
  return &a->bins[c];
}

HAK_INLINE uint32_t tag_of(const hak_arena *a, unsigned c) { return HAK_TAG(a->id + 1, c + 1); }

/* The arena that a block's slab belongs to; NULL: p is in no slab of the class. Right for good only under the bin's
 * lock, but while somebody holds a block its slab stays. */
HAK_INLINE hak_arena *owner_of_slab(const hak_span *s, unsigned c) {
  uint32_t tag = hak_load_relaxed(&s->tag), id = HAK_TAG_OWNER(tag) - 1;
  return HAK_LIKELY(HAK_TAG_CODE(tag) == c + 1 && id < hak_arena_count()) ? arenas[id] : NULL;
}
HAK_INLINE hak_arena *owner_of(const void *p, unsigned c) {
  const hak_region *r = hak_region_find(p);
  return r == NULL ? NULL : owner_of_slab(hak_region_span(r, p), c);
}

HAK_INLINE void note_spare(hak_arena_bin *b) {
  if (hak_load_relaxed(&b->spare) == 0) hak_store_relaxed(&b->spare, 1);
}

/* --- depots --- */

/* What a magazine counts: itself too, since magazines of 16-byte blocks are a third of what a depot holds. */
static size_t magazine_bytes(unsigned c) { return HAK_MAGAZINE_BYTES + hak_magazine_usable[c] * hak_class_size(c); }

static bool has_room(size_t bytes) {
  return hak_load_relaxed(&hak_depot_bytes) + bytes <= hak_budget_cached_most(DEPOT_BYTES) &&
         !hak_pool_frees_much();
}

static void **pop_full(hak_arena_bin *b, unsigned c) {
  hak_assert_held(&b->lock);
  HAK_ASSERT((b->full == NULL) == (b->full_count == 0) && b->full_low <= b->full_count);
  if (b->full == NULL) return NULL;
  void **magazine = b->full;
  b->full = *magazine;
  uint32_t left = hak_sub_single(&b->full_count, 1);
  if (left < b->full_low) b->full_low = left;
  HAK_ASSERT(hak_load_relaxed(&hak_depot_bytes) >= magazine_bytes(c));
  hak_sub_relaxed(&hak_depot_bytes, magazine_bytes(c));
  return magazine;
}

void **hak_arena_take_magazine(hak_arena *a, unsigned c) {
  hak_arena_bin *b = bin_of(a, c);
  HAK_SCHEDULE_POINT("depot: looks for a magazine");
  if (HAK_LIKELY(hak_load_relaxed(&b->full_count) == 0)) return NULL;
  hak_lock_take(&b->lock);
  void **magazine = pop_full(b, c);
  hak_lock_drop(&b->lock);
  HAK_SCHEDULE_POINT("depot: looked for a magazine");
  return magazine;
}

bool hak_arena_is_foreign(void *const *magazine, unsigned c) {
  return hak_arena_count() > 1 && owner_of(magazine[SLOTS], c) != hak_arena_current();
}

bool hak_arena_put_magazine(void **magazine, unsigned c) {
  HAK_ASSERT(((uintptr_t)magazine & (HAK_MAGAZINE_BYTES - 1)) == 0 && magazine[SLOTS] != NULL);
  hak_arena *a = owner_of(magazine[SLOTS], c);
  if (HAK_UNLIKELY(a == NULL) || !has_room(magazine_bytes(c))) return false;
  HAK_SCHEDULE_POINT("depot: magazine on its way");
  hak_arena_bin *b = bin_of(a, c);
  hak_lock_take(&b->lock);
  *magazine = b->full;
  b->full = magazine;
  hak_add_single(&b->full_count, 1);
  hak_add_relaxed(&hak_depot_bytes, magazine_bytes(c));
  note_spare(b);
  hak_lock_drop(&b->lock);
  return true;
}

/* --- slabs --- */

/* Free blocks in depots, this arena's first, and of other arenas, before unused memory is touched: each arena's need of
 * a class peaks at a time of its own, and the process would hold the sum of the peaks. No lock is waited for. */
static HAK_NOINLINE unsigned steal(const hak_arena *self, unsigned c, void **out, unsigned wanted, hak_deferred *d) {
  uint32_t count = hak_arena_count(), id = self->id;
  for (uint32_t tries = (uint32_t)hak_min_size(count, VICTIMS_MAX + 1); tries > 0;
       tries--, id = id + 1 == count ? 0 : id + 1) {
    hak_arena_bin *b = bin_of(arenas[id], c);
    if (is_sampled(id) || hak_load_relaxed(&b->spare) == 0 || !hak_lock_try(&b->lock)) continue;
    void **magazine = pop_full(b, c);
    if (magazine != NULL) {
      /* Copied: the caller's magazine is as good as this one. What is more than wanted goes back into the slabs. */
      unsigned n = hak_magazine_usable[c], kept = (unsigned)hak_min_size(n, wanted);
      void **blocks = hak_magazine_empty_top(magazine, c) + 1;
      memcpy(out, blocks, kept * sizeof *out);
      hak_lock_drop(&b->lock);
      HAK_SCHEDULE_POINT("steal: magazine in two hands");
      if (kept < n) hak_arena_flush(blocks + kept, n - kept, c, d);
      hak_meta_give_one(magazine);
      return kept;
    }
    unsigned n = hak_slab_set_take_free(&b->slabs, c, out, wanted);
    if (n < wanted) hak_store_relaxed(&b->spare, 0);
    hak_lock_drop(&b->lock);
    if (n > 0) return n;
  }
  return 0;
}

unsigned hak_arena_take(hak_arena *a, unsigned c, void **out, unsigned wanted, hak_deferred *d) {
  HAK_ASSERT(wanted > 0 && wanted <= SLOTS && !is_sampled(a->id));
  hak_arena_bin *b = bin_of(a, c);
  bool alone = hak_arena_count() == 1;
  hak_lock_take(&b->lock);
  unsigned n = alone ? hak_slab_set_take(&b->slabs, c, a->id + 1, out, wanted)
                     : hak_slab_set_take_ready(&b->slabs, c, out, wanted);
  if (n < wanted && b->full == NULL && hak_load_relaxed(&b->spare) != 0) hak_store_relaxed(&b->spare, 0);
  hak_lock_drop(&b->lock);
  if (n > 0 || alone) return n;
  n = steal(a, c, out, wanted, d);
  if (n > 0) return n;
  hak_lock_take(&b->lock);
  n = hak_slab_set_take(&b->slabs, c, a->id + 1, out, wanted);
  hak_lock_drop(&b->lock);
  return n;
}

/* `where`: of what is wrong with one. */
static void put(void *const *blocks, unsigned count, unsigned c, const char *where, hak_deferred *d) {
  hak_arena *locked = NULL;
  for (unsigned done = 0; done < count;) {
    hak_arena *a = owner_of(blocks[done], c);
    if (a == NULL) { /* freed twice: its slab has gone */
      hak_deferred_note(d, HAK_VERDICT_FREE_MEMORY, blocks[done++], c, where);
      continue;
    }
    hak_arena_bin *b = bin_of(a, c);
    if (a != locked) {
      if (locked != NULL) hak_lock_drop(&bin_of(locked, c)->lock);
      hak_lock_take(&b->lock);
      locked = a;
    }
    hak_verdict verdict;
    unsigned n = hak_slab_set_put(&b->slabs, tag_of(a, c), blocks + done, count - done, &verdict, &d->purge_due);
    note_spare(b);
    done += n;
    HAK_ASSERT(done <= count && (done == count || verdict != HAK_VERDICT_OK || n > 0));
    if (HAK_UNLIKELY(verdict != HAK_VERDICT_OK)) hak_deferred_note(d, verdict, blocks[done++], c, where);
  }
  if (locked != NULL) hak_lock_drop(&bin_of(locked, c)->lock);
}

void hak_arena_flush(void *const *blocks, unsigned count, unsigned c, hak_deferred *d) {
  put(blocks, count, c, "when its class was flushed", d);
}

/* Nearly all are put at the first look. */
static bool put_one(hak_arena *a, void *p, unsigned c, bool *purge_due) {
  hak_arena_bin *b = bin_of(a, c);
  hak_verdict verdict;
  hak_lock_take(&b->lock);
  unsigned n = hak_slab_set_put(&b->slabs, tag_of(a, c), &p, 1, &verdict, purge_due);
  note_spare(b);
  hak_lock_drop(&b->lock);
  return n == 1;
}

void hak_arena_free(void *p, unsigned c, hak_deferred *d) {
  hak_arena *a = owner_of(p, c);
  if (HAK_UNLIKELY(a == NULL) || HAK_UNLIKELY(!put_one(a, p, c, &d->purge_due))) put(&p, 1, c, "at the call", d);
}

/* --- single blocks --- */

void *hak_arena_take_kept(unsigned c) {
  HAK_ASSERT(hak_class_size(c) > HAK_SHARED_MAX);
  hak_arena_bin *b = bin_of(hak_arena_current(), c);
  if (hak_load_relaxed(&b->slabs.kept) == 0) return NULL;
  hak_lock_take(&b->lock);
  void *p = hak_slab_set_take_kept(&b->slabs);
  hak_lock_drop(&b->lock);
  return p;
}

bool hak_arena_keep(hak_span *s, void *p, unsigned c) {
  HAK_ASSERT(hak_class_size(c) > HAK_SHARED_MAX);
  hak_arena *a = owner_of_slab(s, c);
  if (HAK_UNLIKELY(a == NULL)) return false;
  hak_arena_bin *b = bin_of(a, c);
  hak_lock_take(&b->lock);
  bool kept = hak_slab_set_keep(&b->slabs, s, tag_of(a, c), p);
  if (kept) note_spare(b);
  hak_lock_drop(&b->lock);
  return kept;
}

size_t hak_arena_kept_bytes(void) {
  size_t bytes = 0;
  for (uint32_t i = hak_arena_count(); i-- > 0;) {
    /* Of whole spans are the last plain classes: a program that begins asks at each slab. */
    for (unsigned c = HAK_PLAIN_CLASSES - 1; hak_class_size(c) > HAK_SHARED_MAX; c--)
      bytes += hak_load_relaxed(&hak_arena_at(i)->bins[c].slabs.kept) * hak_align_up(hak_class_size(c), HAK_SPAN_SIZE);
  }
  return bytes;
}

void *hak_arena_alloc(unsigned c, hak_deferred *d) {
  void *p = NULL;
  hak_arena_take(hak_arena_current(), c, &p, 1, d);
  return p;
}

void *hak_arena_alloc_sampled(unsigned c) {
  void *p = NULL;
  uint32_t id = hak_load_relaxed(&sampled_id);
  if (id == 0 || id >= hak_arena_count() || hak_os_refused_lately(&sampled_refused)) return NULL;
  hak_arena *a = arenas[id];
  hak_arena_bin *b = bin_of(a, c);
  hak_lock_take(&b->lock);
  hak_slab_set_take(&b->slabs, c, a->id + 1, &p, 1);
  hak_lock_drop(&b->lock);
  if (p == NULL) hak_os_note_refusal(&sampled_refused);
  return p;
}

bool hak_arena_make_extent(hak_span *s, const void *p, unsigned c) {
  HAK_ASSERT(hak_class_size(c) > HAK_SHARED_MAX);
  hak_arena *a = owner_of_slab(s, c);
  if (a == NULL || s->start != (uintptr_t)p) return false;
  hak_arena_bin *b = bin_of(a, c);
  hak_lock_take(&b->lock);
  /* Not one that is kept, whose block was freed */
  bool ours = hak_load_relaxed(&s->tag) == tag_of(a, c) && hak_slab_examine(s, p) == HAK_VERDICT_OK;
  if (ours) {
    hak_slab_set_release(&b->slabs, s);
    hak_pool_retag(s, HAK_EXTENT_TAGS);
  }
  hak_lock_drop(&b->lock);
  return ours;
}

/* --- decay --- */

static void flush_magazine(void **magazine, unsigned c, hak_deferred *d) {
  hak_arena_flush(hak_magazine_empty_top(magazine, c) + 1, hak_magazine_usable[c], c, d);
  hak_meta_give_one(magazine);
}

/* The full magazines that nobody needed. Who shrinks by the clock does not wait for a thread that may have been stopped
 * while it had the lock. */
static void shrink_bin(hak_arena_bin *b, unsigned c, bool all, bool waits, hak_deferred *d) {
  if (waits)
    hak_lock_take(&b->lock);
  else if (!hak_lock_try(&b->lock))
    return;
  for (uint32_t n = all ? b->full_count : b->full_low; n > 0 && b->full != NULL; n--) {
    void **magazine = pop_full(b, c);
    hak_lock_drop(&b->lock);
    flush_magazine(magazine, c, d);
    hak_lock_take(&b->lock);
  }
  b->full_low = b->full_count;
  hak_slab_set_trim(&b->slabs, &d->purge_due);
  hak_lock_drop(&b->lock);
}

static void shrink(hak_arena *a, bool all, bool waits, hak_deferred *d) {
  /* Shrinks bins without slabs too: their depots hold others' blocks. */
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) shrink_bin(bin_of(a, c), c, all, waits, d);
}

void hak_arena_shrink(hak_arena *a, bool all, hak_deferred *d) { shrink(a, all, false, d); }

void hak_arena_shrink_all(hak_deferred *d) {
  for (unsigned round = 0; round < 2; round++) {
    for (uint32_t i = hak_arena_count(); i-- > 0;) shrink(arenas[i], true, true, d);
  }
}

void hak_arena_check_depots(unsigned magazines, hak_deferred *d) {
  for (uint32_t i = hak_arena_count(); i-- > 0;) {
    for (unsigned c = 0; c < HAK_CLASS_COUNT && magazines > 0; c++) {
      for (void **m; magazines > 0 && (m = hak_arena_take_magazine(arenas[i], c)) != NULL; magazines--)
        flush_magazine(m, c, d);
    }
  }
}

/* --- fork --- */

bool hak_arena_all_locks(bool (*is)(hak_lock *lock)) {
  bool all = is(&arenas_lock);
  for (uint32_t i = 0; all && i < arena_count; i++) {
    for (unsigned c = 0; all && c < HAK_CLASS_COUNT; c++) all = is(&arenas[i]->bins[c].lock);
  }
  return all;
}

void hak_arena_fork_lock(void) {
  hak_lock_take(&arenas_lock);
  for (uint32_t i = 0; i < arena_count; i++) {
    for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) hak_lock_take(&arenas[i]->bins[c].lock);
  }
}

void hak_arena_fork_unlock(void) {
  for (uint32_t i = arena_count; i-- > 0;) {
    for (unsigned c = HAK_CLASS_COUNT; c-- > 0;) hak_lock_drop(&arenas[i]->bins[c].lock);
  }
  hak_lock_drop(&arenas_lock);
}
