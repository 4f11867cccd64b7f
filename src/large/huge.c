/* Live huge blocks, under hak_huge_lock: huge_index.c says which there are. */
#include "large/huge.h"

#include <stdint.h>

#include "large/dense.h"
#include "large/guard_pages.h"
#include "large/kept.h"
#include "large/quarantine.h"
#include "region/first_touch.h"
#include "region/size_class.h"

static size_t live_count, live_bytes;
/* Of the live ones, those with an owner. Both counts are read by any thread, relaxed */
static size_t owned_count, owned_bytes;
/* What threads are resizing, in no tree meanwhile; linked by higher[0], and by lower[0] back */
static hak_huge_node *moving;
/* Blocks of heaps that have ended, until their mappings are given back. No heap has this owner. */
static hak_huge_set ended = {.owner = UINT32_MAX};
static bool ended_lost; /* relaxed */

static void count(const hak_huge_node *n, bool more) {
  hak_assert_held(&hak_huge_lock);
  HAK_ASSERT(more || (live_count > 0 && live_bytes >= n->bytes));
  hak_add_single(&live_count, more ? 1 : -(size_t)1);
  live_bytes += more ? n->bytes : -n->bytes;
  if (n->set == NULL) return;
  hak_add_single(&owned_count, more ? 1 : -(size_t)1);
  owned_bytes += more ? n->bytes : -n->bytes;
}

static void insert_locked(hak_huge_node *n) {
  hak_huge_index_put(n);
  count(n, true);
}

static void remove_locked(hak_huge_node *n) {
  hak_huge_index_remove(n);
  count(n, false);
}

/* New memory, if the limit admits it. Guard pages are two mappings a block. */
static void *map(size_t bytes, size_t align) {
  if (!hak_budget_map(bytes)) return NULL;
  void *p = HAK_HARD(GUARDS) ? hak_guard_pages_map(bytes, align, hak_load_relaxed(&live_count) < HAK_OS_MAPPINGS_PART)
                             : hak_os_map(bytes, align);
  hak_budget_map_done(bytes, p != NULL);
  if (p == NULL)
    hak_os_count(&hak_os_stats.huge_fail);
  else
    hak_os_name(p, bytes, HAK_NAME_HUGE);
  return p;
}

void *hak_huge_adopt(void *p, size_t bytes, hak_huge_pages pages) {
  HAK_ASSERT(p != NULL && bytes > 0 && bytes % hak_os_page_size() == 0);
  hak_huge_node *n = hak_huge_node_take();
  if (n == NULL) {
    hak_huge_unmap(p, bytes);
    hak_os_count(&hak_os_stats.huge_fail);
    return NULL;
  }
  n->start = (uintptr_t)p;
  n->bytes = bytes;
  n->pages = pages;
  hak_lock_take(&hak_huge_lock);
  insert_locked(n);
  hak_lock_drop(&hak_huge_lock);
  hak_os_count(&hak_os_stats.huge_alloc);
  return p;
}

void *hak_huge_alloc(size_t size, size_t align, bool zeros) {
  hak_takes_large = true;
  if (size > PTRDIFF_MAX - HAK_SPAN_SIZE) return NULL;
  size_t bytes = hak_huge_bytes(size);
  if (zeros) hak_kept_replace(size, align);
  hak_kept_make_room(bytes);
  hak_dense_grant dense = HAK_HARD(GUARDS) ? (hak_dense_grant){0} : hak_dense_grants(bytes, zeros);
  void *p = map(bytes, dense.bytes != 0 ? hak_max_size(align, HAK_HUGE_PAGE) : align);
  if (!HAK_HARD(GUARDS)) hak_dense_note(p, bytes, dense);
  if (p == NULL) return NULL;
  if (hak_config.thp == HAK_THP_OFF) hak_os_small_pages(p, bytes); /* "off" holds where the kernel says always */
  /* Mappings that were one when a page came can be one again */
  if (dense.bytes != 0 && dense.bytes < bytes) *((volatile char *)p + bytes - 1) = 0;
  if (dense.bytes != 0) hak_os_huge_pages(p, dense.bytes);
  if (dense.bytes > HAK_HUGE_PAGE && hak_config.thp != HAK_THP_ON && hak_time_first_touch(p)) {
    hak_os_small_pages((char *)p + HAK_HUGE_PAGE, dense.bytes - HAK_HUGE_PAGE);
    dense.bytes = HAK_HUGE_PAGE;
  }
  hak_note_small_pages(bytes - dense.bytes);
  return hak_huge_adopt(p, bytes,
                        dense.bytes == 0      ? HAK_HUGE_PAGES_NONE
                        : dense.bytes < bytes ? HAK_HUGE_PAGES_FRONT
                                              : HAK_HUGE_PAGES_ALL);
}

static hak_huge_pages set_pages(void *p, size_t bytes, bool huge) {
  hak_os_set_pages(p, bytes, huge);
  return huge ? HAK_HUGE_PAGES_ALL : HAK_HUGE_PAGES_NONE;
}

/* One kind of pages: mremap moves and extends one mapping. */
static hak_huge_pages unify(void *p, size_t bytes) {
  return set_pages(p, bytes, hak_dense_is_filled(p, bytes));
}

static size_t take_locked(hak_huge_node *n, hak_huge_pages *pages) {
  size_t bytes = n->bytes;
  *pages = n->pages;
  remove_locked(n);
  hak_huge_node_give_locked(n);
  return bytes;
}

size_t hak_huge_take(const void *p, hak_huge_pages *pages) {
  hak_lock_take(&hak_huge_lock);
  hak_huge_node *n = hak_huge_index_find(p);
  size_t bytes = n == NULL ? 0 : take_locked(n, pages);
  hak_lock_drop(&hak_huge_lock);
  return bytes;
}

void hak_huge_dispose(void *p, size_t bytes, hak_huge_pages pages, bool *purge_due) {
  if (HAK_HARD(GUARDS)) {
    hak_mapping_quarantine(p, bytes);
    hak_budget_count_unmapped(bytes);
    return;
  }
  hak_dense_look(p, bytes);
  if (pages == HAK_HUGE_PAGES_FRONT) pages = unify(p, bytes);
  if (!hak_kept_put(p, bytes, pages == HAK_HUGE_PAGES_ALL, purge_due)) hak_huge_unmap(p, bytes);
}

bool hak_huge_free(void *p, bool *purge_due) {
  hak_huge_pages pages;
  size_t bytes = hak_huge_take(p, &pages);
  if (bytes != 0) hak_huge_dispose(p, bytes, pages, purge_due);
  return bytes != 0;
}

/* --- looks --- */

size_t hak_huge_size(const void *p) {
  hak_lock_take(&hak_huge_lock);
  const hak_huge_node *n = hak_huge_index_find(p);
  size_t bytes = n == NULL ? 0 : n->bytes;
  hak_lock_drop(&hak_huge_lock);
  return bytes;
}

static uint32_t owner_of(const hak_huge_node *n) { return n->set == NULL ? 0 : n->set->owner; }

/* An owner is set before its program has the block. */
hak_huge_at hak_huge_ask(const void *p) {
  hak_huge_at at = {.verdict = HAK_VERDICT_OK};
  hak_lock_take(&hak_huge_lock);
  const hak_huge_node *n = hak_huge_index_upto((uintptr_t)p);
  if (n != NULL && (uintptr_t)p - n->start < n->bytes) {
    at.owner = owner_of(n);
    if (n->start == (uintptr_t)p)
      at.bytes = n->bytes;
    else
      at.verdict = HAK_VERDICT_NO_BLOCK_START;
  } else if (hak_freed_around(HAK_HARD(GUARDS) ? &hak_quarantined : &hak_kept, p) != NULL) {
    at.verdict = HAK_VERDICT_FREE_MEMORY;
  }
  hak_lock_drop(&hak_huge_lock);
  return at;
}

bool hak_huge_locate(const void *p, hak_huge_place *place) {
  if (!HAK_HARD(GUARDS)) return false;
  hak_lock_take(&hak_huge_lock);
  const hak_freed *freed = hak_freed_around(&hak_quarantined, p);
  *place = freed == NULL ? (hak_huge_place){0} : (hak_huge_place){freed->p, freed->bytes, true};
  /* At last the room where the one below may grow, which others may have taken. */
  const hak_huge_node *below = hak_huge_index_upto((uintptr_t)p), *above = hak_huge_index_above(NULL, (uintptr_t)p);
  for (unsigned n = 0; n < 3 && place->block == NULL; n++) {
    const hak_huge_node *b = n == 1 ? above : below;
    if (b == NULL || !hak_guard_pages_reach((const void *)b->start, n == 2 ? 2 * b->bytes : b->bytes, p)) continue;
    *place = (hak_huge_place){(const void *)b->start, b->bytes, false};
  }
  hak_lock_drop(&hak_huge_lock);
  return place->block != NULL;
}

static void *remap(void *p, size_t old_bytes, size_t bytes, bool may_move) {
  HAK_ASSERT(bytes != old_bytes && bytes % hak_os_page_size() == 0);
  if (bytes > old_bytes) hak_kept_make_room(bytes - old_bytes);
  if (bytes > old_bytes && !hak_budget_map(bytes - old_bytes)) return NULL;
  void *moved = !HAK_HARD(GUARDS)                             ? hak_os_remap(p, old_bytes, bytes, may_move)
                : hak_guard_pages_resize(p, old_bytes, bytes) ? p
                                                              : NULL;
  if (bytes > old_bytes) hak_budget_map_done(bytes - old_bytes, moved != NULL);
  if (moved != NULL && bytes < old_bytes) hak_budget_count_unmapped(old_bytes - bytes);
  return moved;
}

hak_huge_node *hak_huge_lift(const void *p) {
  hak_lock_take(&hak_huge_lock);
  hak_huge_node *n = hak_huge_index_find(p);
  if (n != NULL) {
    remove_locked(n);
    n->mover = hak_thread_mark();
    n->lower[0] = NULL;
    n->higher[0] = moving;
    if (moving != NULL) moving->lower[0] = n;
    moving = n;
  }
  hak_lock_drop(&hak_huge_lock);
  return n;
}

static void leave_moving(hak_huge_node *n) {
  hak_assert_held(&hak_huge_lock);
  *(n->lower[0] != NULL ? &n->lower[0]->higher[0] : &moving) = n->higher[0];
  if (n->higher[0] != NULL) n->higher[0]->lower[0] = n->lower[0];
}

void hak_huge_land(hak_huge_node *n, const void *p, size_t bytes) {
  hak_lock_take(&hak_huge_lock);
  leave_moving(n);
  n->start = (uintptr_t)p;
  n->bytes = bytes;
  insert_locked(n);
  hak_lock_drop(&hak_huge_lock);
}

bool hak_huge_take_lost(hak_huge_set **set, size_t *bytes) {
  hak_lock_take(&hak_huge_lock);
  hak_huge_node *n = moving;
  while (n != NULL && n->mover == hak_thread_mark()) n = n->higher[0];
  if (n != NULL) {
    *set = n->set;
    *bytes = n->bytes;
    leave_moving(n);
    hak_huge_node_give_locked(n);
  }
  hak_lock_drop(&hak_huge_lock);
  return n != NULL;
}

/* At each doubling what the block held tells whether more of it will be dense. A part of it alone is not trusted: that
 * is filled by now. */
static hak_huge_pages judge(void *p, size_t old_bytes, size_t bytes, hak_huge_pages pages) {
  hak_dense_grant dense = hak_dense_grants(bytes, false), none = {0, false};
  bool all = dense.bytes >= bytes;
  if (!all && dense.on_trust) hak_dense_note(NULL, bytes, dense);
  hak_dense_note(p, bytes, all ? dense : none);
  if (!all && (pages == HAK_HUGE_PAGES_NONE || hak_dense_goes_on(p, old_bytes, bytes))) return pages;
  return set_pages(p, bytes, all);
}

void *hak_huge_remap(void *p, size_t old_bytes, size_t bytes, bool may_move, hak_huge_pages *pages) {
  bool grows = bytes > old_bytes, doubles = !HAK_HARD(GUARDS) && hak_pow2_ceil(bytes) > hak_pow2_ceil(old_bytes);
  if (doubles) hak_dense_look(p, old_bytes);
  if (grows && *pages == HAK_HUGE_PAGES_FRONT) *pages = unify(p, old_bytes);
  void *moved = bytes == old_bytes ? p : remap(p, old_bytes, bytes, may_move);
  if (moved == NULL) {
    hak_dense_follow(p, p, old_bytes);
    return NULL;
  }
  hak_dense_follow(p, moved, bytes);
  if (doubles) *pages = judge(moved, old_bytes, bytes, *pages);
  return moved;
}

void *hak_huge_resize(void *p, size_t size, bool may_move) {
  if (size > PTRDIFF_MAX - HAK_SPAN_SIZE) return NULL;
  hak_huge_node *n = hak_huge_lift(p);
  if (n == NULL) return NULL;
  size_t old_bytes = n->bytes, bytes = hak_huge_bytes(size);
  void *moved = hak_huge_remap(p, old_bytes, bytes, may_move, &n->pages);
  hak_huge_land(n, moved == NULL ? p : moved, moved == NULL ? old_bytes : bytes);
  return moved;
}

/* --- blocks of heaps --- */

void hak_huge_own(const void *p, hak_huge_set *set) {
  hak_lock_take(&hak_huge_lock);
  hak_huge_node *n = hak_huge_index_find(p);
  if (n != NULL && n->set == NULL) {
    remove_locked(n);
    n->set = set;
    insert_locked(n);
  }
  hak_lock_drop(&hak_huge_lock);
}

void *hak_huge_next_of(const hak_huge_set *set, const void *after, size_t *bytes) {
  hak_lock_take(&hak_huge_lock);
  const hak_huge_node *n = hak_huge_index_above(set, (uintptr_t)after);
  void *p = n == NULL ? NULL : (void *)n->start;
  if (n != NULL) *bytes = n->bytes;
  hak_lock_drop(&hak_huge_lock);
  return p;
}

/* Blocks moved in one hold of the lock, for which all threads wait that map or free: each takes two searches. */
#define MOVED_AT_ONCE 64
size_t hak_huge_end_set(hak_huge_set *set) {
  size_t moved = 0;
  for (bool more = true; more;) {
    hak_lock_take(&hak_huge_lock);
    for (unsigned i = 0; i < MOVED_AT_ONCE && set->root != NULL; i++, moved++) {
      hak_huge_node *n = set->root;
      remove_locked(n);
      n->set = &ended;
      insert_locked(n);
    }
    more = set->root != NULL;
    hak_lock_drop(&hak_huge_lock);
  }
  return moved;
}

void hak_huge_free_ended(size_t most, bool *purge_due) {
  for (void *p = &ended; most > 0 && p != NULL; most--) {
    hak_huge_pages pages;
    size_t bytes = 0;
    hak_lock_take(&hak_huge_lock);
    hak_huge_node *n = ended.root;
    p = n == NULL ? NULL : (void *)n->start;
    if (n != NULL) bytes = take_locked(n, &pages);
    hak_lock_drop(&hak_huge_lock);
    if (p != NULL) hak_huge_dispose(p, bytes, pages, purge_due);
  }
}

void hak_huge_fork_child(void) {
  hak_lock_take(&hak_huge_lock);
  hak_store_relaxed(&ended_lost, ended.root != NULL);
  hak_lock_drop(&hak_huge_lock);
}

void hak_huge_free_lost(size_t most, bool *purge_due) {
  if (HAK_LIKELY(!hak_load_relaxed(&ended_lost))) return;
  hak_huge_free_ended(most, purge_due);
  hak_lock_take(&hak_huge_lock);
  if (ended.root == NULL) hak_store_relaxed(&ended_lost, false);
  hak_lock_drop(&hak_huge_lock);
}

/* --- figures, and walks --- */

void hak_huge_read(hak_huge_figures *figures) {
  hak_lock_take(&hak_huge_lock);
  *figures = (hak_huge_figures){
      .live_count = live_count,
      .live_bytes = live_bytes,
      .kept_count = hak_kept.count,
      .kept_bytes = hak_kept.bytes,
      .owned_count = owned_count,
      .owned_bytes = owned_bytes,
  };
  hak_lock_drop(&hak_huge_lock);
}

const void *hak_huge_find(bool (*is)(const void *p, size_t bytes), uintptr_t *after, size_t *bytes) {
  const void *found = NULL;
  hak_lock_take(&hak_huge_lock);
  for (unsigned i = 0; i < HAK_HUGE_LOOKED_AT && found == NULL; i++) {
    const hak_huge_node *n = hak_huge_index_above(NULL, *after);
    *after = n == NULL ? 0 : n->start;
    if (n == NULL) break;
    if (n->set != NULL || !is((const void *)n->start, n->bytes)) continue;
    found = (const void *)n->start;
    *bytes = n->bytes;
  }
  hak_lock_drop(&hak_huge_lock);
  return found;
}

static hak_freed kept_above_locked(uintptr_t address) {
  hak_freed found = {0};
  hak_assert_held(&hak_huge_lock);
  for (size_t i = 0; i < hak_kept.count; i++) {
    const hak_freed *k = &hak_kept.all[i];
    if ((uintptr_t)k->p > address && (found.p == NULL || k->p < found.p)) found = *k;
  }
  return found;
}

bool hak_huge_next(uintptr_t *address, size_t *bytes, bool *is_kept) {
  hak_lock_take(&hak_huge_lock);
  const hak_huge_node *n = hak_huge_index_above(NULL, *address);
  hak_freed kept = kept_above_locked(*address);
  *is_kept = kept.p != NULL && (n == NULL || (uintptr_t)kept.p < n->start);
  bool found = *is_kept || n != NULL;
  *address = *is_kept ? (uintptr_t)kept.p : found ? n->start : 0;
  *bytes = *is_kept ? kept.bytes : found ? n->bytes : 0;
  hak_lock_drop(&hak_huge_lock);
  return found;
}
