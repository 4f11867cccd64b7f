/* Totals, and the lines that an option each asks for. */
#include <inttypes.h>

#include "hakmem/hakmem.h"
#include "os/os.h"
#include "os/print.h"
#include "report/figures.h"
#include "report/report.h"
#include "tcache/tcache.h"

void hak_report_totals(hak_totals *t) {
  hak_figures f = {0};
  hak_figures_take(&f);
  const hakmem_stats *all = &f.stats;
  *t = (hak_totals){
      .mapped = all->spans + all->huge_live + all->huge_kept + all->sampled_accessible + all->own_metadata,
      .live = all->live - all->huge_live,
      .slab_free = all->slab_free + all->slab_never_allocated + all->slab_depots,
      .free_blocks = f.free_blocks + all->huge_kept_count,
      .dirty_free = all->free_dirty + all->claimed + all->extents_cached + all->huge_kept,
      .huge_count = all->huge_count,
      .huge = all->huge_live,
      .metadata = all->own_metadata,
      .arenas = (unsigned)all->arenas,
      .regions = (unsigned)all->regions,
  };
}

void hak_report_text(void) {
  hak_totals t;
  hak_report_totals(&t);
  hak_print("hakmem %s: live %zu, free in slabs %zu, dirty and free outside %zu, huge %zu in %zu mappings, own %zu, "
            "accessible %zu bytes; %u arenas, %u regions\n",
            HAKMEM_VERSION_STRING, t.live, t.slab_free, t.dirty_free, t.huge, t.huge_count, t.metadata, t.mapped, t.arenas,
            t.regions);
}

void hak_report_os_stats(void) {
#define FORMAT(name, meaning) " " #name "=%" PRIu64
#define VALUE(name, meaning) , hak_load_relaxed(&hak_os_stats.name)
  hak_print("[SS_OS_STATS]" HAK_OS_LINE_COUNTERS(FORMAT) "\n" HAK_OS_LINE_COUNTERS(VALUE));
#undef FORMAT
#undef VALUE
}

void hak_report_cache_csv(void) {
  hak_print("class,block_size,aligned,hits,misses,refills,flushes\n");
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    hak_cache_counts sum;
    hak_tcache_sum_counts(c, &sum);
    hak_print("%u,%zu,%d,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n", c, hak_class_size(c), c >= HAK_PLAIN_CLASSES,
              sum.hits, sum.misses, sum.refills, sum.flushes);
  }
}
