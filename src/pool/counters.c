#include "pool/counters.h"

HAK_ALIGNED(HAK_CACHE_LINE) hak_pool hak_span_pool = {.full_spans = SIZE_MAX};

HAK_TLS bool hak_takes_large;
bool hak_large_left_to_others;

size_t hak_budget_mapped;
size_t hak_budget_held_mapped;
size_t hak_budget_held_peak;
size_t hak_budget_used_peak;

size_t hak_budget_table_bytes(void) {
  size_t spans = 0;
  for (unsigned i = hak_region_count(); i-- > 0;) {
    const hak_region *r = hak_region_at(i);
    spans += (hak_load_acquire(&r->limit) >> HAK_SPAN_SHIFT) - r->first_span;
  }
  return hak_region_table_bytes(spans);
}

static void raise(size_t *peak, size_t to) {
  size_t now = hak_load_relaxed(peak);
  while (now < to && !hak_cas_acquire(peak, &now, to)) {
  }
}

HAK_NOINLINE void hak_budget_raise_peak(size_t held) {
  raise(&hak_budget_held_peak, held);
  raise(&hak_budget_used_peak, held + hak_budget_table_bytes());
}

void hak_budget_count_held(size_t bytes) {
  hak_add_relaxed(&hak_budget_held_mapped, bytes);
  hak_budget_note_peak();
}

void hak_budget_count_mapped(size_t bytes) {
  hak_add_relaxed(&hak_budget_mapped, bytes);
  hak_budget_count_held(bytes);
}

void hak_budget_count_unmapped(size_t bytes) {
  HAK_ASSERT(hak_load_relaxed(&hak_budget_mapped) >= bytes && hak_load_relaxed(&hak_budget_held_mapped) >= bytes);
  hak_sub_relaxed(&hak_budget_mapped, bytes);
  hak_sub_relaxed(&hak_budget_held_mapped, bytes);
}

/* As the kernel's peak, that of the child begins here. */
void hak_budget_forget_peak(void) {
  hak_store_relaxed(&hak_budget_held_peak, hak_budget_held_now());
  hak_store_relaxed(&hak_budget_used_peak, hak_budget_held_now() + hak_budget_table_bytes());
}
