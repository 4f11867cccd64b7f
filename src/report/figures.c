#include "report/figures.h"

#include <string.h>

#include "guard/foreign.h"
#include "guard/sample.h"
#include "heap/heap.h"
#include "large/huge.h"
#include "large/extent.h"
#include "os/memory_limits.h"
#include "os/os.h"
#include "pool/budget.h"
#include "pool/meta.h"
#include "pool/span_pool.h"
#include "reclaim/decay.h"
#include "profile/profile.h"
#include "report/sink.h"
#include "tcache/tcache.h"

#define GROUP 64 /* spans looked at under the pool's lock at a time: one word of the bitmaps */

typedef struct seen_slab {
  uint32_t spans;
  uint8_t place, code; /* place: in the group */
} seen_slab;

/* Where the walk of a region is. */
typedef struct walk {
  hak_figures *figures;
  hak_region *r;
  size_t first, index; /* of the group, and the next one */
  size_t left;  /* spans that belong to the slab or extent before `index` … */
  uint8_t entry; /* … and their entry in the span map */
  uint8_t entries[GROUP];
  seen_slab slabs[GROUP];
  unsigned slab_count;
} walk;

static void count_extent(hak_figures *f, const hak_span *s, uint64_t bytes) {
  hakmem_stats *t = &f->stats;
  if (f->see_large != NULL) f->see_large(f->context, bytes - (s->start % HAK_SPAN_SIZE != 0 ? HAK_EXTENT_COLOURED : 0));
  t->extents += bytes;
  t->extent_count++;
  if (t->requests_noted) t->extent_requested += hak_min_size(hak_load_relaxed(&s->asked), bytes);
}

/* A held span that is the first of something, under the pool's lock. Returns its entry in the span map, and sets the
 * spans that follow. None is counted beyond `end`, the limit that was seen. */
static uint8_t see_head(walk *w, unsigned code, size_t end) {
  hak_assert_held(&hak_span_pool.lock);
  HAK_ASSERT(w->left == 0 && w->index < end && (code < HAK_CODES || code == HAK_CODE_IN_HEAP));
  hakmem_stats *t = &w->figures->stats;
  const hak_span *s = hak_region_span_at(w->r, w->index);
  uint32_t spans = 1;
  if (code == HAK_CODE_NONE) {
    t->claimed += HAK_SPAN_SIZE;
    return HAK_MAP_CLAIMED;
  }
  if (s->head == s) spans = (uint32_t)hak_min_size(hak_max_size(s->span_count, 1), end - w->index);
  uint64_t bytes = (uint64_t)spans << HAK_SPAN_SHIFT;
  w->left = spans - 1;
  w->entry = (uint8_t)(code - 1);
  if (hak_code_is_class(code)) {
    w->slabs[w->slab_count++] = (seen_slab){spans, (uint8_t)(w->index - w->first), (uint8_t)code};
    HAK_ASSERT(w->slab_count <= GROUP);
    return w->entry;
  }
  if (code == HAK_CODE_IN_HEAP) {
    w->entry = HAK_MAP_HEAP;
    t->span_heaps += bytes;
  } else if (code == HAK_CODE_EXTENT_FREED) {
    w->entry = HAK_MAP_EXTENT_CACHED;
    w->figures->free_blocks++;
    t->extents_cached += bytes;
  } else {
    /* A body whose head is of an earlier moment is a part of an extent that has grown since. */
    if (code == HAK_CODE_EXTENT) count_extent(w->figures, s, bytes);
    else t->extents += bytes;
    w->entry = HAK_MAP_EXTENT_BODY;
  }
  return code == HAK_CODE_EXTENT ? HAK_MAP_EXTENT : w->entry;
}

/* Up to the end of the bitmaps' word that index is in. Returns the number of spans. */
static size_t walk_group(walk *w, size_t end) {
  hakmem_stats *t = &w->figures->stats;
  size_t first = w->first = w->index, stop = hak_min_size(end, hak_align_up(first + 1, GROUP));
  HAK_ASSERT(first < stop && stop - first <= GROUP);
  w->slab_count = 0;
  hak_lock_take(&hak_span_pool.lock);
  const hak_chunk *chunk = &w->r->chunks[first / HAK_CHUNK_SPANS];
  size_t word = first % HAK_CHUNK_SPANS / 64;
  uint64_t is_free = chunk->free[word], is_dirty = chunk->dirty[word] | chunk->muzzy[word]; /* may hold memory */
  uint64_t is_absent = chunk->absent[word];
  for (; w->index < stop; w->index++) {
    uint64_t bit = (uint64_t)1 << (w->index % 64);
    uint8_t *entry = &w->entries[w->index - first];
    if (w->left > 0) {
      w->left--;
      *entry = w->entry;
    } else if (hak_region_is_guard(w->index)) {
      t->guards += HAK_SPAN_SIZE;
      *entry = HAK_MAP_GUARD;
    } else if ((is_absent & bit) != 0) {
      t->spans -= HAK_SPAN_SIZE; /* of all below the limit, added last */
      *entry = HAK_MAP_CLEAN;
    } else if ((is_free & bit) == 0) {
      *entry = see_head(w, hak_region_slab_code(w->r, w->index), end);
    } else if ((is_dirty & bit) != 0) {
      t->free_dirty += HAK_SPAN_SIZE;
      *entry = HAK_MAP_DIRTY;
    } else {
      t->free_clean += HAK_SPAN_SIZE;
      *entry = HAK_MAP_CLEAN;
    }
  }
  hak_lock_drop(&hak_span_pool.lock);
  return stop - first;
}

/* The bin's lock is held. Whatever was done to the slab since its code was read has been done: with the tag it is still
 * that bin's. */
static bool count_slab(walk *w, const seen_slab *seen, uint32_t arena) {
  hakmem_stats *t = &w->figures->stats;
  const hak_span *s = hak_region_span_at(w->r, w->first + seen->place);
  if (hak_load_relaxed(&s->tag) != HAK_TAG(arena + 1, seen->code) || s->head != s) return false;
  uint64_t size = hak_class_size(s->class_code), bytes = (uint64_t)seen->spans << HAK_SPAN_SHIFT;
  if (s->blocks * size > bytes) return false; /* fewer spans were counted, at the limit */
  uint64_t out = (uint64_t)(s->bumped - hak_slab_free_count(s)) * size, in = hak_slab_free_count(s) * size;
  uint64_t never = (uint64_t)(s->blocks - s->bumped) * size, rest = bytes - s->blocks * size;
  t->slabs += bytes;
  t->slab_handed_out += out;
  t->slab_free += in;
  t->slab_never_allocated += never;
  t->slab_rest += rest;
  w->figures->free_blocks += s->blocks - s->bumped + hak_slab_free_count(s);
  if (w->figures->rows == NULL) return true;
  hak_class_row *row = &w->figures->rows[s->class_code];
  row->slabs++;
  row->partial += in + never != 0;
  row->slab_bytes += bytes;
  row->handed_out += out;
  row->free += in;
  row->never_allocated += never;
  row->rest += rest;
  return true;
}

static void forget_slab(walk *w, const seen_slab *seen) {
  HAK_ASSERT(seen->place < GROUP && seen->spans > 0);
  w->figures->stats.free_dirty += (uint64_t)seen->spans << HAK_SPAN_SHIFT;
  size_t end = seen->place + seen->spans;
  for (size_t i = seen->place; i < hak_min_size(end, GROUP); i++) w->entries[i] = HAK_MAP_DIRTY;
  bool goes_on = w->left > 0 && w->first + end == w->index + w->left;
  if (goes_on) w->entry = HAK_MAP_DIRTY; /* in the next group */
}

static void count_slabs(walk *w) {
  for (unsigned i = 0; i < w->slab_count; i++) {
    const seen_slab *seen = &w->slabs[i];
    uint32_t arena = HAK_TAG_OWNER(hak_load_relaxed(&hak_region_span_at(w->r, w->first + seen->place)->tag)) - 1;
    hak_lock *lock = arena < hak_arena_count() ? &hak_arena_at(arena)->bins[seen->code - 1].lock : NULL;
    if (lock != NULL) hak_lock_take(lock);
    bool counted = lock != NULL && count_slab(w, seen, arena);
    if (lock != NULL) hak_lock_drop(lock);
    if (!counted) forget_slab(w, seen);
  }
}

static HAK_NOINLINE void count_region(hak_figures *f, unsigned number) {
  hak_region *r = hak_region_at(number);
  size_t end = hak_load_acquire(&r->limit) >> HAK_SPAN_SHIFT;
  walk w = {.figures = f, .r = r, .index = r->first_span};
  bool map = f->map != NULL && number < HAK_FIGURES_REGIONS;
  while (w.index < end) {
    size_t n = walk_group(&w, end);
    count_slabs(&w);
    if (!map) continue;
    size_t fits = hak_min_size(n, f->map_capacity - f->map_entries);
    HAK_ASSERT(f->map_entries + fits <= f->map_capacity);
    memcpy(f->map + f->map_entries, w.entries, fits);
    f->map_entries += fits;
    f->mapped_spans[number] += fits;
  }
  if (number < HAK_FIGURES_REGIONS) f->walked_spans[number] = end - r->first_span;
  f->stats.spans += (uint64_t)(end - r->first_span) << HAK_SPAN_SHIFT;
  /* No fewer than are accessible: stored before the limit */
  f->stats.own_tables += hak_region_table_pages(r, hak_load_relaxed(&r->table_spans));
  f->stats.reserved += r->reserved_bytes;
}

/* Blocks of the class in depots. */
static uint64_t in_depots(unsigned c) {
  uint64_t blocks = 0;
  for (uint32_t i = hak_arena_count(); i-- > 0;) {
    hak_arena_bin *b = &hak_arena_at(i)->bins[c];
    hak_lock_take(&b->lock);
    blocks += (uint64_t)b->full_count * hak_magazine_usable[c];
    hak_lock_drop(&b->lock);
  }
  return blocks;
}

/* What threads cache is what they published last, the calling one just now; it is bounded by what slabs have handed
 * out. Without rows only depots are told from what the program has. */
static void count_caches(hak_figures *f) {
  hakmem_stats *t = &f->stats;
  hak_tcache_publish();
  hak_tcache_sums sums;
  hak_tcache_sum(&sums);
  t->arenas = hak_arena_count();
  t->caches_used = sums.used;
  t->caches_unused = sums.caches - sums.used;
  t->slow_paths = sums.slow_paths;
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    uint64_t size = hak_class_size(c), depots = in_depots(c) * size;
    if (f->rows != NULL) {
      hak_class_row *row = &f->rows[c];
      hak_class_sums sum = hak_tcache_sum_class(c);
      row->requests = sum.requests.count;
      row->requested = sum.requests.bytes;
      row->depots = depots = hak_min_size(depots, row->handed_out);
      row->cached = hak_min_size(sum.published * size, row->handed_out - depots);
      t->slab_cached += row->cached;
    }
    f->free_blocks += depots / size;
    t->slab_depots += depots;
  }
  t->slab_depots = hak_min_size(t->slab_depots, t->slab_handed_out);
  t->slab_live = t->slab_handed_out - t->slab_cached - t->slab_depots;
  HAK_ASSERT(t->slab_cached + t->slab_depots <= t->slab_handed_out);
}

bool hak_figures_estimate(const hak_class_row *row, unsigned class_code, uint64_t *asked_for) {
  if (row->requests == 0) return false;
  uint64_t live = hak_row_live(row);
  HAK_ASSERT(class_code < HAK_CLASS_COUNT && live <= row->handed_out);
  double part = (double)row->requested / ((double)row->requests * (double)hak_class_size(class_code));
  *asked_for = hak_min_size((uint64_t)((double)live * part), live);
  return true;
}

static void estimate(hak_figures *f) {
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    hak_class_row *row = &f->rows[c];
    uint64_t asked_for;
    if (!hak_figures_estimate(row, c, &asked_for)) continue;
    f->stats.estimated_requested += asked_for;
    f->stats.estimated_rounding += hak_row_live(row) - asked_for;
  }
}

static void see_mappings(const hak_figures *f) {
  size_t bytes;
  uintptr_t address = 0;
  for (bool kept; hak_huge_next(&address, &bytes, &kept);) {
    if (!kept && hak_huge_ask((const void *)address).owner == 0) f->see_large(f->context, bytes);
  }
}

static void read_mappings(hakmem_stats *t) {
  hak_huge_figures huge;
  hak_sample_figures sampled;
  hak_huge_read(&huge);
  hak_sample_read(&sampled);
  t->huge_live = huge.live_bytes - huge.owned_bytes;
  t->huge_count = huge.live_count - huge.owned_count;
  t->huge_heaps = huge.owned_bytes;
  t->huge_kept = huge.kept_bytes;
  t->huge_kept_count = huge.kept_count;
  t->sampled_live = sampled.live_bytes;
  t->sampled_count = sampled.live_count;
  t->sampled_accessible = sampled.accessible_bytes;
  t->own_metadata = hak_meta_bytes();
  t->own_other = sampled.table_bytes + hak_profile_own_bytes();
}

static void read_budget(hakmem_stats *t) {
  hak_budget_figures budget;
  hak_budget_state(&budget);
  t->budget_used = budget.used;
  t->used_peak = budget.used_peak;
  t->budget_target = budget.target;
  t->budget_limit = budget.limit;
  t->budget_resident = budget.resident;
  t->budget_level = budget.level;
  t->budget_refused = budget.refused;
}

static void read_counters(hakmem_stats *t) {
#define COUNT(counter) hak_load_relaxed(&hak_os_stats.counter)
  t->span_allocs = COUNT(alloc);
  t->span_frees = COUNT(free);
  t->huge_allocs = COUNT(huge_alloc);
  t->huge_failures = COUNT(huge_fail);
  t->madvise = COUNT(madvise);
  t->madvise_failures = COUNT(madvise_enomem) + COUNT(madvise_other);
  t->mmap = COUNT(mmap_total);
  t->munmap = COUNT(munmap);
  t->mprotect = COUNT(mprotect);
  t->mremap = COUNT(mremap);
  t->slab_purged = hak_load_relaxed(&hak_span_pool.purged_slab_pages) * hak_os_page_size();
  t->purges = hak_load_relaxed(&hak_purge_stats.purges);
  t->purged = hak_load_relaxed(&hak_purge_stats.bytes);
  t->foreign_frees = hak_foreign_calls(HAK_FOREIGN_FREE);
  t->foreign_reallocs = hak_foreign_calls(HAK_FOREIGN_REALLOC);
  t->foreign_usable_sizes = hak_foreign_calls(HAK_FOREIGN_USABLE_SIZE);
}

hak_noted_figures hak_figures_noted(const hakmem_stats *t) {
  if (!t->requests_noted) return (hak_noted_figures){HAK_UNKNOWN, HAK_UNKNOWN};
  return (hak_noted_figures){.requested = t->extent_requested, .tail = t->extents - t->extent_requested};
}

/* Their live bytes are of a moment of their own. */
static void count_heaps(hakmem_stats *t) {
  hak_heap_sums sums = hak_heap_sum();
  t->heaps = sums.count;
  t->heaps_held = t->span_heaps + t->huge_heaps;
  t->heaps_live = hak_min_size(sums.live, t->heaps_held);
  t->heaps_free = t->heaps_held - t->heaps_live;
  t->heaps_blocks = sums.blocks;
  t->heaps_refused = sums.refused;
}

void hak_figures_take(hak_figures *f) {
  *f = (hak_figures){.rows = f->rows,
                     .map = f->map,
                     .map_capacity = f->map_capacity,
                     .process = f->process,
                     .see_large = f->see_large,
                     .context = f->context};
  if (f->rows != NULL) memset(f->rows, 0, HAK_CLASS_COUNT * sizeof *f->rows);
  hakmem_stats *t = &f->stats;
  t->version = HAKMEM_STATS_VERSION;
  t->size = sizeof *t;
  t->time_ms = hak_os_now_ms();
  t->requests_noted = hak_load_relaxed(&hak_requests_noted);
  if (hak_region_count() > 0) {
    t->regions = hak_region_count();
    for (unsigned i = 0; i < t->regions; i++) count_region(f, i);
    count_caches(f);
    if (f->rows != NULL && t->requests_noted) estimate(f);
  }
  if (f->see_large != NULL) see_mappings(f);
  read_mappings(t);
  read_budget(t);
  read_counters(t);
  count_heaps(t);
  hak_os_resident_peak resident = f->process ? hak_os_read_resident_peak() : (hak_os_resident_peak){0};
  t->resident = resident.now;
  t->resident_peak = resident.peak;
  t->own = t->own_metadata + t->own_tables + t->own_other;
  t->live = t->slab_live + t->extents + t->huge_live + t->sampled_live + t->heaps_live;
  t->accessible = t->spans + t->huge_live + t->huge_heaps + t->huge_kept + t->sampled_accessible + t->own;
}

hakmem_class_stats hak_figures_class(const hak_figures *f, unsigned c) {
  const hak_class_row *row = &f->rows[c];
  hak_cache_counts counts = hak_tcache_sum_class(c).counts;
  return (hakmem_class_stats){
      .block_size = (uint32_t)hak_class_size(c), .aligned = c >= HAK_PLAIN_CLASSES,
      .slabs = row->slabs, .slab_bytes = row->slab_bytes,
      .handed_out = row->handed_out, .live = hak_row_live(row), .cached = row->cached, .depots = row->depots,
      .free = row->free, .never_allocated = row->never_allocated, .rest = row->rest,
      .requests = row->requests, .requested = row->requested,
      .hits = counts.hits, .misses = counts.misses, .refills = counts.refills, .flushes = counts.flushes,
  };
}
