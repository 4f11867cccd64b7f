#include "slab/purged.h"

#define GONE_MASK ((1u << HAK_PURGED_LIVE_SHIFT) - 1) /* a slab has 64 pages at most */
#define LIVE_MAX 0x1ffu /* or more */
_Static_assert((LIVE_MAX << HAK_PURGED_LIVE_SHIFT | GONE_MASK) == UINT16_MAX, "scan_state has room for both");
_Static_assert(4 * HAK_SPAN_SIZE / 4096 <= GONE_MASK, "and for the pages of the largest slab");

void hak_slab_note_purged(hak_span *s, size_t pages, unsigned live) {
  HAK_ASSERT(s->list == HAK_PURGED_LIST && pages > 0 && pages <= GONE_MASK);
  s->scan_state = (uint16_t)(pages | hak_min_size(live, LIVE_MAX) << HAK_PURGED_LIVE_SHIFT);
  hak_add_relaxed(&hak_span_pool.purged_slab_pages, pages);
}

/* A purged slab that leaves its list counts as resident. */
void hak_slab_left_purged(hak_span *s) {
  HAK_ASSERT(s->list == HAK_PURGED_LIST);
  HAK_ASSERT(hak_load_relaxed(&hak_span_pool.purged_slab_pages) >= (s->scan_state & GONE_MASK));
  hak_sub_relaxed(&hak_span_pool.purged_slab_pages, s->scan_state & GONE_MASK);
  s->scan_state = 0;
}

/* What has come free since is worth another call when half of what was live has: a few calls for a slab in all. */
bool hak_slab_stays_purged(const hak_span *s, unsigned free_count) {
  HAK_ASSERT(s->list == HAK_PURGED_LIST && free_count <= s->bumped);
  return (s->bumped - free_count) * 2 > hak_slab_live_when_purged(s);
}
