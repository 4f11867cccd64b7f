#include "config/config.h"
#include "guard/foreign.h"
#include "guard/sample.h"
#include "hakmem/hakmem.h"
#include "hakmem/stats.h"
#include "large/huge.h"
#include "os/os.h"
#include "pool/budget.h"
#include "pool/meta.h"
#include "report/render.h"

#define HUGE_LISTED 4096
#define OWN_LISTED 1024

typedef struct word {
  const char *option;
  const char *text;
} word;

static bool find_word(const hak_option_row *row, void *context) {
  word *w = context;
  if (__builtin_strcmp(row->name, w->option) != 0) return true;
  w->text = hak_config_choice_name(row, *row->value);
  return false;
}

static void option(hak_sink *s, const char *name, const char *option_name) {
  word w = {option_name, ""};
  hak_config_visit(find_word, &w);
  hak_sink_string(s, name, w.text);
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

typedef struct member {
  const char *name; /* NULL: the last one */
  uint64_t value;
} member;

static void write_members(hak_sink *s, const member *m) {
  for (; m->name != NULL; m++) hak_sink_member(s, m->name, m->value);
}

static void write_object(hak_sink *s, const char *name, const member *m) {
  hak_sink_open(s, name, '{');
  write_members(s, m);
  hak_sink_close(s, '}');
}

#define MEMBERS(...) (const member[]){__VA_ARGS__, {NULL, 0}}
/* A member named like the field of a structure. */
#define FIELD(object, field) {#field, (object)->field}

static void known_or_null(hak_sink *s, const char *name, bool known, uint64_t value) {
  if (known)
    hak_sink_member(s, name, value);
  else
    hak_sink_null(s, name);
}

static void spans(hak_sink *s, const hakmem_stats *t) {
  write_object(s, "total", MEMBERS(FIELD(t, accessible), FIELD(t, live)));
  write_object(s, "spans", MEMBERS({"accessible", t->spans}, FIELD(t, slabs), FIELD(t, extents), FIELD(t, extents_cached),
                                   FIELD(t, free_dirty), FIELD(t, free_clean), FIELD(t, claimed), FIELD(t, guards)));
  write_object(s, "slabs", MEMBERS({"bytes", t->slabs}, {"handed_out", t->slab_handed_out}, {"live", t->slab_live},
                                   {"cached", t->slab_cached}, {"depots", t->slab_depots}, {"free", t->slab_free},
                                   {"never_allocated", t->slab_never_allocated}, {"rest", t->slab_rest}));
  hak_sink_open(s, "extents", '{');
  hak_sink_member(s, "count", t->extent_count);
  known_or_null(s, "requested", t->requests_noted, t->extent_requested);
  known_or_null(s, "tail", t->requests_noted, t->extents - t->extent_requested);
  hak_sink_close(s, '}');
}

static void others(hak_sink *s, const hakmem_stats *t) {
  write_object(s, "huge", MEMBERS({"live", t->huge_live}, {"count", t->huge_count}, {"kept", t->huge_kept},
                                  {"kept_count", t->huge_kept_count}));
  write_object(s, "sampled", MEMBERS({"live", t->sampled_live}, {"count", t->sampled_count},
                                     {"accessible", t->sampled_accessible}));
  write_object(s, "own", MEMBERS({"metadata", t->own_metadata}, {"tables", t->own_tables}, {"other", t->own_other},
                                 {"total", t->own}));
  write_object(s, "caches", MEMBERS(FIELD(t, arenas), {"used", t->caches_used}, {"unused", t->caches_unused}));
  write_object(s, "regions_total", MEMBERS({"count", t->regions}, FIELD(t, reserved)));
}

static void counters(hak_sink *s, const hakmem_stats *t) {
#define COUNTER(name, meaning) {#name, hak_load_relaxed(&hak_os_stats.name)},
  write_object(s, "counters", MEMBERS(HAK_OS_COUNTERS(COUNTER) FIELD(t, slow_paths)));
#undef COUNTER
  write_object(s, "purge", MEMBERS({"count", t->purges}, {"bytes", t->purged}));
  write_object(s, "guard", MEMBERS({"frees", t->foreign_frees}, {"reallocs", t->foreign_reallocs},
                                   {"usable_sizes", t->foreign_usable_sizes}));
}

static void class_row(hak_sink *s, const hak_figures *f, unsigned c) {
  hakmem_class_stats row = hak_figures_class(f, c);
  uint64_t asked_for = 0;
  bool estimated = hak_figures_estimate(&f->rows[c], c, &asked_for), counted = hak_config.front_metrics != 0;
  hak_sink_open(s, NULL, '{');
  write_members(s, MEMBERS({"class", c}, {"size", row.block_size}));
  hak_sink_bool(s, "aligned", row.aligned);
  write_members(s, MEMBERS({"group", hak_class_group(row.block_size)}, FIELD(&row, slabs), FIELD(&row, slab_bytes),
                           FIELD(&row, handed_out), FIELD(&row, live), FIELD(&row, cached), FIELD(&row, depots),
                           FIELD(&row, free), FIELD(&row, never_allocated), FIELD(&row, rest), FIELD(&row, requests),
                           FIELD(&row, requested)));
  known_or_null(s, "estimated_requested", estimated, asked_for);
  known_or_null(s, "estimated_rounding", estimated, row.live - asked_for);
  known_or_null(s, "hits", counted, row.hits);
  known_or_null(s, "misses", counted, row.misses);
  known_or_null(s, "refills", counted, row.refills);
  known_or_null(s, "flushes", counted, row.flushes);
  hak_sink_close(s, '}');
}

static void classes(hak_sink *s, const hak_figures *f) {
  const hakmem_stats *t = &f->stats;
  hak_sink_open(s, "classes", '[');
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) class_row(s, f, c);
  hak_sink_close(s, ']');
  hak_sink_open(s, "estimate", '{');
  hak_sink_string(s, "kind", "estimated");
  write_members(s, MEMBERS({"requested", t->estimated_requested}, {"rounding", t->estimated_rounding},
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
    write_object(s, NULL, MEMBERS(FIELD(r, base), {"limit", limit}, {"reserved", r->reserved_bytes}, FIELD(r, first_span),
                                  {"spans", mapped ? f->mapped_spans[i] : 0}, {"map_offset", map_offset}));
    if (mapped) map_offset += f->mapped_spans[i];
  }
  hak_sink_close(s, ']');
}

static void huge_blocks(hak_sink *s) {
  size_t place = 0, listed = 0, left_out = 0, bytes;
  uintptr_t address;
  bool kept;
  hak_sink_open(s, "huge_blocks", '[');
  for (; hak_huge_next(&place, &address, &bytes, &kept); listed++) {
    if (listed >= HUGE_LISTED) {
      left_out++;
      continue;
    }
    hak_sink_open(s, NULL, '{');
    write_members(s, MEMBERS({"address", address}, {"bytes", bytes}));
    hak_sink_bool(s, "kept", kept);
    hak_sink_close(s, '}');
  }
  hak_sink_close(s, ']');
  hak_sink_member(s, "huge_blocks_left_out", left_out);
}

static void own(hak_sink *s, const char *kind, uintptr_t address, size_t bytes) {
  hak_sink_open(s, NULL, '{');
  hak_sink_string(s, "kind", kind);
  write_members(s, MEMBERS({"address", address}, {"bytes", bytes}));
  hak_sink_close(s, '}');
}

static void own_memory(hak_sink *s) {
  hak_huge_figures huge;
  hak_sample_figures sampled;
  hak_huge_read(&huge);
  hak_sample_read(&sampled);
  uintptr_t address;
  size_t bytes;
  hak_sink_open(s, "own_memory", '[');
  for (size_t i = 0; i < OWN_LISTED && hak_meta_mapping(i, &address, &bytes); i++) own(s, "metadata", address, bytes);
  if (huge.table_bytes != 0) own(s, "huge table", (uintptr_t)huge.table, huge.table_bytes);
  if (sampled.table_bytes != 0) own(s, "sampled slots' table", (uintptr_t)sampled.table, sampled.table_bytes);
  hak_sink_close(s, ']');
  if (!hak_sample_on()) {
    hak_sink_null(s, "sampled_slots");
    return;
  }
  write_object(s, "sampled_slots", MEMBERS({"address", hak_load_relaxed(&hak_sample_base)},
                                           {"bytes", hak_load_relaxed(&hak_sample_bytes)}));
}

static void budget(hak_sink *s) {
  hak_budget_figures b;
  hak_budget_state(&b);
  hak_sink_open(s, "budget", '{');
  write_members(s, MEMBERS(FIELD(&b, target), FIELD(&b, limit), FIELD(&b, used), FIELD(&b, resident), FIELD(&b, level),
                           FIELD(&b, pressure)));
  hak_sink_open(s, "entered", '[');
  for (unsigned i = 0; i < HAK_BUDGET_LEVELS; i++) hak_sink_member(s, NULL, b.entered[i]);
  hak_sink_close(s, ']');
  write_members(s, MEMBERS(FIELD(&b, refused), FIELD(&b, callbacks)));
  hak_sink_close(s, '}');
}

void hak_render_json(hak_sink *s, const hak_figures *f, uint64_t map_offset) {
  hak_sink_open(s, NULL, '{');
  hak_sink_string(s, "hakmem", HAKMEM_VERSION_STRING);
  write_members(s, MEMBERS({"stats_version", HAKMEM_STATS_VERSION}, {"pid", (uint64_t)hak_os_pid()},
                           {"monotonic_ms", f->stats.time_ms}));
  settings(s, &f->stats);
  spans(s, &f->stats);
  others(s, &f->stats);
  counters(s, &f->stats);
  classes(s, f);
  budget(s);
  if (map_offset != 0) {
    regions(s, f, map_offset);
    huge_blocks(s);
    own_memory(s);
  }
  hak_sink_close(s, '}');
  hak_sink_text(s, "\n");
  s->comma = false;
}
