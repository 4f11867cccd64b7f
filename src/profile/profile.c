#include "profile/profile.h"

#include <string.h>
#include <sys/auxv.h>

#include "os/probe.h"
#include "os/os.h"
#include "profile/stacks.h"
#include "profile/unwind.h"
#include "tcache/cache.h"
#include "tcache/draw.h"

#define SAMPLES_FIRST 512
#define HEAP_COUNTS 1024

const uint32_t hak_profile_lifetime_bounds[HAK_PROFILE_LIFETIMES - 1] = {1, 10, 100, 1000, 10000, 100000};

typedef hak_profile_sample sample;

/* (block, size, bytes that the sample stands for) and (block): for tracers, docs/heap-profile.md, under names of our
 * own and those of OpenTelemetry. They fire without the lock, and a free before its block can be another sample. */
HAK_PROBE_DEFINE(hakmem, sample_alloc);
HAK_PROBE_DEFINE(hakmem, sample_free);
HAK_PROBE_DEFINE(otel_memory, alloc);
HAK_PROBE_DEFINE(otel_memory, free);

size_t hak_profile_occupied; /* slots of `samples` in use, or set aside */

static sample *samples; /* open-addressed; `capacity` of them, a power of two, at most half in use */
static size_t capacity;
static uint32_t in_heaps[HEAP_COUNTS]; /* of them, by the owner's number modulo that; written under the lock, relaxed */

/* --- live samples --- */

static size_t sample_bytes(void) { return capacity * sizeof *samples; }

size_t hak_profile_bytes_locked(void) { return hak_stacks_bytes_locked() + sample_bytes(); }

static size_t home_of(uintptr_t block) { return (size_t)((block >> 4) * 0x9e3779b97f4a7c15u >> 20) & (capacity - 1); }

/* The block's slot, or the free one where it would be. */
static sample *slot_of(uintptr_t block) {
  size_t i = home_of(block);
  HAK_ASSERT(block != 0 && hak_is_pow2(capacity) && 2 * hak_profile_occupied <= capacity);
  while (samples[i].block != 0 && samples[i].block != block) i = (i + 1) & (capacity - 1);
  return &samples[i];
}

static bool grow_samples(void) {
  size_t old = capacity, bytes = (old == 0 ? SAMPLES_FIRST : 2 * old) * sizeof *samples;
  sample *before = samples;
  if (!hak_stacks_may_grow(bytes)) return false;
  sample *grown = hak_os_map(bytes, hak_os_page_size());
  if (!hak_stacks_got(grown != NULL)) return false;
  hak_os_name(grown, hak_align_up(bytes, hak_os_page_size()), HAK_NAME_TABLES);
  hak_stacks_sample_bytes = bytes;
  samples = grown;
  capacity = bytes / sizeof *samples;
  for (size_t i = 0; i < old; i++)
    if (before[i].block != 0) *slot_of(before[i].block) = before[i];
  if (before != NULL) hak_os_unmap_own(before, old * sizeof *before);
  return true;
}

static uint32_t *count_of(uint32_t owner) { return &in_heaps[owner % HEAP_COUNTS]; }

static void count_in_heap(uint32_t owner, int change) {
  uint32_t *count = count_of(owner);
  hak_assert_held(&hak_profile_lock);
  if (owner != 0) hak_store_relaxed(count, *count + (uint32_t)change);
}

static void place_sample(const sample *placed) {
  sample *s = slot_of(placed->block);
  HAK_ASSERT(s->block == 0);
  *s = *placed;
  count_in_heap(s->owner, 1);
}

/* Those behind it that it kept from their home move down. */
static void remove_sample(sample *s) {
  size_t hole = (size_t)(s - samples);
  HAK_ASSERT(hole < capacity && s->block != 0);
  count_in_heap(s->owner, -1);
  for (size_t i = (hole + 1) & (capacity - 1); samples[i].block != 0; i = (i + 1) & (capacity - 1)) {
    size_t home = home_of(samples[i].block);
    if (((i - home) & (capacity - 1)) < ((i - hole) & (capacity - 1))) continue;
    samples[hole] = samples[i];
    hole = i;
  }
  samples[hole].block = 0;
}

/* --- sums --- */

static void add(hak_profile_sums *sums, const sample *s, double sign) {
  double p = s->probability, size = (double)s->size, variance = (1 - p) / (p * p);
  HAK_ASSERT(p > 0 && p <= 1);
  sums->count += sign / p;
  sums->bytes += sign * size / p;
  sums->count_variance += sign * variance;
  sums->bytes_variance += sign * variance * size * size;
}

static void note_point(uint64_t now_ms) {
  hak_profile_state *h = &hak_profile;
  size_t at;
  HAK_ASSERT(now_ms >= h->start_ms && h->interval_ms > 0);
  while ((at = (now_ms - h->start_ms) / h->interval_ms) >= HAK_PROFILE_POINTS) {
    for (size_t i = 0; i < HAK_PROFILE_POINTS; i++) {
      double a = i < HAK_PROFILE_POINTS / 2 ? h->points[2 * i] : -1,
             b = i < HAK_PROFILE_POINTS / 2 ? h->points[2 * i + 1] : -1;
      h->points[i] = a > b ? a : b;
    }
    h->interval_ms *= 2;
  }
  if (h->live.bytes > h->points[at]) h->points[at] = h->live.bytes;
}

static void change_live(const sample *s, double sign, uint64_t now_ms) {
  hak_profile_state *h = &hak_profile;
  hak_stack_settle_peak(s->stack);
  hak_assert_held(&hak_profile_lock);
  HAK_ASSERT(s->era == h->era && s->stack->live_samples > 0 && h->live_samples >= s->stack->live_samples);
  add(&s->stack->live, s, sign);
  add(&h->live, s, sign);
  if (sign < 0 && --s->stack->live_samples == 0) {
    s->stack->live = (hak_profile_sums){0}; /* and no rounding is left */
    hak_stack_note_idle(s->stack);
  }
  if (sign < 0 && --h->live_samples == 0) h->live = (hak_profile_sums){0};
  hak_store_relaxed(&hak_stacks_live_bytes, h->live.bytes > 0 ? (size_t)h->live.bytes : 0);
  note_point(now_ms);
  if (h->live.bytes <= h->peak.bytes) return;
  h->peak = h->live;
  h->peak_ms = now_ms;
  h->peak_number++;
}

/* --- calls --- */

/* One place for each probe: a tracer raises its semaphore once a place. */
static HAK_NOINLINE void probe_alloc(const void *p, size_t size, double probability) {
  HAK_PROBE3(hakmem, sample_alloc, p, size, (double)size / probability + 0.5);
  HAK_PROBE3(otel_memory, alloc, p, size, (double)size / probability + 0.5);
}

static HAK_NOINLINE void probe_free(const void *p) {
  HAK_PROBE1(hakmem, sample_free, p);
  HAK_PROBE1(otel_memory, free, p);
}

bool hak_profile_listened(void) {
  return HAK_PROBE_LISTENED(hakmem, sample_alloc) || HAK_PROBE_LISTENED(hakmem, sample_free) ||
         HAK_PROBE_LISTENED(otel_memory, alloc) || HAK_PROBE_LISTENED(otel_memory, free);
}

/* Each piece once: where memory was short for one, a later start asks again. */
static bool make_tables_locked(void) {
  hak_assert_held(&hak_profile_lock);
  return hak_stacks_start() && (capacity != 0 || grow_samples()) && hak_stacks_begin();
}

/* The stacks are gone, and with them what samples of before point to. */
static void begin_era_locked(void) {
  hak_profile_state *h = &hak_profile;
  hak_assert_held(&hak_profile_lock);
  hak_stacks_clear();
  h->era++;
  h->start_ms = hak_os_now_ms();
  h->start_unix_ms = hak_os_unix_ms();
  h->stop_unix_ms = h->sampling ? 0 : h->start_unix_ms;
  h->taken = h->dropped = h->stacks_dropped = h->labels_evicted = 0;
  h->live_samples = 0;
  h->live = h->total = h->peak = (hak_profile_sums){0};
  h->peak_number = h->peak_ms = 0;
  h->interval_ms = 10;
  for (unsigned i = 0; i < HAK_PROFILE_POINTS; i++) h->points[i] = -1;
}

bool hak_profile_start(size_t distance_bytes) {
  HAK_ASSERT(distance_bytes > 0);
  hak_unwind_start();
  hak_lock_take(&hak_profile_lock);
  bool made = make_tables_locked();
  if (made) {
    if (!hak_profile.sampling) {
      hak_profile.sampling = true;
      begin_era_locked();
    }
    hak_store_relaxed(&hak_profile.distance, distance_bytes);
  }
  hak_lock_drop(&hak_profile_lock);
  return made;
}

void hak_profile_stop(void) {
  hak_lock_take(&hak_profile_lock);
  if (hak_profile.sampling) hak_profile.stop_unix_ms = hak_os_unix_ms();
  hak_profile.sampling = false;
  hak_lock_drop(&hak_profile_lock);
}

void hak_profile_reset(void) {
  hak_lock_take(&hak_profile_lock);
  if (hak_stacks_has_begun()) begin_era_locked();
  hak_lock_drop(&hak_profile_lock);
}

/* The library's code, where it is one of its own; in a static program it cannot be told from the program's. */
extern const char __ehdr_start[] HAK_HIDDEN, etext[] HAK_HIDDEN;

static bool is_own_code(uintptr_t pc) {
  uintptr_t start = (uintptr_t)__ehdr_start, bytes = (uintptr_t)etext - start;
  return pc - start < bytes && getauxval(AT_ENTRY) - start >= bytes;
}

bool hak_profile_note_alloc(void *p, void *companion, size_t size, double probability, uint32_t owner,
                            const char *heap) {
  uintptr_t pcs[HAK_PROFILE_FRAMES];
  unsigned depth = hak_unwind(pcs, HAK_PROFILE_FRAMES), own = 0;
  HAK_ASSERT(p != NULL && depth <= HAK_PROFILE_FRAMES && (owner != 0) == (heap != NULL));
  while (own < depth && is_own_code(pcs[own])) own++;
  const hak_stack_origin o = {.pcs = pcs + own,
                              .depth = depth - own,
                              .label = hak_tls.label,
                              .heap = heap,
                              .heap_bytes = heap == NULL ? 0 : (uint32_t)strlen(heap) + 1};
  uint64_t now_ms = hak_os_now_ms();
  sample noted = {
      .block = (uintptr_t)p, .companion = companion, .size = size, .probability = probability, .owner = owner};
  hak_lock_take(&hak_profile_lock);
  if (now_ms < hak_profile.start_ms) now_ms = hak_profile.start_ms; /* an era has begun since */
  bool room = hak_profile.sampling && (2 * (hak_profile_occupied + 1) <= capacity || grow_samples());
  if (room) {
    noted.born_ms = now_ms;
    noted.stack = hak_stack_of(&o);
    noted.era = hak_profile.era;
    place_sample(&noted);
    hak_store_relaxed(&hak_profile_occupied, hak_profile_occupied + 1);
    hak_profile.taken++;
    hak_profile.live_samples++;
    hak_stack_note_sample(noted.stack);
    add(&noted.stack->total, &noted, 1);
    add(&hak_profile.total, &noted, 1);
    change_live(&noted, 1, now_ms);
  } else if (hak_profile.sampling) {
    hak_profile.dropped++;
  }
  hak_lock_drop(&hak_profile_lock);
  if (room) probe_alloc(p, size, probability);
  return room;
}

static void end_locked(const sample *s, uint64_t now_ms) {
  HAK_ASSERT(s->block != 0 && s->stack != NULL && hak_profile_occupied > 0);
  hak_store_relaxed(&hak_profile_occupied, hak_profile_occupied - 1);
  if (s->era != hak_profile.era) return;
  if (now_ms < s->born_ms) now_ms = s->born_ms;
  unsigned i = 0;
  while (i < HAK_PROFILE_LIFETIMES - 1 && now_ms - s->born_ms >= hak_profile_lifetime_bounds[i]) i++;
  s->stack->freed[i] += 1 / s->probability;
  change_live(s, -1, now_ms);
}

hak_profile_sample hak_profile_set_aside(const void *p) {
  sample aside = {0};
  hak_lock_take(&hak_profile_lock);
  sample *s = slot_of((uintptr_t)p);
  if (s->block != 0) {
    aside = *s;
    remove_sample(s);
  }
  hak_lock_drop(&hak_profile_lock);
  if (aside.block != 0) probe_free(p);
  return aside;
}

void hak_profile_end(const hak_profile_sample *aside) {
  if (aside->block == 0) return;
  uint64_t now_ms = hak_os_now_ms();
  hak_lock_take(&hak_profile_lock);
  end_locked(aside, now_ms);
  hak_lock_drop(&hak_profile_lock);
}

void *hak_profile_note_free(const void *p) {
  sample ended = hak_profile_set_aside(p);
  hak_profile_end(&ended);
  return ended.companion;
}

/* There is room: a sample that is set aside is counted in hak_profile_occupied. */
void hak_profile_put_back(const hak_profile_sample *aside) {
  if (aside->block == 0) return;
  hak_lock_take(&hak_profile_lock);
  place_sample(aside);
  hak_lock_drop(&hak_profile_lock);
  probe_alloc((const void *)aside->block, aside->size, aside->probability);
}

/* The heap's next sample from *place on ends. False: there is none up to the table's end. */
static bool end_next_of(uint32_t owner, uint64_t now_ms, size_t *place) {
  sample ended = {0};
  hak_lock_take(&hak_profile_lock);
  while (*place < capacity && (samples[*place].block == 0 || samples[*place].owner != owner)) ++*place;
  if (*place < capacity) {
    ended = samples[*place];
    remove_sample(&samples[*place]);
    end_locked(&ended, now_ms);
  }
  hak_lock_drop(&hak_profile_lock);
  if (ended.block != 0) probe_free((const void *)ended.block);
  return ended.block != 0;
}

/* From the first again where there were some: meanwhile frees of other threads may have moved others to places
 * before. */
void hak_profile_forget_heap(uint32_t owner) {
  uint64_t now_ms = hak_os_now_ms();
  HAK_ASSERT(owner != 0);
  for (bool some = true; some && hak_load_relaxed(count_of(owner)) != 0;) {
    size_t place = 0;
    for (some = false; end_next_of(owner, now_ms, &place); some = true) {
    }
  }
}

void hak_profile_note_dropped(void) {
  hak_lock_take(&hak_profile_lock);
  if (hak_profile.sampling) hak_profile.dropped++;
  hak_lock_drop(&hak_profile_lock);
}

uint64_t hak_profile_start_unix_ms(void) { return hak_profile.start_unix_ms; }
size_t hak_profile_live_bytes(void) { return hak_load_relaxed(&hak_stacks_live_bytes); }

/* --- dumps --- */

/* Bytes of the block that lie on [from, to). */
static size_t overlap(uintptr_t block, size_t size, uintptr_t from, uintptr_t to) {
  uintptr_t first = hak_max_size(block, from), end = hak_min_size(block + size, to);
  return end > first ? end - first : 0;
}

static bool is_free(const hak_span *s, size_t i) {
  return i >= s->bumped || (hak_load_relaxed(&s->bits[i / 64]) >> (i % 64) & 1) != 0;
}

/* Under the lock of the slab's bin. Each page's free bytes go to the blocks on it in proportion to what they have of
 * it. */
static double share_locked(const hak_span *s, size_t size, uintptr_t p) {
  HAK_ASSERT(p >= s->start && (p - s->start) % size == 0 && (p - s->start) / size < s->blocks);
  size_t page = hak_os_page_size();
  double share = 0;
  for (uintptr_t from = hak_align_down(p, page); from < p + size; from += page) {
    size_t used = 0, first = from <= s->start ? 0 : (from - s->start) / size;
    for (size_t i = first; i < s->blocks && s->start + i * size < from + page; i++)
      if (!is_free(s, i)) used += overlap(s->start + i * size, size, from, from + page);
    if (used > 0) share += (double)(page - used) * (double)overlap(p, size, from, from + page) / (double)used;
  }
  return share;
}

/* p: a live block of a slab. Returns the bytes that cannot be given back because of it: the free ones of the pages that
 * it lies on, shared with the other blocks there that are handed out. What threads have cached counts as handed out. */
static double pinned_beside(const void *p) {
  const hak_region *r = hak_region_find(p);
  const hak_span *s = hak_region_span(r, p);
  uint32_t tag = hak_load_relaxed(&s->tag), id = HAK_TAG_OWNER(tag) - 1;
  if (id >= hak_arena_count()) return 0;
  unsigned c = HAK_TAG_CODE(tag) - 1;
  HAK_ASSERT(c < HAK_CLASS_COUNT);
  hak_lock *lock = &hak_arena_at(id)->bins[c].lock;
  hak_lock_take(lock);
  double share = share_locked(s, hak_class_size(c), (uintptr_t)p);
  hak_lock_drop(lock);
  return share;
}

void hak_profile_settle(uint64_t now_ms) {
  hak_assert_held(&hak_profile_lock);
  hak_profile_stack *stack;
  for (size_t place = 0; (stack = (hak_profile_stack *)hak_profile_next(&place)) != NULL;) {
    hak_stack_settle_peak(stack);
    stack->pinned_bytes = stack->age_ms_sum = stack->oldest_ms = 0;
  }
  for (size_t i = 0; i < capacity; i++) {
    const sample *s = &samples[i];
    if (s->block == 0 || s->era != hak_profile.era) continue;
    double age = now_ms > s->born_ms ? (double)(now_ms - s->born_ms) : 0;
    s->stack->age_ms_sum += age / s->probability;
    if (age > s->stack->oldest_ms) s->stack->oldest_ms = age;
    if (s->companion != NULL) s->stack->pinned_bytes += pinned_beside(s->companion) / s->probability;
  }
}

bool hak_profile_mapping(size_t number, uintptr_t *address, size_t *bytes) {
  hak_lock_take(&hak_profile_lock);
  size_t of_labels;
  const void *labels = hak_labels_memory_locked(&of_labels);
  hak_stacks_memory of_stacks = hak_stacks_memory_locked();
  const struct {
    const void *at;
    size_t bytes;
  } all[] = {{of_stacks.table, of_stacks.table_bytes},
             {of_stacks.buckets, of_stacks.bucket_bytes},
             {samples, sample_bytes()},
             {labels, of_labels}};
  bool there = number < sizeof all / sizeof all[0];
  if (there) {
    *address = (uintptr_t)all[number].at;
    *bytes = all[number].bytes;
  }
  hak_lock_drop(&hak_profile_lock);
  return there;
}

size_t hak_profile_own_bytes(void) {
  size_t sum = 0, bytes;
  uintptr_t address;
  for (size_t i = 0; hak_profile_mapping(i, &address, &bytes); i++) sum += bytes;
  return sum;
}
