/* What a slab on the last list is counted as: its `scan_state` is there the pages that are gone, and above them the blocks that were live
 * when they went. Under the lock of the slab's bin. */
#ifndef HAK_SLAB_PURGED_H
#define HAK_SLAB_PURGED_H

#include "slab/slab.h"

#define HAK_PURGED_LIVE_SHIFT 7

HAK_INLINE unsigned hak_slab_live_when_purged(const hak_span *s) { return (unsigned)s->scan_state >> HAK_PURGED_LIVE_SHIFT; }

/* The slab has come to the last list: pages of it are gone while `live` blocks are handed out. */
void hak_slab_note_purged(hak_span *span, size_t pages, unsigned live);
/* The slab leaves it. */
void hak_slab_left_purged(hak_span *span);
/* Whether a slab on the last list belongs there still, after blocks came back to it. */
bool hak_slab_stays_purged(const hak_span *span, unsigned free_count);

#endif
