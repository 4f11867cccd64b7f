#include "pool/meta.h"

#include <stddef.h>
#include <stdint.h>

#include "base/bits.h"
#include "os/os.h"
#include "pool/budget.h"

HAK_ALIGNED(HAK_CACHE_LINE) hak_lock hak_meta_lock;

/* In the first block of each mapping obtained from the system. */
typedef struct mapping {
  struct mapping *next;
  size_t bytes;
} mapping;

/* All under hak_meta_lock. */
static hak_meta *free_list;
static uintptr_t fresh, fresh_end;
static unsigned long total_bytes;
static mapping *mappings; /* the latest first */

#define FIRST_MAPPING (256 * HAK_KIB)
#define LAST_MAPPING (4 * HAK_MIB)

static bool extend(size_t needed) {
  size_t page = hak_os_page_size();
  size_t bytes = hak_min_size(hak_max_size(FIRST_MAPPING, total_bytes), LAST_MAPPING);
  bytes = hak_align_up(hak_max_size(bytes, needed + HAK_META_SIZE), page);
  /* An inaccessible page at either end: neighbours in the address space may be anybody's. */
  char *raw = hak_os_reserve(bytes + 2 * page, page);
  if (raw == NULL) return false;
  if (!hak_os_commit(raw + page, bytes)) {
    hak_os_unmap_own(raw, bytes + 2 * page);
    return false;
  }
  hak_os_small_pages(raw + page, bytes);
  hak_os_name(raw, bytes + 2 * page, HAK_NAME_TABLES);
  mapping *m = (mapping *)(raw + page);
  m->next = mappings;
  m->bytes = bytes;
  mappings = m;
  fresh = (uintptr_t)m + HAK_META_SIZE;
  fresh_end = (uintptr_t)m + bytes;
  total_bytes += bytes;
  hak_budget_count_mapped(bytes);
  return true;
}

static void *take_fresh(size_t bytes) {
  hak_assert_held(&hak_meta_lock);
  if (fresh_end - fresh < bytes && !extend(bytes)) return NULL;
  void *p = (void *)fresh;
  fresh += bytes;
  return p;
}

hak_meta *hak_meta_take(void) {
  hak_lock_take(&hak_meta_lock);
  hak_meta *meta = free_list;
  if (meta != NULL)
    free_list = meta->next;
  else
    meta = take_fresh(HAK_META_SIZE);
  hak_lock_drop(&hak_meta_lock);
  return meta;
}

void hak_meta_give(hak_meta *chain) {
  if (chain == NULL) return;
  HAK_ASSERT(((uintptr_t)chain & (HAK_META_SIZE - 1)) == 0);
  hak_meta *last = chain;
  while (last->next != NULL) last = last->next;
  hak_lock_take(&hak_meta_lock);
  last->next = free_list;
  free_list = chain;
  hak_lock_drop(&hak_meta_lock);
}

void hak_meta_give_one(void *memory) {
  ((hak_meta *)memory)->next = NULL;
  hak_meta_give(memory);
}

void *hak_meta_take_block(unsigned count) {
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
