/* What first touches of huge pages cost, and what follows from it. */
#include "region/first_touch.h"

#include <stdint.h>

#include "os/os.h"

#define DEAR_NS 1000000 /* 512 small pages at 2 us each; a huge page that is cleared at 2 GB/s */
/* Small pages between two dear samples: the second costs 5 to 10 ms, 64 MiB of small pages 25 to 50. One alone is often
 * followed by cheap ones; where two come in a row the host is short, and further ones may cost a percent. */
#define DEAR_FIRST (64 * HAK_MIB)
#define DEAR_TIMES 8
#define DEAR_MOST HAK_GIB

size_t hak_dear_bytes;
static size_t dear_next = DEAR_FIRST;

void hak_note_small_pages(size_t bytes) {
  size_t left = hak_load_relaxed(&hak_dear_bytes);
  if (HAK_UNLIKELY(left != 0)) hak_store_relaxed(&hak_dear_bytes, left - hak_min_size(left, bytes));
}

bool hak_time_first_touch(void *page) {
  if (hak_huge_pages_are_dear()) return false;
  size_t next = hak_load_relaxed(&dear_next);
  bool dear = hak_os_touch(page) > DEAR_NS;
  if (HAK_UNLIKELY(dear)) hak_store_relaxed(&hak_dear_bytes, next);
  hak_store_relaxed(&dear_next, dear ? hak_min_size(next * DEAR_TIMES, DEAR_MOST) : DEAR_FIRST);
  return dear;
}
