// The class table, one region and an empty pool over the fake system, as at the start of a process.
#ifndef HAKMEM_TESTS_FRESH_POOL_H
#define HAKMEM_TESTS_FRESH_POOL_H

#include <gtest/gtest.h>

#include <cstring>

#include "fake_os.h"
#include "hak.h"

inline void *span_address(const hak_span *s) {
  const hak_region *r = hak_pool_region_of(s);
  return hak_region_address(r, size_t(s - r->spans));
}

// Of spans that a test holds.
inline const hak_pool_tags HELD_TAGS = HAK_EXTENT_TAGS;

// What came back goes into the bitmaps.
inline void settle_quick() { hak_quick_settle_all(); }

// Under ASSERT_NO_FATAL_FAILURE.
inline void start_pool(size_t reserved_bytes) {
  hak_size_class_init(7);
  hak_arena_start();
  fake_os::reset();
  ASSERT_TRUE(hak_region_init(reserved_bytes));
  // As in a process, metadata blocks are there; the figures begin at 0 all the same.
  size_t before = hak_meta_bytes();
  hak_meta_give_one(hak_meta_take());
  hak_budget_count_unmapped(hak_meta_bytes() - before);
  hak_budget_held_peak = 0;
  memset(&hak_span_pool, 0, sizeof hak_span_pool);
  memset(&hak_quick_lists, 0, sizeof hak_quick_lists);
  hak_decay_start();
}

#endif
