/* Totals, and the lines that an option each asks for. */
#include <inttypes.h>

#include "hakmem/hakmem.h"
#include "os/os.h"
#include "os/print.h"
#include "report/figures.h"
#include "report/report.h"

void hak_report_totals(hak_totals *t) {
  hak_figures f = {0};
  hak_figures_take(&f);
  *t = (hak_totals){
      .mapped = f.spans + f.huge_live + f.sampled_accessible + f.own_cells,
      .live = f.live,
      .slab_free = f.slab_free + f.slab_uncarved + f.slab_packets,
      .dirty_free = f.free_dirty + f.runs_kept,
      .huge_count = f.huge_count,
      .huge = f.huge_live,
      .cells = f.own_cells,
      .heaps = (unsigned)f.heaps,
      .regions = (unsigned)f.regions,
  };
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
    hak_cache_counts sum;
    hak_figures_front(c, &sum);
    hak_print("%u,%zu,%d,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n", c, hak_class_size(c), c >= HAK_CLASSES,
              sum.hits, sum.misses, sum.refills, sum.flushes);
  }
}
