/* The text form, and the snapshot that both forms are made of. */
#include "report/render.h"

#include "config/config.h"
#include "guard/foreign.h"
#include "hakmem/hakmem.h"
#include "large/run.h"
#include "os/os.h"
#include "reclaim/decay.h"

static void line(hak_sink *s, const char *label, uint64_t bytes) {
  unsigned n = 0;
  hak_sink_text(s, label);
  while (label[n] != '\0') n++;
  hak_sink_column(s, bytes, n < 40 ? 56 - n : 16);
  hak_sink_text(s, "\n");
}

static void spans(hak_sink *s, const hak_figures *f) {
  line(s, "accessible", f->accessible);
  line(s, "  live", f->live);
  line(s, "  spans", f->spans);
  line(s, "    slabs", f->slabs);
  line(s, "      handed out: the program's", f->slab_live);
  line(s, "      handed out: in front caches", f->slab_cached);
  line(s, "      handed out: in packets on the way", f->slab_packets);
  line(s, "      free blocks", f->slab_free);
  line(s, "      never used blocks", f->slab_uncarved);
  line(s, "      rest", f->slab_rest);
  line(s, "    runs", f->runs);
  if (hak_load_relaxed(&hak_requests_noted)) line(s, "      tails", f->runs - f->run_requested);
  line(s, "    runs, freed and kept", f->runs_kept);
  line(s, "    free, dirty", f->free_dirty);
  line(s, "    free, clean", f->free_clean);
  line(s, "    claimed by a purge", f->claimed);
  if (HAK_HARD(GUARDS)) line(s, "    guards", f->guards);
  line(s, "  huge blocks", f->huge_live);
  line(s, "  huge mappings, freed and kept", f->huge_kept);
  line(s, "  sampled guards", f->sampled_accessible);
  line(s, "  own: cells", f->own_cells);
  line(s, "  own: tables", f->own_tables);
  line(s, "  own: other", f->own_other);
}

static void pair(hak_sink *s, const char *name, uint64_t value) {
  hak_sink_text(s, " ");
  hak_sink_text(s, name);
  hak_sink_text(s, "=");
  hak_sink_number(s, value);
}

static void counts(hak_sink *s, const hak_figures *f) {
  hak_sink_text(s, "blocks:");
  pair(s, "runs", f->run_count);
  pair(s, "huge", f->huge_count);
  pair(s, "sampled", f->sampled_count);
  hak_sink_text(s, "\nheaps:");
  pair(s, "total", f->heaps);
  pair(s, "active", f->heaps_active);
  pair(s, "warm", f->heaps_warm);
  pair(s, "parked", f->heaps_parked);
  pair(s, "regions", f->regions);
  hak_sink_text(s, "\nsince the start:");
  pair(s, "span_allocs", hak_load_relaxed(&hak_os_stats.alloc));
  pair(s, "span_frees", hak_load_relaxed(&hak_os_stats.free));
  pair(s, "huge_allocs", hak_load_relaxed(&hak_os_stats.huge_alloc));
  pair(s, "slow_paths", f->slow_paths);
  pair(s, "purges", hak_load_relaxed(&hak_purge_stats.purges));
  pair(s, "purged", hak_load_relaxed(&hak_purge_stats.bytes));
  pair(s, "foreign_pointers", hak_foreign_total());
  hak_sink_text(s, "\n");
}

static void class_line(hak_sink *s, unsigned c, const hak_class_row *row) {
  uint64_t requests, requested, asked_for, live = hak_row_live(row);
  hak_sink_column(s, hak_class_size(c), 6);
  hak_sink_text(s, c >= HAK_CLASSES ? "*" : " ");
  hak_sink_column(s, row->slabs, 6);
  hak_sink_column(s, row->slab_bytes, 13);
  hak_sink_column(s, live, 13);
  hak_sink_column(s, row->cached, 11);
  hak_sink_column(s, row->packets, 11);
  hak_sink_column(s, row->free, 12);
  hak_sink_column(s, row->uncarved, 12);
  hak_sink_column(s, row->rest, 9);
  hak_figures_requests(c, &requests, &requested);
  if (hak_figures_estimate(c, live, requests, requested, &asked_for)) {
    hak_sink_text(s, "   ");
    hak_sink_column(s, live - asked_for, 10);
  }
  hak_sink_text(s, "\n");
}

void hak_render_text(hak_sink *s, const hak_figures *f) {
  hak_sink_text(s, "hakmem " HAKMEM_VERSION_STRING ": figures of process ");
  hak_sink_number(s, (uint64_t)hak_os_pid());
  hak_sink_text(s, ", bytes\n");
  spans(s, f);
  counts(s, f);
  if (hak_load_relaxed(&hak_requests_noted)) {
    hak_estimate e = hak_render_estimate(f);
    hak_sink_text(s, "of the program's blocks in slabs, estimated:");
    pair(s, "asked_for", e.requested);
    pair(s, "rounding", e.rounding);
    hak_sink_text(s, "\n");
  }
  hak_sink_text(s, " block  slabs        bytes         live     cached    packets        free  never used     rest");
  hak_sink_text(s, hak_load_relaxed(&hak_requests_noted) ? "   rounding (estimated)\n" : "\n");
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) {
    if (f->rows[c].slabs != 0) class_line(s, c, &f->rows[c]);
  }
  hak_sink_text(s, "* for alignments above 64\n");
}

int hak_render_snapshot(hak_sink *s, bool json) {
  hak_class_row rows[HAK_FRONT_CLASSES];
  hak_figures f = {.rows = rows};
  hak_figures_take(&f);
  if (json)
    hak_render_json(s, &f, 0);
  else
    hak_render_text(s, &f);
  return hak_sink_finish(s);
}
