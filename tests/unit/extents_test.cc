// Extents that a thread freed lately.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "hak.h"
#include "hakmem/hakmem.h"

namespace {

constexpr size_t MIB = size_t{1} << 20;

hak_tcache *self() { return hak_thread_cache(); }
size_t live_spans() { return hak_load_relaxed(&hak_span_pool.live_spans); }
void flush() {
  hak_deferred d = {};
  hak_tcache_flush(self(), &d);
}

TEST(Extents, TheLatestOfTheSizeIsUsedAgain) {
  self();
  void *a = hakmem_malloc(100000), *b = hakmem_malloc(100000), *other = hakmem_malloc(200000);
  hakmem_free(a);
  hakmem_free(b);
  hakmem_free(other);
  EXPECT_EQ(hakmem_malloc(120000), b) << "as many spans";
  EXPECT_EQ(hakmem_malloc(70000), a);
  EXPECT_NE(hakmem_malloc(120000), other) << "twice as many";
  EXPECT_EQ(hakmem_malloc_usable_size(a), 131072u);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

TEST(Extents, FewAndSmallOnesAreKept) {
  self();
  flush();
  size_t before = live_spans();
  std::vector<void *> blocks;
  for (int i = 0; i < 20; i++) blocks.push_back(hakmem_malloc(300000));
  for (void *p : blocks) hakmem_free(p);
  EXPECT_LE(self()->extent_spans, 2 * MIB / 65536);
  EXPECT_EQ(live_spans() - before, self()->extent_spans);
  blocks.clear();
  for (int i = 0; i < 20; i++) blocks.push_back(hakmem_malloc(40000));
  for (void *p : blocks) hakmem_free(p);
  EXPECT_EQ(self()->extent_count, 8u);
  hakmem_free(hakmem_malloc(MIB + 1));
  EXPECT_EQ(self()->extent_count, 8u) << "too large";
  EXPECT_EQ(hakmem_heap_check(), 0u);
  flush();
  EXPECT_EQ(live_spans(), before);
}

TEST(Extents, IdleOnesAndThoseOfAThreadThatEndsGo) {
  self();
  flush();
  size_t before = live_spans();
  hakmem_free(hakmem_malloc(100000));
  hak_deferred d = {};
  hak_tcache_decay(self(), false, &d);
  EXPECT_EQ(live_spans(), before) << "none was taken since";
  std::thread([] {
    self();
    hakmem_free(hakmem_malloc(100000));
    EXPECT_EQ(self()->extent_count, 1u);
  }).join();
  EXPECT_EQ(live_spans(), before);
}

TEST(Extents, ACachedOneIsNotTheUsers) {
  self();
  char *p = static_cast<char *>(hakmem_malloc(100000));
  memset(p, 1, 100000);
  hakmem_free(p);
  EXPECT_EQ(hakmem_malloc_usable_size(p), 0u);
  EXPECT_EQ(hak_run_claim(hak_region_find(p), p), HAK_VERDICT_FREE_MEMORY) << "a second free";
  char *zeroed = static_cast<char *>(hakmem_calloc(1, 100000));
  EXPECT_EQ(zeroed, p);
  for (size_t i = 0; i < 100000; i++) ASSERT_EQ(zeroed[i], 0);
}

}  // namespace
