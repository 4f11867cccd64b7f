/* The snapshot that stats.* shows, as of the last epoch; and the tables of size classes. hak_je_lock. */
#include <string.h>

#include "hakmem/stats.h"
#include "entry/heaps.h"
#include "entry/usage.h"
#include "je/je.h"

#define SPECIAL_LARGE (HAK_PLAIN_CLASSES - HAK_JE_BINS) /* ordinary classes */
#define FIRST_GROUP 18 /* 256 KiB */

uint64_t hak_je_epoch;
static hak_je_figures main_figures, sum, destroyed, none;
static hak_je_figures *of_heaps[HAK_JE_ARENAS]; /* each in a mapping of its own, which stays */
static bool has_destroyed;

/* --- classes --- */

size_t hak_je_bin_size(size_t bin) { return hak_class_size((unsigned)bin); }
size_t hak_je_bin_slab(size_t bin) { return hak_class_table[bin].spans * HAK_SPAN_SIZE; }
uint32_t hak_je_bin_regions(size_t bin) { return (uint32_t)(hak_je_bin_slab(bin) / hak_je_bin_size(bin)); }

size_t hak_je_lextent_size(size_t large) {
  if (large < SPECIAL_LARGE) return hak_class_size((unsigned)(HAK_JE_BINS + large));
  size_t n = large - SPECIAL_LARGE;
  return ((n % 4) + 5) << (FIRST_GROUP - 2 + n / 4);
}

static size_t large_of(size_t bytes) {
  size_t low = 0, high = HAK_JE_LEXTENTS - 1;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (hak_je_lextent_size(middle) < bytes)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* The bin of a class, aligned ones too. */
static size_t bin_of(unsigned c) { return c < HAK_PLAIN_CLASSES ? c : hak_class_for(hak_class_size(c)); }

/* --- counts --- */

/* What a snapshot sees, before it becomes an arena's. */
typedef struct seen {
  uint64_t regions[HAK_JE_BINS], slabs[HAK_JE_BINS], partial[HAK_JE_BINS], large[HAK_JE_LEXTENTS];
  size_t large_bytes;
} seen;
static seen now;

static void update(hak_je_count *c, uint64_t current) {
  if (current > c->current)
    c->nmalloc += current - c->current, c->grown++;
  else
    c->ndalloc += c->current - current, c->shrunk += current < c->current;
  c->current = current;
}

static void update_all(hak_je_figures *f) {
  for (unsigned b = 0; b < HAK_JE_BINS; b++) {
    update(&f->bins[b].regions, now.regions[b]);
    update(&f->bins[b].slabs, now.slabs[b]);
    f->bins[b].nonfull = now.partial[b];
  }
  for (unsigned l = 0; l < HAK_JE_LEXTENTS; l++) update(&f->lextents[l], now.large[l]);
  f->large = now.large_bytes;
}

static void see_large(void *context, size_t bytes) {
  (void)context;
  now.large[large_of(bytes)]++;
  now.large_bytes += bytes;
}

/* Figures, counts: structures of numbers that are all of one size. */
static void add(void *to, const void *from, size_t bytes) {
  for (size_t i = 0; i < bytes / sizeof(size_t); i++) ((size_t *)to)[i] += ((const size_t *)from)[i];
}
_Static_assert(sizeof(size_t) == sizeof(uint64_t) && sizeof(hak_je_figures) % sizeof(size_t) == 0, "add");

hak_je_count hak_je_sum_bins(const hak_je_figures *f) {
  hak_je_count c = {0};
  for (unsigned b = 0; b < HAK_JE_BINS; b++) add(&c, &f->bins[b].regions, sizeof c);
  return c;
}

hak_je_count hak_je_sum_lextents(const hak_je_figures *f) {
  hak_je_count c = {0};
  for (unsigned l = 0; l < HAK_JE_LEXTENTS; l++) add(&c, &f->lextents[l], sizeof c);
  return c;
}

/* --- the main heap --- */

static size_t pages(uint64_t bytes) { return hak_align_up(bytes, HAK_JE_PAGE); }

/* What blocks of the main heap are in. */
static uint64_t active_of(const hakmem_stats *t) {
  return t->slabs - t->slab_never_allocated - t->slab_purged + t->extents + t->huge_live + t->sampled_live;
}

/* --- what is resident --- */

#define GROUPS (HAK_CHUNK_SPANS / HAK_HUGE_PAGE_SPANS)
_Static_assert(HAK_HUGE_PAGE_SPANS == 32, "two huge pages to a word of a chunk's bitmaps");

/* Of chunks that ask for huge pages: spans in use; and free ones that were never written to, but share a huge page with
 * others. */
typedef struct in_huge {
  size_t used, beside;
} in_huge;

static void see_chunk(const hak_chunk *c, in_huge *h) {
  for (unsigned g = 0; g < GROUPS; g++) {
    unsigned shift = g % 2 * 32;
    uint32_t free = (uint32_t)(c->free[g / 2] >> shift),
             kept = (uint32_t)((c->dirty[g / 2] | c->muzzy[g / 2]) >> shift);
    uint32_t absent = (uint32_t)(c->absent[g / 2] >> shift), clean = free & ~kept;
    h->used += 32u - (unsigned)__builtin_popcount(free | absent);
    if ((clean | absent) != UINT32_MAX) h->beside += (unsigned)__builtin_popcount(clean);
  }
}

static in_huge look_at_huge(void) {
  in_huge h = {0};
  for (unsigned i = 0; i < hak_region_count(); i++) {
    const hak_region *r = hak_region_at(i);
    hak_lock_take(&hak_span_pool.lock);
    for (size_t n = r->first_span / HAK_CHUNK_SPANS; n < hak_region_chunks(r); n++) {
      if (r->chunks[n].huge) see_chunk(&r->chunks[n], &h);
    }
    hak_lock_drop(&hak_span_pool.lock);
  }
  return h;
}

/* Of tables for all spans, free bitmaps are touched where there are slabs: a page has eight spans', so about twice as
 * many as slabs have. */
static size_t touched_tables(const hakmem_stats *t) {
  static size_t most; /* hak_je_lock: they stay */
  size_t bitmap = HAK_BITMAP_WORDS * sizeof(uint64_t), spans = t->spans >> HAK_SPAN_SHIFT;
  most = hak_max_size(most,
                      spans * (sizeof(hak_span) + 1) + hak_min_size(spans, 2 * (t->slabs >> HAK_SPAN_SHIFT)) * bitmap);
  return hak_min_size(t->own_tables, most);
}

/* As if each page of what is active, dirty and metadata had been written to, and huge pages wholly; no more than the
 * kernel says that the process has of anonymous memory, but always more than is active. */
static size_t resident_of(const hakmem_stats *t, const hak_je_figures *f) {
  in_huge h = look_at_huge();
  size_t used = (t->spans - t->free_dirty - t->free_clean) >> HAK_SPAN_SHIFT,
         never = used == 0 ? 0 : t->slab_never_allocated * hak_min_size(h.used, used) / used;
  size_t bytes =
      f->active + f->dirty + t->own - t->own_tables + touched_tables(t) + (h.beside << HAK_SPAN_SHIFT) + never;
  hak_os_resident r;
  /* Heaps have figures of their own */
  if (hak_os_read_resident(&r)) bytes = hak_min_size(bytes, r.anonymous - hak_min_size(t->heaps_held, r.anonymous));
  return hak_max_size(pages(bytes), f->active + HAK_JE_PAGE);
}

/* Large blocks were seen with the snapshot. */
static void refresh_main(const hakmem_stats *t, const hak_usage_class *classes) {
  hak_je_figures *f = &main_figures;
  f->small = 0;
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    uint64_t live = classes[c].live;
    size_t b = bin_of(c);
    if (b >= HAK_JE_BINS) {
      now.large[b - HAK_JE_BINS] += live / hak_class_size(c);
      now.large_bytes += live;
      continue;
    }
    f->small += live;
    now.regions[b] += classes[c].handed_out / hak_class_size(c); /* those in caches too, as jemalloc counts them */
    now.slabs[b] += classes[c].slabs;
    now.partial[b] += classes[c].slabs_with_room;
  }
  now.large_bytes += t->sampled_live;
  update_all(f);
  f->active = hak_max_size(pages(active_of(t)), pages(f->small + f->large));
  f->dirty = pages(t->free_dirty + t->claimed + t->extents_cached + t->huge_kept);
  f->base = pages(t->own);
  f->mapped = pages(t->slabs + t->extents + t->huge_live + t->sampled_accessible) + f->base;
  f->retained = pages(t->free_clean);
  f->resident = resident_of(t, f);
  f->cached = t->slab_cached;
  f->purges = t->purges, f->advices = t->madvise, f->purged = t->purged / HAK_JE_PAGE;
}

/* --- heaps --- */

static void see_block(unsigned c, size_t count) {
  size_t b = bin_of(c);
  if (b < HAK_JE_BINS) {
    now.regions[b] += count;
  } else {
    now.large[b - HAK_JE_BINS] += count;
    now.large_bytes += count * hak_class_size(c);
  }
}

static bool see_by_size(void *block, size_t size, void *context) {
  (void)block;
  if (size <= HAK_SMALL_MAX)
    see_block(hak_class_for(size), 1);
  else
    see_large(context, size);
  return true;
}

static void see_heap_span(const hak_span *s) {
  if (HAK_TAG_CODE(hak_load_relaxed(&s->tag)) == HAK_CODE_EXTENT) {
    see_large(NULL, (size_t)s->span_count << HAK_SPAN_SHIFT);
    return;
  }
  size_t b = bin_of(s->class_code), out = s->bumped - hak_slab_free_count(s);
  see_block(s->class_code, out);
  if (b >= HAK_JE_BINS) return;
  now.slabs[b]++;
  now.partial[b] += out < s->blocks;
}

static void refresh_heap(hakmem_heap *h, hak_je_figures *f) {
  hakmem_heap_stats stats;
  memset(&now, 0, sizeof now);
  hakmem_heap_get_stats(h, &stats, sizeof stats);
  hak_heap_take_locks(h);
  size_t blocks = 0;
  for (const hak_piece *k = h->pieces; k != NULL; k = k->next) hak_piece_visit(k, see_by_size, NULL, &blocks);
  for (uint32_t i = 0; i < h->span_count; i++) {
    const hak_span *s = hak_heap_span_at(h, i);
    if (s != NULL) see_heap_span(s);
  }
  hak_heap_drop_locks(h);
  /* The first blocks of a class share pages with others: as one slab. */
  for (unsigned b = 0; b < HAK_JE_BINS; b++) {
    if (now.regions[b] != 0 && now.slabs[b] == 0) now.slabs[b] = 1;
  }
  hak_heap_visit_mappings(h, see_by_size, NULL, &blocks);
  now.large_bytes = hak_min_size(now.large_bytes, stats.live);
  update_all(f);
  f->small = stats.live - f->large;
  f->active = f->mapped = f->resident = hak_max_size(pages(stats.held), pages(stats.live));
}

/* Heaps that are no arenas count among all. What they have in sum was looked at before the arenas were: no more is live
 * than they hold. */
static void add_other_heaps(const hakmem_stats *t, size_t live, size_t held) {
  if (t->heaps_held <= held) return;
  size_t others = pages(t->heaps_held - held);
  if (t->heaps_live > live) sum.small += hak_min_size(t->heaps_live - live, others);
  sum.active += others;
  sum.mapped += others;
  sum.resident += others;
}

static hak_je_figures *room_for(size_t index) {
  size_t page = hak_os_page_size();
  if (of_heaps[index] == NULL) of_heaps[index] = hak_os_map(hak_align_up(sizeof *of_heaps[0], page), page);
  return of_heaps[index];
}

void hak_je_refresh_locked(void) {
  hak_usage_class classes[HAK_CLASS_COUNT];
  hakmem_stats stats;
  size_t live = 0, held = 0;
  hak_assert_held(&hak_je_lock);
  memset(&now, 0, sizeof now);
  hak_usage_read(&stats, classes, see_large, NULL);
  refresh_main(&stats, classes);
  sum = main_figures;
  for (size_t i = 1; i < hak_je_arena_count(); i++) {
    hak_je_arena *a = hak_je_arena_at(i);
    if (a == NULL || hak_je_arena_is_main(i) || room_for(i) == NULL) continue;
    refresh_heap(a->heap, of_heaps[i]);
    add(&sum, of_heaps[i], sizeof sum);
    live += of_heaps[i]->small + of_heaps[i]->large;
    held += of_heaps[i]->active;
  }
  add_other_heaps(&stats, live, held);
  add(&sum, &destroyed, sizeof sum);
  hak_je_epoch++;
}

size_t hak_je_active_now(void) {
  hakmem_stats t;
  hak_usage_read(&t, NULL, NULL, NULL);
  return pages(active_of(&t) + t.heaps_held);
}

const hak_je_figures *hak_je_figures_locked(size_t index) {
  if (hak_je_epoch == 0) hak_je_refresh_locked();
  if (index == 0) return &main_figures;
  if (index == HAK_JE_ALL) return &sum;
  if (index == HAK_JE_DESTROYED) return &destroyed;
  return of_heaps[index] != NULL ? of_heaps[index] : &none;
}

void hak_je_figures_end_locked(size_t index) {
  hak_je_figures *f = room_for(index);
  has_destroyed = true;
  if (f == NULL) return;
  refresh_heap(hak_je_arena_at(index)->heap, f);
  memset(&now, 0, sizeof now);
  update_all(f);
  f->small = f->active = f->dirty = f->mapped = f->resident = 0;
  add(&destroyed, f, sizeof destroyed);
  memset(f, 0, sizeof *f);
}

bool hak_je_has_figures(size_t index) {
  if (index == HAK_JE_DESTROYED) return has_destroyed;
  return index == HAK_JE_ALL || hak_je_arena_at(index) != NULL;
}

/* Threads of arena 0 are all that chose no other. */
unsigned hak_je_threads_of(size_t index) {
  unsigned elsewhere = 0, threads = hak_os_threads();
  if (index != 0 && index < HAK_JE_ARENAS) {
    hak_je_arena *a = hak_je_arena_at(index);
    return a == NULL ? 0 : hak_load_relaxed(&a->threads);
  }
  for (size_t i = 1; i < hak_je_arena_count() && index == 0; i++) {
    hak_je_arena *a = hak_je_arena_at(i);
    if (a != NULL) elsewhere += hak_load_relaxed(&a->threads);
  }
  return index == HAK_JE_DESTROYED ? 0 : threads > elsewhere ? threads - elsewhere : 0;
}
