/* The slow half of the thread cache: refill, overflow, decay, and the life of caches. */
#include "tcache/tcache.h"

#include <string.h>

#define SLOTS (HAK_MAGAZINE_SLOTS - 1)
/* A thread may stack so much of all classes beside the loaded magazines: what has left the CPU's cache gains nothing by
 * being handed out first, and blocks freed in no order would be handed out in none. Of a class few, since the oldest is
 * found by a walk. */
#define STACK_BLOCKS_MAX 945
#define SPARES_MAX (STACK_BLOCKS_MAX / (SLOTS / 2)) /* as many empty ones as a stack has */
/* That is of a thread that runs: four for each arena may have all of it, more share that. Near a target there is none:
 * 24 threads in bursts exceeded one of 150 MB by 4 % in the mean. */
#define RUNNING_OF_AN_ARENA 4

/* Registry lock. */
static hak_lock registry_lock;
static hak_tcache *unused; /* those that nobody has */
static size_t used_count;  /* the others; read by any thread, relaxed */
static hak_request_counts requests_uncached[HAK_CLASS_COUNT]; /* relaxed: of threads without a cache */

/* Other threads read the counters of a cache; nobody but its owner writes them. */
static void count_one(uint64_t *counter) { hak_add_single(counter, 1); }

static uint16_t pinned_stack(unsigned c) {
  size_t pinned = hak_config_pinned(hak_class_group(hak_class_size(c))), usable = hak_magazine_usable[c];
  /* A pin below one magazine shrinks magazines; not where the setting was read after the first allocation. */
  return (uint16_t)(pinned == 0 ? HAK_PINNED_NOT : pinned < usable ? 0 : pinned / usable - 1);
}

/* A loaded magazine of large blocks has a small capacity first. It doubles when the class has taken so many slow paths
 * within a decay time (in proportion to the capacity: CAPACITY_SLOW_PATHS at the greatest), and halves when it has
 * taken less than a quarter of them. */
#define CAPACITY_FIRST_BYTES (16 * HAK_KIB)
#define CAPACITY_SLOW_PATHS 512

static unsigned slow_paths_to_grow(const hak_tcache_bin *b, unsigned c) {
  return CAPACITY_SLOW_PATHS * b->capacity / hak_magazine_usable[c];
}

static unsigned first_capacity(const hak_tcache_bin *b, unsigned c) {
  unsigned usable = hak_magazine_usable[c];
  if (hak_tcache_is_pinned(b)) return usable;
  return (unsigned)hak_min_size(usable, hak_max_size(CAPACITY_FIRST_BYTES / hak_class_size(c), 2));
}

static size_t magazine_bytes(unsigned c) { return hak_magazine_usable[c] * hak_class_size(c); }

size_t hak_tcache_threads(void) { return hak_load_relaxed(&used_count); }

static size_t share_of(size_t bytes) {
  if (hak_budget_near_now() || hak_pool_frees_much()) return 0;
  size_t threads = hak_tcache_threads(), running = RUNNING_OF_AN_ARENA * (size_t)hak_arena_count();
  return threads <= running ? bytes : bytes * running / threads;
}

static bool may_stack(const hak_tcache *t, const hak_tcache_bin *b, unsigned c) {
  if (HAK_UNLIKELY(hak_tcache_is_pinned(b))) return b->full_count < b->pinned;
  return (b->full_count + 1u) * hak_magazine_usable[c] <= STACK_BLOCKS_MAX &&
         t->stacked_bytes + magazine_bytes(c) <= share_of(hak_os_l2_bytes);
}

static void init_bins(hak_tcache *t) {
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    t->bins[c] = (hak_tcache_bin){.top = HAK_NULL_TOP, .pinned = pinned_stack(c), .batch = HAK_BATCH_FIRST};
    t->bins[c].capacity = (uint8_t)first_capacity(&t->bins[c], c);
  }
}

/* --- magazines --- */

static void **take_spare(hak_tcache *t) {
  hak_meta *spare = t->spares;
  HAK_ASSERT((spare == NULL) == (t->spare_count == 0));
  if (spare == NULL) return (void **)hak_meta_take();
  t->spares = spare->next;
  t->spare_count--;
  return (void **)spare;
}

static void give_spares(hak_tcache *t) {
  hak_meta_give(t->spares);
  t->spares = NULL;
  t->spare_count = 0;
}

static void give_spare(hak_tcache *t, void *memory) {
  hak_meta *spare = memory;
  HAK_ASSERT(((uintptr_t)memory & (HAK_META_SIZE - 1)) == 0);
  spare->next = t->spares;
  t->spares = spare;
  /* Who only frees gives magazines away, who only allocates is given them: the surplus of one is what the other
   * lacks. */
  if (++t->spare_count > SPARES_MAX) give_spares(t);
}

static unsigned loaded_blocks(hak_tcache *t, unsigned c) {
  const hak_tcache_bin *b = &t->bins[c];
  return b->loaded == NULL ? 0 : (unsigned)(*hak_tcache_top_of(t, c) - hak_tcache_empty_top(b));
}

static void load(hak_tcache *t, unsigned c, void **magazine, unsigned count) {
  HAK_ASSERT(t == hak_tls.cache);
  HAK_ASSERT(count <= t->bins[c].capacity && t->bins[c].capacity <= hak_magazine_usable[c]);
  t->bins[c].loaded = magazine;
  void **empty = hak_tcache_empty_top(&t->bins[c]);
  *empty = NULL;
  *hak_tcache_top_of(t, c) = empty + count;
}

/* At least as many as the loaded magazine's blocks, which move within it; it is not loaded meanwhile, as a signal's
 * handler may come by. */
static void set_capacity(hak_tcache *t, unsigned c, unsigned capacity) {
  hak_tcache_bin *b = &t->bins[c];
  unsigned count = loaded_blocks(t, c), before = b->capacity;
  HAK_ASSERT(count <= capacity && capacity <= hak_magazine_usable[c]);
  void **magazine = b->loaded;
  if (magazine != NULL) {
    *hak_tcache_top_of(t, c) = HAK_NULL_TOP;
    b->loaded = NULL;
    memmove(hak_magazine_empty_top_of(magazine, capacity) + 1, hak_magazine_empty_top_of(magazine, before) + 1,
            count * sizeof *magazine);
  }
  b->capacity = (uint8_t)capacity;
  if (magazine != NULL) load(t, c, magazine, count);
}

static void note_slow_path(hak_tcache *t, unsigned c) {
  hak_tcache_bin *b = &t->bins[c];
  count_one(&t->slow_count);
  b->slow_paths += b->slow_paths < UINT16_MAX;
  unsigned usable = hak_magazine_usable[c];
  if (HAK_LIKELY(b->capacity == usable) || b->slow_paths < slow_paths_to_grow(b, c)) return;
  set_capacity(t, c, (unsigned)hak_min_size(b->capacity * 2u, usable));
  b->slow_paths = 1;
}

static bool load_empty(hak_tcache *t, unsigned c) {
  void **magazine = take_spare(t);
  if (magazine == NULL) return false;
  load(t, c, magazine, 0);
  return true;
}

static void publish_count(hak_tcache *t, unsigned c) {
  hak_tcache_bin *b = &t->bins[c];
  HAK_ASSERT(loaded_blocks(t, c) <= b->capacity && (b->full == NULL) == (b->full_count == 0));
  hak_store_relaxed(&b->published, loaded_blocks(t, c) + b->full_count * (uint32_t)hak_magazine_usable[c]);
}

static void publish(hak_tcache *t, unsigned c) {
  publish_count(t, c);
  note_slow_path(t, c);
}

static void push_stack(hak_tcache *t, unsigned c, void **magazine) {
  hak_tcache_bin *b = &t->bins[c];
  HAK_ASSERT(magazine[SLOTS] != NULL && magazine != b->loaded); /* it is full */
  *magazine = b->full;
  b->full = magazine;
  b->full_count++;
  t->stacked_bytes += magazine_bytes(c);
}

static void **pop_stack(hak_tcache *t, unsigned c) {
  hak_tcache_bin *b = &t->bins[c];
  HAK_ASSERT(b->full != NULL && b->full_count > 0 && t->stacked_bytes >= magazine_bytes(c));
  void **magazine = b->full;
  b->full = (void **)*magazine;
  b->full_count--;
  if (b->full_count < b->full_low) b->full_low = b->full_count;
  t->stacked_bytes -= magazine_bytes(c);
  return magazine;
}

/* Takes the magazines below the newest `kept` off the stack, linked as they were. */
static void **cut_stack(hak_tcache *t, unsigned c, unsigned kept) {
  hak_tcache_bin *b = &t->bins[c];
  HAK_ASSERT(kept <= b->full_count);
  void **link = (void **)&b->full; /* slot 0 of the one above */
  for (unsigned n = kept; n > 0; n--) link = *link;
  void **below = *link;
  *link = NULL;
  HAK_ASSERT(t->stacked_bytes >= (b->full_count - kept) * magazine_bytes(c));
  t->stacked_bytes -= (b->full_count - kept) * magazine_bytes(c);
  b->full_count = (uint16_t)kept;
  return below;
}

static void flush_blocks(hak_tcache *t, unsigned c, void *const *blocks, unsigned count, hak_deferred *d) {
  hak_arena_flush(blocks, count, c, d);
  if (t->counts != NULL) count_one(&t->counts[c].flushes);
}

static void flush_magazine(hak_tcache *t, unsigned c, void **magazine, hak_deferred *d) {
  flush_blocks(t, c, hak_magazine_empty_top(magazine, c) + 1, hak_magazine_usable[c], d);
  give_spare(t, magazine);
}

/* --- refill and overflow --- */

static bool refill_from_slabs(hak_tcache *t, hak_arena *a, unsigned c, hak_deferred *d) {
  hak_tcache_bin *b = &t->bins[c];
  HAK_ASSERT(b->batch > 0 && loaded_blocks(t, c) == 0);
  void **first = hak_tcache_empty_top(b) + 1;
  unsigned taken = hak_arena_take(a, c, first, (unsigned)hak_min_size(b->batch, b->capacity), d);
  *hak_tcache_top_of(t, c) += taken;
  b->batch = (uint8_t)hak_min_size(b->batch * 2u, SLOTS);
  if (t->counts != NULL) count_one(&t->counts[c].refills);
  return taken > 0;
}

static bool refill(hak_tcache *t, unsigned c, hak_deferred *d) {
  HAK_ASSERT(t->busy > 0 && loaded_blocks(t, c) == 0);
  hak_tcache_bin *b = &t->bins[c];
  void **magazine;
  if (b->full != NULL) {
    magazine = pop_stack(t, c);
  } else {
    hak_arena *a = hak_arena_current();
    magazine = hak_arena_take_magazine(a, c);
    if (magazine == NULL) return (b->loaded != NULL || load_empty(t, c)) && refill_from_slabs(t, a, c, d);
  }
  if (b->loaded != NULL) give_spare(t, b->loaded);
  b->capacity = hak_magazine_usable[c];
  load(t, c, magazine, b->capacity);
  return true;
}

/* Out of the magazine first: a signal handler that ends the process here must not flush them again. */
static void flush_half(hak_tcache *t, unsigned c, hak_deferred *d) {
  unsigned n = (loaded_blocks(t, c) + 1) / 2;
  void *oldest[HAK_MAGAZINE_SLOTS];
  hak_magazine_take_oldest(hak_tcache_empty_top(&t->bins[c]), hak_tcache_top_of(t, c), oldest, n);
  flush_blocks(t, c, oldest, n, d);
}

/* Room for one more block of the class. False: no magazine to be had. */
static bool make_room(hak_tcache *t, unsigned c, hak_deferred *d) {
  hak_tcache_bin *b = &t->bins[c];
  HAK_ASSERT(t->busy > 0 && (b->loaded == NULL || loaded_blocks(t, c) == b->capacity));
  if (b->loaded == NULL) return load_empty(t, c);
  if (b->capacity < hak_magazine_usable[c]) {
    flush_half(t, c, d);
    return true;
  }
  void **magazine = b->loaded;
  bool foreign = !hak_tcache_is_pinned(b) && hak_arena_is_foreign(magazine, c), stacks = !foreign && may_stack(t, b, c);
  void **empty = foreign || stacks || b->full != NULL ? take_spare(t) : NULL;
  if (empty == NULL) {
    flush_half(t, c, d);
    return true;
  }
  load(t, c, empty, 0);
  if (stacks) {
    push_stack(t, c, magazine);
    return true;
  }
  if (foreign && hak_arena_put_magazine(magazine, c)) return true;
  /* The oldest goes, whose blocks are the coldest: of a few. Of a stack that was pinned or prewarmed to more, none is
   * warm. */
  if (!foreign && b->full_count * (size_t)hak_magazine_usable[c] <= STACK_BLOCKS_MAX) {
    void **oldest = cut_stack(t, c, b->full_count - 1u);
    push_stack(t, c, magazine);
    magazine = oldest;
  }
  flush_magazine(t, c, magazine, d);
  return true;
}

/* Returns the class's blocks to slabs, and its magazines. */
static void empty_bin(hak_tcache *t, unsigned c, hak_deferred *d) {
  HAK_ASSERT(t->busy > 0 && t->bins[c].sentinel == 0);
  hak_tcache_bin *b = &t->bins[c];
  if (b->loaded == NULL && b->full == NULL) return;
  while (b->full != NULL) flush_magazine(t, c, pop_stack(t, c), d);
  unsigned count = loaded_blocks(t, c);
  void **magazine = b->loaded;
  b->loaded = NULL;
  *hak_tcache_top_of(t, c) = HAK_NULL_TOP;
  if (count > 0) flush_blocks(t, c, hak_magazine_empty_top_of(magazine, b->capacity) + 1, count, d);
  if (magazine != NULL) give_spare(t, magazine);
  hak_store_relaxed(&b->published, 0);
}

/* --- calls --- */

static void *pop_any(hak_tcache *t, unsigned c) {
  unsigned count = loaded_blocks(t, c);
  if (count == 0) return NULL;
  void **top = *hak_tcache_top_of(t, c), **chosen = top - ((hak_tcache_random(t) >> 32) * count >> 32), *p = *chosen;
  *chosen = *top;
  *hak_tcache_top_of(t, c) = top - 1;
  return p;
}

void *hak_tcache_pop_any(unsigned c) {
  hak_tcache *t = hak_tls.cache;
  return t == NULL || t->all_slow ? NULL : pop_any(t, c);
}

static void *pop(hak_tcache *t, unsigned c) {
  if (HAK_HARD(RANDOM) && t->all_slow) return pop_any(t, c);
  return hak_magazine_pop(hak_tcache_top_of(t, c));
}

/* Blocks of whole spans are kept by arenas. */
static bool caches(unsigned c) { return hak_config.hot_ring_enable != 0 && hak_class_size(c) <= HAK_SHARED_MAX; }

static void *alloc(hak_tcache *t, unsigned c, hak_deferred *d) {
  if (HAK_UNLIKELY(!caches(c))) {
    count_one(&t->slow_count);
    return hak_arena_alloc(c, d);
  }
  void *p = pop(t, c);
  if (t->counts != NULL) count_one(p != NULL ? &t->counts[c].hits : &t->counts[c].misses);
  if (p != NULL) return p;
  bool filled = refill(t, c, d);
  publish(t, c);
  return HAK_LIKELY(filled) ? pop(t, c) : hak_arena_alloc(c, d);
}

void *hak_tcache_alloc(hak_tcache *t, unsigned c, hak_deferred *d) {
  hak_tcache_enter(t);
  void *p = alloc(t, c, d);
  hak_tcache_leave(t);
  return p;
}

static void free_block(hak_tcache *t, void *p, unsigned c, hak_deferred *d) {
  void **top = *hak_tcache_top_of(t, c);
#if HAK_CHECKS
  if (HAK_UNLIKELY(*top == p)) {
    hak_deferred_note(d, HAK_VERDICT_DOUBLE_FREE, p, c, "at the call");
    return;
  }
#endif
  if (((uintptr_t)(top + 1) & (HAK_MAGAZINE_BYTES - 1)) == 0) {
    if (HAK_UNLIKELY(!caches(c)) || HAK_UNLIKELY(!make_room(t, c, d))) {
      hak_arena_free(p, c, d);
      return;
    }
    publish(t, c);
    top = *hak_tcache_top_of(t, c);
  }
  top[1] = p;
  *hak_tcache_top_of(t, c) = top + 1;
  if (t->counts != NULL) count_one(&t->counts[c].hits);
}

void hak_tcache_free(hak_tcache *t, void *p, unsigned c, hak_deferred *d) {
  hak_tcache_enter(t);
  free_block(t, p, c, d);
  hak_tcache_leave(t);
}

bool hak_tcache_has_magazine(const hak_tcache *t, unsigned c) {
  const hak_arena_bin *b = &hak_arena_current()->bins[c];
  return t->bins[c].full != NULL || hak_load_relaxed(&b->full_count) != 0 || hak_load_relaxed(&b->slabs.kept) != 0;
}

void hak_tcache_prewarm(hak_tcache *t, unsigned c, unsigned blocks, hak_deferred *d) {
  hak_tcache_enter(t);
  hak_tcache_bin *b = &t->bins[c];
  unsigned usable = hak_magazine_usable[c];
  HAK_ASSERT(blocks > 0);
  set_capacity(t, c, usable);
  /* A pinned capacity is not exceeded */
  if (hak_tcache_is_pinned(b)) blocks = (unsigned)hak_min_size(blocks, (b->pinned + 1u) * usable);
  /* A loaded magazine of few blocks would be changed for a stacked one, and back, whenever a handful is live. */
  unsigned loaded = (blocks - 1) % usable + 1, least = (usable + 1) / 2;
  if (!hak_tcache_is_pinned(b) && blocks > usable && loaded < least) blocks += least - loaded;
  while (blocks > 0) {
    void **full = b->loaded != NULL && loaded_blocks(t, c) == usable ? b->loaded : NULL;
    if ((b->loaded == NULL || full != NULL) && !load_empty(t, c)) break;
    if (full != NULL) push_stack(t, c, full);
    unsigned n = (unsigned)hak_min_size(blocks, usable - loaded_blocks(t, c));
    unsigned taken = hak_arena_take(hak_arena_current(), c, *hak_tcache_top_of(t, c) + 1, n, d);
    *hak_tcache_top_of(t, c) += taken;
    if (taken == 0) break;
    blocks -= taken;
  }
  publish(t, c);
  b->slow_paths = (uint16_t)hak_max_size(b->slow_paths, CAPACITY_SLOW_PATHS); /* the first decay leaves it */
  hak_tcache_leave(t);
}

/* --- giving back --- */

static void flush(hak_tcache *t, hak_deferred *d) {
  HAK_ASSERT(t == hak_tls.cache);
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) empty_bin(t, c, d);
  give_spares(t);
}

void hak_tcache_flush(hak_tcache *t, hak_deferred *d) {
  hak_tcache_enter(t);
  flush(t, d);
  hak_tcache_leave(t);
}

static void forget_bin(hak_tcache *t, unsigned c, hak_deferred *d) {
  hak_tcache_bin *b = &t->bins[c];
  if (hak_config_lean() && (b->loaded != NULL || b->full != NULL)) hak_os_count(&hak_os_stats.lean_retire);
  empty_bin(t, c, d);
  b->batch = HAK_BATCH_FIRST;
  b->capacity = (uint8_t)first_capacity(b, c);
}

static void shrink(hak_tcache *t, unsigned c, hak_deferred *d) {
  hak_tcache_bin *b = &t->bins[c];
  unsigned capacity = (unsigned)hak_max_size(b->capacity / 2u, first_capacity(b, c));
  if (b->full != NULL || capacity >= b->capacity) return;
  if (loaded_blocks(t, c) > capacity) flush_half(t, c, d);
  set_capacity(t, c, capacity);
}

static void decay_bin(hak_tcache *t, unsigned c, bool all, hak_deferred *d) {
  hak_tcache_bin *b = &t->bins[c];
  unsigned slow_paths = b->slow_paths;
  b->slow_paths = 0;
  if (hak_tcache_is_pinned(b)) return;
  if (slow_paths == 0) {
    forget_bin(t, c, d);
    return;
  }
  if (slow_paths < slow_paths_to_grow(b, c) / 4) shrink(t, c, d);
  unsigned leave = all ? b->full_count : (b->full_low + 1u) / 2;
  for (void **magazine = cut_stack(t, c, b->full_count - leave), **next; magazine != NULL; magazine = next) {
    next = *magazine;
    flush_magazine(t, c, magazine, d);
  }
  b->full_low = b->full_count;
}

void hak_tcache_decay(hak_tcache *t, bool all, hak_deferred *d) {
  hak_tcache_enter(t);
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) decay_bin(t, c, all, d);
  hak_tcache_leave(t);
}

/* --- life --- */

static void *make_counts(size_t bytes_a_class) {
  return hak_meta_take_block((unsigned)((HAK_CLASS_COUNT * bytes_a_class + HAK_META_SIZE - 1) / HAK_META_SIZE));
}

static hak_tcache *take_unused(void) {
  hak_lock_take(&registry_lock);
  hak_tcache *t = unused;
  if (t != NULL) {
    HAK_ASSERT(!t->used && t->top == NULL);
    unused = t->next_unused;
    hak_store_relaxed(&t->used, true);
    hak_add_single(&used_count, 1);
  }
  hak_lock_drop(&registry_lock);
  return t;
}

static hak_tcache *make(void) {
  hak_tcache *t = hak_meta_take_block((sizeof *t + HAK_META_SIZE - 1) / HAK_META_SIZE);
  if (t == NULL) return NULL;
  if (hak_config.front_metrics) t->counts = make_counts(sizeof *t->counts);
  if (hak_config.stats != HAK_STATS_OFF || hak_config.stats_page != 0) t->requests = make_counts(sizeof *t->requests);
  t->used = true;
  hak_lock_take(&registry_lock);
  t->next = hak_tcache_latest;
  hak_store_release(&hak_tcache_latest, t);
  hak_add_single(&used_count, 1);
  hak_lock_drop(&registry_lock);
  return t;
}

hak_tcache *hak_tcache_attach(bool all_slow) {
  HAK_ASSERT(hak_tls.cache == NULL);
  hak_tcache *t = take_unused();
  if (t == NULL) t = make();
  if (t == NULL) return NULL;
  hak_tcache_enter(t);
  init_bins(t);
  t->stacked_bytes = 0;
  t->all_slow = all_slow;
  hak_store_relaxed(&t->top, hak_tls.top);
  for (unsigned code = 0; code < HAK_CODES; code++) t->top[code] = HAK_NULL_TOP;
  t->ending_rounds = 0;
  t->attached_ms = t->decayed_ms = hak_os_now_ms();
  t->last_count = (hak_count_visit){t->decayed_ms, hak_count_asked()};
  hak_store_relaxed(&t->exit_ms, t->decayed_ms);
  hak_tcache_leave(t);
  hak_tls.cache = t;
  hak_tls.phase = HAK_THREAD_CACHED;
  return t;
}

static void retire_locked(hak_tcache *t) {
  hak_assert_held(&registry_lock);
  hak_store_relaxed(&t->used, false);
  hak_sub_single(&used_count, 1);
  t->next_unused = unused;
  unused = t;
}

void hak_tcache_detach(hak_deferred *d) {
  hak_tcache *t = hak_tls.cache;
  hak_tls.phase = HAK_THREAD_ENDED;
  if (t == NULL) return;
  hak_tcache_enter(t);
  flush(t, d);
  hak_tls.cache = NULL;
  hak_tls.heap_cache = NULL;
  hak_store_relaxed(&t->top, NULL);
  hak_tcache_leave(t);
  hak_lock_take(&registry_lock);
  retire_locked(t);
  hak_lock_drop(&registry_lock);
}

HAK_COLD uint64_t hak_tcache_seed(hak_tcache *t) {
  hak_os_random(&t->random, sizeof t->random);
  t->random |= t->random == 0;
  return t->random;
}

/* --- figures --- */

void hak_tcache_note_request(unsigned c, size_t size) {
  HAK_ASSERT(c < HAK_CLASS_COUNT && size <= hak_class_size(c));
  const hak_tcache *t = hak_tls.cache;
  if (t != NULL && t->requests != NULL) {
    hak_request_counts *r = &t->requests[c];
    count_one(&r->count);
    hak_add_single(&r->bytes, size);
    return;
  }
  hak_add_relaxed(&requests_uncached[c].count, 1);
  hak_add_relaxed(&requests_uncached[c].bytes, size);
}

void hak_tcache_publish(void) {
  hak_tcache *t = hak_tls.cache;
  if (t == NULL) return;
  hak_tcache_enter(t);
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) publish_count(t, c);
  hak_tcache_leave(t);
}

void hak_tcache_sum(hak_tcache_sums *sums) {
  *sums = (hak_tcache_sums){0};
  hak_lock_take(&registry_lock);
  for (const hak_tcache *t = hak_tcache_latest; t != NULL; t = t->next) {
    sums->caches++;
    sums->used += t->used;
    sums->slow_paths += hak_load_relaxed(&t->slow_count);
  }
  hak_lock_drop(&registry_lock);
}

hak_class_sums hak_tcache_sum_class(unsigned c) {
  hak_class_sums s = {
      .requests = {hak_load_relaxed(&requests_uncached[c].count), hak_load_relaxed(&requests_uncached[c].bytes)}};
  hak_lock_take(&registry_lock);
  for (const hak_tcache *t = hak_tcache_latest; t != NULL; t = t->next) {
    s.published += hak_load_relaxed(&t->bins[c].published);
    if (t->requests != NULL) {
      s.requests.count += hak_load_relaxed(&t->requests[c].count);
      s.requests.bytes += hak_load_relaxed(&t->requests[c].bytes);
    }
    if (t->counts == NULL) continue;
    s.counts.hits += hak_load_relaxed(&t->counts[c].hits);
    s.counts.misses += hak_load_relaxed(&t->counts[c].misses);
    s.counts.refills += hak_load_relaxed(&t->counts[c].refills);
    s.counts.flushes += hak_load_relaxed(&t->counts[c].flushes);
  }
  hak_lock_drop(&registry_lock);
  return s;
}

/* --- fork --- */

bool hak_tcache_all_locks(bool (*is)(hak_lock *lock)) {
  return is(&hak_tcache_reach_lock) && is(&registry_lock) && hak_arena_all_locks(is);
}

void hak_tcache_fork_lock(void) {
  hak_lock_take(&hak_tcache_reach_lock); /* no cache is half taken */
  hak_lock_take(&registry_lock);
  hak_arena_fork_lock();
}

void hak_tcache_fork_unlock(void) {
  hak_arena_fork_unlock();
  hak_lock_drop(&registry_lock);
  hak_lock_drop(&hak_tcache_reach_lock);
}

/* What threads that are not in the child had cached is lost there: they may have been in the middle of a push. */
void hak_tcache_fork_child(void) {
  hak_assert_held(&registry_lock);
  for (hak_tcache *t = hak_tcache_latest; t != NULL; t = t->next) {
    if (!t->used || t == hak_tls.cache || t == hak_tls.aside) continue;
    for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) t->bins[c].published = 0;
    t->spares = NULL;
    t->spare_count = 0;
    t->quarantine = NULL;
    t->heaps = NULL;
    t->top = NULL;
    t->busy = t->has_sentinel = 0;
    retire_locked(t);
  }
}
