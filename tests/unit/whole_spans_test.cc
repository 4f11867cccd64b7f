// Classes of whole spans, 60 to 256 KiB: a slab of theirs is one block.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "hak.h"
#include "hakmem/hakmem.h"

namespace {

size_t live_spans() { return hak_load_relaxed(&hak_span_pool.live_spans); }
unsigned code_of(void *p) { return hak_region_code(hak_region_find(p), p); }
void give_all_back() {
  hak_deferred d = {};
  hak_tcache_flush(hak_tls.cache, &d);
  hak_arena_shrink_all(&d);
}

class WholeSpans : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 100; i++) hakmem_free(hakmem_malloc(100));  // until the thread has a cache
    give_all_back();
  }
};

bool keep(void *p, unsigned c) { return hak_arena_keep(hak_region_span(hak_region_find(p), p), p, c); }
unsigned kept_of(unsigned c) { return hak_arena_current()->bins[c].slabs.kept; }

TEST_F(WholeSpans, TheArenaKeepsThem) {
  for (size_t size : {32769, 65536, 65537, 100000, 200000, 262144}) {
    void *p = hakmem_malloc(size);
    ASSERT_NE(p, nullptr);
    size_t spans = hak_align_up(size, HAK_SPAN_SIZE);
    EXPECT_EQ(hakmem_malloc_usable_size(p), spans - size < 4096 ? spans : spans - 4096);
    hakmem_free(p);
    EXPECT_EQ(hak_tcache_pop(size), nullptr) << "no thread does";
    EXPECT_EQ(hak_arena_take_kept(hak_class_for(size)), p) << "without the long way";
    EXPECT_EQ(hak_arena_take_kept(hak_class_for(size)), nullptr);
    EXPECT_TRUE(keep(p, hak_class_for(size)));
    EXPECT_FALSE(keep(p, hak_class_for(size))) << "twice";
    EXPECT_FALSE(keep(static_cast<char *>(p) + 4096, hak_class_for(size))) << "inside";
  }
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

TEST_F(WholeSpans, AnArenaKeepsHalfAMegabyteOfAClassOrTwo) {
  for (size_t size : {61440, 65536, 131072, 262144}) {
    unsigned c = hak_class_for(size), most = unsigned(std::max<size_t>(2, 2 * HAK_SMALL_MAX / size));
    std::vector<void *> blocks;
    for (unsigned i = 0; i < most + 3; i++) blocks.push_back(hakmem_malloc(size));
    size_t before = live_spans(), spans = hak_align_up(size, HAK_SPAN_SIZE) / HAK_SPAN_SIZE;
    for (void *p : blocks) hakmem_free(p);
    EXPECT_EQ(kept_of(c), most);
    EXPECT_EQ(before - live_spans(), 3 * spans) << "the others are the pool's";
    EXPECT_EQ(hakmem_heap_check(), 0u);
    std::set<void *> again;
    for (unsigned i = 0; i < most; i++) again.insert(hakmem_malloc(size));
    EXPECT_EQ(again.size(), most);
    EXPECT_EQ(kept_of(c), 0u);
    for (void *p : again) hakmem_free(p);
    give_all_back();
    EXPECT_EQ(kept_of(c), 0u);
  }
}

TEST_F(WholeSpans, NearATargetNoneIsKept) {
  size_t ceiling = hak_load_relaxed(&hak_budget_ceiling);
  void *p = hakmem_malloc(100000);
  hak_store_relaxed(&hak_budget_ceiling, size_t{1});
  hakmem_free(p);
  EXPECT_EQ(kept_of(hak_class_for(100000)), 0u);
  hak_store_relaxed(&hak_budget_ceiling, ceiling);
}

TEST_F(WholeSpans, AFlushedBlockIsThePools) {
  size_t before = live_spans();
  std::vector<void *> blocks;
  for (size_t size : {65536, 131072, 196608, 262144})
    for (int i = 0; i < 20; i++) blocks.push_back(hakmem_malloc(size));
  EXPECT_EQ(live_spans() - before, 20 * (1u + 2 + 3 + 4));
  for (void *p : blocks) hakmem_free(p);
  give_all_back();
  EXPECT_EQ(live_spans(), before) << "whole, whatever else lives";
}

TEST_F(WholeSpans, AlignmentUpToASpanIsTheirs) {
  for (size_t align : {64, 4096, 65536}) {
    void *p = hakmem_aligned_alloc(align, 100000);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % align, 0u);
    EXPECT_TRUE(hak_code_is_class(code_of(p)));
    hakmem_free(p);
  }
  void *p = hakmem_aligned_alloc(131072, 100000);
  EXPECT_EQ(code_of(p), unsigned(HAK_CODE_EXTENT));
  hakmem_free(p);
}

// calloc of as much takes an extent, which may be known to read as zero.
TEST_F(WholeSpans, CallocTouchesNothingThatIsZero) {
  auto *p = static_cast<char *>(hakmem_calloc(1, 200000));
  EXPECT_EQ(code_of(p), unsigned(HAK_CODE_EXTENT));
  for (size_t i = 0; i < 200000; i++) ASSERT_EQ(p[i], 0);
  hakmem_free(p);
}

TEST_F(WholeSpans, ReallocGrowsInPlaceAsAnExtent) {
  size_t before = live_spans();
  auto *p = static_cast<char *>(hakmem_malloc(100000));
  hakmem_free(hakmem_malloc(20 * HAK_MIB));  // makes spans accessible: those behind p may be free
  memset(p, 5, 100000);
  EXPECT_EQ(hakmem_realloc(p, 70000), p) << "more than half stays in use";
  EXPECT_TRUE(hak_code_is_class(code_of(p)));
  EXPECT_EQ(hakmem_realloc(p, 200000), p) << "there is room behind it";
  EXPECT_EQ(code_of(p), unsigned(HAK_CODE_EXTENT));
  auto *grown = static_cast<char *>(hakmem_realloc(p, 500000));
  EXPECT_EQ(grown, p);
  EXPECT_EQ(hakmem_malloc_usable_size(grown), 8 * HAK_SPAN_SIZE - (reinterpret_cast<uintptr_t>(p) % HAK_SPAN_SIZE != 0 ? 4096 : 0));
  for (size_t i = 0; i < 70000; i++) ASSERT_EQ(grown[i], 5);
  EXPECT_EQ(hakmem_heap_check(), 0u);
  auto *shrunk = static_cast<char *>(hakmem_realloc(grown, 40000));
  EXPECT_EQ(shrunk, grown) << "its tail goes back to the pool";
  EXPECT_EQ(hakmem_malloc_usable_size(shrunk), HAK_SPAN_SIZE - (reinterpret_cast<uintptr_t>(p) % HAK_SPAN_SIZE != 0 ? 4096 : 0));
  hakmem_free(shrunk);
  EXPECT_EQ(hakmem_heap_check(), 0u);
  give_all_back();
  EXPECT_EQ(live_spans(), before);
}

TEST_F(WholeSpans, NoExtentIsMadeOfWhatIsNoBlock) {
  auto *p = static_cast<char *>(hakmem_malloc(200000));
  unsigned c = code_of(p) - 1;
  hak_span *s = hak_region_span(hak_region_find(p), p);
  EXPECT_FALSE(hak_arena_make_extent(s, p + 4096, c));
  EXPECT_FALSE(hak_arena_make_extent(s, p, c - 1)) << "of another class";
  EXPECT_TRUE(hak_arena_make_extent(s, p, c));
  EXPECT_FALSE(hak_arena_make_extent(s, p, c)) << "it is one";
  hakmem_free(p);
  p = static_cast<char *>(hakmem_malloc(200000));
  hakmem_free(p);
  EXPECT_EQ(kept_of(c), 1u);
  EXPECT_FALSE(hak_arena_make_extent(hak_region_span(hak_region_find(p), p), p, c)) << "it was freed";
}

// Near a target they are extents, which go back to the pool and lose their tails.
TEST_F(WholeSpans, NearATargetTheyAreExtents) {
  size_t ceiling = hak_load_relaxed(&hak_budget_ceiling);
  void *cached = hakmem_malloc(100000);
  hakmem_free(cached);
  hak_store_relaxed(&hak_budget_ceiling, size_t{1});
  EXPECT_EQ(hakmem_malloc(100000), cached) << "what is cached serves";
  void *p = hakmem_malloc(100000);
  EXPECT_EQ(code_of(p), unsigned(HAK_CODE_EXTENT));
  void *aligned = hakmem_aligned_alloc(4096, 100000);
  EXPECT_EQ(code_of(aligned), unsigned(HAK_CODE_EXTENT));
  hakmem_free(p);
  hakmem_free(aligned);
  hak_store_relaxed(&hak_budget_ceiling, ceiling);
  hakmem_free(cached);
}

}  // namespace
