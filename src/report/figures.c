#include "report/figures.h"

#include <string.h>

#include "guard/sample.h"
#include "large/huge.h"
#include "large/run.h"
#include "os/os.h"
#include "pool/cell.h"
#include "pool/span_pool.h"

#define GROUP 64 /* spans looked at under the pool's lock at a time: one word of the bitmaps */

typedef struct seen_slab {
  size_t index;
  uint32_t code, spans;
} seen_slab;

/* Where the walk of a region is. */
typedef struct walk {
  hak_figures *figures;
  hak_region *r;
  size_t index;
  size_t left;  /* spans that belong to the slab or run before `index` … */
  uint8_t code; /* … and their code */
  uint8_t codes[GROUP];
  seen_slab slabs[GROUP];
  unsigned slab_count;
} walk;

static void count_run(hak_figures *f, const hak_span *s, uint64_t spans) {
  uint64_t bytes = spans << HAK_SPAN_SHIFT;
  f->runs += bytes;
  f->run_count++;
  if (hak_load_relaxed(&hak_requests_noted))
    f->run_requested += hak_min_size(hak_load_relaxed(&s->summary), bytes);
}

/* A held span that is the first of something, under the pool's lock. Returns its code, and sets the spans that follow.
 * None is counted beyond `end`, the limit that was seen. */
static uint8_t see_head(walk *w, unsigned code, size_t end) {
  hak_figures *f = w->figures;
  const hak_span *s = &w->r->spans[w->index];
  uint32_t spans = 1;
  if (code == HAK_CODE_NONE) {
    f->claimed += HAK_SPAN_SIZE;
    return HAK_MAP_CLAIMED;
  }
  if (s->head == s) spans = (uint32_t)hak_min_size(hak_max_size(s->span_count, 1), end - w->index);
  uint64_t bytes = (uint64_t)spans << HAK_SPAN_SHIFT;
  w->left = spans - 1;
  w->code = (uint8_t)(code - 1);
  if (hak_code_is_class(code)) {
    w->slabs[w->slab_count++] = (seen_slab){w->index, code, spans};
    return w->code;
  }
  if (code == HAK_CODE_EXTENT_FREED) {
    w->code = HAK_MAP_RUN_KEPT;
    f->runs_kept += bytes;
  } else {
    /* A body whose head is of an earlier moment is a part of a run that has grown since. */
    if (code == HAK_CODE_EXTENT) count_run(f, s, spans);
    else f->runs += bytes;
    w->code = HAK_MAP_RUN_BODY;
  }
  return code == HAK_CODE_EXTENT ? HAK_MAP_RUN : w->code;
}

/* Up to the end of the bitmaps' word that index is in. Returns the number of spans. */
static size_t walk_group(walk *w, size_t end) {
  hak_figures *f = w->figures;
  size_t first = w->index, stop = hak_min_size(end, hak_align_up(first + 1, GROUP));
  w->slab_count = 0;
  hak_lock_take(&hak_span_pool.lock);
  const hak_chunk *chunk = &w->r->chunks[first / HAK_CHUNK_SPANS];
  size_t word = first % HAK_CHUNK_SPANS / 64;
  uint64_t is_free = chunk->free[word], is_dirty = chunk->dirty[word] | chunk->stale[word]; /* may hold memory */
  for (; w->index < stop; w->index++) {
    uint64_t bit = (uint64_t)1 << (w->index % 64);
    uint8_t *code = &w->codes[w->index - first];
    if (w->left > 0) {
      w->left--;
      *code = w->code;
    } else if (hak_region_is_guard(w->index)) {
      f->guards += HAK_SPAN_SIZE;
      *code = HAK_MAP_GUARD;
    } else if ((is_free & bit) == 0) {
      *code = see_head(w, hak_load_relaxed(&w->r->map[w->index]), end);
    } else if ((is_dirty & bit) != 0) {
      f->free_dirty += HAK_SPAN_SIZE;
      *code = HAK_MAP_DIRTY;
    } else {
      f->free_clean += HAK_SPAN_SIZE;
      *code = HAK_MAP_CLEAN;
    }
  }
  hak_lock_drop(&hak_span_pool.lock);
  return stop - first;
}

/* The bin's lock is held. Whatever was done to the slab since its code was read has been done. */
static bool count_slab(walk *w, const seen_slab *seen) {
  hak_figures *f = w->figures;
  const hak_span *s = &w->r->spans[seen->index];
  if (hak_load_relaxed(&w->r->map[seen->index]) != seen->code || s->head != s || HAK_TAG_CODE(s->tag) != seen->code) return false;
  uint64_t size = hak_class_size(s->class_code), bytes = (uint64_t)seen->spans << HAK_SPAN_SHIFT;
  if (s->blocks * size > bytes) return false; /* fewer spans were counted, at the limit */
  uint64_t out = (uint64_t)(s->carved - s->free_count) * size, in = s->free_count * size;
  uint64_t uncarved = (uint64_t)(s->blocks - s->carved) * size, rest = bytes - s->blocks * size;
  f->slabs += bytes;
  f->slab_handed_out += out;
  f->slab_free += in;
  f->slab_uncarved += uncarved;
  f->slab_rest += rest;
  if (f->rows == NULL) return true;
  hak_class_row *row = &f->rows[s->class_code];
  row->slabs++;
  row->slab_bytes += bytes;
  row->handed_out += out;
  row->free += in;
  row->uncarved += uncarved;
  row->rest += rest;
  return true;
}

static void forget_slab(walk *w, const seen_slab *seen, size_t first) {
  w->figures->free_dirty += (uint64_t)seen->spans << HAK_SPAN_SHIFT;
  size_t from = seen->index - first;
  for (size_t i = from; i < GROUP && i < from + seen->spans; i++) w->codes[i] = HAK_MAP_DIRTY;
  bool goes_on = w->left > 0 && seen->index + seen->spans == w->index + w->left;
  if (goes_on) w->code = HAK_MAP_DIRTY; /* in the next group */
}

static void count_slabs(walk *w, size_t first) {
  for (unsigned i = 0; i < w->slab_count; i++) {
    const seen_slab *seen = &w->slabs[i];
    uint32_t arena = HAK_TAG_OWNER(hak_load_relaxed(&w->r->spans[seen->index].tag)) - 1;
    hak_lock *lock = arena < hak_arena_count() ? &hak_arena_at(arena)->bins[seen->code - 1].lock : NULL;
    if (lock != NULL) hak_lock_take(lock);
    bool counted = lock != NULL && count_slab(w, seen);
    if (lock != NULL) hak_lock_drop(lock);
    if (!counted) forget_slab(w, seen, first);
  }
}

static size_t array_bytes(const void *array, size_t element_bytes, size_t from, size_t to) {
  size_t page = hak_os_page_size();
  return hak_align_up((uintptr_t)array + to * element_bytes, page) -
         hak_align_down((uintptr_t)array + from * element_bytes, page);
}

/* As hak_region_grow makes them accessible. */
static size_t table_bytes(const hak_region *r, size_t end) {
  size_t first = r->first_span, chunks = (end + HAK_CHUNK_SPANS - 1) / HAK_CHUNK_SPANS;
  return array_bytes(r->map, sizeof *r->map, 0, end) +
         array_bytes(r->chunks, sizeof *r->chunks, first / HAK_CHUNK_SPANS, chunks) +
         array_bytes(r->spans, sizeof *r->spans, first, end) +
         array_bytes(r->bitmaps, HAK_BITMAP_WORDS * sizeof *r->bitmaps, first, end) +
         (HAK_HARD(CHECKED_FREE) ? array_bytes(r->held, HAK_SPAN_SIZE / HAK_GRANULE, first, end) : 0);
}

static HAK_NOINLINE void count_region(hak_figures *f, unsigned number) {
  hak_region *r = hak_region_at(number);
  size_t end = hak_load_acquire(&r->limit) >> HAK_SPAN_SHIFT;
  walk w = {.figures = f, .r = r, .index = r->first_span};
  bool map = f->map != NULL && number < HAK_FIGURES_REGIONS;
  while (w.index < end) {
    size_t first = w.index, n = walk_group(&w, end);
    count_slabs(&w, first);
    if (!map) continue;
    size_t fits = hak_min_size(n, f->map_capacity - f->map_entries);
    memcpy(f->map + f->map_entries, w.codes, fits);
    f->map_entries += fits;
    f->mapped_spans[number] += fits;
  }
  if (number < HAK_FIGURES_REGIONS) f->walked_spans[number] = end - r->first_span;
  f->spans += (uint64_t)(end - r->first_span) << HAK_SPAN_SHIFT;
  f->own_tables += table_bytes(r, end);
  f->reserved += r->reserved_bytes;
}

/* Blocks of the class in depots. */
static uint64_t in_depots(unsigned c) {
  uint64_t blocks = 0;
  for (uint32_t i = hak_arena_count(); i-- > 0;) {
    hak_arena_bin *b = &hak_arena_at(i)->bins[c];
    hak_lock_take(&b->lock);
    blocks += (uint64_t)b->full_count * hak_magazine_usable[c] + b->part_count;
    hak_lock_drop(&b->lock);
  }
  return blocks;
}

/* What threads cache is what they published last, the calling one just now; it is bounded by what slabs have handed out. Without
 * rows only depots are told from what the program has. */
static void count_caches(hak_figures *f) {
  hak_tcache_publish();
  hak_tcache_sums sums;
  hak_tcache_sum(&sums);
  f->heaps = hak_arena_count();
  f->heaps_active = sums.used;
  f->heaps_parked = sums.caches - sums.used;
  f->slow_paths = sums.slow_paths;
  for (unsigned c = 0; c < HAK_FRONT_CLASSES && f->rows == NULL; c++) f->slab_packets += in_depots(c) * hak_class_size(c);
  f->slab_packets = hak_min_size(f->slab_packets, f->slab_handed_out);
  for (unsigned c = 0; c < HAK_FRONT_CLASSES && f->rows != NULL; c++) {
    hak_class_row *row = &f->rows[c];
    uint64_t size = hak_class_size(c);
    row->packets = hak_min_size(in_depots(c) * size, row->handed_out);
    row->cached = hak_min_size(hak_tcache_published(c) * size, row->handed_out - row->packets);
    f->slab_cached += row->cached;
    f->slab_packets += row->packets;
  }
  f->slab_live = f->slab_handed_out - f->slab_cached - f->slab_packets;
}

static void count_others(hak_figures *f) {
  hak_huge_figures huge;
  hak_huge_read(&huge);
  f->huge_live = huge.live_bytes;
  f->huge_count = huge.live_count;
  f->huge_kept = huge.kept_bytes;
  f->huge_kept_count = huge.kept_count;
  hak_sample_figures sampled;
  hak_sample_read(&sampled);
  f->sampled_live = sampled.live_bytes;
  f->sampled_count = sampled.live_count;
  f->sampled_accessible = sampled.accessible_bytes;
  f->own_cells = hak_cell_bytes();
  f->own_other = huge.table_bytes + sampled.table_bytes;
}

void hak_figures_take(hak_figures *f) {
  *f = (hak_figures){.rows = f->rows, .map = f->map, .map_capacity = f->map_capacity};
  if (f->rows != NULL) memset(f->rows, 0, HAK_FRONT_CLASSES * sizeof *f->rows);
  f->time_ms = hak_os_now_ms();
  if (hak_region_count() > 0) {
    f->regions = hak_region_count();
    for (unsigned i = 0; i < f->regions; i++) count_region(f, i);
    count_caches(f);
  }
  count_others(f);
  f->own = f->own_cells + f->own_tables + f->own_other;
  f->live = f->slab_live + f->runs + f->huge_live + f->sampled_live;
  f->accessible = f->spans + f->huge_live + f->huge_kept + f->sampled_accessible + f->own;
}

bool hak_figures_estimate(unsigned class_code, uint64_t live, uint64_t requests, uint64_t requested,
                          uint64_t *asked_for) {
  if (requests == 0) return false;
  double part = (double)requested / ((double)requests * (double)hak_class_size(class_code));
  uint64_t bytes = (uint64_t)((double)live * part);
  *asked_for = bytes < live ? bytes : live;
  return true;
}

void hak_figures_requests(unsigned class_code, uint64_t *requests, uint64_t *requested) {
  hak_tcache_sum_requests(class_code, requests, requested);
}

void hak_figures_front(unsigned class_code, hak_cache_counts *sum) { hak_tcache_sum_counts(class_code, sum); }
