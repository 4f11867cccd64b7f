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

constexpr size_t CLAIMED_AT_ONCE = 256;  // of release.c

class Run : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_pool(1 * HAK_GIB));
    r = &hak_main_region;
  }
  void TearDown() override { EXPECT_THAT(fake_os::violations(), IsEmpty()); }
  char *alloc(size_t size, size_t align = 4096) { return static_cast<char *>(hak_run_alloc(size, align, &zeroed)); }
  uint32_t tag(const void *p) { return hak_region_tag(r, p); }

  hak_region *r;
  bool zeroed = false, due = false;
};

TEST_F(Run, SizesAreWholeSpans) {
  for (size_t size : {size_t(1), HAK_SPAN_SIZE - 1, HAK_SPAN_SIZE, HAK_SPAN_SIZE + 1, HAK_RUN_MAX - 1, HAK_RUN_MAX}) {
    char *p = alloc(size);
    ASSERT_NE(p, nullptr);
    size_t rounded = hak_align_up(size, HAK_SPAN_SIZE);
    EXPECT_EQ(hak_run_size(r, p), rounded);
    EXPECT_EQ(hak_run_size(r, p + size - 1), rounded) << "from the inside too";
    EXPECT_EQ(tag(p), unsigned(HAK_CODE_RUN));
    if (rounded > HAK_SPAN_SIZE) EXPECT_EQ(tag(p + rounded - 1), unsigned(HAK_CODE_RUN_BODY));
    EXPECT_TRUE(zeroed);
    p[0] = p[rounded - 1] = 1;
  }
}

// What is dirty in pieces too small for a large run would stay beside it.
TEST_F(Run, ALargeOneBeyondTheRecordTakesThePlaceOfDirtyMemory) {
  auto dirty = [] { return hak_span_pool.dirty_spans; };
  for (int i = 0; i < 8; i++) alloc(HAK_RUN_MAX);  // more than any test before
  std::vector<char *> pieces, between;
  for (int i = 0; i < 40; i++) {
    pieces.push_back(alloc(20 * HAK_SPAN_SIZE));
    between.push_back(alloc(HAK_SPAN_SIZE));
  }
  for (char *p : pieces) EXPECT_EQ(hak_run_free(r, p, &due), HAK_VERDICT_OK);
  ASSERT_EQ(dirty(), 800u);
  char *small = alloc(HAK_HUGE_PAGE - HAK_SPAN_SIZE);
  EXPECT_EQ(dirty(), 800u) << "a small one is left alone";
  char *p = alloc(100 * HAK_SPAN_SIZE);
  EXPECT_EQ(dirty(), 700u);
  // Memory that changes hands.
  for (int i = 0; i < 5; i++) {
    EXPECT_EQ(hak_run_free(r, p, &due), HAK_VERDICT_OK);
    p = alloc(100 * HAK_SPAN_SIZE);
    EXPECT_EQ(dirty(), 700u);
  }
  EXPECT_EQ(hak_run_free(r, p, &due), HAK_VERDICT_OK);
  EXPECT_EQ(hak_run_free(r, small, &due), HAK_VERDICT_OK);
  EXPECT_NE(alloc(90 * HAK_SPAN_SIZE), nullptr);
  for (size_t n = 0; n < 10; n++) alloc(400 * HAK_SPAN_SIZE);
  EXPECT_LE(dirty(), hak_span_pool.live_spans * 8 / 100 + CLAIMED_AT_ONCE) << "all but what the profile keeps";
}

TEST_F(Run, SizeZeroStillOwnsMemory) {
  char *p = alloc(0, HAK_SPAN_SIZE * 2), *q = alloc(1, HAK_SPAN_SIZE * 2);
  EXPECT_NE(p, q);
  EXPECT_GE(hak_run_size(r, p), 1u);
}

TEST_F(Run, Alignments) {
  for (size_t align = 1; align <= HAK_RUN_MAX; align *= 2)
    EXPECT_EQ(reinterpret_cast<uintptr_t>(alloc(100000, align)) % align, 0u) << align;
}

TEST_F(Run, FreeFindsInteriorAddresses) {
  char *p = alloc(3 * HAK_SPAN_SIZE);
  EXPECT_EQ(hak_run_free(r, p + 1, &due), HAK_VERDICT_NO_BLOCK_START);
  EXPECT_EQ(hak_run_free(r, p + HAK_SPAN_SIZE, &due), HAK_VERDICT_NO_BLOCK_START);
  EXPECT_EQ(tag(p), unsigned(HAK_CODE_RUN)) << "and it is still allocated";
  EXPECT_EQ(hak_run_free(r, p, &due), HAK_VERDICT_OK);
  for (size_t i = 0; i < 3; i++) EXPECT_EQ(tag(p + i * HAK_SPAN_SIZE), 0u);
  EXPECT_EQ(hak_span_pool.live_spans, 0u);
}

TEST_F(Run, ReusedRunsAreNotKnownZero) {
  char *p = alloc(HAK_MIB);
  memset(p, 0xff, HAK_MIB);
  hak_run_free(r, p, &due);
  EXPECT_EQ(alloc(HAK_MIB), p);
  EXPECT_FALSE(zeroed);
}

TEST_F(Run, ShrinksInPlaceAndGivesTheTailBack) {
  char *p = alloc(10 * HAK_SPAN_SIZE);
  EXPECT_TRUE(hak_run_resize(r, p, 3 * HAK_SPAN_SIZE + 1, &due));
  EXPECT_EQ(hak_run_size(r, p), 4 * HAK_SPAN_SIZE);
  EXPECT_EQ(hak_span_pool.live_spans, 4u);
  EXPECT_EQ(hak_span_pool.dirty_spans, 6u);
  EXPECT_EQ(tag(p + 4 * HAK_SPAN_SIZE), 0u);
  EXPECT_EQ(alloc(6 * HAK_SPAN_SIZE), p + 4 * HAK_SPAN_SIZE);
}

TEST_F(Run, GrowsInPlaceIntoFreeSpansOnly) {
  char *p = alloc(2 * HAK_SPAN_SIZE), *q = alloc(HAK_SPAN_SIZE);
  EXPECT_FALSE(hak_run_resize(r, p, 3 * HAK_SPAN_SIZE, &due));
  EXPECT_EQ(hak_run_size(r, p), 2 * HAK_SPAN_SIZE);
  EXPECT_TRUE(hak_run_resize(r, p, 2 * HAK_SPAN_SIZE - 5, &due)) << "the same spans";
  hak_run_free(r, q, &due);
  EXPECT_TRUE(hak_run_resize(r, p, 5 * HAK_SPAN_SIZE, &due));
  EXPECT_EQ(hak_run_size(r, p), 5 * HAK_SPAN_SIZE);
  for (size_t i = 1; i < 5; i++) EXPECT_EQ(tag(p + i * HAK_SPAN_SIZE), unsigned(HAK_CODE_RUN_BODY));
  EXPECT_EQ(hak_run_size(r, p + 4 * HAK_SPAN_SIZE), 5 * HAK_SPAN_SIZE);
  EXPECT_FALSE(hak_run_resize(r, p, HAK_RUN_LONGEST + 1, &due));
}

TEST_F(Run, OutOfMemoryIsNull) {
  fake_os::fail_all(fake_os::MAP);
  fake_os::fail_all(fake_os::PROTECT);
  while (alloc(HAK_MIB) != nullptr) {
  }
  EXPECT_EQ(alloc(HAK_RUN_MAX), nullptr);
}

}  // namespace
