#include "large/mapping.h"

#include "large/guard_pages.h"

hak_lock hak_huge_lock;

/* The addresses may be lost where the system refuses; the memory is gone in any case. */
bool hak_huge_unmap(void *p, size_t bytes) {
  HAK_ASSERT(p != NULL && bytes > 0);
  bool done = HAK_HARD(GUARDS) ? hak_guard_pages_unmap(p, bytes) : hak_os_unmap(p, bytes);
  hak_budget_count_unmapped(bytes);
  return done;
}
