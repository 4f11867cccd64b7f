/* The read side of all figures: totals, the lines that older options ask for, the heap walk. Changes nothing. */
#ifndef HAK_REPORT_REPORT_H
#define HAK_REPORT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "os/lock.h"

/* Bytes, of one snapshot (figures.h). */
typedef struct hak_totals {
  size_t mapped;      /* accessible: spans, huge mappings and sampled blocks, the allocator's metadata blocks */
  size_t live;        /* blocks handed out, but huge ones; those in thread caches count as handed out, those in depots do not */
  size_t slab_free;   /* free blocks of slabs, those that were never used included */
  size_t free_blocks; /* their number, with freed extents and huge mappings */
  size_t dirty_free;  /* outside of slabs: free spans that hold memory, freed extents and huge mappings that are kept */
  size_t huge_count, huge;
  size_t metadata;
  unsigned arenas, regions;
} hak_totals;

void hak_report_totals(hak_totals *totals);

void hak_report_os_stats(void);
void hak_report_cache_csv(void);
void hak_report_text(void);

/* Walks every span, list and bitmap; prints each fault and returns their number. Callable from a debugger. */
size_t hak_heap_check(void);
/* One walk at a time. Ranks before all others; fork takes it too. */
extern hak_lock hak_heap_check_lock;

#endif
