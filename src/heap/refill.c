/* The slow half of the front cache: refill, overflow, flush, and the capacity that adapts.
 *
 * Magazines belong to the heap's owner and need no lock; slabs need the slow lock, which is never held across a
 * misuse report, a release to the system or another heap's lock. */
#include <string.h>

#include "config/config.h"
#include "heap/remote.h"
#include "heap/run_stock.h"
#include "os/os.h"
#include "pool/budget.h"
#include "pool/release.h"

#define SLOTS (HAK_MAGAZINE_SLOTS - 1) /* usable slots of a whole magazine */

/* A class may cache this many bytes at first, and when refills and flushes alternate. Measured in
   docs/decisions/002-front-capacity.md. */
#define CAPACITY_BYTES_FIRST (16 * HAK_KIB)
#define CAPACITY_BYTES_LAST (2 * HAK_MIB)
/* All classes of a heap together may grow by so much. */
#define GROWTH_BYTES_MAX ((uint32_t)(2 * HAK_MIB))
#define CAPACITY_BLOCKS_FIRST SLOTS
#define PREWARM_LOADED_MIN (HAK_MAGAZINE_SLOTS / 2)
#define CAPACITY_BLOCKS_LEAST 4
/* A swing is a flush that follows a refill of the same class within so few slow paths of the heap. A class that swings so
 * often within OFTEN_MS may cache more; a swing costs half a microsecond, one in a millisecond is left alone. */
#define SWING_SLOW_PATHS 64
#define SWINGS 2
/* The clock moves in steps of 1 to 10 ms. */
#define OFTEN_MS 4

/* What a heap without owner keeps in its front: no more than a span a class, and half a MiB. */
#define WARM_CLASS_BYTES HAK_SPAN_SIZE
#define WARM_BYTES (512 * HAK_KIB)

#define LENDERS_MAX 16 /* heaps asked before blocks are carved */

#define BATCH_FIRST 4

/* A thread that allocates a little and then sleeps must not keep a magazine, blocks and a slab a class. So the first blocks
 * of a class are taken and freed one by one, and no empty slab is kept for them; but for the process's first heap, which
 * is most programs' only one. */
#define YOUNG_TAKES 8
/* What is due by the clock is done every 64 slow paths, and in one that comes so long after it was done last. */
#define TICK_MASK 63
#define TICK_MS 20
#define IDLE_MS 250

/* When a class has mostly free slabs of so many bytes, the latest of them free by seven eighths, somebody has to look for
 * their holes, twice; but work within the front alone never comes here. So all classes lose their magazines, as young
 * ones, until that is done: those that are used often, more than every 100 us, for so many requests more than frees, or
 * 200 ms; not again for 20 s where that was in vain. */
#define THIN_BYTES_FROM (16 * HAK_MIB)
#define THIN_REST_MS (100 * HAK_THIN_MS)
#define THIN_TAKES_OFTEN 40 /* within OFTEN_MS */

#define FIRST_THREAD_ID (HAK_EMERGENCY_ID + 1)

static uint32_t first_capacity(unsigned class_code) {
  size_t size = hak_class_size(class_code);
  int64_t pinned = hak_config.hot_ring[hak_class_group(size)];
  if (pinned != 0) return (uint32_t)pinned;
  return (uint32_t)hak_max_size(hak_min_size(CAPACITY_BYTES_FIRST / size, CAPACITY_BLOCKS_FIRST), CAPACITY_BLOCKS_LEAST);
}

static bool is_pinned(unsigned class_code) {
  return hak_config.hot_ring[hak_class_group(hak_class_size(class_code))] != 0;
}

void hak_heap_init_bins(hak_heap *h) {
  h->hot_tag = HAK_TAG_NONE;
  h->grown_bytes = 0;
  h->run_stock_count = h->run_stock_spans = 0;
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) {
    hak_bin *bin = &h->bins[c];
    bin->magazine = bin->full = NULL;
    bin->returned = NULL;
    bin->returned_blocks = 0;
    bin->full_count = 0;
    bin->capacity = first_capacity(c);
    bin->batch = BATCH_FIRST;
    bin->young = h->id <= FIRST_THREAD_ID || is_pinned(c) ? 0 : YOUNG_TAKES;
  }
}

static unsigned loaded_count(const hak_heap *h, unsigned c) {
  return h->bins[c].magazine == NULL ? 0 : (unsigned)(h->front->top[c] - hak_bin_empty_top(&h->bins[c]));
}

hak_cell *hak_heap_take_cell(hak_heap *h) {
  if (h->cells == NULL && hak_load_relaxed(&h->homecoming) != NULL)
    h->cells = (hak_cell *)hak_exchange_acquire(&h->homecoming, NULL); /* pairs with hak_remote_send_home */
  hak_cell *cell = h->cells;
  if (cell == NULL) return hak_cell_take();
  h->cells = cell->next;
  return cell;
}

void hak_heap_give_cell(hak_heap *h, void *memory) {
  hak_cell *cell = memory;
  cell->next = h->cells;
  h->cells = cell;
}

static void put_blocks(hak_heap *h, unsigned c, void **blocks, unsigned count, hak_outcome *outcome) {
  count = hak_remote_sort_out(h, blocks, count, c);
  hak_lock_take(&h->lock);
  hak_heap_put_all_locked(h, blocks, count, c, outcome);
  hak_lock_drop(&h->lock);
  h->bins[c].activity = true;
  if (h->counts != NULL) h->counts[c].flushes++;
}

#define IN_A_FLUSH "when its class was flushed"

static void flush_blocks(hak_heap *h, unsigned c, void **blocks, unsigned count) {
  hak_outcome outcome = {0};
  put_blocks(h, c, blocks, count, &outcome);
  hak_outcome_settle(&outcome, IN_A_FLUSH);
}

/* Loads an empty magazine as a bin's first one. */
static bool load_first(hak_heap *h, unsigned c) {
  hak_bin *bin = &h->bins[c];
  void **magazine = (void **)hak_heap_take_cell(h);
  if (magazine == NULL) return false;
  bin->magazine = magazine;
  bin->usable = (uint16_t)hak_min_size(bin->capacity, SLOTS);
  *hak_bin_empty_top(bin) = NULL;
  h->front->top[c] = hak_bin_empty_top(bin);
  return true;
}

/* Moves the loaded magazine's NULL down so that `usable` slots can be used. */
static void widen(hak_heap *h, unsigned c, unsigned usable) {
  hak_bin *bin = &h->bins[c];
  unsigned count = loaded_count(h, c), by = usable - bin->usable;
  void **old_first = hak_bin_empty_top(bin) + 1;
  bin->usable = (uint16_t)usable;
  memmove(old_first - by, old_first, count * sizeof *old_first);
  *hak_bin_empty_top(bin) = NULL;
  h->front->top[c] -= by;
}

bool hak_heap_push_full(hak_heap *h, unsigned c) {
  hak_bin *bin = &h->bins[c];
  if (bin->magazine == NULL) return bin->young == 0 && load_first(h, c);
  if (bin->usable < SLOTS) {
    unsigned usable = (unsigned)hak_min_size(bin->capacity, SLOTS);
    if (usable <= bin->usable) return false;
    widen(h, c, usable);
    return true;
  }
  if ((bin->full_count + 2u) * SLOTS > bin->capacity) return false;
  void **magazine = (void **)hak_heap_take_cell(h);
  if (magazine == NULL) return false;
  *bin->magazine = bin->full;
  bin->full = bin->magazine;
  bin->full_count++;
  bin->magazine = magazine;
  *magazine = NULL;
  h->front->top[c] = magazine;
  return true;
}

/* Removes the oldest full magazine from the stack. */
static void **unstack_oldest(hak_bin *bin) {
  void **link = (void **)&bin->full, **oldest = bin->full;
  while (*oldest != NULL) {
    link = oldest;
    oldest = (void **)*oldest;
  }
  *link = NULL;
  bin->full_count--;
  return oldest;
}

/* The older half of the loaded magazine. Its copy lies on the stack, no longer than it has to. */
static HAK_NOINLINE void put_older_half(hak_heap *h, unsigned c, hak_outcome *outcome) {
  unsigned count = loaded_count(h, c), n = (count + 1) / 2;
  void **first = hak_bin_empty_top(&h->bins[c]) + 1, *oldest[(SLOTS + 1) / 2];
  /* Out of the front before they go into the slab: a misuse report, and the handlers of its abort, see them once. */
  memcpy(oldest, first, n * sizeof *first);
  memmove(first, first + n, (count - n) * sizeof *first);
  h->front->top[c] -= n;
  put_blocks(h, c, oldest, n, outcome);
}

/* Returns the oldest blocks of a class to their slabs: a whole magazine when one is stacked, else half of the loaded
 * one. The loaded magazine has room afterwards. */
static void flush_oldest(hak_heap *h, unsigned c) {
  hak_bin *bin = &h->bins[c];
  if (bin->full != NULL) {
    void **oldest = unstack_oldest(bin);
    flush_blocks(h, c, oldest + 1, SLOTS);
    *bin->magazine = bin->full;
    bin->full = bin->magazine;
    bin->full_count++;
    bin->magazine = oldest;
    *oldest = NULL;
    h->front->top[c] = oldest;
    return;
  }
  hak_outcome outcome = {0};
  put_older_half(h, c, &outcome);
  hak_outcome_settle(&outcome, IN_A_FLUSH);
}

void hak_heap_trim_slabs_locked(hak_heap *h, uint64_t classes, hak_outcome *outcome) {
  for (; classes != 0; classes &= classes - 1)
    hak_slab_set_trim(&h->bins[hak_ctz64(classes)].slabs, &outcome->release_due);
}

static void trim_slabs(hak_heap *h, uint64_t classes) {
  hak_outcome outcome = {0};
  hak_lock_take(&h->lock);
  hak_heap_trim_slabs_locked(h, classes, &outcome);
  hak_lock_drop(&h->lock);
  hak_outcome_settle(&outcome, "when caches were trimmed");
}

void hak_heap_trim_slabs(hak_heap *h) { trim_slabs(h, ~(uint64_t)0 >> (64 - HAK_FRONT_CLASSES)); }

/* Doubles what the class may cache, if the heap has not grown enough. */
static bool grow_capacity(hak_heap *h, unsigned c) {
  hak_bin *bin = &h->bins[c];
  size_t more = (size_t)bin->capacity * hak_class_size(c);
  if (more * 2 > CAPACITY_BYTES_LAST || h->grown_bytes + more > GROWTH_BYTES_MAX) return false;
  bin->capacity *= 2;
  h->grown_bytes += (uint32_t)more;
  return true;
}

static void shrink_capacity(hak_heap *h, unsigned c) {
  hak_bin *bin = &h->bins[c];
  uint32_t capacity = (uint32_t)hak_max_size(bin->capacity / 2, first_capacity(c));
  size_t less = (size_t)(bin->capacity - capacity) * hak_class_size(c);
  h->grown_bytes -= (uint32_t)hak_min_size(less, h->grown_bytes); /* prewarming raises a capacity without counting */
  bin->capacity = capacity;
}

static void empty_bin(hak_heap *h, unsigned c);

/* Whether the front was emptied. */
static HAK_NOINLINE bool thin_out(hak_heap *h, unsigned cause, uint64_t now_ms) {
  if (h->thin_classes != 0 || hak_heap_holes_wait() || is_pinned(cause)) return false;
  if (h->thin_in_vain && now_ms - h->thin_begun_ms < THIN_REST_MS) return false;
  hak_lock_take(&h->lock);
  const hak_span *latest = h->bins[cause].slabs.lists[3];
  bool thin = latest != NULL && latest->free_count >= latest->blocks / 8u * 7;
  hak_lock_drop(&h->lock);
  if (!thin) return false;
  h->thin_begun_ms = now_ms;
  h->thin_cause = cause;
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) {
    if (is_pinned(c)) continue;
    empty_bin(h, c);
    h->bins[c].young = HAK_THIN_TAKES;
    h->thin_classes |= (uint64_t)1 << c;
  }
  return true;
}

/* Counts one more event of a class; whether there have been so many within OFTEN_MS. */
static bool is_often(hak_bin *bin, uint64_t now_ms, unsigned many) {
  if (now_ms - bin->counted_ms > OFTEN_MS) {
    bin->counted_ms = now_ms;
    bin->events = 0;
  }
  if (bin->events < many) bin->events++;
  return bin->events == many;
}

bool hak_heap_make_room(hak_heap *h, unsigned c) {
  if (hak_heap_push_full(h, c)) return true;
  hak_bin *bin = &h->bins[c];
  if (bin->magazine == NULL) return false;
  uint64_t now_ms = hak_os_now_ms();
  bool swings = h->slow_count - bin->refill_count <= SWING_SLOW_PATHS && is_often(bin, now_ms, SWINGS);
  if (swings && !is_pinned(c) && grow_capacity(h, c) && hak_heap_push_full(h, c)) return true;
  flush_oldest(h, c);
  hak_heap_tick(h, c, now_ms);
  if (hak_heap_has_thin_slabs(&bin->slabs, c, THIN_BYTES_FROM) && thin_out(h, c, now_ms)) return false;
  return bin->magazine != NULL || hak_heap_push_full(h, c);
}

/* The slots above the top of the (empty) loaded magazine hold `count` blocks now; the first of them is popped first. */
static void load_blocks(hak_heap *h, unsigned c, unsigned count) {
  void **low = h->front->top[c] + 1, **high = h->front->top[c] + count;
  h->front->top[c] = high;
  for (; low < high; low++, high--) {
    void *p = *low;
    *low = *high;
    *high = p;
  }
}

/* Free blocks of another heap, before unused memory is touched: each heap's need of a class peaks at a time of its own,
 * and the process would hold the sum of the peaks. They stay the lender's; only classes of whole lines, as in
 * hak_remote_keep. The caller holds its own slow lock, so the lender's is not waited for. */
static unsigned borrow(hak_heap *h, unsigned c, void **out, unsigned wanted) {
  if ((hak_class_whole_lines >> c & 1) == 0) return 0;
  uint32_t limit = hak_heap_id_limit(), id = h->id;
  for (uint32_t tries = hak_min_size(limit - 2, LENDERS_MAX); tries > 0; tries--) {
    if (++id == limit) id = HAK_EMERGENCY_ID + 1;
    hak_heap *lender = hak_heap_by_id(id);
    uint64_t spare = hak_load_relaxed(&lender->spare_classes), bit = (uint64_t)1 << c;
    if ((spare & bit) == 0 || lender == h || !hak_lock_try(&lender->lock)) continue;
    unsigned n = hak_slab_set_take_free(&lender->bins[c].slabs, c, out, wanted);
    if (n < wanted) hak_store_relaxed(&lender->spare_classes, hak_load_relaxed(&lender->spare_classes) & ~bit);
    hak_lock_drop(&lender->lock);
    if (n > 0) return n;
  }
  return 0;
}

/* Where there are other heaps: free blocks, own ones and then theirs; unused ones only when nobody has any to lend. */
static unsigned take_shared(hak_heap *h, unsigned c, void **out, unsigned wanted) {
  hak_slab_set *set = &h->bins[c].slabs;
  unsigned taken = hak_slab_set_take_free(set, c, out, wanted);
  if (taken == wanted) return taken;
  unsigned borrowed = borrow(h, c, out + taken, wanted - taken);
  taken += borrowed;
  if (borrowed == 0) taken += hak_slab_set_take_ready(set, c, out + taken, wanted - taken);
  return taken;
}

/* False: no memory, for the magazine or the blocks. */
static bool refill(hak_heap *h, unsigned c) {
  hak_bin *bin = &h->bins[c];
  if (bin->full != NULL) {
    void **magazine = bin->full;
    hak_heap_give_cell(h, bin->magazine);
    bin->full = (void **)*magazine;
    bin->full_count--;
    bin->magazine = magazine;
    *magazine = NULL;
    h->front->top[c] = magazine + SLOTS;
    return true;
  }
  if (bin->magazine == NULL && !load_first(h, c)) return false;
  if (hak_remote_load_returned(h, c)) return loaded_count(h, c) > 0;
  unsigned taken = 0;
  hak_outcome outcome = {0};
  hak_packet *emptied = NULL;
  hak_lock_take(&h->lock);
  if (hak_remote_pending(h)) hak_remote_drain_locked(h, true, &outcome, &emptied);
  bool served = loaded_count(h, c) > 0 || bin->returned != NULL;
  if (!served) {
    unsigned batch = (unsigned)hak_min_size(bin->batch, bin->usable);
    void **blocks = h->front->top[c] + 1; /* right where they belong: no copy on the stack */
    taken = hak_heap_id_limit() > FIRST_THREAD_ID + 1 ? take_shared(h, c, blocks, batch) : 0;
    if (taken == 0) taken = hak_slab_set_take(&bin->slabs, c, h->id, blocks, batch);
  }
  hak_lock_drop(&h->lock);
  if (taken > 0)
    load_blocks(h, c, taken);
  else if (loaded_count(h, c) == 0)
    hak_remote_load_returned(h, c);
  if (bin->batch < SLOTS) bin->batch = (uint8_t)hak_min_size((size_t)bin->batch * 2, SLOTS);
  bin->activity = true;
  if (h->counts != NULL) h->counts[c].refills++;
  if (emptied != NULL) hak_remote_send_home(h, emptied);
  hak_outcome_settle(&outcome, "in a batch freed by another thread");
  bin->refill_ms = hak_os_now_ms();
  bin->refill_count = h->slow_count;
  hak_heap_tick(h, c, bin->refill_ms);
  return loaded_count(h, c) > 0;
}

static void *take_one(hak_heap *h, unsigned c) {
  void *p = NULL;
  hak_outcome outcome = {0};
  hak_packet *emptied = NULL;
  hak_lock_take(&h->lock);
  if (hak_remote_pending(h)) hak_remote_drain_locked(h, false, &outcome, &emptied);
  hak_slab_set_take(&h->bins[c].slabs, c, h->id, &p, 1);
  hak_lock_drop(&h->lock);
  if (emptied != NULL) hak_remote_send_home(hak_tls_front.heap, emptied);
  hak_outcome_settle(&outcome, "in a batch freed by another thread");
  return p;
}

/* Takes one block of a class that has no magazine yet; NULL: it is time it had one. */
static void *take_young(hak_heap *h, unsigned c) {
  hak_bin *bin = &h->bins[c];
  if (HAK_LIKELY(bin->young == 0)) return NULL;
  uint64_t now_ms = hak_os_now_ms();
  if ((h->thin_classes >> c & 1) == 0 || is_often(bin, now_ms, THIN_TAKES_OFTEN)) bin->young--;
  bin->refill_ms = now_ms;
  bin->refill_count = h->slow_count;
  bin->activity = true;
  hak_heap_tick(h, c, now_ms);
  return take_one(h, c);
}

void *hak_heap_alloc(hak_heap *h, unsigned c) {
  bool front_on = hak_config.hot_ring_enable != 0;
  if (HAK_LIKELY(front_on)) {
    void *p = hak_front_pop_class(h->front, c);
    if (h->counts != NULL) {
      if (p != NULL)
        h->counts[c].hits++;
      else
        h->counts[c].misses++;
    }
    if (p != NULL || (p = take_young(h, c)) != NULL) return p;
    if (HAK_LIKELY(refill(h, c))) return hak_front_pop_class(h->front, c);
  } else {
    hak_heap_tick(h, c, hak_os_now_ms()); /* there are no refills to count time by */
  }
  void *p = take_one(h, c);
  if (p != NULL) return p;
  /* Out of memory: what other classes have cached may free a whole span. */
  hak_heap_trim(h);
  return take_one(h, c);
}

void hak_heap_free_own(hak_heap *h, void *p, unsigned c) {
  if (HAK_UNLIKELY(hak_config.hot_ring_enable == 0)) {
    hak_heap_free_direct(h, p, c);
    return;
  }
  hak_front *front = h->front;
#if HAK_CHECKS
  if (HAK_UNLIKELY(*front->top[c] == p)) hak_misuse_abort(HAK_VERDICT_DOUBLE_FREE, p, hak_class_size(c), "at the call");
#endif
  void **top = front->top[c] + 1;
  if (((uintptr_t)top & (HAK_MAGAZINE_BYTES - 1)) == 0) {
    if (!hak_heap_make_room(h, c)) {
      hak_heap_free_direct(h, p, c);
      if (h->thin_classes >> c & 1)
        h->bins[c].young = (uint8_t)hak_min_size(h->bins[c].young + 1u, HAK_THIN_TAKES);
      else if (h->bins[c].young != 0)
        trim_slabs(h, (uint64_t)1 << c);
      return;
    }
    top = front->top[c] + 1;
  }
  *top = p;
  front->top[c] = top;
  if (h->counts != NULL) h->counts[c].hits++;
}

void hak_heap_prewarm(hak_heap *h, unsigned c, unsigned blocks) {
  hak_bin *bin = &h->bins[c];
  /* A loaded magazine of few blocks would be changed for a stacked one, and back, whenever a handful is live. */
  unsigned loaded = (blocks - 1) % SLOTS + 1;
  if (blocks > SLOTS && loaded < PREWARM_LOADED_MIN) blocks += PREWARM_LOADED_MIN - loaded;
  size_t needed = ((size_t)blocks + SLOTS - 1) / SLOTS * SLOTS;
  bin->young = 0;
  if (is_pinned(c))
    blocks = (unsigned)hak_min_size(blocks, bin->capacity); /* a pinned capacity is not exceeded */
  else
    bin->capacity = (uint32_t)hak_max_size(bin->capacity, needed);
  void *taken = NULL; /* a list through the blocks' first words */
  bool large = hak_class_size(c) >= hak_os_page_size();
  for (void *p; blocks > 0 && (p = take_one(h, c)) != NULL; blocks--) {
    if (large) {
      hak_heap_free_own(h, p, c);
      continue;
    }
    *(void **)p = taken;
    taken = p;
  }
  /* The last taken is at the bottom: as after a refill, the block with the lowest address is popped first. No block of a page
   * or more is touched for that. */
  while (taken != NULL) {
    void *p = taken;
    taken = *(void **)p;
    *(void **)p = NULL; /* the hardened build expects free blocks to read as zero */
    hak_heap_free_own(h, p, c);
  }
}

/* Returns the bin's blocks and magazines. */
static void empty_bin(hak_heap *h, unsigned c) {
  hak_bin *bin = &h->bins[c];
  hak_remote_flush_returned(h, c);
  if (bin->magazine == NULL) return;
  while (bin->full != NULL) {
    void **magazine = bin->full;
    bin->full = (void **)*magazine;
    bin->full_count--;
    flush_blocks(h, c, magazine + 1, SLOTS);
    hak_heap_give_cell(h, magazine);
  }
  unsigned count = loaded_count(h, c);
  void **magazine = bin->magazine, **first = hak_bin_empty_top(bin) + 1;
  bin->magazine = NULL;
  h->front->top[c] = HAK_NULL_TOP;
  if (count > 0) flush_blocks(h, c, first, count);
  hak_heap_give_cell(h, magazine);
}

static void flush_runs(hak_heap *h) {
  bool release_due = false;
  hak_run_stock_flush(h, &release_due);
  if (release_due) hak_release_excess();
}

void hak_heap_flush_all(hak_heap *h) {
  flush_runs(h);
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) empty_bin(h, c);
  hak_remote_send_open(h);
}

void hak_heap_slim(hak_heap *h) {
  flush_runs(h);
  size_t kept = 0;
  bool any_returned = h->returned_bytes != 0;
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) {
    if (any_returned) hak_remote_flush_returned(h, c);
    if (h->front->top[c] == HAK_NULL_TOP) continue; /* no magazine; seen without touching the bin */
    size_t bytes = loaded_count(h, c) * hak_class_size(c);
    if (h->bins[c].full != NULL || bytes > WARM_CLASS_BYTES || kept + bytes > WARM_BYTES)
      empty_bin(h, c);
    else
      kept += bytes;
  }
  hak_remote_send_open(h);
}

void hak_heap_trim(hak_heap *h) {
  hak_heap_flush_all(h);
  if (hak_remote_pending(h)) hak_remote_drain(h);
  hak_heap_trim_slabs(h);
}

/* Memory-lean mode, and above the target: an idle class keeps nothing. */
static void retire(hak_heap *h, unsigned c) {
  hak_bin *bin = &h->bins[c];
  empty_bin(h, c);
  shrink_capacity(h, c);
  uint32_t slabs = hak_load_relaxed(&bin->slabs.slabs);
  trim_slabs(h, (uint64_t)1 << c);
  if (hak_load_relaxed(&bin->slabs.slabs) < slabs && hak_config_lean()) hak_os_count(&hak_os_stats.lean_retire);
}

/* Classes that neither refilled nor flushed for a while give half of their stacked magazines back, and half of their
 * capacity; in memory-lean mode and above the target, everything. */
static void shrink_idle(hak_heap *h) {
  bool over = hak_budget_level() >= HAK_BUDGET_OVER, lean = hak_config_lean() || over;
  if (h->run_stock_hits == 0 || over) flush_runs(h);
  h->run_stock_hits = 0;
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) {
    hak_bin *bin = &h->bins[c];
    bool idle = !bin->activity;
    bin->activity = false;
    if (!idle) continue;
    hak_remote_flush_returned(h, c);
    if (lean && !is_pinned(c)) {
      retire(h, c);
      bin->activity = false; /* its own flush is no activity */
    }
    if (bin->full == NULL || is_pinned(c)) continue;
    for (unsigned n = (bin->full_count + 1) / 2; n > 0; n--) {
      void **oldest = unstack_oldest(bin);
      flush_blocks(h, c, oldest + 1, SLOTS);
      hak_heap_give_cell(h, oldest);
    }
    shrink_capacity(h, c);
    bin->activity = false;
  }
}

/* All classes but one, which the caller is working with. */
static HAK_NOINLINE void subside(hak_heap *h, unsigned busy_class) {
  h->subsidences = hak_load_relaxed(&hak_release_subsidences);
  flush_runs(h);
  bool frees_the_rest = hak_release_nearly_empty();
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) {
    if (c == busy_class) {
      hak_remote_flush_returned(h, c);
      continue;
    }
    empty_bin(h, c);
    shrink_capacity(h, c);
    /* What is still freed would fill the caches once more. */
    if (frees_the_rest && !is_pinned(c)) h->bins[c].young = YOUNG_TAKES;
  }
  hak_remote_send_open(h);
  if (hak_remote_pending(h)) hak_remote_drain(h);
  hak_heap_drain_others();
}

void hak_heap_tick(hak_heap *h, unsigned class_code, uint64_t now) {
  if (HAK_UNLIKELY(h->subsidences != hak_load_relaxed(&hak_release_subsidences))) subside(h, class_code);
  if (HAK_LIKELY((++h->slow_count & TICK_MASK) != 0 && now - h->last_slow_ms < TICK_MS)) return;
  h->last_slow_ms = now;
  hak_remote_send_open(h);
  hak_release_tick(now);
  hak_heap_at_tick(now);
  hak_heap_give_holes(h, now);
  if (HAK_UNLIKELY(h->thin_classes != 0)) hak_heap_thin_no_more(h, now, YOUNG_TAKES);
  if (now - h->last_tick_ms < IDLE_MS) return;
  hak_store_relaxed(&h->last_tick_ms, now);
  shrink_idle(h);
  hak_heap_help(now);
}
