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
  size_t bytes;
  uint32_t owner;
} entry;
#define GONE ((void *)1)

static entry *table;
static size_t table_capacity, table_used /* entries and GONE marks */, live_count, live_bytes;
static size_t owned_count, owned_bytes; /* of the live ones, those with an owner. The count is read by any thread, relaxed */

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

static void insert_locked(void *p, size_t bytes, uint32_t owner) {
  hak_assert_held(&hak_huge_lock);
  HAK_ASSERT(table_used < table_capacity && bytes > 0);
  size_t i = slot_of(p, table_capacity);
  while (table[i].p != NULL && table[i].p != GONE) i = (i + 1) & (table_capacity - 1);
  if (table[i].p == NULL) table_used++;
  table[i] = (entry){p, bytes, owner};
  live_count++;
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
  live_count--;
  live_bytes -= bytes;
  if (*owner != 0) count_owned(bytes, false);
  return bytes;
}

static bool guard_pages_wanted(void) {
  hak_lock_take(&hak_huge_lock);
  bool wanted = live_count < HAK_OS_MAPPINGS_PART; /* two mappings a block */
  hak_lock_drop(&hak_huge_lock);
  return wanted;
}

/* New memory, if the limit admits it. */
static void *map(size_t bytes, size_t align) {
  if (!hak_budget_map(bytes)) return NULL;
  void *p = HAK_HARD(GUARDS) ? hak_guard_pages_map(bytes, align, guard_pages_wanted()) : hak_os_map(bytes, align);
  hak_budget_map_done(bytes, p != NULL);
  if (p == NULL)
    hak_os_count(&hak_os_stats.huge_fail);
  else
    hak_os_name(p, bytes, HAK_NAME_HUGE);
  return p;
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
    size_t old_capacity = table_capacity;
    size_t capacity = hak_max_size(256, hak_pow2_ceil((live_count + 1) * 4));
    hak_lock_drop(&hak_huge_lock);
    size_t page = hak_os_page_size();
    size_t table_bytes = hak_align_up(capacity * sizeof(entry), page);
    entry *fresh = hak_os_map(table_bytes, page);
    if (fresh == NULL) return false;
    hak_os_name(fresh, table_bytes, HAK_NAME_TABLES);
    hak_budget_count_mapped(table_bytes);
    entry *old = fresh; /* what goes: the new one if another thread was faster */
    hak_lock_take(&hak_huge_lock);
    if (table_capacity == old_capacity && (live_count + 1) * 2 <= capacity) {
      old = table;
      table = fresh;
      table_capacity = capacity;
      table_used = 0;
      size_t count = live_count, total = live_bytes, owned = owned_count, owned_total = owned_bytes;
      for (size_t i = 0; i < old_capacity; i++) {
        if (old[i].p != NULL && old[i].p != GONE) insert_locked(old[i].p, old[i].bytes, old[i].owner);
      }
      live_count = count;
      live_bytes = total;
      hak_store_relaxed(&owned_count, owned);
      owned_bytes = owned_total;
      table_bytes = hak_align_up(old_capacity * sizeof(entry), page);
    }
    hak_lock_drop(&hak_huge_lock);
    if (old != NULL) {
      hak_os_unmap_own(old, table_bytes);
      hak_budget_count_unmapped(table_bytes);
    }
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
    if (e->p != NULL && e->p != GONE && (uintptr_t)p - (uintptr_t)e->p < e->bytes) return e;
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
  size_t bytes;
  hak_lock_take(&hak_huge_lock);
  if (around_locked(p) != NULL)
    verdict = HAK_VERDICT_NO_BLOCK_START;
  else if (hak_kept_contains(p) || (HAK_HARD(GUARDS) && hak_mapping_quarantined(p, &bytes) != NULL))
    verdict = HAK_VERDICT_FREE_MEMORY;
  hak_lock_drop(&hak_huge_lock);
  return verdict;
}

bool hak_huge_contains(const void *p) { return hak_huge_verdict(p) == HAK_VERDICT_NO_BLOCK_START; }

bool hak_huge_locate(const void *p, hak_huge_place *place) {
  if (!HAK_HARD(GUARDS)) return false;
  hak_lock_take(&hak_huge_lock);
  place->block = hak_mapping_quarantined(p, &place->bytes);
  place->quarantined = place->block != NULL;
  /* At last the room where one may grow, which others may have taken. */
  for (size_t n = 0; n < 2 * table_capacity && place->block == NULL; n++) {
    const entry *e = &table[n % table_capacity];
    size_t room = n < table_capacity ? 0 : e->bytes;
    if (e->p != NULL && e->p != GONE && hak_guard_pages_reach(e->p, e->bytes + room, p)) *place = (hak_huge_place){e->p, e->bytes, false};
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
  *figures = (hak_huge_figures){0};
  hak_kept_range r;
  hak_lock_take(&hak_huge_lock);
  figures->live_count = live_count;
  figures->live_bytes = live_bytes;
  figures->owned_count = owned_count;
  figures->owned_bytes = owned_bytes;
  for (size_t i = 0; hak_kept_at(i, &r); i++) {
    figures->kept_count++;
    figures->kept_bytes += r.bytes;
  }
  figures->table = table;
  figures->table_bytes = hak_align_up(table_capacity * sizeof *table, hak_os_page_size());
  hak_lock_drop(&hak_huge_lock);
}

const void *hak_huge_find(bool (*is)(const void *p, size_t bytes), size_t *place, size_t *bytes) {
  const void *found = NULL;
  hak_lock_take(&hak_huge_lock);
  size_t end = hak_min_size(*place + HAK_LOCK_STEPS, table_capacity);
  for (size_t i = *place; i < end && found == NULL; i++) {
    const entry *e = &table[i];
    if (e->p == NULL || e->p == GONE || e->owner != 0 || !is(e->p, e->bytes)) continue;
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
      hak_kept_range r;
      *is_kept = *place < HAK_KEPT_MAX;
      if (*is_kept)
        e = hak_kept_at(*place, &r) ? (entry){r.p, r.bytes, 0} : e;
      else if (*place - HAK_KEPT_MAX < table_capacity)
        e = table[*place - HAK_KEPT_MAX];
      else
        end = true;
      found = e.p != NULL && e.p != GONE;
      *address = (uintptr_t)e.p;
      *bytes = e.bytes;
    }
    hak_lock_drop(&hak_huge_lock);
  }
  return found;
}
