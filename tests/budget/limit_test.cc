// HAKMEM_LIMIT, as the program sees it: NULL with ENOMEM above it, and nothing lost below.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "hak.h"
#include "long_decay.h"

namespace {

constexpr size_t MIB = HAK_MIB;

struct Block {
  unsigned char *p;
  size_t size;
};

size_t used() {
  hak_budget_figures figures;
  hak_budget_state(&figures);
  return figures.used;
}

uint64_t refused() {
  hak_budget_figures figures;
  hak_budget_state(&figures);
  return figures.refused;
}

class Limit : public testing::Test {
 protected:
  static constexpr size_t LIMIT = 64 * MIB;
  void SetUp() override {
    hakmem_free(hakmem_malloc(1));
    ASSERT_EQ(hakmem_option_set("HAKMEM_LIMIT", LIMIT), 0);
  }
  void TearDown() override {
    EXPECT_EQ(hakmem_heap_check(), 0u);
    EXPECT_EQ(hakmem_option_set("HAKMEM_LIMIT", 0), 0);
  }
};

// Until NULL; the blocks' contents are checked when they are freed.
std::vector<Block> fill(size_t size) {
  std::vector<Block> blocks;
  for (;;) {
    errno = 0;
    auto *p = static_cast<unsigned char *>(hakmem_malloc(size));
    if (p == nullptr) {
      EXPECT_EQ(errno, ENOMEM);
      return blocks;
    }
    memset(p, int(blocks.size() & 0xff), size);
    blocks.push_back({p, size});
  }
}

void free_block(const std::vector<Block> &blocks, size_t i) {
  ASSERT_EQ(blocks[i].p[0], i & 0xff);
  ASSERT_EQ(blocks[i].p[blocks[i].size - 1], i & 0xff);
  hakmem_free(blocks[i].p);
}

void free_all(const std::vector<Block> &blocks) {
  for (size_t i = 0; i < blocks.size(); i++) free_block(blocks, i);
}

class EachSize : public Limit, public testing::WithParamInterface<size_t> {};

TEST_P(EachSize, FillsTheLimitAndNoMore) {
  size_t size = GetParam();
  uint64_t before = refused();
  std::vector<Block> blocks = fill(size);
  EXPECT_EQ(refused(), before + 1);
  EXPECT_LE(used(), LIMIT + MIB) << "beyond it only what the allocator needs for itself";
  EXPECT_GE(blocks.size() * hakmem_good_size(size), LIMIT / 100 * (size > 8 * MIB ? 75 : 85)) << "most of it is the program's";
  EXPECT_EQ(hakmem_heap_check(), 0u);
  free_all(blocks);
  std::vector<Block> again = fill(size);
  /* The magazines that held them stay the allocator's: of the smallest blocks one is half as large as what it holds. */
  EXPECT_GE(again.size() * 100, blocks.size() * (size == 16 ? 80 : 98));
  free_all(again);
}

INSTANTIATE_TEST_SUITE_P(, EachSize, testing::Values(16, 100, 1000, 5000, 32768, 65536, 300000, MIB, 10 * MIB));

TEST_F(Limit, MemoryFreedAsOneSizeServesAnyOther) {
  for (size_t size : {size_t(100), 5 * MIB, size_t(32768), size_t(64), 20 * MIB, size_t(70000)}) {
    std::vector<Block> blocks = fill(size);
    EXPECT_GE(blocks.size() * hakmem_good_size(size), LIMIT / 100 * 60) << size;
    free_all(blocks);
  }
}

// Every second block stays, so that what is free is in pieces of pieces.
TEST_F(Limit, DirtyPiecesAreGivenBackForWhatDoesNotFitThem) {
  std::vector<Block> small = fill(65536);
  for (size_t i = 0; i < small.size(); i += 2) free_block(small, i);
  std::vector<Block> large = fill(MIB);
  EXPECT_GE(large.size(), 28u);
  free_all(large);
  for (size_t i = 1; i < small.size(); i += 2) free_block(small, i);
}

TEST_F(Limit, AllForms) {
  std::vector<Block> blocks = fill(MIB);
  hakmem_free(blocks.back().p);
  blocks.pop_back();
  void *out = &out;
  errno = 0;
  EXPECT_EQ(hakmem_calloc(4, MIB), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  errno = 0;
  EXPECT_EQ(hakmem_aligned_alloc(4 * MIB, 4 * MIB), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  errno = 0;
  EXPECT_EQ(hakmem_posix_memalign(&out, 64, 4 * MIB), ENOMEM);
  EXPECT_EQ(errno, 0);
  EXPECT_EQ(out, &out);
  EXPECT_EQ(hakmem_realloc(blocks[0].p, 8 * MIB), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(blocks[0].p[MIB - 1], 0) << "it stays as it was";
  errno = 0;
  EXPECT_EQ(hakmem_malloc(40 * MIB), nullptr) << "a mapping of its own counts as well";
  EXPECT_EQ(errno, ENOMEM);
  errno = 5;
  EXPECT_NE(blocks[1].p = static_cast<unsigned char *>(hakmem_realloc(blocks[1].p, 100000)), nullptr);
  EXPECT_EQ(errno, 5) << "shrinking works at the limit";
  blocks[1].size = 100000;
  free_all(blocks);
}

TEST_F(Limit, CallocIsZeroAfterAPurge) {
  std::vector<Block> blocks = fill(65536);
  for (size_t i = 0; i < blocks.size(); i += 2) free_block(blocks, i);
  auto *p = static_cast<unsigned char *>(hakmem_calloc(1, 8 * MIB));
  ASSERT_NE(p, nullptr);
  for (size_t i = 0; i < 8 * MIB; i++) ASSERT_EQ(p[i], 0);
  hakmem_free(p);
  for (size_t i = 1; i < blocks.size(); i += 2) free_block(blocks, i);
}

TEST_F(Limit, HugeBlocksGrowUpToIt) {
  auto *p = static_cast<unsigned char *>(hakmem_malloc(36 * MIB));
  ASSERT_NE(p, nullptr);
  p[36 * MIB - 1] = 7;
  errno = 0;
  p = static_cast<unsigned char *>(hakmem_realloc(p, 60 * MIB));
  ASSERT_NE(p, nullptr) << "in place there is room, for a copy there would be none";
  EXPECT_EQ(errno, 0) << "the copy that was refused is not the program's matter";
  EXPECT_EQ(p[36 * MIB - 1], 7);
  EXPECT_EQ(hakmem_realloc(p, 70 * MIB), nullptr);
  hakmem_free(p);
  p = static_cast<unsigned char *>(hakmem_malloc(50 * MIB));
  EXPECT_NE(p, nullptr) << "the freed mapping is not kept where it is in the way";
  hakmem_free(p);
}

TEST_F(Limit, RunsGrowInPlaceWhereACopyDoesNotFit) {
  std::vector<void *> dirty(24);
  for (void *&b : dirty) ASSERT_NE(b = hakmem_malloc(MIB), nullptr);
  auto *p = static_cast<unsigned char *>(hakmem_malloc(29 * MIB)), *behind = static_cast<unsigned char *>(hakmem_malloc(3 * MIB));
  ASSERT_NE(behind, nullptr);
  if (behind != p + 29 * MIB) GTEST_SKIP() << "the addresses did not turn out as needed";
  memset(p, 9, 29 * MIB);
  hakmem_free(behind);
  hakmem_malloc_trim(0);
  for (void *b : dirty) hakmem_free(b);
  ASSERT_EQ(hakmem_option_set("HAKMEM_LIMIT", 56 * MIB), 0);  // less than 24 + 32, and than 29 + 32
  errno = 0;
  p = static_cast<unsigned char *>(hakmem_realloc(p, 32 * MIB));
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(errno, 0) << "the copy that was refused is not the program's matter";
  EXPECT_EQ(p[29 * MIB - 1], 9);
  hakmem_free(p);
}

// The free of another thread's blocks needs magazines, which are not refused.
TEST_F(Limit, OtherThreadsFreeAtTheLimit) {
  std::vector<Block> blocks = fill(48);
  std::thread([&] { free_all(blocks); }).join();
  std::vector<Block> again = fill(48);
  EXPECT_GE(again.size() * 100, blocks.size() * 95);
  free_all(again);
}

TEST_F(Limit, ThreadsBeginAndEndAtTheLimit) {
  std::vector<Block> blocks = fill(1000);
  std::atomic<int> served{0};
  for (int i = 0; i < 50; i++) {
    std::thread([&] {
      void *p = hakmem_malloc(500000);
      served += p != nullptr;
      hakmem_free(p);
    }).join();
  }
  EXPECT_EQ(served, 0);
  free_all(blocks);
}

// What sleeping threads cache is reached before a request is refused.
TEST_F(Limit, SleepingThreadsKeepLittleOfIt) {
  if (!hak_os_barrier()) GTEST_SKIP() << "there is no barrier";
  LongDecay none_in_between; // on a busy machine too they have what they cached
  constexpr unsigned THREADS = 10;
  std::vector<std::thread> threads;
  std::atomic<unsigned> asleep{0};
  std::atomic<bool> end{false};
  for (unsigned t = 0; t < THREADS; t++) {
    threads.emplace_back([&] {
      for (int i = 0; i < 400; i++) hakmem_free(hakmem_malloc(1)); // until it has a cache
      for (size_t size : {500, 700, 900}) {
        std::vector<void *> blocks(1500);
        for (int round = 0; round < 3; round++) { // a cache keeps much of what it serves often
          for (void *&p : blocks) p = hakmem_malloc(size);
          for (void *p : blocks) hakmem_free(p);
        }
      }
      asleep++;
      while (!end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    while (asleep <= t) std::this_thread::sleep_for(std::chrono::milliseconds(1)); // in turn: none has what another has freed
  }
  EXPECT_GT(used(), 5 * MIB) << "they are to keep more than may be missing below";
  std::vector<Block> blocks = fill(10000);
  EXPECT_GE(blocks.size() * 10240, LIMIT - 4 * MIB);
  free_all(blocks);
  end = true;
  for (std::thread &t : threads) t.join();
}

// In slabs that other arenas made, or in what they were cut from.
TEST_F(Limit, AThreadThatBeginsGetsWhatOthersHaveFree) {
  std::atomic<bool> full{false};
  std::atomic<unsigned> served{0};
  std::thread young([&] {
    while (!full) std::this_thread::yield();
    for (int i = 0; i < 1000; i++) served += hakmem_malloc(64) != nullptr;
  });
  std::vector<Block> blocks = fill(64);
  for (size_t i = 0; i < blocks.size(); i += 2) free_block(blocks, i);
  full = true;
  young.join();
  EXPECT_EQ(served, 1000u);
}

TEST_F(Limit, ManyThreadsShareIt) {
  std::vector<std::thread> threads;
  std::atomic<bool> over{false};
  for (unsigned t = 0; t < 4; t++)
    threads.emplace_back([&, t] {
      std::vector<Block> mine(800, Block{nullptr, 0});
      uint64_t random = t + 1;
      for (int i = 0; i < 60000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        Block &b = mine[(random >> 33) % mine.size()];
        if (b.p != nullptr) {
          if (b.p[0] != t || b.p[b.size - 1] != t) abort();
          hakmem_free(b.p);
          b.p = nullptr;
        } else {
          b.size = size_t(1) << (4 + (random >> 50) % 17);
          b.p = static_cast<unsigned char *>(hakmem_malloc(b.size));
          if (b.p != nullptr) b.p[0] = b.p[b.size - 1] = static_cast<unsigned char>(t);
        }
        if (i % 100 == 0 && used() > LIMIT + 2 * MIB) over = true;
      }
      for (const Block &b : mine) hakmem_free(b.p);
    });
  for (std::thread &t : threads) t.join();
  EXPECT_FALSE(over);
  EXPECT_GT(refused(), 0u) << "the test is to reach the limit";
}

TEST_F(Limit, LoweredBelowWhatIsUsedItRefusesUntilEnoughIsFreed) {
  std::vector<Block> blocks = fill(MIB);
  ASSERT_EQ(hakmem_option_set("HAKMEM_LIMIT", 32 * MIB), 0);
  EXPECT_EQ(hakmem_malloc(MIB), nullptr);
  while (blocks.size() > 20) {
    free_block(blocks, blocks.size() - 1);
    blocks.pop_back();
  }
  void *p = hakmem_malloc(2 * MIB);
  EXPECT_NE(p, nullptr);
  hakmem_free(p);
  free_all(blocks);
}

}  // namespace
