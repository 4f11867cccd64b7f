/* The read side of all figures: walks the heaps and prints. Changes nothing. */
#ifndef HAK_REPORT_REPORT_H
#define HAK_REPORT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "os/lock.h"

/* Bytes, taken under the locks one after the other: each part is consistent, the sum nearly so. */
typedef struct hak_totals {
  size_t mapped;      /* accessible: spans, huge blocks, the allocator's own cells */
  size_t live;        /* blocks handed out; those in front caches and packets count as handed out */
  size_t slab_free;   /* free blocks in partly used slabs */
  size_t dirty_free;  /* free spans that hold memory */
  size_t huge_count, huge;
  size_t cells;
  unsigned heaps, regions;
} hak_totals;

void hak_report_totals(hak_totals *totals);

/* Whether the settings ask for a report at exit, and that report. */
bool hak_report_wanted_at_exit(void);
void hak_report_at_exit(void);
void hak_report_os_stats(void);
void hak_report_front_csv(void);
void hak_report_text(void);

/* Walks every span, list and bitmap; prints each fault and returns their number. Callable from a debugger. */
size_t hak_heap_check(void);
/* One walk at a time. Ranks before all others; fork takes it too. */
extern hak_lock hak_heap_check_lock;

#endif
