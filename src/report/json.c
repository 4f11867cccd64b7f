#include "config/config.h"
#include "guard/foreign.h"
#include "guard/sample.h"
#include "hakmem/hakmem.h"
#include "hakmem/stats.h"
#include "large/huge.h"
#include "large/run.h"
#include "os/os.h"
#include "pool/budget.h"
#include "pool/cell.h"
#include "reclaim/decay.h"
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

static void settings(hak_sink *s) {
  hak_sink_open(s, "settings", '{');
  option(s, "profile", "HAKMEM_PROFILE");
  option(s, "thp", "HAKMEM_THP");
  hak_sink_bool(s, "hardened", HAK_HARDENED != 0);
  hak_sink_bool(s, "front_metrics", hak_config.front_metrics != 0);
  hak_sink_bool(s, "requests", hak_load_relaxed(&hak_requests_noted));
  hak_sink_close(s, '}');
}

/* A member named like the field of a structure. */
#define FIELD(object, field) hak_sink_member(s, #field, (object)->field)

static void spans(hak_sink *s, const hak_figures *f) {
  hak_sink_open(s, "spans", '{');
  hak_sink_member(s, "accessible", f->spans);
  FIELD(f, slabs);
  FIELD(f, runs);
  FIELD(f, runs_kept);
  FIELD(f, free_dirty);
  FIELD(f, free_clean);
  FIELD(f, claimed);
  FIELD(f, guards);
  hak_sink_close(s, '}');
  hak_sink_open(s, "slabs", '{');
  hak_sink_member(s, "bytes", f->slabs);
  hak_sink_member(s, "handed_out", f->slab_handed_out);
  hak_sink_member(s, "live", f->slab_live);
  hak_sink_member(s, "cached", f->slab_cached);
  hak_sink_member(s, "packets", f->slab_packets);
  hak_sink_member(s, "free", f->slab_free);
  hak_sink_member(s, "uncarved", f->slab_uncarved);
  hak_sink_member(s, "rest", f->slab_rest);
  hak_sink_close(s, '}');
  hak_sink_open(s, "runs", '{');
  hak_sink_member(s, "count", f->run_count);
  if (hak_load_relaxed(&hak_requests_noted)) {
    hak_sink_member(s, "requested", f->run_requested);
    hak_sink_member(s, "tail", f->runs - f->run_requested);
  } else {
    hak_sink_null(s, "requested");
    hak_sink_null(s, "tail");
  }
  hak_sink_close(s, '}');
}

static void others(hak_sink *s, const hak_figures *f) {
  hak_sink_open(s, "huge", '{');
  hak_sink_member(s, "live", f->huge_live);
  hak_sink_member(s, "count", f->huge_count);
  hak_sink_member(s, "kept", f->huge_kept);
  hak_sink_member(s, "kept_count", f->huge_kept_count);
  hak_sink_close(s, '}');
  hak_sink_open(s, "sampled", '{');
  hak_sink_member(s, "live", f->sampled_live);
  hak_sink_member(s, "count", f->sampled_count);
  hak_sink_member(s, "accessible", f->sampled_accessible);
  hak_sink_close(s, '}');
  hak_sink_open(s, "own", '{');
  hak_sink_member(s, "cells", f->own_cells);
  hak_sink_member(s, "tables", f->own_tables);
  hak_sink_member(s, "other", f->own_other);
  hak_sink_member(s, "total", f->own);
  hak_sink_close(s, '}');
  hak_sink_open(s, "heaps", '{');
  hak_sink_member(s, "total", f->heaps);
  hak_sink_member(s, "active", f->heaps_active);
  hak_sink_member(s, "warm", f->heaps_warm);
  hak_sink_member(s, "parked", f->heaps_parked);
  hak_sink_close(s, '}');
  hak_sink_open(s, "regions_total", '{');
  hak_sink_member(s, "count", f->regions);
  hak_sink_member(s, "reserved", f->reserved);
  hak_sink_close(s, '}');
}

hak_estimate hak_render_estimate(const hak_figures *f) {
  hak_estimate e = {0, 0};
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) {
    uint64_t requests, requested, asked_for, live = hak_row_live(&f->rows[c]);
    hak_figures_requests(c, &requests, &requested);
    if (!hak_figures_estimate(c, live, requests, requested, &asked_for)) continue;
    e.requested += asked_for;
    e.rounding += live - asked_for;
  }
  return e;
}

static void counters(hak_sink *s, const hak_figures *f) {
#define COUNTER(field) hak_sink_member(s, #field, hak_load_relaxed(&hak_os_stats.field))
  hak_sink_open(s, "counters", '{');
  COUNTER(alloc);
  COUNTER(free);
  COUNTER(madvise);
  COUNTER(madvise_enomem);
  COUNTER(madvise_other);
  COUNTER(madvise_disabled);
  COUNTER(mmap_total);
  COUNTER(fallback_mmap);
  COUNTER(huge_alloc);
  COUNTER(huge_fail);
  COUNTER(lean_decommit);
  COUNTER(lean_retire);
  COUNTER(munmap);
  COUNTER(mprotect);
  COUNTER(mremap);
  FIELD(f, slow_paths);
  hak_sink_close(s, '}');
#undef COUNTER
  hak_sink_open(s, "purge", '{');
  hak_sink_member(s, "count", hak_load_relaxed(&hak_purge_stats.purges));
  hak_sink_member(s, "bytes", hak_load_relaxed(&hak_purge_stats.bytes));
  hak_sink_close(s, '}');
  hak_sink_open(s, "guard", '{');
  hak_sink_member(s, "frees", hak_foreign_calls(HAK_FOREIGN_FREE));
  hak_sink_member(s, "reallocs", hak_foreign_calls(HAK_FOREIGN_REALLOC));
  hak_sink_member(s, "usable_sizes", hak_foreign_calls(HAK_FOREIGN_USABLE_SIZE));
  hak_sink_close(s, '}');
}

static void front(hak_sink *s, unsigned c) {
  static const char *const names[] = {"hits", "misses", "refills", "flushes"};
  hak_cache_counts sum;
  hak_figures_front(c, &sum);
  const uint64_t values[] = {sum.hits, sum.misses, sum.refills, sum.flushes};
  for (unsigned i = 0; i < 4; i++) {
    if (hak_config.front_metrics)
      hak_sink_member(s, names[i], values[i]);
    else
      hak_sink_null(s, names[i]);
  }
}

static void class_row(hak_sink *s, const hak_class_row *row, unsigned c, hak_estimate *all) {
  uint64_t requests, requested, asked_for, live = hak_row_live(row);
  hak_sink_open(s, NULL, '{');
  hak_sink_member(s, "class", c);
  hak_sink_member(s, "size", hak_class_size(c));
  hak_sink_bool(s, "twin", c >= HAK_CLASSES);
  hak_sink_member(s, "group", hak_class_group(hak_class_size(c)));
  FIELD(row, slabs);
  FIELD(row, slab_bytes);
  FIELD(row, handed_out);
  hak_sink_member(s, "live", live);
  FIELD(row, cached);
  FIELD(row, packets);
  FIELD(row, free);
  FIELD(row, uncarved);
  FIELD(row, rest);
  hak_figures_requests(c, &requests, &requested);
  hak_sink_member(s, "requests", requests);
  hak_sink_member(s, "requested", requested);
  if (hak_figures_estimate(c, live, requests, requested, &asked_for)) {
    hak_sink_member(s, "estimated_requested", asked_for);
    hak_sink_member(s, "estimated_rounding", live - asked_for);
    all->requested += asked_for;
    all->rounding += live - asked_for;
  } else {
    hak_sink_null(s, "estimated_requested");
    hak_sink_null(s, "estimated_rounding");
  }
  front(s, c);
  hak_sink_close(s, '}');
}

/* The sums of what is estimated come from the rows: requests go on being noted while they are written. */
static void classes(hak_sink *s, const hak_figures *f) {
  hak_estimate all = {0, 0};
  hak_sink_open(s, "classes", '[');
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) class_row(s, &f->rows[c], c, &all);
  hak_sink_close(s, ']');
  hak_sink_open(s, "estimate", '{');
  hak_sink_string(s, "kind", "estimated");
  hak_sink_member(s, "requested", all.requested);
  hak_sink_member(s, "rounding", all.rounding);
  hak_sink_member(s, "unknown", f->slab_live - all.requested - all.rounding);
  hak_sink_close(s, '}');
}

static void regions(hak_sink *s, const hak_figures *f, uint64_t map_offset) {
  hak_sink_open(s, "regions", '[');
  for (unsigned i = 0; i < f->regions; i++) {
    const hak_region *r = hak_region_at(i);
    bool mapped = i < HAK_FIGURES_REGIONS;
    /* As of the snapshot, where there is a map; it only grows. */
    size_t limit = mapped ? (r->first_span + f->walked_spans[i]) << HAK_SPAN_SHIFT : hak_load_acquire(&r->limit);
    hak_sink_open(s, NULL, '{');
    hak_sink_member(s, "base", r->base);
    hak_sink_member(s, "limit", limit);
    hak_sink_member(s, "reserved", r->reserved_bytes);
    hak_sink_member(s, "first_span", r->first_span);
    hak_sink_member(s, "spans", mapped ? f->mapped_spans[i] : 0);
    hak_sink_member(s, "map_offset", map_offset);
    hak_sink_close(s, '}');
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
    hak_sink_member(s, "address", address);
    hak_sink_member(s, "bytes", bytes);
    hak_sink_bool(s, "kept", kept);
    hak_sink_close(s, '}');
  }
  hak_sink_close(s, ']');
  hak_sink_member(s, "huge_blocks_left_out", left_out);
}

static void own(hak_sink *s, const char *kind, uintptr_t address, size_t bytes) {
  hak_sink_open(s, NULL, '{');
  hak_sink_string(s, "kind", kind);
  hak_sink_member(s, "address", address);
  hak_sink_member(s, "bytes", bytes);
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
  for (size_t i = 0; i < OWN_LISTED && hak_cell_block(i, &address, &bytes); i++) own(s, "cells", address, bytes);
  if (huge.table_bytes != 0) own(s, "huge table", (uintptr_t)huge.table, huge.table_bytes);
  if (sampled.table_bytes != 0) own(s, "sampled slots' table", (uintptr_t)sampled.table, sampled.table_bytes);
  hak_sink_close(s, ']');
  if (!hak_sample_on()) {
    hak_sink_null(s, "sampled_slots");
    return;
  }
  hak_sink_open(s, "sampled_slots", '{');
  hak_sink_member(s, "address", hak_load_relaxed(&hak_sample_base));
  hak_sink_member(s, "bytes", hak_load_relaxed(&hak_sample_bytes));
  hak_sink_close(s, '}');
}

static void budget(hak_sink *s) {
  hak_budget_figures b;
  hak_budget_state(&b);
  hak_sink_open(s, "budget", '{');
  FIELD(&b, target);
  FIELD(&b, limit);
  FIELD(&b, used);
  FIELD(&b, resident);
  FIELD(&b, level);
  FIELD(&b, pressure);
  hak_sink_open(s, "entered", '[');
  for (unsigned i = 0; i < HAK_BUDGET_LEVELS; i++) hak_sink_member(s, NULL, b.entered[i]);
  hak_sink_close(s, ']');
  FIELD(&b, refused);
  FIELD(&b, callbacks);
  hak_sink_close(s, '}');
}

void hak_render_json(hak_sink *s, const hak_figures *f, uint64_t map_offset) {
  hak_sink_open(s, NULL, '{');
  hak_sink_string(s, "hakmem", HAKMEM_VERSION_STRING);
  hak_sink_member(s, "stats_version", HAKMEM_STATS_VERSION);
  hak_sink_member(s, "pid", (uint64_t)hak_os_pid());
  hak_sink_member(s, "monotonic_ms", f->time_ms);
  settings(s);
  hak_sink_open(s, "total", '{');
  FIELD(f, accessible);
  FIELD(f, live);
  hak_sink_close(s, '}');
  spans(s, f);
  others(s, f);
  counters(s, f);
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
