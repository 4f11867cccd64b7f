#include "api/totals.h"

#include "api/api.h"

HAK_TLS hak_thread_totals hak_totals;
uint64_t hak_empty_reallocs;

void *hak_totals_realloc(void *p, size_t size, const void *caller) {
  size_t before = p == NULL ? 0 : hak_totals_size(p);
  if (p != NULL && size == 0) hak_add_relaxed(&hak_empty_reallocs, 1);
  void *q = hak_raw_realloc(p, size, caller);
  if (q == NULL && size != 0) return NULL;
  hak_totals.deallocated += before;
  return hak_totals_add(q);
}
