#include "profile/profile.h"

#include <string.h>
#include <sys/auxv.h>

#include "os/probe.h"
#include "os/os.h"
#include "profile/labels.h"
#include "profile/pinned.h"
#include "profile/unwind.h"
#include "tcache/cache.h"
#include "tcache/draw.h"

/* Own memory may grow to this and a part of what is live. */
#define OWN_BYTES_LEAST HAK_MIB
#define OWN_LIVE_PART 128
#define STACK_TABLE_BYTES (64 * HAK_MIB) /* of address space */
#define STACK_GROW_BYTES (64 * HAK_KIB)
#define BUCKETS 4096
#define SAMPLES_FIRST 512
#define HEAP_COUNTS 1024
#define ENDED_AT_ONCE 64

const uint32_t hak_profile_lifetime_bounds[HAK_PROFILE_LIFETIMES - 1] = {1, 10, 100, 1000, 10000, 100000};

typedef hak_profile_sample sample;

/* What a sample is summed up by. */
typedef struct origin {
  const uintptr_t *pcs;
  unsigned depth;
  uint32_t heap_bytes; /* of `heap`, with its end; 0: the main heap */
  uint64_t label;
  const char *heap;
} origin;

/* (block, size, bytes that the sample stands for) and (block): for tracers, docs/heap-profile.md, under names of our own and those of
 * OpenTelemetry. They fire without the lock, and a free before its block can be another sample. */
HAK_PROBE_DEFINE(hakmem, sample_alloc);
HAK_PROBE_DEFINE(hakmem, sample_free);
HAK_PROBE_DEFINE(otel_memory, alloc);
HAK_PROBE_DEFINE(otel_memory, free);

hak_lock hak_profile_lock;
hak_profile_state hak_profile;
size_t hak_profile_occupied; /* slots of `samples` in use, or set aside */
static size_t live_bytes; /* relaxed; hak_profile.live.bytes for those without the lock */

static sample *samples; /* open-addressed; `capacity` of them, a power of two, at most half in use */
static size_t capacity;
static uint32_t in_heaps[HEAP_COUNTS]; /* of them, by the owner's number modulo that; written under the lock, relaxed */

static char *table; /* stacks, one behind the other; the first is of those without room */
static size_t table_used, table_ready;
static uintptr_t program_entry;
static uint32_t *buckets; /* places in the table; 0: none */

static hak_os_refusal refused; /* more of any of them */

/* --- memory --- */

static bool may_grow(size_t bytes) {
  size_t live = hak_profile.live.bytes > 0 ? (size_t)hak_profile.live.bytes : 0;
  return hak_profile.own_bytes + bytes <= OWN_BYTES_LEAST + live / OWN_LIVE_PART && !hak_os_refused_lately(&refused);
}

static bool got(bool memory) {
  if (!memory) hak_os_note_refusal(&refused);
  return memory;
}

static bool grow_table(size_t bytes) {
  HAK_ASSERT(bytes > 0 && table_used <= table_ready && table_ready <= STACK_TABLE_BYTES);
  while (table_used + bytes > table_ready) {
    if (!may_grow(STACK_GROW_BYTES) || table_ready + STACK_GROW_BYTES > STACK_TABLE_BYTES) return false;
    if (!got(hak_os_commit(table + table_ready, STACK_GROW_BYTES))) return false;
    hak_os_put_into_dumps(table + table_ready, STACK_GROW_BYTES);
    table_ready += STACK_GROW_BYTES;
    hak_profile.own_bytes += STACK_GROW_BYTES;
  }
  return true;
}

static size_t stack_bytes(unsigned depth, uint32_t heap_bytes) {
  return hak_align_up(sizeof(hak_profile_stack) + depth * sizeof(uintptr_t) + heap_bytes, 16);
}

static hak_profile_stack *add_stack(const origin *o, uint64_t hash) {
  size_t bytes = stack_bytes(o->depth, o->heap_bytes);
  if (!grow_table(bytes)) return NULL;
  hak_profile_stack *s = (hak_profile_stack *)(table + table_used);
  HAK_ASSERT(o->depth <= HAK_PROFILE_FRAMES && (uintptr_t)s % 16 == 0);
  table_used += bytes;
  s->depth = o->depth;
  s->hash = hash;
  s->label = o->label;
  s->heap_bytes = o->heap_bytes;
  s->peak = hak_profile.peak;
  if (o->depth != 0) memcpy(s->pcs, o->pcs, o->depth * sizeof *o->pcs);
  if (o->heap_bytes != 0) memcpy(s->pcs + o->depth, o->heap, o->heap_bytes);
  return s;
}

/* --- stacks --- */

static uint64_t hash_of(const origin *o) {
  uint64_t hash = (o->label ^ o->depth) * 0x9e3779b97f4a7c15u;
  for (unsigned i = 0; i < o->depth; i++) {
    hash = (hash ^ o->pcs[i]) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  for (uint32_t i = 0; i < o->heap_bytes; i++) hash = (hash ^ (unsigned char)o->heap[i] ^ o->heap_bytes) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 32;
}

static bool is_of(const hak_profile_stack *s, const origin *o, uint64_t hash) {
  return s->hash == hash && s->depth == o->depth && s->label == o->label && s->heap_bytes == o->heap_bytes &&
         memcmp(s->pcs, o->pcs, o->depth * sizeof *o->pcs) == 0 && (o->heap_bytes == 0 || memcmp(s->pcs + s->depth, o->heap, o->heap_bytes) == 0);
}

static hak_profile_stack *stack_of(const origin *o) {
  uint64_t hash = hash_of(o);
  uint32_t *bucket = &buckets[hash % BUCKETS];
  for (uint32_t place = *bucket; place != 0;) {
    hak_profile_stack *s = (hak_profile_stack *)(table + place);
    if (is_of(s, o, hash)) return s;
    place = s->next;
  }
  hak_profile_stack *s = o->depth == 0 ? NULL : add_stack(o, hash);
  if (s == NULL) {
    hak_profile.stacks_dropped++;
    return (hak_profile_stack *)table;
  }
  s->next = *bucket;
  *bucket = (uint32_t)((char *)s - table);
  return s;
}

const hak_profile_stack *hak_profile_next(size_t *place) {
  if (*place >= table_used) return NULL;
  const hak_profile_stack *s = (const hak_profile_stack *)(table + *place);
  *place += stack_bytes(s->depth, s->heap_bytes);
  return s;
}

/* --- live samples --- */

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
  if (!may_grow(bytes)) return false;
  sample *grown = hak_os_map(bytes, hak_os_page_size());
  if (!got(grown != NULL)) return false;
  hak_os_name(grown, hak_align_up(bytes, hak_os_page_size()), HAK_NAME_TABLES);
  samples = grown;
  capacity = bytes / sizeof *samples;
  hak_profile.own_bytes += bytes;
  for (size_t i = 0; i < old; i++)
    if (before[i].block != 0) *slot_of(before[i].block) = before[i];
  if (before == NULL) return true;
  hak_os_unmap_own(before, old * sizeof *before);
  hak_profile.own_bytes -= old * sizeof *before;
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

/* The stack's share of the latest peak, before its sums change for the first time since. */
static void settle_peak(hak_profile_stack *s) {
  if (s->peak == hak_profile.peak) return;
  s->peak = hak_profile.peak;
  s->peak_bytes = s->live.bytes;
  s->peak_count = s->live.count;
}

static void note_point(uint64_t now_ms) {
  hak_profile_state *h = &hak_profile;
  size_t at;
  HAK_ASSERT(now_ms >= h->start_ms && h->interval_ms > 0);
  while ((at = (now_ms - h->start_ms) / h->interval_ms) >= HAK_PROFILE_POINTS) {
    for (size_t i = 0; i < HAK_PROFILE_POINTS; i++) {
      double a = i < HAK_PROFILE_POINTS / 2 ? h->points[2 * i] : -1, b = i < HAK_PROFILE_POINTS / 2 ? h->points[2 * i + 1] : -1;
      h->points[i] = a > b ? a : b;
    }
    h->interval_ms *= 2;
  }
  if (h->live.bytes > h->points[at]) h->points[at] = h->live.bytes;
}

static void change_live(const sample *s, double sign, uint64_t now_ms) {
  hak_profile_state *h = &hak_profile;
  settle_peak(s->stack);
  hak_assert_held(&hak_profile_lock);
  HAK_ASSERT(s->era == h->era && s->stack->live_samples > 0 && h->live_samples >= s->stack->live_samples);
  add(&s->stack->live, s, sign);
  add(&h->live, s, sign);
  if (sign < 0 && --s->stack->live_samples == 0) s->stack->live = (hak_profile_sums){0}; /* and no rounding is left */
  if (sign < 0 && --h->live_samples == 0) h->live = (hak_profile_sums){0};
  hak_store_relaxed(&live_bytes, h->live.bytes > 0 ? (size_t)h->live.bytes : 0);
  note_point(now_ms);
  if (h->live.bytes <= h->peak_bytes) return;
  h->peak_bytes = h->live.bytes;
  h->peak_count = h->live.count;
  h->peak_ms = now_ms;
  h->peak++;
}

static void count_lifetime(hak_profile_stack *stack, double weight, uint64_t ms) {
  unsigned i = 0;
  while (i < HAK_PROFILE_LIFETIMES - 1 && ms >= hak_profile_lifetime_bounds[i]) i++;
  HAK_ASSERT(weight >= 1);
  stack->freed[i] += weight;
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
  return HAK_PROBE_LISTENED(hakmem, sample_alloc) || HAK_PROBE_LISTENED(hakmem, sample_free) || HAK_PROBE_LISTENED(otel_memory, alloc) ||
         HAK_PROBE_LISTENED(otel_memory, free);
}

/* Each piece once: where memory was short for one, a later start asks again. */
static bool make_tables_locked(void) {
  hak_assert_held(&hak_profile_lock);
  size_t page = hak_os_page_size(), bucket_bytes = BUCKETS * sizeof *buckets;
  if (table == NULL && (table = hak_os_reserve(STACK_TABLE_BYTES, page)) != NULL) {
    hak_os_leave_out_of_dumps(table, STACK_TABLE_BYTES);
    hak_os_name(table, STACK_TABLE_BYTES, HAK_NAME_TABLES);
  }
  if (buckets == NULL && (buckets = hak_os_map(bucket_bytes, page)) != NULL) {
    hak_os_name(buckets, bucket_bytes, HAK_NAME_TABLES);
    hak_profile.own_bytes += bucket_bytes;
  }
  if (table == NULL || buckets == NULL || (capacity == 0 && !grow_samples())) return false;
  if (program_entry == 0) program_entry = getauxval(AT_ENTRY); /* before there is a sample */
  return table_used != 0 || add_stack(&(const origin){0}, 0) != NULL;
}

/* The stacks are gone, and with them what samples of before point to. */
static void begin_era_locked(void) {
  hak_profile_state *h = &hak_profile;
  hak_assert_held(&hak_profile_lock);
  memset(table, 0, table_used);
  memset(buckets, 0, BUCKETS * sizeof *buckets);
  table_used = stack_bytes(0, 0); /* the one for those without room: all zeros */
  h->era++;
  h->start_ms = hak_os_now_ms();
  h->start_unix_ms = hak_os_unix_ms();
  h->stop_unix_ms = h->sampling ? 0 : h->start_unix_ms;
  h->taken = h->dropped = h->stacks_dropped = 0;
  h->live_samples = 0;
  h->live = h->total = (hak_profile_sums){0};
  h->peak_bytes = h->peak_count = 0;
  h->peak = h->peak_ms = 0;
  h->interval_ms = 10;
  for (unsigned i = 0; i < HAK_PROFILE_POINTS; i++) h->points[i] = -1;
  hak_store_relaxed(&live_bytes, 0);
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
  if (table != NULL && table_used != 0) begin_era_locked();
  hak_lock_drop(&hak_profile_lock);
}

/* The library's code, where it is one of its own; in a static program it cannot be told from the program's. */
extern const char __ehdr_start[] HAK_HIDDEN, etext[] HAK_HIDDEN;

static bool is_own_code(uintptr_t pc) {
  uintptr_t start = (uintptr_t)__ehdr_start, bytes = (uintptr_t)etext - start;
  return pc - start < bytes && program_entry - start >= bytes;
}

static bool note_alloc(sample noted, const char *heap) {
  uintptr_t pcs[HAK_PROFILE_FRAMES];
  unsigned depth = hak_unwind(pcs, HAK_PROFILE_FRAMES), own = 0;
  HAK_ASSERT(noted.block != 0 && depth <= HAK_PROFILE_FRAMES && (noted.owner != 0) == (heap != NULL));
  while (own < depth && is_own_code(pcs[own])) own++;
  const origin o = {.pcs = pcs + own, .depth = depth - own, .label = hak_tls.label, .heap = heap, .heap_bytes = heap == NULL ? 0 : (uint32_t)strlen(heap) + 1};
  uint64_t now_ms = hak_os_now_ms();
  hak_lock_take(&hak_profile_lock);
  if (now_ms < hak_profile.start_ms) now_ms = hak_profile.start_ms; /* an era has begun since */
  bool room = hak_profile.sampling && (2 * (hak_profile_occupied + 1) <= capacity || grow_samples());
  if (room) {
    noted.born_ms = now_ms;
    noted.stack = stack_of(&o);
    noted.era = hak_profile.era;
    place_sample(&noted);
    hak_store_relaxed(&hak_profile_occupied, hak_profile_occupied + 1);
    hak_profile.taken++;
    hak_profile.live_samples++;
    noted.stack->live_samples++;
    add(&noted.stack->total, &noted, 1);
    add(&hak_profile.total, &noted, 1);
    change_live(&noted, 1, now_ms);
  } else if (hak_profile.sampling) {
    hak_profile.dropped++;
  }
  hak_lock_drop(&hak_profile_lock);
  if (room) probe_alloc((const void *)noted.block, noted.size, noted.probability);
  return room;
}

bool hak_profile_note_alloc(void *p, void *companion, size_t size, double probability) {
  return note_alloc((sample){.block = (uintptr_t)p, .companion = companion, .size = size, .probability = probability}, NULL);
}

bool hak_profile_note_alloc_in_heap(void *p, size_t size, double probability, uint32_t owner, const char *heap_name) {
  return note_alloc((sample){.block = (uintptr_t)p, .size = size, .probability = probability, .owner = owner}, heap_name);
}

/* Out of the table; block 0: p is none. */
static sample take_locked(const void *p) {
  hak_assert_held(&hak_profile_lock);
  sample *s = slot_of((uintptr_t)p), taken = *s;
  if (s->block == 0) return (sample){0};
  remove_sample(s);
  return taken;
}

static void end_locked(const sample *s, uint64_t now_ms) {
  HAK_ASSERT(s->block != 0 && s->stack != NULL && hak_profile_occupied > 0);
  hak_store_relaxed(&hak_profile_occupied, hak_profile_occupied - 1);
  if (s->era != hak_profile.era) return;
  if (now_ms < s->born_ms) now_ms = s->born_ms;
  count_lifetime(s->stack, 1 / s->probability, now_ms - s->born_ms);
  change_live(s, -1, now_ms);
}

bool hak_profile_note_free(const void *p, void **companion) {
  uint64_t now_ms = hak_os_now_ms();
  hak_lock_take(&hak_profile_lock);
  sample s = take_locked(p);
  if (s.block != 0) end_locked(&s, now_ms);
  hak_lock_drop(&hak_profile_lock);
  if (s.block == 0) return false;
  *companion = s.companion;
  probe_free(p);
  return true;
}

hak_profile_sample hak_profile_set_aside(const void *p) {
  hak_lock_take(&hak_profile_lock);
  sample aside = take_locked(p);
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

/* There is room: a sample that is set aside is counted in hak_profile_occupied. */
void hak_profile_put_back(const hak_profile_sample *aside) {
  if (aside->block == 0) return;
  hak_lock_take(&hak_profile_lock);
  place_sample(aside);
  hak_lock_drop(&hak_profile_lock);
  probe_alloc((const void *)aside->block, aside->size, aside->probability);
}

/* From *place on, some of the heap's samples; returns how many, and where their blocks were. */
static unsigned forget_some_locked(uint32_t owner, uint64_t now_ms, size_t *place, uintptr_t ended[ENDED_AT_ONCE]) {
  unsigned count = 0;
  hak_assert_held(&hak_profile_lock);
  while (*place < capacity && count < ENDED_AT_ONCE) {
    sample *s = &samples[*place];
    if (s->block == 0 || s->owner != owner) {
      ++*place;
      continue;
    }
    sample taken = *s;
    remove_sample(s);
    end_locked(&taken, now_ms);
    ended[count++] = taken.block;
  }
  return count;
}

/* Returns how many. */
static size_t forget_from_first_to_last(uint32_t owner, uint64_t now_ms) {
  uintptr_t ended[ENDED_AT_ONCE];
  size_t place = 0, count = 0;
  unsigned some;
  do {
    hak_lock_take(&hak_profile_lock);
    some = forget_some_locked(owner, now_ms, &place, ended);
    hak_lock_drop(&hak_profile_lock);
    for (unsigned i = 0; i < some; i++) probe_free((const void *)ended[i]);
    count += some;
  } while (some == ENDED_AT_ONCE);
  return count;
}

/* Again where there were some: meanwhile frees of other threads may have moved others to places before. */
void hak_profile_forget_heap(uint32_t owner) {
  uint64_t now_ms = hak_os_now_ms();
  HAK_ASSERT(owner != 0);
  while (hak_load_relaxed(count_of(owner)) != 0 && forget_from_first_to_last(owner, now_ms) != 0) {
  }
}

void hak_profile_note_dropped(void) {
  hak_lock_take(&hak_profile_lock);
  if (hak_profile.sampling) hak_profile.dropped++;
  hak_lock_drop(&hak_profile_lock);
}

size_t hak_profile_live_bytes(void) { return hak_load_relaxed(&live_bytes); }

/* --- dumps --- */

void hak_profile_settle(uint64_t now_ms) {
  hak_assert_held(&hak_profile_lock);
  hak_profile_stack *stack;
  for (size_t place = 0; (stack = (hak_profile_stack *)hak_profile_next(&place)) != NULL;) {
    settle_peak(stack);
    stack->pinned_bytes = stack->age_ms_sum = stack->oldest_ms = 0;
  }
  for (size_t i = 0; i < capacity; i++) {
    const sample *s = &samples[i];
    if (s->block == 0 || s->era != hak_profile.era) continue;
    double age = now_ms > s->born_ms ? (double)(now_ms - s->born_ms) : 0;
    s->stack->age_ms_sum += age / s->probability;
    if (age > s->stack->oldest_ms) s->stack->oldest_ms = age;
    if (s->companion != NULL) s->stack->pinned_bytes += hak_pinned_beside(s->companion) / s->probability;
  }
}

size_t hak_profile_own_bytes(void) {
  hak_lock_take(&hak_profile_lock);
  size_t of_labels, bytes = hak_profile.own_bytes;
  hak_labels_memory_locked(&of_labels);
  hak_lock_drop(&hak_profile_lock);
  return bytes + of_labels;
}

bool hak_profile_mapping(size_t number, uintptr_t *address, size_t *bytes) {
  hak_lock_take(&hak_profile_lock);
  size_t of_labels, met = 0;
  const void *labels = hak_labels_memory_locked(&of_labels);
  const struct {
    const void *at;
    size_t bytes;
  } all[] = {{table, table_ready}, {buckets, BUCKETS * sizeof *buckets}, {samples, capacity * sizeof *samples}, {labels, of_labels}};
  bool there = false;
  for (size_t i = 0; i < sizeof all / sizeof all[0] && !there; i++) {
    if (all[i].at == NULL || met++ != number) continue;
    *address = (uintptr_t)all[i].at;
    *bytes = all[i].bytes;
    there = true;
  }
  hak_lock_drop(&hak_profile_lock);
  return there;
}
