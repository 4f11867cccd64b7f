#include "pool/cell.h"

#include <stddef.h>
#include <stdint.h>

#include "base/bits.h"
#include "os/os.h"
#include "pool/budget.h"

HAK_ALIGNED(HAK_CACHE_LINE) hak_lock hak_cell_lock;

/* In the first cell of each block obtained from the system. */
typedef struct block {
  struct block *next;
  size_t bytes;
} block;

/* All under hak_cell_lock. */
static hak_cell *free_cells;
static uintptr_t fresh, fresh_end;
static unsigned long total_bytes;
static block *blocks; /* the latest first */

#define FIRST_BLOCK (256 * HAK_KIB)
#define LAST_BLOCK (4 * HAK_MIB)

static bool extend(size_t needed) {
  size_t page = hak_os_page_size();
  size_t bytes = hak_min_size(hak_max_size(FIRST_BLOCK, total_bytes), LAST_BLOCK);
  bytes = hak_align_up(hak_max_size(bytes, needed + HAK_CELL_SIZE), page);
  /* An inaccessible page at either end: neighbours in the address space may be anybody's. */
  char *raw = hak_os_reserve(bytes + 2 * page, page);
  if (raw == NULL) return false;
  if (!hak_os_commit(raw + page, bytes)) {
    hak_os_unmap(raw, bytes + 2 * page);
    return false;
  }
  hak_os_small_pages(raw + page, bytes);
  block *b = (block *)(raw + page);
  b->next = blocks;
  b->bytes = bytes;
  blocks = b;
  fresh = (uintptr_t)b + HAK_CELL_SIZE;
  fresh_end = (uintptr_t)b + bytes;
  total_bytes += bytes;
  hak_budget_count_mapped(bytes);
  return true;
}

static void *take_fresh(size_t bytes) {
  hak_assert_held(&hak_cell_lock);
  if (fresh_end - fresh < bytes && !extend(bytes)) return NULL;
  void *p = (void *)fresh;
  fresh += bytes;
  return p;
}

hak_cell *hak_cell_take(void) {
  hak_lock_take(&hak_cell_lock);
  hak_cell *cell = free_cells;
  if (cell != NULL)
    free_cells = cell->next;
  else
    cell = take_fresh(HAK_CELL_SIZE);
  hak_lock_drop(&hak_cell_lock);
  return cell;
}

void hak_cell_give(hak_cell *chain) {
  if (chain == NULL) return;
  HAK_ASSERT(((uintptr_t)chain & (HAK_CELL_SIZE - 1)) == 0);
  hak_cell *last = chain;
  while (last->next != NULL) last = last->next;
  hak_lock_take(&hak_cell_lock);
  last->next = free_cells;
  free_cells = chain;
  hak_lock_drop(&hak_cell_lock);
}

void hak_cell_give_one(void *cell) {
  ((hak_cell *)cell)->next = NULL;
  hak_cell_give(cell);
}

void *hak_cell_take_block(unsigned count) {
  hak_lock_take(&hak_cell_lock);
  void *p = take_fresh((size_t)count * HAK_CELL_SIZE); /* fresh memory is zero */
  hak_lock_drop(&hak_cell_lock);
  return p;
}

unsigned long hak_cell_bytes(void) {
  hak_lock_take(&hak_cell_lock);
  unsigned long bytes = total_bytes;
  hak_lock_drop(&hak_cell_lock);
  return bytes;
}

bool hak_cell_block(size_t number, uintptr_t *address, size_t *bytes) {
  hak_lock_take(&hak_cell_lock);
  const block *b = blocks;
  while (b != NULL && number-- > 0) b = b->next;
  if (b != NULL) {
    *address = (uintptr_t)b;
    *bytes = b->bytes;
  }
  hak_lock_drop(&hak_cell_lock);
  return b != NULL;
}
