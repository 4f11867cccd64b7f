/* Totals and the reports that environment variables ask for. */
#include <inttypes.h>
#include <string.h>

#include "config/config.h"
#include "guard/foreign.h"
#include "hakmem/hakmem.h"
#include "heap/heap.h"
#include "large/huge.h"
#include "os/os.h"
#include "os/print.h"
#include "pool/span_pool.h"
#include "report/report.h"

/* Free blocks of one heap's slabs: the listed ones hold all of them, the one being carved also its uncarved rest. */
static size_t slab_free_bytes(hak_heap *h) {
  size_t bytes = 0;
  hak_lock_take(&h->lock);
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) {
    const hak_slab_set *set = &h->bins[c].slabs;
    size_t blocks = 0;
    for (unsigned list = 0; list < HAK_FULLNESS_LISTS; list++) {
      for (const hak_span *s = set->lists[list]; s != NULL; s = s->next) blocks += s->free_count;
    }
    if (set->carving != NULL) blocks += (size_t)(set->carving->blocks - set->carving->carved);
    bytes += blocks * hak_class_size(c);
  }
  hak_lock_drop(&h->lock);
  return bytes;
}

void hak_report_totals(hak_totals *t) {
  memset(t, 0, sizeof *t);
  if (!hak_heap_started()) return;
  uint32_t limit = hak_heap_id_limit();
  for (uint32_t id = HAK_EMERGENCY_ID; id < limit; id++) t->slab_free += slab_free_bytes(hak_heap_by_id(id));
  t->heaps = limit - HAK_EMERGENCY_ID;
  t->regions = hak_region_count();
  hak_huge_totals(&t->huge_count, &t->huge);
  t->cells = hak_cell_bytes();
  size_t live_spans = hak_load_relaxed(&hak_span_pool.live_spans) << HAK_SPAN_SHIFT;
  t->dirty_free = hak_load_relaxed(&hak_span_pool.dirty_spans) << HAK_SPAN_SHIFT;
  t->live = t->huge + (live_spans > t->slab_free ? live_spans - t->slab_free : 0);
  t->mapped = t->huge + t->cells;
  for (unsigned i = 0; i < t->regions; i++) {
    const hak_region *r = hak_region_at(i);
    t->mapped += hak_load_acquire(&r->limit) - (r->first_span << HAK_SPAN_SHIFT);
  }
}

void hak_report_text(void) {
  hak_totals t;
  hak_report_totals(&t);
  hak_print("hakmem %s: live %zu, free in slabs %zu, dirty free spans %zu, huge %zu in %zu mappings, own %zu, "
            "accessible %zu bytes; %u heaps, %u regions\n",
            HAKMEM_VERSION_STRING, t.live, t.slab_free, t.dirty_free, t.huge, t.huge_count, t.cells, t.mapped, t.heaps,
            t.regions);
}

void hak_report_os_stats(void) {
#define N(field) hak_load_relaxed(&hak_os_stats.field)
  hak_print("[SS_OS_STATS] alloc=%" PRIu64 " free=%" PRIu64 " madvise=%" PRIu64 " madvise_enomem=%" PRIu64
            " madvise_other=%" PRIu64 " madvise_disabled=%" PRIu64 " mmap_total=%" PRIu64 " fallback_mmap=%" PRIu64
            " huge_alloc=%" PRIu64 " huge_fail=%" PRIu64 " lean_decommit=%" PRIu64 " lean_retire=%" PRIu64 "\n",
            N(alloc), N(free), N(madvise), N(madvise_enomem), N(madvise_other), N(madvise_disabled), N(mmap_total),
            N(fallback_mmap), N(huge_alloc), N(huge_fail), N(lean_decommit), N(lean_retire));
#undef N
}

void hak_report_front_csv(void) {
  hak_print("class,block_size,twin,hits,misses,refills,flushes\n");
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) {
    hak_front_counts sum = {0};
    for (uint32_t id = HAK_EMERGENCY_ID; id < hak_heap_id_limit(); id++) {
      const hak_front_counts *counts = hak_heap_by_id(id)->counts;
      if (counts == NULL) continue;
      sum.hits += hak_load_relaxed(&counts[c].hits);
      sum.misses += hak_load_relaxed(&counts[c].misses);
      sum.refills += hak_load_relaxed(&counts[c].refills);
      sum.flushes += hak_load_relaxed(&counts[c].flushes);
    }
    hak_print("%u,%zu,%d,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n", c, hak_class_size(c), c >= HAK_CLASSES,
              sum.hits, sum.misses, sum.refills, sum.flushes);
  }
}

bool hak_report_wanted_at_exit(void) {
  return hak_config.front_dump || hak_config.guard_stats || hak_config.os_stats;
}

void hak_report_at_exit(void) {
  hak_os_use_kept_stderr();
  if (hak_config.front_dump && hak_heap_started()) hak_report_front_csv();
  if (hak_config.guard_stats) hak_foreign_print();
  if (hak_config.os_stats) hak_report_os_stats();
}
