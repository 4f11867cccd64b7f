// Huge blocks: the side table, growth by mremap, kept mappings, and that the system is never called under the lock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "fake_os.h"
#include "hak.h"
#include "large_blocks.h"

using testing::IsEmpty;

namespace {

const size_t PAGE = hak_os_page_size();

class Huge : public testing::Test {
 protected:
  void SetUp() override {
    hak_meta_give_one(hak_meta_take()); /* whose mapping is none of these */
    fake_os::reset();
    fake_os::on_call([this](const fake_os::Event &) {
      if (single && hak_load_relaxed(&hak_huge_lock.state) != 0) called_under_lock = true;
    });
  }
  void TearDown() override {
    EXPECT_FALSE(called_under_lock);
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }
  char *alloc(size_t size, size_t align = PAGE) { return static_cast<char *>(large_blocks::alloc(size, align, &zeroed)); }
  static hak_huge_figures figures() {
    hak_huge_figures f;
    hak_huge_read(&f);
    return f;
  }
  size_t live_count() { return figures().live_count; }
  size_t live_bytes() { return figures().live_bytes; }

  bool zeroed = false, called_under_lock = false, single = true;
};

TEST_F(Huge, AllocSizeFree) {
  char *p = alloc(40 * HAK_MIB + 1);
  ASSERT_NE(p, nullptr);
  EXPECT_TRUE(zeroed);
  EXPECT_EQ(hak_huge_size(p), 40 * HAK_MIB + PAGE);
  EXPECT_EQ(live_bytes(), 40 * HAK_MIB + PAGE);
  p[0] = p[40 * HAK_MIB] = 1;
  EXPECT_EQ(hak_huge_size(p + PAGE), 0u);
  EXPECT_FALSE(large_blocks::free(p + PAGE));
  EXPECT_TRUE(large_blocks::free(p));
  EXPECT_FALSE(large_blocks::free(p)) << "a second time it is not ours";
  EXPECT_EQ(live_count(), 0u);
  EXPECT_EQ(live_bytes(), 0u);
}

size_t looked_at;

// Who looks at all blocks holds the lock for a few at a time, and each is looked at once a round.
TEST_F(Huge, BlocksAreLookedAtAFewAtATime) {
  std::vector<char *> blocks(1000);
  for (char *&p : blocks) ASSERT_NE(p = alloc(PAGE), nullptr);
  uintptr_t place = 0;
  size_t bytes = 0, all = 0;
  do {
    looked_at = 0;
    EXPECT_EQ(hak_huge_find([](const void *, size_t) { return looked_at++, false; }, &place, &bytes), nullptr);
    EXPECT_LE(looked_at, size_t(HAK_HUGE_LOOKED_AT));
    all += looked_at;
  } while (place != 0);
  EXPECT_EQ(all, live_count());
  for (char *p : blocks) EXPECT_TRUE(large_blocks::free(p));
}

// One call a mapping: none when one that was kept serves again, or when it is resized.
TEST_F(Huge, MappingsAreNamedOnce) {
  alloc(PAGE);
  fake_os::reset();
  char *p = alloc(40 * HAK_MIB);
  ASSERT_EQ(fake_os::names().size(), 1u);
  EXPECT_EQ(fake_os::names()[0].addr, reinterpret_cast<uintptr_t>(p));
  EXPECT_EQ(fake_os::names()[0].size_bytes, 40 * HAK_MIB);
  EXPECT_STREQ(fake_os::names()[0].name, "hakmem: huge blocks");
  for (int i = 0; i < 10; i++) {
    EXPECT_TRUE(large_blocks::free(p));
    p = alloc(40 * HAK_MIB);
  }
  p = static_cast<char *>(hak_huge_resize(p, 60 * HAK_MIB, true));
  EXPECT_NE(hak_huge_resize(p, 50 * HAK_MIB, true), nullptr);
  EXPECT_EQ(fake_os::names().size(), 1u);
}

TEST_F(Huge, ForeignPointersAreNotOurs) {
  int local = 0;
  EXPECT_EQ(hak_huge_size(&local), 0u);
  EXPECT_FALSE(large_blocks::free(&local));
  EXPECT_EQ(hak_huge_resize(&local, 100, true), nullptr);
  alloc(PAGE);
  EXPECT_EQ(hak_huge_size(nullptr), 0u);
  EXPECT_EQ(hak_huge_size(reinterpret_cast<void *>(1)), 0u) << "the mark of a removed entry is no block";
}

TEST_F(Huge, Alignments) {
  for (size_t align = PAGE; align <= 1 * HAK_GIB; align *= 4) {
    char *p = alloc(33 * HAK_MIB, align);
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % align, 0u);
    EXPECT_TRUE(large_blocks::free(p));
  }
}

TEST_F(Huge, TheIndexGrowsAndForgetsNothing) {
  std::vector<char *> blocks;
  for (size_t i = 0; i < 3000; i++) {
    blocks.push_back(alloc((i % 7 + 1) * PAGE));
    ASSERT_NE(blocks.back(), nullptr);
  }
  EXPECT_EQ(live_count(), 3000u);
  for (size_t i = 0; i < 3000; i++) ASSERT_GE(hak_huge_size(blocks[i]), (i % 7 + 1) * PAGE);
  for (size_t i = 0; i < 3000; i += 2) ASSERT_TRUE(large_blocks::free(blocks[i]));
  for (size_t i = 0; i < 3000; i++) ASSERT_EQ(hak_huge_size(blocks[i]) != 0, i % 2 == 1);
  EXPECT_EQ(live_count(), 1500u);
}

TEST_F(Huge, TheMarkOfARemovedEntryIsNobodysAddress) {
  void *mark = reinterpret_cast<void *>(1); /* its place is the table's first, where a run of entries that wrap around begins */
  for (int round = 0; round < 20; round++) {
    std::vector<char *> blocks;
    for (int i = 0; i < 120; i++) blocks.push_back(alloc((round % 7 + 1) * HAK_MIB));
    for (char *p : blocks) ASSERT_TRUE(large_blocks::free(p));
    ASSERT_FALSE(large_blocks::free(mark)) << round;
    ASSERT_EQ(hak_huge_resize(mark, PAGE, true), nullptr) << round;
    ASSERT_EQ(live_count(), 0u) << round;
  }
}

TEST_F(Huge, RemovedEntriesAreReused) {
  // Addresses differ each time, so that every insertion needs a slot of its own.
  for (int i = 0; i < 20000; i++) {
    char *p = alloc(PAGE), *q = alloc(2 * PAGE);
    ASSERT_TRUE(large_blocks::free(p));
    ASSERT_TRUE(large_blocks::free(q));
  }
  for (const auto &e : fake_os::log()) ASSERT_LE(e.size_bytes, 2 * HAK_SPAN_SIZE) << "the index grew for two live blocks";
  EXPECT_LT(fake_os::count(fake_os::MAP), 50u) << "the index grew again and again";
}

TEST_F(Huge, ResizeKeepsContents) {
  char *p = alloc(40 * HAK_MIB);
  p[0] = 11;
  p[40 * HAK_MIB - 1] = 22;
  char *q = static_cast<char *>(hak_huge_resize(p, 90 * HAK_MIB, true));
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q[0], 11);
  EXPECT_EQ(q[40 * HAK_MIB - 1], 22);
  EXPECT_EQ(hak_huge_size(q), 90 * HAK_MIB);
  if (q != p) EXPECT_EQ(hak_huge_size(p), 0u);
  EXPECT_EQ(live_bytes(), 90 * HAK_MIB);
  char *s = static_cast<char *>(hak_huge_resize(q, 33 * HAK_MIB, true));
  EXPECT_EQ(s[0], 11);
  EXPECT_EQ(hak_huge_size(s), 33 * HAK_MIB);
  EXPECT_EQ(live_count(), 1u);
}

TEST_F(Huge, FailedResizeLeavesTheBlock) {
  char *p = alloc(40 * HAK_MIB);
  p[5] = 5;
  fake_os::fail_nth(fake_os::REMAP, 1);
  EXPECT_EQ(hak_huge_resize(p, 90 * HAK_MIB, true), nullptr);
  EXPECT_EQ(hak_huge_size(p), 40 * HAK_MIB);
  EXPECT_EQ(p[5], 5);
  EXPECT_EQ(hak_huge_resize(p, PTRDIFF_MAX, true), nullptr);
  EXPECT_EQ(hak_huge_size(p), 40 * HAK_MIB);
  EXPECT_TRUE(large_blocks::free(p));
}

TEST_F(Huge, ResizeNeedsNoMemoryForTheTable) {
  std::vector<char *> blocks;
  for (int i = 0; i < 128; i++) blocks.push_back(alloc(HAK_SPAN_SIZE));
  fake_os::fail_all(fake_os::MAP);
  for (char *&p : blocks) {
    p = static_cast<char *>(hak_huge_resize(p, 3 * HAK_SPAN_SIZE, true));
    ASSERT_NE(p, nullptr);
    ASSERT_EQ(hak_huge_size(p), 3 * HAK_SPAN_SIZE);
  }
  EXPECT_EQ(live_count(), 128u);
}

TEST_F(Huge, FreedMappingsAreKeptAndReused) {
  char *p = alloc(40 * HAK_MIB);
  p[0] = 1;
  EXPECT_TRUE(large_blocks::free(p));
  EXPECT_EQ(hak_huge_size(p), 0u);
  char *q = alloc(39 * HAK_MIB);
  EXPECT_EQ(q, p);
  EXPECT_FALSE(zeroed) << "it holds what the program left";
  EXPECT_EQ(hak_huge_size(q), 40 * HAK_MIB);
}

TEST_F(Huge, KeptMappingsWasteAtMostAQuarter) {
  char *p = alloc(50 * HAK_MIB);
  large_blocks::free(p);
  char *q = alloc(40 * HAK_MIB);  // 50 = 40 + 1/4: just fits
  EXPECT_EQ(q, p);
  large_blocks::free(q);
  char *s = alloc(39 * HAK_MIB);
  EXPECT_NE(s, p);
  EXPECT_TRUE(zeroed);
}

TEST_F(Huge, TheTightestIsUsedAgain) {
  char *a = alloc(41 * HAK_MIB), *b = alloc(44 * HAK_MIB), *c = alloc(44 * HAK_MIB), *d = alloc(48 * HAK_MIB);
  for (char *p : {b, d, c, a}) large_blocks::free(p);
  EXPECT_EQ(alloc(42 * HAK_MIB), c) << "of two that are as large, the later";
  EXPECT_EQ(alloc(42 * HAK_MIB), b);
  EXPECT_EQ(alloc(40 * HAK_MIB), a);
  EXPECT_EQ(alloc(42 * HAK_MIB), d);
}

TEST_F(Huge, KeptMappingsHonourAlignment) {
  for (int i = 0; i < 20; i++) {
    char *p = alloc(40 * HAK_MIB);
    large_blocks::free(p);
    char *q = alloc(40 * HAK_MIB, 256 * HAK_MIB);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(q) % (256 * HAK_MIB), 0u);
    large_blocks::free(q);
    large_blocks::release();
  }
}

// What is kept and what is in use are together at most 5/4 of what was in use.
TEST_F(Huge, KeptMappingsGoBeforeNewOnesCome) {
  size_t before = fake_os::mapped_bytes(), most = 0;
  fake_os::on_call([&](const fake_os::Event &) { most = std::max(most, fake_os::mapped_bytes() - before); });
  char *p = alloc(8 * HAK_MIB);
  for (size_t mib = 16; mib <= 256; mib *= 2) {  // a table that grows by copies
    char *q = alloc(mib * HAK_MIB);
    large_blocks::free(p);
    p = q;
  }
  EXPECT_LE(most, 384 * HAK_MIB + 384 * HAK_MIB / 4 + 32 * PAGE) << "256 and 128 at once; a quarter of the metadata";
  large_blocks::free(p);
  EXPECT_GE(large_blocks::release(), 256 * HAK_MIB);
  EXPECT_LE(fake_os::mapped_bytes() - before, 2 * PAGE) << "nothing is left";
  EXPECT_EQ(large_blocks::release(), 0u);
}

// All that was in use at once may be kept, until two decay times have passed.
TEST_F(Huge, KeptBytesFallWithWhatIsInUse) {
  std::vector<char *> blocks;
  for (int i = 0; i < 5; i++) blocks.push_back(alloc(33 * HAK_MIB));
  for (char *p : blocks) large_blocks::free(p);
  EXPECT_EQ(figures().kept_bytes, 5 * 33 * HAK_MIB);
  hak_kept_turn();
  EXPECT_EQ(large_blocks::release(0), 0u);
  hak_kept_turn();
  EXPECT_EQ(large_blocks::release(0), 5 * 33 * HAK_MIB) << "nothing was in use for so long";
}

TEST_F(Huge, NearATargetNoneAreKept) {
  size_t before = fake_os::mapped_bytes();
  char *p = alloc(70 * HAK_MIB), *q = alloc(34 * HAK_MIB);
  large_blocks::free(p);
  EXPECT_EQ(figures().kept_bytes, 70 * HAK_MIB);
  hak_store_relaxed(&hak_budget_ceiling, SIZE_MAX - 1); /* there is a target */
  hak_store_relaxed(&hak_budget_level_now, HAK_BUDGET_NEAR);
  EXPECT_EQ(large_blocks::release(0), 70 * HAK_MIB) << "at once, though it is young";
  large_blocks::free(q);
  EXPECT_EQ(figures().kept_bytes, 0u);
  hak_store_relaxed(&hak_budget_level_now, HAK_BUDGET_FAR);
  hak_store_relaxed(&hak_budget_ceiling, SIZE_MAX);
  EXPECT_LE(fake_os::mapped_bytes() - before, 2 * PAGE) << "nothing is left";
}

TEST_F(Huge, KeptMappingsGoInSteps) {
  fake_os::set_clock(5000);
  char *p = alloc(100 * HAK_MIB);
  large_blocks::free(p);
  bool left;
  EXPECT_EQ(hak_kept_release(4999, 32 * HAK_MIB, &left), 0u);
  EXPECT_FALSE(left);
  EXPECT_EQ(hak_kept_release(5000, 32 * HAK_MIB, &left), 32 * HAK_MIB);
  EXPECT_TRUE(left);
  char *q = alloc(60 * HAK_MIB);
  EXPECT_EQ(q, p) << "what is left serves";
  EXPECT_EQ(hak_huge_size(q), 68 * HAK_MIB);
  large_blocks::free(q);
  EXPECT_EQ(hak_kept_release(5000, 64 * HAK_MIB, &left), 64 * HAK_MIB);
  EXPECT_TRUE(left);
  EXPECT_EQ(hak_kept_release(5000, 64 * HAK_MIB, &left), 4 * HAK_MIB);
  EXPECT_FALSE(left);
}

TEST_F(Huge, KeptMappingsGoWhenTheyAreIdle) {
  size_t before = fake_os::mapped_bytes();
  fake_os::set_clock(5000);
  char *first = alloc(20 * HAK_MIB), *second = alloc(20 * HAK_MIB);
  large_blocks::free(first);
  fake_os::set_clock(5600);
  large_blocks::free(second);
  large_blocks::release(4999);
  EXPECT_GE(fake_os::mapped_bytes() - before, 40 * HAK_MIB);
  large_blocks::release(5000);
  EXPECT_LT(fake_os::mapped_bytes() - before, 40 * HAK_MIB);
  EXPECT_GE(fake_os::mapped_bytes() - before, 20 * HAK_MIB);
  large_blocks::release(5600);
  EXPECT_LT(fake_os::mapped_bytes() - before, 20 * HAK_MIB);
}

TEST_F(Huge, NoMemoryIsNullAndCounted) {
  uint64_t failed = hak_os_stats.huge_fail;
  fake_os::fail_all(fake_os::MAP);
  EXPECT_EQ(alloc(40 * HAK_MIB), nullptr);
  EXPECT_EQ(hak_os_stats.huge_fail, failed + 1);
  fake_os::allow_all();
  EXPECT_EQ(alloc(PTRDIFF_MAX), nullptr);
  // The block can be mapped, the index cannot grow.
  while (hak_meta_take() != nullptr) {
    fake_os::fail_all(fake_os::MAP);
    fake_os::fail_all(fake_os::PROTECT);
  }
  fake_os::allow_all();
  fake_os::fail_if([](const fake_os::Event &e) { return (e.call == fake_os::MAP && e.size_bytes < 16 * HAK_MIB) || e.call == fake_os::PROTECT ? ENOMEM : 0; });
  size_t before = fake_os::mapped_bytes();
  EXPECT_EQ(alloc(40 * HAK_MIB), nullptr);
  EXPECT_EQ(fake_os::mapped_bytes(), before) << "the block leaked";
  EXPECT_EQ(live_count(), 0u);
}

TEST_F(Huge, ThreadsShareTheIndex) {
  single = false;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; t++) {
    threads.emplace_back([t] {
      std::mt19937 random(t);
      std::vector<std::pair<char *, size_t>> mine;
      for (int i = 0; i < 1500; i++) {
        bool zero;
        if (mine.size() < 100 && random() % 2) {
          size_t size = (1 + random() % 20) * PAGE;
          char *p = static_cast<char *>(large_blocks::alloc(size, PAGE, &zero));
          ASSERT_NE(p, nullptr);
          memset(p, int(t + 1), size);
          mine.emplace_back(p, size);
        } else if (!mine.empty()) {
          size_t at = random() % mine.size();
          auto &[p, size] = mine[at];
          ASSERT_EQ(p[size - 1], char(t + 1));
          if (random() % 3 == 0) {
            size_t bigger = size + PAGE;
            p = static_cast<char *>(hak_huge_resize(p, bigger, true));
            ASSERT_NE(p, nullptr);
            memset(p, int(t + 1), bigger);
            size = bigger;
          } else {
            ASSERT_TRUE(large_blocks::free(p));
            mine[at] = mine.back();
            mine.pop_back();
          }
        }
      }
      for (auto &[p, size] : mine) ASSERT_TRUE(large_blocks::free(p));
    });
  }
  for (auto &t : threads) t.join();
  EXPECT_EQ(live_count(), 0u);
}

// --- where the system grants no mapping, as under an RLIMIT_AS that the program set after its start ---

class HugeRefused : public testing::Test {
 protected:
  void SetUp() override {
    hakmem_free(hakmem_malloc(1));
    fake_os::reset();
    fake_os::fail_all(fake_os::MAP);
    fake_os::fail_all(fake_os::REMAP);
  }
  void TearDown() override {
    EXPECT_THAT(fake_os::violations(), IsEmpty());
    EXPECT_EQ(hakmem_heap_check(), 0u);
    fake_os::allow_all();
    hak_config.limit = 0;
  }
  // Other mappings are to be had: it is the size that is refused.
  static void refuse_large() {
    fake_os::allow_all();
    fake_os::fail_if([](const fake_os::Event &e) { return e.call == fake_os::MAP && e.size_bytes > 32 * HAK_MIB ? ENOMEM : 0; });
  }
  static bool is_run(const void *p) { return p != nullptr && hak_region_find(p) != nullptr; }
};

TEST_F(HugeRefused, ARunServesUpTo64MiB) {
  if (HAK_HARD(GUARDS)) GTEST_SKIP() << "guards stand in between";
  for (size_t mib : {33, 50, 64}) {
    char *p = static_cast<char *>(hakmem_calloc(mib, HAK_MIB));
    ASSERT_TRUE(is_run(p)) << mib;
    EXPECT_GE(hakmem_malloc_usable_size(p), mib * HAK_MIB);
    EXPECT_EQ(p[0] | p[mib * HAK_MIB - 1], 0);
    memset(p, 1, mib * HAK_MIB);
    hakmem_free_sized(p, mib * HAK_MIB);
  }
  errno = 0;
  refuse_large();
  EXPECT_EQ(hakmem_malloc(64 * HAK_MIB + 1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
}

// A process that may have no mapping more can still make more of a region accessible.
TEST_F(HugeRefused, LongRunsServeWhereNothingCanBeMapped) {
  if (HAK_HARD(GUARDS)) GTEST_SKIP() << "guards stand in between";
  struct { size_t align, bytes; } const requests[] = {{16, 65 * HAK_MIB}, {4096, 300 * HAK_MIB}, {16, 129 * HAK_MIB}, {64 * HAK_MIB, 100}, {128 * HAK_MIB, 70 * HAK_MIB}};
  for (int round = 0; round < 2; round++) {
    std::vector<char *> blocks;
    for (const auto &r : requests) {
      char *p = static_cast<char *>(hakmem_aligned_calloc(r.align, 1, r.bytes));
      ASSERT_TRUE(is_run(p)) << r.bytes;
      EXPECT_EQ(uintptr_t(p) % r.align, 0u);
      EXPECT_GE(hakmem_malloc_usable_size(p), r.bytes);
      for (size_t at = 0; at < r.bytes; at += HAK_MIB - 8) EXPECT_EQ(p[at], 0) << at;
      for (char *other : blocks) EXPECT_NE(p, other);
      memset(p, int(blocks.size()) + 1, hakmem_malloc_usable_size(p));
      blocks.push_back(p);
      EXPECT_EQ(hakmem_heap_check(), 0u);
    }
    for (size_t i = 0; i < blocks.size(); i++) {
      EXPECT_EQ(blocks[i][0], char(i + 1));
      EXPECT_EQ(blocks[i][requests[i].bytes - 1], char(i + 1));
      hakmem_free(blocks[i]);
      EXPECT_EQ(hakmem_heap_check(), 0u);
    }
    if (round == 0) hakmem_free(hakmem_malloc(60 * HAK_MIB)); // of what they held
  }
}

TEST_F(HugeRefused, LongRunsAreResized) {
  if (HAK_HARD(GUARDS)) GTEST_SKIP() << "guards stand in between";
  char *p = static_cast<char *>(hakmem_malloc(200 * HAK_MIB));
  ASSERT_TRUE(is_run(p));
  p[0] = 1;
  p[150 * HAK_MIB] = 2;
  char *shrunk = static_cast<char *>(hakmem_realloc(p, 151 * HAK_MIB));
  EXPECT_EQ(shrunk, p) << "in place";
  char *grown = static_cast<char *>(hakmem_realloc(p, 290 * HAK_MIB));
  ASSERT_TRUE(is_run(grown));
  EXPECT_EQ(grown[0], 1);
  EXPECT_EQ(grown[150 * HAK_MIB], 2);
  EXPECT_EQ(hakmem_heap_check(), 0u);
  hakmem_free(grown);
}

TEST_F(HugeRefused, AlignedUpToAHugePage) {
  if (HAK_HARD(GUARDS)) GTEST_SKIP() << "guards stand in between";
  for (size_t align : {PAGE, HAK_SPAN_SIZE, HAK_HUGE_PAGE}) {
    void *p = hakmem_aligned_alloc(align, 40 * HAK_MIB);
    ASSERT_TRUE(is_run(p)) << align;
    EXPECT_EQ(uintptr_t(p) % align, 0u);
    hakmem_free(p);
  }
  size_t ready = hak_main_region.ready_spans;
  refuse_large();
  EXPECT_EQ(hakmem_aligned_alloc(2 * HAK_HUGE_PAGE, 64 * HAK_MIB), nullptr);
  EXPECT_EQ(hak_main_region.ready_spans, ready) << "a request that cannot be served takes nothing";
}

TEST_F(HugeRefused, ReallocGoesBothWays) {
  if (HAK_HARD(GUARDS)) GTEST_SKIP() << "guards stand in between";
  char *p = static_cast<char *>(hakmem_malloc(40 * HAK_MIB));
  ASSERT_TRUE(is_run(p));
  p[0] = 1;
  p[40 * HAK_MIB - 1] = 2;
  p = static_cast<char *>(hakmem_realloc(p, 60 * HAK_MIB));
  ASSERT_TRUE(is_run(p));
  EXPECT_EQ(p[40 * HAK_MIB - 1], 2);
  char *shrunk = static_cast<char *>(hakmem_realloc(p, 35 * HAK_MIB));
  EXPECT_EQ(shrunk, p) << "in place";
  EXPECT_EQ(hakmem_malloc_usable_size(p), 35 * HAK_MIB);
  fake_os::allow_all();
  p = static_cast<char *>(hakmem_realloc(p, 100 * HAK_MIB));
  EXPECT_FALSE(is_run(p));
  EXPECT_EQ(p[0], 1);
  fake_os::fail_all(fake_os::MAP);
  fake_os::fail_all(fake_os::REMAP);
  p = static_cast<char *>(hakmem_realloc(p, 50 * HAK_MIB));
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(p[0], 1);
  hakmem_free(p);
}

TEST_F(HugeRefused, TheLimitHolds) {
  if (HAK_HARD(GUARDS)) GTEST_SKIP() << "guards stand in between";
  hak_deferred d = {};
  hak_decay_all(0, &d);
  hak_budget_figures figures;
  hak_budget_state(&figures);
  hak_config.limit = int64_t(figures.used + 45 * HAK_MIB);
  EXPECT_EQ(hakmem_malloc(50 * HAK_MIB), nullptr);
  void *p = hakmem_malloc(40 * HAK_MIB);
  EXPECT_TRUE(is_run(p));
  EXPECT_EQ(hakmem_malloc(40 * HAK_MIB), nullptr);
  hakmem_free(p);
}

TEST_F(HugeRefused, AMappingIsTakenWhereOneIsToBeHad) {
  fake_os::allow_all();
  void *p = hakmem_malloc(50 * HAK_MIB);
  EXPECT_FALSE(is_run(p));
  hakmem_free(p);
}

}  // namespace
