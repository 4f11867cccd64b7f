// Freed extents that are kept.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "fake_cpu.h"
#include "hak.h"
#include "hakmem/hakmem.h"

namespace {

constexpr size_t MIB = size_t{1} << 20;

size_t live_spans() { return hak_load_relaxed(&hak_span_pool.live_spans); }
size_t kept() { return hak_load_relaxed(&hak_kept_extent_bytes); }
void release(uint64_t until_ms = UINT64_MAX) {
  bool left, purge_due = false;
  hak_kept_release(until_ms, SIZE_MAX, &left, &purge_due);
}

class ExtentCache : public testing::Test {
 protected:
  void SetUp() override {
    hakmem_free(hakmem_malloc(1));
    fake_cpu::install();
    fake_cpu::number = 0;
    hak_deferred d = {};
    hak_tcache_flush(hak_thread_cache(), &d);  // a request that finds the pool full would do it
    hak_arena_shrink_all(&d);
    release();
  }
};

TEST_F(ExtentCache, TheLatestOfTheSizeIsUsedAgain) {
  void *a = hakmem_malloc(300000), *b = hakmem_malloc(300000), *other = hakmem_malloc(600000);
  hakmem_free(a);
  hakmem_free(b);
  hakmem_free(other);
  EXPECT_EQ(hakmem_malloc(320000), b) << "as many spans";
  EXPECT_EQ(hakmem_malloc(270000), a);
  EXPECT_NE(hakmem_malloc(320000), other) << "twice as many";
  EXPECT_EQ(hakmem_malloc_usable_size(a), 5u * 65536 - 4096);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

TEST_F(ExtentCache, OneThatIsLargerByAQuarterServes) {
  void *p = hakmem_malloc(20 * 65536);
  hakmem_free(p);
  EXPECT_NE(hakmem_malloc(15 * 65536), p);
  EXPECT_NE(hakmem_malloc(21 * 65536), p);
  EXPECT_EQ(hakmem_malloc(16 * 65536), p);
  EXPECT_EQ(hakmem_malloc_usable_size(p), 20u * 65536);
  hakmem_free(p);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

/* Of every size there is a list, and a request finds what lies in it. */
// A block that is used again stays at its colour, unless it is to be aligned or needs the room.
TEST_F(ExtentCache, ColoursStayWhereTheyFit) {
  void *p;
  do p = hakmem_malloc(300000);
  while (reinterpret_cast<uintptr_t>(p) % 65536 < 1024);
  void *base = reinterpret_cast<void *>(hak_align_down(reinterpret_cast<uintptr_t>(p), 65536));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
  hakmem_free(p);
  EXPECT_EQ(hakmem_malloc(5 * 65536 - 4096), p);
  hakmem_free(p);
  EXPECT_EQ(hakmem_malloc(5 * 65536 - 64), base);
  hakmem_free(base);
  do p = hakmem_malloc(300000);
  while (reinterpret_cast<uintptr_t>(p) % 65536 < 1024);
  base = reinterpret_cast<void *>(hak_align_down(reinterpret_cast<uintptr_t>(p), 65536));
  hakmem_free(p);
  EXPECT_EQ(hakmem_aligned_alloc(4096, 300000), base);
  EXPECT_EQ(hakmem_malloc_usable_size(base), 5u * 65536);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

TEST_F(ExtentCache, OfEachSize) {
  /* A request that finds the pool full releases what is kept. */
  std::vector<void *> room;
  for (int i = 0; i < 4; i++) room.push_back(hakmem_malloc(30 * MIB));
  for (void *p : room) hakmem_free(p);
  release();
  for (size_t spans = 1; spans <= 256; spans++) {
    void *p = hakmem_malloc(spans * 65536);
    ASSERT_NE(p, nullptr);
    hakmem_free(p);
    EXPECT_EQ(hakmem_malloc(spans * 65536), p) << spans;
    hakmem_free(p);
    release();
  }
}

TEST_F(ExtentCache, NoMoreThanMayBe) {
  size_t before = live_spans();
  std::vector<void *> blocks;
  for (int i = 0; i < 60; i++) blocks.push_back(hakmem_malloc(2 * MIB));
  for (void *p : blocks) hakmem_free(p);
  EXPECT_LE(kept(), 4 * MIB);
  EXPECT_GE(kept(), 2 * MIB);
  EXPECT_EQ((live_spans() - before) * 65536, kept());
  EXPECT_EQ(hakmem_heap_check(), 0u);
  release();
  EXPECT_EQ(kept(), 0u);
  EXPECT_EQ(live_spans(), before);
}

TEST_F(ExtentCache, IdleOnesGo) {
  size_t before = live_spans();
  uint64_t came = hak_os_now_ms();
  hakmem_free(hakmem_malloc(300000));
  release(came - 1);
  EXPECT_GE(kept(), 300000u) << "it came after that";
  release(hak_os_now_ms());
  EXPECT_EQ(live_spans(), before);
}

TEST_F(ExtentCache, ACachedOneIsNotTheUsers) {
  char *p = static_cast<char *>(hakmem_malloc(300000));
  memset(p, 1, 300000);
  hakmem_free(p);
  EXPECT_EQ(hakmem_malloc_usable_size(p), 0u);
  EXPECT_EQ(hak_extent_claim(hak_region_find(p), p), HAK_VERDICT_FREE_MEMORY) << "a second free";
  char *zeroed = static_cast<char *>(hakmem_calloc(1, 300000));
  EXPECT_EQ(zeroed, p);
  for (size_t i = 0; i < 300000; i++) ASSERT_EQ(zeroed[i], 0);
}

}  // namespace
