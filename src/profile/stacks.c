#include "profile/stacks.h"

#include <string.h>

#include "heap/heap.h"
#include "os/os.h"

/* Own memory may grow to this and a part of what is live. */
#define OWN_BYTES_LEAST HAK_MIB
#define OWN_LIVE_PART 128
#define STACK_TABLE_BYTES (64 * HAK_MIB) /* of address space */
#define STACK_GROW_BYTES (64 * HAK_KIB)
#define BUCKETS 4096
/* Of the stacks: from so many on that can be, their labels are evicted at once, in one walk over all */
#define EVICTED_PART 4

hak_lock hak_profile_lock;
hak_profile_state hak_profile;
size_t hak_stacks_sample_bytes, hak_stacks_live_bytes;

static char *table; /* stacks, one behind the other; the first is of those without room */
static size_t table_used, table_ready;
static uint32_t *buckets; /* places in the table; 0: none */
static hak_os_refusal refused; /* more of either, or of samples */
/* Entries of the table without a stack, by room, in steps of 16 bytes; the last are those with room for any. Linked by
 * `next`. And stacks in it: all, and those whose label can be evicted. */
#define HOLES ((sizeof(hak_profile_stack) + HAK_PROFILE_FRAMES * sizeof(uintptr_t) + HAK_HEAP_NAME) / 16 + 2)
static uint32_t holes[HOLES];
static size_t stack_count, idle_count;

/* --- memory --- */

static size_t bucket_bytes(void) { return buckets == NULL ? 0 : BUCKETS * sizeof *buckets; }

size_t hak_stacks_bytes_locked(void) {
  hak_assert_held(&hak_profile_lock);
  return table_ready + bucket_bytes();
}

bool hak_stacks_may_grow(size_t bytes) {
  size_t all = hak_stacks_bytes_locked() + hak_stacks_sample_bytes + bytes;
  return all <= OWN_BYTES_LEAST + hak_stacks_live_bytes / OWN_LIVE_PART && !hak_os_refused_lately(&refused);
}

bool hak_stacks_got(bool memory) {
  if (!memory) hak_os_note_refusal(&refused);
  return memory;
}

static bool grow_table(size_t bytes) {
  HAK_ASSERT(bytes > 0 && table_used <= table_ready && table_ready <= STACK_TABLE_BYTES);
  while (table_used + bytes > table_ready) {
    if (!hak_stacks_may_grow(STACK_GROW_BYTES) || table_ready + STACK_GROW_BYTES > STACK_TABLE_BYTES) return false;
    if (!hak_stacks_got(hak_os_commit(table + table_ready, STACK_GROW_BYTES))) return false;
    hak_os_put_into_dumps(table + table_ready, STACK_GROW_BYTES);
    table_ready += STACK_GROW_BYTES;
  }
  return true;
}

static size_t stack_bytes(unsigned depth, uint32_t heap_bytes) {
  return hak_align_up(sizeof(hak_profile_stack) + depth * sizeof(uintptr_t) + heap_bytes, 16);
}

static void add_hole(hak_profile_stack *s) {
  uint32_t *list = &holes[hak_min_size(s->room / 16, HOLES - 1)];
  s->depth = HAK_PROFILE_NO_STACK;
  s->next = *list;
  *list = (uint32_t)((char *)s - table);
}

/* What is left of a hole is one, if an entry has room there. */
static hak_profile_stack *take_hole(size_t bytes) {
  for (size_t i = bytes / 16; i < HOLES; i++) {
    if (holes[i] == 0) continue;
    hak_profile_stack *s = (hak_profile_stack *)(table + holes[i]);
    size_t room = s->room, rest = room - bytes;
    holes[i] = s->next;
    if (rest >= sizeof *s) {
      hak_profile_stack *left = (hak_profile_stack *)((char *)s + bytes);
      left->room = (uint32_t)rest;
      add_hole(left);
      room = bytes;
    }
    memset(s, 0, room);
    s->room = (uint32_t)room;
    return s;
  }
  return NULL;
}

/* Adjacent ones become one: stacks may be deeper now than those that were evicted. */
static void merge_holes(void) {
  memset(holes, 0, sizeof holes);
  for (size_t place = 0, next; place < table_used; place = next) {
    hak_profile_stack *s = (hak_profile_stack *)(table + place);
    next = place + s->room;
    if (s->depth != HAK_PROFILE_NO_STACK) continue;
    const hak_profile_stack *behind;
    for (; next < table_used && (behind = (hak_profile_stack *)(table + next))->depth == HAK_PROFILE_NO_STACK;)
      next += behind->room;
    s->room = (uint32_t)(next - place);
    add_hole(s);
  }
}

static hak_profile_stack *take_end(size_t bytes) {
  if (!grow_table(bytes)) return NULL;
  hak_profile_stack *s = (hak_profile_stack *)(table + table_used);
  table_used += bytes;
  s->room = (uint32_t)bytes;
  return s;
}

static hak_profile_stack *add_stack(const hak_stack_origin *o, uint64_t hash) {
  size_t bytes = stack_bytes(o->depth, o->heap_bytes);
  hak_profile_stack *s = take_hole(bytes);
  if (s == NULL && (s = take_end(bytes)) == NULL) return NULL;
  HAK_ASSERT(o->depth <= HAK_PROFILE_FRAMES && (uintptr_t)s % 16 == 0);
  s->depth = o->depth;
  s->hash = hash;
  s->label = o->label;
  s->heap_bytes = o->heap_bytes;
  s->peak_number = hak_profile.peak_number;
  if (o->depth != 0) memcpy(s->pcs, o->pcs, o->depth * sizeof *o->pcs);
  if (o->heap_bytes != 0) memcpy(s->pcs + o->depth, o->heap, o->heap_bytes);
  return s;
}

/* --- stacks --- */

static uint64_t hash_of(const hak_stack_origin *o) {
  uint64_t hash = (o->label ^ o->depth) * 0x9e3779b97f4a7c15u;
  for (unsigned i = 0; i < o->depth; i++) {
    hash = (hash ^ o->pcs[i]) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  for (uint32_t i = 0; i < o->heap_bytes; i++)
    hash = (hash ^ (unsigned char)o->heap[i] ^ o->heap_bytes) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 32;
}

static bool is_of(const hak_profile_stack *s, const hak_stack_origin *o, uint64_t hash) {
  return s->hash == hash && s->depth == o->depth && s->label == o->label && s->heap_bytes == o->heap_bytes &&
         memcmp(s->pcs, o->pcs, o->depth * sizeof *o->pcs) == 0 &&
         (o->heap_bytes == 0 || memcmp(s->pcs + s->depth, o->heap, o->heap_bytes) == 0);
}

static hak_profile_stack *find_stack(const hak_stack_origin *o, uint64_t hash) {
  for (uint32_t place = buckets[hash % BUCKETS]; place != 0;) {
    hak_profile_stack *s = (hak_profile_stack *)(table + place);
    if (is_of(s, o, hash)) return s;
    place = s->next;
  }
  return NULL;
}

static void link_stack(hak_profile_stack *s) {
  uint32_t *bucket = &buckets[s->hash % BUCKETS];
  s->next = *bucket;
  *bucket = (uint32_t)((char *)s - table);
}

static void unlink_stack(const hak_profile_stack *s) {
  uint32_t *link = &buckets[s->hash % BUCKETS];
  while (table + *link != (const char *)s) link = &((hak_profile_stack *)(table + *link))->next;
  *link = s->next;
}

/* Requests with a label of their own, or a heap, come and go, and their stacks stay: such a one can be evicted once all
 * its samples have ended. */
static bool can_be_evicted(const hak_profile_stack *s) {
  return (s->label != 0 || s->heap_bytes > 1) && s->live_samples == 0;
}

static void add_sums(hak_profile_sums *to, const hak_profile_sums *from) {
  to->count += from->count;
  to->bytes += from->bytes;
  to->count_variance += from->count_variance;
  to->bytes_variance += from->bytes_variance;
}

/* The stack's share of the latest peak, before its sums change for the first time since. */
void hak_stack_settle_peak(hak_profile_stack *s) {
  if (s->peak_number == hak_profile.peak_number) return;
  s->peak_number = hak_profile.peak_number;
  s->peak = s->live;
}

/* What the stack adds up goes to the one of the same addresses without label, of no heap or of one without a name;
 * where there is none, the stack becomes that. */
static void evict(hak_profile_stack *s) {
  const hak_stack_origin o = {.pcs = s->pcs, .depth = s->depth, .heap = "", .heap_bytes = s->heap_bytes != 0};
  uint64_t hash = hash_of(&o);
  hak_profile_stack *to = find_stack(&o, hash);
  hak_stack_settle_peak(s);
  unlink_stack(s);
  hak_profile.labels_evicted++;
  if (to == NULL) {
    s->label = 0;
    s->hash = hash;
    s->heap_bytes = o.heap_bytes;
    if (o.heap_bytes != 0) *(char *)(s->pcs + s->depth) = '\0';
    link_stack(s);
    return;
  }
  hak_stack_settle_peak(to);
  add_sums(&to->total, &s->total);
  add_sums(&to->peak, &s->peak);
  for (unsigned i = 0; i < HAK_PROFILE_LIFETIMES; i++) to->freed[i] += s->freed[i];
  add_hole(s);
  stack_count--;
}

static bool evict_idle(void) {
  if (idle_count == 0 || idle_count < stack_count / EVICTED_PART) return false;
  size_t place = 0;
  for (hak_profile_stack *s; (s = (hak_profile_stack *)hak_profile_next(&place)) != NULL;) {
    if (can_be_evicted(s)) evict(s);
  }
  merge_holes();
  idle_count = 0;
  return true;
}

hak_profile_stack *hak_stack_of(const hak_stack_origin *o) {
  uint64_t hash = hash_of(o);
  hak_profile_stack *s = find_stack(o, hash);
  if (s != NULL) return s;
  if (o->depth != 0) s = add_stack(o, hash);
  if (s == NULL && o->depth != 0 && evict_idle()) {
    if ((s = find_stack(o, hash)) != NULL) return s; /* one that has lost its label */
    s = add_stack(o, hash);
  }
  if (s == NULL) {
    hak_profile.stacks_dropped++;
    return (hak_profile_stack *)table;
  }
  stack_count++;
  idle_count += can_be_evicted(s); /* until it has its sample */
  link_stack(s);
  return s;
}

const hak_profile_stack *hak_profile_next(size_t *place) {
  while (*place < table_used) {
    const hak_profile_stack *s = (const hak_profile_stack *)(table + *place);
    *place += s->room;
    if (s->depth != HAK_PROFILE_NO_STACK) return s;
  }
  return NULL;
}

/* --- for samples --- */

void hak_stack_note_sample(hak_profile_stack *s) {
  idle_count -= can_be_evicted(s);
  s->live_samples++;
}

void hak_stack_note_idle(const hak_profile_stack *s) { idle_count += can_be_evicted(s); }

bool hak_stacks_start(void) {
  hak_assert_held(&hak_profile_lock);
  size_t page = hak_os_page_size();
  if (table == NULL && (table = hak_os_reserve(STACK_TABLE_BYTES, page)) != NULL) {
    hak_os_leave_out_of_dumps(table, STACK_TABLE_BYTES);
    hak_os_name(table, STACK_TABLE_BYTES, HAK_NAME_TABLES);
  }
  if (buckets == NULL && (buckets = hak_os_map(BUCKETS * sizeof *buckets, page)) != NULL)
    hak_os_name(buckets, bucket_bytes(), HAK_NAME_TABLES);
  return table != NULL && buckets != NULL;
}

bool hak_stacks_begin(void) { return table_used != 0 || add_stack(&(const hak_stack_origin){0}, 0) != NULL; }
bool hak_stacks_has_begun(void) { return table_used != 0; }

void hak_stacks_clear(void) {
  memset(table, 0, table_used);
  memset(buckets, 0, bucket_bytes());
  memset(holes, 0, sizeof holes);
  stack_count = idle_count = 0;
  hak_store_relaxed(&hak_stacks_live_bytes, 0);
  table_used = stack_bytes(0, 0); /* the one for those without room: all zeros but its size */
  ((hak_profile_stack *)table)->room = (uint32_t)table_used;
}

hak_stacks_memory hak_stacks_memory_locked(void) {
  return (hak_stacks_memory){table, table_ready, buckets, bucket_bytes()};
}
