/* The free pages of slabs in which a few blocks live on. The pages are given back with no lock held: until then their
 * blocks are claimed, as if they had been handed out, so that the slab stays and nobody gets them. */
#include <string.h>

#include "slab/slab.h"

/* As many as the fields of hak_slab_scan hold. */
#define ROUND_MASK 3u
#define LIVE_MAX 511u
#define GONE_MAX 127u
_Static_assert(HAK_BITMAP_WORDS * 64 < 1 << 13, "a scan has room for the free blocks of a slab");
_Static_assert(HAK_SLAB_PAGES_MAX <= GONE_MAX, "a scan has room for the pages of the largest slab");

/* Slabs looked at in one hold of the lock, each a cache miss. A look by the clock goes on behind them the next time;
 * one for all that there is does not come back, and takes more. */
#define STEPS_MAX 2048
#define STEPS_MAX_AT_ONCE (16 * STEPS_MAX)
typedef struct search {
  hak_span **out;
  unsigned capacity, found, steps; /* steps: that may still be taken */
  unsigned walk;                   /* at_once: of no account */
  bool at_once;
} search;

/* Whether pages of it may be had. Of the last list those to which blocks have come back since their pages went. */
static bool is_found(hak_span *s, const search *f) {
  unsigned n = hak_slab_free_count(s), round = f->walk & ROUND_MASK;
  if (s->list == HAK_PURGED_LIST) return s->bumped - n < s->scan.live_then;
  bool same = s->scan.free_blocks == n;
  if (same && s->scan.unpurgeable) return false;
  if (f->at_once || (same && s->scan.round != round)) return true;
  s->scan = (hak_slab_scan){.free_blocks = (uint16_t)n, .round = (uint16_t)round};
  return false;
}

/* Returns where it stopped; NULL: at the end of the list. */
static hak_span *look(hak_span *s, search *f) {
  for (; s != NULL && f->found < f->capacity && f->steps > 0; s = s->next, f->steps--) {
    if (is_found(s, f)) f->out[f->found++] = s;
  }
  return s;
}

/* From this list on slabs may have whole pages free: half-free ones where few blocks lie on a page, all where a free
 * block is one. */
static unsigned least_list(size_t size) {
  size_t page = hak_os_page_size();
  return size >= page ? 0 : size >= page / 4 ? 2 : HAK_SPARSE_LIST;
}

static void find_all(hak_slab_set *set, unsigned class_code, search *f) {
  for (unsigned list = HAK_PURGED_LIST; list-- > least_list(hak_class_size(class_code));) look(set->lists[list], f);
  look(set->lists[HAK_PURGED_LIST], f);
}

/* Stamps with the walk: one walk may take four rounds, and two bits could not tell them apart. */
static void find_idle(hak_slab_set *set, unsigned class_code, unsigned round, search *f) {
  hak_span *s = set->look_next;
  HAK_ASSERT(s == NULL || s->list == HAK_SPARSE_LIST || s->list == 2);
  if (s == NULL && set->walk_round != (uint8_t)round) {
    set->walk++;
    set->walk_round = (uint8_t)round;
  }
  f->walk = set->walk;
  if (s == NULL || s->list == HAK_SPARSE_LIST) {
    s = look(s != NULL ? s : set->lists[HAK_SPARSE_LIST], f);
    if (s == NULL && least_list(hak_class_size(class_code)) < HAK_SPARSE_LIST) s = set->lists[2];
  }
  if (s != NULL && s->list == 2) s = look(s, f);
  set->look_next = s;
}

unsigned hak_slab_find_sparse(hak_slab_set *set, unsigned class_code, unsigned round, bool at_once, hak_span **out,
                              unsigned capacity) {
  HAK_ASSERT(class_code < HAK_CLASS_COUNT && capacity > 0);
  search f = {out, capacity, 0, at_once ? STEPS_MAX_AT_ONCE : STEPS_MAX, 0, at_once};
  if (at_once)
    find_all(set, class_code, &f);
  else
    find_idle(set, class_code, round, &f);
  return f.found;
}

/* First block >= from whose being free is `wanted`, or blocks. */
static unsigned next_block(const hak_span *s, unsigned from, bool wanted) {
  while (from < s->blocks) {
    uint64_t word = wanted ? s->bits[from / 64] : ~s->bits[from / 64];
    word &= ~(uint64_t)0 << (from % 64);
    if (word != 0) return (unsigned)hak_min_size(from / 64 * 64 + hak_ctz64(word), s->blocks);
    from = from / 64 * 64 + 64;
  }
  return s->blocks;
}

static void claim(hak_span *s, unsigned from, unsigned to, hak_free_pages *out) {
  HAK_ASSERT(from < to && to <= s->blocks);
  for (unsigned i = from; i < to; i++) {
    uint64_t mask = (uint64_t)1 << (i % 64);
    out->claimed[i / 64] |= mask;
    s->bits[i / 64] &= ~mask;
  }
}

/* Skips the slab until its free count changes. List 2 keeps it out of the way: looks at other slabs do not end at it,
 * and refills do not take slabs with pages to purge first. */
static void give_up(hak_slab_set *set, hak_span *s) {
  if (s->list == HAK_PURGED_LIST) return; /* somebody else's call went through meanwhile: `scan` counts its pages */
  s->scan = (hak_slab_scan){.free_blocks = (uint16_t)hak_slab_free_count(s), .unpurgeable = true};
  if (s->list != HAK_SPARSE_LIST) return;
  hak_slab_unlink(set, s);
  hak_slab_link(set, s, 2);
  hak_slab_settle_count(s, hak_slab_free_count(s));
}

/* Free blocks of a slab that have whole pages between them. */
typedef struct free_range {
  unsigned first, end;
  uintptr_t from, to;
} free_range;

/* The next one behind h->end. False: there is none. */
static bool next_free_range(const hak_span *s, free_range *h) {
  size_t page = hak_os_page_size(), size = hak_class_size(s->class_code);
  while ((h->first = next_block(s, h->end, true)) < s->blocks) {
    h->end = next_block(s, h->first, false);
    h->from = hak_align_up(s->start + h->first * size, page);
    h->to = hak_align_down(s->start + h->end * size, page);
    if (h->from < h->to) return true;
  }
  return false;
}

bool hak_slab_claim_free_pages(hak_slab_set *set, hak_span *s, uint32_t tag, hak_free_pages *out) {
  /* Relaxed: where the slab is gone, the pool may be writing it. */
  bool listed = s->list <= HAK_PURGED_LIST;
  bool there = hak_load_relaxed(&s->tag) == tag && s->head == s && listed && s != set->bump_slab;
  if (!there || s->bumped != s->blocks) return false;
  unsigned n = hak_slab_free_count(s);
  out->count = 0;
  memset(out->claimed, 0, sizeof out->claimed);
  for (free_range h = {0}; next_free_range(s, &h);) {
    HAK_ASSERT(out->count < HAK_FREE_RANGES_MAX);
    out->pages[out->count].start = (void *)h.from;
    out->pages[out->count++].bytes = h.to - h.from;
    claim(s, h.first, h.end, out);
    HAK_ASSERT(n >= h.end - h.first);
    n -= h.end - h.first;
  }
  if (out->count == 0) {
    give_up(set, s);
    return false;
  }
  if (s->list == HAK_PURGED_LIST) hak_slab_unlink(set, s);
  hak_slab_settle(set, s, n);
  return true;
}

void *hak_slab_unclaim_free_pages(hak_slab_set *set, hak_span *s, const hak_free_pages *free_pages, bool gone,
                                  bool *purge_due) {
  void *twice = NULL;
  unsigned n = hak_slab_free_count(s);
  for (unsigned w = 0; w < ((unsigned)s->blocks + 63) / 64; w++) {
    uint64_t again = s->bits[w] & free_pages->claimed[w], back = free_pages->claimed[w] & ~again;
    if (again != 0) twice = (void *)(s->start + (w * 64 + hak_ctz64(again)) * hak_class_size(s->class_code));
    n += hak_popcount64(back);
    s->bits[w] |= back;
  }
  HAK_ASSERT(n > 0 && n <= s->bumped);
  bool ends = n == s->bumped; /* and is the pool's, and perhaps somebody else's, after the next line */
  hak_slab_settle_after_put(set, s, n, purge_due);
  if (ends) return twice;
  if (!gone) {
    give_up(set, s); /* the system would refuse again */
    return twice;
  }
  hak_slab_unlink(set, s);
  hak_slab_link(set, s, HAK_PURGED_LIST);
  hak_slab_settle_count(s, n);
  size_t pages = 0;
  for (unsigned i = 0; i < free_pages->count; i++) pages += free_pages->pages[i].bytes / hak_os_page_size();
  HAK_ASSERT(pages > 0 && pages <= GONE_MAX);
  s->scan =
      (hak_slab_scan){.gone_pages = (uint16_t)pages, .live_then = (uint16_t)hak_min_size(s->bumped - n, LIVE_MAX)};
  hak_add_relaxed(&hak_span_pool.purged_slab_pages, pages);
  return twice;
}
