/* Open-addressing table of live blocks, under hak_huge_lock. */
#include "large/huge.h"

#include <stdint.h>

#include "large/dense.h"
#include "large/guard_pages.h"
#include "large/kept.h"
#include "large/quarantine.h"
#include "region/size_class.h"

typedef struct entry {
  void *p; /* NULL: empty; GONE: was used, keep probing */
  size_t bytes; /* 0 where there is no block */
  uint32_t owner;
} entry;
#define GONE ((void *)1)

/* The first table takes no mapping: of those the system may grant no more than the block's own. */
#define FIRST_CAPACITY 256
static entry first_table[FIRST_CAPACITY];
static entry *table; /* NULL: none yet */
static size_t table_capacity, table_used /* entries and GONE marks */, live_count, live_bytes;
static size_t owned_count, owned_bytes; /* of the live ones, those with an owner. Both counts are read by any thread, relaxed */

static size_t slot_of(const void *p, size_t capacity) {
  return (size_t)(((uintptr_t)p >> HAK_SPAN_SHIFT) * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (capacity - 1);
}

static entry *find_locked(const void *p) {
  hak_assert_held(&hak_huge_lock);
  HAK_ASSERT(live_count <= table_used && table_used <= table_capacity);
  size_t i = table_capacity == 0 ? 0 : slot_of(p, table_capacity);
  for (size_t probes = 0; probes < table_capacity && table[i].p != NULL; probes++) {
    if (table[i].p == p && table[i].bytes > 0) return &table[i]; /* a program may free the address that GONE is */
    i = (i + 1) & (table_capacity - 1);
  }
  return NULL;
}

static void count_owned(size_t bytes, bool more) {
  hak_add_single(&owned_count, more ? 1 : -(size_t)1);
  owned_bytes += more ? bytes : -bytes;
}

static void place_locked(entry e) {
  hak_assert_held(&hak_huge_lock);
  HAK_ASSERT(table_used < table_capacity && e.bytes > 0);
  size_t i = slot_of(e.p, table_capacity);
  while (table[i].bytes > 0) i = (i + 1) & (table_capacity - 1);
  if (table[i].p == NULL) table_used++;
  table[i] = e;
}

static void insert_locked(void *p, size_t bytes, uint32_t owner) {
  HAK_ASSERT(p != NULL && p != GONE);
  place_locked((entry){p, bytes, owner});
  hak_add_single(&live_count, 1);
  live_bytes += bytes;
  if (owner != 0) count_owned(bytes, true);
}

/* Takes the entry of p out; 0 when there is none. */
static size_t remove_locked(const void *p, uint32_t *owner) {
  entry *e = find_locked(p);
  if (e == NULL) return 0;
  size_t bytes = e->bytes;
  *owner = e->owner;
  HAK_ASSERT(live_count > 0 && live_bytes >= bytes);
  *e = (entry){.p = GONE};
  hak_sub_single(&live_count, 1);
  live_bytes -= bytes;
  if (*owner != 0) count_owned(bytes, false);
  return bytes;
}

/* New memory, if the limit admits it. Guard pages are two mappings a block. */
static void *map(size_t bytes, size_t align) {
  if (!hak_budget_map(bytes)) return NULL;
  void *p = HAK_HARD(GUARDS) ? hak_guard_pages_map(bytes, align, hak_load_relaxed(&live_count) < HAK_OS_MAPPINGS_PART) : hak_os_map(bytes, align);
  hak_budget_map_done(bytes, p != NULL);
  if (p == NULL)
    hak_os_count(&hak_os_stats.huge_fail);
  else
    hak_os_name(p, bytes, HAK_NAME_HUGE);
  return p;
}

static size_t table_bytes_of(size_t capacity) { return hak_align_up(capacity * sizeof(entry), hak_os_page_size()); }

static entry *map_table(size_t capacity) {
  size_t bytes = table_bytes_of(capacity);
  entry *fresh = hak_os_map(bytes, hak_os_page_size());
  if (fresh == NULL) return NULL;
  hak_os_name(fresh, bytes, HAK_NAME_TABLES);
  hak_budget_count_mapped(bytes);
  return fresh;
}

static void unmap_table(entry *old, size_t capacity) {
  if (old == NULL || old == first_table) return;
  hak_os_unmap_own(old, table_bytes_of(capacity));
  hak_budget_count_unmapped(table_bytes_of(capacity));
}

/* While no larger table is to be had. */
static bool insert_crowded(void *p, size_t bytes, uint32_t owner) {
  hak_lock_take(&hak_huge_lock);
  bool done = table_used + 1 < table_capacity;
  if (done) insert_locked(p, bytes, owner);
  hak_lock_drop(&hak_huge_lock);
  return done;
}

/* Puts p in, growing the table outside the lock when it is half full. False: no memory for the table. */
static bool insert(void *p, size_t bytes, uint32_t owner) {
  for (;;) {
    hak_lock_take(&hak_huge_lock);
    if ((table_used + 1) * 2 <= table_capacity) {
      insert_locked(p, bytes, owner);
      hak_lock_drop(&hak_huge_lock);
      return true;
    }
    size_t old_capacity = table_capacity, gone = hak_max_size(FIRST_CAPACITY, hak_pow2_ceil((live_count + 1) * 4));
    hak_lock_drop(&hak_huge_lock);
    entry *fresh = old_capacity == 0 ? first_table : map_table(gone);
    if (fresh == NULL) return insert_crowded(p, bytes, owner);
    entry *old = fresh; /* what goes: the new one if another thread was faster */
    hak_lock_take(&hak_huge_lock);
    HAK_ASSERT(fresh != first_table || gone == FIRST_CAPACITY); /* no block was ever live */
    if (table_capacity == old_capacity && (live_count + 1) * 2 <= gone) {
      old = table;
      table = fresh;
      table_capacity = gone;
      table_used = 0;
      for (size_t i = 0; i < old_capacity; i++) {
        if (old[i].bytes > 0) place_locked(old[i]);
      }
      gone = old_capacity;
    }
    hak_lock_drop(&hak_huge_lock);
    unmap_table(old, gone);
  }
}

void *hak_huge_adopt(void *p, size_t bytes) {
  HAK_ASSERT(p != NULL && bytes > 0 && bytes % hak_os_page_size() == 0);
  if (!insert(p, bytes, 0)) {
    hak_huge_unmap(p, bytes);
    hak_os_count(&hak_os_stats.huge_fail);
    return NULL;
  }
  hak_os_count(&hak_os_stats.huge_alloc);
  return p;
}

void *hak_huge_alloc(size_t size, size_t align, bool zeros) {
  hak_takes_large = true;
  if (size > PTRDIFF_MAX - HAK_SPAN_SIZE) return NULL;
  size_t bytes = hak_align_up(hak_max_size(size, 1), hak_os_page_size());
  if (zeros) hak_kept_replace(size, align);
  hak_kept_make_room(bytes);
  bool dense = !HAK_HARD(GUARDS) && hak_dense_grants(bytes, zeros);
  void *p = map(bytes, dense ? hak_max_size(align, HAK_HUGE_PAGE) : align);
  if (p == NULL) return NULL;
  if (hak_config.thp == HAK_THP_OFF) hak_os_small_pages(p, bytes); /* "off" holds where the kernel says always */
  if (dense) hak_os_huge_pages(p, bytes);
  if (!HAK_HARD(GUARDS)) hak_dense_note(p, bytes, dense);
  return hak_huge_adopt(p, bytes);
}

bool hak_huge_free(void *p, bool *purge_due) {
  uint32_t owner = 0;
  hak_lock_take(&hak_huge_lock);
  size_t bytes = remove_locked(p, &owner);
  hak_lock_drop(&hak_huge_lock);
  if (bytes == 0) return false;
  if (HAK_HARD(GUARDS)) {
    hak_mapping_quarantine(p, bytes);
    hak_budget_count_unmapped(bytes);
    return true;
  }
  hak_dense_look(p, bytes);
  if (!hak_kept_put(p, bytes, purge_due)) hak_huge_unmap(p, bytes);
  return true;
}

/* The entry of p, or one of no bytes. */
static entry read_entry(const void *p) {
  hak_lock_take(&hak_huge_lock);
  const entry *e = find_locked(p);
  entry found = e == NULL ? (entry){0} : *e;
  hak_lock_drop(&hak_huge_lock);
  return found;
}

size_t hak_huge_size(const void *p) { return read_entry(p).bytes; }

/* An owner is set before its program has the block. */
uint32_t hak_huge_owner(const void *p) { return hak_load_relaxed(&owned_count) == 0 ? 0 : read_entry(p).owner; }

void hak_huge_own(const void *p, uint32_t owner) {
  hak_lock_take(&hak_huge_lock);
  entry *e = find_locked(p);
  if (e != NULL && e->owner == 0) {
    e->owner = owner;
    count_owned(e->bytes, true);
  }
  hak_lock_drop(&hak_huge_lock);
}

void *hak_huge_next_of(uint32_t owner, size_t *place, size_t *bytes) {
  void *found = NULL;
  hak_lock_take(&hak_huge_lock);
  for (; *place < table_capacity && found == NULL; ++*place) {
    const entry *e = &table[*place];
    if (e->bytes == 0 || e->owner != owner) continue;
    found = e->p;
    *bytes = e->bytes;
  }
  hak_lock_drop(&hak_huge_lock);
  return found;
}

/* The live block that p lies in, or NULL. */
static const entry *around_locked(const void *p) {
  hak_assert_held(&hak_huge_lock);
  for (size_t i = 0; i < table_capacity; i++) {
    const entry *e = &table[i];
    if ((uintptr_t)p - (uintptr_t)e->p < e->bytes) return e;
  }
  return NULL;
}

uint32_t hak_huge_owner_around(const void *p) {
  hak_lock_take(&hak_huge_lock);
  const entry *e = around_locked(p);
  uint32_t owner = e == NULL ? 0 : e->owner;
  hak_lock_drop(&hak_huge_lock);
  return owner;
}

hak_verdict hak_huge_verdict(const void *p) {
  hak_verdict verdict = HAK_VERDICT_OK;
  hak_lock_take(&hak_huge_lock);
  if (around_locked(p) != NULL)
    verdict = HAK_VERDICT_NO_BLOCK_START;
  else if (hak_freed_around(HAK_HARD(GUARDS) ? &hak_quarantined : &hak_kept, p) != NULL)
    verdict = HAK_VERDICT_FREE_MEMORY;
  hak_lock_drop(&hak_huge_lock);
  return verdict;
}

bool hak_huge_contains(const void *p) { return hak_huge_verdict(p) == HAK_VERDICT_NO_BLOCK_START; }

bool hak_huge_locate(const void *p, hak_huge_place *place) {
  if (!HAK_HARD(GUARDS)) return false;
  hak_lock_take(&hak_huge_lock);
  const hak_freed *freed = hak_freed_around(&hak_quarantined, p);
  *place = freed == NULL ? (hak_huge_place){0} : (hak_huge_place){freed->p, freed->bytes, true};
  /* At last the room where one may grow, which others may have taken. */
  for (size_t n = 0; n < 2 * table_capacity && place->block == NULL; n++) {
    const entry *e = &table[n % table_capacity];
    size_t room = n < table_capacity ? 0 : e->bytes;
    if (e->bytes > 0 && hak_guard_pages_reach(e->p, e->bytes + room, p)) *place = (hak_huge_place){e->p, e->bytes, false};
  }
  hak_lock_drop(&hak_huge_lock);
  return place->block != NULL;
}

static void *remap(void *p, size_t old_bytes, size_t bytes, bool may_move) {
  HAK_ASSERT(bytes != old_bytes && bytes % hak_os_page_size() == 0);
  if (bytes > old_bytes) hak_kept_make_room(bytes - old_bytes);
  if (bytes > old_bytes && !hak_budget_map(bytes - old_bytes)) return NULL;
  void *moved = !HAK_HARD(GUARDS) ? hak_os_remap(p, old_bytes, bytes, may_move) : hak_guard_pages_resize(p, old_bytes, bytes) ? p : NULL;
  if (bytes > old_bytes) hak_budget_map_done(bytes - old_bytes, moved != NULL);
  if (moved != NULL && bytes < old_bytes) hak_budget_count_unmapped(old_bytes - bytes);
  return moved;
}

void *hak_huge_resize(void *p, size_t size, bool may_move) {
  if (size > PTRDIFF_MAX - HAK_SPAN_SIZE) return NULL;
  size_t bytes = hak_align_up(hak_max_size(size, 1), hak_os_page_size());
  uint32_t owner = 0;
  hak_lock_take(&hak_huge_lock);
  size_t old_bytes = remove_locked(p, &owner);
  hak_lock_drop(&hak_huge_lock);
  if (old_bytes == 0) return NULL;
  /* At each doubling: what it holds tells whether more of it will be dense. */
  bool doubles = !HAK_HARD(GUARDS) && hak_pow2_ceil(bytes) > hak_pow2_ceil(old_bytes);
  if (doubles) hak_dense_look(p, old_bytes);
  void *moved = bytes == old_bytes ? p : remap(p, old_bytes, bytes, may_move);
  bool failed = moved == NULL;
  if (failed) {
    moved = p;
    bytes = old_bytes;
  }
  hak_dense_follow(p, moved, bytes);
  if (!insert(moved, bytes, owner)) {
    /* No memory for a larger table; the entry that was taken out left room for one more in this one. */
    hak_lock_take(&hak_huge_lock);
    insert_locked(moved, bytes, owner);
    hak_lock_drop(&hak_huge_lock);
  }
  if (doubles && !failed) {
    bool dense = hak_dense_grants(bytes, false);
    if (dense) hak_os_huge_pages(moved, bytes);
    hak_dense_note(moved, bytes, dense);
  }
  return failed ? NULL : moved;
}

void hak_huge_read(hak_huge_figures *figures) {
  hak_lock_take(&hak_huge_lock);
  *figures = (hak_huge_figures){
      .live_count = live_count,
      .live_bytes = live_bytes,
      .kept_count = hak_kept.count,
      .kept_bytes = hak_kept.bytes,
      .owned_count = owned_count,
      .owned_bytes = owned_bytes,
      .table = table,
      .table_bytes = hak_align_up(table_capacity * sizeof *table, hak_os_page_size()),
  };
  hak_lock_drop(&hak_huge_lock);
}

const void *hak_huge_find(bool (*is)(const void *p, size_t bytes), size_t *place, size_t *bytes) {
  const void *found = NULL;
  hak_lock_take(&hak_huge_lock);
  size_t end = hak_min_size(*place + HAK_LOCK_STEPS, table_capacity);
  for (size_t i = *place; i < end && found == NULL; i++) {
    const entry *e = &table[i];
    if (e->bytes == 0 || e->owner != 0 || !is(e->p, e->bytes)) continue;
    found = e->p;
    *bytes = e->bytes;
  }
  *place = end == table_capacity ? 0 : end;
  hak_lock_drop(&hak_huge_lock);
  return found;
}

bool hak_huge_next(size_t *place, uintptr_t *address, size_t *bytes, bool *is_kept) {
  bool found = false, end = false;
  while (!found && !end) {
    hak_lock_take(&hak_huge_lock);
    for (size_t n = 0; n < HAK_LOCK_STEPS && !found && !end; n++, ++*place) {
      entry e = {.p = NULL};
      *is_kept = *place < HAK_FREED_MAX;
      if (*is_kept && *place < hak_kept.count)
        e = (entry){hak_kept.all[*place].p, hak_kept.all[*place].bytes, 0};
      else if (!*is_kept && *place - HAK_FREED_MAX < table_capacity)
        e = table[*place - HAK_FREED_MAX];
      else
        end = !*is_kept;
      found = e.bytes > 0;
      *address = (uintptr_t)e.p;
      *bytes = e.bytes;
    }
    hak_lock_drop(&hak_huge_lock);
  }
  return found;
}
