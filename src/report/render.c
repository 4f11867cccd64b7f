/* The text form, and the snapshot that both forms are made of. */
#include "report/render.h"

#include "hakmem/hakmem.h"
#include "os/os.h"
#include "report/figures.def"

/* An empty label: no line. */
static void line(hak_sink *s, const char *label, uint64_t bytes) {
  unsigned n = 0;
  if (*label == '\0') return;
  hak_sink_text(s, label);
  while (label[n] != '\0') n++;
  hak_sink_column(s, bytes, n < 40 ? 56 - n : 16);
  hak_sink_text(s, "\n");
}

#define WITH_HEAPS (t->heaps_held != 0)
#define WITH_GUARDS HAK_HARD(GUARDS)
#define LINE(object, member, field, label, ...) line(s, label, t->field);
#define OPTIONAL(object, member, field, label, unit, metric, text, condition) if (condition) line(s, label, t->field);
#define NOTED(object, member, label, ...) if (t->requests_noted) line(s, label, noted.member);
static void lines(hak_sink *s, const hakmem_stats *t) {
  hak_noted_figures noted = hak_figures_noted(t);
  HAK_FIGURES(LINE, OPTIONAL, NOTED)
}

static void pairs(hak_sink *s, const char *title, const hak_member *m) {
  hak_sink_text(s, title);
  for (; m->name != NULL; m++) {
    hak_sink_text(s, " ");
    hak_sink_text(s, m->name);
    hak_sink_text(s, "=");
    hak_sink_number(s, m->value);
  }
  hak_sink_text(s, "\n");
}

static void counts(hak_sink *s, const hakmem_stats *t) {
  pairs(s,
        "blocks:", HAK_MEMBERS({"extents", t->extent_count}, {"huge", t->huge_count}, {"sampled", t->sampled_count}));
  pairs(s, "caches:", HAK_MEMBERS(HAK_FIELD(t, arenas), {"used", t->caches_used}, {"unused", t->caches_unused},
                                  HAK_FIELD(t, regions)));
  pairs(s, "since the start:",
        HAK_MEMBERS(HAK_FIELD(t, span_allocs), HAK_FIELD(t, span_frees), HAK_FIELD(t, huge_allocs),
                    HAK_FIELD(t, slow_paths), HAK_FIELD(t, purges), HAK_FIELD(t, purged),
                    {"foreign_pointers", t->foreign_frees + t->foreign_reallocs + t->foreign_usable_sizes}));
  if (t->heaps != 0)
    pairs(s, "heaps:",
          HAK_MEMBERS({"count", t->heaps}, {"held", t->heaps_held}, {"live", t->heaps_live},
                      {"blocks", t->heaps_blocks}, {"refused", t->heaps_refused}));
  if (t->requests_noted)
    pairs(s, "of the program's blocks in slabs, estimated:",
          HAK_MEMBERS({"asked_for", t->estimated_requested}, {"rounding", t->estimated_rounding}));
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

static void render_text(hak_sink *s, const hak_figures *f) {
  hak_sink_text(s, "hakmem " HAKMEM_VERSION_STRING ": figures of process ");
  hak_sink_number(s, (uint64_t)hak_os_pid());
  hak_sink_text(s, ", bytes\n");
  lines(s, &f->stats);
  counts(s, &f->stats);
  hak_sink_text(s,
                " block  slabs        bytes         live     cached     depots        free  never allocated     rest");
  hak_sink_text(s, f->stats.requests_noted ? "   rounding (estimated)\n" : "\n");
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    if (f->rows[c].slabs != 0) class_line(s, c, &f->rows[c]);
  }
  hak_sink_text(s, "* for alignments above 64\n");
  hak_heaps_text(s);
}

int hak_render_snapshot(hak_sink *s, bool json) {
  hak_class_row rows[HAK_CLASS_COUNT];
  hak_figures f = {.rows = rows, .process = true};
  hak_figures_take(&f);
  if (json)
    hak_render_json(s, &f, 0);
  else
    render_text(s, &f);
  return hak_sink_finish(s);
}
