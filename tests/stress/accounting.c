#include "accounting.h"

#include <stdio.h>

#include "heap/heap.h"
#include "heap/remote.h"
#include "large/huge.h"
#include "pool/span_pool.h"

static size_t blocks_on_lists(const hak_slab_set *set, size_t *slabs) {
  size_t out = 0;
  for (unsigned list = 0; list < HAK_FULLNESS_LISTS; list++) {
    for (const hak_span *s = set->lists[list]; s != NULL; s = s->next) {
      out += (size_t)(s->carved - s->free_count);
      if (s != set->carving) ++*slabs;
    }
  }
  if (set->carving != NULL) {
    ++*slabs;
    if (set->carving->list == HAK_NO_LIST) out += set->carving->carved;
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

size_t accounting_blocks_out(void) {
  size_t out = 0;
  for (uint32_t id = HAK_EMERGENCY_ID; id < hak_heap_id_limit(); id++) {
    hak_heap *h = hak_heap_by_id(id);
    hak_lock_take(&h->lock);
    for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) out += blocks_out_of_set(&h->bins[c].slabs, c);
    hak_lock_drop(&h->lock);
  }
  return out;
}

size_t accounting_stranded_packets(void) {
  size_t packets = 0;
  for (uint32_t id = HAK_EMERGENCY_ID; id < hak_heap_id_limit(); id++) {
    hak_heap *h = hak_heap_by_id(id);
    if (hak_load_seq(&h->state) != HAK_HEAP_ACTIVE && hak_load_seq(&h->inbox) != 0) packets++;
  }
  return packets;
}

size_t accounting_heaps(void) { return hak_heap_id_limit() - HAK_EMERGENCY_ID; }

size_t accounting_live_spans(void) { return hak_load_relaxed(&hak_span_pool.live_spans); }

size_t accounting_check_nothing_live(void) {
  size_t faults = 0, kept_spans = 0;
  for (uint32_t id = HAK_EMERGENCY_ID; id < hak_heap_id_limit(); id++) {
    hak_heap *h = hak_heap_by_id(id);
    hak_lock_take(&h->lock);
    if (hak_load_seq(&h->inbox) != 0) {
      fprintf(stderr, "accounting: heap %u has packets waiting\n", id);
      faults++;
    }
    for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) {
      const hak_slab_set *set = &h->bins[c].slabs;
      const hak_span *kept = set->carving;
      if (kept != NULL) kept_spans += kept->span_count;
      if (set->slabs != (kept != NULL ? 1u : 0u) || (kept != NULL && kept->carved != 0)) {
        fprintf(stderr, "accounting: heap %u class %u (%zu bytes) still holds %u slabs, %zu blocks\n", id, c,
                hak_class_size(c), set->slabs, blocks_out_of_set(set, c));
        faults++;
      }
    }
    hak_lock_drop(&h->lock);
  }
  if (accounting_live_spans() != kept_spans) {
    fprintf(stderr, "accounting: the pool counts %zu held spans, heaps hold %zu\n", accounting_live_spans(), kept_spans);
    faults++;
  }
  size_t huge_count, huge_bytes;
  hak_huge_totals(&huge_count, &huge_bytes);
  if (huge_count != 0 || huge_bytes != 0) {
    fprintf(stderr, "accounting: %zu huge blocks, %zu bytes live\n", huge_count, huge_bytes);
    faults++;
  }
  return faults;
}
