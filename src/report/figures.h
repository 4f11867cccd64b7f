/* One snapshot of all figures. Every accessible span is looked at once and counted once, so the sums hold by
 * construction; a slab that returns to the pool between the two looks at it (its page map entry, its bitmap) counts as
 * free memory. Takes the pool's lock for 64 spans at a time, then the locks of the slabs' bins one after the other. No
 * state, no lock of its own, no memory but the caller's. */
#ifndef HAK_REPORT_FIGURES_H
#define HAK_REPORT_FIGURES_H

#include "hakmem/stats.h"
#include "tcache/tcache.h"

/* Fields as in hakmem_class_stats, which hak_figures_class makes of a row. */
typedef struct hak_class_row {
  uint64_t slabs, slab_bytes, handed_out, cached, depots, free, never_allocated, rest, requests, requested;
  uint64_t partial; /* slabs with a free block, or one never allocated */
} hak_class_row;

/* The span map's entries; 0 to HAK_CLASS_COUNT - 1: a slab of that class. */
enum {
  HAK_MAP_EXTENT = 0x80,
  HAK_MAP_EXTENT_BODY = 0x81,
  HAK_MAP_EXTENT_CACHED = 0x82,
  HAK_MAP_HEAP = 0x83,
  HAK_MAP_CLAIMED = 0xfc,
  HAK_MAP_GUARD = 0xfd,
  HAK_MAP_DIRTY = 0xfe,
  HAK_MAP_CLEAN = 0xff,
};

#define HAK_FIGURES_REGIONS 8 /* further ones have no map */

typedef struct hak_figures {
  /* set by the caller */
  hak_class_row *rows; /* HAK_CLASS_COUNT of them; NULL: no rows, and neither thread caches nor estimates */
  uint8_t *map;        /* where to put the span map, or NULL */
  size_t map_capacity;
  bool process; /* whether to read a file about the process */
  /* Or NULL: is told the usable bytes of each extent and mapping of the main heap. It may run under the pool's lock. */
  void (*see_large)(void *context, size_t bytes);
  void *context;
  /* the rest is filled in */
  size_t free_blocks; /* of slabs and depots, and cached extents */
  size_t map_entries, walked_spans[HAK_FIGURES_REGIONS], mapped_spans[HAK_FIGURES_REGIONS];
  hakmem_stats stats;
} hak_figures;

void hak_figures_take(hak_figures *figures);

/* Of live extents: what was asked for, and the ends of their last spans. HAK_UNKNOWN where sizes are not noted. */
typedef struct hak_noted_figures {
  uint64_t requested, tail;
} hak_noted_figures;
hak_noted_figures hak_figures_noted(const hakmem_stats *stats);

/* One class of a snapshot with rows; hits and the like are of the moment of the call. */
hakmem_class_stats hak_figures_class(const hak_figures *figures, unsigned class_code);

HAK_INLINE uint64_t hak_row_live(const hak_class_row *row) { return row->handed_out - row->cached - row->depots; }

/* Of the live bytes of a class, the part that was asked for, by its noted requests. False: there are none. */
bool hak_figures_estimate(const hak_class_row *row, unsigned class_code, uint64_t *asked_for);

#endif
