/* Figures for the program itself. */
#include "hakmem/stats.h"

#include <errno.h>
#include <string.h>

#include "api/init.h"
#include "base/compiler.h"
#include "guard/foreign.h"
#include "large/run.h"
#include "os/os.h"
#include "pool/budget.h"
#include "reclaim/decay.h"
#include "report/render.h"

HAK_LINK_INIT;

#define FIRST_VERSION_BYTES sizeof(hakmem_stats) /* of version 1 */

static void fill(hakmem_stats *out) {
  hak_class_row rows[HAK_FRONT_CLASSES];
  hak_figures f = {.rows = rows};
  hak_figures_take(&f);
  hak_estimate e = hak_render_estimate(&f);
  *out = (hakmem_stats){
      .version = HAKMEM_STATS_VERSION,
      .time_ms = f.time_ms,
      .accessible = f.accessible,
      .live = f.live,
      .spans = f.spans,
      .slabs = f.slabs,
      .runs = f.runs,
      .runs_kept = f.runs_kept,
      .free_dirty = f.free_dirty,
      .free_clean = f.free_clean,
      .claimed = f.claimed,
      .guards = f.guards,
      .slab_handed_out = f.slab_handed_out,
      .slab_live = f.slab_live,
      .slab_cached = f.slab_cached,
      .slab_packets = f.slab_packets,
      .slab_free = f.slab_free,
      .slab_uncarved = f.slab_uncarved,
      .slab_rest = f.slab_rest,
      .run_count = f.run_count,
      .run_requested = f.run_requested,
      .huge_live = f.huge_live,
      .huge_count = f.huge_count,
      .huge_kept = f.huge_kept,
      .huge_kept_count = f.huge_kept_count,
      .sampled_live = f.sampled_live,
      .sampled_count = f.sampled_count,
      .sampled_accessible = f.sampled_accessible,
      .own = f.own,
      .own_cells = f.own_cells,
      .own_tables = f.own_tables,
      .own_other = f.own_other,
      .heaps = f.heaps,
      .heaps_active = f.heaps_active,
      .heaps_warm = f.heaps_warm,
      .heaps_parked = f.heaps_parked,
      .regions = f.regions,
      .reserved = f.reserved,
      .slow_paths = f.slow_paths,
      .requests_noted = hak_load_relaxed(&hak_requests_noted),
      .estimated_requested = e.requested,
      .estimated_rounding = e.rounding,
  };
}

static void fill_counters(hakmem_stats *out) {
#define COUNT(counter) hak_load_relaxed(&hak_os_stats.counter)
  out->span_allocs = COUNT(alloc);
  out->span_frees = COUNT(free);
  out->huge_allocs = COUNT(huge_alloc);
  out->huge_failures = COUNT(huge_fail);
  out->purges = hak_load_relaxed(&hak_purge_stats.purges);
  out->purged = hak_load_relaxed(&hak_purge_stats.bytes);
  out->madvise = COUNT(madvise);
  out->madvise_failures = COUNT(madvise_enomem) + COUNT(madvise_other);
  out->mmap = COUNT(mmap_total);
  out->munmap = COUNT(munmap);
  out->mprotect = COUNT(mprotect);
  out->mremap = COUNT(mremap);
  out->foreign_frees = hak_foreign_calls(HAK_FOREIGN_FREE);
  out->foreign_reallocs = hak_foreign_calls(HAK_FOREIGN_REALLOC);
  out->foreign_usable_sizes = hak_foreign_calls(HAK_FOREIGN_USABLE_SIZE);
#undef COUNT
  out->holes = hak_load_relaxed(&hak_span_pool.hole_pages) * hak_os_page_size();
  hak_budget_figures budget;
  hak_budget_state(&budget);
  out->budget_target = budget.target;
  out->budget_limit = budget.limit;
  out->budget_used = budget.used;
  out->budget_resident = budget.resident;
  out->budget_level = budget.level;
  out->budget_refused = budget.refused;
}

HAK_EXPORT int hakmem_stats_get(hakmem_stats *out, size_t size) {
  if (out == NULL || size < FIRST_VERSION_BYTES) return EINVAL;
  hakmem_stats all;
  fill(&all);
  fill_counters(&all);
  size_t known = hak_min_size(size, sizeof all);
  all.size = (uint32_t)known;
  memcpy(out, &all, known);
  memset((char *)out + known, 0, size - known);
  return 0;
}

HAK_EXPORT size_t hakmem_stats_classes(hakmem_class_stats *out, size_t count) {
  hak_class_row rows[HAK_FRONT_CLASSES];
  hak_figures f = {.rows = rows};
  if (count == 0 || out == NULL) return HAK_FRONT_CLASSES;
  hak_figures_take(&f);
  for (unsigned c = 0; c < hak_min_size(count, HAK_FRONT_CLASSES); c++) {
    const hak_class_row *row = &rows[c];
    hak_cache_counts front;
    hak_figures_front(c, &front);
    out[c] = (hakmem_class_stats){
        .block_size = (uint32_t)hak_class_size(c),
        .twin = c >= HAK_CLASSES,
        .slabs = row->slabs,
        .slab_bytes = row->slab_bytes,
        .handed_out = row->handed_out,
        .live = hak_row_live(row),
        .cached = row->cached,
        .packets = row->packets,
        .free = row->free,
        .uncarved = row->uncarved,
        .rest = row->rest,
        .hits = front.hits,
        .misses = front.misses,
        .refills = front.refills,
        .flushes = front.flushes,
    };
    hak_figures_requests(c, &out[c].requests, &out[c].requested);
  }
  return HAK_FRONT_CLASSES;
}

HAK_EXPORT int hakmem_stats_print(int fd, int json) {
  hak_sink sink;
  hak_sink_to_fd(&sink, fd);
  return hak_render_snapshot(&sink, json != 0);
}
