#include "pool/meta.h"

#include <stddef.h>
#include <stdint.h>

#include "os/os.h"
#include "pool/chunk_bits.h"
#include "pool/counters.h"

HAK_ALIGNED(HAK_CACHE_LINE) hak_lock hak_meta_lock;
_Static_assert(sizeof(hak_meta) == HAK_META_SIZE, "whoever has one has all of its bytes");

#define FIRST_MAPPING (256 * HAK_KIB) /* of a program with one thread the only one; then steps double */
#define LAST_MAPPING (4 * HAK_MIB) /* one with the pages around it; all are aligned to it */
#define BLOCKS_MAX (LAST_MAPPING / HAK_META_SIZE)

/* At the start of each mapping obtained from the system. Only blocks that are given back, of up to LAST_MAPPING, have
 * bits. */
typedef struct mapping {
  struct mapping *next;
  size_t bytes;
  size_t room; /* inaccessible, behind them */
  size_t cold_blocks;
  bool has_new; /* blocks became cold since its pages were purged last */
  uint64_t cold[BLOCKS_MAX / 64]; /* free, and not on the list */
  uint64_t purged[BLOCKS_MAX / 64]; /* of them, at the first block of a page: the page has been given back */
} mapping;
#define HEADER_BYTES hak_align_up(sizeof(mapping), HAK_META_SIZE)

/* All under hak_meta_lock. */
static hak_meta *free_list;
static size_t free_blocks, fewest_free; /* on the list; and the fewest since it was purged last */
static uintptr_t fresh, fresh_end;
static unsigned long total_bytes;
static mapping *mappings; /* the latest first */
static size_t cold_blocks;
static mapping *cold_at; /* where one was taken last */
static struct {
  mapping *m; /* NULL: none */
  size_t first, count;
} claimed; /* blocks that are being purged: in no list and no bitmap */
static const void *purger; /* turn */

static void note_more(size_t bytes) {
  total_bytes += bytes;
  hak_budget_count_mapped(bytes);
}

/* The step is a part of the latest mapping's own, which a process at its limit of mappings is not refused. */
static bool extend_in_place(size_t needed, size_t step) {
  mapping *m = mappings;
  if (m == NULL || m->room < needed || fresh_end != (uintptr_t)m + m->bytes) return false;
  step = hak_min_size(hak_max_size(step, hak_align_up(needed, hak_os_page_size())), m->room);
  if (!hak_os_commit((char *)m + m->bytes, step)) return false;
  m->bytes += step;
  m->room -= step;
  fresh_end += step;
  note_more(step);
  return true;
}

size_t hak_meta_give_back_reserved(void) {
  size_t bytes = 0, page = hak_os_page_size();
  hak_lock_take(&hak_meta_lock);
  for (mapping *m = mappings; m != NULL; m = m->next) {
    /* A page of it is the inaccessible one behind the mapping from now on. */
    if (m->room == 0 || !hak_os_unmap_own((char *)m + m->bytes + page, m->room)) continue;
    bytes += m->room;
    m->room = 0;
  }
  hak_lock_drop(&hak_meta_lock);
  return bytes;
}

static bool extend(size_t needed) {
  hak_assert_held(&hak_meta_lock);
  HAK_ASSERT(needed > 0 && needed % HAK_META_SIZE == 0);
  size_t page = hak_os_page_size(), most = LAST_MAPPING - 2 * page;
  size_t bytes = hak_min_size(hak_max_size(FIRST_MAPPING, total_bytes), most);
  if (extend_in_place(needed, bytes)) return true;
  bytes = hak_align_up(hak_max_size(bytes, needed + HEADER_BYTES), page);
  bool is_large = bytes > most; /* for one block, which is never given back */
  /* What the first one grows into takes addresses, which are not to be spared unless the system limits them. */
  size_t room = is_large || mappings != NULL || hak_os_is_limited(HAK_OS_ADDRESS_SPACE) ? 0 : most - bytes;
  size_t all = bytes + room + 2 * page;
  /* An inaccessible page at either end: neighbours in the address space may be anybody's. */
  char *raw = hak_os_reserve(all, is_large ? page : LAST_MAPPING);
  if (raw == NULL) return false;
  if (!hak_os_commit(raw + page, bytes)) {
    hak_os_unmap_own(raw, all);
    return false;
  }
  hak_os_small_pages(raw, all);
  hak_os_name(raw, all, HAK_NAME_TABLES);
  mapping *m = (mapping *)(raw + page);
  m->next = mappings;
  m->bytes = bytes;
  m->room = room;
  mappings = m;
  fresh = (uintptr_t)m + HEADER_BYTES;
  fresh_end = is_large ? fresh + needed : (uintptr_t)m + bytes;
  note_more(bytes);
  return true;
}

static void *take_fresh(size_t bytes) {
  hak_assert_held(&hak_meta_lock);
  if (fresh_end - fresh < bytes && !extend(bytes)) return NULL;
  HAK_ASSERT(fresh % HAK_META_SIZE == 0 && fresh + bytes <= fresh_end);
  void *p = (void *)fresh;
  fresh += bytes;
  return p;
}

/* --- cold blocks --- */

static mapping *mapping_of(const void *p) {
  return (mapping *)(hak_align_down((uintptr_t)p, LAST_MAPPING) + hak_os_page_size());
}

static size_t page_blocks(void) { return hak_os_page_size() / HAK_META_SIZE; }

static void make_cold(mapping *m, size_t first, size_t count, bool cold) {
  hak_assert_held(&hak_meta_lock);
  size_t before = hak_bits_change(m->cold, first, count, cold), more = cold ? count : 0 - count;
  HAK_ASSERT(before == (cold ? 0 : count));
  m->cold_blocks += more;
  cold_blocks += more;
  HAK_ASSERT(cold_blocks >= m->cold_blocks);
}

/* The lowest of a mapping, so that the others become pages that are free as a whole. */
static hak_meta *take_cold(void) {
  hak_assert_held(&hak_meta_lock);
  if (cold_blocks == 0) return NULL;
  if (cold_at == NULL || cold_at->cold_blocks == 0)
    for (cold_at = mappings; cold_at->cold_blocks == 0;) cold_at = cold_at->next;
  size_t w = 0;
  while (cold_at->cold[w] == 0) w++;
  size_t block = w * 64 + hak_ctz64(cold_at->cold[w]);
  make_cold(cold_at, block, 1, false);
  /* Whoever takes the first block of a page that was given back has all of it back. */
  if (hak_bits_change(cold_at->purged, hak_align_down(block, page_blocks()), 1, false) != 0)
    hak_budget_count_mapped(hak_os_page_size());
  return (hak_meta *)((uintptr_t)cold_at + block * HAK_META_SIZE);
}

static bool is_page_cold(mapping *m, size_t first) {
  HAK_ASSERT(first % page_blocks() == 0);
  for (size_t i = first; i < first + page_blocks(); i++) {
    if (!hak_bits_has(m->cold, i)) return false;
  }
  return !hak_bits_has(m->purged, first);
}

/* Claims the pages from `first` on that are cold and can be given back, or returns false. */
static bool claim_pages(mapping *m, size_t first) {
  size_t step = page_blocks(), most = hak_min_size(m->bytes, LAST_MAPPING) / HAK_META_SIZE, end;
  hak_lock_take(&hak_meta_lock);
  while (first + step <= most && !is_page_cold(m, first)) first += step;
  for (end = first; end + step <= most && is_page_cold(m, end); end += step) continue;
  if (end > first) {
    HAK_ASSERT(claimed.m == NULL && hak_load_relaxed(&purger) == hak_thread_mark());
    make_cold(m, first, end - first, false);
    claimed.m = m;
    claimed.first = first;
    claimed.count = end - first;
  }
  hak_lock_drop(&hak_meta_lock);
  return end > first;
}

static void unclaim_locked(bool gone) {
  hak_assert_held(&hak_meta_lock);
  mapping *m = claimed.m;
  HAK_ASSERT(m != NULL && claimed.count > 0);
  claimed.m = NULL;
  make_cold(m, claimed.first, claimed.count, true);
  for (size_t i = 0; i < claimed.count && gone; i += page_blocks())
    hak_bits_change(m->purged, claimed.first + i, 1, true);
  if (gone) hak_budget_count_unmapped(claimed.count * HAK_META_SIZE);
}

static size_t purge_mapping(mapping *m) {
  size_t purged = 0;
  for (size_t first = 0; claim_pages(m, first); first = claimed.first + claimed.count) {
    size_t bytes = claimed.count * HAK_META_SIZE;
    bool gone = hak_os_decommit_mapping((char *)m + claimed.first * HAK_META_SIZE, bytes);
    purged += gone ? bytes : 0;
    hak_lock_take(&hak_meta_lock);
    unclaim_locked(gone);
    hak_lock_drop(&hak_meta_lock);
    if (!gone) break;
  }
  return purged;
}

/* Blocks that leave the list in one hold of the lock, each a cache miss: some microseconds. */
#define COLD_AT_ONCE 64
static bool make_some_cold(size_t *wanted) {
  hak_lock_take(&hak_meta_lock);
  unsigned n = 0;
  for (; n < COLD_AT_ONCE && n < *wanted && free_list != NULL; n++) {
    hak_meta *meta = free_list;
    mapping *m = mapping_of(meta);
    free_list = meta->next;
    make_cold(m, ((uintptr_t)meta - (uintptr_t)m) / HAK_META_SIZE, 1, true);
    m->has_new = true;
  }
  HAK_ASSERT(free_blocks >= n);
  free_blocks -= n;
  fewest_free = free_blocks;
  hak_lock_drop(&hak_meta_lock);
  *wanted -= n;
  return n > 0;
}

size_t hak_meta_purge(bool all) {
  if (!hak_turn_take(&purger)) return 0;
  hak_lock_take(&hak_meta_lock);
  size_t wanted = all ? free_blocks : fewest_free, purged = 0;
  fewest_free = free_blocks;
  mapping *m = mappings;
  hak_lock_drop(&hak_meta_lock);
  while (make_some_cold(&wanted)) continue;
  for (; m != NULL; m = m->next) {
    hak_lock_take(&hak_meta_lock);
    bool has_new = m->has_new;
    m->has_new = false;
    hak_lock_drop(&hak_meta_lock);
    if (has_new) purged += purge_mapping(m);
  }
  hak_turn_end(&purger);
  return purged;
}

void hak_meta_fork_child(void) {
  if (purger == NULL || purger == hak_thread_mark()) return;
  if (claimed.m != NULL) unclaim_locked(false);
  purger = NULL;
}

/* --- taking and giving --- */

static hak_meta *take(bool may_map) {
  hak_lock_take(&hak_meta_lock);
  hak_meta *meta = free_list;
  if (meta != NULL) {
    HAK_ASSERT(free_blocks > 0);
    free_list = meta->next;
    free_blocks--;
    fewest_free = hak_min_size(fewest_free, free_blocks);
  } else {
    meta = take_cold();
    if (meta == NULL && (may_map || fresh_end - fresh >= HAK_META_SIZE)) meta = take_fresh(HAK_META_SIZE);
  }
  hak_lock_drop(&hak_meta_lock);
  return meta;
}

hak_meta *hak_meta_take(void) { return take(true); }

hak_meta *hak_meta_take_mapped(void) { return take(false); }

void hak_meta_give(hak_meta *chain) {
  if (chain == NULL) return;
  HAK_ASSERT(((uintptr_t)chain & (HAK_META_SIZE - 1)) == 0);
  hak_meta *last = chain;
  size_t count = 1;
  for (; last->next != NULL; last = last->next) count++;
  hak_lock_take(&hak_meta_lock);
  last->next = free_list;
  free_list = chain;
  free_blocks += count;
  hak_lock_drop(&hak_meta_lock);
}

void hak_meta_give_one(void *memory) {
  ((hak_meta *)memory)->next = NULL;
  hak_meta_give(memory);
}

void *hak_meta_take_block(unsigned count) {
  HAK_ASSERT(count > 0);
  hak_lock_take(&hak_meta_lock);
  void *p = take_fresh((size_t)count * HAK_META_SIZE); /* fresh memory is zero */
  hak_lock_drop(&hak_meta_lock);
  return p;
}

unsigned long hak_meta_bytes(void) {
  hak_lock_take(&hak_meta_lock);
  unsigned long bytes = total_bytes;
  hak_lock_drop(&hak_meta_lock);
  return bytes;
}

bool hak_meta_mapping(size_t number, uintptr_t *address, size_t *bytes) {
  hak_lock_take(&hak_meta_lock);
  const mapping *m = mappings;
  while (m != NULL && number-- > 0) m = m->next;
  if (m != NULL) {
    *address = (uintptr_t)m;
    *bytes = m->bytes;
  }
  hak_lock_drop(&hak_meta_lock);
  return m != NULL;
}
