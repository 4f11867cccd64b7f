// Runs: whole spans as blocks, resized in place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "fake_os.h"
#include "fresh_pool.h"
#include "hak.h"

using testing::IsEmpty;

namespace {

class Extent : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_pool(1 * HAK_GIB));
    r = &hak_main_region;
  }
  void TearDown() override { EXPECT_THAT(fake_os::violations(), IsEmpty()); }
  char *alloc(size_t size, size_t align = 4096) { return static_cast<char *>(hak_extent_alloc(size, align, false, &zeroed)); }
  unsigned code(const void *p) { return hak_region_code(r, p); }
  hak_verdict free(void *p) {
    hak_verdict verdict = hak_extent_claim(r, p);
    if (verdict == HAK_VERDICT_OK) hak_extent_give(hak_region_find(p), p, &due);
    return verdict;
  }

  hak_region *r;
  bool zeroed = false, due = false;
};

TEST_F(Extent, SizesAreWholeSpans) {
  for (size_t size : {size_t(1), HAK_SPAN_SIZE - 1, HAK_SPAN_SIZE, HAK_SPAN_SIZE + 1, HAK_EXTENT_MAX - 1, HAK_EXTENT_MAX}) {
    char *p = alloc(size);
    ASSERT_NE(p, nullptr);
    size_t rounded = hak_align_up(size, HAK_SPAN_SIZE);
    EXPECT_EQ(hak_extent_size(r, p), rounded);
    EXPECT_EQ(hak_extent_size(r, p + size - 1), rounded) << "from the inside too";
    EXPECT_EQ(code(p), unsigned(HAK_CODE_EXTENT));
    if (rounded > HAK_SPAN_SIZE) EXPECT_EQ(code(p + rounded - 1), unsigned(HAK_CODE_EXTENT_BODY));
    EXPECT_TRUE(zeroed);
    p[0] = p[rounded - 1] = 1;
  }
}

TEST_F(Extent, SizeZeroStillOwnsMemory) {
  char *p = alloc(0, HAK_SPAN_SIZE * 2), *q = alloc(1, HAK_SPAN_SIZE * 2);
  EXPECT_NE(p, q);
  EXPECT_GE(hak_extent_size(r, p), 1u);
}

TEST_F(Extent, Alignments) {
  for (size_t align = 1; align <= HAK_EXTENT_MAX; align *= 2)
    EXPECT_EQ(reinterpret_cast<uintptr_t>(alloc(100000, align)) % align, 0u) << align;
}

TEST_F(Extent, FreeFindsInteriorAddresses) {
  char *p = alloc(3 * HAK_SPAN_SIZE);
  EXPECT_EQ(free(p + 1), HAK_VERDICT_NO_BLOCK_START);
  EXPECT_EQ(free(p + HAK_SPAN_SIZE), HAK_VERDICT_NO_BLOCK_START);
  EXPECT_EQ(code(p), unsigned(HAK_CODE_EXTENT)) << "and it is still allocated";
  EXPECT_EQ(free(p), HAK_VERDICT_OK);
  EXPECT_EQ(hak_span_pool.live_spans, 0u);
  EXPECT_EQ(free(p), HAK_VERDICT_FREE_MEMORY);
  EXPECT_EQ(free(p + HAK_SPAN_SIZE), HAK_VERDICT_NO_BLOCK_START) << "no extent starts there";
  settle_quick();
  for (size_t i = 0; i < 3; i++) EXPECT_EQ(code(p + i * HAK_SPAN_SIZE), 0u);
}

TEST_F(Extent, OfTwoFreesOneIsTold) {
  char *p = alloc(2 * HAK_SPAN_SIZE);
  EXPECT_EQ(hak_extent_claim(r, p), HAK_VERDICT_OK);
  EXPECT_EQ(code(p), unsigned(HAK_CODE_EXTENT_FREED));
  EXPECT_EQ(hak_extent_claim(r, p), HAK_VERDICT_FREE_MEMORY) << "before it is the pool's";
  hak_extent_give(hak_region_find(p), p, &due);
  EXPECT_EQ(hak_extent_claim(r, p), HAK_VERDICT_FREE_MEMORY) << "and afterwards";
  EXPECT_EQ(hak_span_pool.live_spans, 0u);
}

TEST_F(Extent, ReusedExtentsAreNotKnownZero) {
  char *p = alloc(HAK_MIB);
  memset(p, 0xff, HAK_MIB);
  free(p);
  EXPECT_EQ(alloc(HAK_MIB), p);
  EXPECT_FALSE(zeroed);
}

TEST_F(Extent, ShrinksInPlaceAndGivesTheTailBack) {
  char *p = alloc(10 * HAK_SPAN_SIZE);
  EXPECT_TRUE(hak_extent_resize(r, p, 3 * HAK_SPAN_SIZE + 1, &due));
  EXPECT_EQ(hak_extent_size(r, p), 4 * HAK_SPAN_SIZE);
  EXPECT_EQ(hak_span_pool.live_spans, 4u);
  EXPECT_EQ(hak_span_pool.dirty_spans, 6u);
  EXPECT_EQ(code(p + 4 * HAK_SPAN_SIZE), 0u);
  EXPECT_EQ(alloc(6 * HAK_SPAN_SIZE), p + 4 * HAK_SPAN_SIZE);
}

TEST_F(Extent, GrowsInPlaceIntoFreeSpansOnly) {
  char *p = alloc(2 * HAK_SPAN_SIZE), *q = alloc(HAK_SPAN_SIZE);
  EXPECT_FALSE(hak_extent_resize(r, p, 3 * HAK_SPAN_SIZE, &due));
  EXPECT_EQ(hak_extent_size(r, p), 2 * HAK_SPAN_SIZE);
  EXPECT_TRUE(hak_extent_resize(r, p, 2 * HAK_SPAN_SIZE - 5, &due)) << "the same spans";
  free(q);
  EXPECT_TRUE(hak_extent_resize(r, p, 5 * HAK_SPAN_SIZE, &due));
  EXPECT_EQ(hak_extent_size(r, p), 5 * HAK_SPAN_SIZE);
  for (size_t i = 1; i < 5; i++) EXPECT_EQ(code(p + i * HAK_SPAN_SIZE), unsigned(HAK_CODE_EXTENT_BODY));
  EXPECT_EQ(hak_extent_size(r, p + 4 * HAK_SPAN_SIZE), 5 * HAK_SPAN_SIZE);
  EXPECT_FALSE(hak_extent_resize(r, p, HAK_EXTENT_LONGEST + 1, &due));
}

TEST_F(Extent, GrowsInPlaceWhereTheRegionCanGrow) {
  char *p = alloc(HAK_MIB);
  size_t behind = size_t(p - (char *)r->base) / HAK_SPAN_SIZE + 16, accessible = r->ready_spans;
  size_t wanted = accessible - behind + 40;
  EXPECT_TRUE(hak_extent_resize(r, p, HAK_MIB + wanted * HAK_SPAN_SIZE, &due));
  p[HAK_MIB + wanted * HAK_SPAN_SIZE - 1] = 1;
  EXPECT_GE(r->ready_spans, accessible + 40);
  alloc(1);
  EXPECT_FALSE(hak_extent_resize(r, p, 20 * HAK_MIB, &due)) << "something lies behind it";
  char *q = alloc(HAK_MIB);
  fake_os::fail_all(fake_os::PROTECT);
  EXPECT_FALSE(hak_extent_resize(r, q, 30 * HAK_MIB, &due)) << "the system refuses";
  EXPECT_EQ(hak_extent_size(r, q), HAK_MIB);
}

TEST_F(Extent, OutOfMemoryIsNull) {
  fake_os::fail_all(fake_os::MAP);
  fake_os::fail_all(fake_os::PROTECT);
  while (alloc(HAK_MIB) != nullptr) {
  }
  EXPECT_EQ(alloc(HAK_EXTENT_MAX), nullptr);
}

}  // namespace
