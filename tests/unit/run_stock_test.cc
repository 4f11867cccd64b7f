// Runs that a thread keeps for its next requests: which, how many, how long, and that their next user sees nothing of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "fake_os.h"
#include "hak.h"

using testing::IsEmpty;

namespace {

constexpr size_t SIZE = 2 * HAK_SPAN_SIZE;

class RunStock : public testing::Test {
 protected:
  void SetUp() override {
    fake_os::reset();
    hakmem_free(hakmem_malloc(1));  // the thread has a heap
    h = hak_heap_current();
    ASSERT_EQ(h->run_stock_count, 0u);
  }
  void TearDown() override {
    EXPECT_EQ(hak_heap_check(), 0u);
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }
  // Frees n runs of the size that were all alive at once, in order.
  static std::vector<void *> free_many(size_t size, size_t n) {
    std::vector<void *> runs(n);
    for (void *&p : runs) p = hakmem_malloc(size);
    for (void *p : runs) hakmem_free(p);
    return runs;
  }
  static size_t kept_bytes(const hak_heap *h) {
    size_t spans = 0;
    for (unsigned i = 0; i < h->run_stock_count; i++) spans += h->run_stock[i].spans;
    EXPECT_EQ(spans, h->run_stock_spans);
    return spans * HAK_SPAN_SIZE;
  }

  hak_heap *h;
};

TEST_F(RunStock, FreedRunServesTheNextOfItsSize) {
  void *p = hakmem_malloc(SIZE);
  hakmem_free(p);
  EXPECT_EQ(h->run_stock_count, 1u);
  EXPECT_EQ(hak_region_tag_of(p), unsigned(HAK_CODE_RUN_KEPT));
  EXPECT_EQ(hakmem_malloc_usable_size(p), 0u) << "it is freed";
  EXPECT_EQ(hak_heap_check(), 0u);
  EXPECT_EQ(hakmem_malloc(SIZE - 1000), p);
  EXPECT_EQ(h->run_stock_count, 0u);
  EXPECT_EQ(hak_region_tag_of(p), unsigned(HAK_CODE_RUN));
  EXPECT_EQ(hakmem_malloc_usable_size(p), SIZE);
  hakmem_free(p);
}

TEST_F(RunStock, TheLatestIsTakenFirstAndOnlyOfTheSize) {
  auto runs = free_many(SIZE, 3);
  void *other = hakmem_malloc(SIZE + 1);
  EXPECT_THAT(runs, testing::Not(testing::Contains(other)));
  for (size_t i = runs.size(); i-- > 0;) EXPECT_EQ(hakmem_malloc(SIZE), runs[i]);
  hakmem_free(other);
  for (void *p : runs) hakmem_free(p);
}

TEST_F(RunStock, AlignmentBeyondASpanIsNotServed) {
  free_many(SIZE, HAK_RUN_STOCK);
  void *p = hakmem_aligned_alloc(4 * HAK_SPAN_SIZE, SIZE);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % (4 * HAK_SPAN_SIZE), 0u);
  EXPECT_EQ(h->run_stock_count, unsigned(HAK_RUN_STOCK));
  hakmem_free(p);
}

TEST_F(RunStock, CallocOfAKeptRunIsZero) {
  char *p = static_cast<char *>(hakmem_malloc(SIZE));
  memset(p, 0xaa, SIZE);
  hakmem_free(p);
  char *q = static_cast<char *>(hakmem_calloc(SIZE / 8, 8));
  ASSERT_EQ(q, p);
  for (size_t i = 0; i < SIZE; i++) ASSERT_EQ(q[i], 0) << i;
  hakmem_free(q);
}

TEST_F(RunStock, KeepsEightAndTheOldestGoes) {
  auto runs = free_many(HAK_SPAN_SIZE, HAK_RUN_STOCK + 2);
  EXPECT_EQ(h->run_stock_count, unsigned(HAK_RUN_STOCK));
  EXPECT_EQ(hak_region_tag_of(runs[0]), 0u);
  EXPECT_EQ(hak_region_tag_of(runs[1]), 0u);
  EXPECT_EQ(hak_region_tag_of(runs[2]), unsigned(HAK_CODE_RUN_KEPT));
}

TEST_F(RunStock, KeepsTwoMebibytesAndNoneAboveOne) {
  free_many(HAK_MIB, 3);
  EXPECT_EQ(kept_bytes(h), 2 * HAK_MIB);
  auto large = free_many(HAK_MIB + 1, 1);
  EXPECT_EQ(hak_region_tag_of(large[0]), 0u);
  EXPECT_EQ(kept_bytes(h), 2 * HAK_MIB);
  free_many(HAK_SPAN_SIZE, 1);
  EXPECT_EQ(kept_bytes(h), HAK_MIB + HAK_SPAN_SIZE) << "the oldest makes room";
}

TEST_F(RunStock, RunsOfOtherThreadsAreKeptByWhoeverFreesThem) {
  void *p = nullptr;
  std::thread([&] { p = hakmem_malloc(SIZE); }).join();
  hakmem_free(p);
  EXPECT_EQ(hakmem_malloc(SIZE), p);
  hakmem_free(p);
}

TEST_F(RunStock, TrimGivesThemToThePool) {
  auto runs = free_many(SIZE, 4);
  hakmem_malloc_trim(0);
  EXPECT_EQ(h->run_stock_count, 0u);
  for (void *p : runs) EXPECT_EQ(hak_region_tag_of(p), 0u);
}

TEST_F(RunStock, ThreadThatEndsLeavesNone) {
  std::vector<void *> runs;
  std::thread([&] { runs = free_many(SIZE, 4); }).join();
  for (void *p : runs) EXPECT_EQ(hak_region_tag_of(p), 0u);
}

TEST_F(RunStock, UnusedForAWhileTheyGo) {
  uint64_t now = 1000000;
  fake_os::set_clock(now);
  auto slow_paths = [] {  // of another size
    for (int i = 0; i < 3; i++) {
      std::vector<void *> blocks(3000);
      for (void *&p : blocks) p = hakmem_malloc(1000);
      for (void *p : blocks) hakmem_free(p);
    }
  };
  slow_paths();
  free_many(SIZE, 2);
  for (int i = 0; i < 5; i++) {
    hakmem_free(hakmem_malloc(SIZE));  // a hit
    fake_os::set_clock(now += 300);
    slow_paths();
    EXPECT_EQ(h->run_stock_count, 2u) << "in use";
  }
  fake_os::set_clock(now += 300);
  slow_paths();
  EXPECT_EQ(h->run_stock_count, 0u);
}

TEST_F(RunStock, OfTwoFreesOneIsTold) {
  void *p = hakmem_malloc(SIZE);
  bool due = false;
  EXPECT_EQ(hak_run_free(&hak_main_region, static_cast<char *>(p) + HAK_SPAN_SIZE, &due), HAK_VERDICT_NO_BLOCK_START);
  EXPECT_EQ(hak_run_stock_put(h, &hak_main_region, p, &due), HAK_VERDICT_OK);
  EXPECT_EQ(hak_run_stock_put(h, &hak_main_region, p, &due), HAK_VERDICT_FREE_MEMORY);
  EXPECT_EQ(hak_run_free(&hak_main_region, p, &due), HAK_VERDICT_FREE_MEMORY);
  EXPECT_EQ(h->run_stock_count, 1u);
}

}  // namespace
