#include "accounting.h"

#include <stdio.h>

#include "entry/slow_exit.h"
#include "heap/heap.h"
#include "large/huge.h"
#include "pool/span_pool.h"
#include "tcache/tcache.h"

static size_t blocks_on_lists(const hak_slab_set *set, size_t *slabs) {
  size_t out = 0;
  for (unsigned list = 0; list < HAK_FULLNESS_LISTS; list++) {
    for (const hak_span *s = set->lists[list]; s != NULL; s = s->next) {
      out += (size_t)(s->bumped - hak_slab_free_count(s));
      if (s != set->bump_slab) ++*slabs;
    }
  }
  if (set->bump_slab != NULL) {
    ++*slabs;
    if (set->bump_slab->list == HAK_NO_LIST) out += set->bump_slab->bumped;
  }
  return out;
}

/* Slabs on no list are full; they are known only by their number, and all slabs of a class differ by colour alone. */
static size_t blocks_out_of_set(const hak_slab_set *set, unsigned class_code) {
  size_t reachable = 0;
  size_t out = blocks_on_lists(set, &reachable);
  const hak_class_info *info = &hak_class_table[class_code];
  return out + (set->slabs - reachable) * (info->spans * HAK_SPAN_SIZE / info->size);
}

static size_t blocks_in_depot(const hak_arena_bin *b, unsigned class_code) {
  return (size_t)b->full_count * hak_magazine_usable[class_code];
}

/* The sum of count(bin, class) over all bins. */
static size_t sum_of_bins(size_t (*count)(const hak_arena_bin *bin, unsigned class_code)) {
  size_t sum = 0;
  for (uint32_t i = 0; i < hak_arena_count(); i++) {
    for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
      hak_arena_bin *b = &hak_arena_at(i)->bins[c];
      hak_lock_take(&b->lock);
      sum += count(b, c);
      hak_lock_drop(&b->lock);
    }
  }
  return sum;
}

static size_t blocks_out_of_bin(const hak_arena_bin *b, unsigned c) { return blocks_out_of_set(&b->slabs, c); }

static size_t bytes_in_depot(const hak_arena_bin *b, unsigned c) {
  return blocks_in_depot(b, c) * hak_class_size(c) + b->full_count * HAK_MAGAZINE_BYTES;
}

size_t accounting_blocks_out(void) { return sum_of_bins(blocks_out_of_bin); }

size_t accounting_blocks_in_depots(void) { return sum_of_bins(blocks_in_depot); }

size_t accounting_caches(void) {
  hak_tcache_sums sums;
  hak_tcache_sum(&sums);
  return sums.caches;
}

size_t accounting_reach(void) {
  hak_deferred d = {0};
  size_t blocks = hak_tcache_reach(UINT64_MAX, true, &d);
  hak_slow_exit(&d);
  return blocks;
}

size_t accounting_live_spans(void) { return hak_load_relaxed(&hak_span_pool.live_spans); }

size_t accounting_check_depots(void) {
  size_t held = sum_of_bins(bytes_in_depot), counted = hak_load_relaxed(&hak_depot_bytes);
  if (held == counted) return 0;
  fprintf(stderr, "accounting: depots hold %zu bytes, %zu are counted\n", held, counted);
  return 1;
}

/* A bin's faults; the spans of an empty slab that it keeps are added to *kept_spans. */
static size_t check_bin(const hak_arena_bin *b, uint32_t arena, unsigned c, size_t *kept_spans) {
  const hak_slab_set *set = &b->slabs;
  const hak_span *kept = set->bump_slab;
  size_t faults = 0;
  if (kept != NULL) *kept_spans += kept->span_count;
  if (set->slabs != (kept != NULL ? 1u : 0u) || (kept != NULL && kept->bumped != 0)) {
    fprintf(stderr, "accounting: arena %u class %u (%zu bytes) still holds %u slabs, %zu blocks\n", arena, c,
            hak_class_size(c), set->slabs, blocks_out_of_set(set, c));
    faults++;
  }
  if (blocks_in_depot(b, c) != 0) {
    fprintf(stderr, "accounting: arena %u class %u (%zu bytes) has %zu blocks in its depot\n", arena, c,
            hak_class_size(c), blocks_in_depot(b, c));
    faults++;
  }
  return faults;
}

/* The span of heaps' pieces that stays empty for the next heap. */
static size_t empty_spans_of_pieces(void) {
  size_t spans = 0;
  for (unsigned i = 0; i < hak_region_count(); i++) {
    const hak_region *r = hak_region_at(i);
    for (size_t at = 0; at < hak_load_acquire(&r->limit) >> HAK_SPAN_SHIFT; at++) {
      const hak_span *s = hak_region_span_at(r, at);
      if (hak_region_slab_code(r, at) != HAK_CODE_IN_HEAP || HAK_TAG_OWNER(hak_load_relaxed(&s->tag)) != HAK_OWNER_PIECES) continue;
      spans += s->free_pieces == UINT16_MAX;
    }
  }
  return spans;
}

size_t accounting_check_nothing_live(void) {
  size_t faults = accounting_check_depots(), kept_spans = empty_spans_of_pieces();
  if (kept_spans > 1) {
    fprintf(stderr, "accounting: %zu spans of pieces are empty\n", kept_spans);
    faults++;
  }
  for (uint32_t i = 0; i < hak_arena_count(); i++) {
    for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
      hak_arena_bin *b = &hak_arena_at(i)->bins[c];
      hak_lock_take(&b->lock);
      faults += check_bin(b, i, c, &kept_spans);
      hak_lock_drop(&b->lock);
    }
  }
  if (accounting_live_spans() != kept_spans) {
    fprintf(stderr, "accounting: the pool counts %zu held spans, arenas hold %zu\n", accounting_live_spans(), kept_spans);
    faults++;
  }
  hak_huge_figures huge;
  hak_huge_read(&huge);
  if (huge.live_count != 0 || huge.live_bytes != 0) {
    fprintf(stderr, "accounting: %zu huge blocks, %zu bytes live\n", huge.live_count, huge.live_bytes);
    faults++;
  }
  return faults;
}
