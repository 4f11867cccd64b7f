/* The text form, and the snapshot that both forms are made of. */
#include "report/render.h"

#include "base/policy.h"
#include "config/config.h"
#include "hakmem/hakmem.h"
#include "os/os.h"

static void line(hak_sink *s, const char *label, uint64_t bytes) {
  unsigned n = 0;
  hak_sink_text(s, label);
  while (label[n] != '\0') n++;
  hak_sink_column(s, bytes, n < 40 ? 56 - n : 16);
  hak_sink_text(s, "\n");
}

static void spans(hak_sink *s, const hakmem_stats *t) {
  line(s, "accessible", t->accessible);
  line(s, "  live", t->live);
  line(s, "  spans", t->spans);
  line(s, "    slabs", t->slabs);
  line(s, "      handed out: the program's", t->slab_live);
  line(s, "      handed out: in thread caches", t->slab_cached);
  line(s, "      handed out: in depots", t->slab_depots);
  line(s, "      free blocks", t->slab_free);
  line(s, "      never allocated blocks", t->slab_never_allocated);
  line(s, "      rest", t->slab_rest);
  line(s, "    extents", t->extents);
  if (t->requests_noted) line(s, "      tails", t->extents - t->extent_requested);
  line(s, "    extents, freed and cached", t->extents_cached);
  line(s, "    free, dirty", t->free_dirty);
  line(s, "    free, clean", t->free_clean);
  line(s, "    claimed by a purge", t->claimed);
  if (HAK_HARD(GUARDS)) line(s, "    guards", t->guards);
  line(s, "  huge blocks", t->huge_live);
  line(s, "  huge mappings, freed and kept", t->huge_kept);
  line(s, "  sampled guards", t->sampled_accessible);
  line(s, "  own: metadata", t->own_metadata);
  line(s, "  own: tables", t->own_tables);
  line(s, "  own: other", t->own_other);
}

static void pair(hak_sink *s, const char *name, uint64_t value) {
  hak_sink_text(s, " ");
  hak_sink_text(s, name);
  hak_sink_text(s, "=");
  hak_sink_number(s, value);
}

static void counts(hak_sink *s, const hakmem_stats *t) {
  hak_sink_text(s, "blocks:");
  pair(s, "extents", t->extent_count);
  pair(s, "huge", t->huge_count);
  pair(s, "sampled", t->sampled_count);
  hak_sink_text(s, "\ncaches:");
  pair(s, "arenas", t->arenas);
  pair(s, "used", t->caches_used);
  pair(s, "unused", t->caches_unused);
  pair(s, "regions", t->regions);
  hak_sink_text(s, "\nsince the start:");
  pair(s, "span_allocs", t->span_allocs);
  pair(s, "span_frees", t->span_frees);
  pair(s, "huge_allocs", t->huge_allocs);
  pair(s, "slow_paths", t->slow_paths);
  pair(s, "purges", t->purges);
  pair(s, "purged", t->purged);
  pair(s, "foreign_pointers", t->foreign_frees + t->foreign_reallocs + t->foreign_usable_sizes);
  if (t->requests_noted) {
    hak_sink_text(s, "\nof the program's blocks in slabs, estimated:");
    pair(s, "asked_for", t->estimated_requested);
    pair(s, "rounding", t->estimated_rounding);
  }
  hak_sink_text(s, "\n");
}

static void class_line(hak_sink *s, unsigned c, const hak_class_row *row) {
  static const unsigned widths[] = {6, 13, 13, 11, 11, 12, 17, 9, 13};
  uint64_t asked_for = 0, live = hak_row_live(row);
  bool estimated = hak_figures_estimate(row, c, &asked_for);
  const uint64_t values[] = {row->slabs,  row->slab_bytes, live,      row->cached,     row->depots,
                             row->free, row->never_allocated, row->rest, live - asked_for};
  hak_sink_column(s, hak_class_size(c), 6);
  hak_sink_text(s, c >= HAK_PLAIN_CLASSES ? "*" : " ");
  for (unsigned i = 0; i < (estimated ? 9 : 8); i++) hak_sink_column(s, values[i], widths[i]);
  hak_sink_text(s, "\n");
}

void hak_render_text(hak_sink *s, const hak_figures *f) {
  hak_sink_text(s, "hakmem " HAKMEM_VERSION_STRING ": figures of process ");
  hak_sink_number(s, (uint64_t)hak_os_pid());
  hak_sink_text(s, ", bytes\n");
  spans(s, &f->stats);
  counts(s, &f->stats);
  hak_sink_text(s, " block  slabs        bytes         live     cached     depots        free  never allocated     rest");
  hak_sink_text(s, f->stats.requests_noted ? "   rounding (estimated)\n" : "\n");
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    if (f->rows[c].slabs != 0) class_line(s, c, &f->rows[c]);
  }
  hak_sink_text(s, "* for alignments above 64\n");
}

int hak_render_snapshot(hak_sink *s, bool json) {
  hak_class_row rows[HAK_CLASS_COUNT];
  hak_figures f = {.rows = rows};
  hak_figures_take(&f);
  if (json)
    hak_render_json(s, &f, 0);
  else
    hak_render_text(s, &f);
  return hak_sink_finish(s);
}
