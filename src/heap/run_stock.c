#include "heap/run_stock.h"

#include <string.h>

#include "large/run.h"

/* Larger runs cost more to touch than the pool costs. Together they are no more than a heap's front may grow by. */
#define RUN_SPANS_MAX ((uint32_t)(HAK_MIB / HAK_SPAN_SIZE))
#define SPANS_MAX ((uint32_t)(2 * HAK_MIB / HAK_SPAN_SIZE))

static void *remove_at(hak_heap *h, unsigned i) {
  void *p = h->run_stock[i].p;
  h->run_stock_spans -= h->run_stock[i].spans;
  h->run_stock_count--;
  memmove(&h->run_stock[i], &h->run_stock[i + 1], (h->run_stock_count - i) * sizeof h->run_stock[0]);
  return p;
}

static void free_at(hak_heap *h, unsigned i, bool *release_due) {
  hak_run_give_kept(remove_at(h, i), release_due);
}

void *hak_run_stock_take(hak_heap *h, size_t size) {
  size_t spans = hak_run_spans(size);
  for (unsigned i = h->run_stock_count; i-- > 0;) {
    if (h->run_stock[i].spans != spans) continue;
    void *p = remove_at(h, i);
    hak_run_reuse(p, size);
    h->run_stock_hits++;
    return p;
  }
  return NULL;
}

hak_verdict hak_run_stock_put(hak_heap *h, hak_region *r, void *p, bool *release_due) {
  hak_verdict verdict = hak_run_keep(r, p);
  if (HAK_UNLIKELY(verdict != HAK_VERDICT_OK)) return verdict;
  uint32_t spans = (uint32_t)(hak_run_size(r, p) >> HAK_SPAN_SHIFT); /* settled only now that the run is ours */
  if (spans > RUN_SPANS_MAX) {
    hak_run_give_kept(p, release_due);
    return HAK_VERDICT_OK;
  }
  while (h->run_stock_count == HAK_RUN_STOCK || h->run_stock_spans + spans > SPANS_MAX) free_at(h, 0, release_due);
  h->run_stock[h->run_stock_count++] = (hak_kept_run){p, spans};
  h->run_stock_spans += spans;
  return HAK_VERDICT_OK;
}

void hak_run_stock_flush(hak_heap *h, bool *release_due) {
  while (h->run_stock_count > 0) free_at(h, h->run_stock_count - 1, release_due);
}
