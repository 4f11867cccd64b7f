#include "large/mapping.h"

#include <string.h>

#include "large/guard_pages.h"

hak_lock hak_huge_lock;

/* The addresses may be lost where the system refuses; the memory is gone in any case. */
bool hak_huge_unmap(void *p, size_t bytes) {
  HAK_ASSERT(p != NULL && bytes > 0);
  bool done = HAK_HARD(GUARDS) ? hak_guard_pages_unmap(p, bytes) : hak_os_unmap(p, bytes);
  hak_budget_count_unmapped(bytes);
  return done;
}

bool hak_freed_put(hak_freed_list *list, hak_freed mapping) {
  hak_assert_held(&hak_huge_lock);
  HAK_ASSERT(mapping.p != NULL && mapping.bytes > 0 && list->count <= HAK_FREED_MAX);
  if (list->count == HAK_FREED_MAX) return false;
  list->all[list->count++] = mapping;
  hak_add_single(&list->bytes, mapping.bytes);
  return true;
}

hak_freed hak_freed_remove(hak_freed_list *list, size_t i) {
  hak_assert_held(&hak_huge_lock);
  HAK_ASSERT(i < list->count);
  hak_freed mapping = list->all[i];
  HAK_ASSERT(list->bytes >= mapping.bytes);
  memmove(&list->all[i], &list->all[i + 1], (--list->count - i) * sizeof *list->all);
  hak_sub_single(&list->bytes, mapping.bytes);
  return mapping;
}

const hak_freed *hak_freed_around(const hak_freed_list *list, const void *p) {
  hak_assert_held(&hak_huge_lock);
  for (size_t i = 0; i < list->count; i++) {
    if ((uintptr_t)p - (uintptr_t)list->all[i].p < list->all[i].bytes) return &list->all[i];
  }
  return NULL;
}
