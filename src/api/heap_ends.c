/* The ends of heaps that were deleted. */
#include "api/heaps.h"

void hak_heap_end_deleted(hak_deferred *d) {
  for (hak_heap *h; (h = hak_heap_take_ended()) != NULL;) {
    hak_heap_give_all(h, d);
    hak_heap_release(h);
  }
}
