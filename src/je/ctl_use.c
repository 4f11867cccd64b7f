/* mallctl's experimental.utilization: how full the slab is that a block is in, for a program that moves blocks
 * together. */
#include <errno.h>
#include <string.h>

#include "entry/where.h"
#include "je/ctl.h"

typedef struct use {
  size_t free, regions, bytes; /* of its slab; a block that has its memory alone: 0, 1 and its size */
} use;

/* The slab's counters are written by others meanwhile: any value that they had will do. */
static use of_slab(const hak_span *s) {
  size_t bumped = hak_load_relaxed(&s->bumped), blocks = hak_load_relaxed(&s->blocks);
  size_t back = (uint16_t)(hak_load_relaxed(&s->settled) - hak_load_relaxed(&s->frees_left));
  size_t out = hak_min_size(bumped, blocks) - hak_min_size(back, hak_min_size(bumped, blocks));
  return (use){blocks - out, blocks, (size_t)s->span_count << HAK_SPAN_SHIFT};
}

static use use_of(const void *p, const hak_span **slab) {
  hak_where w = hak_where_is(p);
  *slab = w.kind == HAK_KIND_SLAB && w.size <= HAK_JE_SMALL_MAX ? w.head : NULL;
  if (*slab != NULL) return of_slab(w.head);
  size_t bytes = hak_where_size(&w, p);
  return bytes == 0 ? (use){0} : (use){0, 1, bytes};
}

/* The main heap's slabs of a bin; the rest of a bin's figures is as of the last epoch. */
static size_t slabs_now(size_t bin) {
  size_t slabs = 0;
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    if (hak_class_size(c) != hak_je_bin_size(bin)) continue;
    for (uint32_t i = hak_arena_count(); i-- > 0;) slabs += hak_load_relaxed(&hak_arena_at(i)->bins[c].slabs.slabs);
  }
  return slabs;
}

/* Where it begins; NULL: a new one. */
static void *next_slab(unsigned c) {
  hak_arena_bin *b = &hak_arena_current()->bins[c];
  const hak_span *s = NULL;
  hak_lock_take(&b->lock);
  for (unsigned i = 0; s == NULL && i < HAK_FULLNESS_LISTS; i++) s = b->slabs.lists[i];
  if (s == NULL) s = b->slabs.bump_slab;
  void *start = s == NULL ? NULL : (void *)hak_align_down(s->start, HAK_SPAN_SIZE);
  hak_lock_drop(&b->lock);
  return start;
}

int hak_ctl_query(const hak_ctl_call *c) {
  struct answer {
    void *current; /* the slab that mallocx with MALLOCX_TCACHE_NONE takes from next */
    size_t free, regions, bytes, bin_free, bin_regions;
  } answer = {0};
  const void *p;
  const hak_span *slab;
  if (c->old == NULL || c->old_bytes == NULL || *c->old_bytes != sizeof answer || c->given == NULL ||
      c->given_bytes != sizeof p)
    return EINVAL;
  memcpy(&p, c->given, sizeof p);
  use u = use_of(p, &slab);
  answer.free = u.free, answer.regions = u.regions, answer.bytes = u.bytes;
  if (slab != NULL) {
    hak_lock_take(&hak_je_lock);
    size_t bin = hak_class_for(hak_class_size(slab->class_code));
    const hak_je_bin *b = bin < HAK_JE_BINS ? &hak_je_figures_locked(HAK_JE_ALL)->bins[bin] : NULL;
    if (b != NULL) {
      answer.bin_regions = slabs_now(bin) * u.regions;
      /* The three are of moments of their own; they hold together. */
      answer.bin_regions = hak_max_size(answer.bin_regions, u.regions);
      size_t used = hak_max_size(b->regions.current, u.regions - u.free);
      answer.bin_free = answer.bin_regions - hak_min_size(used, answer.bin_regions - u.free);
    }
    hak_lock_drop(&hak_je_lock);
    answer.current = next_slab(slab->class_code);
  }
  memcpy(c->old, &answer, sizeof answer);
  return 0;
}

int hak_ctl_batch_query(const hak_ctl_call *c) {
  size_t count = c->given_bytes / sizeof(void *);
  const hak_span *slab;
  if (c->old == NULL || c->old_bytes == NULL || c->given == NULL || count == 0 ||
      c->given_bytes != count * sizeof(void *) || *c->old_bytes != count * sizeof(use))
    return EINVAL;
  for (size_t i = 0; i < count; i++) {
    const void *p;
    memcpy(&p, (const char *)c->given + i * sizeof p, sizeof p);
    use u = use_of(p, &slab);
    memcpy((char *)c->old + i * sizeof u, &u, sizeof u);
  }
  return 0;
}
