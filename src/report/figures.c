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
  uint32_t tag, spans;
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
static uint8_t see_head(walk *w, uint32_t tag, size_t end) {
  hak_figures *f = w->figures;
  const hak_span *s = &w->r->spans[w->index];
  uint32_t code = HAK_TAG_CODE(tag), spans = 1;
  if (tag == 0) {
    f->claimed += HAK_SPAN_SIZE;
    return HAK_MAP_CLAIMED;
  }
  if (s->head == s) spans = (uint32_t)hak_min_size(hak_max_size(s->span_count, 1), end - w->index);
  uint64_t bytes = (uint64_t)spans << HAK_SPAN_SHIFT;
  w->left = spans - 1;
  w->code = (uint8_t)code;
  if (HAK_TAG_OWNER(tag) != 0) {
    w->slabs[w->slab_count++] = (seen_slab){w->index, tag, spans};
  } else if (code == HAK_CODE_RUN_KEPT) {
    f->runs_kept += bytes;
  } else {
    /* A body whose head is of an earlier moment is a part of a run that has grown since. */
    if (code == HAK_CODE_RUN) count_run(f, s, spans);
    else f->runs += bytes;
    w->code = HAK_MAP_RUN_BODY;
  }
  return (uint8_t)code;
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
      *code = see_head(w, hak_load_relaxed(&w->r->tags[w->index]), end);
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

/* The owner's lock is held. Whatever the owner did since the tag was read, it is done with it now. */
static bool count_slab(walk *w, const seen_slab *seen) {
  hak_figures *f = w->figures;
  const hak_span *s = &w->r->spans[seen->index];
  if (hak_load_relaxed(&w->r->tags[seen->index]) != seen->tag || s->head != s || s->tag != seen->tag) return false;
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

/* Slabs of one owner that follow each other are looked at under one hold of its lock. */
static void count_slabs(walk *w, size_t first) {
  hak_heap *locked = NULL;
  for (unsigned i = 0; i < w->slab_count; i++) {
    const seen_slab *seen = &w->slabs[i];
    hak_heap *owner = hak_heap_by_id(HAK_TAG_OWNER(seen->tag));
    if (owner != locked) {
      if (locked != NULL) hak_lock_drop(&locked->lock);
      hak_lock_take(&owner->lock);
      locked = owner;
    }
    if (!count_slab(w, seen)) forget_slab(w, seen, first);
  }
  if (locked != NULL) hak_lock_drop(&locked->lock);
}

static size_t array_bytes(const void *array, size_t element_bytes, size_t from, size_t to) {
  size_t page = hak_os_page_size();
  return hak_align_up((uintptr_t)array + to * element_bytes, page) -
         hak_align_down((uintptr_t)array + from * element_bytes, page);
}

/* As hak_region_grow makes them accessible. */
static size_t table_bytes(const hak_region *r, size_t end) {
  size_t first = r->first_span, chunks = (end + HAK_CHUNK_SPANS - 1) / HAK_CHUNK_SPANS;
  return array_bytes(r->tags, sizeof *r->tags, 0, end) +
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

static HAK_NOINLINE void count_heaps(hak_figures *f) {
  uint64_t cached[HAK_FRONT_CLASSES] = {0}, packets[HAK_FRONT_CLASSES] = {0};
  uint32_t limit = hak_heap_id_limit();
  int memory = HAK_PEEK_UNOPENED;
  for (uint32_t id = HAK_EMERGENCY_ID; id < limit; id++) {
    hak_heap *h = hak_heap_by_id(id);
    uint32_t state = hak_load_relaxed(&h->state);
    f->heaps++;
    f->heaps_active += state == HAK_HEAP_ACTIVE;
    f->heaps_warm += state == HAK_HEAP_WARM;
    f->heaps_parked += state == HAK_HEAP_PARKED;
    f->slow_paths += hak_peek_slow_paths(h);
    if (f->rows == NULL) continue;
    hak_peek_heap(h, &memory, cached, packets);
    hak_peek_inbox(h, packets);
  }
  if (memory >= 0) hak_os_close(memory);
  for (unsigned c = 0; c < HAK_FRONT_CLASSES && f->rows != NULL; c++) {
    hak_class_row *row = &f->rows[c];
    uint64_t size = hak_class_size(c);
    row->cached = hak_min_size(cached[c] * size, row->handed_out);
    row->packets = hak_min_size(packets[c] * size, row->handed_out - row->cached);
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
  if (hak_heap_started()) {
    f->regions = hak_region_count();
    for (unsigned i = 0; i < f->regions; i++) count_region(f, i);
    count_heaps(f);
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
  *requests = *requested = 0;
  uint32_t limit = hak_heap_started() ? hak_heap_id_limit() : HAK_EMERGENCY_ID;
  for (uint32_t id = HAK_EMERGENCY_ID; id < limit; id++) {
    const hak_request_counts *noted = hak_heap_by_id(id)->requests;
    if (noted == NULL) continue;
    *requests += hak_load_relaxed(&noted[class_code].count);
    *requested += hak_load_relaxed(&noted[class_code].bytes);
  }
}

void hak_figures_front(unsigned class_code, hak_front_counts *sum) {
  *sum = (hak_front_counts){0};
  uint32_t limit = hak_heap_started() ? hak_heap_id_limit() : HAK_EMERGENCY_ID;
  for (uint32_t id = HAK_EMERGENCY_ID; id < limit; id++) {
    const hak_front_counts *counts = hak_heap_by_id(id)->counts;
    if (counts == NULL) continue;
    sum->hits += hak_load_relaxed(&counts[class_code].hits);
    sum->misses += hak_load_relaxed(&counts[class_code].misses);
    sum->refills += hak_load_relaxed(&counts[class_code].refills);
    sum->flushes += hak_load_relaxed(&counts[class_code].flushes);
  }
}
