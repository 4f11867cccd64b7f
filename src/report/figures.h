/* One snapshot of all figures. Every accessible span is looked at once and counted once, so the sums hold by
 * construction; a slab that goes to the pool between the two looks at it (its tag, its bitmap) counts as free memory.
 * Takes the pool's lock for 64 spans at a time, then the locks of the slabs' bins one after the other. No state, no
 * lock of its own, no memory but the caller's. */
#ifndef HAK_REPORT_FIGURES_H
#define HAK_REPORT_FIGURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tcache/tcache.h"

/* Bytes, except where noted. */
typedef struct hak_class_row {
  uint64_t slabs; /* a number */
  uint64_t slab_bytes, handed_out, cached, packets, free, uncarved, rest;
} hak_class_row;

/* The span map's codes; 0 to HAK_FRONT_CLASSES - 1: a slab of that class. */
enum {
  HAK_MAP_RUN = 0x80,
  HAK_MAP_RUN_BODY = 0x81,
  HAK_MAP_RUN_KEPT = 0x82,
  HAK_MAP_CLAIMED = 0xfc,
  HAK_MAP_GUARD = 0xfd,
  HAK_MAP_DIRTY = 0xfe,
  HAK_MAP_CLEAN = 0xff,
};

#define HAK_FIGURES_REGIONS 8 /* further ones have no map */

typedef struct hak_figures {
  /* set by the caller */
  hak_class_row *rows; /* HAK_FRONT_CLASSES of them; NULL: no rows, and no look at caches and packets */
  uint8_t *map;        /* where to put the span map, or NULL */
  size_t map_capacity;
  /* the rest is filled in; the fields are those of <hakmem/stats.h> */
  size_t map_entries, walked_spans[HAK_FIGURES_REGIONS], mapped_spans[HAK_FIGURES_REGIONS];
  uint64_t time_ms;
  uint64_t spans, slabs, runs, runs_kept, free_dirty, free_clean, claimed, guards;
  uint64_t slab_handed_out, slab_live, slab_cached, slab_packets, slab_free, slab_uncarved, slab_rest;
  uint64_t run_count, run_requested;
  uint64_t huge_live, huge_count, huge_kept, huge_kept_count;
  uint64_t sampled_live, sampled_count, sampled_accessible;
  uint64_t own_cells, own_tables, own_other, own;
  uint64_t heaps, heaps_active, heaps_warm, heaps_parked, regions, reserved, slow_paths;
  uint64_t accessible, live;
} hak_figures;

void hak_figures_take(hak_figures *figures);

/* Of live bytes of a class, the part that was asked for, by its noted requests. False: there are none. */
bool hak_figures_estimate(unsigned class_code, uint64_t live, uint64_t requests, uint64_t requested,
                          uint64_t *asked_for);

/* Sums over all heaps. */
void hak_figures_requests(unsigned class_code, uint64_t *requests, uint64_t *requested);
void hak_figures_front(unsigned class_code, hak_cache_counts *counts);

#endif
