/* The ends of heaps that were deleted. */
#include "api/heaps.h"
#include "api/slow_exit.h"

void hak_heap_end_deleted(void) {
  hak_deferred d = {0};
  for (hak_heap *h; (h = hak_heap_take_ended()) != NULL;) {
    hak_heap_give_all(h, &d);
    hak_heap_release(h);
  }
  hak_slow_exit(&d);
}

void hak_heap_end_flushed(void) {
  if (hak_heap_caches_ended_some()) hak_heap_end_deleted();
}
