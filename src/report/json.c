#include "guard/foreign.h"
#include "guard/sample.h"
#include "hakmem/hakmem.h"
#include "hakmem/stats.h"
#include "large/huge.h"
#include "os/os.h"
#include "pool/budget.h"
#include "pool/meta.h"
#include "report/figures.def"
#include "profile/profile.h"
#include "report/render.h"

#define HUGE_LISTED 4096
#define OWN_LISTED 1024

static void option(hak_sink *s, const char *name, const char *option_name) {
  hak_option_row row;
  char buffer[HAK_VALUE_TEXT];
  if (hak_config_find(option_name, __builtin_strlen(option_name), &row))
    hak_sink_string(s, name, hak_config_value_text(&row, *row.value, buffer));
}

static void settings(hak_sink *s, const hakmem_stats *t) {
  hak_sink_open(s, "settings", '{');
  option(s, "profile", "HAKMEM_PROFILE");
  option(s, "thp", "HAKMEM_THP");
  hak_sink_bool(s, "hardened", HAK_HARDENED != 0);
  hak_sink_bool(s, "front_metrics", hak_config.front_metrics != 0);
  hak_sink_bool(s, "requests", t->requests_noted);
  hak_sink_close(s, '}');
}

static void write_row(hak_sink *s, const char *object, const char *row_object, const char *name, uint64_t value) {
  if (__builtin_strcmp(object, row_object) == 0) hak_sink_member(s, name, value);
}

/* The objects that are made of rows. */
static void totals(hak_sink *s, const hakmem_stats *t) {
  static const char objects[][16] = {"total", "spans", "slabs", "extents", "huge", "sampled", "heaps_total",
                                     "own", "process", "caches", "regions_total", "counters", "purge", "guard"};
#define COUNTER(name, meaning) write_row(s, objects[i], "counters", #name, hak_load_relaxed(&hak_os_stats.name));
#define FIGURE(object, member, field, ...) write_row(s, objects[i], #object, #member, t->field);
#define NOTED(object, member, ...) write_row(s, objects[i], #object, #member, noted.member);
  hak_noted_figures noted = hak_figures_noted(t);
  for (unsigned i = 0; i < sizeof objects / sizeof objects[0]; i++) {
    hak_sink_open(s, objects[i], '{');
    HAK_OS_COUNTERS(COUNTER)
    HAK_FIGURES(FIGURE, FIGURE, NOTED)
    hak_sink_close(s, '}');
  }
}

#define ROW(field) HAK_FIELD(&row, field)
#define COUNTED(field) {#field, counted ? row.field : HAK_UNKNOWN}
static void class_row(hak_sink *s, const hak_figures *f, unsigned c) {
  hakmem_class_stats row = hak_figures_class(f, c);
  uint64_t asked_for = 0;
  bool estimated = hak_figures_estimate(&f->rows[c], c, &asked_for), counted = hak_config.front_metrics != 0;
  HAK_ASSERT(asked_for <= row.live);
  hak_sink_open(s, NULL, '{');
  hak_sink_members(s, HAK_MEMBERS({"class", c}, {"size", row.block_size}));
  hak_sink_bool(s, "aligned", row.aligned);
  hak_sink_members(
      s, HAK_MEMBERS({"group", hak_class_group(row.block_size)}, ROW(slabs), ROW(slab_bytes), ROW(handed_out),
                     ROW(live), ROW(cached), ROW(depots), ROW(free), ROW(never_allocated), ROW(rest), ROW(requests),
                     ROW(requested), {"estimated_requested", estimated ? asked_for : HAK_UNKNOWN},
                     {"estimated_rounding", estimated ? row.live - asked_for : HAK_UNKNOWN}, COUNTED(hits),
                     COUNTED(misses), COUNTED(refills), COUNTED(flushes)));
  hak_sink_close(s, '}');
}

static void classes(hak_sink *s, const hak_figures *f) {
  const hakmem_stats *t = &f->stats;
  hak_sink_open(s, "classes", '[');
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) class_row(s, f, c);
  hak_sink_close(s, ']');
  hak_sink_open(s, "estimate", '{');
  hak_sink_string(s, "kind", "estimated");
  hak_sink_members(s, HAK_MEMBERS({"requested", t->estimated_requested}, {"rounding", t->estimated_rounding},
                                  {"unknown", t->slab_live - t->estimated_requested - t->estimated_rounding}));
  hak_sink_close(s, '}');
}

static void regions(hak_sink *s, const hak_figures *f, uint64_t map_offset) {
  hak_sink_open(s, "regions", '[');
  for (unsigned i = 0; i < f->stats.regions; i++) {
    const hak_region *r = hak_region_at(i);
    bool mapped = i < HAK_FIGURES_REGIONS;
    /* As of the snapshot, where there is a map; it only grows. */
    size_t limit = mapped ? (r->first_span + f->walked_spans[i]) << HAK_SPAN_SHIFT : hak_load_acquire(&r->limit);
    hak_sink_object(s, NULL, HAK_MEMBERS(HAK_FIELD(r, base), {"limit", limit}, {"reserved", r->reserved_bytes},
                                         HAK_FIELD(r, first_span), {"spans", mapped ? f->mapped_spans[i] : 0},
                                         {"map_offset", map_offset}));
    if (mapped) map_offset += f->mapped_spans[i];
  }
  hak_sink_close(s, ']');
}

static void huge_blocks(hak_sink *s) {
  size_t listed = 0, left_out = 0, bytes;
  uintptr_t address = 0;
  bool kept;
  hak_sink_open(s, "huge_blocks", '[');
  for (; hak_huge_next(&address, &bytes, &kept); listed++) {
    if (listed >= HUGE_LISTED) {
      left_out++;
      continue;
    }
    hak_sink_open(s, NULL, '{');
    hak_sink_members(s, HAK_MEMBERS({"address", address}, {"bytes", bytes}));
    hak_sink_bool(s, "kept", kept);
    hak_sink_close(s, '}');
  }
  hak_sink_close(s, ']');
  hak_sink_member(s, "huge_blocks_left_out", left_out);
}

static void own(hak_sink *s, const char *kind, uintptr_t address, size_t bytes) {
  if (bytes == 0) return;
  hak_sink_open(s, NULL, '{');
  hak_sink_string(s, "kind", kind);
  hak_sink_members(s, HAK_MEMBERS({"address", address}, {"bytes", bytes}));
  hak_sink_close(s, '}');
}

static void own_memory(hak_sink *s) {
  hak_sample_figures sampled;
  hak_sample_read(&sampled);
  uintptr_t address;
  size_t bytes;
  hak_sink_open(s, "own_memory", '[');
  for (size_t i = 0; i < OWN_LISTED && hak_meta_mapping(i, &address, &bytes); i++) own(s, "metadata", address, bytes);
  own(s, "sampled slots' table", (uintptr_t)sampled.table, sampled.table_bytes);
  for (size_t i = 0; hak_profile_mapping(i, &address, &bytes); i++) own(s, "profile", address, bytes);
  hak_sink_close(s, ']');
  if (hak_sample_on())
    hak_sink_object(
        s, "sampled_slots",
        HAK_MEMBERS({"address", hak_load_relaxed(&hak_sample_base)}, {"bytes", hak_load_relaxed(&hak_sample_bytes)}));
  else
    hak_sink_member(s, "sampled_slots", HAK_UNKNOWN);
}

static void budget(hak_sink *s) {
  hak_budget_figures b;
  hak_budget_state(&b);
  hak_sink_open(s, "budget", '{');
  hak_sink_members(s, HAK_MEMBERS(HAK_FIELD(&b, target), HAK_FIELD(&b, limit), HAK_FIELD(&b, used),
                                  HAK_FIELD(&b, resident), HAK_FIELD(&b, level), HAK_FIELD(&b, pressure)));
  hak_sink_open(s, "entered", '[');
  for (unsigned i = 0; i < HAK_BUDGET_LEVELS; i++) hak_sink_member(s, NULL, b.entered[i]);
  hak_sink_close(s, ']');
  hak_sink_members(s, HAK_MEMBERS(HAK_FIELD(&b, refused), HAK_FIELD(&b, callbacks)));
  hak_sink_close(s, '}');
}

void hak_render_json(hak_sink *s, const hak_figures *f, uint64_t map_offset) {
  hak_sink_open(s, NULL, '{');
  hak_sink_string(s, "hakmem", HAKMEM_VERSION_STRING);
  hak_sink_members(s, HAK_MEMBERS({"stats_version", HAK_JSON_VERSION}, {"pid", (uint64_t)hak_os_pid()},
                                  {"monotonic_ms", f->stats.time_ms}));
  settings(s, &f->stats);
  totals(s, &f->stats);
  classes(s, f);
  budget(s);
  hak_heaps_json(s, map_offset != 0);
  if (map_offset != 0) {
    regions(s, f, map_offset);
    huge_blocks(s);
    own_memory(s);
  }
  hak_sink_close(s, '}');
  hak_sink_text(s, "\n");
  s->comma = false;
}
